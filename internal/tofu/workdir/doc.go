// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package workdir prepares the directory that a unit's tofu runs in.
//
// [ReachOf] says which files of an artifact a unit reads, so that a commit that
// touches none of them causes no work. [Dir] is the place on disk of one unit,
// the same for all its runs: the files that it reads, what Terrace generates
// beside them (variables, backend, mapped files), the data directory that init
// fills, and a private HOME and TMPDIR. The rest makes the generated files from
// values; who fetches those values is the caller.
//
// What is read here was written by strangers. It is parsed within bounds, never
// evaluated by the engine's own evaluator, and never followed out of the artifact.
package workdir
