// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ask asks a handler as a client does.
func ask(t testing.TB, h http.Handler, target string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return w.Result()
}

func TestHandlerAnswersQueries(t *testing.T) {
	o := history(t)
	l := open(t, o)
	f := Filter{Unit: "Terraform/infra/network", Actor: "git:alice", Action: Approve, Since: start, Until: start.Add(time.Nanosecond), Limit: 5}
	back, err := filterOf(f.Values())
	if d := cmp.Diff(f, back); d != "" || err != nil {
		t.Errorf("the filter comes back as another: %v\n%s", err, d)
	}
	res := ask(t, l.Handler(), Path+"?"+f.Values().Encode())
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	var got []Entry
	for e, err := range Decode(res.Body) {
		must(t, err)
		got = append(got, e)
	}
	if d := cmp.Diff(all(t, o.Dir, f), got); d != "" || len(got) != 5 {
		t.Errorf("%d entries; -want +got:\n%s", len(got), d)
	}
	for _, q := range []string{"since=yesterday", "until=1", "limit=0", "limit=x"} {
		if res := ask(t, l.Handler(), Path+"?"+q); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s answers %s", q, res.Status)
		}
	}
	// An error comes as the last line, because the first ones have gone.
	lines(t, o.Dir, 2, func(l []string) []string { l[1] = strings.Replace(l[1], "Alice", "Mallo", 1); return l })
	var last error
	n := 0
	for _, err := range Decode(ask(t, l.Handler(), Path).Body) {
		last = err
		n++
	}
	if last == nil || !strings.Contains(last.Error(), "audit-000002.jsonl line 2") || n != 5 {
		t.Errorf("%d entries, then %v", n-1, last)
	}
}

func TestFetchedLedgerCanBeVerified(t *testing.T) {
	o := history(t)
	l := open(t, o)
	get := func(_ context.Context, path string) (io.ReadCloser, error) {
		res := ask(t, l.Handler(), Path+path)
		switch res.StatusCode {
		case http.StatusOK:
			return res.Body, nil
		case http.StatusNotFound:
			return nil, fs.ErrNotExist
		}
		return nil, fmt.Errorf("%s", res.Status)
	}
	fetch := func() (Report, error) {
		dir := t.TempDir()
		text, err := Fetch(t.Context(), get, dir)
		must(t, err)
		key, err := ParsePublicKey(text)
		must(t, err)
		return Verify(t.Context(), dir, key, VerifyOptions{})
	}
	if r, err := fetch(); err != nil || !r.Holds() || r.Segments != 4 || r.Head != l.Head() {
		t.Errorf("fetched: %+v, %v", r, err)
	}
	must(t, os.Remove(filepath.Join(o.Dir, checkpointName)))
	if r, err := fetch(); err != nil || len(r.Findings) != 1 || r.Findings[0].File != checkpointName {
		t.Errorf("fetched without a checkpoint: %v, %v", r.Findings, err)
	}
	for _, name := range []string{lockName, "audit-1.jsonl", "audit-000009.jsonl", url.PathEscape("../keys/audit.key"), ".."} {
		if res := ask(t, l.Handler(), Path+"/files/"+name); res.StatusCode == http.StatusOK {
			t.Errorf("%s answers %s", name, res.Status)
		}
	}
	if res := ask(t, l.Handler(), Path+"/keys"); res.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown path answers %s", res.Status)
	}
}

// TestFetchBelievesNoName lets a server name a file outside.
func TestFetchBelievesNoName(t *testing.T) {
	dir := t.TempDir()
	get := func(_ context.Context, path string) (io.ReadCloser, error) {
		if path == "/files" {
			return io.NopCloser(strings.NewReader(`["../outside", "audit-000001.jsonl"]`)), nil
		}
		return io.NopCloser(strings.NewReader("x")), nil
	}
	to := filepath.Join(dir, "in")
	must(t, os.Mkdir(to, 0o700))
	_, err := Fetch(t.Context(), get, to)
	must(t, err)
	if _, err := os.Stat(filepath.Join(dir, "outside")); err == nil {
		t.Error("a file was written outside")
	}
	if _, err := os.Stat(filepath.Join(to, "audit-000001.jsonl")); err != nil {
		t.Error(err)
	}
}
