// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DefaultWorkspace is the workspace of a data directory that says nothing else.
const DefaultWorkspace = "default"

func workspaceArgs(name string) []string {
	return []string{"workspace", "select", "-no-color", "-or-create=true", name}
}

// SelectWorkspace makes name the workspace of the data directory, and makes it
// in the backend when it is not there. It runs nothing when it is selected
// already; init must have run. (Needs OpenTofu, or Terraform 1.4.)
func (s *Session) SelectWorkspace(ctx context.Context, name string) error {
	if name == "" {
		name = DefaultWorkspace
	}
	selected, err := s.selectedWorkspace()
	if err != nil {
		return fmt.Errorf("select workspace %s: %w", name, err)
	}
	if selected == name {
		return nil
	}
	_, err = s.run(ctx, command{sub: "workspace select", args: workspaceArgs(name)})
	return err
}

// selectedWorkspace reads the file by which both tools remember the workspace.
func (s *Session) selectedWorkspace() (string, error) {
	dir := s.DataDir
	if dir == "" {
		dir = filepath.Join(s.Dir, ".terraform")
	}
	b, err := os.ReadFile(filepath.Join(dir, "environment"))
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultWorkspace, nil
	}
	if name := strings.TrimSpace(string(b)); err == nil && name != "" {
		return name, nil
	}
	return DefaultWorkspace, err
}
