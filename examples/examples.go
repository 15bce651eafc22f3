// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package examples embeds the repositories that a user can start from. The demo
// and the tests lay them out as real Git repositories; nothing here is read when
// Terrace runs.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed terraform-stack
var files embed.FS

// TerraformStack is a repository with four Terraform units, each of which needs
// the one before: network, cluster, database, handbook. terraform/ holds the
// modules and clusters/production the manifests.
func TerraformStack() fs.FS {
	stack, err := fs.Sub(files, "terraform-stack")
	if err != nil {
		panic(err) // only an invalid path can fail, and this one is a constant
	}
	return stack
}
