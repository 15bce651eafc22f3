// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package tofu runs the OpenTofu or Terraform binary: one file per subcommand,
// arguments built apart from running them, failures with types.
//
// It knows nothing of units, Kubernetes or where a module comes from; package
// workdir prepares the directory that a [Session] runs in. The engine is theirs;
// what is ours is the process: its own group, an environment made only of what
// the Session says, output that goes to files first (so that a process that
// outlives Terrace neither blocks nor dies on a broken pipe), an interrupt before
// a kill.
package tofu
