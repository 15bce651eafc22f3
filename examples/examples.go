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

//go:embed all:full-stack
var files embed.FS

// FullStack is a repository with a stack from the network to the applications: a
// root in clusters/production, Terraform units and Kustomizations that depend on
// each other, and Secrets that are encrypted for the key in ThrowAwayKey.
func FullStack() fs.FS {
	stack, err := fs.Sub(files, "full-stack")
	if err != nil {
		panic(err) // only an invalid path can fail, and this one is a constant
	}
	return stack
}

// ThrowAwayKey is the file of FullStack with the age key that its Secrets are
// encrypted for. Everybody can read it, so it protects nothing.
const ThrowAwayKey = "throw-away.agekey"
