// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxMasterKeys bounds how many keys a file can be encrypted for: each is tried.
const maxMasterKeys = 200

// metadata is the part of a SOPS file that says how it was encrypted, and for whom.
type metadata struct {
	// MAC is an encrypted value, bound to the time of the last change.
	MAC              string
	MACOnlyEncrypted bool
	modified         time.Time
	// groups are sets of keys. Any key of a set opens its share; threshold shares make the
	// data key. Of one set, the share is the data key.
	groups    [][]masterKey
	threshold int
	rule      rule
	ruleText  string
	pattern   *regexp.Regexp
}

// rule says which values of a file are encrypted.
type rule int

const (
	unencryptedSuffix rule = iota
	encryptedSuffix
	unencryptedRegex
	encryptedRegex
	unencryptedCommentRegex
	encryptedCommentRegex
)

// masterKey is one key that a share was encrypted for.
type masterKey struct {
	kind string
	// id names the key: a recipient, a fingerprint, an address.
	id string
	// enc is the encrypted share in the form of its kind.
	enc string
	raw rawKey
}

// rawKey has the fields of all kinds of keys.
type rawKey struct {
	Enc       string             `json:"enc"`
	Recipient string             `json:"recipient"`
	FP        string             `json:"fp"`
	Arn       string             `json:"arn"`
	Role      string             `json:"role"`
	Context   map[string]*string `json:"context"`
	Resource  string             `json:"resource_id"`
	Address   string             `json:"vault_address"`
	Engine    string             `json:"engine_path"`
	Key       string             `json:"key_name"`
	VaultURL  string             `json:"vault_url"`
	Name      string             `json:"name"`
	Version   string             `json:"version"`
	KeyID     string             `json:"key_id"`
}

type rawGroup struct {
	Age    []rawKey `json:"age"`
	PGP    []rawKey `json:"pgp"`
	Vault  []rawKey `json:"hc_vault"`
	AWS    []rawKey `json:"kms"`
	GCP    []rawKey `json:"gcp_kms"`
	Azure  []rawKey `json:"azure_kv"`
	Huawei []rawKey `json:"hckms"`
}

// rawMetadata is what a file says. Formats without types hold everything as text,
// so numbers and booleans are read from either.
type rawMetadata struct {
	rawGroup
	KeyGroups               []rawGroup `json:"key_groups"`
	ShamirThreshold         any        `json:"shamir_threshold"`
	LastModified            string     `json:"lastmodified"`
	MAC                     string     `json:"mac"`
	MACOnlyEncrypted        any        `json:"mac_only_encrypted"`
	UnencryptedSuffix       string     `json:"unencrypted_suffix"`
	EncryptedSuffix         string     `json:"encrypted_suffix"`
	UnencryptedRegex        string     `json:"unencrypted_regex"`
	EncryptedRegex          string     `json:"encrypted_regex"`
	UnencryptedCommentRegex string     `json:"unencrypted_comment_regex"`
	EncryptedCommentRegex   string     `json:"encrypted_comment_regex"`
}

// The kinds of master keys, in the order in which they are tried: what this process
// computes by itself comes before what others are asked for.
const (
	kindAge    = "age"
	kindPGP    = "PGP"
	kindVault  = "Vault"
	kindAWS    = "AWS KMS"
	kindGCP    = "GCP KMS"
	kindAzure  = "Azure Key Vault"
	kindHuawei = "Huawei Cloud KMS"
)

func (g *rawGroup) keys() []masterKey {
	var out []masterKey
	add := func(kind string, keys []rawKey, id func(rawKey) string) {
		for _, k := range keys {
			out = append(out, masterKey{kind: kind, id: id(k), enc: k.Enc, raw: k})
		}
	}
	add(kindAge, g.Age, func(k rawKey) string { return k.Recipient })
	add(kindPGP, g.PGP, func(k rawKey) string { return k.FP })
	add(kindVault, g.Vault, func(k rawKey) string { return k.Address + "/v1/" + k.Engine + "/keys/" + k.Key })
	add(kindAWS, g.AWS, func(k rawKey) string { return k.Arn })
	add(kindGCP, g.GCP, func(k rawKey) string { return k.Resource })
	add(kindAzure, g.Azure, func(k rawKey) string { return k.VaultURL + "/keys/" + k.Name })
	add(kindHuawei, g.Huawei, func(k rawKey) string { return k.KeyID })
	return out
}

var errMetadata = errors.New("the metadata under sops is malformed")

func parseMetadata(in map[string]any) (*metadata, error) {
	data, err := json.Marshal(in)
	if err != nil {
		return nil, errMetadata
	}
	var raw rawMetadata
	if err := json.Unmarshal(data, &raw); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			return nil, fmt.Errorf("%w: %s is not of its type", errMetadata, t.Field)
		}
		return nil, errMetadata
	}
	m := &metadata{MAC: raw.MAC}
	if m.modified, err = time.Parse(time.RFC3339, raw.LastModified); err != nil {
		return nil, fmt.Errorf("%w: lastmodified is not a time", errMetadata)
	}
	if m.MACOnlyEncrypted, err = strconv.ParseBool(scalar(raw.MACOnlyEncrypted, "false")); err != nil {
		return nil, fmt.Errorf("%w: mac_only_encrypted is not a boolean", errMetadata)
	}
	if m.threshold, err = strconv.Atoi(scalar(raw.ShamirThreshold, "0")); err != nil || m.threshold < 0 {
		return nil, fmt.Errorf("%w: shamir_threshold is not a number", errMetadata)
	}
	if keys := raw.rawGroup.keys(); len(keys) > 0 {
		m.groups = [][]masterKey{keys}
	} else {
		for i := range raw.KeyGroups {
			m.groups = append(m.groups, raw.KeyGroups[i].keys())
		}
	}
	n := 0
	for _, g := range m.groups {
		n += len(g)
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: it names no key", errMetadata)
	}
	if n > maxMasterKeys {
		return nil, fmt.Errorf("the file is encrypted for %d keys; at most %d are tried", n, maxMasterKeys)
	}
	return m, m.setRule(&raw)
}

func scalar(v any, missing string) string {
	switch v := v.(type) {
	case nil:
		return missing
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

func (m *metadata) setRule(raw *rawMetadata) error {
	m.rule, m.ruleText = unencryptedSuffix, "_unencrypted"
	found := 0
	for r, text := range []string{
		raw.UnencryptedSuffix, raw.EncryptedSuffix, raw.UnencryptedRegex,
		raw.EncryptedRegex, raw.UnencryptedCommentRegex, raw.EncryptedCommentRegex,
	} {
		if text != "" {
			m.rule, m.ruleText = rule(r), text
			found++
		}
	}
	if found > 1 {
		return fmt.Errorf("%w: it has %d rules of what is encrypted, where one is possible", errMetadata, found)
	}
	if m.rule < unencryptedRegex {
		return nil
	}
	var err error
	if m.pattern, err = regexp.Compile(m.ruleText); err != nil {
		return fmt.Errorf("%w: its rule is not a regular expression", errMetadata)
	}
	return nil
}

// commentRule tells that comments decide what is encrypted.
func (m *metadata) commentRule() bool { return m.rule >= unencryptedCommentRegex }

// covers tells whether the value at a path is encrypted. The comments are those
// above the value and above each of the objects around it, from the outermost on;
// of a comment, the last one is itself.
func (m *metadata) covers(path []string, comments [][]string, isComment bool) bool {
	anyStep := func(match func(string) bool) bool {
		for _, p := range path {
			if match(p) {
				return true
			}
		}
		return false
	}
	suffix := func(p string) bool { return strings.HasSuffix(p, m.ruleText) }
	switch m.rule {
	case encryptedSuffix:
		return anyStep(suffix)
	case unencryptedRegex:
		return !anyStep(m.pattern.MatchString)
	case encryptedRegex:
		return anyStep(m.pattern.MatchString)
	case unencryptedCommentRegex, encryptedCommentRegex:
		found := false
		for i, level := range comments {
			for j, c := range level {
				// The comment that asks for encryption stays readable itself.
				self := isComment && i == len(comments)-1 && j == len(level)-1
				if m.rule == encryptedCommentRegex && self {
					continue
				}
				found = found || m.pattern.MatchString(c)
			}
		}
		return found == (m.rule == encryptedCommentRegex)
	}
	return !anyStep(suffix)
}

// The separators with which formats without nesting write a path.
const (
	mapSeparator  = "__map_"
	listSeparator = "__list_"
)

// unflatten makes a tree of flattened metadata: age__list_0__map_enc.
func unflatten(flat map[string]string) (map[string]any, error) {
	root := map[string]any{}
	for key, value := range flat {
		if err := place(root, strings.ReplaceAll(key, listSeparator, mapSeparator+listSeparator), value); err != nil {
			return nil, err
		}
	}
	out, _ := lists(root).(map[string]any)
	if out == nil {
		return nil, errMetadata
	}
	return out, nil
}

// place puts a value at a path. Indices are keys with a prefix until lists makes
// lists of them.
func place(root map[string]any, path, value string) error {
	steps := strings.Split(path, mapSeparator)
	for _, s := range steps[:len(steps)-1] {
		next, ok := root[s].(map[string]any)
		if !ok {
			if _, taken := root[s]; taken {
				return errMetadata
			}
			next = map[string]any{}
			root[s] = next
		}
		root = next
	}
	last := steps[len(steps)-1]
	if _, taken := root[last]; taken {
		return errMetadata
	}
	root[last] = value
	return nil
}

// lists turns maps of indices into lists; nil if one is broken.
func lists(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	list := make([]any, len(m))
	out := make(map[string]any, len(m))
	indices := 0
	for k, e := range m {
		e = lists(e)
		if e == nil {
			return nil
		}
		if n, ok := strings.CutPrefix(k, listSeparator); ok {
			i, err := strconv.Atoi(n)
			if err != nil || i < 0 || i >= len(list) || list[i] != nil {
				return nil
			}
			list[i] = e
			indices++
			continue
		}
		out[k] = e
	}
	switch {
	case indices == 0:
		return out
	case indices == len(m):
		return list
	}
	return nil
}
