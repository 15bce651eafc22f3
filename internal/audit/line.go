// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// line is what a segment is made of. One of the first three members is set.
type line struct {
	Begin *begin `json:"begin,omitempty"`
	Entry *Entry `json:"entry,omitempty"`
	End   *end   `json:"end,omitempty"`
	// Prev is the hash of the line before, also across segments; of a ledger's
	// first line it is empty.
	Prev string `json:"prev"`
}

// begin is the first line of a segment.
type begin struct {
	// Ledger is the random id of the ledger.
	Ledger  string    `json:"ledger"`
	Segment uint64    `json:"segment"`
	Time    time.Time `json:"time"`
	// Key is the fingerprint of the key that signs the segment.
	Key string `json:"key"`
	// After is the Seq of the last entry before this segment.
	After uint64 `json:"after"`
	// Unfinished are the intents that had no outcome when the segment began, so
	// that opening a ledger reads its last segment only.
	Unfinished []uint64 `json:"unfinished,omitempty"`
}

// end is the last line of a segment that is closed.
type end struct {
	Segment uint64    `json:"segment"`
	Time    time.Time `json:"time"`
	// Last is the Seq of the last entry, of this segment or before it.
	Last uint64 `json:"last"`
}

// A line on disk is BODY,"hash":"HASH","sig":"SIG"}: BODY is the JSON object of a
// line without its closing brace, HASH the SHA-256 of BODY in hex, SIG the
// signature of lineDomain and HASH. Since prev is part of BODY, the hash covers
// all that was before. Everything is checked on the bytes as they are, so a
// later version may add members that this one does not know.
const (
	beforeHash = `,"hash":"`
	beforeSig  = `","sig":"`
	afterSig   = `"}`
	hashLen    = 2 * sha256.Size
)

// The strict encoding has one form for each signature: no bit of a line can change
// without notice.
var sigEncoding = base64.RawStdEncoding.Strict()

var (
	sigLen  = sigEncoding.EncodedLen(ed25519.SignatureSize)
	tailLen = len(beforeHash) + hashLen + len(beforeSig) + sigLen + len(afterSig)
)

// What is signed begins with what it is, so that the signature of an entry cannot
// serve as that of a checkpoint.
const (
	lineDomain       = "terrace audit line "
	checkpointDomain = "terrace audit checkpoint "
)

// maxLine bounds a line in bytes. An entry has at most some 100 KiB, escaped.
const maxLine = 1 << 20

// seal returns v as bytes with their hash and signature, and the hash.
func seal(v any, domain string, key ed25519.PrivateKey) ([]byte, string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, "", err
	}
	b.Truncate(b.Len() - len("}\n"))
	hash := hashOf(b.Bytes())
	b.WriteString(beforeHash + hash + beforeSig)
	b.WriteString(sigEncoding.EncodeToString(ed25519.Sign(key, []byte(domain+hash))))
	b.WriteString(afterSig)
	return b.Bytes(), hash, nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// sealed is a line as it was read, not believed yet.
type sealed struct {
	body []byte // without the closing brace
	hash string // as the line says
	sig  []byte
}

var errForm = errors.New("it is not a line of a ledger")

// unseal takes a line, without its newline, apart.
func unseal(raw []byte) (sealed, error) {
	n := len(raw) - tailLen
	if n < 1 || raw[0] != '{' {
		return sealed{}, errForm
	}
	tail := raw[n:]
	hash, tail, ok := between(tail, beforeHash, hashLen)
	if !ok {
		return sealed{}, errForm
	}
	text, tail, ok := between(tail, beforeSig, sigLen)
	if !ok || string(tail) != afterSig {
		return sealed{}, errForm
	}
	sig, err := sigEncoding.DecodeString(string(text))
	if err != nil {
		return sealed{}, errForm
	}
	return sealed{body: raw[:n], hash: string(hash), sig: sig}, nil
}

func between(b []byte, prefix string, n int) (text, rest []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(prefix))
	if !ok || len(b) < n {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

// whole tells whether the line's hash is that of its content.
func (s sealed) whole() bool { return hashOf(s.body) == s.hash }

// signed tells whether the holder of the key signed the hash.
func (s sealed) signed(domain string, key ed25519.PublicKey) bool {
	return ed25519.Verify(key, []byte(domain+s.hash), s.sig)
}

// decode reads the content into v.
func (s sealed) decode(v any) error {
	text := make([]byte, 0, len(s.body)+1)
	return json.Unmarshal(append(append(text, s.body...), '}'), v)
}

// line reads the content as a line of a segment.
func (s sealed) line() (line, error) {
	var l line
	if err := s.decode(&l); err != nil {
		return l, err
	}
	n := 0
	for _, set := range []bool{l.Begin != nil, l.Entry != nil, l.End != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return l, errForm
	}
	return l, nil
}

// entry is the entry as readers get it.
func (l line) entry(hash string) Entry {
	e := *l.Entry
	e.Prev, e.Hash = l.Prev, hash
	return e
}

// lineReader reads the lines of a segment.
type lineReader struct {
	in  *bufio.Reader
	buf []byte
	n   int // of the line that was read last
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 64<<10)}
}

// next returns the next line without its newline; it is valid until the next call.
// Ended is false for what a file ends with when that is no newline: a line that was
// written in part. The error is io.EOF at the end. A line that is too long is
// returned cut: nobody can take it for whole.
func (r *lineReader) next() (raw []byte, ended bool, err error) {
	r.n++
	r.buf = r.buf[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		if room := maxLine - len(r.buf); len(part) > room {
			part = part[:max(room, 0)]
		} else if err == nil {
			r.buf = append(r.buf, part[:len(part)-1]...)
			return r.buf, true, nil
		}
		r.buf = append(r.buf, part...)
		switch {
		case err == nil:
			return r.buf, true, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(r.buf) > 0:
			return r.buf, false, nil
		default:
			return nil, false, err
		}
	}
}
