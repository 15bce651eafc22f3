// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu_test

import (
	"syscall"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
)

// mkfifo makes a file on which a reader waits until someone writes.
func mkfifo(t *testing.T, path string) {
	t.Helper()
	must(t, syscall.Mkfifo(path, 0o600))
}

func stateHas(resources []*tfjson.StateResource, address string) bool {
	for _, r := range resources {
		if r.Address == address {
			return true
		}
	}
	return false
}
