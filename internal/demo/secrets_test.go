// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/terrace-dev/terrace/examples"
	"github.com/terrace-dev/terrace/internal/render/sops"
)

// opens decrypts a file with a key file's content.
func opens(ctx context.Context, t *testing.T, key, file string) (string, error) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := sops.NewKeys("demo/key", map[string][]byte{"k.agekey": []byte(key)})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := sops.New(keys).File(ctx, file, content)
	return string(plain), err
}

// TestOwnKey gives the example's Secrets another key: it opens them, with their MAC
// in order, and the known one does not any more.
func TestOwnKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	if err := os.CopyFS(dir, examples.FullStack()); err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile(filepath.Join(dir, examples.ThrowAwayKey))
	if err != nil {
		t.Fatal(err)
	}
	key, files, err := ownKey(dir, examples.ThrowAwayKey)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"apps/shop/production/payment.yaml", "apps/shop/staging/payment.yaml", "clusters/production/database-credentials.yaml"}
	if !slices.Equal(files, want) {
		t.Errorf("encrypted anew: %v, want %v", files, want)
	}
	for _, file := range want {
		name := filepath.Join(dir, file)
		if plain, err := opens(t.Context(), t, key, name); err != nil || strings.Contains(plain, "ENC[") {
			t.Errorf("%s cannot be read with the new key: %v\n%s", file, err, plain)
		}
		if _, err := opens(t.Context(), t, string(known), name); err == nil {
			t.Errorf("%s can still be read with the known key", file)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, examples.ThrowAwayKey)); !os.IsNotExist(err) {
		t.Errorf("the known key is still there: %v", err)
	}
	id, err := age.ParseX25519Identity(strings.TrimSpace(key))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(dir, ".sops.yaml"))
	if err != nil || !strings.Contains(string(rules), id.Recipient().String()) {
		t.Errorf(".sops.yaml does not name the new key: %v\n%s", err, rules)
	}
}

func TestRekeyRefuses(t *testing.T) {
	a, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(filepath.Join("..", "..", "examples", "full-stack", "apps", "shop", "staging", "payment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ reason, text, want string }{
		"plain":     {"a file without a data key is not encrypted for age", "a: 1\n", "no data key"},
		"other key": {"a data key for somebody else cannot be handed on", string(sealed), "decrypt the data key"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := rekey(tc.text, a, a.Recipient()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want one that says %q", tc.reason, err, tc.want)
			}
		})
	}
}
