// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"gocloud.dev/secrets"
)

// Unwrapped stands, as the first of Options.KMSKeys, for a key file in the clear.
const Unwrapped = "none"

const (
	// wrapType is the type of the stanza by which a KMS key opens a key file, which is then
	// a file of age (https://age-encryption.org/v1). Its argument is the name of the KMS
	// key, its body what the KMS made of the file's key: 16 bytes, so that keys which
	// encrypt no more than a key (RSA) will do.
	wrapType = "terrace-kms"
	// fileKeySize is the size of the key of an age file, in bytes.
	fileKeySize = 16
	// kmsTimeout bounds each call of a KMS, with the driver's own retries.
	kmsTimeout = 30 * time.Second
	// maxReason bounds what is shown of a driver's error, in bytes.
	maxReason = 600
)

// wrapping is how a key file is encrypted.
type wrapping struct {
	to   *kmsKey   // wraps it; nil for a file in the clear
	keys []*kmsKey // open it
}

// kmsKey is a key that never leaves its KMS.
type kmsKey struct {
	name   string // its URL, without what may be secret
	keeper *secrets.Keeper
}

func openWrapping(ctx context.Context, locations []string) (*wrapping, error) {
	w := &wrapping{}
	for i, location := range locations {
		if i == 0 && location == Unwrapped {
			continue
		}
		k, err := openKMSKey(ctx, location)
		if err != nil {
			w.close()
			return nil, err
		}
		w.keys = append(w.keys, k)
		if i == 0 {
			w.to = k
		}
	}
	return w, nil
}

func openKMSKey(ctx context.Context, location string) (*kmsKey, error) {
	u, err := url.Parse(location)
	if err != nil || u.Scheme == "" {
		// It is not shown: who writes a key by itself has written a secret.
		return nil, &OpenError{Why: "a KMS key is given that is no URL", Advice: "write it as awskms://alias/NAME?region=REGION, gcpkms://projects/…, azurekeyvault://…, hashivault://NAME or base64key://KEY"}
	}
	if mux := secrets.DefaultURLMux(); !mux.ValidKeeperScheme(u.Scheme) {
		return nil, &OpenError{Why: fmt.Sprintf("there is no driver for KMS keys of %s://", u.Scheme), Advice: "there are: " + strings.Join(mux.KeeperSchemes(), ", ")}
	}
	k := &kmsKey{name: kmsName(u)}
	if u.Scheme == "base64key" && u.Host == "" {
		// The driver would make a key that is forgotten with the process.
		return nil, &OpenError{Why: "base64key:// names no key", Advice: "write 32 random bytes in base64 behind it, with - and _ for + and /"}
	}
	// Drivers keep the context for their credentials: it must not end with this call.
	k.keeper, err = bounded(ctx, func(context.Context) (*secrets.Keeper, error) {
		return secrets.OpenKeeper(context.WithoutCancel(ctx), location)
	})
	if err != nil {
		why := oneLine(err)
		if k.name == u.Scheme {
			why = "it cannot be used as a key" // the driver's text repeats it
		}
		return nil, &OpenError{Why: fmt.Sprintf("open KMS key %s: %s", k.name, why), Advice: kmsAdvice}
	}
	return k, nil
}

// kmsName is what may be shown and written of the URL of a KMS key. Of drivers that are
// not known the rest may be the key itself.
func kmsName(u *url.URL) string {
	if !slices.Contains([]string{"awskms", "gcpkms", "azurekeyvault", "hashivault"}, u.Scheme) {
		return u.Scheme
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

const kmsAdvice = "see whether the KMS can be reached from here, and lets this process encrypt and decrypt with the key; nothing was changed, and no new key is made"

// bounded calls a driver and waits no longer than kmsTimeout: that of Vault knows no
// context, and panics at an answer without content.
func bounded[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, kmsTimeout, fmt.Errorf("no answer within %s", kmsTimeout))
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if recover() != nil {
				a.err = errors.New("the driver does not understand the answer")
			}
			answered <- a
		}()
		a.value, a.err = call(ctx)
	}()
	select {
	case a := <-answered:
		if a.err != nil && ctx.Err() != nil {
			a.err = context.Cause(ctx)
		}
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// oneLine is the text of a driver's error, without what may be secret, and bounded.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(hidden(err.Error())), " ")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// name is that of the KMS key that wraps; empty for none.
func (w *wrapping) name() string {
	if w.to == nil {
		return ""
	}
	return w.to.name
}

// close lets go of the keys. It does not wait: a call that hangs would hold it up.
func (w *wrapping) close() {
	for _, k := range w.keys {
		go func() { _ = k.keeper.Close() }()
	}
}

// seal returns what is to be on disk of a key file. It was opened once: a KMS that
// encrypts for a process and does not decrypt for it would lose the file.
func (w *wrapping) seal(ctx context.Context, content []byte) ([]byte, error) {
	if w.to == nil {
		return content, nil
	}
	failed := func(err error) error {
		return &OpenError{Why: fmt.Sprintf("wrap it by %s: %s", w.to.name, oneLine(err)), Advice: kmsAdvice}
	}
	var b bytes.Buffer
	in, err := age.Encrypt(&b, &wrapRecipient{ctx: ctx, key: w.to})
	if err != nil {
		return nil, failed(err)
	}
	if _, err := in.Write(content); err != nil {
		return nil, failed(err)
	}
	if err := in.Close(); err != nil {
		return nil, failed(err)
	}
	id := &wrapIdentity{ctx: ctx, keys: []*kmsKey{w.to}}
	if back, err := id.open(b.Bytes()); err != nil {
		return nil, failed(err)
	} else if !bytes.Equal(back, content) {
		return nil, failed(errors.New("what it encrypts it decrypts to something else"))
	}
	return b.Bytes(), nil
}

// open returns the content of a key file, the name of the KMS key that wraps it, empty for
// none, and whether that is as it is to be.
func (w *wrapping) open(ctx context.Context, data []byte) (content []byte, by string, current bool, err error) {
	if !bytes.HasPrefix(data, []byte(ageIntro)) {
		return data, "", w.to == nil, nil
	}
	id := &wrapIdentity{ctx: ctx, keys: w.keys}
	content, err = id.open(data)
	switch {
	case err == nil:
		return content, id.by, id.used == w.to && id.by == w.to.name, nil
	case id.by == "":
		return nil, "", false, fmt.Errorf("it is encrypted, and not by a KMS key: %w", err)
	case len(w.keys) == 0:
		return nil, "", false, &OpenError{Why: fmt.Sprintf("it is wrapped by %s, and no KMS key is given", id.by), Advice: "give that key with --kms-key; none,URL takes the wrapping off"}
	}
	return nil, "", false, &OpenError{
		Why:    fmt.Sprintf("it is wrapped by %s: %s", id.by, oneLine(err)),
		Advice: kmsAdvice + "; when another key is to wrap it from now on, give --kms-key NEW,OLD",
	}
}

// wrapRecipient lets a KMS key open an age file.
type wrapRecipient struct {
	ctx context.Context
	key *kmsKey
}

// Wrap implements age.Recipient.
func (r *wrapRecipient) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	wrapped, err := bounded(r.ctx, func(ctx context.Context) ([]byte, error) { return r.key.keeper.Encrypt(ctx, fileKey) })
	if err != nil {
		return nil, fmt.Errorf("encrypt with %s: %w", r.key.name, err)
	}
	return []*age.Stanza{{Type: wrapType, Args: []string{r.key.name}, Body: wrapped}}, nil
}

// wrapIdentity opens an age file by one of some KMS keys.
type wrapIdentity struct {
	ctx  context.Context
	keys []*kmsKey

	by     string  // the name of the key that wraps the file
	used   *kmsKey // the key that opened it
	failed error   // why none did
}

// open returns the content of an age file.
func (id *wrapIdentity) open(data []byte) ([]byte, error) {
	out, err := age.Decrypt(bytes.NewReader(data), id)
	if err != nil {
		return nil, errors.Join(id.failed, err)
	}
	return io.ReadAll(out)
}

// Unwrap implements age.Identity. The key that the file names is tried first; another may
// have opened it all the same: an alias, or a key that has moved.
func (id *wrapIdentity) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	for _, s := range stanzas {
		if s.Type != wrapType || len(s.Args) != 1 {
			continue
		}
		id.by = s.Args[0]
		keys := slices.Clone(id.keys)
		slices.SortStableFunc(keys, func(a, b *kmsKey) int {
			switch {
			case a.name == id.by && b.name != id.by:
				return -1
			case a.name != id.by && b.name == id.by:
				return 1
			}
			return 0
		})
		var failures []string
		for _, k := range keys {
			fileKey, err := bounded(id.ctx, func(ctx context.Context) ([]byte, error) { return k.keeper.Decrypt(ctx, s.Body) })
			if err == nil && len(fileKey) != fileKeySize {
				err = errors.New("the answer is no key of a file")
			}
			if err == nil {
				id.used = k
				return fileKey, nil
			}
			failures = append(failures, fmt.Sprintf("decrypt with %s: %s", k.name, oneLine(err)))
		}
		id.failed = errors.New(strings.Join(failures, "; "))
	}
	return nil, age.ErrIncorrectIdentity
}
