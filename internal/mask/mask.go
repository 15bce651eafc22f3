// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package mask removes secret values from text before it leaves a run: log
// lines, error messages, conditions, plans as shown.
//
// What is secret is known in two ways: by value (everything in the Secrets that
// the run was given) and by form (private keys, cloud keys, signed tokens,
// passwords in URLs). The package keeps nothing on disk and never prints what it
// was given. It is a net below the tools' own sensitive marks, not a
// replacement for them: a value that a program transforms in a way not listed
// at New passes.
package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
)

// Replacement stands where a secret was. It is what OpenTofu prints for values
// that it knows to be sensitive, so readers meet one text only.
const Replacement = "(sensitive value)"

const (
	// minimum is the length in bytes from which a value is masked wherever it
	// occurs. Shorter ones are masked as whole tokens only: "eu" inside "queue"
	// tells nothing, and masking it would make every text unreadable.
	minimum = 4
	// minimumLine is the same for one line of a value of several lines: those
	// are mostly documents (kubeconfigs, certificates, JSON) whose short lines
	// are punctuation and common words.
	minimumLine = 8
	// minimumEncoded is the length from which the core of a base64 form is
	// specific enough to be looked for.
	minimumEncoded = 8
	// passes bounds how often a text is searched again after a replacement.
	passes = 4
)

// Masker replaces secret values in text. It is safe for concurrent use, and only ever
// learns. A nil Masker knows no values and still masks by form.
type Masker struct {
	known atomic.Pointer[known]

	mu   sync.Mutex // of who learns
	have builder
}

// known is what a Masker looks for.
type known struct {
	search  *automaton
	longest int // bytes of the longest form that is looked for
}

// New returns a Masker for values. Each value is looked for as it is, trimmed of
// surrounding space, line by line, and as it looks inside JSON and HCL strings,
// in URLs, and in base64 at any alignment; of a value that is a JSON object or
// array every string is looked for as well; so are, from 8 bytes, the password of a URL and
// what a file of settings gives to a name that tells of a secret. Values of fewer than 4 bytes match as
// whole tokens only. Of one byte, booleans, null and numbers of up to three
// digits are never masked: they would hide nothing and blacken everything. So are
// values that the replacement text itself contains. The values are copied.
func New(values ...[]byte) *Masker {
	m := &Masker{have: builder{seen: map[string]bool{}}}
	m.Learn(values...)
	return m
}

// Learn adds values to those that New was given. Whatever is masked from now on is masked
// with them, also by writers that the masker gave out before. It must not be called on a
// nil Masker.
func (m *Masker) Learn(values ...[]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.have.forms)
	for _, v := range values {
		m.have.addValue(string(v))
	}
	if m.known.Load() == nil || len(m.have.forms) > before {
		m.known.Store(&known{search: newAutomaton(m.have.forms), longest: m.have.longest})
	}
}

// form is one spelling of a secret that is looked for.
type form struct {
	text  string
	token bool // only where it stands as a whole token
}

type builder struct {
	forms   []form
	seen    map[string]bool
	longest int
}

func (b *builder) addValue(v string) {
	b.addPlain(v)
	b.addParts(v)
	var document any
	if len(v) > 1 && (v[0] == '{' || v[0] == '[') && json.Unmarshal([]byte(v), &document) == nil {
		b.addLeaves(document)
	}
}

// Parts of a value that programs print without the rest: the password of a URL, and what a
// file of settings (INI, YAML, .netrc, a CLI configuration) gives to a name that tells of a
// secret.
var (
	urlPassword = regexp.MustCompile(`://[^\s/:@"']*:([^\s/@"']+)@`)
	setting     = regexp.MustCompile(`(?i)(?:[a-z0-9_.-]*(?:token|secret|passw|pwd|key|credential|auth)[a-z0-9_.-]*["']?[ \t]*[:=][ \t]*|\b(?:token|secret|password|passwd)[ \t]+)["']?([^\s"',;]+)`)
)

// addParts takes the parts of a value that are secrets by themselves.
func (b *builder) addParts(v string) {
	if strings.Contains(v, "://") {
		for _, m := range urlPassword.FindAllStringSubmatch(v, -1) {
			b.addPart(m[1])
			if plain, err := url.PathUnescape(m[1]); err == nil {
				b.addPart(plain)
			}
		}
	}
	if !strings.ContainsAny(v, "=: ") {
		return
	}
	for _, m := range setting.FindAllStringSubmatch(v, -1) {
		b.addPart(m[1])
	}
}

// addPart takes a part that is long enough not to be a word of every text.
func (b *builder) addPart(v string) {
	if len(v) >= minimumLine {
		b.addPlain(v)
	}
}

// addLeaves takes the strings of a JSON document: programs print the member
// that they complain about, not the document.
func (b *builder) addLeaves(v any) {
	switch v := v.(type) {
	case string:
		b.addPlain(v)
	case []any:
		for _, e := range v {
			b.addLeaves(e)
		}
	case map[string]any:
		for _, e := range v {
			b.addLeaves(e)
		}
	}
}

func (b *builder) addPlain(v string) {
	trimmed := strings.TrimSpace(v)
	if trivial(trimmed) {
		return
	}
	b.addSpellings(v)
	b.addSpellings(trimmed)
	b.addEncoded(v)
	b.addEncoded(trimmed)
	if !strings.ContainsAny(trimmed, "\r\n") {
		return
	}
	for line := range strings.SplitSeq(trimmed, "\n") {
		line = strings.TrimSpace(line)
		frame := strings.HasPrefix(line, "-----") && strings.HasSuffix(line, "-----") // PEM's first and last
		if len(line) >= minimumLine && !trivial(line) && !frame {
			b.addSpellings(line)
		}
	}
}

// addSpellings adds v and the ways in which quoting writes it.
func (b *builder) addSpellings(v string) {
	b.add(v)
	quoted := jsonString(v, true)
	b.add(quoted)
	b.add(jsonString(v, false))
	// HCL escapes like JSON and doubles what would start a template.
	b.add(strings.NewReplacer("${", "$${", "%{", "%%{").Replace(jsonString(v, false)))
	// A JSON document inside a JSON string, as log lines have it.
	b.add(jsonString(quoted, true))
	b.add(url.QueryEscape(v))
	b.add(url.PathEscape(v))
}

// addEncoded adds the base64 of v at the three alignments that it can have inside
// a longer text ("user:password"), without the characters at the edges that its
// neighbours have a part in.
func (b *builder) addEncoded(v string) {
	for pad := range 3 {
		raw := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("\x00", pad) + v))
		start := (pad*8 + 5) / 6
		end := (pad + len(v)) * 8 / 6
		if end-start < minimumEncoded {
			continue
		}
		b.add(raw[start:end])
		b.add(strings.NewReplacer("+", "-", "/", "_").Replace(raw[start:end]))
	}
}

func (b *builder) add(text string) {
	if len(text) < 2 || b.seen[text] || strings.Contains(Replacement, text) {
		return
	}
	b.seen[text] = true
	b.forms = append(b.forms, form{text: text, token: len(text) < minimum})
	b.longest = max(b.longest, len(text))
}

// trivial reports whether v is no secret whoever says so.
func trivial(v string) bool {
	switch strings.ToLower(v) {
	case "true", "false", "yes", "no", "on", "off", "null", "nil", "none":
		return true
	}
	digits, other := 0, 0
	for _, r := range v {
		switch {
		case unicode.IsDigit(r):
			digits++
		case unicode.IsLetter(r):
			return len(v) < 2
		default:
			other++
		}
	}
	// A number of up to three digits with its sign or point, or punctuation.
	return digits < minimum && other <= 1 || digits == 0 && len(v) < minimum
}

func jsonString(v string, html bool) string {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(html)
	if err := e.Encode(v); err != nil {
		return v
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(buf.String(), "\n"), `"`), `"`)
}

// String returns s with every secret replaced.
func (m *Masker) String(s string) string {
	var key keyBlock
	return m.text(s, &key)
}

// Bytes is String for bytes; b is not changed.
func (m *Masker) Bytes(b []byte) []byte { return []byte(m.String(string(b))) }

// text masks s, which continues what key has seen.
func (m *Masker) text(s string, key *keyBlock) string {
	// Keys first: the first line of a known key is also that of an unknown one.
	s = m.values(maskKeys(s, key))
	if masked := maskPatterns(s); masked != s {
		s = m.values(masked)
	}
	return s
}

func (m *Masker) values(s string) string {
	for range passes {
		found := m.find(s)
		if len(found) == 0 {
			return s
		}
		s = replace(s, found)
	}
	if len(m.find(s)) == 0 {
		return s
	}
	// The replacement makes, with what stands around it, secrets again and
	// again. Such a text is not worth telling.
	return Replacement
}

// find returns where s holds values: sorted, apart from each other.
func (m *Masker) find(s string) []span {
	if m == nil {
		return nil
	}
	return m.known.Load().search.find(s)
}

// span is a half-open range of bytes.
type span struct{ start, end int }

func replace(s string, spans []span) string {
	var b strings.Builder
	b.Grow(len(s) + len(spans)*len(Replacement))
	at := 0
	for _, sp := range spans {
		b.WriteString(s[at:sp.start])
		b.WriteString(Replacement)
		at = sp.end
	}
	b.WriteString(s[at:])
	return b.String()
}
