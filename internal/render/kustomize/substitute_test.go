// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"errors"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxkustomize "github.com/fluxcd/pkg/apis/kustomize"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func postBuild(s *kustomizev1.KustomizationSpec) { s.PostBuild = &kustomizev1.PostBuild{} }

// field returns a field of the first object of a build.
func field(t *testing.T, out *Output, path ...string) any {
	t.Helper()
	v, ok, err := unstructured.NestedFieldNoCopy(out.Objects[0].Object, path...)
	if err != nil || !ok {
		t.Fatalf("field %v: %v, %v", path, ok, err)
	}
	return v
}

// thing is an object of a kind that no schema knows.
func thing(spec string) string {
	return "apiVersion: example.org/v1\nkind: Thing\nmetadata:\n  name: thing\nspec:\n" + spec
}

func TestSubstitutionKeepsTypes(t *testing.T) {
	words := map[string]struct {
		reason string
		plain  any // what YAML makes of the word
	}{
		"004":    {"octal of YAML 1.1", int64(4)},
		"yes":    {"boolean of YAML 1.1", true},
		"1e3":    {"a number with an exponent", int64(1000)},
		"123":    {"a number", int64(123)},
		"true":   {"a boolean", true},
		"null":   {"nothing", nil},
		"1.5":    {"a fraction", 1.5},
		"text":   {"a string that needs no quotes", "text"},
		"[a, 1]": {"a list", []any{"a", int64(1)}},
		"{a: b}": {"a mapping", map[string]any{"a": "b"}},
		`"7"`:    {"quotes in the value make a string, as Flux's documentation advises", "7"},
	}
	spec := "  a: ${x}\n  b: \"${x}\"\n  c: \"id-${x}\"\n  d: '${x}'\n  e: !!str ${x}\n  f: |-\n    ${x}\n  g:\n  - ${x}\n  - \"${x}\"\n"
	for word, tc := range words {
		for how, change := range map[string]func(*kustomizev1.KustomizationSpec){
			"as it is": postBuild,
			"JSON patch": func(s *kustomizev1.KustomizationSpec) {
				postBuild(s)
				s.Patches = []fluxkustomize.Patch{{Patch: "- op: add\n  path: /metadata/annotations\n  value: {a: b}\n", Target: &fluxkustomize.Selector{Kind: "Thing"}}}
			},
			"merge patch": func(s *kustomizev1.KustomizationSpec) {
				postBuild(s)
				s.Patches = []fluxkustomize.Patch{{Patch: thing("  z: 1\n")}}
			},
		} {
			t.Run(word+" "+how, func(t *testing.T) {
				dir := files{"a.yaml": thing(spec)}.write(t)
				out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", change), Variables: map[string]string{"x": word}, Strict: true})
				if err != nil {
					t.Fatal(err)
				}
				got := field(t, out, "spec").(map[string]any)
				delete(got, "z")
				want := map[string]any{"a": tc.plain, "b": word, "c": "id-" + word, "d": word, "e": word, "f": word, "g": []any{tc.plain, word}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
			})
		}
	}
}

func TestSubstitutionPatchesKeepTypes(t *testing.T) {
	dir := files{"kustomization.yaml": "resources: [a.yaml]\npatches:\n- target: {kind: Thing}\n  patch: |-\n    - op: add\n      path: /spec/infile\n      value: \"${x}\"\n    - op: add\n      path: /spec/list/-\n      value: \"${x}\"\n",
		"a.yaml": thing("  list: []\n")}.write(t)
	u := unit("", func(s *kustomizev1.KustomizationSpec) {
		postBuild(s)
		s.Patches = []fluxkustomize.Patch{
			{Patch: "- op: add\n  path: /spec/quoted\n  value: \"${x}\"\n- op: add\n  path: /spec/plain\n  value: ${x}\n", Target: &fluxkustomize.Selector{Kind: "Thing"}},
			{Patch: thing("  merged: \"${x}\"\n  number: ${x}\n")},
		}
	})
	out, err := Build(t.Context(), Input{Dir: dir, Unit: u, Variables: map[string]string{"x": "5"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"infile": "5", "list": []any{"5"}, "quoted": "5", "plain": int64(5), "merged": "5", "number": int64(5)}
	if diff := cmp.Diff(want, field(t, out, "spec")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSubstitutionFollowsSchema(t *testing.T) {
	tests := map[string]struct {
		reason string
		object string
		value  string
		path   []string
		want   any
	}{
		"quoted integer": {"fleets quote what is a number; the API server refuses a string there",
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: \"${x}\"\n", "3", []string{"spec", "replicas"}, int64(3)},
		"quoted boolean": {"as above",
			"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: s}\nautomountServiceAccountToken: \"${x}\"\n", "false", []string{"automountServiceAccountToken"}, false},
		"quoted integer that is none": {"not made up: the API server says what is wrong",
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: \"${x}\"\n", "many", []string{"spec", "replicas"}, "many"},
		"int or string, number": {"a port by number is a number",
			"apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: p}\nspec:\n  minAvailable: \"${x}\"\n", "2", []string{"spec", "minAvailable"}, int64(2)},
		"int or string, text": {"a share is text",
			"apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: p}\nspec:\n  minAvailable: ${x}\n", "50%", []string{"spec", "minAvailable"}, "50%"},
		"plain number in a ConfigMap": {"data has strings only, so 004 stays 004",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: ${x}\n", "004", []string{"data", "a"}, "004"},
		"plain word in a label": {"labels are strings",
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  labels:\n    on: ${x}\n", "yes", []string{"metadata", "labels", "on"}, "yes"},
		"plain JSON in an annotation": {"annotations are strings",
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  annotations:\n    json: ${x}\n", `{"a":1}`, []string{"metadata", "annotations", "json"}, `{"a":1}`},
		"plain empty": {"nothing is what Flux makes of it, and the API server takes it",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: ${x}\n", "", []string{"data", "a"}, nil},
		"stringData": {"secrets are strings",
			"apiVersion: v1\nkind: Secret\nmetadata: {name: c}\nstringData:\n  a: ${x}\n", "12345", []string{"stringData", "a"}, "12345"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := files{"a.yaml": tc.object}.write(t)
			out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", postBuild), Variables: map[string]string{"x": tc.value}, Strict: true})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, field(t, out, tc.path...)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSubstitutionOfGeneratedData(t *testing.T) {
	dir := files{"kustomization.yaml": "configMapGenerator:\n- name: c\n  literals: ['a=${x}']\n  files: [run.sh]\n", "run.sh": "${x}"}.write(t)
	out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", postBuild), Variables: map[string]string{"x": "004"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"a": "004", "run.sh": "004"}, field(t, out, "data")); diff != "" {
		t.Errorf("a generator makes strings (-want +got):\n%s", diff)
	}
}

func TestSubstitutionErrors(t *testing.T) {
	script := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: scripts\n  namespace: ops\ndata:\n  script.sh: |\n    set -e\n    for f in ${FILES}; do echo $f; done\n"
	tests := map[string]struct {
		reason string
		files  files
		vars   map[string]string
		want   []string // parts of the message
		not    []string
	}{
		"undefined in a block": {
			reason: "object, field, line and the way out",
			files:  files{"apps/cm.yaml": "# a comment\n" + script},
			vars:   map[string]string{"A": "b"},
			want:   []string{"ConfigMap/ops/scripts", `data["script.sh"]`, "apps/cm.yaml:10", `"FILES"`, "$${FILES}", "${FILES:=value}", "kustomize.toolkit.fluxcd.io/substitute: disabled"},
		},
		"undefined in a second document": {
			reason: "the line is that of the file",
			files:  files{"apps/cm.yaml": configMap + "---\n" + script},
			vars:   map[string]string{"A": "b"},
			want:   []string{"apps/cm.yaml:16"},
		},
		"undefined in a generated file": {
			reason: "the source of a generator is named",
			files:  files{"apps/kustomization.yaml": "configMapGenerator:\n- name: c\n  files: [run.sh]\n", "apps/run.sh": "#!/bin/sh\necho ${WHO}\n"},
			vars:   map[string]string{"A": "b"},
			want:   []string{"apps/run.sh:2", `"WHO"`},
		},
		"undefined in a patch of the file": {
			reason: "the line is that of the patch inside of the kustomization file",
			files:  files{"apps/kustomization.yaml": "resources: [cm.yaml]\npatches:\n- patch: |\n    apiVersion: v1\n    kind: ConfigMap\n    metadata:\n      name: settings\n    data:\n      z: ${gone}\n", "apps/cm.yaml": configMap},
			vars:   map[string]string{"A": "b"},
			want:   []string{"apps/kustomization.yaml:9", `"gone"`},
		},
		"undefined key": {
			reason: "keys are substituted as well",
			files:  files{"apps/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  ${gone}: v\n"},
			vars:   map[string]string{"A": "b"},
			want:   []string{`"gone"`, "apps/cm.yaml:6"},
		},
		"not a substitution": {
			reason: "an array of bash is quoted, with the way out",
			files:  files{"apps/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  a: |\n    x ${A}\n    ${list[@]}\n"},
			vars:   map[string]string{"A": "b"},
			want:   []string{"ConfigMap/c", "data.a", `"${list[@]}"`, "$${"},
		},
		"not a substitution in a Secret": {
			reason: "the text of a Secret is not shown",
			files:  files{"apps/cm.yaml": "apiVersion: v1\nkind: Secret\nmetadata:\n  name: c\nstringData:\n  a: \"x${hunter2[@]}\"\n"},
			vars:   map[string]string{"A": "b"},
			want:   []string{"Secret/c", "stringData.a"},
			not:    []string{"hunter2"},
		},
		"not YAML": {
			reason: "the value is not shown: variables can be secrets",
			files:  files{"apps/a.yaml": thing("  a: ${A}\n")},
			vars:   map[string]string{"A": "*hunter2"},
			want:   []string{"Thing/thing", "spec.a", "apps/a.yaml:6", "not valid YAML", "Quote it"},
			not:    []string{"hunter2"},
		},
		"bad name": {
			reason: "a name that no text can refer to",
			files:  files{"apps/a.yaml": configMap},
			vars:   map[string]string{"a-b": "secretvalue"},
			want:   []string{"'a-b' var name is invalid, must match '^[_[:alpha:]][_[:alpha:][:digit:]]*$'"},
			not:    []string{"secretvalue"},
		},
		"name is gone": {
			reason: "an object without a name is named by what it is",
			files:  files{"apps/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ${A}\n"},
			vars:   map[string]string{"A": ""},
			want:   []string{"no apiVersion, kind or name after the substitution"},
		},
		"same key twice": {
			reason: "two keys that become one would lose a value",
			files:  files{"apps/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  ${A}: one\n  b: two\n"},
			vars:   map[string]string{"A": "b"},
			want:   []string{"data.b is there twice"},
		},
		"negative length": {
			reason: "what makes the library panic is an error",
			files:  files{"apps/a.yaml": thing("  a: ${A:1:-5}\n")},
			vars:   map[string]string{"A": "bcd"},
			want:   []string{"spec.a", "not a substitution"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := Build(t.Context(), Input{Dir: tc.files.write(t), Unit: unit("apps", postBuild), Variables: tc.vars, Strict: true})
			if err == nil {
				t.Fatalf("%s: no error, %v", tc.reason, out.Objects)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: the error lacks %q:\n%v", tc.reason, part, err)
				}
			}
			for _, part := range tc.not {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%s: the error has %q:\n%v", tc.reason, part, err)
				}
			}
		})
	}
}

func TestUndefinedVariable(t *testing.T) {
	dir := files{"a.yaml": configMap + "  x: \"<${gone}>\"\n"}.write(t)
	in := Input{Dir: dir, Unit: unit("", postBuild), Variables: map[string]string{"a": "b"}, Strict: true}
	_, err := Build(t.Context(), in)
	var undefined *UndefinedVariableError
	if !errors.As(err, &undefined) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(UndefinedVariableError{Object: "ConfigMap/settings", Field: "data.x", Variable: "gone", Line: "a.yaml:7"}, *undefined); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	in.Strict = false
	out, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got := field(t, out, "data", "x"); got != "<>" {
		t.Errorf("without Strict it is empty, got %q", got)
	}
}

func TestSubstitutionRemovesNewlines(t *testing.T) {
	dir := files{"a.yaml": configMap + "  x: \"${a}\"\n"}.write(t)
	out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", postBuild), Variables: map[string]string{"a": "one\ntwo\n"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := field(t, out, "data", "x"); got != "onetwo" {
		t.Errorf("got %q", got)
	}
}

func TestSubstitutionNeedsPostBuild(t *testing.T) {
	dir := files{"a.yaml": configMap + "  x: ${a} $$\n"}.write(t)
	out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", nil), Variables: map[string]string{"a": "b"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := field(t, out, "data", "x"); got != "${a} $$" {
		t.Errorf("without spec.postBuild the text stays, got %q", got)
	}
}

func TestSubstituteDisabledIsCaseSensitive(t *testing.T) {
	dir := files{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  annotations:\n    kustomize.toolkit.fluxcd.io/substitute: Disabled\ndata:\n  x: ${a}\n"}.write(t)
	out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", postBuild), Variables: map[string]string{"a": "b"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := field(t, out, "data", "x"); got != "b" {
		t.Errorf("Disabled does not switch it off, got %q", got)
	}
}

func FuzzSubstitute(f *testing.F) {
	for _, s := range []string{"${x}", "\"${x}\"", "a: ${x:=1}", "$${x}", "${x:1:-9}", "${x", "${x//a/b}", "- ${x}\n- b", "|\n  ${x}\n  $$", "${#x}", "{a: ${x}}", "${x%%*}", "\"\\0${x}\"", "&a [*a]"} {
		f.Add(s, "value")
		f.Add(s, "[1, {a: *b}]")
	}
	f.Fuzz(func(t *testing.T, spec, value string) {
		dir := files{"a.yaml": "apiVersion: example.org/v1\nkind: Thing\nmetadata:\n  name: thing\nspec: " + spec}.write(t)
		in := Input{Dir: dir, Unit: unit("", postBuild), Variables: map[string]string{"x": value}, Strict: true}
		one, err := Build(t.Context(), in)
		two, again := Build(t.Context(), in)
		if (err == nil) != (again == nil) || err == nil && one.Digest != two.Digest {
			t.Errorf("two builds differ: %v, %v", err, again)
		}
		if err == nil {
			for _, o := range one.Objects {
				o.DeepCopy() // panics on a value that an object cannot have
			}
		}
	})
}
