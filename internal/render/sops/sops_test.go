// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	lib "github.com/getsops/sops/v3"
	libaes "github.com/getsops/sops/v3/aes"
	libage "github.com/getsops/sops/v3/age"
	libpgp "github.com/getsops/sops/v3/pgp"
	"github.com/getsops/sops/v3/shamir"
	"github.com/google/go-cmp/cmp"
	yamlv3 "go.yaml.in/yaml/v3"
	"golang.org/x/crypto/ssh"
	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// secretKey is a Secret's namespace and name in messages.
const secretKey = "apps/sops-keys"

// seal encrypts a file with the SOPS library for these groups of master keys. The
// formats are yaml, json, dotenv and binary. What the library's readers and writers
// of files make of formats is in testdata/files.
func seal(t testing.TB, format, plain string, change func(*lib.Metadata), groups ...lib.KeyGroup) []byte {
	t.Helper()
	tree := lib.Tree{Branches: lib.TreeBranches{load(t, format, plain)}, Metadata: lib.Metadata{
		KeyGroups: groups, UnencryptedSuffix: lib.DefaultUnencryptedSuffix, Version: "3.13.2",
		LastModified: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}}
	if change != nil {
		change(&tree.Metadata)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	shares := [][]byte{key}
	if n := len(groups); n > 1 {
		var err error
		if shares, err = shamir.Split(key, n, tree.Metadata.ShamirThreshold); err != nil {
			t.Fatal(err)
		}
	}
	for i, g := range groups {
		for _, k := range g {
			if f, ok := k.(*fakeKey); ok {
				f.seal(shares[i])
			} else if err := k.EncryptIfNeeded(shares[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	cipher := libaes.NewCipher()
	mac, err := tree.Encrypt(key, cipher)
	if err != nil {
		t.Fatal(err)
	}
	tree.Metadata.MessageAuthenticationCode, err = cipher.Encrypt(mac, key, tree.Metadata.LastModified.Format(time.RFC3339))
	if err != nil {
		t.Fatal(err)
	}
	return emit(t, format, tree.Branches[0], stored(&tree.Metadata))
}

// load reads a plain file as SOPS does, without comments.
func load(t testing.TB, format, plain string) lib.TreeBranch {
	t.Helper()
	switch format {
	case "binary":
		return lib.TreeBranch{{Key: "data", Value: plain}}
	case "dotenv":
		var b lib.TreeBranch
		for _, l := range strings.Split(strings.TrimSpace(plain), "\n") {
			k, v, _ := strings.Cut(l, "=")
			b = append(b, lib.TreeItem{Key: k, Value: v})
		}
		return b
	}
	var n yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(plain), &n); err != nil {
		t.Fatal(err)
	}
	return branch(t, n.Content[0]).(lib.TreeBranch)
}

func branch(t testing.TB, n *yamlv3.Node) any {
	t.Helper()
	switch n.Kind {
	case yamlv3.MappingNode:
		b := lib.TreeBranch{}
		for i := 0; i < len(n.Content); i += 2 {
			b = append(b, lib.TreeItem{Key: n.Content[i].Value, Value: branch(t, n.Content[i+1])})
		}
		return b
	case yamlv3.SequenceNode:
		l := []any{}
		for _, e := range n.Content {
			l = append(l, branch(t, e))
		}
		return l
	}
	var v any
	if err := n.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// stored returns metadata as a file holds it.
func stored(m *lib.Metadata) map[string]any {
	out := map[string]any{
		"mac": m.MessageAuthenticationCode, "lastmodified": m.LastModified.Format(time.RFC3339), "version": m.Version,
		"unencrypted_suffix": m.UnencryptedSuffix, "encrypted_regex": m.EncryptedRegex, "shamir_threshold": m.ShamirThreshold,
	}
	var groups []any
	for _, g := range m.KeyGroups {
		group := map[string]any{}
		for _, k := range g {
			list, _ := group[k.TypeToIdentifier()].([]any)
			group[k.TypeToIdentifier()] = append(list, k.ToMap())
		}
		groups = append(groups, group)
	}
	if len(groups) > 1 {
		out["key_groups"] = groups
		return out
	}
	maps.Copy(out, groups[0].(map[string]any))
	return out
}

func emit(t testing.TB, format string, b lib.TreeBranch, meta map[string]any) []byte {
	t.Helper()
	if format == "dotenv" {
		var out strings.Builder
		for _, item := range b {
			out.WriteString(item.Key.(string) + "=" + item.Value.(string) + "\n")
		}
		flat := map[string]string{}
		flatten(flat, "", meta)
		for k, v := range flat {
			out.WriteString("sops_" + k + "=" + strings.ReplaceAll(v, "\n", `\n`) + "\n")
		}
		return []byte(out.String())
	}
	n := node(t, append(b, lib.TreeItem{Key: "sops", Value: meta}))
	out, err := yamlv3.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	if format == "yaml" {
		return out
	}
	var raw bytes.Buffer
	if err := writeJSON(&raw, ordered(n)); err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, raw.Bytes(), "", "\t"); err != nil {
		t.Fatal(err)
	}
	return indented.Bytes()
}

func flatten(out map[string]string, prefix string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if prefix == "" {
				flatten(out, k, e)
			} else {
				flatten(out, prefix+"__map_"+k, e)
			}
		}
	case []any:
		for i, e := range v {
			flatten(out, fmt.Sprintf("%s__list_%d", prefix, i), e)
		}
	default:
		if s := fmt.Sprint(v); s != "" {
			out[prefix] = s
		}
	}
}

func node(t testing.TB, v any) *yamlv3.Node {
	t.Helper()
	n := &yamlv3.Node{}
	switch v := v.(type) {
	case lib.TreeBranch:
		n.Kind = yamlv3.MappingNode
		for _, item := range v {
			n.Content = append(n.Content, node(t, item.Key), node(t, item.Value))
		}
	case []any:
		n.Kind = yamlv3.SequenceNode
		for _, e := range v {
			n.Content = append(n.Content, node(t, e))
		}
	default:
		if err := n.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func ordered(n *yamlv3.Node) any {
	switch n.Kind {
	case yamlv3.MappingNode:
		o := &object{}
		for i := 0; i < len(n.Content); i += 2 {
			o.keys, o.values = append(o.keys, n.Content[i].Value), append(o.values, ordered(n.Content[i+1]))
		}
		return o
	case yamlv3.SequenceNode:
		l := []any{}
		for _, e := range n.Content {
			l = append(l, ordered(e))
		}
		return l
	}
	var v any
	_ = n.Decode(&v)
	return v
}

func newAge(t testing.TB) (*age.X25519Identity, lib.KeyGroup) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id, ageGroup(t, id.Recipient().String())
}

func ageGroup(t testing.TB, recipient string) lib.KeyGroup {
	t.Helper()
	k, err := libage.MasterKeyFromRecipient(recipient)
	if err != nil {
		t.Fatal(err)
	}
	return lib.KeyGroup{k}
}

func mustKeys(t testing.TB, data map[string]string) *Keys {
	t.Helper()
	k, err := NewKeys(secretKey, asBytes(data))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func asBytes(data map[string]string) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range data {
		out[k] = []byte(v)
	}
	return out
}

const plainSecret = `apiVersion: v1
kind: Secret
metadata:
  name: db
  namespace: apps
type: Opaque
stringData:
  password: hunter2
  version: "004"
  answer: "yes"
`

// TestFileFormats decrypts what the SOPS library encrypted and compares with what
// that library decrypts; see testdata/gen.
func TestFileFormats(t *testing.T) {
	files, err := filepath.Glob("testdata/files/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			reason, about, in, want := recorded(t, file)
			d := New(mustKeys(t, map[string]string{"x.agekey": about.Identity}))
			if !IsEncryptedFile(about.Name, in) {
				t.Fatalf("%s\nnot taken for a SOPS file:\n%s", reason, in)
			}
			got, err := d.File(context.Background(), about.Name, in)
			if err != nil {
				t.Fatalf("%s\n%v\n%s", reason, err, in)
			}
			compare(t, reason, about.Format, string(want), string(got))
			if bytes.Contains(got, []byte("ENC[")) || IsEncryptedFile(about.Name, got) {
				t.Errorf("%s\nsomething encrypted is left:\n%s", reason, got)
			}
			if _, err := New(nil).File(context.Background(), about.Name, in); !errors.Is(err, ErrNoKey) {
				t.Errorf("%s\nwithout a key: error = %v, want ErrNoKey", reason, err)
			}
		})
	}
}

type about struct{ Format, Name, Identity string }

func recorded(t testing.TB, file string) (reason string, a about, in, want []byte) {
	t.Helper()
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string][]byte{}
	for _, f := range ar.Files {
		parts[f.Name] = f.Data
	}
	if err := json.Unmarshal(parts["about"], &a); err != nil {
		t.Fatal(err)
	}
	return string(ar.Comment), a, parts["encrypted"], parts["want"]
}

// compare compares structured files by their values and their comments, others by their text.
func compare(t *testing.T, reason, format, want, got string) {
	t.Helper()
	values := func(s string) any {
		switch format {
		case "yaml", "json":
			var docs []any
			for _, doc := range strings.Split(s, "\n---\n") {
				var v any
				if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
					t.Fatalf("%v:\n%s", err, s)
				}
				docs = append(docs, v)
			}
			var comments []string
			for _, l := range strings.Split(s, "\n") {
				if _, c, ok := strings.Cut(l, "# "); ok {
					comments = append(comments, c)
				}
			}
			return []any{docs, comments}
		case "ini":
			return strings.Fields(s)
		}
		return strings.TrimSuffix(s, "\n") // which the recording adds where there is none
	}
	if diff := cmp.Diff(values(want), values(got)); diff != "" {
		t.Errorf("%s\n(-want +got):\n%s", reason, diff)
	}
}

func TestFileKeepsOrderOfJSON(t *testing.T) {
	id, g := newAge(t)
	in := seal(t, "json", `{"z": 1, "a": {"y": "<&>", "b": [1.5, {}]}}`, nil, g)
	got, err := New(mustKeys(t, map[string]string{"x.agekey": id.String()})).File(context.Background(), "a.json", in)
	want := "{\n  \"z\": 1,\n  \"a\": {\n    \"y\": \"<&>\",\n    \"b\": [\n      1.5,\n      {}\n    ]\n  }\n}\n"
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("(-want +got), error %v:\n%s", err, diff)
	}
}

func TestFileNotEncrypted(t *testing.T) {
	cases := map[string]struct {
		reason, name, content string
	}{
		"Plain":   {"Most files.", "a.yaml", plainSecret},
		"Empty":   {"Nothing.", "a.yaml", ""},
		"Inside":  {"A document in a ConfigMap is for somebody else.", "a.yaml", "kind: ConfigMap\ndata:\n  x: |\n    a: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\n    sops:\n      mac: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\n"},
		"Config":  {".sops.yaml speaks of SOPS.", ".sops.yaml", "creation_rules:\n- age: age1x\n# sops ENC[AES256_GCM,\n"},
		"NoMAC":   {"A field of that name.", "a.yaml", "sops:\n  x: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\n"},
		"JSON":    {"A field of that name in JSON.", "a.json", `{"sops": {"a": "ENC[AES256_GCM,"}}`},
		"Broken":  {"kustomize says what is wrong with it.", "a.json", `{"sops": {"mac": "ENC[AES256_GCM,"`},
		"Values":  {"Encrypted values without metadata cannot be decrypted; Object says so.", "a.yaml", "a: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\n# sops\n"},
		"NotEnv":  {"A comment.", "a.env", "# sops_mac=ENC[AES256_GCM,\nA=1\n"},
		"NotINI":  {"A section of that name.", "a.ini", "[sops]\nx = ENC[AES256_GCM,\n"},
		"TextINI": {"A text that shows one.", "a.txt", " [sops]\n mac = ENC[AES256_GCM,\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := New(nil).File(context.Background(), tc.name, []byte(tc.content))
			if err != nil || string(got) != tc.content || IsEncryptedFile(tc.name, []byte(tc.content)) {
				t.Errorf("%s\ngot %q, %v; encrypted = %t", tc.reason, got, err, IsEncryptedFile(tc.name, []byte(tc.content)))
			}
		})
	}
}

// TestFileOfParts reads documents that were encrypted one by one and put together.
func TestFileOfParts(t *testing.T) {
	one, g1 := newAge(t)
	two, g2 := newAge(t)
	rule := func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedRegex = "", "^data$" }
	a := string(seal(t, "yaml", "kind: A\ndata: {x: one}\n", rule, g1))
	b := string(seal(t, "yaml", "kind: B\ndata: {x: two}\n", rule, g2))
	exempt := string(seal(t, "yaml", "kind: C\nmetadata:\n  annotations: {kustomize.toolkit.fluxcd.io/decrypt: Disabled}\ndata: {x: three}\n", rule, g1))
	d := New(mustKeys(t, map[string]string{"x.agekey": one.String() + "\n# and\n" + two.String() + "\n"}))
	got, err := d.File(context.Background(), "all.yaml", []byte(a+"---\nkind: P # plain\n---\n"+b+"---\n"+exempt))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"x: one", "x: two", "kind: P # plain"} {
		if !strings.Contains(string(got), s) {
			t.Errorf("no %q in:\n%s", s, got)
		}
	}
	if strings.Contains(string(got), "three") || strings.Count(string(got), "sops:") != 1 {
		t.Errorf("the exempt document was decrypted, or another one was not:\n%s", got)
	}
	alone, err := d.File(context.Background(), "c.yaml", []byte(exempt))
	if err != nil || string(alone) != exempt {
		t.Errorf("an exempt file changes: %v\n%s", err, alone)
	}
}

func TestFileChanged(t *testing.T) {
	id, _ := newAge(t)
	keys := mustKeys(t, map[string]string{"x.agekey": id.String()})
	rule := func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedRegex = "", "^data$" }
	swap := func(s, a, b string) string {
		t.Helper()
		if !strings.Contains(s, a) {
			t.Fatalf("no %q in:\n%s", a, s)
		}
		return strings.Replace(s, a, b, 1)
	}
	in := string(seal(t, "yaml", "kind: Secret\nname: db\ndata:\n  user: admin\n  password: hunter2\n", rule, ageGroup(t, id.Recipient().String())))
	cases := map[string]struct {
		reason string
		in     string
		lax    bool // what WithoutMAC makes of it: true for accepted
	}{
		"Plain":   {"The MAC covers unencrypted values.", swap(in, "name: db", "name: other"), true},
		"Removed": {"And that they are there.", swap(in, "name: db\n", ""), true},
		"Renamed": {"A value is bound to its path.", swap(in, "password:", "secret:"), false},
		"NoMAC":   {"Without a MAC nothing is covered.", swap(in, "mac: ENC", "mac: XXX"), false},
		"Time":    {"The MAC is bound to its time.", swap(in, "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"), true},
		"InPlain": {"A plain value where the rule wants an encrypted one.", swap(in, "user: ENC", "user: plain ENC"), false},
		"Added":   {"A value of another type.", swap(in, "data:\n", "data:\n    n: 5\n"), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := New(keys).File(context.Background(), "a.yaml", []byte(tc.in))
			if name == "NoMAC" {
				// It is no SOPS file any more, and is left alone; kustomize and Object come across it.
				if err != nil {
					t.Errorf("%s\n%v", tc.reason, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("%s\naccepted", tc.reason)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "plain ENC") || strings.Contains(err.Error(), "data:") {
				t.Errorf("%s\nthe error shows a value: %v", tc.reason, err)
			}
			if tc.lax && !errors.Is(err, ErrIntegrity) {
				t.Errorf("%s\nerror %v does not tell that the file was changed", tc.reason, err)
			}
			_, err = New(keys, WithoutMAC()).File(context.Background(), "a.yaml", []byte(tc.in))
			if (err == nil) != tc.lax {
				t.Errorf("%s\nwithout the MAC: error = %v, want accepted = %t", tc.reason, err, tc.lax)
			}
		})
	}
	t.Run("Alias", func(t *testing.T) {
		_, err := New(keys).File(context.Background(), "a.yaml", []byte(swap(swap(in, "kind: ", "kind: &a "), "name: db", "name: *a")))
		if err == nil || !strings.Contains(err.Error(), "anchors") {
			t.Errorf("error = %v, want one about anchors", err)
		}
	})
	t.Run("Size", func(t *testing.T) {
		_, err := New(keys).File(context.Background(), "a.yaml", []byte(in+strings.Repeat("# x\n", MaxSize/4)))
		if err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("error = %v, want one about the size", err)
		}
	})
}

// TestAgeKinds decrypts with each kind of age identity.
func TestAgeKinds(t *testing.T) {
	x, _ := newAge(t)
	pq, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	pub, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	sshPub, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ identity, recipient string }{
		"X25519": {"# created: today\r\n" + x.String() + "\r\n", x.Recipient().String()},
		"Hybrid": {pq.String(), pq.Recipient().String()},
		"SSH":    {string(pem.EncodeToMemory(block)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshPub)))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := seal(t, "yaml", "a: secret\n", nil, ageGroup(t, tc.recipient))
			got, err := New(mustKeys(t, map[string]string{"k.agekey": tc.identity})).File(context.Background(), "a.yaml", in)
			if err != nil || string(got) != "a: secret\n" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func newPGP(t testing.TB, passphrase string) (armored string, group lib.KeyGroup) {
	t.Helper()
	e, err := openpgp.NewEntity("t", "", "t@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	ring := filepath.Join(t.TempDir(), "pub")
	f, err := os.Create(ring)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Serialize(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	k := libpgp.NewMasterKeyFromFingerprint(strings.ToUpper(fingerprint(e)))
	libpgp.PubRing(ring).ApplyToMasterKey(k)
	if passphrase != "" {
		if err := e.EncryptPrivateKeys([]byte(passphrase), nil); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PrivateKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.SerializePrivateWithoutSigning(w, nil), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String(), lib.KeyGroup{k}
}

func TestPGP(t *testing.T) {
	one, g1 := newPGP(t, "")
	two, g2 := newPGP(t, "")
	in1 := seal(t, "yaml", "a: one\n", nil, g1)
	in2 := seal(t, "yaml", "a: two\n", nil, g2)
	// Two blocks in one file, as gpg --export-secret-keys --armor writes one after the other.
	d := New(mustKeys(t, map[string]string{"keys.asc": one + "\n" + two}))
	// Flux shares a keyring between builds that run at once; here is nothing to share.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for in, want := range map[string]string{string(in1): "a: one\n", string(in2): "a: two\n"} {
				if got, err := d.File(context.Background(), "a.yaml", []byte(in)); err != nil || string(got) != want {
					t.Errorf("got %q, %v; want %q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
	_, err := New(mustKeys(t, map[string]string{"keys.asc": two})).File(context.Background(), "a.yaml", in1)
	if !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), g1[0].ToString()) {
		t.Errorf("error = %v, want ErrNoKey with the fingerprint %s", err, g1[0].ToString())
	}
}

func TestShamir(t *testing.T) {
	var ids []string
	var groups []lib.KeyGroup
	for range 3 {
		id, g := newAge(t)
		ids, groups = append(ids, id.String()), append(groups, g)
	}
	in := seal(t, "yaml", "a: secret\n", func(m *lib.Metadata) { m.ShamirThreshold = 2 }, groups...)
	cases := map[string]struct {
		reason string
		keys   []string
		ok     bool
	}{
		"Two":   {"Enough.", []string{ids[2], ids[0]}, true},
		"Three": {"More than enough.", ids, true},
		"One":   {"Not enough.", ids[:1], false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := New(mustKeys(t, map[string]string{"k.agekey": strings.Join(tc.keys, "\n")}))
			got, err := d.File(context.Background(), "a.yaml", in)
			if tc.ok != (err == nil) || tc.ok && string(got) != "a: secret\n" {
				t.Errorf("%s\ngot %q, %v", tc.reason, got, err)
			}
			if !tc.ok && (!errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "2 of 3 groups")) {
				t.Errorf("%s\nerror = %v, want ErrNoKey with the numbers", tc.reason, err)
			}
		})
	}
}

// TestNoKey is case 10 of the Flux cases: the name in the Secret is not what it has to be.
func TestNoKey(t *testing.T) {
	id, g := newAge(t)
	other, _ := newAge(t)
	in := seal(t, "yaml", plainSecret, nil, g)
	cases := map[string]struct {
		reason string
		keys   *Keys
		want   []string
	}{
		"Misnamed": {"age.key is what age-keygen is told to write in many guides.",
			mustKeys(t, map[string]string{"age.key": id.String()}), []string{"age.key", "must end in .agekey"}},
		"Other": {"The Secret's own recipients are named beside the file's.",
			mustKeys(t, map[string]string{"a.agekey": other.String()}), []string{"a.agekey", other.Recipient().String()}},
		"Unknown": {"A name that means nothing.",
			mustKeys(t, map[string]string{"identity": "x"}), []string{"identity", "names end in .agekey"}},
		"Empty": {"A Secret without data.", mustKeys(t, nil), []string{"is empty", "names end in .agekey"}},
		"None":  {"No Secret.", nil, []string{"spec.decryption.secretRef"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.keys).File(context.Background(), "apps/db.yaml", in)
			if !errors.Is(err, ErrNoKey) {
				t.Fatalf("%s\nerror = %v, want ErrNoKey", tc.reason, err)
			}
			want := append(tc.want, "apps/db.yaml", "encrypted for age "+id.Recipient().String())
			if tc.keys != nil {
				want = append(want, "Secret "+secretKey)
			}
			for _, w := range want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s\nno %q in: %v", tc.reason, w, err)
				}
			}
			if strings.Contains(err.Error(), "AGE-SECRET-KEY-1") && name != "Empty" {
				t.Errorf("%s\na key in: %v", tc.reason, err)
			}
		})
	}
}

// TestEnvironment keeps the keys of the process out of it.
func TestEnvironment(t *testing.T) {
	id, g := newAge(t)
	t.Setenv("SOPS_AGE_KEY", id.String())
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	if err := os.MkdirAll(filepath.Join(home, "sops", "age"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "sops", "age", "keys.txt"), []byte(id.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(nil).File(context.Background(), "a.yaml", seal(t, "yaml", "a: b\n", nil, g)); !errors.Is(err, ErrNoKey) {
		t.Errorf("error = %v, want ErrNoKey", err)
	}
}

func TestNewKeysErrors(t *testing.T) {
	locked, _ := newPGP(t, "passphrase")
	good, _ := newAge(t)
	cases := map[string]struct {
		reason, name, value, want string
	}{
		"Garbage":     {"Not an identity.", "a.agekey", "# c\nhunter2", "line 2"},
		"Truncated":   {"A part of one.", "a.agekey", "AGE-SECRET-KEY-1HUNTER2", "line 1"},
		"Recipient":   {"The public half.", "a.agekey", good.Recipient().String(), "recipient"},
		"Plugin":      {"A program would have to run.", "a.agekey", "AGE-PLUGIN-YUBIKEY-1HUNTER2", "plugin"},
		"None":        {"Only comments.", "a.agekey", "# hunter2", "no age identity"},
		"SSH":         {"A broken SSH key.", "a.agekey", "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----", "SSH key"},
		"PGP":         {"Not armored.", "a.asc", "hunter2", "PGP"},
		"PGPPublic":   {"The public half.", "a.asc", publicPGP(t), "not a private key"},
		"PGPLocked":   {"Nobody can type the passphrase.", "a.asc", locked, "passphrase"},
		"Vault":       {"Nothing.", "sops.vault-token", " \n", "empty"},
		"AWS":         {"Half of it.", "sops.aws-kms", "aws_secret_access_key: hunter2", "aws_access_key_id"},
		"AWSText":     {"Not YAML.", "sops.aws-kms", "{hunter2", "aws_access_key_id"},
		"GCP":         {"Not JSON.", "sops.gcp-kms", "hunter2", "JSON"},
		"GCPExternal": {"It could name a file or a program of the control plane.", "sops.gcp-kms", `{"type": "external_account", "x": "hunter2"}`, "external_account"},
		"Azure":       {"Not enough.", "sops.azure-kv", "clientSecret: hunter2", "tenantId"},
		"AzureText":   {"Not YAML.", "sops.azure-kv", "{hunter2", "YAML"},
		"AzureCert":   {"Not a certificate.", "sops.azure-kv", "{tenantId: a, clientId: b, clientCertificate: hunter2}", "certificate"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := NewKeys(secretKey, map[string][]byte{tc.name: []byte(tc.value)})
			if err == nil {
				t.Fatalf("%s\naccepted", tc.reason)
			}
			for _, w := range []string{tc.want, tc.name, "Secret " + secretKey} {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s\nno %q in: %v", tc.reason, w, err)
				}
			}
			if strings.Contains(strings.ToLower(err.Error()), "hunter2") {
				t.Errorf("%s\nthe error shows the value: %v", tc.reason, err)
			}
		})
	}
}

func publicPGP(t *testing.T) string {
	t.Helper()
	e, err := openpgp.NewEntity("t", "", "t@example.org", nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Serialize(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGlobalAge(t *testing.T) {
	id, g := newAge(t)
	own, _ := newAge(t)
	in := seal(t, "yaml", "a: b\n", nil, g)
	for name, keys := range map[string]*Keys{"Alone": nil, "Beside": mustKeys(t, map[string]string{"o.agekey": own.String()})} {
		t.Run(name, func(t *testing.T) {
			with, err := keys.WithGlobalAge("flux-system/sops-age", asBytes(map[string]string{"g.agekey": id.String(), "sops.vault-token": "token"}))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := New(with).File(context.Background(), "a.yaml", in); err != nil {
				t.Error(err)
			}
			if with.vaultToken != "" {
				t.Error("a token of Vault is taken from the global Secret")
			}
			if _, err := New(keys).File(context.Background(), "a.yaml", in); !errors.Is(err, ErrNoKey) {
				t.Errorf("the keys it was made from have changed: %v", err)
			}
		})
	}
	if _, err := (*Keys)(nil).WithGlobalAge("a/b", asBytes(map[string]string{"g.agekey": "hunter2"})); err == nil || !strings.Contains(err.Error(), "a/b") {
		t.Errorf("error = %v, want one that names the Secret", err)
	}
	other, _ := newAge(t)
	with, err := (*Keys)(nil).WithGlobalAge("flux-system/sops-age", asBytes(map[string]string{"g.agekey": other.String()}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(with).File(context.Background(), "a.yaml", in); err == nil || !strings.Contains(err.Error(), "flux-system/sops-age") {
		t.Errorf("error = %v, want one that names the global Secret", err)
	}
}

// built returns an object as a build leaves it: with its keys out of order.
func built(t *testing.T, y []byte) *unstructured.Unstructured {
	t.Helper()
	j, err := yaml.YAMLToJSON(y)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(j); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestObject(t *testing.T) {
	id, _ := newAge(t)
	group := func() lib.KeyGroup { return ageGroup(t, id.Recipient().String()) }
	d := New(mustKeys(t, map[string]string{"x.agekey": id.String()}))
	dataRule := func(m *lib.Metadata) { m.UnencryptedSuffix, m.EncryptedRegex = "", "^(data|stringData|spec)$" }
	b64 := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	moved := func(o *unstructured.Unstructured) {
		o.SetNamespace("other")
		o.SetLabels(map[string]string{"added": "by kustomize"})
	}
	cases := map[string]struct {
		reason string
		in     []byte
		change func(*unstructured.Unstructured)
		want   string
		did    bool
	}{
		"StringData": {"A Secret with stringData is as secret as one with data.", seal(t, "yaml", plainSecret, dataRule, group()), nil, plainSecret, true},
		"Built": {"A build has moved and labelled it.", seal(t, "yaml", plainSecret, dataRule, group()), moved,
			strings.Replace(strings.Replace(plainSecret, "namespace: apps", "namespace: other", 1), "  name: db\n", "  name: db\n  labels: {added: by kustomize}\n", 1), true},
		"Kind": {"Any kind can be encrypted, with numbers as objects have them.", seal(t, "yaml", "apiVersion: a/v1\nkind: X\nmetadata: {name: x}\nspec: {num: 5, f: 1.5, b: true, l: [1, {s: t}], e: \"\"}\n", dataRule, group()), nil,
			"apiVersion: a/v1\nkind: X\nmetadata: {name: x}\nspec: {num: 5, f: 1.5, b: true, l: [1, {s: t}], e: \"\"}\n", true},
		"Data": {"Generators put SOPS files into a Secret.", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata:\n  env: " + b64(seal(t, "dotenv", "A=1\n", nil, group())) +
			"\n  c.yaml: " + b64(seal(t, "yaml", "a: 1\n", nil, group())) + "\n  key: " + b64(seal(t, "binary", "raw", nil, group())) + "\n  plain: " + b64([]byte("x")) + "\n  odd: '%'\n"), nil,
			"apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {env: " + b64([]byte("A=1\n")) + ", c.yaml: " + b64([]byte("a: 1\n")) + ", key: " + b64([]byte("raw")) + ", plain: " + b64([]byte("x")) + ", odd: '%'}\n", true},
		"Plain": {"Nothing to do.", []byte(plainSecret), nil, plainSecret, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := built(t, tc.in)
			if tc.change != nil {
				tc.change(o)
			}
			did, err := d.Object(context.Background(), o)
			if err != nil || did != tc.did {
				t.Fatalf("%s\ndid = %t, want %t; %v", tc.reason, did, tc.did, err)
			}
			if diff := cmp.Diff(built(t, []byte(tc.want)).Object, o.Object); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", tc.reason, diff)
			}
			if IsEncrypted(o) {
				t.Errorf("%s\nit still counts as encrypted", tc.reason)
			}
		})
	}
	t.Run("Disabled", func(t *testing.T) {
		o := built(t, seal(t, "yaml", plainSecret, dataRule, group()))
		o.SetAnnotations(map[string]string{disabledAnnotation: "DISABLED"})
		want := o.DeepCopy()
		if did, err := d.Object(context.Background(), o); did || err != nil {
			t.Errorf("did = %t, %v", did, err)
		}
		if diff := cmp.Diff(want.Object, o.Object); diff != "" {
			t.Errorf("an exempt object changes:\n%s", diff)
		}
	})
	t.Run("Comments", func(t *testing.T) {
		// The comments that decided what is encrypted are gone after a build.
		_, about, in, want := recorded(t, "testdata/files/encrypted-comment.txtar")
		withKind := func(b []byte) []byte {
			return append([]byte("apiVersion: example.org/v1\nkind: X\nmetadata: {name: x}\n"), b...)
		}
		o := built(t, withKind(in))
		if did, err := New(mustKeys(t, map[string]string{"x.agekey": about.Identity})).Object(context.Background(), o); !did || err != nil {
			t.Fatalf("did = %t, %v", did, err)
		}
		if diff := cmp.Diff(built(t, withKind(want)).Object, o.Object); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("PlainValue", func(t *testing.T) {
		o := built(t, seal(t, "yaml", plainSecret, dataRule, group()))
		o.Object["stringData"].(map[string]any)["password"] = "hunter2"
		_, err := d.Object(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), "Secret/apps/db: stringData.password") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error = %v, want one that names the field and not its value", err)
		}
	})
	t.Run("NoKey", func(t *testing.T) {
		o := built(t, seal(t, "yaml", plainSecret, dataRule, group()))
		if _, err := New(nil).Object(context.Background(), o); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "Secret/apps/db") {
			t.Errorf("error = %v, want ErrNoKey with the object", err)
		}
	})
	t.Run("Value", func(t *testing.T) {
		o := built(t, []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: team}\ndata: {env: "+b64(seal(t, "dotenv", "A=1\n", nil, group()))+"}\n"))
		if _, err := New(nil).Object(context.Background(), o); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "Secret/team/x: data.env") {
			t.Errorf("error = %v, want ErrNoKey with the object and the key", err)
		}
	})
}

func TestIsEncrypted(t *testing.T) {
	enc := "ENC[AES256_GCM,data:YQ==,iv:YQ==,tag:YQ==,type:str]"
	cases := map[string]struct {
		reason, in string
		want       bool
	}{
		"Metadata":   {"Any kind.", "{apiVersion: a/v1, kind: X, metadata: {name: x}, sops: {mac: x}}", true},
		"Secret":     {"Even if it is broken.", "{apiVersion: v1, kind: Secret, metadata: {name: x}, sops: x}", true},
		"StringData": {"stringData counts.", "{apiVersion: v1, kind: Secret, metadata: {name: x}, stringData: {a: '" + enc + "'}}", true},
		"Data":       {"A value without metadata would be applied as it is.", "{apiVersion: v1, kind: Secret, metadata: {name: x}, data: {a: '" + enc + "'}}", true},
		"OtherSops":  {"A field of another meaning.", "{apiVersion: a/v1, kind: X, metadata: {name: x}, sops: yes}", false},
		"ConfigMap":  {"Only Secrets are looked into.", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: '" + enc + "'}}", false},
		"Plain":      {"A Secret.", plainSecret, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := IsEncrypted(built(t, []byte(tc.in))); got != tc.want {
				t.Errorf("%s\ngot %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
	if IsEncrypted(nil) {
		t.Error("nothing is encrypted")
	}
}

func TestMetadataErrors(t *testing.T) {
	id, g := newAge(t)
	d := New(mustKeys(t, map[string]string{"x.agekey": id.String()}))
	good := seal(t, "json", `{"a": "b"}`, nil, g)
	cases := map[string]struct {
		reason string
		change func(meta map[string]any)
		want   string
	}{
		"Time":      {"The MAC is bound to it.", func(m map[string]any) { m["lastmodified"] = "yesterday" }, "lastmodified"},
		"Type":      {"Not a list.", func(m map[string]any) { m["age"] = "x" }, "age"},
		"NoKeys":    {"Nobody can open it.", func(m map[string]any) { delete(m, "age") }, "no key"},
		"TwoRules":  {"Which one?", func(m map[string]any) { m["encrypted_regex"] = "a" }, "2 rules"},
		"Regex":     {"Not one.", func(m map[string]any) { delete(m, "unencrypted_suffix"); m["encrypted_regex"] = "(" }, "regular expression"},
		"Threshold": {"Not a number.", func(m map[string]any) { m["shamir_threshold"] = "x" }, "shamir_threshold"},
		"MACOnly":   {"Not a boolean.", func(m map[string]any) { m["mac_only_encrypted"] = "x" }, "mac_only_encrypted"},
		"Armor":     {"The share is broken.", func(m map[string]any) { m["age"].([]any)[0].(map[string]any)["enc"] = "x" }, "malformed"},
		"Many": {"Each is tried.", func(m map[string]any) {
			for len(m["age"].([]any)) <= maxMasterKeys {
				m["age"] = append(m["age"].([]any), m["age"].([]any)[0])
			}
		}, "at most"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var v map[string]any
			if err := json.Unmarshal(good, &v); err != nil {
				t.Fatal(err)
			}
			tc.change(v["sops"].(map[string]any))
			in, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.File(context.Background(), "a.json", in); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s\nerror = %v, want one with %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestDeepJSON(t *testing.T) {
	id, g := newAge(t)
	d := New(mustKeys(t, map[string]string{"x.agekey": id.String()}))
	in := string(seal(t, "json", `{"a": "b"}`, nil, g))
	deep := strings.Replace(in, "{", `{"deep": `+strings.Repeat("[", 2000)+strings.Repeat("]", 2000)+",", 1)
	if _, err := d.File(context.Background(), "a.json", []byte(deep)); err == nil || !strings.Contains(err.Error(), "deeper") {
		t.Errorf("error = %v, want one about the depth", err)
	}
}

// FuzzFile feeds what strangers commit. Content that is not a SOPS file stays as it
// is; nothing else may come out than an error or the plain file.
func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/files/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	var identity string
	for _, file := range files {
		_, about, in, _ := recorded(f, file)
		identity = about.Identity
		f.Add("a.yaml", in)
		f.Add("a.sops.tfvars.json", in)
	}
	f.Add("a.yaml", []byte("sops:\n  mac: ENC[AES256_GCM,\n"))
	f.Add("a.env", []byte("sops_mac=ENC[AES256_GCM,\nsops_age__list_0__map_enc=x\nsops_age__list_1=y\n"))
	keys, err := NewKeys(secretKey, map[string][]byte{"x.agekey": []byte(identity)})
	if err != nil {
		f.Fatal(err)
	}
	d := New(keys, WithoutMAC())
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		got, err := d.File(context.Background(), name, content)
		if err == nil && !IsEncryptedFile(name, content) && !bytes.Equal(got, content) {
			t.Errorf("a file that is not encrypted changes:\n%q\n%q", content, got)
		}
	})
}
