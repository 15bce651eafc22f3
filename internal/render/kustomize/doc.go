// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package kustomize turns a path of an artifact and a Kustomization into the
// objects that the Kustomization stands for, as Flux's kustomize-controller
// does: it generates or amends the kustomization file, builds it, decrypts,
// and substitutes variables. It talks to no cluster, writes to no disk, and
// orders nothing: applying is the caller's.
//
// The artifact is read through a file system of its own, which cannot leave
// the artifact's directory, keeps what the build generates in memory, and
// remembers what the build looked at. Reads tells from that whether a build of
// another revision can differ, without building it.
//
// Builds run in parallel. Kustomize keeps the OpenAPI schema in a variable of
// the process; only trees with an "openapi" or "crds" field change it, and
// those are built alone.
//
// Variables are substituted in the parsed document and not in its text: a
// scalar that is quoted in its file stays a string, and an error names the
// object, the field and the line.
package kustomize
