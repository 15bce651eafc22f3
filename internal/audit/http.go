// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Path is where the handler expects to be: what is asked for below it is
//
//	GET Path?unit=&since=&until=&actor=&action=&limit=   entries, as JSON lines
//	GET Path/files                                       names of the files, as a JSON list
//	GET Path/files/NAME                                  a segment or the checkpoint, as it is
//	GET Path/key                                         the public key, PEM
//
// Times are RFC 3339. An error behind the first entry is a line {"error":"…"}.
const Path = "/api/v1/audit"

// mediaType is of JSON lines.
const mediaType = "application/jsonl"

// Values are the filter as query parameters of Path.
func (f Filter) Values() url.Values {
	q := url.Values{}
	set := func(key, value string) {
		if value != "" {
			q.Set(key, value)
		}
	}
	set("unit", f.Unit)
	set("actor", f.Actor)
	set("action", string(f.Action))
	if !f.Since.IsZero() {
		set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if !f.Until.IsZero() {
		set("until", f.Until.UTC().Format(time.RFC3339Nano))
	}
	if f.Limit > 0 {
		set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// filterOf reads what Values wrote.
func filterOf(q url.Values) (Filter, error) {
	f := Filter{Unit: q.Get("unit"), Actor: q.Get("actor"), Action: Action(q.Get("action"))}
	for key, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if q.Get(key) == "" {
			continue
		}
		var err error
		if *to, err = time.Parse(time.RFC3339Nano, q.Get(key)); err != nil {
			return f, fmt.Errorf("%s: %q is not a time of RFC 3339", key, q.Get(key))
		}
	}
	if s := q.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return f, fmt.Errorf("limit: %q is not a number from 1", s)
		}
		f.Limit = n
	}
	return f, nil
}

// Handler serves the ledger at Path to readers. It does not authenticate: whoever
// reaches it reads everything.
func (l *Ledger) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, l.serveEntries)
	mux.HandleFunc("GET "+Path+"/files", l.serveList)
	mux.HandleFunc("GET "+Path+"/files/{name}", l.serveFile)
	mux.HandleFunc("GET "+Path+"/key", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(marshalPublicKey(l.public))
	})
	return mux
}

func (l *Ledger) serveEntries(w http.ResponseWriter, r *http.Request) {
	f, err := filterOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	out := json.NewEncoder(w)
	for e, err := range l.Query(r.Context(), f) {
		if err != nil {
			// Too late for a status, unless nothing was written: the same for both.
			_ = out.Encode(map[string]string{"error": err.Error()})
			return
		}
		if out.Encode(e) != nil {
			return // the reader has gone
		}
	}
}

func (l *Ledger) serveList(w http.ResponseWriter, _ *http.Request) {
	numbers, err := segments(l.opts.Dir)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	names := []string{checkpointName}
	for _, n := range numbers {
		names = append(names, segmentName(n))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(names)
}

func (l *Ledger) serveFile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if _, ok := segmentNumber(name); !ok && name != checkpointName {
		http.Error(w, "the ledger has no such file", http.StatusNotFound)
		return
	}
	f, err := os.Open(filepath.Join(l.opts.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, "the ledger has no such file", http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", mediaType)
	_, _ = io.Copy(w, f)
}

// Decode reads entries as the handler writes them, and ends at the first error.
func Decode(r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		in := json.NewDecoder(r)
		for {
			var got struct {
				Entry
				Error string `json:"error"`
			}
			err := in.Decode(&got)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil && got.Error != "" {
				err = errors.New(got.Error)
			}
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if !yield(got.Entry, nil) {
				return
			}
		}
	}
}

// Fetch copies the ledger that a handler serves into a directory, so that Verify,
// Query and the function Export work on it, and returns its public key as the server
// tells it. Get opens what is below Path: "/key", "/files/checkpoint.json"; its error
// for what is not there is fs.ErrNotExist.
func Fetch(ctx context.Context, get func(ctx context.Context, path string) (io.ReadCloser, error), dir string) (key []byte, err error) {
	read := func(path string) ([]byte, error) {
		in, err := get(ctx, path)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return io.ReadAll(io.LimitReader(in, 1<<20))
	}
	if key, err = read("/key"); err != nil {
		return nil, err
	}
	// The checkpoint comes first: the segments may only be ahead of it.
	// One that is missing is for Verify to tell of.
	if err := fetchFile(ctx, get, dir, checkpointName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	list, err := read("/files")
	if err != nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(list, &names); err != nil {
		return nil, fmt.Errorf("list of the ledger's files: %w", err)
	}
	for _, name := range names {
		// The server is not believed: a name is a segment's, or it is not used.
		if _, ok := segmentNumber(name); !ok {
			continue
		}
		if err := fetchFile(ctx, get, dir, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return key, nil
}

func fetchFile(ctx context.Context, get func(context.Context, string) (io.ReadCloser, error), dir, name string) error {
	in, err := get(ctx, "/files/"+name)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}
