// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"archive/zip"
	"bytes"
	"os"
	"slices"
	"testing"
)

func texts(values [][]byte) []string {
	var out []string
	for _, v := range values {
		out = append(out, string(v))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestSensitiveInState(t *testing.T) {
	tests := map[string]struct {
		reason, state string
		want          []string
	}{
		"Outputs":    {"Those that are marked, whatever their shape.", `{"version":4,"outputs":{"a":{"value":["one",{"k":"two"}],"sensitive":true},"b":{"value":"open"}}}`, []string{"one", "two"}},
		"Attributes": {"The part that the path leads to.", instance(`{"a":"open","b":{"c":["zero","secret"]}}`, `[[{"type":"get_attr","value":"b"},{"type":"get_attr","value":"c"},{"type":"index","value":{"value":1,"type":"number"}}]]`), []string{"secret"}},
		"Keys":       {"A map by its key.", instance(`{"m":{"x":"secret","y":"open"}}`, `[[{"type":"get_attr","value":"m"},{"type":"index","value":{"value":"x","type":"string"}}]]`), []string{"secret"}},
		"Dynamic":    {"The name of a type is no secret.", instance(`{"input":{"value":{"p":"secret"},"type":["object",{"p":"string"}]}}`, `[[{"type":"get_attr","value":"input"}]]`), []string{"secret"}},
		"Pair":       {"An object that only looks like one of a dynamic type.", instance(`{"r":{"value":"secret","type":"A"}}`, `[[{"type":"get_attr","value":"r"}]]`), []string{"A", "secret"}},
		"Set":        {"Elements of a set have no key: all of it.", instance(`{"s":["one","two"]}`, `[[{"type":"get_attr","value":"s"},{"type":"index","value":{"value":"one","type":"string"}}]]`), []string{"one", "two"}},
		"Number":     {"Numbers are secrets too.", instance(`{"pin":482913}`, `[[{"type":"get_attr","value":"pin"}]]`), []string{"482913"}},
		"Gone":       {"A path that leads nowhere.", instance(`{"a":null}`, `[[{"type":"get_attr","value":"a"},{"type":"get_attr","value":"b"}]]`), nil},
		"Encrypted":  {"What cannot be read gives nothing.", `{"version":4,"encrypted_data":"x"}`, nil},
		"Other":      {"", `{"version":3}`, nil},
		"NoState":    {"", `[`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := texts(SensitiveInState([]byte(tc.state))); !slices.Equal(got, tc.want) {
				t.Errorf("%s SensitiveInState = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func instance(attributes, sensitive string) string {
	return `{"version":4,"resources":[{"instances":[{"attributes":` + attributes + `,"sensitive_attributes":` + sensitive + `}]}]}`
}

// A plan file of OpenTofu 1.12.6: of the module in its tfconfig, over a state in which
// terraform_data.kept was made of "before-secret".
func TestSensitiveInFile(t *testing.T) {
	file, err := os.ReadFile("testdata/stored.tfplan")
	if err != nil {
		t.Fatal(err)
	}
	got := texts(SensitiveInFile(file))
	for what, want := range map[string]string{
		"variable with a value":           "given-secret",
		"variable with a default":         "default-secret",
		"value that is planned":           "planned-secret",
		"value in a list":                 "listed-secret",
		"value that goes":                 "before-secret",
		"output":                          "output-secret",
		"attribute that the schema marks": "schema-secret",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("the %s is missing: %q", what, got)
		}
	}
	for _, open := range []string{"string", "open-value", "workspace_dir", "out.txt"} {
		if slices.Contains(got, open) {
			t.Errorf("%q is no secret", open)
		}
	}
}

// A plan file may be torn or be of another tool: nothing is found in it then, and nothing breaks.
func FuzzSensitiveInFile(f *testing.F) {
	file, err := os.ReadFile("testdata/stored.tfplan")
	if err != nil {
		f.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range z.File {
		if e.Name == "tfplan" {
			content, err := entry(e)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content, "variable \"a\" {\n  sensitive = true\n}\n")
		}
	}
	f.Add([]byte{0x1a, 0x02, 0x4a, 0x00}, "{")
	f.Fuzz(func(t *testing.T, changes []byte, config string) {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		for name, content := range map[string]string{"tfplan": string(changes), "tfconfig/m-/main.tf": config, "tfconfig/m-/x.tf.json": config, "tfstate": config} {
			e, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		SensitiveInFile(b.Bytes())
		unpack(changes)
	})
}
