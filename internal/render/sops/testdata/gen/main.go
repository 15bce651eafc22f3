// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Gen writes testdata/files: plain files encrypted and decrypted again by the SOPS
// library. The tests decrypt them and compare. The library's readers of files need
// modules that nothing else here does, so that this is no test; run it with a copy
// of go.mod that may grow:
//
//	cp go.mod go.sum /tmp
//	go run -modfile=/tmp/go.mod -mod=mod ./internal/render/sops/testdata/gen internal/render/sops/testdata/files
package main

import (
	"crypto/rand"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"
	lib "github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	libage "github.com/getsops/sops/v3/age"
	"github.com/getsops/sops/v3/config"
	"github.com/getsops/sops/v3/stores/dotenv"
	"github.com/getsops/sops/v3/stores/ini"
	libjson "github.com/getsops/sops/v3/stores/json"
	"github.com/getsops/sops/v3/stores/yaml"
	"golang.org/x/tools/txtar"
)

type about struct {
	Format   string `json:"format"`
	Name     string `json:"name"`
	Identity string `json:"identity"`
}

const secret = `apiVersion: v1
kind: Secret
metadata:
  name: db
  namespace: apps
type: Opaque
stringData:
  password: hunter2
  version: "004"
  yes: "yes"
`

var cases = []struct {
	file, reason, format, name, plain string
	change                            func(*lib.Metadata)
}{
	{"secret", "A Secret of which only the data is encrypted.", "yaml", "s.yaml", secret,
		func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedRegex = "", "^(data|stringData)$" }},
	{"whole", "Without a rule all of it is encrypted.", "yaml", "s.yaml", secret, nil},
	{"types", "Values keep their types.", "yaml", "t.yaml",
		"i: 1\nneg: -7\nf: 1.5\nbig: 12345678901\nexp: 1e3\nb: true\nn: null\ns: \"1\"\nempty: \"\"\nt: 2026-01-02T03:04:05Z\noct: \"0755\"\nno: \"no\"\nlist: [1, a, true, null, {k: v}, [x]]\nnone: {}\nvoid: []\n", nil},
	{"plain-types", "Values that stay plain are in the MAC.", "yaml", "t.yaml",
		"a_unencrypted: {i: 0x10, f: 1.50, exp: 1e3, b: true, n: ~, t: 2026-01-02, s: \"1\", empty: \"\"}\nb: x\n", nil},
	{"texts", "Lines and odd characters.", "yaml", "t.yaml", "a: |\n  one\n  two\nb: \"tab\\tand \\u00e9 \\u2028\"\nc: '#not a comment'\nd: \" lead\"\ne: >-\n  folded\n  text\n", nil},
	{"suffix", "The default rule.", "yaml", "t.yaml", "a: 1\nb_unencrypted:\n  c: 2\n", nil},
	{"encrypted-suffix", "The opposite one.", "yaml", "t.yaml", "a: 1\nb_enc:\n  c: 2\n", func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedSuffix = "", "_enc" }},
	{"unencrypted-regex", "By name.", "yaml", "t.yaml", "kind: X\nspec:\n  a: b\n", func(m *lib.Metadata) { m.UnencryptedSuffix, m.UnencryptedRegex = "", "^kind$" }},
	{"mac-only", "The MAC covers encrypted values only.", "yaml", "t.yaml", "a: 1\nb_enc: 2\n", func(m *lib.Metadata) {
		m.UnencryptedSuffix, m.EncryptedSuffix, m.MACOnlyEncrypted = "", "_enc", true
	}},
	{"encrypted-comment", "Comments decide.", "yaml", "t.yaml",
		"# sops:enc\na: 1\nb: 2 # plain\nc:\n  # sops:enc\n  d:\n    e: 3\n    # inner\n    f: 4\n  g: 5\nl:\n- 1\n# sops:enc\n- 2\n- 3\nm: 4 # sops:enc\nn: 5\n",
		func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedCommentRegex = "", "sops:enc" }},
	{"unencrypted-comment", "Or the other way round.", "yaml", "t.yaml", "# plain\na: 1\nb: 2\n# plain\nc:\n  d: 3\n  # other\n  e: [1, 2]\nf: 6\n", func(m *lib.Metadata) { m.UnencryptedSuffix, m.UnencryptedCommentRegex = "", "plain" }},
	{"documents", "All documents were encrypted at once.", "yaml", "t.yaml", "a: 1\n---\nb: 2\n---\nc: [3]\n", nil},
	{"comments", "Comments are encrypted too.", "yaml", "t.yaml", "# top\n\n# above a\na: 1 # side\n# above b\nb:\n  # deep\n  c: 2\n  # two\n  # lines\n  e: 3\nd:\n# item\n- 1\n- k: v\n  # in item\n  l: w\n# end\n", nil},
	{"json", "Order and numbers.", "json", "t.json", `{"z": 1, "a": {"b": [1, 2.5, "x", null, true, {"c": "d"}, []]}, "data": "x", "e": {}, "s": ""}`, nil},
	{"json-plain", "Numbers that stay plain are in the MAC.", "json", "t.json", `{"a_unencrypted": [1, 1.0, 1.50, 1e3, 9007199254740993, true, null], "b": 9007199254740993}`, nil},
	{"docker-config", "A JSON file is not an envelope only because its one key is data.", "json", "t.dockerconfigjson", `{"data": "x"}`, nil},
	{"json-as-yaml", "JSON is YAML.", "json", "t.yaml", `{"a": "b"}`, nil},
	{"dotenv", "Lines with comments.", "dotenv", "t.env", "# hello\nA=1\nB=two words\nC=x=y\nEMPTY=\nQ=\"q\"\nL=a\\nb\n", nil},
	{"dotenv-rule", "A rule applies to names.", "dotenv", "t.env", "A=1\nB_unencrypted=2\n", nil},
	{"dotenv-comment", "Comments decide.", "dotenv", "t.env", "# enc\nA=1\nB=2\n", func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedCommentRegex = "", "enc" }},
	{"ini", "Sections.", "ini", "t.ini", "[one]\nk = v\nother = a b\n\n[two]\n; said\nk = 2\n", nil},
	{"ini-rule", "A rule applies to sections and keys.", "ini", "t.ini", "top = 1\n\n[one_unencrypted]\nk = v\n\n[two]\nk_unencrypted = 2\nl = \"a;b\"\n", nil},
	{"ini-comment", "Comments decide.", "ini", "t.ini", "[one]\n; enc\nk = v\nl = w\n\n; enc\n[two]\nk = v\n", func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedCommentRegex = "", "enc" }},
	{"binary", "Anything.", "binary", "key.bin", "\x01line\nmore \u00e9\n", nil},
}

func store(format string) lib.Store {
	c := config.NewStoresConfig()
	switch format {
	case "yaml":
		return yaml.NewStore(&c.YAML)
	case "json":
		return libjson.NewStore(&c.JSON)
	case "dotenv":
		return dotenv.NewStore(&c.Dotenv)
	case "ini":
		return ini.NewStore(&c.INI)
	}
	return libjson.NewBinaryStore(&c.JSONBinary)
}

func main() {
	log.SetFlags(0)
	id := must(age.GenerateX25519Identity())
	for _, c := range cases {
		s := store(c.format)
		k := must(libage.MasterKeyFromRecipient(id.Recipient().String()))
		tree := lib.Tree{Branches: must(s.LoadPlainFile([]byte(c.plain))), Metadata: lib.Metadata{
			KeyGroups: []lib.KeyGroup{{k}}, UnencryptedSuffix: lib.DefaultUnencryptedSuffix, Version: "3.13.2",
			LastModified: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		}}
		if c.change != nil {
			c.change(&tree.Metadata)
		}
		key := make([]byte, 32)
		must(rand.Read(key))
		must(0, k.Encrypt(key))
		mac := must(tree.Encrypt(key, aes.NewCipher()))
		tree.Metadata.MessageAuthenticationCode = must(aes.NewCipher().Encrypt(mac, key, tree.Metadata.LastModified.Format(time.RFC3339)))
		encrypted := must(s.EmitEncryptedFile(tree))

		back := must(s.LoadEncryptedFile(encrypted))
		if got := must(back.Decrypt(key, aes.NewCipher())); got != mac {
			// The library itself would refuse the file; so may we.
			log.Printf("%s: the library's own MAC does not fit", c.file)
		}
		a := &txtar.Archive{Comment: []byte(c.reason + "\n"), Files: []txtar.File{
			{Name: "about", Data: append(must(json.Marshal(about{c.format, c.name, id.String()})), '\n')},
			{Name: "encrypted", Data: encrypted},
			{Name: "want", Data: must(s.EmitPlainFile(back.Branches))},
		}}
		must(0, os.WriteFile(filepath.Join(os.Args[1], c.file+".txtar"), txtar.Format(a), 0o644))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
