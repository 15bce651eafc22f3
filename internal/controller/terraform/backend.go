// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// Init keeps the configuration of the backend, with its passwords, in a file that later
// runs need. Between runs it lies in the unit's directory encrypted.

const sealedBackend = "backend.sealed"

func backendRecord(dir *workdir.Dir) (plain, sealed string) {
	return filepath.Join(dir.DataDir(), "terraform.tfstate"), filepath.Join(dir.Path(), sealedBackend)
}

// showBackend brings back what was taken away. What cannot be brought back is made again
// by init.
func (s *session) showBackend() {
	plain, sealed := backendRecord(s.dir)
	content, err := os.ReadFile(sealed)
	if err != nil {
		return
	}
	if content, err = s.c.unseal(s.job.unit, sealedBackend, content); err == nil {
		_ = os.WriteFile(plain, content, 0o600)
	}
}

// hideBackend encrypts the record if a secret of the run is in it.
func (s *session) hideBackend() {
	plain, sealed := backendRecord(s.dir)
	// What was sealed before may hold a secret of before, which this run does not know.
	_, was := os.Stat(sealed)
	_ = os.Remove(sealed)
	content, err := os.ReadFile(plain)
	if err == nil && (was == nil || s.job.mask.String(string(content)) != string(content)) {
		s.c.sealBackend(s.job.unit, s.dir, content)
	}
}

// sealBackend puts the record away. One that cannot be encrypted goes: then the next run
// begins with init.
func (c *Controller) sealBackend(u run.Unit, dir *workdir.Dir, content []byte) {
	plain, sealed := backendRecord(dir)
	if content, err := c.seal(u, sealedBackend, content); err == nil {
		_ = os.WriteFile(sealed, content, 0o600)
	}
	_ = os.Remove(plain)
}

// scrub removes what a run that was cut off has left in its unit's directory and may hold
// secrets. None of its processes may be alive.
func (c *Controller) scrub(u run.Unit) error {
	if _, err := os.Stat(c.unitDir(u)); err != nil {
		return nil
	}
	dir, err := workdir.OpenDir(c.unitDir(u))
	if err != nil {
		return err
	}
	defer dir.Close()
	plain, _ := backendRecord(dir)
	if content, err := os.ReadFile(plain); err == nil {
		c.sealBackend(u, dir, content) // what is secret in it only the run knew
	}
	return c.clear(u, dir)
}

// clear removes what may hold secrets, once what is only there is kept.
func (c *Controller) clear(u run.Unit, dir *workdir.Dir) error {
	if err := c.keepMade(u, dir); err != nil {
		return fmt.Errorf("keep what an apply has made that was killed: %w", err)
	}
	return dir.Scrub()
}

// seal encrypts a file of a unit's directory. It opens as that file of that unit only.
func (c *Controller) seal(u run.Unit, file string, content []byte) ([]byte, error) {
	aead, err := c.unitCipher()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce)
	return aead.Seal(nonce, nonce, content, sealedFor(u, file)), nil
}

func (c *Controller) unseal(u run.Unit, file string, sealed []byte) ([]byte, error) {
	aead, err := c.unitCipher()
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(sealed) < n {
		return nil, io.ErrUnexpectedEOF
	}
	return aead.Open(nil, sealed[:n], sealed[n:], sealedFor(u, file))
}

func sealedFor(u run.Unit, file string) []byte { return []byte(u.String() + " " + file) }

func (c *Controller) unitCipher() (cipher.AEAD, error) {
	key, err := c.opts.Blobs.Key("backends")
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
