// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
)

// armored is an encrypted data key in a SOPS file, with the indentation of its lines.
var armored = regexp.MustCompile(`(?m)^( *)-----BEGIN AGE ENCRYPTED FILE-----\n(?:.*\n)*? *-----END AGE ENCRYPTED FILE-----$`)

// rekey encrypts the data key of a SOPS file, which has one recipient, for another
// one, as `sops updatekeys` does. The values stay as they are.
func rekey(text string, old *age.X25519Identity, to *age.X25519Recipient) (string, error) {
	found := armored.FindStringSubmatchIndex(text)
	if found == nil {
		return "", errors.New("no data key for age in it")
	}
	indent := text[found[2]:found[3]]
	block := strings.ReplaceAll(text[found[0]:found[1]], "\n"+indent, "\n")
	plain, err := age.Decrypt(armor.NewReader(strings.NewReader(strings.TrimSpace(block))), old)
	if err != nil {
		return "", fmt.Errorf("decrypt the data key: %w", err)
	}
	var sealed bytes.Buffer
	shell := armor.NewWriter(&sealed)
	w, err := age.Encrypt(shell, to)
	if err != nil {
		return "", fmt.Errorf("encrypt the data key: %w", err)
	}
	if _, err := io.Copy(w, plain); err != nil {
		return "", fmt.Errorf("encrypt the data key: %w", err)
	}
	if err := errors.Join(w.Close(), shell.Close()); err != nil {
		return "", fmt.Errorf("encrypt the data key: %w", err)
	}
	block = indent + strings.ReplaceAll(strings.TrimSpace(sealed.String()), "\n", "\n"+indent)
	return strings.ReplaceAll(text[:found[0]]+block+text[found[1]:], old.Recipient().String(), to.String()), nil
}

// ownKey makes an age key of its own for the encrypted files below dir, in place of
// the one in keyFile, which everybody knows and which is removed. It returns the new
// key's file content and the names of the files.
func ownKey(dir, keyFile string) (key string, files []string, err error) {
	content, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return "", nil, err
	}
	known, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil {
		return "", nil, fmt.Errorf("read %s: %w", keyFile, err)
	}
	old, ok := known[0].(*age.X25519Identity)
	if !ok {
		return "", nil, fmt.Errorf("read %s: it is not an X25519 key", keyFile)
	}
	own, err := age.GenerateX25519Identity()
	if err != nil {
		return "", nil, err
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() != ".git" {
			return err
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text := string(content)
		switch {
		case armored.MatchString(text):
			if text, err = rekey(text, old, own.Recipient()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rel, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		case d.Name() == ".sops.yaml":
			text = strings.ReplaceAll(text, old.Recipient().String(), own.Recipient().String())
		default:
			return nil
		}
		return os.WriteFile(name, []byte(text), 0o600)
	})
	if err != nil {
		return "", nil, err
	}
	return own.String() + "\n", files, os.Remove(filepath.Join(dir, keyFile))
}
