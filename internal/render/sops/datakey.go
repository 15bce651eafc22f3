// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/getsops/sops/v3/shamir"
)

// maxShare bounds a decrypted share; a data key has 32 bytes, a share one more.
const maxShare = 256

// errNotHere tells that there is nothing to try a master key with.
var errNotHere = errors.New("no credentials")

// dataKey opens the key of a file's values with whatever fits.
func (d *Decryptor) dataKey(ctx context.Context, m *metadata) ([]byte, error) {
	var shares [][]byte
	var failed []string
	for _, group := range m.groups {
		share, reasons, err := d.share(ctx, group)
		if err != nil {
			return nil, err
		}
		failed = append(failed, reasons...)
		if share != nil {
			shares = append(shares, share)
		}
	}
	need := 1
	if len(m.groups) > 1 {
		need = m.threshold
		if need == 0 {
			need = len(m.groups)
		}
	}
	if len(shares) < need {
		return nil, d.noKey(m, need, failed)
	}
	if len(m.groups) == 1 {
		return shares[0], nil
	}
	key, err := shamir.Combine(shares)
	if err != nil {
		return nil, fmt.Errorf("the shares of the data key do not fit together: the file was %w", ErrIntegrity)
	}
	return key, nil
}

// share opens one share with the first master key of a group that works. The reasons
// are those of keys that were tried in vain. The error is that of ctx.
func (d *Decryptor) share(ctx context.Context, group []masterKey) (share []byte, reasons []string, err error) {
	for _, k := range group {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		share, err := d.unwrap(ctx, k)
		if err == nil {
			return share, nil, nil
		}
		if ctx.Err() != nil {
			return nil, nil, fmt.Errorf("ask %s: %w", k.kind, ctx.Err())
		}
		if !errors.Is(err, errNotHere) {
			reasons = append(reasons, fmt.Sprintf("%s %s: %v", k.kind, short(k.id), err))
		}
	}
	return nil, reasons, nil
}

// unwrap opens a share with one master key.
func (d *Decryptor) unwrap(ctx context.Context, k masterKey) ([]byte, error) {
	switch k.kind {
	case kindAge:
		return d.keys.unwrapAge(k)
	case kindPGP:
		return d.keys.unwrapPGP(k)
	case kindVault:
		return d.unwrapVault(ctx, k)
	case kindAWS:
		return d.unwrapAWS(ctx, k)
	case kindGCP:
		return d.unwrapGCP(ctx, k)
	case kindAzure:
		return d.unwrapAzure(ctx, k)
	}
	return nil, errors.New("this key service is not supported")
}

func (k *Keys) unwrapAge(m masterKey) ([]byte, error) {
	if len(k.age) == 0 {
		return nil, errNotHere
	}
	r, err := age.Decrypt(agearmor.NewReader(strings.NewReader(m.enc)), k.age...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, errNotHere
	}
	if err != nil {
		return nil, errors.New("its encrypted data key is malformed")
	}
	return readShare(r)
}

func (k *Keys) unwrapPGP(m masterKey) ([]byte, error) {
	if len(k.pgp) == 0 {
		return nil, errNotHere
	}
	block, err := armor.Decode(strings.NewReader(m.enc))
	if err != nil {
		return nil, errors.New("its encrypted data key is malformed")
	}
	message, err := openpgp.ReadMessage(block.Body, k.pgp, nil, nil)
	if err != nil {
		// That no key fits, and that one does and the message is broken, look the same here.
		return nil, errNotHere
	}
	return readShare(message.UnverifiedBody)
}

func readShare(r io.Reader) ([]byte, error) {
	share, err := io.ReadAll(io.LimitReader(r, maxShare))
	if err != nil || len(share) == 0 {
		return nil, errors.New("its encrypted data key is malformed")
	}
	return share, nil
}

// noKey says for whom the file was encrypted, what was tried and what there is.
func (d *Decryptor) noKey(m *metadata, need int, failed []string) error {
	var groups []string
	for _, g := range m.groups {
		var ids []string
		kind := ""
		for _, k := range g {
			id := short(k.id)
			if k.kind != kind {
				id, kind = k.kind+" "+id, k.kind
			}
			ids = append(ids, id)
		}
		groups = append(groups, strings.Join(ids, ", "))
	}
	msg := "it is encrypted for " + groups[0]
	if len(groups) > 1 {
		msg = fmt.Sprintf("it needs %d of %d groups of keys: (%s)", need, len(groups), strings.Join(groups, "), ("))
	}
	if len(failed) > 0 {
		msg += "; tried in vain: " + strings.Join(failed, "; ")
	}
	return fmt.Errorf("%w: %s; %s", ErrNoKey, msg, d.keys.describe(d.setting))
}
