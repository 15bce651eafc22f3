// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Repository is the Git repository that all units of a benchmark come from, and the
// name of its GitRepository.
type Repository struct {
	// Dir is the working tree; what is not there yet is made.
	Dir string
	// Source names the GitRepository.
	Source client.ObjectKey
}

// Write replaces a file, whose name is relative to the repository.
func (r Repository) Write(name, text string) error {
	path := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

// Init makes the repository of what was written.
func (r Repository) Init(ctx context.Context) error {
	if _, err := r.git(ctx, "init", "--quiet", "--initial-branch=main"); err != nil {
		return err
	}
	_, err := r.commit(ctx)
	return err
}

func (r Repository) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.Dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.Dir, "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Bench", "GIT_AUTHOR_EMAIL=bench@example.com",
		"GIT_COMMITTER_NAME=Bench", "GIT_COMMITTER_EMAIL=bench@example.com",
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// commit commits all that was written and returns the hash.
func (r Repository) commit(ctx context.Context) (string, error) {
	if _, err := r.git(ctx, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := r.git(ctx, "commit", "--quiet", "--message", "Change"); err != nil {
		return "", err
	}
	return r.git(ctx, "rev-parse", "HEAD")
}

// CreateSource makes the GitRepository.
func (r Repository) CreateSource(ctx context.Context, c client.Client) error {
	err := c.Create(ctx, &sourcev1.GitRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Source.Namespace, Name: r.Source.Name},
		Spec: sourcev1.GitRepositorySpec{
			URL:       "file://" + r.Dir,
			Interval:  metav1.Duration{Duration: time.Hour},
			Reference: &sourcev1.GitRepositoryRef{Branch: "main"},
		},
	})
	if err != nil {
		return fmt.Errorf("create GitRepository: %w", err)
	}
	return nil
}

// Change commits a change of one file, asks for a reconcile of the source as a
// webhook would, and returns the hash.
func (r Repository) Change(ctx context.Context, c client.Client, file, text string) (string, error) {
	if err := r.Write(file, text); err != nil {
		return "", err
	}
	hash, err := r.commit(ctx)
	if err != nil {
		return "", err
	}
	source := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: r.Source.Namespace, Name: r.Source.Name}}
	return hash, c.Patch(ctx, source, RequestReconcile(time.Now().Format(time.RFC3339Nano)))
}

// RequestReconcile is the patch by which a person asks for a reconcile.
func RequestReconcile(at string) client.Patch {
	return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, at))
}
