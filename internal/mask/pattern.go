// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"regexp"
	"strings"
)

// pattern describes a secret by its form. Only what the first group matches is
// replaced, so that a reader still sees what kind of thing was there.
type pattern struct {
	hint string // a text that every match contains: most lines need no regexp
	expr *regexp.Regexp
}

var patterns = []pattern{
	{"eyJ", regexp.MustCompile(`\b(eyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+)`)}, // JSON Web Token
	{"AKIA", regexp.MustCompile(`\b(AKIA[A-Z2-7]{16})\b`)},                                        // AWS access key
	{"ASIA", regexp.MustCompile(`\b(ASIA[A-Z2-7]{16})\b`)},                                        // AWS temporary access key
	{"secret", regexp.MustCompile(`(?i)secret_?access_?key["']?\s*[:=]\s*["']?([A-Za-z0-9/+]{40})`)},
	{"SECRET", regexp.MustCompile(`(?i)secret_?access_?key["']?\s*[:=]\s*["']?([A-Za-z0-9/+]{40})`)},
	{"AIza", regexp.MustCompile(`\b(AIza[A-Za-z0-9_-]{35})`)},                      // Google API key
	{"ya29.", regexp.MustCompile(`\b(ya29\.[A-Za-z0-9_.-]{20,})`)},                 // Google OAuth token
	{"gh", regexp.MustCompile(`\b(gh[pousr]_[A-Za-z0-9]{30,})`)},                   // GitHub tokens
	{"github_pat_", regexp.MustCompile(`\b(github_pat_[A-Za-z0-9_]{30,})`)},        // GitHub fine-grained token
	{"glpat-", regexp.MustCompile(`\b(glpat-[A-Za-z0-9_.-]{16,})`)},                // GitLab token
	{"xox", regexp.MustCompile(`\b(xox[abeoprs]-[A-Za-z0-9-]{10,})`)},              // Slack tokens
	{"hvs.", regexp.MustCompile(`\b(hvs\.[A-Za-z0-9_-]{20,})`)},                    // Vault token
	{"AGE-SECRET-KEY-", regexp.MustCompile(`(AGE-SECRET-KEY-(?:PQ-)?1[A-Z0-9]+)`)}, // age identity
	{"terrace_", regexp.MustCompile(`\b(terrace_[a-z]+_[A-Za-z0-9_.-]{30,})`)},     // our own: states
	{"AccountKey=", regexp.MustCompile(`AccountKey=([A-Za-z0-9+/=]{40,})`)},        // Azure storage
	{"://", regexp.MustCompile(`://[^\s/:@"']*:([^\s/@"']+)@`)},                    // password in a URL
	{"uthorization", regexp.MustCompile(`(?i)authorization["']?\s*[:=]\s*["']?(?:\[\s*)?(?:bearer|basic|token)\s+([A-Za-z0-9+/=._~-]{8,})`)},
}

var (
	keyBegin = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`)
	keyEnd   = regexp.MustCompile(`-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`)
)

// keyLines bounds how many lines a private key may have. An RSA key of 16,384
// bits has 200; what never ends must not swallow the rest of a log.
const keyLines = 256

// keyBlock remembers, from line to line, that the text is inside a private key.
type keyBlock struct{ left int }

// maskKeys replaces private keys, each by one replacement: the lines within are left
// out.
func maskKeys(s string, key *keyBlock) string {
	if key.left == 0 && !strings.Contains(s, "PRIVATE KEY") {
		return s
	}
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(key.line(line))
	}
	return b.String()
}

// line masks one line with its newline, if it has one.
func (k *keyBlock) line(line string) string {
	text, newline := strings.CutSuffix(line, "\n")
	var b strings.Builder
	if k.left > 0 {
		end := keyEnd.FindStringIndex(text)
		if end == nil {
			k.left--
			return ""
		}
		k.left = 0
		if text = text[end[1]:]; text == "" {
			return ""
		}
	}
	for {
		begin := keyBegin.FindStringIndex(text)
		if begin == nil {
			b.WriteString(text)
			break
		}
		b.WriteString(text[:begin[0]])
		b.WriteString(Replacement)
		text = text[begin[1]:]
		end := keyEnd.FindStringIndex(text)
		if end == nil {
			k.left = keyLines
			break
		}
		text = text[end[1]:]
	}
	if newline {
		b.WriteByte('\n')
	}
	return b.String()
}

// maskPatterns replaces what else is a secret by its form.
func maskPatterns(s string) string {
	for _, p := range patterns {
		if !strings.Contains(s, p.hint) {
			continue
		}
		var spans []span
		for _, m := range p.expr.FindAllStringSubmatchIndex(s, -1) {
			if s[m[2]:m[3]] != Replacement {
				spans = append(spans, span{m[2], m[3]})
			}
		}
		if len(spans) > 0 {
			s = replace(s, spans)
		}
	}
	return s
}
