// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/mask"
)

// text strips the times.
func text(t *testing.T, r io.ReadCloser) []string {
	t.Helper()
	defer r.Close()
	var out []string
	in := bufio.NewScanner(r)
	for in.Scan() {
		stamp, rest, _ := strings.Cut(in.Text(), " ")
		if _, err := time.Parse(time.RFC3339, stamp); err != nil && stamp != "…" {
			t.Errorf("line %q has no time", in.Text())
		}
		if stamp == "…" {
			rest = in.Text()
		}
		out = append(out, rest)
	}
	if err := in.Err(); err != nil {
		t.Error(err)
	}
	return out
}

func mustLog(t *testing.T, e *desk, u Unit, run string, follow bool) io.ReadCloser {
	t.Helper()
	r, err := e.Log(u, run, follow)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLog(t *testing.T) {
	dir := t.TempDir()
	u := unit("x", "a")
	want := []string{"password (sensitive value)", "line two", "half a line", "terrace: run failed: no (sensitive value)"}
	var run string
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Dir: dir})
		proceed := make(chan struct{})
		j := job(u, func(_ context.Context, r *Run) (any, error) {
			out, errOut := r.Output(), r.Output()
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
		if diff := cmp.Diff(want[:2], text(t, mustLog(t, e, u, "", false))); diff != "" {
			t.Errorf("what is there while it runs:\n%s", diff)
		}
		followed, left := make(chan []string), make(chan struct{})
		go func() { followed <- text(t, mustLog(t, e, u, "a", true)) }()
		impatient := mustLog(t, e, u, "", true)
		go func() {
			_, _ = io.Copy(io.Discard, impatient)
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
		if _, err := e.Log(u, "../../etc", false); !errors.Is(err, ErrNoLog) {
			t.Errorf("a run that is not: %v", err)
		}
		if _, err := e.Log(unit("x", "other"), "", false); !errors.Is(err, ErrNoLog) {
			t.Errorf("a unit that is not: %v", err)
		}
	})
	e := open(t, Options{Dir: dir})
	for _, name := range []string{"", run, "a"} {
		if diff := cmp.Diff(want, text(t, mustLog(t, e, u, name, true))); diff != "" {
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
					if _, err := fmt.Sscanf(s, "… %d lines dropped …", &n); err == nil {
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
					out := r.Output()
					for i := range tc.lines {
						fmt.Fprintf(out, "line %d\n", i)
					}
					close(wrote)
					<-finish
					return nil, nil
				}))
				<-wrote
				early := mustLog(t, e, u, "", true)
				first := make([]byte, 30)
				if _, err := io.ReadFull(early, first); err != nil {
					t.Fatal(err)
				}
				if err := tc.want(text(t, mustLog(t, e, u, "", false))); err != nil {
					t.Errorf("while it runs: %s: %v", tc.reason, err)
				}
				close(finish)
				synctest.Wait()
				rest := text(t, struct {
					io.Reader
					io.Closer
				}{io.MultiReader(strings.NewReader(string(first)), early), early})
				if err := tc.want(rest); err != nil {
					t.Errorf("followed over the end: %s: %v", tc.reason, err)
				}
				if err := tc.want(text(t, mustLog(t, e, u, "", false))); err != nil {
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

// TestSlowFollower: one that was left behind hears how much it missed.
func TestSlowFollower(t *testing.T) {
	l := newLog(t.TempDir()+"/x.log", LogLimit{Head: 100, Tail: 100})
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	line := func(from, to int) {
		for i := from; i < to; i++ {
			l.append(fmt.Sprintf("%09d\n", i))
		}
	}
	line(0, 15)
	r := l.reader(true)
	defer r.Close()
	b := make([]byte, 123) // in the middle of the third line of a segment
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	line(15, 40)
	l.close()
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)+string(rest)), "\n")
	if diff := cmp.Diff([]string{"000000011", "000", "… 18 lines dropped …", "000000030"}, lines[11:15]); diff != "" {
		t.Error(diff)
	}
	if last := lines[len(lines)-1]; last != "000000039" {
		t.Errorf("last line %q", last)
	}
}

func TestLogIsJoinedAfterACrash(t *testing.T) {
	dir := t.TempDir()
	l := newLog(dir+"/x.log", LogLimit{Head: 20, Tail: 40})
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		l.append(fmt.Sprintf("%09d\n", i))
	}
	// No close: the process is gone.
	for range 2 { // the second time there is nothing to do
		if _, err := joinSegments(l.path); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	want := "000000000\n000000001\n… 14 lines dropped …\n000000016\n000000017\n000000018\n000000019\n"
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
}

func TestConcurrentOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{})
		u := unit("x", "a")
		e.Start(job(u, func(_ context.Context, r *Run) (any, error) {
			var wg sync.WaitGroup
			shared := r.Output()
			for i := range 10 {
				for _, w := range []io.Writer{shared, r.Output()} {
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
		lines := text(t, mustLog(t, e, u, "", false))
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
	synctest.Test(t, func(t *testing.T) {
		e := open(t, Options{Dir: dir, Log: LogLimit{Runs: 3}})
		u := unit("x", strings.Repeat("long", 60))
		for i := range 5 {
			j := job(u, func(_ context.Context, r *Run) (any, error) {
				return nil, r.Record(map[string]string{"n": fmt.Sprint(i)})
			})
			j.ID = fmt.Sprint(i)
			e.Start(j)
			synctest.Wait()
		}
		recs, err := e.Records(u)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range recs {
			got = append(got, r.ID+r.Facts["n"]+string(r.Outcome))
		}
		if diff := cmp.Diff([]string{"22succeeded", "33succeeded", "44succeeded"}, got); diff != "" {
			t.Error(diff)
		}
		if names := files(t, dir); len(names) != 3*2+1 {
			t.Errorf("files: %v", names)
		}
		if err := e.Remove(u); err != nil {
			t.Error(err)
		}
		if names := files(t, dir); len(names) != 1 {
			t.Errorf("files after Remove: %v", names)
		}
		e.Start(job(u, sleep(time.Hour)))
		if err := e.Remove(u); err == nil {
			t.Error("a running unit was removed")
		}
	})
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
