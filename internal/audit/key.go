// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/terrace-dev/terrace/internal/durable"
)

const (
	privateType = "PRIVATE KEY"
	publicType  = "PUBLIC KEY"
)

// PublicKeyFile is the file beside a private key file that holds its public key:
// audit.pub for audit.key.
func PublicKeyFile(keyFile string) string {
	return strings.TrimSuffix(keyFile, ".key") + ".pub"
}

// ReadPublicKey reads a public key that Open wrote: PEM of an Ed25519 key.
func ReadPublicKey(file string) (ed25519.PublicKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read public key of the ledger: %w", err)
	}
	key, err := ParsePublicKey(data)
	if err != nil {
		return nil, fmt.Errorf("read public key of the ledger %s: %w", file, err)
	}
	return key, nil
}

// ParsePublicKey reads the PEM of an Ed25519 public key.
func ParsePublicKey(data []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != publicType {
		return nil, errors.New("it is not the PEM of a public key")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("it is not an Ed25519 key")
	}
	return key, nil
}

func marshalPublicKey(key ed25519.PublicKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(err) // an Ed25519 key always has a form
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der})
}

// fingerprint names a public key.
func fingerprint(key ed25519.PublicKey) string { return hashOf(key) }

// loadKey reads the private key, and makes sure that the public one lies beside it.
// A key that is not there is made if it may be: made says that it was.
func loadKey(file string, mayMake bool) (key ed25519.PrivateKey, made bool, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && mayMake {
		made = true
		if err = makeKey(file); err == nil {
			data, err = os.ReadFile(file)
		}
	}
	if err != nil {
		return nil, false, err
	}
	if _, err := durable.Private(file); err != nil {
		return nil, false, err
	}
	// The errors of the parsers could quote the key.
	block, _ := pem.Decode(data)
	if block == nil || block.Type != privateType {
		return nil, false, errors.New("it is not the PEM of a private key; restore it from a backup")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, false, errors.New("it is not an Ed25519 key; restore it from a backup")
	}
	public := marshalPublicKey(key.Public().(ed25519.PublicKey))
	if there, err := os.ReadFile(PublicKeyFile(file)); err == nil && string(there) == string(public) {
		return key, made, nil
	}
	return key, made, writeWhole(PublicKeyFile(file), public, 0o644)
}

// makeKey writes a new key; another process may be first.
func makeKey(file string) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return durable.Create(file, pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: der}))
}

// writeWhole writes a file that is there whole or not at all, and durable.
func writeWhole(file string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(file+newExt, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(file))
}

// newExt ends the names of files that are not whole yet.
const newExt = ".new"
