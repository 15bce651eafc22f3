// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/gittestserver"
)

// Branch is the branch of a GitServer's repository.
const Branch = "main"

// repository is the repository's path on the server.
const repository = "repo.git"

// GitServer is a Git server on loopback with one repository, which speaks smart
// HTTP, and a clone of it in which to make commits. Before the first commit the
// repository is empty. The embedded server has more: credentials, TLS, SSH.
type GitServer struct {
	*gittestserver.GitServer
	t    testing.TB
	work string
}

// Git starts a server that ends with the test.
func Git(t testing.TB) *GitServer {
	t.Helper()
	server := gittestserver.NewGitServer(t.TempDir())
	if err := server.StartHTTP(); err != nil {
		t.Fatalf("start a Git server: %v", err)
	}
	t.Cleanup(server.StopHTTP)
	g := &GitServer{GitServer: server, t: t, work: t.TempDir()}
	bare := filepath.Join(server.Root(), repository)
	g.git("init", "--quiet", "--bare", "--initial-branch", Branch, bare)
	g.git("init", "--quiet", "--initial-branch", Branch)
	g.git("remote", "add", "origin", bare)
	return g
}

// URL is the URL of the repository.
func (g *GitServer) URL() string { return g.HTTPAddress() + "/" + repository }

// Dir is the working tree of the clone.
func (g *GitServer) Dir() string { return g.work }

// Commit writes the files, by their paths in the repository, and pushes them as
// one commit on Branch. It returns the commit's hash.
func (g *GitServer) Commit(files map[string]string) string {
	g.t.Helper()
	for name, content := range files {
		path := filepath.Join(g.work, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			g.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	return g.push("write files")
}

// Remove removes files and directories and pushes that as one commit on Branch.
// It returns the commit's hash.
func (g *GitServer) Remove(names ...string) string {
	g.t.Helper()
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(g.work, filepath.FromSlash(name))); err != nil {
			g.t.Fatal(err)
		}
	}
	return g.push("remove files")
}

func (g *GitServer) push(message string) string {
	g.t.Helper()
	g.git("add", "--all")
	g.git("commit", "--quiet", "--allow-empty", "--message", message)
	g.git("push", "--quiet", "origin", "HEAD:"+Branch)
	return g.git("rev-parse", "HEAD")
}

// Tag pushes a lightweight tag of the last commit.
func (g *GitServer) Tag(name string) {
	g.t.Helper()
	g.git("tag", name)
	g.git("push", "--quiet", "origin", "refs/tags/"+name)
}

// git runs git in the clone, without the configuration of whoever runs the test.
func (g *GitServer) git(args ...string) string {
	g.t.Helper()
	command := exec.Command("git", args...)
	command.Dir = g.work
	command.Env = append(os.Environ(),
		"GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com")
	out, err := command.CombinedOutput()
	if err != nil {
		g.t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
