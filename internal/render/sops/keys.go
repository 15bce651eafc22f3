// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"sigs.k8s.io/yaml"
)

// The names of a Secret's keys, and how some of them end. They are Flux's.
const (
	suffixAge  = ".agekey"
	suffixPGP  = ".asc"
	nameVault  = "sops.vault-token"
	nameAWS    = "sops.aws-kms"
	nameGCP    = "sops.gcp-kms"
	nameAzure  = "sops.azure-kv"
	wantedName = "names end in .agekey (age) or .asc (PGP), or are sops.vault-token, sops.aws-kms, sops.gcp-kms or sops.azure-kv"
)

// Keys are the keys of one Secret, parsed. They are not changed after they are made.
type Keys struct {
	// secret is "namespace/name", empty if there is no Secret.
	secret string
	// global names the Secret of the global age identities, if there are any.
	global string
	// has says what each of the names is, for messages: public parts only.
	has map[string]string

	age        []age.Identity
	pgp        openpgp.EntityList
	vaultToken string
	aws        *awsKeys
	gcp        []byte
	azure      *azureKeys
}

type awsKeys struct {
	ID     string `json:"aws_access_key_id"`
	Secret string `json:"aws_secret_access_key"`
	Token  string `json:"aws_session_token"`
}

// azureKeys are the fields that the two forms of a service principal have, that of
// the Azure SDK and that of the command az.
type azureKeys struct {
	TenantID     string `json:"tenantId"`
	ClientID     string `json:"clientId"`
	ClientSecret string `json:"clientSecret"`
	Certificate  string `json:"clientCertificate"`
	Passphrase   string `json:"clientCertificatePassword"`
	SendChain    bool   `json:"clientCertificateSendChain"`
	Authority    string `json:"authorityHost"`
	AppID        string `json:"appId"`
	Tenant       string `json:"tenant"`
	Password     string `json:"password"`
}

// NewKeys parses the data of a Secret: age identities (X25519, post-quantum, SSH
// keys) under names that end in .agekey, armored PGP keys under names that end in
// .asc, and under fixed names a token of Vault (sops.vault-token) and the
// credentials of AWS KMS (sops.aws-kms), GCP KMS (sops.gcp-kms) and Azure Key Vault
// (sops.azure-kv). Other names are passed over; messages tell of them when a key is
// missed. secret is "namespace/name", for messages.
//
// An error names the Secret, the name and the line, and holds nothing of the value.
func NewKeys(secret string, data map[string][]byte) (*Keys, error) {
	k := &Keys{secret: secret, has: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(data)) {
		what, err := k.add(name, data[name])
		if err != nil {
			return nil, fmt.Errorf("read the keys of Secret %s: %s: %w", secret, name, err)
		}
		k.has[name] = what
	}
	return k, nil
}

// WithGlobalAge returns these keys with the age identities of one more Secret, that
// of the flag --sops-age-secret. Other keys in it are passed over: credentials that
// every namespace could use would defeat those of its own. It can be called on nil.
func (k *Keys) WithGlobalAge(secret string, data map[string][]byte) (*Keys, error) {
	out := &Keys{}
	if k != nil {
		*out = *k
	}
	ages := map[string][]byte{}
	for name, v := range data {
		if strings.HasSuffix(name, suffixAge) {
			ages[name] = v
		}
	}
	global, err := NewKeys(secret, ages)
	if err != nil {
		return nil, err
	}
	out.age = slices.Concat(out.age, global.age)
	out.global = secret
	return out, nil
}

// add takes one value and returns what it is.
func (k *Keys) add(name string, value []byte) (string, error) {
	switch {
	case strings.HasSuffix(name, suffixAge):
		ids, what, err := parseAge(value)
		k.age = append(k.age, ids...)
		return what, err
	case strings.HasSuffix(name, suffixPGP):
		list, what, err := parsePGP(value)
		k.pgp = append(k.pgp, list...)
		return what, err
	case name == nameVault:
		k.vaultToken = strings.TrimSpace(string(value))
		if k.vaultToken == "" {
			return "", errors.New("the token is empty")
		}
		return "a token of Vault", nil
	case name == nameAWS:
		c := &awsKeys{}
		if err := yaml.Unmarshal(value, c); err != nil || c.ID == "" || c.Secret == "" {
			return "", errors.New("it is not YAML with aws_access_key_id and aws_secret_access_key")
		}
		k.aws = c
		return "credentials of AWS", nil
	case name == nameGCP:
		k.gcp = bytes.TrimSpace(value)
		return "credentials of GCP", checkGCP(k.gcp)
	case name == nameAzure:
		c := &azureKeys{}
		if err := yaml.Unmarshal(decodeUTF16(value), c); err != nil {
			return "", errors.New("it is not JSON or YAML")
		}
		k.azure = c
		return "credentials of Azure", c.check()
	case bytes.Contains(value, []byte("AGE-SECRET-KEY-")):
		return "passed over: it is an age identity, so its name must end in " + suffixAge, nil
	case bytes.Contains(value, []byte("BEGIN PGP PRIVATE KEY")):
		return "passed over: it is a PGP key, so its name must end in " + suffixPGP, nil
	}
	return "passed over: " + wantedName, nil
}

// parseAge reads age identities, one a line, or one SSH key.
func parseAge(value []byte) ([]age.Identity, string, error) {
	if bytes.Contains(value, []byte("PRIVATE KEY-----")) {
		id, err := agessh.ParseIdentity(value)
		if err != nil {
			return nil, "", errors.New("it is not an SSH key of type ed25519 or rsa without a passphrase")
		}
		return []age.Identity{id}, "an SSH key", nil
	}
	var ids []age.Identity
	var recipients []string
	lines := bufio.NewScanner(bytes.NewReader(value))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var id age.Identity
		var err error
		switch {
		case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1"):
			var h *age.HybridIdentity
			if h, err = age.ParseHybridIdentity(line); err == nil {
				id, recipients = h, append(recipients, short(h.Recipient().String()))
			}
		case strings.HasPrefix(line, "AGE-SECRET-KEY-1"):
			var x *age.X25519Identity
			if x, err = age.ParseX25519Identity(line); err == nil {
				id, recipients = x, append(recipients, x.Recipient().String())
			}
		case strings.HasPrefix(line, "AGE-PLUGIN-"):
			return nil, "", fmt.Errorf("line %d: it needs a plugin of age, and no other program is run here", n)
		case strings.HasPrefix(line, "age1"):
			return nil, "", fmt.Errorf("line %d: it is a recipient, which encrypts; the identity that decrypts begins with AGE-SECRET-KEY-", n)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			// The cause can quote the line.
			return nil, "", fmt.Errorf("line %d: it is not an age identity (AGE-SECRET-KEY-1…)", n)
		}
		ids = append(ids, id)
	}
	if lines.Err() != nil || len(ids) == 0 {
		return nil, "", errors.New("it holds no age identity (AGE-SECRET-KEY-1…)")
	}
	return ids, strings.Join(recipients, ", "), nil
}

// parsePGP reads armored keys, one block after the other.
func parsePGP(value []byte) (openpgp.EntityList, string, error) {
	var out openpgp.EntityList
	var names []string
	r := bufio.NewReader(bytes.NewReader(value))
	for {
		block, err := armor.Decode(r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", errors.New("it is not an armored PGP key")
		}
		if block.Type != openpgp.PrivateKeyType {
			return nil, "", fmt.Errorf("it is a %s, not a private key; export it with gpg --export-secret-keys --armor", block.Type)
		}
		list, err := openpgp.ReadKeyRing(block.Body)
		if err != nil {
			return nil, "", errors.New("it is not a PGP key that can be read")
		}
		// What is left of the block belongs to it: the next one begins after its end.
		if _, err := io.Copy(io.Discard, block.Body); err != nil {
			return nil, "", errors.New("it is not an armored PGP key")
		}
		for _, e := range list {
			if !canDecrypt(e) {
				return nil, "", fmt.Errorf("the private parts of %s are missing or have a passphrase; export it without one", fingerprint(e))
			}
			names = append(names, fingerprint(e))
		}
		out = append(out, list...)
	}
	if len(out) == 0 {
		return nil, "", errors.New("it holds no PGP key")
	}
	return out, "PGP " + strings.Join(names, ", "), nil
}

// canDecrypt tells that a key has a private part that is there and open. That of
// the primary key can be missing: it signs.
func canDecrypt(e *openpgp.Entity) bool {
	usable := func(missing, locked bool) bool { return !missing && !locked }
	if p := e.PrivateKey; p != nil && usable(p.Dummy(), p.Encrypted) {
		return true
	}
	for _, s := range e.Subkeys {
		if p := s.PrivateKey; p != nil && usable(p.Dummy(), p.Encrypted) {
			return true
		}
	}
	return false
}

func fingerprint(e *openpgp.Entity) string { return fmt.Sprintf("%X", e.PrimaryKey.Fingerprint) }

// decodeUTF16 returns text as UTF-8: az on Windows writes files in UTF-16.
func decodeUTF16(b []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(b, []byte{0xef, 0xbb, 0xbf}):
		return b[3:]
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return b
	}
	units := make([]uint16, 0, len(b)/2)
	for b = b[2:]; len(b) > 1; b = b[2:] {
		units = append(units, order.Uint16(b))
	}
	return []byte(string(utf16.Decode(units)))
}

// Remote tells that there are credentials of a service that is asked for keys. It can be
// called on nil.
func (k *Keys) Remote() bool {
	return k != nil && (k.vaultToken != "" || k.aws != nil || k.gcp != nil || k.azure != nil)
}

// describe says what keys there are; setting is where a person names a Secret.
func (k *Keys) describe(setting string) string {
	var parts []string
	switch {
	case k.secret == "" && k.global == "":
		return "no Secret with keys is given; set " + setting
	case k.secret != "" && len(k.has) == 0:
		parts = append(parts, fmt.Sprintf("Secret %s is empty; %s", k.secret, wantedName))
	case k.secret != "":
		var names []string
		for _, n := range slices.Sorted(maps.Keys(k.has)) {
			names = append(names, fmt.Sprintf("%s (%s)", n, k.has[n]))
		}
		parts = append(parts, fmt.Sprintf("Secret %s has %s", k.secret, strings.Join(names, "; ")))
	}
	if k.global != "" {
		parts = append(parts, "the age identities of Secret "+k.global+" do not fit either")
	}
	return strings.Join(parts, "; ") + "; add the key of one of these, or encrypt the file for a key that is there"
}

// short returns a name that fits a message: recipients of age's post-quantum kind
// have two thousand characters.
func short(s string) string {
	if len(s) <= 100 {
		return s
	}
	return s[:60] + "…"
}
