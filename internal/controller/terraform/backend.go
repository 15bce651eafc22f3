// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
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
	aead, err := s.c.backendCipher()
	if err != nil || len(content) < aead.NonceSize() {
		return
	}
	n := aead.NonceSize()
	if content, err = aead.Open(nil, content[:n], content[n:], []byte(s.job.unit.String())); err == nil {
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
	if aead, err := c.backendCipher(); err == nil {
		nonce := make([]byte, aead.NonceSize())
		_, _ = rand.Read(nonce)
		_ = os.WriteFile(sealed, aead.Seal(nonce, nonce, content, []byte(u.String())), 0o600)
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
	return dir.Scrub()
}

func (c *Controller) backendCipher() (cipher.AEAD, error) {
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
