// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// A run that is cut off cannot clear up after itself. What it left is out of sight when the
// next process has looked, and the backend's record is there again for the next run.
func TestScrubAfterARunThatWasCutOff(t *testing.T) {
	dir := t.TempDir()
	blobs, err := blob.Open(t.Context(), blob.Options{URL: filepath.Join(dir, "blobs"), KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	c := &Controller{opts: Options{Dir: filepath.Join(dir, "units"), Blobs: blobs}}
	u := run.Unit{Kind: "Terraform", Namespace: "ns", Name: "u"}
	if err := c.scrub(u); err != nil {
		t.Errorf("a unit without a directory: %v", err)
	}

	artifact := filepath.Join(dir, "artifact")
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(artifact, "a.sops.yaml"), "encrypted")
	reach, err := workdir.ReachOf(artifact, ".", workdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	work, err := workdir.OpenDir(c.unitDir(u))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = work.Close() })
	_, err = work.Prepare(workdir.Request{
		Source: artifact, Reach: reach, Files: map[string][]byte{workdir.VarsFile: []byte("canary")},
		Decrypted: map[string][]byte{"a.sops.yaml": []byte("canary")}, CLIConfig: []byte("canary"),
	})
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(work.Tmp(), "tfplan"), "canary")
	record := filepath.Join(work.DataDir(), "terraform.tfstate")
	write(record, "record with canary")

	if err := c.scrub(u); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(c.unitDir(u), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "canary") {
			t.Errorf("%s still holds the secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	(&session{c: c, job: &job{unit: u}, dir: work}).showBackend()
	if content, err := os.ReadFile(record); err != nil || string(content) != "record with canary" {
		t.Errorf("the record is %q, %v", content, err)
	}
	// Moved to another unit's directory it opens for nobody.
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	(&session{c: c, job: &job{unit: run.Unit{Kind: "Terraform", Namespace: "ns", Name: "other"}}, dir: work}).showBackend()
	if _, err := os.Stat(record); err == nil {
		t.Error("another unit opens the record")
	}
}
