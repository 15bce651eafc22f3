// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package sops decrypts what was encrypted with SOPS: files of a tree before they
// are built, and Kubernetes objects after.
//
// The keys come from one Kubernetes Secret, with the names that Flux gives them
// (see NewKeys). age and PGP are computed in this process; Vault, AWS KMS, GCP KMS
// and Azure Key Vault are asked over HTTPS with the credentials of the Secret. No
// key is written to disk, no other program is run, and nothing of the process's own
// environment is used unless WithEnvironment says so. WithIdentity names an account to
// ask the clouds as.
//
// The package reads the file format itself. The SOPS library is not used: each of
// its packages brings the whole of the tool with it, with its keyrings in the home
// directory, its commands taken from the environment and its audit database.
// The tests hold this implementation against that library.
//
// No error holds a decrypted value, a key or a part of one.
package sops

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/aws/aws-sdk-go-v2/aws"
	"golang.org/x/oauth2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	// ErrNoKey tells that nothing in the Secret opens what is encrypted.
	ErrNoKey = errors.New("no key fits")
	// ErrIntegrity tells that a value or the file was changed after it was encrypted.
	ErrIntegrity = errors.New("changed after it was encrypted")
)

// MaxSize is the largest encrypted file or value that is decrypted, in bytes. It is Flux's.
const MaxSize = 5 << 20

// disabledAnnotation keeps an object as it is where its value is "disabled".
const disabledAnnotation = "kustomize.toolkit.fluxcd.io/decrypt"

// requestTimeout bounds one request to a key service.
const requestTimeout = 30 * time.Second

// Decryptor decrypts with one set of keys. It may be used by several goroutines.
type Decryptor struct {
	keys        *Keys
	http        *http.Client
	environment bool
	identity    *Identity
	skipMAC     bool
	setting     string

	// Credentials that fetch tokens are made once, so that a token serves many files.
	mu    sync.Mutex
	gcp   oauth2.TokenSource
	azure azcore.TokenCredential
}

// Option changes how a Decryptor works.
type Option func(*Decryptor)

// WithHTTPClient asks key services through another client, of which only the
// transport is used.
func WithHTTPClient(c *http.Client) Option {
	return func(d *Decryptor) { d.http.Transport = c.Transport }
}

// WithEnvironment lets what the Secret has no credentials for be taken from the
// process: VAULT_TOKEN, and the default credentials of AWS, GCP and Azure. Whoever
// can write a file then decrypts with the rights of the process.
func WithEnvironment() Option {
	return func(d *Decryptor) { d.environment = true }
}

// Identity is an account that the key services of clouds let in, by tokens that are
// fetched when they are needed.
type Identity struct {
	// Name says whose it is, for messages.
	Name string
	// AWS returns the credentials for a region.
	AWS func(region string) aws.CredentialsProvider
	// GCP returns tokens for the scope of Cloud KMS.
	GCP oauth2.TokenSource
	// Azure returns tokens for Key Vault.
	Azure azcore.TokenCredential
}

// WithIdentity asks the key services of clouds as this account, where the Secret has
// no credentials for one. nil is none. Vault is not asked by it.
func WithIdentity(id *Identity) Option {
	return func(d *Decryptor) { d.identity = id }
}

// WithSetting says in messages where a person names the Secret, if it is not
// spec.decryption.secretRef.
func WithSetting(setting string) Option {
	return func(d *Decryptor) { d.setting = setting }
}

// WithoutMAC accepts files whose unencrypted values were changed after they were
// encrypted. Flux does so. Each encrypted value still is authenticated by itself.
func WithoutMAC() Option {
	return func(d *Decryptor) { d.skipMAC = true }
}

// New returns a Decryptor with these keys; nil for none.
func New(keys *Keys, opts ...Option) *Decryptor {
	if keys == nil {
		keys = &Keys{}
	}
	d := &Decryptor{keys: keys, setting: "spec.decryption.secretRef", http: &http.Client{Timeout: requestTimeout, CheckRedirect: checkRedirect}}
	for _, o := range opts {
		o(d)
	}
	return d
}

// checkRedirect follows one redirect, as a standby of Vault sends, and never from
// https to something else: the request carries a token.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 1 {
		return errors.New("more than one redirect")
	}
	if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("a redirect away from https")
	}
	return nil
}

// IsEncryptedFile tells whether the content is a SOPS file of any of the formats
// YAML, JSON, dotenv, INI and binary. The name does not matter to the answer.
func IsEncryptedFile(_ string, content []byte) bool { return detect(content) != formatNone }

// IsEncrypted tells whether an object holds values that SOPS encrypted: it has a
// field sops, or it is a Secret with an encrypted value in data or stringData. What
// a Secret holds in base64 is not looked into: it may be meant for another program.
func IsEncrypted(o *unstructured.Unstructured) bool {
	if o == nil {
		return false
	}
	if _, ok := o.Object["sops"].(map[string]any); ok {
		return true
	}
	if !isSecret(o) {
		return false
	}
	if _, ok := o.Object["sops"]; ok {
		return true
	}
	for _, field := range []string{"data", "stringData"} {
		m, _ := o.Object[field].(map[string]any)
		for _, v := range m {
			if s, ok := v.(string); ok && encrypted.MatchString(s) {
				return true
			}
		}
	}
	return false
}

func isSecret(o *unstructured.Unstructured) bool {
	return o.GetKind() == "Secret" && o.GetAPIVersion() == "v1"
}

func disabled(annotations map[string]string) bool {
	return strings.EqualFold(annotations[disabledAnnotation], "disabled")
}

// File returns the content decrypted, in the format that it has, or as it is if it
// is not a SOPS file. In YAML of several documents, those that were encrypted
// together are decrypted together, and the others stay as they are; so do objects
// that an annotation exempts. The MAC is verified. The name is for messages, and
// tells a JSON file from a binary one: name.json stays JSON.
//
// Errors wrap ErrNoKey, ErrIntegrity, or the cause in ctx.
func (d *Decryptor) File(ctx context.Context, name string, content []byte) ([]byte, error) {
	f := detect(content)
	if f == formatNone {
		return content, nil
	}
	out, err := d.decode(ctx, f, name, content)
	if err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", name, err)
	}
	return out, nil
}

// guard makes an error of a panic: parsers of messages that strangers wrote have been
// seen to panic. The value of the panic is not shown, it can hold what was decrypted.
func guard(err *error) {
	if recover() != nil {
		*err = errors.New("what is encrypted is malformed")
	}
}

// decode decrypts a SOPS file of a format.
func (d *Decryptor) decode(ctx context.Context, f format, name string, content []byte) (_ []byte, err error) {
	if len(content) > MaxSize {
		return nil, fmt.Errorf("it has %d bytes; an encrypted file can have %d", len(content), MaxSize)
	}
	defer guard(&err)
	switch f {
	case formatYAML:
		return d.decodeYAML(ctx, content)
	case formatDotenv:
		return d.decodeDotenv(ctx, content)
	case formatINI:
		return d.decodeINI(ctx, content)
	}
	return d.decodeJSON(ctx, name, content)
}

// Object decrypts an object in place and tells whether it did: the values of an
// object with a field sops, which goes; and SOPS files in the base64 of a Secret's
// data, or in its stringData. An object with the annotation
// kustomize.toolkit.fluxcd.io/decrypt: disabled stays as it is.
//
// The MAC of a whole object cannot be verified: it covers the order of the file,
// which a build does not keep, and values that a build changes. Each value is still
// authenticated together with its path. File verifies it, before the build.
//
// On an error the object may be decrypted in part. Errors are as those of File.
func (d *Decryptor) Object(ctx context.Context, o *unstructured.Unstructured) (bool, error) {
	if o == nil || disabled(o.GetAnnotations()) {
		return false, nil
	}
	did := false
	if meta, ok := o.Object["sops"].(map[string]any); ok {
		if err := d.object(ctx, o, meta); err != nil {
			return false, fmt.Errorf("decrypt %s: %w", objectName(o), err)
		}
		did = true
	}
	if !isSecret(o) {
		return did, nil
	}
	for _, field := range []string{"data", "stringData"} {
		m, _ := o.Object[field].(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(m)) {
			s, ok := m[k].(string)
			if !ok {
				continue
			}
			plain, ok, err := d.value(ctx, k, s, field == "data")
			if err != nil {
				return did, fmt.Errorf("decrypt %s: %s.%s: %w", objectName(o), field, k, err)
			}
			if ok {
				m[k], did = plain, true
			}
		}
	}
	return did, nil
}

// value decrypts a SOPS file that is the value of a Secret's key.
func (d *Decryptor) value(ctx context.Context, name, s string, encoded bool) (string, bool, error) {
	content := []byte(s)
	if encoded {
		var err error
		if content, err = base64.StdEncoding.DecodeString(s); err != nil {
			// The API server says so better.
			return "", false, nil
		}
	}
	f := detect(content)
	if f == formatNone {
		return "", false, nil
	}
	out, err := d.decode(ctx, f, name, content)
	if err != nil {
		return "", false, err
	}
	if encoded {
		return base64.StdEncoding.EncodeToString(out), true, nil
	}
	return string(out), true, nil
}

// object decrypts the values of an object with SOPS metadata.
func (d *Decryptor) object(ctx context.Context, o *unstructured.Unstructured, meta map[string]any) (err error) {
	defer guard(&err)
	s, err := d.open(ctx, meta)
	if err != nil {
		return err
	}
	s.built = true
	out := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(o.Object)) {
		if k == "sops" {
			continue
		}
		v, err := s.goValue([]string{k}, o.Object[k])
		if err != nil {
			return err
		}
		out[k] = v
	}
	o.Object = out
	return nil
}

func objectName(o *unstructured.Unstructured) string {
	name := o.GetKind() + "/" + o.GetName()
	if ns := o.GetNamespace(); ns != "" {
		name = o.GetKind() + "/" + ns + "/" + o.GetName()
	}
	return name
}
