// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/blob"
)

var source = Owner{Kind: "GitRepository", Namespace: "apps", Name: "infra"}

func newStore(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.AdvertisedURL == "" {
		o.AdvertisedURL = "localhost:9090"
	}
	s, err := NewStore(o)
	if err != nil {
		t.Fatal(err)
	}
	// The sealed trees would keep the test's directory from being removed.
	t.Cleanup(func() { _ = removeTree(filepath.Join(o.Dir, "trees")) })
	return s
}

// writeTree makes a directory of files; a name that ends in ! is executable.
func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, "!") {
			name, mode = strings.TrimSuffix(name, "!"), 0o755
		}
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// readTree is the inverse of writeTree, with links as "-> target".
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(p)
			files[rel] = "-> " + target
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode()&0o111 != 0 {
			rel += "!"
		}
		content, err := os.ReadFile(p)
		files[rel] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func put(t *testing.T, s *Store, revision, file string, files map[string]string) *meta.Artifact {
	t.Helper()
	a, err := s.Archive(t.Context(), source, revision, file, writeTree(t, files), nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var sample = map[string]string{"main.tf": "resource {}\n", "bin/run.sh!": "#!/bin/sh\n", "modules/a/a.tf": "# a\n"}

func TestArchiveIsWhatFluxMakes(t *testing.T) {
	clk := testclock.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 5, time.UTC))
	s := newStore(t, Options{Clock: clk})
	a := put(t, s, "main@sha1:0123", "0123.tar.gz", sample)
	want := &meta.Artifact{
		Path:     "gitrepository/apps/infra/0123.tar.gz",
		URL:      "http://localhost:9090/gitrepository/apps/infra/0123.tar.gz",
		Revision: "main@sha1:0123",
		// Made by fluxcd/pkg/artifact v0.18.0 from the same tree.
		Digest: "sha256:ea6781f26ba4922058bf4d6f42ee3e1171e698ddc385d2526a09dfb102b619d8",
		Size:   a.Size,
	}
	want.LastUpdateTime.Time = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	if diff := cmp.Diff(want, a); diff != "" {
		t.Error(diff)
	}
	clk.Step(time.Hour)
	if again := put(t, s, "main@sha1:0123", "0123.tar.gz", sample); !cmp.Equal(a, again) {
		t.Errorf("the same tree gave another artifact: %s", cmp.Diff(a, again))
	}
	other := newStore(t, Options{AdvertisedURL: "https://artifacts.example/base/"})
	b := put(t, other, "dev@sha1:4567", "4567.tar.gz", sample)
	if b.Digest != a.Digest || b.URL != "https://artifacts.example/base/gitrepository/apps/infra/4567.tar.gz" {
		t.Errorf("elsewhere: digest %s, URL %s", b.Digest, b.URL)
	}
}

func TestArchiveLeavesOut(t *testing.T) {
	s := newStore(t, Options{})
	dir := writeTree(t, map[string]string{"keep.tf": "k", "drop.png": "d", ".git/HEAD": "h", "sub/.git/x": "x", "sub/keep": "k"})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var asked []string
	a, err := s.Archive(t.Context(), source, "r", "f.tar.gz", dir, func(name string, _ fs.FileInfo) bool {
		asked = append(asked, name)
		return strings.HasSuffix(name, ".png") || name == ".git" || strings.Contains(name, ".git/") || name == "sub/.git"
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".git", ".git/HEAD", "drop.png", "keep.tf", "sub", "sub/.git", "sub/.git/x", "sub/keep"}, asked); diff != "" {
		t.Error(diff)
	}
	tree, release, err := s.Tree(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if diff := cmp.Diff(map[string]string{"keep.tf": "k", "sub/keep": "k"}, readTree(t, tree)); diff != "" {
		t.Error(diff)
	}
}

func TestArchiveRefuses(t *testing.T) {
	s := newStore(t, Options{MaxSize: 100})
	dir := writeTree(t, map[string]string{"a": "x"})
	big := writeTree(t, map[string]string{"a": strings.Repeat("0123456789abcdefghij!?", 3) + "and so on, with little to compress"})
	ctx := t.Context()
	if _, err := s.Archive(ctx, source, "r", "f", big, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("big tree: %v", err)
	}
	for _, o := range []Owner{{}, {"K", "ns", ".."}, {"K", "a/b", "n"}} {
		if _, err := s.Archive(ctx, o, "r", "f", dir, nil); err == nil {
			t.Errorf("owner %q was accepted", o)
		}
	}
	for _, f := range []string{"", "..", "a/b", `a\b`} {
		if _, err := s.Archive(ctx, source, "r", f, dir, nil); err == nil {
			t.Errorf("file %q was accepted", f)
		}
	}
	if _, err := s.Archive(ctx, source, "r", "f", filepath.Join(dir, "a"), nil); err == nil {
		t.Error("a file was archived as a directory")
	}
}

func TestRestartKeepsArtifacts(t *testing.T) {
	dir := t.TempDir()
	a := put(t, newStore(t, Options{Dir: dir}), "r1", "1.tar.gz", sample)

	s := newStore(t, Options{Dir: dir, AdvertisedURL: "localhost:1234"})
	if !s.Has(a) {
		t.Fatal("the artifact is gone")
	}
	if err := s.Verify(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if !s.SetURL(a) || a.URL != "http://localhost:1234/gitrepository/apps/infra/1.tar.gz" || s.SetURL(a) {
		t.Errorf("URL = %s", a.URL)
	}
	tree, release, err := s.Tree(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if diff := cmp.Diff(sample, readTree(t, tree)); diff != "" {
		t.Error(diff)
	}
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, Options{Dir: dir})
	a := put(t, s, "r1", "1.tar.gz", sample)
	foreign := a.DeepCopy()
	foreign.Path = "gitrepository/apps/other/1.tar.gz"
	if s.Has(foreign) || !errors.Is(s.Verify(t.Context(), foreign), ErrNotFound) || s.Has(nil) {
		t.Error("an artifact of nobody was found")
	}
	if err := s.Verify(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	// Someone changes the file: seen at once, because its time and size tell.
	hex := strings.TrimPrefix(a.Digest, "sha256:")
	file := filepath.Join(dir, "blobs", "artifacts", "sha256", hex[:2], hex)
	if err := os.WriteFile(file, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), a); !errors.Is(err, ErrDigest) {
		t.Errorf("changed file: %v", err)
	}
	if _, _, err := s.Tree(t.Context(), a); !errors.Is(err, ErrDigest) && err == nil {
		t.Errorf("tree of a changed file: %v", err)
	}
	if err := s.Discard(t.Context(), a); err != nil || s.Has(a) {
		t.Errorf("Discard: %v", err)
	}
	a = put(t, s, "r1", "1.tar.gz", sample)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if s.Has(a) || !errors.Is(s.Verify(t.Context(), a), ErrNotFound) {
		t.Error("a lost file was not noticed")
	}
	// Making it again puts it back.
	if a = put(t, s, "r1", "1.tar.gz", sample); !s.Has(a) {
		t.Error("the artifact was not stored anew")
	}
}

func TestCollect(t *testing.T) {
	clk := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := newStore(t, Options{Clock: clk, RetentionTTL: time.Hour, RetentionRecords: 2})
	ctx := t.Context()
	one := put(t, s, "r1", "1.tar.gz", map[string]string{"f": "1"})
	clk.Step(time.Minute)
	two := put(t, s, "r2", "2.tar.gz", map[string]string{"f": "2"})
	if n, err := s.Collect(ctx, source, two); n != 0 || err != nil {
		t.Fatalf("two records: %d, %v", n, err)
	}
	clk.Step(time.Minute)
	three := put(t, s, "r3", "3.tar.gz", map[string]string{"f": "3"})
	if n, err := s.Collect(ctx, source, three); n != 1 || err != nil {
		t.Fatalf("three records: %d, %v", n, err)
	}
	if s.Has(one) || !s.Has(two) || !s.Has(three) {
		t.Error("the oldest should be gone")
	}
	clk.Step(2 * time.Hour)
	if n, err := s.Collect(ctx, source, three); n != 1 || err != nil {
		t.Fatalf("after the TTL: %d, %v", n, err)
	}
	if s.Has(two) || !s.Has(three) {
		t.Error("only the current one should be left")
	}
	if had, err := s.Remove(ctx, source); !had || err != nil || s.Has(three) {
		t.Errorf("Remove = %v, %v", had, err)
	}
	if had, err := s.Remove(ctx, source); had || err != nil {
		t.Errorf("second Remove = %v, %v", had, err)
	}
	for info := range s.blobs.List(ctx) {
		t.Errorf("blob %s is left", info.Digest)
	}
}

func TestSharedContentStaysUntilTheLastOwner(t *testing.T) {
	s := newStore(t, Options{})
	ctx, other := t.Context(), Owner{"GitRepository", "apps", "copy"}
	a := put(t, s, "r", "1.tar.gz", sample)
	b, err := s.Archive(ctx, other, "r", "1.tar.gz", writeTree(t, sample), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, source); err != nil {
		t.Fatal(err)
	}
	if s.Has(a) || !s.Has(b) {
		t.Error("removing one owner's artifact must leave the other's")
	}
}

func TestPinKeepsContentWithoutItsSource(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, Options{Dir: dir, IdleTrees: 1})
	ctx, unit := t.Context(), Owner{"Terraform", "apps", "db"}
	a := put(t, s, "r1", "1.tar.gz", sample)
	if err := s.Pin(ctx, unit, a); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, source); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, Options{Dir: dir, IdleTrees: 1})
	tree, release, err := s.Tree(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample, readTree(t, tree)); diff != "" {
		t.Error(diff)
	}
	release()
	b := put(t, s, "r2", "2.tar.gz", map[string]string{"f": "2"})
	if err := s.Pin(ctx, unit, b); err != nil {
		t.Fatal(err)
	}
	if has, _ := s.blobs.Has(ctx, digest.Digest(a.Digest)); has {
		t.Error("the former pin's content is still there")
	}
	for range 2 {
		if err := s.Unpin(ctx, unit); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Has(b) {
		t.Error("unpinning took the source's artifact")
	}
}

func TestOrphansOfACrashAreSwept(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, Options{Dir: dir})
	d, _, err := s.blobs.Put(t.Context(), strings.NewReader("written, not recorded"))
	if err != nil {
		t.Fatal(err)
	}
	a := put(t, s, "r1", "1.tar.gz", sample)
	s = newStore(t, Options{Dir: dir})
	if has, _ := s.blobs.Has(t.Context(), d); has || !s.Has(a) {
		t.Error("want the orphan gone and the artifact there")
	}
	// A shared blob store holds what is others'.
	shared, err := blob.Open(t.Context(), blob.Options{URL: filepath.Join(dir, "blobs")})
	if err != nil {
		t.Fatal(err)
	}
	d, _, err = shared.Put(t.Context(), strings.NewReader("a plan"))
	if err != nil {
		t.Fatal(err)
	}
	s = newStore(t, Options{Dir: t.TempDir(), Blobs: shared})
	put(t, s, "r1", "1.tar.gz", sample)
	newStore(t, Options{Dir: s.o.Dir, Blobs: shared})
	if has, _ := shared.Has(t.Context(), d); !has {
		t.Error("a blob of others was deleted")
	}
}

func TestHandler(t *testing.T) {
	s := newStore(t, Options{})
	put(t, s, "r1", "1.tar.gz", map[string]string{"f": "old"})
	a := put(t, s, "r1", "1.tar.gz", sample) // rebuilt for the same commit
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	for name, c := range map[string]struct {
		reason, method, path string
		want                 int
	}{
		"artifact":      {"what consumers ask for", "GET", "/" + a.Path, 200},
		"head":          {"used to look whether it is there", "HEAD", "/" + a.Path, 200},
		"post":          {"nothing can be put", "POST", "/" + a.Path, 405},
		"other file":    {"not a current artifact", "GET", "/gitrepository/apps/infra/2.tar.gz", 404},
		"directory":     {"no listings", "GET", "/gitrepository/apps/infra/", 404},
		"root":          {"no listings", "GET", "/", 404},
		"record file":   {"only artifacts", "GET", "/records/gitrepository/apps/infra.json", 404},
		"climbing path": {"only artifacts", "GET", "/gitrepository/apps/infra/..%2f..%2f..%2fetc%2fpasswd", 404},
		"foreign":       {"what was fetched is not ours to serve", "GET", "/.foreign/" + parseHex(a) + "/", 404},
	} {
		req, err := http.NewRequest(c.method, server.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.want {
			t.Errorf("%s: status %d, %v; want %d: %s", name, resp.StatusCode, err, c.want, c.reason)
		}
		if name == "artifact" && (int64(len(body)) != *a.Size || resp.Header.Get("ETag") != `"`+a.Digest+`"`) {
			t.Errorf("served %d bytes as %s", len(body), resp.Header.Get("ETag"))
		}
	}
}

func parseHex(a *meta.Artifact) string { return strings.TrimPrefix(a.Digest, "sha256:") }
