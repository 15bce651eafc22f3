// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"
	"golang.org/x/tools/txtar"
)

// small is a plan that changes one resource.
const small = `{
 "format_version": "1.2",
 "terraform_version": "1.12.6",
 "variables": {"v": {"value": "a"}},
 "resource_changes": [
  {"address": "terraform_data.b", "mode": "managed", "type": "terraform_data", "name": "b", "provider_name": "terraform.io/builtin/terraform",
   "change": {"actions": ["update"], "before": {"id": "1", "input": "a"}, "after": {"id": "1", "input": "b"},
    "after_unknown": {"output": true}, "before_sensitive": {}, "after_sensitive": {}}},
  {"address": "terraform_data.a", "mode": "managed", "type": "terraform_data", "name": "a", "provider_name": "terraform.io/builtin/terraform",
   "change": {"actions": ["create"], "before": null, "after": {"input": "n"},
    "after_unknown": {"id": true}, "before_sensitive": false, "after_sensitive": {}}},
  {"address": "terraform_data.still", "mode": "managed", "type": "terraform_data", "name": "still", "provider_name": "terraform.io/builtin/terraform",
   "change": {"actions": ["no-op"], "before": {"id": "2"}, "after": {"id": "2"}, "after_unknown": {}, "before_sensitive": {}, "after_sensitive": {}}}
 ],
 "output_changes": {"o": {"actions": ["update"], "before": "a", "after": "b", "after_unknown": false, "before_sensitive": false, "after_sensitive": false}},
 "configuration": {"root_module": {"resources": [
  {"address": "terraform_data.b", "mode": "managed", "type": "terraform_data", "name": "b", "provider_config_key": "terraform",
   "provisioners": [{"type": "local-exec", "expressions": {"command": {"constant_value": "true"}}}], "schema_version": 0}]}},
 "timestamp": "2026-01-01T00:00:00Z"
}`

// TestDigest says what is content and what is not. It is the heart of approving
// by content: R1, R2 and R21 of the compatibility cases.
func TestDigest(t *testing.T) {
	base := Inputs{Revision: "main@sha1:aaaaaaaaaaaa", Key: []byte("key")}
	edit := func(old, new string) func(string, Inputs) (string, Inputs) {
		return func(s string, in Inputs) (string, Inputs) {
			if !strings.Contains(s, old) {
				t.Fatalf("the plan has no %s", old)
			}
			return strings.ReplaceAll(s, old, new), in
		}
	}
	with := func(f func(*Inputs)) func(string, Inputs) (string, Inputs) {
		return func(s string, in Inputs) (string, Inputs) { f(&in); return s, in }
	}
	cases := map[string]struct {
		reason string
		change func(string, Inputs) (string, Inputs)
		same   bool
	}{
		"Nothing":       {"The digest is a function.", func(s string, in Inputs) (string, Inputs) { return s, in }, true},
		"Revision":      {"R1: the commit that approves a plan makes a new revision.", with(func(in *Inputs) { in.Revision = "main@sha1:bbbbbbbbbbbb" }), true},
		"Time":          {"Each plan has its own time.", edit("2026-01-01", "2027-02-02"), true},
		"ToolVersion":   {"The tool is an input of the unit, not of what is done.", edit("1.12.6", "1.12.7"), true},
		"Order":         {"The tool's order is not promised.", reorder, true},
		"Unchanged":     {"The state of what stays as it is can change at any time.", edit(`{"id": "2"}`, `{"id": "3"}`), true},
		"EmptyMarks":    {"Versions of the tool differ in how they write that nothing is sensitive.", edit(`"before_sensitive": {}`, `"before_sensitive": false`), true},
		"FalseMark":     {"False says what absence says.", edit(`"after_unknown": {"id": true}`, `"after_unknown": {"id": true, "input": false}`), true},
		"Value":         {"R2 and R21: another value is another plan, at the same revision.", edit(`"input": "b"`, `"input": "c"`), false},
		"OldValue":      {"Who approved 1 to 2 did not approve 3 to 2.", edit(`{"id": "1", "input": "a"}`, `{"id": "1", "input": "z"}`), false},
		"Variable":      {"A variable can reach a provider or a provisioner, which no change shows.", edit(`{"value": "a"}`, `{"value": "b"}`), false},
		"Provisioner":   {"What a provisioner runs shows in the configuration only.", edit(`"constant_value": "true"`, `"constant_value": "false"`), false},
		"Action":        {"Destroying is not updating.", edit(`["update"], "before": {"id"`, `["delete", "create"], "before": {"id"`), false},
		"CreateFirst":   {"The order of a replacement matters to what uses the resource.", edit(`["create"]`, `["create", "delete"]`), false},
		"Unknown":       {"A value that the apply decides is not a value that was shown.", edit(`{"output": true}`, `{"output": false}`), false},
		"Sensitive":     {"A mark decides where the value may go.", edit(`"after_sensitive": {}`, `"after_sensitive": {"input": true}`), false},
		"Provider":      {"The same type of another provider is another thing.", edit("terraform.io/builtin/terraform", "example.org/x/terraform"), false},
		"Output":        {"Others read outputs.", edit(`"after": "b"`, `"after": "c"`), false},
		"Destroy":       {"It was asked for something else.", with(func(in *Inputs) { in.Destroy = true }), false},
		"Target":        {"A restriction leaves out what might have been seen.", with(func(in *Inputs) { in.Targets = []string{"terraform_data.b"} }), false},
		"InputVariable": {"The caller's own variables count.", with(func(in *Inputs) { in.Variables = map[string]json.RawMessage{"x": json.RawMessage("1")} }), false},
		"Salt":          {"The caller's own digest counts.", with(func(in *Inputs) { in.Salt = "s" }), false},
		"Key":           {"Without the key nobody can try values.", with(func(in *Inputs) { in.Key = []byte("other") }), false},
		"NoKey":         {"A keyed digest is never the plain one.", with(func(in *Inputs) { in.Key = nil }), false},
	}
	want := mustParse(t, small, base)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, in := tc.change(small, base)
			got := mustParse(t, s, in)
			if same := got.Digest == want.Digest; same != tc.same {
				t.Errorf("%s\nsame digest = %t, want %t", tc.reason, same, tc.same)
			}
			if same := got.ID == want.ID; same != tc.same {
				t.Errorf("%s\nsame id = %t, want %t (%s and %s)", tc.reason, same, tc.same, want.ID, got.ID)
			}
		})
	}
}

// reorder turns the list of resources round.
func reorder(s string, in Inputs) (string, Inputs) {
	var p map[string]any
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		panic(err)
	}
	l := p["resource_changes"].([]any)
	l[0], l[2] = l[2], l[0]
	out, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return string(out), in
}

func mustParse(t *testing.T, s string, in Inputs) *Plan {
	t.Helper()
	p, err := Parse([]byte(s), in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDigestOfTargets(t *testing.T) {
	digest := func(targets ...string) string { return mustParse(t, small, Inputs{Targets: targets}).Digest }
	if digest("a", "b") != digest("b", "a") {
		t.Error("the order of targets, which are a set, changes the digest")
	}
}

func TestDigestOfVariables(t *testing.T) {
	digest := func(v string) string {
		t.Helper()
		return mustParse(t, small, Inputs{Variables: map[string]json.RawMessage{"x": json.RawMessage(v)}}).Digest
	}
	if digest(`{"a": 1, "b": [2]}`) != digest(`{"b":[2],"a":1}`) {
		t.Error("spaces and the order of keys change the digest")
	}
	if digest(`12345678901234567890`) == digest(`12345678901234567891`) {
		t.Error("large numbers are rounded")
	}
	_, err := Parse([]byte(small), Inputs{Variables: map[string]json.RawMessage{"x": json.RawMessage(`hunter2`)}})
	if err == nil || strings.Contains(err.Error(), "hunter") {
		t.Errorf("a value that is not JSON: error = %v, want one that does not quote it", err)
	}
}

// TestFromTerraform holds the two ways to read a plan against each other.
func TestFromTerraform(t *testing.T) {
	var p tfjson.Plan
	if err := json.Unmarshal([]byte(small), &p); err != nil {
		t.Fatal(err)
	}
	got, err := FromTerraform(&p, Inputs{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(mustParse(t, small, Inputs{}), got); diff != "" {
		t.Errorf("plan (-Parse +FromTerraform):\n%s", diff)
	}
	if _, err := FromTerraform(nil, Inputs{}); err == nil {
		t.Error("no error for no plan")
	}
	if _, err := Parse([]byte("\nWarning: something\n{}"), Inputs{}); err == nil {
		t.Error("no error for what is not JSON")
	}
}

func TestPlanOfSmall(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	got := mustParse(t, small, Inputs{Revision: "main@sha1:aaaaaaaaaaaa"})
	want := &Plan{
		ID: got.ID, Digest: got.Digest, Revision: "main@sha1:aaaaaaaaaaaa", Branch: "main",
		Counts: Counts{Create: 1, Update: 1},
		Changes: []Change{
			{
				Address: "terraform_data.a", Mode: "managed", Type: "terraform_data", Name: "a", Provider: "terraform.io/builtin/terraform",
				Action: ActionCreate, After: raw(`{"input":"n"}`), AfterUnknown: raw(`{"id":true}`),
				Fields: []FieldChange{
					{Path: "id", Action: ActionCreate, Unknown: true},
					{Path: "input", Action: ActionCreate, After: raw(`"n"`)},
				},
			},
			{
				Address: "terraform_data.b", Mode: "managed", Type: "terraform_data", Name: "b", Provider: "terraform.io/builtin/terraform",
				Action: ActionUpdate, Before: raw(`{"id":"1","input":"a"}`), After: raw(`{"id":"1","input":"b"}`), AfterUnknown: raw(`{"output":true}`),
				Fields: []FieldChange{
					{Path: "input", Action: ActionUpdate, Before: raw(`"a"`), After: raw(`"b"`)},
					{Path: "output", Action: ActionCreate, Unknown: true},
				},
			},
		},
		Outputs: []OutputChange{{Name: "o", Action: ActionUpdate, Before: raw(`"a"`), After: raw(`"b"`)}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(got.ID, "plan-main-") || !got.HasChanges() {
		t.Errorf("id = %q, has changes = %t", got.ID, got.HasChanges())
	}
}

func TestFromStream(t *testing.T) {
	type change struct {
		Action  Action
		Address string
	}
	cases := map[string]struct {
		reason  string
		changes []change
		outputs []OutputChange
		counts  Counts
		has     bool
	}{
		"create": {
			reason: "A first plan.",
			changes: []change{
				{ActionCreate, `terraform_data.each["k|1"]`},
				{ActionCreate, "terraform_data.gone[0]"},
				{ActionCreate, "terraform_data.replaced"},
				{ActionCreate, "terraform_data.secret"},
				{ActionCreate, "terraform_data.text"},
				{ActionCreate, "terraform_data.x"},
			},
			outputs: []OutputChange{{Name: "o", Action: ActionCreate}, {Name: "plain", Action: ActionCreate}, {Name: "s", Action: ActionCreate, Sensitive: true}},
			counts:  Counts{Create: 6},
			has:     true,
		},
		"change": {
			reason: "The same plan as JSON has the same actions.",
			changes: []change{
				{ActionDelete, "terraform_data.gone[0]"},
				{ActionReplace, "terraform_data.replaced"},
				{ActionUpdate, "terraform_data.secret"},
				{ActionUpdate, "terraform_data.text"},
				{ActionUpdate, "terraform_data.x"},
			},
			outputs: []OutputChange{{Name: "o", Action: ActionUpdate}, {Name: "plain", Action: ActionUpdate}, {Name: "s", Action: ActionUpdate, Sensitive: true}},
			counts:  Counts{Update: 3, Delete: 1, Replace: 1},
			has:     true,
		},
		"no-changes": {reason: "Nothing to do is a plan as well."},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := FromStream(bytes.NewReader(golden(t, name, "stream.json")), inputs())
			if err != nil {
				t.Fatal(err)
			}
			var changes []change
			for _, c := range p.Changes {
				changes = append(changes, change{c.Action, c.Address})
			}
			if diff := cmp.Diff(tc.changes, changes); diff != "" {
				t.Errorf("%s\nchanges (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.outputs, p.Outputs); diff != "" {
				t.Errorf("%s\noutputs (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.counts, p.Counts); diff != "" {
				t.Errorf("%s\ncounts (-want +got):\n%s", tc.reason, diff)
			}
			if p.HasChanges() != tc.has {
				t.Errorf("%s\nhas changes = %t", tc.reason, p.HasChanges())
			}
			full, err := Parse(golden(t, name, "plan.json"), inputs())
			if err != nil {
				t.Fatal(err)
			}
			if full.Counts != p.Counts {
				t.Errorf("counts of the stream %v, of the JSON %v", p.Counts, full.Counts)
			}
		})
	}
}

func TestFromStreamLines(t *testing.T) {
	const drift = `{"type":"resource_drift","change":{"resource":{"addr":"a.b","resource_type":"a","resource_name":"b"},"action":"update"}}`
	line := func(action, more string) string {
		return fmt.Sprintf(`{"type":"planned_change","change":{"resource":{"addr":"a.b","resource_type":"a","resource_name":"b","implied_provider":"a"},"action":%q%s}}`, action, more)
	}
	base := Change{Address: "a.b", Mode: "managed", Type: "a", Name: "b", Provider: "a"}
	with := func(f func(*Change)) []Change {
		c := base
		f(&c)
		return []Change{c}
	}
	cases := map[string]struct {
		reason string
		stream string
		want   []Change
		counts Counts
	}{
		"Move":   {"Only the state changes.", line("move", `,"previous_resource":{"addr":"a.c"}`), with(func(c *Change) { c.Action, c.PreviousAddress = ActionNoop, "a.c" }), Counts{Move: 1}},
		"Import": {"Only the state changes.", line("import", `,"importing":{"id":"i"}`), with(func(c *Change) { c.Action, c.ImportID = ActionNoop, "i" }), Counts{Import: 1}},
		"Forget": {"The stream calls it remove.", line("remove", ""), with(func(c *Change) { c.Action = ActionForget }), Counts{Forget: 1}},
		"Read":   {"Only data sources are read.", line("read", ""), with(func(c *Change) { c.Action, c.Mode = ActionRead, "data" }), Counts{Read: 1}},
		"ForgetAndCreate": {"OpenTofu 1.12 has no word for it and writes noop; it is not nothing.", line("noop", `,"reason":"forgot_because_lifecycle_destroy_in_config"`),
			with(func(c *Change) { c.Action, c.Reason = ActionCreate, "forgot_because_lifecycle_destroy_in_config" }), Counts{Create: 1}},
		"Others": {"Lines that tell nothing of the plan, and those of tools to come.", "{\"type\":\"version\"}\n\n{\"type\":\"something_new\",\"change\":7}\n", nil, Counts{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := FromStream(strings.NewReader(tc.stream+"\n"+drift), Inputs{Salt: "s"})
			if name == "Others" {
				// A known field of an unknown shape means that the format is another.
				if err == nil {
					t.Fatal("no error for a message whose change is a number")
				}
				p, err = FromStream(strings.NewReader(strings.Replace(tc.stream, ",\"change\":7", "", 1)+drift), Inputs{Salt: "s"})
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, p.Changes); diff != "" {
				t.Errorf("%s\nchanges (-want +got):\n%s", tc.reason, diff)
			}
			if p.Counts != tc.counts {
				t.Errorf("%s\ncounts = %+v, want %+v", tc.reason, p.Counts, tc.counts)
			}
			if len(p.Drift) != 1 || !p.Drift[0].Drift {
				t.Errorf("drift = %+v, want the one of the stream", p.Drift)
			}
		})
	}
}

func TestFromStreamRefuses(t *testing.T) {
	if _, err := FromStream(strings.NewReader(""), Inputs{}); err == nil {
		t.Error("no error without a salt: two plans of different values would have one digest")
	}
	if _, err := FromStream(strings.NewReader(`{"type":"planned_ch`), Inputs{Salt: "s"}); err == nil {
		t.Error("no error for a stream that was cut")
	}
	a, err := FromStream(strings.NewReader(""), Inputs{Salt: "file 1"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := FromStream(strings.NewReader(""), Inputs{Salt: "file 2"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest == b.Digest {
		t.Error("two plan files have one digest")
	}
}

func TestID(t *testing.T) {
	const hash = "b8e362c206e3d0cbb7ed22ced771a0056455a2fb"
	const digest = "sha256:0123456789abcdef"
	cases := map[string]struct {
		reason   string
		revision string
		id       string
		peer     string
	}{
		"Branch":       {"The usual form.", "main@sha1:" + hash, "plan-main-0123456789", "plan-main-b8e362c206"},
		"Tag":          {"A tag looks like a branch.", "v1.2.3@sha1:" + hash, "plan-v1.2.3-0123456789", "plan-v1.2.3-b8e362c206"},
		"Slash":        {"Slashes are kept.", "feature/x@sha1:" + hash, "plan-feature/x-0123456789", "plan-feature/x-b8e362c206"},
		"Ref":          {"A full ref is kept.", "refs/heads/x@sha1:" + hash, "plan-refs/heads/x-0123456789", "plan-refs/heads/x-b8e362c206"},
		"ShortHash":    {"What there is.", "main@sha1:b8e", "plan-main-0123456789", "plan-main-b8e"},
		"Legacy":       {"The form of old sources.", "main/" + hash, "plan-main-0123456789", "plan-main-b8e362c206"},
		"LegacyBucket": {"A bare checksum.", hash, "plan-0123456789", "plan-b8e362c206"},
		"Bucket":       {"The peer cuts the algorithm's name.", "sha256:" + hash, "plan-0123456789", "plan-sha256:b8e"},
		"Commit":       {"A commit without a branch.", "sha1:" + hash, "plan-0123456789", "plan-sha1:b8e36"},
		"AtInBranch":   {"The peer gives up on a second @; the branch of ours is right.", "a@b@sha1:" + hash, "plan-a@b-0123456789", "plan-a@b@sha1:b"},
		"NoAlgorithm":  {"The peer crashes on it.", "main@" + hash, "plan-0123456789", "plan-main@b8e36"},
		"SlashAndAlgo": {"Not the legacy form: the part behind the slash is no hash.", "a/sha1:" + hash, "plan-0123456789", "plan-a-sha1:b8e36"},
		"Empty":        {"Nothing is known.", "", "plan-0123456789", "plan-"},
		"NotASCII":     {"A character is not cut in two.", "ééééééé", "plan-0123456789", "plan-ééééé"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := ID(tc.revision, digest); got != tc.id {
				t.Errorf("%s\nID(%q) = %q, want %q", tc.reason, tc.revision, got, tc.id)
			}
			if got := RevisionID(tc.revision); got != tc.peer {
				t.Errorf("%s\nRevisionID(%q) = %q, want %q", tc.reason, tc.revision, got, tc.peer)
			}
		})
	}
	if got := ID("main@sha1:a", "0123456789abcdef"); got != "plan-main-0123456789" {
		t.Errorf("ID of a bare hash = %q", got)
	}
}

func TestCounts(t *testing.T) {
	cases := map[string]struct {
		reason string
		counts Counts
		want   string
	}{
		"Zero":    {"Nothing is said as the CLI says it.", Counts{}, "0 to add, 0 to change, 0 to destroy"},
		"Replace": {"A replacement is both.", Counts{Create: 1, Update: 1, Replace: 1, Read: 9, Move: 9}, "2 to add, 1 to change, 1 to destroy"},
		"All":     {"Import before, forget behind.", Counts{Import: 1, Forget: 2, Delete: 3}, "1 to import, 0 to add, 0 to change, 3 to destroy, 2 to forget"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.counts.String(); got != tc.want {
				t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestHasChanges(t *testing.T) {
	cases := map[string]struct {
		reason string
		plan   Plan
		want   bool
	}{
		"Nothing": {"There is nothing.", Plan{}, false},
		"Read":    {"To read is to change nothing.", Plan{Counts: Counts{Read: 1}}, false},
		"Drift":   {"What the configuration does not speak of needs no change.", Plan{Drift: []Change{{}}}, false},
		"Output":  {"Others read outputs.", Plan{Outputs: []OutputChange{{}}}, true},
		"Move":    {"The state changes.", Plan{Counts: Counts{Move: 1}}, true},
		"Import":  {"The state changes.", Plan{Counts: Counts{Import: 1}}, true},
		"Forget":  {"The state changes.", Plan{Counts: Counts{Forget: 1}}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.plan.HasChanges(); got != tc.want {
				t.Errorf("%s\ngot %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

var idForm = regexp.MustCompile(`^plan-(.*-)?[0-9a-f]{10}$`)

func FuzzID(f *testing.F) {
	for _, s := range []string{"main@sha1:b8e362c206e3d0cb", "main/b8e362c206e3", "sha256:0", "@", "@:", "/", "a@b@c:d", "é@é:é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, revision string) {
		if id := ID(revision, "sha256:0123456789abcdef"); !idForm.MatchString(strings.ReplaceAll(id, "\n", " ")) {
			t.Errorf("ID(%q) = %q", revision, id)
		}
		if id := RevisionID(revision); !strings.HasPrefix(id, "plan-") || len(id) > len(revision)+len("plan-")+1 {
			t.Errorf("RevisionID(%q) = %q", revision, id)
		}
	})
}

// FuzzParse: a plan file's description comes from a tool and providers of other
// people's choice. Whatever it is, it is refused or rendered.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`{"format_version":"1.0","resource_changes":[null,{"change":null},{"change":{"actions":["create"],"after":[1,{"a":[[]]}],"after_unknown":[true],"replace_paths":[1,["a",0]]}}],"output_changes":{"o":null}}`))
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, p := range txtar.Parse(data).Files {
			if p.Name == "plan.json" {
				f.Add(p.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Parse(data, Inputs{Revision: "main@sha1:0"})
		if err != nil {
			return
		}
		b, err := Parse(data, Inputs{Revision: "main@sha1:1"})
		if err != nil || a.Digest != b.Digest {
			t.Fatalf("the same plan twice: %s and %s, %v", a.Digest, b.Digest, err)
		}
		checkRoundTrip(t, a)
		var text bytes.Buffer
		a.Text(&text, false)
		if strings.ContainsAny(text.String()+a.Markdown(), "\x1b\x07\u009b") {
			t.Errorf("characters that steer a terminal:\n%q", text.String())
		}
	})
}

func FuzzFromStream(f *testing.F) {
	f.Add([]byte(`{"type":"planned_change","change":{"resource":{"addr":"a.b"},"action":"create"}}`))
	f.Add([]byte(`{"type":"outputs","outputs":{"o":{"action":"create","sensitive":true}}}`))
	f.Add([]byte("\n{}\n{\"type\":\"planned_change\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := FromStream(bytes.NewReader(data), Inputs{Salt: "s"})
		if err != nil {
			return
		}
		checkRoundTrip(t, p)
	})
}
