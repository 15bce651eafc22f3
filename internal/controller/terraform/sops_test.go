// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

const encryptedYAML = "a: ENC[AES256_GCM,data:x,iv:x,tag:x,type:str]\nsops:\n    mac: ENC[AES256_GCM,data:x,iv:x,tag:x,type:str]\n"

func TestEncryptedFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, path string
		varFiles     []string
		files        map[string]string
		want         []string
	}{
		"by name":   {"Files of the path whose names end so.", "m", nil, map[string]string{"m/a.sops.yaml": encryptedYAML, "m/d/b.sops.yml": encryptedYAML, "m/c.yaml": encryptedYAML}, []string{"m/a.sops.yaml", "m/d/b.sops.yml"}},
		"plain":     {"A name alone encrypts nothing: a file of rules has it too.", "m", nil, map[string]string{"m/a.sops.yaml": "a: b\n", "m/.sops.yaml": "creation_rules: []\n"}, nil},
		"elsewhere": {"What the unit does not read is not its own.", "m", nil, map[string]string{"m/main.tf": "", "n/a.sops.yaml": encryptedYAML}, nil},
		"read":      {"What a function reads counts, wherever it is.", "m", nil, map[string]string{"m/main.tf": "locals { x = file(\"../s/a.sops.yaml\") }\n", "s/a.sops.yaml": encryptedYAML, "s/b.sops.yaml": encryptedYAML}, []string{"s/a.sops.yaml"}},
		"variable":  {"A variable file counts whatever its name.", "m", []string{"v/prod.tfvars.json"}, map[string]string{"m/main.tf": "", "v/prod.tfvars.json": encryptedYAML}, []string{"v/prod.tfvars.json"}},
		"whole":     {"Where all of the artifact is read, the rest are other units' secrets.", "m", nil, map[string]string{"m/main.tf.tpl": "{{ .Values }}", "m/a.sops.yaml": encryptedYAML, "n/b.sops.yaml": encryptedYAML}, []string{"m/a.sops.yaml"}},
		"root":      {"A module at the root has all below it.", ".", nil, map[string]string{"main.tf": "", "x/a.sops.json": encryptedYAML}, []string{"x/a.sops.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tc.files {
				at := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			reach, err := workdir.ReachOf(dir, tc.path, workdir.Options{VarFiles: tc.varFiles})
			if err != nil {
				t.Fatal(err)
			}
			got, err := encryptedFiles(dir, reach)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestModuleThatDecryptsItself(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		reach    workdir.Reach
		decrypts bool
	}{
		"provider": {"The provider wants the files as they are.", workdir.Reach{Providers: []workdir.Provider{{Name: "s", Source: "carlpett/sops"}}}, true},
		"used":     {"So does one that is only used.", workdir.Reach{Providers: []workdir.Provider{{Name: "sops"}}}, true},
		"other":    {"Others have no part in it.", workdir.Reach{Providers: []workdir.Provider{{Name: "sops", Source: "hashicorp/aws"}}}, false},
	} {
		if got := decryptsItself(&tc.reach); got != tc.decrypts {
			t.Errorf("%s: %s got %t", name, tc.reason, got)
		}
	}
}
