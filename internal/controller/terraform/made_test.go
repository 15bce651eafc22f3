// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// What an apply has made is kept once, however often a crash has it looked for, and is read
// by nobody without the key.
func TestMadeIsKept(t *testing.T) {
	dir := t.TempDir()
	open := func(key string) *Controller {
		t.Helper()
		blobs, err := blob.Open(t.Context(), blob.Options{URL: filepath.Join(dir, "blobs"), KeyFile: filepath.Join(dir, key)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = blobs.Close() })
		return &Controller{opts: Options{Dir: filepath.Join(dir, "units"), Blobs: blobs}}
	}
	c, u := open("key"), run.Unit{Kind: "Terraform", Namespace: "ns", Name: "u"}
	work, err := workdir.OpenDir(c.unitDir(u))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = work.Close() })
	printed := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(work.Tmp(), 0o700), os.WriteFile(filepath.Join(work.Tmp(), name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(c *Controller, want ...tofu.Made) {
		t.Helper()
		if err := c.keepMade(u, work); err != nil {
			t.Fatal(err)
		}
		kept, err := c.readMade(u)
		if err != nil {
			t.Fatal(err)
		}
		var got []tofu.Made
		for _, m := range kept {
			got = append(got, m.Made)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	a, b := tofu.Made{Address: "a.a", ID: "canary-1"}, tofu.Made{Address: "b.b", ID: "2"}
	keep(c)
	printed("plan-1.out", "x.x: Creation complete after 0s [id=0]\n")
	printed("apply-1.out", "a.a: Creation complete after 0s [id=canary-1]\nb.b: Creation complete after 0s [id=2]\n")
	keep(c, a, b)
	keep(c, a, b)
	printed("apply-1.out", "b.b: Creation complete after 0s [id=3]\n")
	keep(c, a, tofu.Made{Address: "b.b", ID: "3"})
	if content, err := os.ReadFile(c.madePath(u)); err != nil || strings.Contains(string(content), "canary") {
		t.Errorf("the file shows what is in it: %v", err)
	}

	// With another key it is put aside, and told of.
	kept, err := open("other").readMade(u)
	if err != nil || len(kept) != 1 || !strings.Contains(kept[0].Why, "made.sealed.unreadable") {
		t.Errorf("%+v, %v", kept, err)
	}
	if _, err := os.Stat(c.madePath(u) + ".unreadable"); err != nil {
		t.Error(err)
	}

	if err := c.changeMade(u, func(kept []made) []made { kept[0].Why = "told"; return kept }); err != nil {
		t.Fatal(err)
	}
	if err := c.forgetOrphans(u); err != nil {
		t.Fatal(err)
	}
	if kept, err := c.readMade(u); err != nil || len(kept) != 1 || kept[0].Address != "b.b" {
		t.Errorf("after one was told of: %+v, %v", kept, err)
	}
}

func TestCulprits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		of     string // a letter each
		bad    string
		tries  int
	}{
		"None": {"all are tried at once", "abcdefgh", "", 1},
		"One":  {"the way to one is short", "abcdefgh", "f", 7},
		"Two":  {"each is found", "abcdefgh", "ah", 11},
		"All":  {"every one may be", "ab", "ab", 3},
	} {
		t.Run(name, func(t *testing.T) {
			var ms []*made
			for _, r := range tc.of {
				ms = append(ms, &made{Made: tofu.Made{Address: string(r)}})
			}
			tries := 0
			bad, errs := culprits(ms, func(ms []*made) error {
				tries++
				if slices.ContainsFunc(ms, func(m *made) bool { return strings.Contains(tc.bad, m.Address) }) {
					return errors.New("no")
				}
				return nil
			})
			var got string
			for _, m := range bad {
				got += m.Address
			}
			if got != tc.bad || len(errs) != len(bad) || tries != tc.tries {
				t.Errorf("%s: %q with %d errors in %d tries, want %q in %d", tc.reason, got, len(errs), tries, tc.bad, tc.tries)
			}
		})
	}
}
