// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"
)

// TestRenderObjects holds the text and Markdown of recorded changes against the golden ones.
func TestRenderObjects(t *testing.T) {
	files, err := filepath.Glob("testdata/objects/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := mustObjects(t, readChanges(t, string(part(t, a, "changes.yaml"))), objectInputs())
			var text bytes.Buffer
			p.Text(&text, false)
			got := map[string][]byte{"markdown": []byte(p.Markdown()), "text": text.Bytes()}
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
			data, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"aHVudGVyMg", "czNjcmV0", "managedFields", "resourceVersion", "last-applied"} {
				if bytes.Contains(data, []byte(s)) {
					t.Errorf("the JSON holds %q", s)
				}
			}
		})
	}
}

func objectInputs() Inputs {
	return Inputs{Revision: "main@sha1:b8e362c206e3d0cbb7ed22ced771a0056455a2fb", Key: []byte("key")}
}

func readChanges(t *testing.T, s string) []ObjectChange {
	t.Helper()
	var cs []ObjectChange
	if err := yaml.UnmarshalStrict([]byte(s), &cs); err != nil {
		t.Fatal(err)
	}
	return cs
}

func mustObjects(t *testing.T, cs []ObjectChange, in Inputs) *Plan {
	t.Helper()
	p, err := FromObjects(cs, in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// smallObjects has one change of each action; the digest is tried on it.
const smallObjects = `
- action: create
  after: {apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: x, uid: u1}, data: {k: v1}}
- action: update
  before: {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: x, uid: u2, resourceVersion: "7", annotations: {other: old}}, spec: {replicas: 1, paused: false}, status: {n: 1}}
  after: {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: x, uid: u2, resourceVersion: "7", annotations: {other: old}}, spec: {replicas: 2, paused: false}, status: {n: 1}}
- action: delete
  before: {apiVersion: v1, kind: Secret, metadata: {name: gone, namespace: x, uid: u3}, data: {k: dmFsdWU=}}
- action: replace
  reason: spec.template
  before: {apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: x, uid: u4}, spec: {template: a, mode: m1}}
  after: {apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: x}, spec: {template: b, mode: m1}}
- action: update
  before: {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: x}, data: {k: b2xkLW9uZQ==}}
  after: {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: x}, data: {k: bmV3LW9uZQ==}}
`

// TestDigestOfObjects says what is content of a plan of objects and what is not.
func TestDigestOfObjects(t *testing.T) {
	edit := func(old, new string) func(string, *Inputs) string {
		return func(s string, _ *Inputs) string {
			if !strings.Contains(s, old) {
				t.Fatalf("the changes have no %s", old)
			}
			return strings.ReplaceAll(s, old, new)
		}
	}
	with := func(f func(*Inputs)) func(string, *Inputs) string {
		return func(s string, in *Inputs) string { f(in); return s }
	}
	cases := map[string]struct {
		reason string
		change func(string, *Inputs) string
		same   bool
	}{
		"Revision":        {"The same content at another commit is the same plan.", with(func(in *Inputs) { in.Revision = "main@sha1:bbbbbbbbbbbb" }), true},
		"Status":          {"Controllers write the status at any time.", edit("status: {n: 1}", "status: {n: 2}"), true},
		"ResourceVersion": {"So does the API server.", edit(`resourceVersion: "7"`, `resourceVersion: "8"`), true},
		"Others":          {"What others keep in a live object is not what the plan changes.", edit("other: old", "other: new"), true},
		"KeyOrder":        {"Objects are sets of keys.", edit("{replicas: 2, paused: false}", "{paused: false, replicas: 2}"), true},
		"Held":            {"It says when, not what.", edit("- action: create\n", "- action: create\n  held: later\n"), true},
		"Reason":          {"The API server words it as it likes.", edit("reason: spec.template", "reason: 'spec.template: field is immutable'"), true},
		"DeletedContent":  {"A deletion deletes whatever is in the object.", edit("dmFsdWU=", "b3RoZXI="), true},
		"NewUID":          {"What is created has no identity yet; a dry run invents one.", edit("uid: u1", "uid: u9"), true},
		"DeletedUID":      {"An object of the same name that came since is another one.", edit("uid: u3", "uid: u9"), false},
		"ReplacedUID":     {"So it is for one that is replaced.", edit("uid: u4", "uid: u9"), false},
		"CreatedValue":    {"A value of a new object.", edit("k: v1", "k: v2"), false},
		"NewValue":        {"A value of an object that changes.", edit("replicas: 2", "replicas: 3"), false},
		"OldValue":        {"Who approved 1 to 2 did not approve 0 to 2.", edit("replicas: 1", "replicas: 0"), false},
		"ReplacedValue":   {"Of what is made again everything counts, also what stays.", edit("mode: m1", "mode: m2"), false},
		"Secret":          {"A masked value counts as well.", edit("bmV3LW9uZQ==", "bmV3LXR3bw=="), false},
		"Kind":            {"The same name of another kind is another object.", edit("kind: ConfigMap", "kind: Endpoints"), false},
		"Action":          {"Forgetting is not deleting.", edit("action: delete", "action: forget"), false},
		"Destroy":         {"It was asked for something else.", with(func(in *Inputs) { in.Destroy = true }), false},
		"Salt":            {"The caller's own digest counts.", with(func(in *Inputs) { in.Salt = "s" }), false},
		"Key":             {"Without the key nobody can try values.", with(func(in *Inputs) { in.Key = []byte("other") }), false},
	}
	want := mustObjects(t, readChanges(t, smallObjects), objectInputs())
	if len(want.Changes) != 5 {
		t.Fatalf("the plan has %d changes, want 5", len(want.Changes))
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := objectInputs()
			s := tc.change(smallObjects, &in)
			got := mustObjects(t, readChanges(t, s), in)
			if same := got.Digest == want.Digest; same != tc.same {
				t.Errorf("%s\nsame digest = %t, want %t", tc.reason, same, tc.same)
			}
		})
	}
	t.Run("Order", func(t *testing.T) {
		cs := readChanges(t, smallObjects)
		cs[0], cs[3] = cs[3], cs[0]
		if got := mustObjects(t, cs, objectInputs()); got.Digest != want.Digest {
			t.Error("the order of the changes changes the digest")
		}
	})
	t.Run("Terraform", func(t *testing.T) {
		if mustObjects(t, nil, Inputs{}).Digest == mustParse(t, `{"format_version":"1.2"}`, Inputs{}).Digest {
			t.Error("an empty plan of objects has the digest of an empty one of Terraform")
		}
	})
}

func TestObjectFields(t *testing.T) {
	cases := map[string]struct {
		reason        string
		before, after string
		want          []string
	}{
		"Numbers": {
			"A dry run and a watch decode numbers into different types.",
			`{n: 1, f: 1.0}`, `{n: 1.0, f: 1}`, nil,
		},
		"Null": {"Null says what absence says.", `{n: null}`, `{}`, nil},
		"EmptyObject": {
			"emptyDir: {} is a choice, not nothing.",
			`{}`, `{volume: {emptyDir: {}}}`, []string{"create spec.volume.emptyDir"},
		},
		"InsertedElement": {
			"An element in front is one change.",
			`{c: [{name: b, v: 1}]}`, `{c: [{name: a, v: 1}, {name: b, v: 2}]}`,
			[]string{"create spec.c[name=a].v", "update spec.c[name=b].v"},
		},
		"RemovedElement": {
			"It shows where it was.",
			`{c: [{name: a}, {name: b}, {name: c}]}`, `{c: [{name: c}]}`,
			[]string{"delete spec.c[name=a].name", "delete spec.c[name=b].name"},
		},
		"Reordered": {
			"Environment variables refer to earlier ones: the order is a change.",
			`{c: [{name: a}, {name: b}]}`, `{c: [{name: b}, {name: a}]}`,
			[]string{"update spec.c[0].name", "update spec.c[1].name"},
		},
		"SecondKey": {
			"A volume can be mounted twice; where, cannot.",
			`{m: [{name: v, mountPath: /a, ro: true}, {name: v, mountPath: /b}]}`, `{m: [{name: v, mountPath: /b, ro: true}]}`,
			[]string{"delete spec.m[mountPath=/a].name", "delete spec.m[mountPath=/a].ro", "create spec.m[mountPath=/b].ro"},
		},
		"NumericKey": {
			"Ports have numbers.",
			`{p: [{port: 80, t: 1}]}`, `{p: [{port: 80, t: 2}]}`, []string{"update spec.p[port=80].t"},
		},
		"OddKey": {
			"A key must not be taken for two.",
			`{p: [{name: "a]b", t: 1}]}`, `{p: [{name: "a]b", t: 2}]}`, []string{`update spec.p[name="a]b"].t`},
		},
		"NoKey": {
			"Without one, positions are what there is.",
			`{r: [{x: 1}]}`, `{r: [{x: 2}, {x: 1}]}`, []string{"update spec.r[0].x", "create spec.r[1].x"},
		},
		"Scalars": {"They are shown as one.", `{l: [a, b]}`, `{l: [b]}`, []string{"update spec.l"}},
		"Script": {
			"A long text in a list is compared by itself.",
			`{l: [a, "x\ny"]}`, `{l: [a, "x\nz"]}`, []string{"update spec.l[1]"},
		},
		"OtherType": {"A value can become another kind of value.", `{v: {a: 1}}`, `{v: [1]}`, []string{"update spec.v"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			mk := func(spec string) string {
				return "{apiVersion: example.org/v1, kind: X, metadata: {name: x}, spec: " + spec + "}"
			}
			cs := readChanges(t, "- action: update\n  before: "+mk(tc.before)+"\n  after: "+mk(tc.after)+"\n")
			var got []string
			for _, c := range mustObjects(t, cs, Inputs{}).Changes {
				for _, f := range c.Fields {
					got = append(got, string(f.Action)+" "+f.Path)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nfields (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestForcesReplacement(t *testing.T) {
	cases := map[string]struct {
		reason string
		text   string
		want   []string
	}{
		"Path":    {"The caller may know the path itself.", "spec.selector", []string{"spec.selector.app"}},
		"TopPath": {"Of one step as well.", "data", []string{"data.k"}},
		"Message": {"As the API server says it.", `X "a" is invalid: spec.selector: Invalid value: "a": field is immutable`, []string{"spec.selector.app"}},
		"Index":   {"It counts elements that we name.", "spec.list[0].v: Forbidden", []string{"spec.list[name=a].v"}},
		"Two":     {"It can list several.", "[spec.selector: Invalid value: field is immutable, data: Forbidden]", []string{"data.k", "spec.selector.app"}},
		"MapKey":  {"A key of a map is in brackets too.", "spec.selector[app]: Invalid value", []string{"spec.selector.app"}},
		"Prose":   {"A word is not a path.", "the data of this object cannot be changed", nil},
		"Other":   {"A field that the object does not have.", "status.x: Forbidden", nil},
		"Nothing": {"A replacement by request.", "", nil},
	}
	const (
		before = "{apiVersion: v1, kind: X, metadata: {name: a}, data: {k: 1}, spec: {selector: {app: a}, list: [{name: a, v: 1}]}}"
		after  = "{apiVersion: v1, kind: X, metadata: {name: a}, data: {k: 2}, spec: {selector: {app: b}, list: [{name: a, v: 2}]}}"
	)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cs := readChanges(t, "- action: replace\n  before: "+before+"\n  after: "+after+"\n")
			cs[0].Reason = tc.text
			var got []string
			for _, f := range mustObjects(t, cs, Inputs{}).Changes[0].Fields {
				if f.Replaces {
					got = append(got, f.Path)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestFromObjectsErrors(t *testing.T) {
	const cm = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: x}}"
	cases := map[string]struct {
		reason string
		in     string
		want   string
	}{
		"NoAfter":   {"There is nothing to create.", "- action: create\n  before: " + cm, "missing for action create"},
		"NoBefore":  {"There is nothing to compare with.", "- action: update\n  after: " + cm, "missing for action update"},
		"Nothing":   {"No object at all.", "- action: noop", "missing for action noop"},
		"Action":    {"Objects are not read.", "- action: read\n  before: " + cm, `action "read" is not one of an object`},
		"NoName":    {"It could not be found again.", "- action: create\n  after: {apiVersion: v1, kind: ConfigMap, metadata: {}}", "no apiVersion, kind or name"},
		"Different": {"A mistake of the caller would show as a change.", "- action: update\n  before: " + cm + "\n  after: {apiVersion: v1, kind: Secret, metadata: {name: a, namespace: x}}", "ConfigMap/x/a would become Secret/x/a"},
		"Twice":     {"Two changes of one object fight.", "- action: create\n  after: " + cm + "\n- action: delete\n  before: " + cm, "ConfigMap/x/a is listed twice"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := FromObjects(readChanges(t, tc.in), Inputs{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s\nerror = %v, want one with %q", tc.reason, err, tc.want)
			}
		})
	}
	t.Run("Unencodable", func(t *testing.T) {
		o := map[string]any{"apiVersion": "v1", "kind": "X", "metadata": map[string]any{"name": "a"}, "v": func() {}}
		if _, err := FromObjects([]ObjectChange{{Action: ActionCreate, After: o}}, Inputs{}); err == nil || !strings.Contains(err.Error(), "X/a") {
			t.Errorf("error = %v, want one that names the object", err)
		}
	})
}

// TestFromObjectsReadsOnly keeps the caller's objects as they are: they are shared with a cache.
func TestFromObjectsReadsOnly(t *testing.T) {
	cs, want := readChanges(t, smallObjects), readChanges(t, smallObjects)
	annotated := map[string]any{lastApplied: "x"}
	live := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "b", "uid": "u", "annotations": annotated},
		"binaryData": map[string]any{"a": "AAEC"}, "status": map[string]any{},
	}
	copied := maps.Clone(live)
	cs, want = append(cs, ObjectChange{Action: ActionCreate, After: live}), append(want, ObjectChange{Action: ActionCreate, After: copied})
	mustObjects(t, cs, objectInputs())
	if diff := cmp.Diff(want, cs); diff != "" {
		t.Errorf("objects (-before +after):\n%s", diff)
	}
	if annotated[lastApplied] != "x" || live["binaryData"].(map[string]any)["a"] != "AAEC" || live["metadata"].(map[string]any)["uid"] != "u" {
		t.Error("FromObjects changed an object of the caller")
	}
}

func TestSensitiveInputs(t *testing.T) {
	cs := readChanges(t, `
- action: create
  held: the host db.secret.example is not there
  after: {apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: x}, spec: {env: [{name: URL, value: "pg://db.secret.example/x"}, {name: PIN, value: "4711"}, {name: N, value: abc}]}}
`)
	in := objectInputs()
	in.Sensitive = []string{"db.secret.example", "4711", "abc"}
	p := mustObjects(t, cs, in)
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"db.secret.example", "4711"} {
		if bytes.Contains(data, []byte(s)) {
			t.Errorf("the plan shows %s, which was substituted from a Secret:\n%s", s, data)
		}
	}
	if !bytes.Contains(data, []byte(`"abc"`)) {
		t.Errorf("a value too short to be hidden is hidden:\n%s", data)
	}
	if p.Digest == mustObjects(t, readChanges(t, strings.ReplaceAll(`
- action: create
  after: {apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: x}, spec: {env: [{name: URL, value: "pg://db.secret.example/x"}, {name: PIN, value: "4711"}, {name: N, value: abc}]}}
`, "4711", "4712")), in).Digest {
		t.Error("a masked value is not part of the digest")
	}
}

func TestHeldIsCounted(t *testing.T) {
	cs := readChanges(t, smallObjects)
	cs[0].Held, cs[4].Held = "a", "b"
	p := mustObjects(t, cs, objectInputs())
	want := Counts{Create: 1, Update: 2, Delete: 1, Replace: 1, Held: 2}
	if diff := cmp.Diff(want, p.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if got, want := p.Counts.String(), "2 to add, 2 to change, 2 to destroy (2 held)"; got != want {
		t.Errorf("counts read %q, want %q", got, want)
	}
	// A held update that nothing shows of yet is still to be told.
	held := readChanges(t, `
- action: update
  held: the webhook does not answer
  before: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
  after: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
`)
	if p := mustObjects(t, held, objectInputs()); len(p.Changes) != 1 || p.Changes[0].Held == "" {
		t.Errorf("changes = %+v, want the held one", p.Changes)
	}
}
