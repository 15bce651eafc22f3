// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// history makes a ledger of four segments, three of them closed, and returns where
// its parts are. The last segment has entries of its own.
func history(t testing.TB) Options {
	t.Helper()
	o := place(t)
	o.MaxSegment = 2200
	l := open(t, o)
	appendN(t, l, 13)
	must(t, l.Close())
	if n, err := segments(o.Dir); err != nil || len(n) != 4 {
		t.Fatalf("%d segments, %v", len(n), err)
	}
	return o
}

// copyDir copies a ledger.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

// lines changes the lines of a segment.
func lines(t testing.TB, dir string, segment uint64, edit func([]string) []string) {
	t.Helper()
	tamper(t, filepath.Join(dir, segmentName(segment)), func(s string) string {
		all := strings.SplitAfter(s, "\n")
		return strings.Join(edit(all[:len(all)-1]), "")
	})
}

// reseal makes the hash of a line fit its content again; the signature cannot be
// made to.
func reseal(raw string) string {
	raw, _ = strings.CutSuffix(raw, "\n")
	body := raw[:len(raw)-tailLen]
	return body + beforeHash + hashOf([]byte(body)) + raw[len(body)+len(beforeHash)+hashLen:] + "\n"
}

func TestVerifyFindsTampering(t *testing.T) {
	o := history(t)
	key, err := ReadPublicKey(PublicKeyFile(o.KeyFile))
	must(t, err)
	older := copyDir(t, o.Dir)
	l := open(t, o)
	appendN(t, l, 1)
	must(t, l.Close())

	// Another ledger with the same key, as after "moved away".
	stranger := o
	stranger.Dir = filepath.Join(t.TempDir(), "audit")
	l = open(t, stranger)
	appendN(t, l, 16)
	must(t, l.Close())

	swap := func(a, b int) func([]string) []string {
		return func(l []string) []string { l[a], l[b] = l[b], l[a]; return l }
	}
	in := func(segment uint64, edit func([]string) []string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { lines(t, dir, segment, edit) }
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				must(t, os.Remove(filepath.Join(dir, name)))
			}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		tamper func(t *testing.T, dir string)
		want   []string // "FILE:LINE KIND", all that is found
	}{
		"edited entry": {
			"the simplest lie: another name",
			in(1, func(l []string) []string { l[2] = strings.Replace(l[2], "Alice", "Mallo", 1); return l }),
			[]string{"audit-000001.jsonl:3 edited"},
		},
		"edited entry with its hash": {
			"a hash needs no key, a signature does",
			in(2, func(l []string) []string { l[1] = reseal(strings.Replace(l[1], "Alice", "Mallo", 1)); return l }),
			[]string{"audit-000002.jsonl:2 forged"},
		},
		"edited signature": {
			"every byte counts",
			in(1, func(l []string) []string {
				i := strings.Index(l[2], beforeSig) + len(beforeSig)
				l[2] = l[2][:i] + "AAAA" + l[2][i+4:]
				return l
			}),
			[]string{"audit-000001.jsonl:3 forged"},
		},
		"dropped entry": {
			"what is before and behind it is whole",
			in(1, func(l []string) []string { return slices.Delete(l, 2, 3) }),
			[]string{"audit-000001.jsonl:3 dropped"},
		},
		"dropped entries": {
			"a run of them is one finding",
			in(2, func(l []string) []string { return slices.Delete(l, 1, 3) }),
			[]string{"audit-000002.jsonl:2 dropped"},
		},
		"blanked entry": {
			"an empty line is no line",
			in(2, func(l []string) []string { l[1] = "\n"; return l }),
			[]string{"audit-000002.jsonl:2 malformed"},
		},
		"added line": {
			"between two that are whole, and written well",
			in(1, func(l []string) []string {
				return slices.Insert(l, 2, reseal(strings.Replace(l[2], "Alice", "Mallo", 1)))
			}),
			[]string{"audit-000001.jsonl:3 forged"},
		},
		"reordered entries": {
			"the later one stands first",
			in(1, swap(1, 2)),
			[]string{"audit-000001.jsonl:3 reordered"},
		},
		"duplicated entry": {
			"an approval must not count twice",
			in(1, func(l []string) []string { return slices.Insert(l, 2, l[1]) }),
			[]string{"audit-000001.jsonl:3 duplicated"},
		},
		"duplicated at the end": {
			"the live segment takes appends from anybody",
			in(4, func(l []string) []string { return append(l, l[1]) }),
			[]string{"audit-000004.jsonl:5 duplicated"},
		},
		"forged at the end": {
			"whoever can write the file can append to it, with a hash that fits",
			in(4, func(l []string) []string { return append(l, reseal(strings.Replace(l[1], "Alice", "Mallo", 1))) }),
			[]string{"audit-000004.jsonl:5 forged"},
		},
		"moved entry": {
			"in another segment it is out of order",
			func(t *testing.T, dir string) {
				var moved string
				lines(t, dir, 1, func(l []string) []string { moved = l[2]; return slices.Delete(l, 2, 3) })
				lines(t, dir, 2, func(l []string) []string { return slices.Insert(l, 2, moved) })
			},
			[]string{"audit-000002.jsonl:3 reordered"},
		},
		"truncated tail": {
			"the last entry is the one that somebody regrets",
			in(4, func(l []string) []string { return l[:len(l)-1] }),
			[]string{"audit-000004.jsonl:0 truncated"},
		},
		"truncated by a byte": {
			"a crash tears only what the checkpoint does not know",
			func(t *testing.T, dir string) {
				tamper(t, filepath.Join(dir, segmentName(4)), func(s string) string { return s[:len(s)-1] })
			},
			[]string{"audit-000004.jsonl:0 truncated"},
		},
		"truncated segment": {
			"a closed segment has its end",
			in(2, func(l []string) []string { return l[:len(l)-1] }),
			[]string{"audit-000002.jsonl:0 truncated"},
		},
		"truncated segment, with entries": {
			"and the entries are told of",
			in(2, func(l []string) []string { return l[:2] }),
			[]string{"audit-000002.jsonl:0 truncated", "audit-000003.jsonl:1 dropped"},
		},
		"segment cut in a line": {
			"only the live segment may end so",
			in(2, func(l []string) []string { l[len(l)-1] = l[len(l)-1][:20]; return l }),
			[]string{"audit-000002.jsonl:6 truncated"},
		},
		"empty segment": {
			"nothing is not a segment",
			in(2, func([]string) []string { return nil }),
			[]string{"audit-000002.jsonl:0 truncated", "audit-000003.jsonl:1 dropped"},
		},
		"dropped beginning": {
			"the line that names the segment",
			in(2, func(l []string) []string { return l[1:] }),
			[]string{"audit-000002.jsonl:1 dropped"},
		},
		"edited beginning": {
			"it says which key signs",
			in(2, func(l []string) []string { l[0] = strings.Replace(l[0], "2026", "2025", 1); return l }),
			[]string{"audit-000002.jsonl:1 edited"},
		},
		"edited end": {
			"it closes the segment all the same",
			in(2, func(l []string) []string {
				l[len(l)-1] = strings.Replace(l[len(l)-1], "2026", "2025", 1)
				return l
			}),
			[]string{"audit-000002.jsonl:6 edited"},
		},
		"entry behind the end": {
			"a closed segment is closed",
			in(2, func(l []string) []string { return append(l, l[1]) }),
			[]string{"audit-000002.jsonl:7 reordered"},
		},
		"dropped segment": {
			"the whole file",
			remove(segmentName(2)),
			[]string{"audit-000002.jsonl:0 dropped"},
		},
		"dropped first segment": {
			"without an entry that it was exported",
			remove(segmentName(1)),
			[]string{"audit-000001.jsonl:0 dropped"},
		},
		"dropped last segment": {
			"the checkpoint knows it",
			remove(segmentName(4)),
			[]string{"audit-000003.jsonl:0 truncated"},
		},
		"all segments dropped": {
			"the checkpoint knows them",
			remove(segmentName(1), segmentName(2), segmentName(3), segmentName(4)),
			[]string{"audit-000004.jsonl:0 truncated"},
		},
		"swapped segments": {
			"each is whole",
			func(t *testing.T, dir string) {
				a, b := filepath.Join(dir, segmentName(2)), filepath.Join(dir, segmentName(3))
				must(t, errors.Join(os.Rename(a, a+"x"), os.Rename(b, a), os.Rename(a+"x", b)))
			},
			[]string{"audit-000002.jsonl:1 reordered", "audit-000003.jsonl:1 reordered"},
		},
		"duplicated segment": {
			"under the next free number",
			func(t *testing.T, dir string) {
				b, err := os.ReadFile(filepath.Join(dir, segmentName(3)))
				must(t, errors.Join(err, os.WriteFile(filepath.Join(dir, segmentName(5)), b, 0o600)))
			},
			[]string{"audit-000004.jsonl:0 truncated", "audit-000005.jsonl:1 reordered"},
		},
		"segment of another ledger": {
			"the same key, another history",
			func(t *testing.T, dir string) {
				b, err := os.ReadFile(filepath.Join(stranger.Dir, segmentName(2)))
				must(t, errors.Join(err, os.WriteFile(filepath.Join(dir, segmentName(2)), b, 0o600)))
			},
			[]string{"audit-000002.jsonl:1 forked"},
		},
		"dropped checkpoint": {
			"it would have known the end",
			remove(checkpointName),
			[]string{"checkpoint.json:0 truncated"},
		},
		"edited checkpoint": {
			"to fit a shorter ledger",
			func(t *testing.T, dir string) {
				tamper(t, filepath.Join(dir, checkpointName), func(s string) string { return strings.Replace(s, `"seq":15`, `"seq":14`, 1) })
			},
			[]string{"checkpoint.json:0 edited"},
		},
		"checkpoint made of an entry's signature": {
			"what is signed says what it is",
			func(t *testing.T, dir string) {
				b, err := os.ReadFile(filepath.Join(dir, segmentName(4)))
				must(t, err)
				text := strings.Split(string(b), "\n")
				must(t, os.WriteFile(filepath.Join(dir, checkpointName), pad([]byte(text[0])), 0o600))
			},
			[]string{"checkpoint.json:0 edited"},
		},
		"older checkpoint with a shorter ledger": {
			"the whole of an older copy is a ledger that holds; see TestVerifyKnowsHeads",
			func(t *testing.T, dir string) {
				must(t, os.RemoveAll(dir))
				must(t, os.CopyFS(dir, os.DirFS(older)))
			},
			[]string{},
		},
		"newer checkpoint with an older segment": {
			"what is true alone is not true together",
			func(t *testing.T, dir string) {
				b, err := os.ReadFile(filepath.Join(older, segmentName(4)))
				must(t, errors.Join(err, os.WriteFile(filepath.Join(dir, segmentName(4)), b, 0o600)))
			},
			[]string{"audit-000004.jsonl:0 truncated"},
		},
		"two lies": {
			"the first does not hide the second",
			in(1, func(l []string) []string {
				l[1] = strings.Replace(l[1], "ledger-begin", "ledger-bugin", 1)
				return slices.Delete(l, 3, 4)
			}),
			[]string{"audit-000001.jsonl:2 edited", "audit-000001.jsonl:4 dropped"},
		},
		"nothing": {"an untouched copy holds", func(*testing.T, string) {}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDir(t, o.Dir)
			tc.tamper(t, dir)
			r, err := Verify(t.Context(), dir, key, VerifyOptions{})
			must(t, err)
			got := []string{}
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Kind))
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want +got:\n%s%v", tc.reason, d, r.Findings)
			}
			// A ledger goes on only where its end is what was written.
			moved := o
			moved.Dir = dir
			l, err := Open(moved)
			if err == nil {
				must(t, l.Close())
			}
			tail := slices.ContainsFunc(r.Findings, func(f Finding) bool {
				return f.File == segmentName(4) || f.File == checkpointName || f.File == segmentName(5)
			})
			if tail && err == nil {
				t.Error("the ledger was opened")
			}
		})
	}
}

// TestEveryByteCounts changes each byte of a ledger, one at a time, and cuts it off
// at each.
func TestEveryByteCounts(t *testing.T) {
	o := place(t)
	o.MaxSegment = 1
	l := open(t, o)
	appendN(t, l, 1)
	must(t, l.Close())
	check := func(what string, at int) {
		r, err := Verify(t.Context(), o.Dir, l.PublicKey(), VerifyOptions{})
		if err != nil || r.Holds() {
			t.Errorf("%s byte %d: holds, %v", what, at, err)
		}
	}
	for _, name := range []string{segmentName(1), segmentName(2), checkpointName} {
		path := filepath.Join(o.Dir, name)
		whole, err := os.ReadFile(path)
		must(t, err)
		// In place: files that are truncated and written anew are flushed to disk.
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		write := func(b []byte, at int) {
			_, err := f.WriteAt(b, int64(at))
			must(t, err)
		}
		for i, b := range whole {
			write([]byte{b ^ 1}, i)
			check(name+" with another", i)
			write([]byte{b}, i)
		}
		for i := len(whole) - 1; i >= 0; i-- {
			must(t, f.Truncate(int64(i)))
			check(name+" cut at", i)
		}
		write(whole, 0)
		must(t, f.Close())
	}
	verify(t, o)
}

// renew replaces a file, faster than by truncating it.
func renew(t testing.TB, file string, content []byte) {
	t.Helper()
	must(t, errors.Join(os.Remove(file), os.WriteFile(file, content, 0o600)))
}

// unsynced is a segment for tests that open many ledgers.
type unsynced struct{ *os.File }

func (unsynced) Sync() error { return nil }

// TestCrashAtEveryByte opens a ledger that ends at each byte of its last two
// entries, as a crash leaves it: the checkpoint is that of before.
func TestCrashAtEveryByte(t *testing.T) {
	o := place(t)
	o.wrap = func(f *os.File) file { return unsynced{f} }
	l := open(t, o)
	appendN(t, l, 3)
	point, err := os.ReadFile(filepath.Join(o.Dir, checkpointName))
	must(t, err)
	known := l.size
	in, err := l.Begin(t.Context(), Entry{Actor: Actor{Kind: Terrace, Name: "x"}, Action: Apply, Run: "r"})
	must(t, err)
	middle := l.size
	must(t, in.End(t.Context(), Outcome{Result: Succeeded}))
	must(t, l.Close())
	whole, err := os.ReadFile(filepath.Join(o.Dir, segmentName(1)))
	must(t, err)
	for n := known; n <= int64(len(whole)); n++ {
		renew(t, filepath.Join(o.Dir, segmentName(1)), whole[:n])
		renew(t, filepath.Join(o.Dir, checkpointName), point)
		before := verify(t, o)
		l, err := Open(o)
		if err != nil {
			t.Fatalf("cut at byte %d: %v", n, err)
		}
		want := uint64(4)
		if n >= middle {
			want++
		}
		if n == int64(len(whole)) {
			want++
		}
		torn := n != known && n != middle && n != int64(len(whole))
		if torn {
			want++ // the entry that says so
		}
		if (before.Torn > 0) != torn || l.Head().Seq != want {
			t.Errorf("cut at byte %d: torn %v, %d bytes; the ledger ends with entry %d, want %d", n, torn, before.Torn, l.Head().Seq, want)
		}
		if open := len(l.Unfinished()); (open == 1) != (n >= middle && n < int64(len(whole))) {
			t.Errorf("cut at byte %d: %d intents are unfinished", n, open)
		}
		must(t, l.Close())
		verify(t, o)
	}
	// Behind what the checkpoint knows a cut is no crash.
	renew(t, filepath.Join(o.Dir, segmentName(1)), whole[:known-1])
	renew(t, filepath.Join(o.Dir, checkpointName), point)
	var corrupt *CorruptError
	if _, err := Open(o); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), "its end was cut off") {
		t.Errorf("Open of a ledger that was cut: %v", err)
	}
}

// TestCrashBetweenSegments stops at each step of a rotation, and of a beginning.
func TestCrashBetweenSegments(t *testing.T) {
	o := place(t)
	o.MaxSegment = 1
	l := open(t, o)
	point, err := os.ReadFile(filepath.Join(o.Dir, checkpointName))
	must(t, err)
	appendN(t, l, 1) // ends segment 1, begins segment 2
	must(t, l.Close())
	for name, tc := range map[string]struct {
		reason string
		crash  func(dir string) error
		want   uint64 // the last entry
	}{
		"after the end": {
			"the next segment is made at the start",
			func(dir string) error { return os.Remove(filepath.Join(dir, segmentName(2))) }, 1,
		},
		"while the next is written": {
			"what is not whole has another name",
			func(dir string) error {
				return os.Rename(filepath.Join(dir, segmentName(2)), filepath.Join(dir, segmentName(2)+newExt))
			}, 1,
		},
		"before the checkpoint": {
			"the ledger is ahead of it by a segment",
			func(string) error { return nil }, 2,
		},
		"in the first start": {
			"there is a checkpoint and no segment: nothing was promised yet",
			func(dir string) error {
				return errors.Join(os.Remove(filepath.Join(dir, segmentName(1))), os.Remove(filepath.Join(dir, segmentName(2))))
			}, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.Dir = copyDir(t, o.Dir)
			must(t, errors.Join(os.WriteFile(filepath.Join(o.Dir, checkpointName), point, 0o600), tc.crash(o.Dir)))
			l := open(t, o)
			if got := l.Head().Seq; got != tc.want {
				t.Errorf("%s: the ledger ends with entry %d, want %d", tc.reason, got, tc.want)
			}
			appendN(t, l, 2)
			if r := verify(t, o); r.Last != tc.want+2 {
				t.Errorf("report: %+v", r)
			}
		})
	}
}

func TestVerifyKnowsHeads(t *testing.T) {
	o := place(t)
	l := open(t, o)
	appendN(t, l, 2)
	must(t, l.Close())
	older := copyDir(t, o.Dir)
	l = open(t, o)
	appendN(t, l, 2)
	noted, err := ParseHead(l.Head().String())
	must(t, err)
	appendN(t, l, 1)
	key := l.PublicKey()
	for name, tc := range map[string]struct {
		reason, dir string
		want        string
	}{
		"the ledger":    {"it has gone on from there", o.Dir, ""},
		"an older copy": {"it holds by itself", older, Truncated},
	} {
		r, err := Verify(t.Context(), tc.dir, key, VerifyOptions{Known: []Head{noted}})
		must(t, err)
		if tc.want == "" && !r.Holds() || tc.want != "" && (len(r.Findings) != 1 || r.Findings[0].Kind != tc.want) {
			t.Errorf("%s: %s: %v", name, tc.reason, r.Findings)
		}
	}
	// The older copy goes on: another history with the same key.
	fork := o
	fork.Dir = older
	l = open(t, fork)
	for range 5 {
		_, err := l.Append(t.Context(), entry(100))
		must(t, err)
	}
	r, err := Verify(t.Context(), older, key, VerifyOptions{Known: []Head{noted}})
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Kind != Forked {
		t.Errorf("another history: %v, %v", r.Findings, err)
	}
	for _, s := range []string{"", "5", "x:" + noted.Hash, "5:" + noted.Hash[1:], "5:" + strings.ToUpper(noted.Hash)} {
		if _, err := ParseHead(s); err == nil {
			t.Errorf("ParseHead(%q) succeeded", s)
		}
	}
}

func TestVerifyNeedsTheRightKeyAndALedger(t *testing.T) {
	o := history(t)
	other, _, err := ed25519.GenerateKey(nil)
	must(t, err)
	r, err := Verify(t.Context(), o.Dir, other, VerifyOptions{})
	if err != nil || len(r.Findings) != 5 || !strings.Contains(r.Findings[0].Text, "signed with the key") {
		t.Errorf("another key: %v, %v", r.Findings, err)
	}
	if _, err := Verify(t.Context(), t.TempDir(), other, VerifyOptions{}); !errors.Is(err, ErrNoLedger) {
		t.Errorf("an empty directory: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range Query(ended, o.Dir, Filter{}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Query with an ended context: %v", err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	write := func(file func(Options) string, content string, mode os.FileMode) func(*testing.T, Options) {
		return func(t *testing.T, o Options) {
			must(t, os.Remove(file(o)))
			must(t, os.WriteFile(file(o), []byte(content), mode))
		}
	}
	keyFile := func(o Options) string { return o.KeyFile }
	for name, tc := range map[string]struct {
		reason string
		edit   func(*testing.T, Options)
		want   string
	}{
		"no key": {"a new key would begin another history", func(t *testing.T, o Options) { must(t, os.Remove(o.KeyFile)) }, "no such file"},
		"another key": {"the history cannot go on with it", func(t *testing.T, o Options) {
			must(t, os.Remove(o.KeyFile))
			_, _, err := loadKey(o.KeyFile, true)
			must(t, err)
		}, "signed with another key"},
		"exposed key":   {"others could sign", func(t *testing.T, o Options) { must(t, os.Chmod(o.KeyFile, 0o644)) }, "make it 0600"},
		"no key's form": {"and its content is not in the message", write(keyFile, "hunter2", 0o600), "it is not the PEM of a private key"},
		"hole":          {"a segment is missing", func(t *testing.T, o Options) { must(t, os.Remove(filepath.Join(o.Dir, segmentName(3)))) }, "audit-000003.jsonl: it is missing"},
		"edited": {"the line is named", func(t *testing.T, o Options) {
			lines(t, o.Dir, 4, func(l []string) []string { l[1] = strings.Replace(l[1], "Alice", "Mallo", 1); return l })
		}, "audit-000004.jsonl line 2: its hash is not that of its content"},
		"edited before": {"the last segment follows what was written", func(t *testing.T, o Options) {
			lines(t, o.Dir, 3, func(l []string) []string { return l[:len(l)-1] })
		}, "audit-000003.jsonl: its last line is not the one that the next segment follows"},
	} {
		t.Run(name, func(t *testing.T) {
			o := history(t)
			tc.edit(t, o)
			_, err := Open(o)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: Open: %v", tc.reason, err)
			}
		})
	}
	for _, o := range []Options{{}, {Dir: t.TempDir()}, {KeyFile: "x"}} {
		if _, err := Open(o); err == nil {
			t.Errorf("Open(%+v) succeeded", o)
		}
	}
}

func TestNewLedgerBesideAnOldKeySaysSo(t *testing.T) {
	o := history(t)
	must(t, os.Rename(o.Dir, o.Dir+".old"))
	must(t, open(t, o).Close())
	if got := all(t, o.Dir, Filter{})[0].Detail; !strings.Contains(got, "if another ledger was here, it was taken away") {
		t.Errorf("the first entry says %q", got)
	}
}

func TestQuery(t *testing.T) {
	o := history(t)
	l := open(t, o)
	for _, e := range []Entry{
		{Actor: Actor{Kind: Kubernetes, Name: "system:serviceaccount:infra:ci"}, Action: Suspend, Unit: "Terraform/infra/db"},
		{Actor: Actor{Kind: Git, Name: "Bob", Email: "bob@example.org", Committer: "Web", CommitterEmail: "web@forge.example"}, Action: Approve, Unit: "Kustomization/apps/db"},
		{Actor: Actor{Kind: Terrace, Name: "drift"}, Action: Drift, Unit: "Terraform/infra/network"},
	} {
		_, err := l.Append(t.Context(), e)
		must(t, err)
	}
	for name, tc := range map[string]struct {
		reason string
		filter Filter
		want   []uint64
	}{
		"unit":        {"exactly", Filter{Unit: "terraform/infra/db"}, []uint64{15}},
		"namespace":   {"an empty part is any", Filter{Unit: "/apps/"}, []uint64{16}},
		"name":        {"of both kinds", Filter{Unit: "//db"}, []uint64{15, 16}},
		"actor":       {"by name, in any case", Filter{Actor: "bob"}, []uint64{16}},
		"email":       {"by the committer's address", Filter{Actor: "web@forge.example"}, []uint64{16}},
		"actor, kind": {"a name may hold colons", Filter{Actor: "kubernetes:system:serviceaccount:infra:ci"}, []uint64{15}},
		"action":      {"one action", Filter{Action: Drift}, []uint64{17}},
		"until":       {"the bound is not included", Filter{Until: start}, nil},
		"since":       {"the bound is included", Filter{Since: start, Action: Drift}, []uint64{17}},
		"later":       {"nothing is newer", Filter{Since: start.Add(time.Second)}, nil},
		"limit":       {"the newest, across segments, oldest first", Filter{Limit: 6}, []uint64{12, 13, 14, 15, 16, 17}},
		"both":        {"the limit counts what matches", Filter{Unit: "/infra/", Limit: 3}, []uint64{14, 15, 17}},
		"much":        {"a limit beyond what is there", Filter{Limit: 1000, Actor: "drift"}, []uint64{17}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []uint64
			for _, e := range all(t, o.Dir, tc.filter) {
				got = append(got, e.Seq)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, d)
			}
		})
	}
	for _, f := range []Filter{{}, {Limit: 3}} {
		n := 0
		for range l.Query(t.Context(), f) {
			n++
			break
		}
		if n != 1 {
			t.Errorf("a reader who stops got %d entries", n)
		}
	}
	// What was changed is not shown as if nothing were.
	lines(t, o.Dir, 1, func(l []string) []string { l[2] = strings.Replace(l[2], "Alice", "Mallo", 1); return l })
	var last error
	for _, err := range l.Query(t.Context(), Filter{}) {
		last = err
	}
	var corrupt *CorruptError
	if !errors.As(last, &corrupt) || corrupt.Line != 3 {
		t.Errorf("Query of an edited ledger ends with %v", last)
	}
}

// FuzzVerify changes a ledger in every way that a fuzzer finds: what is not the
// ledger must not hold, and nothing may panic.
func FuzzVerify(f *testing.F) {
	o := place(f)
	l := open(f, o)
	appendN(f, l, 2)
	must(f, l.Close())
	whole, err := os.ReadFile(filepath.Join(o.Dir, segmentName(1)))
	must(f, err)
	point, err := os.ReadFile(filepath.Join(o.Dir, checkpointName))
	must(f, err)
	f.Add(whole, point)
	f.Add(whole[:len(whole)-1], point)
	f.Add([]byte("{}\n"), []byte("{}"))
	f.Add([]byte(strings.Repeat(`{"entry":null}`, 30)+"\n"), point)
	f.Fuzz(func(t *testing.T, segment, checkpoint []byte) {
		o := o
		o.Dir = t.TempDir()
		must(t, os.WriteFile(filepath.Join(o.Dir, segmentName(1)), segment, 0o600))
		must(t, os.WriteFile(filepath.Join(o.Dir, checkpointName), checkpoint, 0o600))
		r, err := Verify(t.Context(), o.Dir, l.PublicKey(), VerifyOptions{})
		must(t, err)
		// Only more bytes of a line that was not finished are forgiven.
		rest, ok := strings.CutPrefix(string(segment), string(whole))
		same := ok && !strings.Contains(rest, "\n") && string(checkpoint) == string(point)
		if r.Holds() != same {
			t.Errorf("holds: %v, and it is the ledger: %v; %v", r.Holds(), same, r.Findings)
		}
		again, err := Open(o)
		if (err == nil) != same {
			t.Errorf("Open: %v, and it is the ledger: %v", err, same)
		}
		if err == nil {
			must(t, again.Close())
		}
		for range Query(t.Context(), o.Dir, Filter{Limit: 1}) {
		}
	})
}
