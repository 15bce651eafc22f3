// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package arch holds no code, only tests that read the tree: who may import whom
// and why, that every package says what it is for, that every file has its
// licence, that docs/architecture.md names the rooms that exist, and that no file
// mentions the machine that it was written on. A rule that is not kept by a test
// here is not a rule.
package arch
