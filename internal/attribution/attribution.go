// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package attribution says to whom a change is put down in the ledger: the author of a commit,
// the user whom the API server vouches for, or, where neither is known, what is known.
//
// It reads what objects say of themselves, and asks the API server for the managers of their
// fields when there is something to attribute, which is seldom. It decides nothing, and writes
// nothing but entries of the ledger (Suspensions).
package attribution

import (
	"strings"
	"unicode"

	"github.com/fluxcd/pkg/apis/meta"
	fluxgit "github.com/fluxcd/pkg/git"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/audit"
)

// maxName bounds a name and an email address of a commit, in bytes.
const maxName = 256

// Metadata is what is kept with an artifact of who made its commit, by the keys of v1alpha1.
// Strangers write commits: names are one line without control characters, and bounded. It
// is nil when the commit says nothing.
func Metadata(c fluxgit.Commit) map[string]string {
	var out map[string]string
	put := func(key, value string) {
		if value = line(value); value == "" {
			return
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	put(v1alpha1.CommitAuthorKey, c.Author.Name)
	put(v1alpha1.CommitAuthorEmailKey, c.Author.Email)
	if c.Committer.Name != c.Author.Name || c.Committer.Email != c.Author.Email {
		put(v1alpha1.CommitCommitterKey, c.Committer.Name)
		put(v1alpha1.CommitCommitterEmailKey, c.Committer.Email)
	}
	return out
}

// line makes one bounded line of a text, without what steers a terminal or turns the direction
// of what is read.
func line(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxName {
		s = strings.ToValidUTF8(s[:maxName-len("…")], "") + "…"
	}
	return s
}

// Commit is who made the commit that an artifact is of; ok is false when the artifact does not
// say: it is not of a Git repository, or was made by something that does not keep it.
func Commit(a *meta.Artifact) (who audit.Actor, ok bool) {
	if a == nil {
		return who, false
	}
	// Another source controller, or a person, may have written them.
	get := func(key string) string { return line(a.Metadata[key]) }
	who = audit.Actor{
		Kind: audit.Git, Name: get(v1alpha1.CommitAuthorKey), Email: get(v1alpha1.CommitAuthorEmailKey),
		Committer: get(v1alpha1.CommitCommitterKey), CommitterEmail: get(v1alpha1.CommitCommitterEmailKey),
	}
	if who.Name == "" {
		who.Name = who.Email
	}
	return who, who.Name != ""
}

// CommitOf is Commit for the first of some artifacts that is of a revision.
func CommitOf(revision string, artifacts ...*meta.Artifact) (who audit.Actor, ok bool) {
	for _, a := range artifacts {
		if a.HasRevision(revision) {
			if who, ok = Commit(a); ok {
				return who, true
			}
		}
	}
	return audit.Actor{}, false
}
