// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStory tells the whole story with the binaries that were built: what the
// README promises, from an empty directory to the whole stack, repaired, restarted
// and changed.
func TestStory(t *testing.T) {
	if testing.Short() {
		t.Skip("the whole story takes a minute")
	}
	o := Options{
		Terrace: filepath.Join("..", "..", "bin", "terrace"),
		Mirror:  filepath.Join("..", "..", ".cache", "providers"),
		Dir:     filepath.Join(t.TempDir(), "demo"),
	}
	for _, path := range []string{o.Terrace, o.Mirror} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("run `make build providers` first: %v", err)
		}
	}
	var out bytes.Buffer
	o.Out = &out
	err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, wanted := range []string{
		"Plan: 4 to add, 0 to change, 0 to destroy.",               // network's plan
		"database waits for a person",                              // the approval
		"all 11 units are at the new commit; ran: nodes, platform", // what an output goes on to
		"all 11 units are at the new commit; ran: nothing",         // the commit that touches none
		"all 10 units are at the new commit; ran: shop-production", // the overlay
		"production moved, staging and everything else did not",    // and its proof
		"All as promised",
	} {
		if !strings.Contains(out.String(), wanted) {
			t.Errorf("the story does not say %q:\n%s", wanted, out.String())
		}
	}
	if strings.Contains(out.String(), password) {
		t.Error("the story tells the password")
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}
