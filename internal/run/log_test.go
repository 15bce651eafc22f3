// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/mask"
)

// read returns all lines of a log.
func read(t *testing.T, r *LogReader) []Line {
	t.Helper()
	defer r.Close()
	var out []Line
	for {
		lines, err := r.Next()
		out = append(out, lines...)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) == 0 {
			t.Fatal("Next returned nothing")
		}
	}
}

// text is what the lines say, with the streams that are not standard output, and checks
// their times and numbers.
func text(t *testing.T, lines []Line) []string {
	t.Helper()
	var out []string
	for i, l := range lines {
		if i > 0 && !l.breaksOff && l.Number != lines[i-1].Number+max(l.Dropped, 1) {
			t.Errorf("line %d follows line %d: %q", l.Number, lines[i-1].Number, l.Text)
		}
		if l.Time.IsZero() != l.breaksOff {
			t.Errorf("line %d is of %s: %q", l.Number, l.Time, l.Text)
		}
		said := l.Text
		if l.Stream != Stdout {
			said = string(l.Stream) + ": " + said
		}
		out = append(out, said)
	}
	return out
}

func mustLog(t *testing.T, e *desk, u Unit, run string, follow bool) *LogReader {
	t.Helper()
	r, err := e.Log(u, run, LogOptions{Follow: follow})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLog(t *testing.T) {
	dir := t.TempDir()
	u := unit("x", "a")
	want := []string{"password (sensitive value)", "line two", "stderr: half a line", "terrace: terrace: run failed: no (sensitive value)"}
	var run string
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Dir: dir})
		proceed := make(chan struct{})
		j := job(u, func(_ context.Context, r *Run) (any, error) {
			out, errOut := r.Output(Stdout), r.Output(Stderr)
			fmt.Fprint(out, "password hun")
			fmt.Fprint(errOut, "half a ")
			fmt.Fprint(out, "ter22\nline two\n")
			<-proceed
			fmt.Fprint(errOut, "line")
			return nil, errors.New("no hunter22")
		})
		j.Mask = mask.New([]byte("hunter22"))
		e.Start(j)
		synctest.Wait()
		if diff := cmp.Diff(want[:2], text(t, read(t, mustLog(t, e, u, "", false)))); diff != "" {
			t.Errorf("what is there while it runs:\n%s", diff)
		}
		followed, left := make(chan []string), make(chan struct{})
		go func() { followed <- text(t, read(t, mustLog(t, e, u, "a", true))) }()
		impatient := mustLog(t, e, u, "", true)
		go func() {
			for err := error(nil); err == nil; {
				_, err = impatient.Next()
			}
			close(left)
		}()
		synctest.Wait()
		impatient.Close()
		<-left
		close(proceed)
		if diff := cmp.Diff(want, <-followed); diff != "" {
			t.Errorf("followed:\n%s", diff)
		}
		run = mustGet(t, e, u).Run
		if _, err := e.Log(u, "../../etc", LogOptions{}); !errors.Is(err, ErrNoLog) {
			t.Errorf("a run that is not: %v", err)
		}
		if _, err := e.Log(unit("x", "other"), "", LogOptions{}); !errors.Is(err, ErrNoLog) {
			t.Errorf("a unit that is not: %v", err)
		}
	})
	e := open(t, Options{Dir: dir})
	for _, name := range []string{"", run, "a"} {
		if diff := cmp.Diff(want, text(t, read(t, mustLog(t, e, u, name, true)))); diff != "" {
			t.Errorf("run %q after a restart:\n%s", name, diff)
		}
	}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 && path != dir {
			t.Errorf("%s: mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLogIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		lines  int
		want   func(lines []string) error
	}{
		"Short": {
			reason: "what fits is whole",
			lines:  5,
			want: func(l []string) error {
				if len(l) != 5 {
					return fmt.Errorf("%d lines", len(l))
				}
				return nil
			},
		},
		"Long": {
			reason: "of what does not, both ends are kept and the rest is counted",
			lines:  1000,
			want: func(l []string) error {
				gap := 0
				for i, s := range l {
					n := 0
					if _, err := fmt.Sscanf(s, "terrace: … %d lines dropped …", &n); err == nil {
						gap = n
						l = append(l[:i:i], l[i+1:]...)
						break
					}
				}
				if len(l)+gap != 1000 || l[0] != "line 0" || l[len(l)-1] != "line 999" || gap < 900 {
					return fmt.Errorf("%d kept, %d dropped, from %q to %q", len(l), gap, l[0], l[len(l)-1])
				}
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			u := unit("x", "a")
			limit := LogLimit{Head: 500, Tail: 1000}
			synctest.Test(t, func(t *testing.T) {
				e := open(t, Options{Dir: dir, Log: limit})
				wrote, finish := make(chan struct{}), make(chan struct{})
				e.Start(job(u, func(_ context.Context, r *Run) (any, error) {
					out := r.Output(Stdout)
					for i := range tc.lines {
						fmt.Fprintf(out, "line %d\n", i)
					}
					close(wrote)
					<-finish
					return nil, nil
				}))
				<-wrote
				early := mustLog(t, e, u, "", true)
				first, err := early.Next()
				if err != nil {
					t.Fatal(err)
				}
				if err := tc.want(text(t, read(t, mustLog(t, e, u, "", false)))); err != nil {
					t.Errorf("while it runs: %s: %v", tc.reason, err)
				}
				close(finish)
				synctest.Wait()
				rest := text(t, append(first, read(t, early)...))
				if err := tc.want(rest); err != nil {
					t.Errorf("followed over the end: %s: %v", tc.reason, err)
				}
				if err := tc.want(text(t, read(t, mustLog(t, e, u, "", false)))); err != nil {
					t.Errorf("afterwards: %s: %v", tc.reason, err)
				}
			})
			files, _ := filepath.Glob(dir + "/x/Terraform-a/*")
			if len(files) != 2 {
				t.Errorf("files: %v", files)
			}
		})
	}
}

// bare is a log outside of an executor.
func bare(t *testing.T, limit LogLimit) *logFile {
	t.Helper()
	l := newLog(filepath.Join(t.TempDir(), "x"+logExt+compressedExt), limit)
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	return l
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 345e6, time.UTC)

// number writes numbered lines of the same length.
func number(l *logFile, from, to int) {
	for i := from; i < to; i++ {
		l.append(noon, Stdout, fmt.Appendf(nil, "%09d\n", i))
	}
}

// stored is the length of such a line on disk.
const stored = int64(len(stampLayout + " stdout 000000000\n"))

// found reads what is on disk of a log.
func found(t *testing.T, l *logFile, opts LogOptions) []Line {
	t.Helper()
	pieces, err := findPieces(l.path)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, storedLog(pieces).reader("", opts))
}

// TestSlowFollower: one that was left behind hears how much it missed.
func TestSlowFollower(t *testing.T) {
	l := bare(t, LogLimit{Head: 10 * stored, Tail: 10 * stored})
	number(l, 0, 12)
	r := l.reader("", LogOptions{Follow: true})
	var lines []Line
	for len(lines) < 12 {
		more, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, more...)
	}
	number(l, 12, 40) // the reader has the segment of lines 10 to 14 open
	l.close(noon)
	lines = append(lines, read(t, r)...)
	want := []string{"000000013", "000000014", "terrace: … 15 lines dropped …", "000000030"}
	got := text(t, lines)
	if diff := cmp.Diff(want, got[13:17]); diff != "" {
		t.Error(diff)
	}
	if last := got[len(got)-1]; last != "000000039" {
		t.Errorf("last line %q", last)
	}
}

func TestLogIsTakenUpAfterALine(t *testing.T) {
	l := bare(t, LogLimit{Head: 3 * stored, Tail: 4 * stored})
	number(l, 0, 20)
	cases := map[string]struct {
		reason string
		after  int64
		want   []string
	}{
		"Head":   {"what was read is not sent again", 2, []string{"000000002", "terrace: … 14 lines dropped …", "000000017", "000000018", "000000019"}},
		"Gap":    {"only what was not read is missing", 10, []string{"terrace: … 7 lines dropped …", "000000017", "000000018", "000000019"}},
		"End":    {"all was read", 20, nil},
		"Beyond": {"somebody makes a number up", 1 << 62, nil},
		"Before": {"the same", -5, []string{"000000000", "000000001", "000000002", "terrace: … 14 lines dropped …", "000000017", "000000018", "000000019"}},
	}
	check := func(when string) {
		for name, tc := range cases {
			got := slices.DeleteFunc(found(t, l, LogOptions{After: tc.after}), func(l Line) bool { return l.breaksOff })
			if diff := cmp.Diff(tc.want, text(t, got)); diff != "" {
				t.Errorf("%s, %s: %s:\n%s", name, when, tc.reason, diff)
			}
		}
	}
	check("while it is written")
	l.close(noon)
	check("in one file")
}

// TestLogAfterACrash cuts the file of a log at every byte, as kill -9 or the loss of power can:
// every line that is whole is there, and the log is mended as it is.
func TestLogAfterACrash(t *testing.T) {
	l := bare(t, LogLimit{Head: 1 << 20, Tail: 1 << 20})
	var ends []int64 // of the file, by lines
	for i := range 8 {
		ends = append(ends, l.out.size)
		number(l, i, i+1)
	}
	ends = append(ends, l.out.size)
	whole, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(l.path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		want := []string{}
		for i := 1; i < len(ends) && ends[i] <= int64(cut); i++ {
			want = append(want, fmt.Sprintf("%09d", i-1))
		}
		got := text(t, found(t, l, LogOptions{}))
		// The last bytes of a flush carry no text, so one line more may be there.
		if n := len(want); len(got) == n+2 && got[n] == fmt.Sprintf("%09d", n) {
			want = append(want, got[n])
		}
		if diff := cmp.Diff(append(slices.Clone(want), "terrace: … the log breaks off here …"), got); diff != "" {
			t.Fatalf("cut at %d of %d:\n%s", cut, len(whole), diff)
		}
		for range 2 { // and again, when nobody has settled it
			reopenLog(l.path).interrupt(noon, &InterruptedError{Interruption{Run: "r"}})
		}
		want = append(want, "terrace: terrace: run interrupted: interrupted: run r did not end")
		if diff := cmp.Diff(want, text(t, found(t, l, LogOptions{}))); diff != "" {
			t.Fatalf("mended after a cut at %d of %d:\n%s", cut, len(whole), diff)
		}
	}
}

func TestDamagedLogSaysSo(t *testing.T) {
	l := bare(t, LogLimit{Head: 1 << 20, Tail: 1 << 20})
	number(l, 0, 3)
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	// A file system may have grown the file and not written it when the power went.
	if _, err := f.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	got := text(t, found(t, l, LogOptions{}))
	if len(got) != 4 || !strings.HasPrefix(got[3], "terrace: … the log breaks off here: flate: corrupt input") {
		t.Errorf("%q", got)
	}
}

func TestLogIsJoinedAfterACrash(t *testing.T) {
	l := bare(t, LogLimit{Head: 2 * stored, Tail: 4 * stored})
	number(l, 0, 20)
	// No close: the process is gone.
	want := []string{
		"000000000", "000000001", "terrace: … 14 lines dropped …", "000000016", "000000017", "000000018", "000000019",
	}
	check := func(when string, want []string) {
		t.Helper()
		if diff := cmp.Diff(want, text(t, found(t, l, LogOptions{}))); diff != "" {
			t.Errorf("%s:\n%s", when, diff)
		}
	}
	check("before", append(slices.Clone(want), "terrace: … the log breaks off here …"))
	segments, err := filepath.Glob(l.path + ".*")
	if err != nil || len(segments) != 2 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	left := map[string][]byte{}
	for _, s := range segments {
		if left[s], err = os.ReadFile(s); err != nil {
			t.Fatal(err)
		}
	}
	want = append(want, "terrace: terrace: run interrupted: interrupted: run r did not end")
	interrupt := func() { reopenLog(l.path).interrupt(noon, &InterruptedError{Interruption{Run: "r"}}) }
	interrupt()
	check("afterwards", want)
	if files, _ := filepath.Glob(l.path + "*"); len(files) != 1 {
		t.Errorf("files: %v", files)
	}
	for s, content := range left { // a crash came before they were removed
		if err := os.WriteFile(s, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("with what is left over", want)
	interrupt()
	check("joined again", want)
}

// TestFollowedOverACrash: a reader that comes while a run is recovered hears how it ended.
func TestFollowedOverACrash(t *testing.T) {
	l := bare(t, LogLimit{Head: 2 * stored, Tail: 4 * stored})
	number(l, 0, 4)
	synctest.Test(t, func(t *testing.T) {
		again := reopenLog(l.path)
		got := make(chan []string)
		go func() { got <- text(t, read(t, again.reader("", LogOptions{Follow: true, After: 3}))) }()
		synctest.Wait()
		again.interrupt(noon, &InterruptedError{Interruption{Run: "r"}})
		want := []string{"000000003", "terrace: terrace: run interrupted: interrupted: run r did not end"}
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLogOnAFullDisk: what cannot be written is counted, what comes later is there, and what
// is there can be read.
func TestLogOnAFullDisk(t *testing.T) {
	l := bare(t, LogLimit{Head: 1 << 20, Tail: 1 << 20})
	number(l, 0, 3)
	fail := func() { // the next write fails
		l.out.file.Close()
		f, err := os.Open(l.pieces[len(l.pieces)-1].path)
		if err != nil {
			t.Fatal(err)
		}
		l.out.file = f
	}
	fail()
	number(l, 3, 5)
	number(l, 5, 7)
	fail()
	number(l, 7, 8)
	number(l, 8, 9)
	l.close(noon)
	got := text(t, found(t, l, LogOptions{}))
	want := []string{"000000000", "000000001", "000000002", "000000004", "000000005", "000000006", "000000008"}
	if diff := cmp.Diff(want, got[:len(got)-1]); diff != "" {
		t.Error(diff)
	}
	if last := got[len(got)-1]; !strings.HasPrefix(last, "terrace: terrace: 2 lines could not be written: ") {
		t.Errorf("last line %q", last)
	}
}

// TestLogsOfEarlierVersions were neither compressed nor marked with a stream.
func TestLogsOfEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	const run = "20260102t120000.000000000z-apply"
	base := filepath.Join(dir, "x", "Terraform-a", run)
	if err := os.MkdirAll(filepath.Dir(base), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		".log":              "2026-01-02T12:00:00.345Z one\n2026-01-02T12:00:00.345Z \n… 3 lines dropped …\n2026-01-02T12:00:00.345Z six\n",
		".log.000000000009": "2026-01-02T12:00:00.345Z ten\n",
	} {
		if err := os.WriteFile(base+file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"one", "", "terrace: … 3 lines dropped …", "six", "terrace: … 3 lines dropped …", "ten"}
	e := open(t, Options{Dir: dir})
	got := read(t, mustLog(t, e, unit("x", "a"), run, false))
	if diff := cmp.Diff(want, text(t, got)); diff != "" {
		t.Error(diff)
	}
	if got := got[0].String(); got != "2026-01-02T12:00:00.345Z one" {
		t.Errorf("as people read it: %q", got)
	}
	if got := got[2].String(); got != "… 3 lines dropped …" {
		t.Errorf("as people read it: %q", got)
	}
	path := e.store.logPath(unit("x", "a"), run)
	reopenLog(path).interrupt(noon, &InterruptedError{Interruption{Run: "r"}})
	want = append(want, "terrace: terrace: run interrupted: interrupted: run r did not end")
	if diff := cmp.Diff(want, text(t, read(t, mustLog(t, e, unit("x", "a"), run, false)))); diff != "" {
		t.Errorf("recovered by this version:\n%s", diff)
	}
	if names := files(t, filepath.Dir(base)); !slices.Equal(names, []string{path}) {
		t.Errorf("files: %v", names)
	}
}

func TestLongLinesAreParted(t *testing.T) {
	l := bare(t, LogLimit{Head: 1 << 20, Tail: 1 << 20})
	l.append(noon, Stderr, []byte(strings.Repeat("x", longestText+1)+"\nafter\n"))
	l.close(noon)
	got := found(t, l, LogOptions{})
	if len(got) != 3 || len(got[0].Text) != longestText || got[1].Text != "x" || got[2].Text != "after" || got[2].Stream != Stderr {
		t.Errorf("%d lines", len(got))
	}
}

// FuzzStoredLog reads files that may be anything: the lines have an order, and the reader ends.
func FuzzStoredLog(f *testing.F) {
	const (
		earlier    = iota // the form of earlier versions
		compressed        // the texts are compressed
		torn              // and have no end
		raw               // the bytes are those of the files
	)
	zipped := func(text []byte, whole bool) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(text)
		_ = w.Flush()
		if whole {
			_ = w.Close()
		}
		return b.Bytes()
	}
	text := []byte("2026-01-02T12:00:00.345Z stdout one\n2026-01-02T12:00:00.345Z dropped 3\n2026-01-02T12:00:00.345Z terrace six\n")
	f.Add(text, []byte("2026-01-02T12:00:00.345Z stderr ten\n"), byte(compressed))
	f.Add(text, []byte("2026-01-02T12:00:00.345Z dropped 99999999999999999999\n2026-01-02T12:00:00.345Z dropped -1\n2026-01-02T12:00:00.345Z stdout \nx"), byte(torn))
	f.Add([]byte("2026-01-02T12:00:00.345Z one\n… 9223372036854775807 lines dropped …\nhalf"), []byte("\n\n"), byte(earlier))
	f.Add(zipped(text, false)[:30], append(zipped(text, true), 0, 0), byte(raw))
	f.Fuzz(func(t *testing.T, head, segment []byte, form byte) {
		path := filepath.Join(t.TempDir(), "x"+logExt+compressedExt)
		name := path
		switch form % 4 {
		case earlier:
			name = strings.TrimSuffix(path, compressedExt)
		case compressed, torn:
			head, segment = zipped(head, true), zipped(segment, form%4 == compressed)
		}
		if err := errors.Join(os.WriteFile(name, head, 0o600), os.WriteFile(segmentPath(name, 9), segment, 0o600)); err != nil {
			t.Fatal(err)
		}
		pieces, err := findPieces(path)
		if err != nil || len(pieces) != 2 {
			t.Fatalf("pieces %v, %v", pieces, err)
		}
		lines := read(t, storedLog(pieces).reader("", LogOptions{}))
		var last int64
		for _, l := range lines {
			if l.Number-l.Dropped < last || l.Number < 1 && !l.breaksOff || strings.Contains(l.Text, "\n") || l.String() == "" && !l.Time.IsZero() {
				t.Errorf("line %+v after line %d", l, last)
			}
			last = l.Number
		}
		// What is mended says the same.
		reopenLog(path).interrupt(noon, &InterruptedError{Interruption{Run: "r"}})
		lines = slices.DeleteFunc(lines, func(l Line) bool { return l.breaksOff })
		pieces, err = findPieces(path)
		if err != nil {
			t.Fatal(err)
		}
		again := read(t, storedLog(pieces).reader("", LogOptions{}))
		if len(again) != len(lines)+1 {
			t.Fatalf("%d lines, and %d with one more after they were mended", len(lines), len(again))
		}
		for i, l := range lines {
			if a := again[i]; l.Text != a.Text || l.Number != a.Number || l.Stream != a.Stream {
				t.Errorf("line %+v became %+v", l, a)
			}
		}
	})
}

// BenchmarkLog is the log of a usual run: some 80 lines in a dozen writes.
func BenchmarkLog(b *testing.B) {
	dir := b.TempDir()
	chunk := []byte(strings.Repeat("  # terraform_data.example[\"one\"] will be created\n  + resource \"terraform_data\" \"example\" {\n      + id = (known after apply)\n", 2))
	var size int64
	for i := 0; b.Loop(); i++ {
		l := newLog(filepath.Join(dir, fmt.Sprint(i)), LogLimit{Head: 512 << 10, Tail: 1 << 20})
		if err := l.open(); err != nil {
			b.Fatal(err)
		}
		for range 13 {
			l.append(noon, Stdout, chunk)
		}
		l.close(noon)
		size = l.pieces[0].size
	}
	b.ReportMetric(float64(size), "bytes")
}

func TestConcurrentOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{})
		u := unit("x", "a")
		e.Start(job(u, func(_ context.Context, r *Run) (any, error) {
			var wg sync.WaitGroup
			shared := r.Output(Stdout)
			for i := range 10 {
				for _, w := range []io.Writer{shared, r.Output(Stdout)} {
					wg.Go(func() {
						for range 100 {
							fmt.Fprintf(w, "writer %d says so\n", i)
						}
					})
				}
			}
			wg.Wait()
			return nil, nil
		}))
		synctest.Wait()
		lines := text(t, read(t, mustLog(t, e, u, "", false)))
		if len(lines) != 2000 {
			t.Errorf("%d lines", len(lines))
		}
		for _, l := range lines {
			if !strings.HasSuffix(l, " says so") || strings.Count(l, "writer") != 1 {
				t.Fatalf("mixed: %q", l)
			}
		}
	})
}

func TestOnlyTheLastRunsAreKept(t *testing.T) {
	dir := t.TempDir()
	const day = 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		var pinned string // a run that something refers to
		e := open(t, Options{Dir: dir, Log: LogLimit{Runs: 3, Age: 30 * day}, Kept: func(_ Unit, run string) bool { return run == pinned }})
		u := unit("x", strings.Repeat("long", 60))
		runs := func() (out []string) {
			t.Helper()
			recs, err := e.Records(u)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range recs {
				out = append(out, r.ID+r.Facts["n"]+string(r.Outcome))
				mustLog(t, e, u, r.Run, false).Close()
			}
			return out
		}
		want := func(when string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, runs()); diff != "" {
				t.Errorf("%s:\n%s", when, diff)
			}
			if names := files(t, dir); len(names) != len(want)*2+1 {
				t.Errorf("%s: files %v", when, names)
			}
		}
		sweep := func() {
			t.Helper()
			if err := e.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for i := range 6 {
			j := job(u, func(_ context.Context, r *Run) (any, error) {
				return nil, r.Record(map[string]string{"n": fmt.Sprint(i)})
			})
			j.ID = fmt.Sprint(i)
			e.Start(j)
			synctest.Wait()
			if i == 1 {
				pinned = mustGet(t, e, u).Run
			}
		}
		want("the last and what is referred to", "11succeeded", "33succeeded", "44succeeded", "55succeeded")
		if err := e.Remove(u); err != nil {
			t.Error(err)
		}
		sweep()
		want("the unit is gone", "11succeeded", "33succeeded", "44succeeded", "55succeeded")
		time.Sleep(31 * day)
		if err := os.WriteFile(filepath.Join(e.store.unitDir(u), ".left.log.gz.1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sweep()
		want("a month later", "11succeeded")
		pinned = ""
		sweep()
		want("nothing refers to it any more")
		if entries, err := os.ReadDir(filepath.Join(dir, "x")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the namespace has %v, %v", entries, err)
		}
		e.Start(job(u, sleep(time.Hour)))
		if err := e.Remove(u); err == nil {
			t.Error("a running unit was removed")
		}
		time.Sleep(45 * time.Minute)
		sweep()
		time.Sleep(30 * time.Minute)
		want("one that ran meanwhile", u.Name+"succeeded")
	})
}

// TestSweepLeavesWhatIsToBeRecovered: Terrace may have been away for longer than logs are kept.
func TestSweepLeavesWhatIsToBeRecovered(t *testing.T) {
	dir := t.TempDir()
	killed(t, dir, `trap 'exit 1' INT; echo 0; while :; do sleep 0.02; done`)
	late := clocktesting.NewFakeClock(time.Now().Add(365 * 24 * time.Hour))
	changed := make(chan Unit, 10)
	e, err := New(Options{Dir: dir, OnChange: func(u Unit) { changed <- u }, Clock: late})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Shutdown(context.Background()) })
	u := <-changed
	sweep := func() {
		t.Helper()
		if err := e.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
	}
	sweep()
	s, _ := e.Get(u)
	r, err := e.Log(u, "", LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, r); len(got) != 2 || got[1].Stream != Own || !strings.Contains(got[1].Text, "interrupted") {
		t.Errorf("log %+v", got)
	}
	e.Forget(u, s.ID)
	sweep()
	if _, err := e.Log(u, "", LogOptions{}); !errors.Is(err, ErrNoLog) {
		t.Errorf("an old log is kept: %v", err)
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFileNames(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "_",
		"_active":                "%5Factive",
		"..":                     "%2E.",
		"a/../b":                 "a%2F..%2Fb",
		strings.Repeat("n", 300): strings.Repeat("n", 163) + "~" + hash(strings.Repeat("n", 300)),
	} {
		if got := fileName(in); got != want {
			t.Errorf("fileName(%q) = %q, want %q", in, got, want)
		}
	}
}
