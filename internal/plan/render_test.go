// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the wanted parts of testdata/*.txtar")

// inputs are those that the golden files were written with.
func inputs() Inputs {
	return Inputs{Revision: "main@sha1:b8e362c206e3d0cbb7ed22ced771a0056455a2fb", Salt: "sha256:plan-file"}
}

// TestRender reads each recorded plan and holds its text and Markdown against
// the golden ones.
func TestRender(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := inputs()
			in.Destroy = strings.Contains(file, "destroy")
			p, err := Parse(part(t, a, "plan.json"), in)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string][]byte{"markdown": []byte(p.Markdown())}
			var text bytes.Buffer
			p.Text(&text, false)
			got["text"] = text.Bytes()
			for i, f := range a.Files {
				g, ok := got[f.Name]
				if !ok {
					continue
				}
				if *update {
					a.Files[i].Data = g
				} else if diff := cmp.Diff(string(f.Data), string(g)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", f.Name, diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			checkRoundTrip(t, p)
			checkSafe(t, p)
		})
	}
}

// checkRoundTrip stores the plan as JSON and reads it back.
func checkRoundTrip(t *testing.T, p *Plan) {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back Plan
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	var a, b bytes.Buffer
	p.Text(&a, true)
	back.Text(&b, true)
	if diff := cmp.Diff(a.String(), b.String()); diff != "" {
		t.Errorf("text after a round through JSON (-want +got):\n%s", diff)
	}
	if p.Digest != back.Digest || p.Counts != back.Counts {
		t.Errorf("round through JSON: %s %v became %s %v", p.Digest, p.Counts, back.Digest, back.Counts)
	}
}

// checkSafe looks for secrets of the test data in everything that can be shown,
// and for characters that a terminal obeys.
func checkSafe(t *testing.T, p *Plan) {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	p.Text(&text, false)
	for what, s := range map[string]string{"JSON": string(data), "text": text.String(), "Markdown": p.Markdown()} {
		for _, secret := range []string{"hunter2", "s3cret", "correct horse", "battery staple", "1234\""} {
			if strings.Contains(s, secret) {
				t.Errorf("%s shows the secret %q", what, secret)
			}
		}
		if what != "JSON" && strings.ContainsAny(s, "\x1b\x07\u009b\u202e") {
			t.Errorf("%s has characters that steer a terminal:\n%q", what, s)
		}
	}
}

func part(t *testing.T, a *txtar.Archive, name string) []byte {
	t.Helper()
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	t.Fatalf("no part %s", name)
	return nil
}

func golden(t *testing.T, name, file string) []byte {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return part(t, a, file)
}

func TestColor(t *testing.T) {
	p := &Plan{Changes: []Change{{Address: "a.b", Type: "a", Name: "b", Action: ActionCreate}}}
	p.Counts = count(p.Changes)
	var got bytes.Buffer
	p.Text(&got, true)
	want := "  # \x1b[1ma.b\x1b[0m will be created\n  \x1b[32m+\x1b[0m resource \"a\" \"b\"\n\nPlan: 1 to add, 0 to change, 0 to destroy.\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestDiffLines(t *testing.T) {
	cases := map[string]struct {
		reason string
		a, b   string
		want   string
	}{
		"Equal":  {"Nothing differs, so everything is far from a difference.", "a b c", "a b c", "~# (3 unchanged lines)"},
		"Insert": {"The lines around are kept.", "a b", "a x b", " a +x  b"},
		"Delete": {"The lines around are kept.", "a x b", "a b", " a -x  b"},
		"Change": {"Old before new.", "a x b", "a y b", " a -x +y  b"},
		"Far":    {"A long way off is folded, three lines are not.", "1 2 3 4 5 6 7 x", "1 2 3 4 5 6 7 y", "~# (4 unchanged lines)  5  6  7 -x +y"},
		"Moved":  {"The longest common part stays.", "a b c d", "b c d a", "-a  b  c  d +a"},
	}
	signs := map[Action]string{ActionNoop: " ", ActionCreate: "+", ActionDelete: "-"}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, l := range diffLines(strings.Fields(tc.a), strings.Fields(tc.b)) {
				s := signs[l.action] + l.text
				if strings.HasPrefix(l.text, "#") {
					s = "~" + l.text
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
