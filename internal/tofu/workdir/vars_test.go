// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func TestVariables(t *testing.T) {
	tests := map[string]struct {
		reason string
		in     Variables
		want   string
		err    string
	}{
		"none": {reason: "No file is written."},
		"vars": {
			reason: "Any JSON, digits as they are; without a value null.",
			in: Variables{Vars: []Variable{
				{Name: "s", Value: raw(`"x"`)}, {Name: "n", Value: raw(`12345678901234567890.10`)},
				{Name: "o", Value: raw(`{"a":[1,true,null]}`)}, {Name: "nothing"},
			}},
			want: `{"n":12345678901234567890.10,"nothing":null,"o":{"a":[1,true,null]},"s":"x"}`,
		},
		"order": {
			reason: "Later wins, varsFrom over vars.",
			in: Variables{
				Vars: []Variable{{Name: "a", Value: raw(`1`)}, {Name: "a", Value: raw(`2`)}, {Name: "b", Value: raw(`3`)}},
				From: []map[string][]byte{{"b": []byte("x"), "c": []byte("y")}, {"c": []byte("z")}},
			},
			want: `{"a":2,"b":"x","c":"z"}`,
		},
		"varsFrom are strings": {
			reason: "Also what looks like JSON, and exactly as it is.",
			in:     Variables{From: []map[string][]byte{{"v": []byte("{\"a\": 1}\n<&> é")}}},
			want:   `{"v":"{\"a\": 1}\n\u003c\u0026\u003e é"}`,
		},
		"no UTF-8": {
			reason: "No string of the engine can hold it; a Secret may have such keys besides.",
			in:     Variables{From: []map[string][]byte{{"jks": {0xff, 0xfe}, "v": []byte("x")}}},
			want:   `{"v":"x"}`,
		},
		"values": {
			in:   Variables{Vars: []Variable{{Name: "values", Value: raw(`1`)}}, Values: raw(`{"a":1}`)},
			want: `{"values":{"a":1}}`,
		},
		"no JSON": {
			in: Variables{Vars: []Variable{{Name: "v", Value: raw(`secret`)}}}, err: "make variables: the value of v is not JSON",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tc.in.JSON()
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("got %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestValues(t *testing.T) {
	inputs, err := Inputs([]Input{{As: "i", Data: map[string][]byte{
		"p": []byte("a\"b\nc"), "evil": []byte(`x","admin":"true`),
		"list": []byte("[\n  1,\n  \"b\"\n]"), "list__type": []byte("[\n\"tuple\",[\"number\",\"string\"]]"),
		"num": []byte("12345678901234567890"), "num__type": []byte(`"number"`),
		"str": []byte("007"), "str__type": []byte("\"string\"\n"),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason string
		in     string
		want   string
		err    string
	}{
		"nothing":      {},
		"no templates": {reason: "Digits stay.", in: `{"a": [1.50, "{{ .x }}"]}`, want: `{"a":[1.50,"{{ .x }}"]}`},
		"exact bytes":  {reason: "R16", in: `{"p": "${{ .i.p }}"}`, want: `{"p":"a\"b\nc"}`},
		"injection":    {reason: "R16: a value cannot add a key.", in: `{"p": "${{ .i.evil }}"}`, want: `{"p":"x\",\"admin\":\"true"}`},
		"in a text":    {in: `{"p": "<${{ .i.str }}>"}`, want: `{"p":"<007>"}`},
		"in a key":     {in: `{"k-${{ .i.str }}": 1}`, want: `{"k-007":1}`},
		"number":       {reason: "A string, as the peer gives, with all digits.", in: `["${{ .i.num }}"]`, want: `["12345678901234567890"]`},
		"list":         {reason: "A single expression keeps what it is.", in: `{"l": "${{ .i.list }}"}`, want: `{"l":[1,"b"]}`},
		"list item":    {in: `["${{ index .i.list 1 }}"]`, want: `["b"]`},
		"loop":         {in: `["${{ range .i.list }}${{ . }},${{ end }}"]`, want: `["1,b,"]`},
		"sprig":        {in: `["${{ .i.str | b64enc | quote }}"]`, want: `["\"MDA3\""]`},
		"default":      {reason: "What is missing can have one.", in: `["${{ .i.nope | default \"d\" }}"]`, want: `["d"]`},
		"missing":      {in: `{"a":{"b":["${{ .i.nope }}"]}}`, err: `render the template in .values.a.b[0]: <.i.nope>: there is no such value`},
		"no secret in the error": {
			in:  `["${{ fail .i.evil }}"]`,
			err: `render the template in .values[0]: <fail .i.evil>: it cannot be evaluated`,
		},
		"environment":   {in: `["${{ env \"HOME\" }}"]`, err: `parse the template in .values[0]: :1: function "env" not defined`},
		"syntax":        {in: `["${{ .i. }}"]`, err: `parse the template in .values[0]: :1: unexpected <.> in operand`},
		"long":          {reason: "Much out of little.", in: `["${{ repeat 10000000 \"x\" }}"]`, err: `render the template in .values[0]: <repeat 10000000 "x">: the result is too long`},
		"loops":         {in: `["${{ range until 10000 }}${{ range until 10000 }}${{ end }}${{ end }}"]`, err: `render the template in .values[0]: <terraceLoop>: it loops too often`},
		"doubling":      {in: `["${{ $s := \"xxxxxxxx\" }}${{ range until 40 }}${{ $s = print $s $s }}${{ end }}"]`, err: `render the template in .values[0]: <print $s $s>: the result is too long`},
		"doubling list": {in: `["${{ $s := list 1 }}${{ range until 64 }}${{ $s = list $s $s }}${{ end }}${{ toJson $s }}"]`, err: `render the template in .values[0]: <list $s $s>: the result is too long`},
		"replace":       {in: `["${{ $s := repeat 100000 \"x\" }}${{ replace \"x\" $s $s }}"]`, err: `render the template in .values[0]: <replace "x" $s $s>: the result is too long`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Values(raw(tc.in), inputs)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("got  %v\nwant %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestInputsRefuse(t *testing.T) {
	_, err := Inputs([]Input{{As: "i", Data: map[string][]byte{"n": []byte("s3cr3t"), "n__type": []byte(`"number"`)}}})
	if err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v, want an error without the value", err)
	}
}

func TestRender(t *testing.T) {
	got, err := Render([]byte("{{ range .Values.names }}resource \"terraform_data\" \"{{ . | lower }}\" {}\n{{ end }}{{ if .Values.off }}off{{ end }}"), raw(`{"names":["A","b"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("resource \"terraform_data\" \"a\" {}\nresource \"terraform_data\" \"b\" {}\n", string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := Render([]byte("{{ .Values.nope }}"), nil); err == nil {
		t.Error("a value that is not there must not become <no value>")
	}
}

func TestBackendHCL(t *testing.T) {
	tests := map[string]struct {
		reason string
		in     Backend
		want   string
		err    bool
	}{
		"none": {},
		"kubernetes": {
			in: Backend{Kubernetes: &KubernetesBackend{SecretSuffix: "net", Namespace: "prod", Labels: map[string]string{"b": "2", "a": "1"}}},
			want: `terraform {
  backend "kubernetes" {
    secret_suffix     = "net"
    namespace         = "prod"
    in_cluster_config = false
    labels = {
      a = "1"
      b = "2"
    }
  }
}
`,
		},
		"quoting": {
			reason: "Nothing in a name becomes an expression.",
			in:     Backend{Kubernetes: &KubernetesBackend{SecretSuffix: "\"${file(\"x\")}", Namespace: "n", InCluster: true, ConfigPath: "/k"}},
			want: `terraform {
  backend "kubernetes" {
    secret_suffix     = "\"$${file(\"x\")}"
    namespace         = "n"
    in_cluster_config = true
    config_path       = "/k"
  }
}
`,
		},
		"cloud": {
			in: Backend{Cloud: &CloudBackend{Organization: "o", Hostname: "h", Token: "t", Workspace: "w", Tags: []string{"x"}}},
			want: `terraform {
  cloud {
    organization = "o"
    hostname     = "h"
    token        = "t"
    workspaces {
      name = "w"
      tags = ["x"]
    }
  }
}
`,
		},
		"custom":          {in: Backend{Custom: "backend \"s3\" {}"}, want: "terraform {\nbackend \"s3\" {}\n}\n"},
		"custom, broken":  {in: Backend{Custom: "backend \"s3\" {"}, err: true},
		"custom, escapes": {in: Backend{Custom: "}\nprovider \"x\" {"}, err: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tc.in.HCL()
			if (err != nil) != tc.err {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestBackendConfig(t *testing.T) {
	got, err := BackendConfig([]map[string][]byte{{"bucket": []byte("a"), "key": []byte("${x}")}, {"bucket": []byte("b")}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("bucket = \"b\"\nkey    = \"$${x}\"\n", string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := BackendConfig([]map[string][]byte{{"a = 1\nb": nil}}); err == nil {
		t.Error("a key that is no name must be refused")
	}
	if got, err := BackendConfig(nil); got != nil || err != nil {
		t.Errorf("got %q, %v for none", got, err)
	}
}

func TestMappingPlace(t *testing.T) {
	tests := map[string]struct {
		m    Mapping
		want string
	}{
		"home":           {m: Mapping{Location: LocationHome, Path: ".ssh/id_rsa"}, want: "home/.ssh/id_rsa"},
		"workspace":      {m: Mapping{Location: LocationWorkspace, Path: "/certs/ca.pem"}, want: "work/u/certs/ca.pem"},
		"above":          {m: Mapping{Location: LocationHome, Path: "../x"}},
		"above, hidden":  {m: Mapping{Location: LocationHome, Path: "a/../../x"}},
		"nothing":        {m: Mapping{Location: LocationHome, Path: ""}},
		"the location":   {m: Mapping{Location: LocationWorkspace, Path: "/"}},
		"odd characters": {m: Mapping{Location: LocationHome, Path: "a b\x00"}},
		"elsewhere":      {m: Mapping{Location: "root", Path: "x"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tc.m.place(&Reach{Path: "u"})
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestCLIConfig(t *testing.T) {
	got, err := CLIConfig(map[string][]byte{"a.tfrc": []byte("x"), "b": nil})
	if string(got) != "x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, data := range []map[string][]byte{nil, {"a": nil}, {"a.tfrc": nil, "b.tfrc": nil}} {
		if _, err := CLIConfig(data); err == nil {
			t.Errorf("%d keys must be refused", len(data))
		}
	}
}

// FuzzValues: templates neither panic nor change the structure around them.
func FuzzValues(f *testing.F) {
	for _, seed := range []string{"${{ .i.p }}", "${{ range .i.l }}${{ . }}${{ end }}", `${{ printf "%1000d" 1 }}`, "${{ with $x := .i }}${{ $x.p }}${{ end }}"} {
		f.Add(seed, "a\"b")
	}
	f.Fuzz(func(t *testing.T, template, value string) {
		in, err := json.Marshal(map[string]any{"a": template, "z": 1})
		if err != nil {
			t.Skip()
		}
		got, err := Values(in, map[string]any{"i": map[string]any{"p": value, "l": []any{value}}})
		if err != nil {
			return
		}
		var out map[string]any
		if err := json.Unmarshal(got, &out); err != nil || len(out) != 2 {
			t.Errorf("%d keys, %v: %s", len(out), err, got)
		}
	})
}
