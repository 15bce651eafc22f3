// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"k8s.io/apimachinery/pkg/util/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// now is the time at which the golden files were printed.
var now = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)

// parse reads objects in the order in which they are printed.
func parse(t *testing.T, text []byte) []object {
	t.Helper()
	var out []object
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		u := &unstructured.Unstructured{}
		if err = errors.Join(err, u.UnmarshalJSON(raw)); err != nil {
			t.Fatal(err)
		}
		k, ok := kindOf(u.GetKind())
		if !ok {
			t.Fatalf("kind %s is not known", u.GetKind())
		}
		out = append(out, object{Unstructured: u, Kind: k})
	}
	slices.SortStableFunc(out, compareObjects)
	return out
}

func fixtures(t *testing.T) []object {
	t.Helper()
	data, err := os.ReadFile("testdata/print/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, data)
}

func fixture(t *testing.T, name string) object {
	t.Helper()
	for _, o := range fixtures(t) {
		if o.GetName() == name {
			return o
		}
	}
	t.Fatalf("no fixture %s", name)
	return object{}
}

// golden compares what was printed with a file, or writes the file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", "print", name+".golden")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: -want, +got:\n%s", file, d)
	}
}

// printing is an app that prints into the buffer.
func printing(out *bytes.Buffer) *app {
	return &app{env: Env{Stdout: out, Stderr: out, Now: func() time.Time { return now }}}
}

func TestPrintGet(t *testing.T) {
	units, all := []selection{{Kinds: ofRole(unit)}}, []selection{{Kinds: ofRole(source)}, {Kinds: ofRole(unit)}}
	cases := map[string]struct {
		reason  string
		options getOptions
		groups  []selection
		color   bool
	}{
		"units": {
			reason: "one namespace would have no NAMESPACE column; messages are one short line",
			groups: units,
		},
		"all-namespaces": {
			reason:  "sources and units are two tables, since their columns differ",
			options: getOptions{all: true},
			groups:  all,
		},
		"wide": {
			reason:  "whole revisions and messages, and what is rarely looked for",
			options: getOptions{all: true, output: "wide"},
			groups:  all,
		},
		"color": {
			reason: "colour does not move the columns",
			groups: units,
			color:  true,
		},
		"name": {
			reason:  "what other verbs and kubectl take as an argument",
			options: getOptions{output: "name"},
			groups:  all,
		},
		"yaml": {
			reason:  "objects as the API has them, in a List",
			options: getOptions{output: "yaml"},
			groups:  all,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			a := printing(&out)
			a.env.Color = tc.color
			if err := a.printer(tc.options, tc.groups).list(fixtures(t), false); err != nil {
				t.Fatal(err)
			}
			golden(t, "get-"+name, out.Bytes())
		})
	}
}

func TestPrintChange(t *testing.T) {
	var out bytes.Buffer
	a := printing(&out)
	p := a.printer(getOptions{watch: true}, []selection{{Kinds: ofRole(unit)}})
	o := fixture(t, "fresh")
	if err := p.list([]object{o}, false); err != nil {
		t.Fatal(err)
	}
	before := out.Len()
	unseen := object{Unstructured: o.DeepCopy(), Kind: o.Kind}
	unseen.SetResourceVersion("2")
	if err := p.one(unseen); err != nil {
		t.Fatal(err)
	}
	if out.Len() != before {
		t.Errorf("a change that no column shows was printed:\n%s", out.String()[before:])
	}
	unseen.deleted = true
	if err := p.one(unseen); err != nil {
		t.Fatal(err)
	}
	if got := out.String()[before:]; !strings.HasSuffix(got, "deleted\n") {
		t.Errorf("deletion was printed as %q", got)
	}
}

func TestPrintShow(t *testing.T) {
	for _, name := range []string{"network", "database", "broken", "app", "platform", "stack"} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := printing(&out).describe(fixture(t, name)); err != nil {
				t.Fatal(err)
			}
			golden(t, "show-"+name, out.Bytes())
		})
	}
}

func TestPrintExport(t *testing.T) {
	o := fixture(t, "database")
	o.SetAnnotations(map[string]string{
		"terrace.dev/depends-on":                           "GitRepository/infra/stack",
		"terrace.dev/approved-by":                          "plan-main-89abcdef01 by alice",
		"reconcile.fluxcd.io/requestedAt":                  "2026-01-01T00:00:00Z",
		"kubectl.kubernetes.io/last-applied-configuration": "{}",
	})
	if err := unstructured.SetNestedField(o.Object, "plan-main-89abcdef01", "spec", "approvePlan"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printValue(&out, "yaml", manifest(o)); err != nil {
		t.Fatal(err)
	}
	golden(t, "export", out.Bytes())
	if o.text("spec", "approvePlan") == "" {
		t.Error("the object itself was changed")
	}
}

func TestPolicyLine(t *testing.T) {
	tf := &infra.Terraform{}
	tf.Status.Plan.Pending = "plan-main-1"
	tf.Status.LastPlan = &infra.PlanRecord{ID: "plan-main-1", Policy: &infra.PolicyVerdict{Digest: "d", Denied: "ns/p: no", Warnings: "ns/q: hm"}}
	if got, want := policyLine(tf), "deny: ns/p: no; warn: ns/q: hm"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	tf.Status.Plan.Pending = "plan-main-2"
	if got := policyLine(tf); got != "" {
		t.Errorf("what was said of another plan is shown: %q", got)
	}
}
