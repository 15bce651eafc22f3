// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// The tests here are about what a module is given: variables from each place, and
// files.

// everything outputs each of its variables as JSON, so that a test sees which value
// and which type the module got. What a unit does not set stays "unset".
const everything = `
variable "a" {
  type    = any
  default = "unset"
}
variable "b" {
  type    = any
  default = "unset"
}
variable "values" {
  type    = any
  default = "unset"
}
output "got" { value = jsonencode({ a = var.a, b = var.b, values = var.values }) }
`

// got decodes the JSON that a unit output into the Secret of its name.
func (w *world) got(name string) map[string]any {
	w.t.Helper()
	s := w.secret("out-"+name, func(d map[string][]byte) bool { return len(d["got"]) > 0 })
	var v map[string]any
	if err := json.Unmarshal(s.Data["got"], &v); err != nil {
		w.t.Fatalf("%s output %q: %v", name, s.Data["got"], err)
	}
	return v
}

func TestVariables(t *testing.T) {
	w := newWorld(t, map[string]string{
		"main.tf": everything,
		"tpl/main.tf.tpl": `output "got" { value = jsonencode({ a = "{{ .Values.word | upper }}"{{ range $i, $n := .Values.list }}, l{{ $i }} = {{ $n }}{{ end }} }) }
variable "values" { type = any }
`,
		"env/one.tfvars": "a = \"first\"\nb = [1]\n",
		"env/two.tfvars": `a = "second"`,
		"deep/main.tf":   everything,
	})
	w.putSecret("s1", map[string]string{"a": "a of s1", "b": "b of s1"})
	w.putSecret("s2", map[string]string{"a": "a of s2"})
	w.putSecret("typed", map[string]string{
		"name": "net", "ports": "[80, 443]", "ports__type": `["list","number"]`, "up": "true", "up__type": `"bool"`,
	})
	w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c1}\ndata: {a: \"7\", other: b of c1}")

	for name, tc := range map[string]struct {
		reason, spec string
		want         map[string]any
	}{
		"string":      {"a string stays one, also if it looks like a number", `vars: [{name: a, value: "1"}]`, map[string]any{"a": "1"}},
		"object":      {"an object keeps its types", `vars: [{name: a, value: {x: 1, z: [true, null]}}]`, map[string]any{"a": map[string]any{"x": 1.0, "z": []any{true, nil}}}},
		"list":        {"a list and a number", "vars: [{name: a, value: [x, z]}, {name: b, value: 2.5}]", map[string]any{"a": []any{"x", "z"}, "b": 2.5}},
		"none":        {"null is null and not the default", "vars: [{name: a, value: null}, {name: b}]", map[string]any{"a": nil, "b": nil}},
		"twice":       {"a later entry of vars wins", "vars: [{name: a, value: x}, {name: a, value: z}]", map[string]any{"a": "z"}},
		"all-keys":    {"without varsKeys every key of a Secret is a variable", "varsFrom: [{kind: Secret, name: s1}]", map[string]any{"a": "a of s1", "b": "b of s1"}},
		"keys":        {"with varsKeys only those", "varsFrom: [{kind: Secret, name: s1, varsKeys: [a]}]", map[string]any{"a": "a of s1"}},
		"renamed":     {"key:variable renames; values of a ConfigMap are strings", `varsFrom: [{kind: ConfigMap, name: c1, varsKeys: ["other:b", a]}]`, map[string]any{"a": "7", "b": "b of c1"}},
		"last-wins":   {"the last of several wins, key by key", "varsFrom: [{kind: Secret, name: s1}, {kind: Secret, name: s2}]", map[string]any{"a": "a of s2", "b": "b of s1"}},
		"over-vars":   {"varsFrom wins over vars", "vars: [{name: a, value: x}, {name: b, value: z}]\nvarsFrom: [{kind: Secret, name: s2}]", map[string]any{"a": "a of s2", "b": "z"}},
		"optional":    {"an optional Secret may be absent", "varsFrom: [{kind: Secret, name: absent, optional: true}]", map[string]any{}},
		"no-key":      {"and a key of one: the module's default holds", "varsFrom: [{kind: Secret, name: s2, varsKeys: [a, b], optional: true}]", map[string]any{"a": "a of s2"}},
		"values":      {"values are one variable", "values: {i: 1, l: [a]}", map[string]any{"values": map[string]any{"i": 1.0, "l": []any{"a"}}}},
		"typed":       {"a template that is one expression keeps the type of its input", "readInputsFromSecrets: [{name: typed, as: net}]\nvalues: {p: \"${{ .net.ports }}\", t: \"${{ .net.name }}-${{ .net.up }}\"}", map[string]any{"values": map[string]any{"p": []any{80.0, 443.0}, "t": "net-true"}}},
		"var-files":   {"files are relative to the root and the later wins", "path: ./deep\ntfVarsFiles: [env/one.tfvars, ./env/two.tfvars]", map[string]any{"a": "second", "b": []any{1.0}}},
		"tpl":         {"main.tf.tpl becomes the module", "path: ./tpl\nvalues: {word: hello, list: [1, 2]}", map[string]any{"a": "HELLO", "l0": 1.0, "l1": 2.0}},
		"from-all-cm": {"every key of a ConfigMap; one that no variable takes does no harm", "varsFrom: [{kind: ConfigMap, name: c1}]", map[string]any{"a": "7"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.unit(name, "approvePlan: auto\nwriteOutputsToSecret: {name: out-"+name+"}\n"+tc.spec)
			got := w.got(name)
			if name != "tpl" {
				for _, key := range []string{"a", "b", "values"} {
					if _, ok := tc.want[key]; !ok {
						tc.want[key] = "unset"
					}
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

// in returns the world for a subtest that shares it.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	shared := *w
	shared.t = t
	return &shared
}

// What is missing is named, with what there is; once it is there the unit goes on
// without anybody's help.
func TestMissingInputsAreNamedAndMended(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": everything})
	for name, tc := range map[string]struct {
		reason, spec, ready string
		want                []string
		mend                func(*world)
	}{
		"secret": {
			"a Secret that is not there", "varsFrom: [{kind: Secret, name: late}]", infra.ReasonVarsGenerationFailed, []string{"Secret", "/late", "varsFrom"},
			func(w *world) { w.putSecret("late", map[string]string{"a": "1"}) },
		},
		"key": {
			"a key that the Secret does not have", "varsFrom: [{kind: Secret, name: keys, varsKeys: [a]}]", infra.ReasonVarsGenerationFailed, []string{`"a"`, "it has: x, y"},
			func(w *world) { w.putSecret("keys", map[string]string{"a": "1"}) },
		},
		"value-from": {
			"a key of valueFrom", "vars: [{name: a, valueFrom: {configMapKeyRef: {name: late, key: a}}}]", infra.ReasonVarsGenerationFailed, []string{"ConfigMap", "/late", "vars[a].valueFrom"},
			func(w *world) { w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\ndata: {a: x}") },
		},
		"inputs": {
			"an input Secret", "readInputsFromSecrets: [{name: late-inputs, as: i}]\nvalues: {a: \"${{ .i.a }}\"}", infra.ReasonVarsGenerationFailed, []string{"/late-inputs", "readInputsFromSecrets"},
			func(w *world) { w.putSecret("late-inputs", map[string]string{"a": "1"}) },
		},
		"template": {
			"a value that no input has", "readInputsFromSecrets: [{name: inputs, as: i}]\nvalues: {a: \"${{ .i.nope }}\"}", infra.ReasonVarsGenerationFailed, []string{".i.nope"},
			func(w *world) { w.putSecret("inputs", map[string]string{"nope": "1"}) },
		},
		"var-file": {
			"a variable file", "tfVarsFiles: [env/late.tfvars]", infra.ReasonArtifactFailed, []string{"env/late.tfvars"},
			func(w *world) { w.commit(map[string]string{"env/late.tfvars": "a = 1\n"}) },
		},
		"var-dir": {
			"a directory instead of one", "tfVarsFiles: [dir]", infra.ReasonArtifactFailed, []string{"dir"},
			nil,
		},
		"mapping": {
			"a key of a file mapping", "fileMappings: [{secretRef: {name: keys, key: f}, location: home, path: f}]", infra.ReasonNewFailed, []string{`"f"`, "fileMappings"},
			nil,
		},
		"tfrc": {
			"a Secret without a CLI configuration", "cliConfigSecretRef: {name: no-tfrc}", infra.ReasonNewFailed, []string{"no-tfrc", ".tfrc"},
			func(w *world) { w.putSecret("no-tfrc", map[string]string{"x.tfrc": "disable_checkpoint = true\n"}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			switch name {
			case "key":
				w.putSecret("keys", map[string]string{"x": "1", "y": "2"})
			case "template":
				w.putSecret("inputs", map[string]string{"x": "1"})
			case "tfrc":
				w.putSecret("no-tfrc", map[string]string{"config": ""})
			case "mapping":
				w.putSecret("no-file", map[string]string{"other": ""})
			}
			w.unit(name, "approvePlan: auto\n"+strings.ReplaceAll(tc.spec, "name: keys, key: f", "name: no-file, key: f"))
			tf := w.awaitReason(name, tc.ready)
			for _, part := range tc.want {
				if !strings.Contains(readyOf(tf).Message, part) {
					t.Errorf("%s: the message does not say %q: %q", tc.reason, part, readyOf(tf).Message)
				}
			}
			if tc.mend != nil {
				tc.mend(w)
				w.awaitReady(name)
			}
		})
	}
}

func TestFileMappingsAndCLIConfigReachTheRun(t *testing.T) {
	w := newWorld(t, map[string]string{"unit/main.tf": `
output "got" {
  value = jsonencode({
    workspace = file("${path.module}/sub/dir/f.txt")
    home      = file(pathexpand("~/.config/token"))
  })
}`})
	w.putSecret("files", map[string]string{"one": "first", "two": "second"})
	w.putSecret("cli", map[string]string{"any.tfrc": "disable_checkpoint = true\n"})
	w.unit("u", `
approvePlan: auto
path: ./unit
cliConfigSecretRef: {name: cli}
fileMappings:
- {secretRef: {name: files, key: one}, location: workspace, path: sub/dir/f.txt}
- {secretRef: {name: files, key: two}, location: home, path: /.config/token}
writeOutputsToSecret: {name: out-u}`)
	if d := cmp.Diff(map[string]any{"workspace": "first", "home": "second"}, w.got("u")); d != "" {
		t.Errorf("-want, +got:\n%s", d)
	}
}

func TestBrokenTemplateIsNamed(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf.tpl": `output "x" { value = {{ .Values.nope }} }`})
	w.unit("u", "approvePlan: auto\nvalues: {word: x}")
	tf := w.awaitReason("u", infra.ReasonTemplateGenerationFailed)
	if !strings.Contains(readyOf(tf).Message, "nope") {
		t.Errorf("the message does not name what is missing: %q", readyOf(tf).Message)
	}
	w.commit(map[string]string{"main.tf.tpl": `output "x" { value = "{{ .Values.word }}" }`})
	w.awaitReady("u")
}
