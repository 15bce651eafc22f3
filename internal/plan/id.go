// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"unicode/utf8"
)

// hashDigits is the number of hexadecimal digits of a plan id.
const hashDigits = 10

// ID returns the id of a plan: plan-<branch>-<first 10 digits of the digest>,
// without the branch if the revision has none. It looks like the ids of the
// Terraform Controller, but its digits are those of the content: the same id
// never names two contents. The digest is "algorithm:hex" or bare hex.
func ID(revision, digest string) string {
	hash := first(digest[strings.LastIndexByte(digest, ':')+1:], hashDigits)
	if b := branch(revision); b != "" {
		return "plan-" + b + "-" + hash
	}
	return "plan-" + hash
}

// RevisionID returns the id that the Terraform Controller gives to every plan of
// a revision:
//
//	main@sha1:b8e362c206e3…    plan-main-b8e362c206
//	main/b8e362c206e3…         plan-main-b8e362c206
//	refs/heads/x@sha1:b8e3…    plan-refs/heads/x-b8e3…
//	sha256:0e02f8b5ec…         plan-sha256:0e0 (a bucket, or a commit without branch)
//
// It says nothing about the content and is accepted only to approve a plan by
// the id that such a tool computed.
func RevisionID(revision string) string {
	if parts := strings.Split(revision, "@"); len(parts) == 2 {
		if hash := strings.Split(parts[1], ":"); len(hash) > 1 {
			return "plan-" + parts[0] + "-" + first(hash[1], hashDigits)
		}
	}
	if parts := strings.Split(revision, "/"); len(parts) == 2 {
		return "plan-" + parts[0] + "-" + first(parts[1], hashDigits)
	}
	return "plan-" + first(revision, hashDigits)
}

// branch returns the branch or tag of a revision, empty if it has none.
func branch(revision string) string {
	// A branch may contain @; a hash never does.
	if i := strings.LastIndexByte(revision, '@'); i >= 0 && strings.Contains(revision[i:], ":") {
		return revision[:i]
	}
	if parts := strings.Split(revision, "/"); len(parts) == 2 && !strings.Contains(parts[1], ":") {
		return parts[0]
	}
	return ""
}

// first returns the first n bytes of s, fewer if a character would be cut.
func first(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
