// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// encrypted is the form of an encrypted value.
var encrypted = regexp.MustCompile(`^ENC\[AES256_GCM,data:(.+),iv:(.+),tag:(.+),type:(.+)\]`)

// macOnlyEncrypted begins the MAC of a file whose MAC covers encrypted values only.
// It is the SHA-256 of "sops" and a line feed.
var macOnlyEncrypted = []byte{
	0x8a, 0x3f, 0xd2, 0xad, 0x54, 0xce, 0x66, 0x52, 0x7b, 0x10, 0x34, 0xf3, 0xd1, 0x47, 0xbe, 0x0b,
	0x0b, 0x97, 0x5b, 0x3b, 0xf4, 0x4f, 0x72, 0xc6, 0xfd, 0xad, 0xec, 0x81, 0x76, 0xf2, 0x7d, 0x69,
}

// session decrypts the values of one file, in the order of the file.
type session struct {
	meta *metadata
	gcm  func(nonce int) (cipher.AEAD, error)
	mac  hash.Hash
	// built is set for an object that a build has changed: its metadata can hold values that
	// were never encrypted, and its comments, which a rule may look at, are gone.
	built bool
}

// open makes a session of a file's metadata, which needs a key.
func (d *Decryptor) open(ctx context.Context, raw map[string]any) (*session, error) {
	meta, err := parseMetadata(raw)
	if err != nil {
		return nil, err
	}
	key, err := d.dataKey(ctx, meta)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("the data key has %d bytes, not 32", len(key))
	}
	s := &session{meta: meta, mac: sha512.New()}
	s.gcm = func(nonce int) (cipher.AEAD, error) { return cipher.NewGCMWithNonceSize(block, nonce) }
	if meta.MACOnlyEncrypted {
		s.mac.Write(macOnlyEncrypted)
	}
	return s, nil
}

// leaf returns the value at a path decrypted, or as it is if the file's rule leaves
// it alone, and puts it into the MAC. The value is of a type that a parser makes;
// null is passed over by all of SOPS.
func (s *session) leaf(path []string, comments [][]string, v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	hidden := s.meta.covers(path, comments, false)
	if s.built {
		str, ok := v.(string)
		isEncrypted := ok && encrypted.MatchString(str)
		switch {
		case s.meta.commentRule() || len(path) > 0 && path[0] == "metadata":
			hidden = isEncrypted
		case hidden && (path[0] == "apiVersion" || path[0] == "kind"):
			hidden = isEncrypted
		}
	}
	if hidden {
		str, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s: the value is not encrypted, though the file's rule covers it; encrypt the file again", strings.Join(path, "."))
		}
		var err error
		if v, err = s.decrypt(str, strings.Join(path, ":")+":"); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(path, "."), err)
		}
	}
	if hidden || !s.meta.MACOnlyEncrypted {
		b, err := macBytes(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(path, "."), err)
		}
		s.mac.Write(b)
	}
	return v, nil
}

// comment returns a comment decrypted, if it is encrypted. Comments are not in the
// MAC, and old versions of SOPS left them plain, so nothing is an error.
func (s *session) comment(path []string, comments [][]string, text string) string {
	if !s.meta.covers(path, comments, true) {
		return text
	}
	v, err := s.decrypt(text, strings.Join(path, ":")+":")
	if err != nil {
		return text
	}
	if plain, ok := v.(string); ok {
		return plain
	}
	return text
}

// listComment returns a comment that is an element of a list. SOPS encrypts a comment
// above an element into one, and leaves it out of the MAC.
func (s *session) listComment(path []string, comments [][]string, v any) (string, bool) {
	in, ok := v.(string)
	if !ok || !s.meta.covers(path, comments, false) && !s.built {
		return "", false
	}
	if m := encrypted.FindStringSubmatch(in); m == nil || m[4] != "comment" {
		return "", false
	}
	plain, err := s.decrypt(in, strings.Join(path, ":")+":")
	if err != nil {
		return "", false // which then is the error of the element
	}
	return fmt.Sprint(plain), true
}

// decrypt returns an encrypted value, which is bound to its place by the additional
// data. The empty string is never encrypted.
func (s *session) decrypt(in, additional string) (any, error) {
	if in == "" {
		return "", nil
	}
	m := encrypted.FindStringSubmatch(in)
	if m == nil {
		return nil, fmt.Errorf("the value is not encrypted, though the file's rule covers it; encrypt the file again")
	}
	var parts [3][]byte
	for i := range parts {
		var err error
		if parts[i], err = base64.StdEncoding.DecodeString(m[i+1]); err != nil {
			return nil, fmt.Errorf("the encrypted value is malformed: %w", ErrIntegrity)
		}
	}
	data, nonce, tag := parts[0], parts[1], parts[2]
	gcm, err := s.gcm(len(nonce))
	if err != nil || len(tag) != gcm.Overhead() {
		return nil, fmt.Errorf("the encrypted value is malformed: %w", ErrIntegrity)
	}
	plain, err := gcm.Open(nil, nonce, slices.Concat(data, tag), []byte(additional))
	if err != nil {
		return nil, fmt.Errorf("the value, or the name of one of the keys that lead to it, was %w; encrypt the file again", ErrIntegrity)
	}
	var v any
	switch text := string(plain); m[4] {
	case "str", "bytes", "comment":
		v = text
	case "int":
		v, err = strconv.Atoi(text)
	case "float":
		v, err = strconv.ParseFloat(text, 64)
	case "bool":
		v, err = strconv.ParseBool(text)
	case "time":
		var t time.Time
		err = t.UnmarshalText(plain)
		v = t
	default:
		err = strconv.ErrSyntax
	}
	if err != nil {
		// The cause quotes the value.
		return nil, fmt.Errorf("the decrypted value does not have the type that the file says")
	}
	return v, nil
}

// macBytes returns a value as the MAC sees it. The forms are those of the first
// SOPS, which was written in Python.
func macBytes(v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return []byte(v), nil
	case int:
		return strconv.AppendInt(nil, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(nil, v, 10), nil
	case float64:
		return strconv.AppendFloat(nil, v, 'f', -1, 64), nil
	case bool:
		if v {
			return []byte("True"), nil
		}
		return []byte("False"), nil
	case time.Time:
		return v.MarshalText()
	case json.Number:
		n, err := number(v)
		if err != nil {
			return nil, err
		}
		return macBytes(n)
	}
	return nil, fmt.Errorf("a value of a type that SOPS does not know")
}

// number returns a number of JSON as SOPS does: whole ones as int, others as float64.
func number(n json.Number) (any, error) {
	if i, err := n.Int64(); err == nil {
		return int(i), nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fmt.Errorf("a number that is too large")
	}
	return f, nil
}

// verify compares the MAC of what was decrypted with the file's.
func (s *session) verify(skip bool) error {
	if skip {
		return nil
	}
	v, err := s.decrypt(s.meta.MAC, s.meta.modified.Format(time.RFC3339))
	stored, _ := v.(string)
	if err != nil || stored == "" {
		return fmt.Errorf("the file's MAC cannot be read: the file was %w; encrypt it again", ErrIntegrity)
	}
	if subtle.ConstantTimeCompare([]byte(stored), []byte(fmt.Sprintf("%X", s.mac.Sum(nil)))) != 1 {
		return fmt.Errorf("the file's MAC does not fit: an unencrypted value or the order was %w, perhaps by hand; "+
			"look at the change, then encrypt the file again (sops decrypt --ignore-mac, sops encrypt)", ErrIntegrity)
	}
	return nil
}

// goValue decrypts a value as encoding/json makes it, in the order of the keys.
func (s *session) goValue(path []string, v any) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			e, err := s.goValue(append(slices.Clip(path), k), v[k])
			if err != nil {
				return nil, err
			}
			out[k] = e
		}
		return out, nil
	case []any:
		out := make([]any, 0, len(v))
		for i := range v {
			if _, ok := s.listComment(path, nil, v[i]); ok {
				continue
			}
			e, err := s.goValue(path, v[i])
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	}
	plain, err := s.leaf(path, nil, v)
	switch plain := plain.(type) {
	case int:
		return int64(plain), err // as objects have it
	case time.Time:
		return plain.Format(time.RFC3339Nano), err
	}
	return plain, err
}
