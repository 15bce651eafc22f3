// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// repository is a Git repository on disk, made with the git command: what a user
// has, and not what a library makes of it.
type repository struct {
	dir string
}

// create lays files out in a new repository and commits them to main.
func (r *repository) create(ctx context.Context, files fs.FS) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(r.dir, files); err != nil {
		return fmt.Errorf("lay out %s: %w", r.dir, err)
	}
	if _, err := r.git(ctx, "init", "--quiet", "--initial-branch=main"); err != nil {
		return err
	}
	_, err := r.commit(ctx, "A network, a cluster, a platform and a shop")
	return err
}

// replace changes old into new in a file of the work tree; old must be there once.
func (r *repository) replace(file, old, new string) error {
	name := filepath.Join(r.dir, filepath.FromSlash(file))
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), old); n != 1 {
		return fmt.Errorf("edit %s: %q is there %d times", file, old, n)
	}
	return os.WriteFile(name, []byte(strings.Replace(string(text), old, new, 1)), 0o600)
}

// commit commits the whole work tree and returns the commit's hash.
func (r *repository) commit(ctx context.Context, message string) (string, error) {
	if _, err := r.git(ctx, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := r.git(ctx, "commit", "--quiet", "--message", message); err != nil {
		return "", err
	}
	return r.git(ctx, "rev-parse", "HEAD")
}

// git runs git in the repository, with nothing of the user's configuration: hooks,
// signing and templates of theirs have no place here.
func (r *repository) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + r.dir,
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Demo", "GIT_AUTHOR_EMAIL=demo@example.com",
		"GIT_COMMITTER_NAME=Demo", "GIT_COMMITTER_EMAIL=demo@example.com",
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
