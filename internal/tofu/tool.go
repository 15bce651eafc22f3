// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The products that a Tool can be.
const (
	OpenTofu  = "opentofu"
	Terraform = "terraform"
)

// ErrNotFound says that there is no binary to run. Its text, as wrapped by
// [Find], tells where it was looked for and what to do.
var ErrNotFound = errors.New("no tofu or terraform binary")

// Tool is a binary that was found and asked for its version. It is a value:
// nothing notices when the file is replaced later.
type Tool struct {
	// Path is absolute.
	Path string
	// Product is OpenTofu or Terraform.
	Product string
	// Version is the semantic version without a leading "v": "1.12.6".
	Version string
	// Digest is "sha256:" and the hex digest of the file.
	Digest string
}

// String is "opentofu 1.12.6".
func (t *Tool) String() string { return t.Product + " " + t.Version }

// JSONInto says whether plan and apply can write their machine-readable stream
// to a file while they print for people (OpenTofu 1.12 and newer).
func (t *Tool) JSONInto() bool { return t.Product == OpenTofu && t.atLeast(1, 12) }

// LocksCache says whether the binary itself keeps parallel inits from damaging
// a shared plugin cache (OpenTofu 1.10 and newer).
func (t *Tool) LocksCache() bool { return t.Product == OpenTofu && t.atLeast(1, 10) }

// ReadsTofuFiles says whether *.tofu files are read, and win over the *.tf file
// of the same name (OpenTofu 1.8 and newer).
func (t *Tool) ReadsTofuFiles() bool { return t.Product == OpenTofu && t.atLeast(1, 8) }

func (t *Tool) atLeast(major, minor int) bool {
	parts := strings.SplitN(t.Version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	ma, err1 := strconv.Atoi(parts[0])
	mi, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil {
		return false
	}
	return ma > major || ma == major && mi >= minor
}

// Find returns the tool at path; a path without a separator is looked up in
// PATH. With an empty path it takes the first of: tofu beside the running
// binary, tofu in PATH, terraform in PATH. The error is ErrNotFound when there
// is no such file, else it says what the file answered.
func Find(ctx context.Context, path string) (*Tool, error) {
	found, err := locate(path)
	if err != nil {
		return nil, err
	}
	if found, err = filepath.Abs(found); err != nil {
		return nil, fmt.Errorf("find tofu at %s: %w", path, err)
	}
	product, version, err := askVersion(ctx, found)
	if err != nil {
		return nil, err
	}
	digest, err := fileDigest(found)
	if err != nil {
		return nil, fmt.Errorf("hash %s: %w", found, err)
	}
	return &Tool{Path: found, Product: product, Version: version, Digest: digest}, nil
}

func locate(path string) (string, error) {
	if path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			return "", fmt.Errorf("find tofu at %s: %w (%v)", path, ErrNotFound, err)
		}
		return found, nil
	}
	if self, err := os.Executable(); err == nil {
		if found, err := exec.LookPath(filepath.Join(filepath.Dir(self), "tofu")); err == nil {
			return found, nil
		}
	}
	for _, name := range []string{"tofu", "terraform"} {
		if found, err := exec.LookPath(name); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("find tofu: %w beside the terrace binary or in PATH; `make build` makes bin/tofu, --tofu names another", ErrNotFound)
}

// versionLine is what both products print first, warnings apart.
var versionLine = regexp.MustCompile(`(?m)^(OpenTofu|Terraform) v(\d+\.\d+\.\d+\S*)`)

func askVersion(ctx context.Context, path string) (product, version string, err error) {
	home, err := os.MkdirTemp("", "terrace-version-")
	if err != nil {
		return "", "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	defer os.RemoveAll(home)
	cmd := exec.CommandContext(ctx, path, "version")
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=" + defaultPath, "CHECKPOINT_DISABLE=1"}
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return "", "", fmt.Errorf("ask %s for its version: it is neither OpenTofu nor Terraform, it printed %.80q", path, out)
	}
	return strings.ToLower(string(m[1])), string(m[2]), nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
