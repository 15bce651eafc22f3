// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	file := filepath.Join(dir, "k")
	want := func(what, content string) {
		t.Helper()
		got, err := os.ReadFile(file)
		if err != nil || string(got) != content {
			t.Errorf("%s: %q, %v; want %q", what, got, err, content)
		}
		if _, err := Private(file); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%s: something is left beside it: %v, %v", what, entries, err)
		}
	}
	if _, err := Private(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, content := range []string{"first", "second"} {
		if err := Create(file, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	want("who is first stays", "first")
	if err := Replace(file, []byte("third")); err != nil {
		t.Fatal(err)
	}
	want("replaced", "third")
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Private(file); err == nil {
		t.Error("a file that the group can read is private")
	}
}
