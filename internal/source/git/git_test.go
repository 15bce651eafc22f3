// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	fluxgit "github.com/fluxcd/pkg/git"
	"github.com/fluxcd/pkg/gittestserver"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-billy/v5/util"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // the test server logs every request
	os.Exit(m.Run())
}

// testRepo is a bare repository on disk that a test commits to.
type testRepo struct {
	t    testing.TB
	repo *gogit.Repository
	tree *gogit.Worktree
	dir  string
	when time.Time
}

// newRepo makes a repository with the branch main in dir.
func newRepo(t testing.TB, dir string) *testRepo {
	t.Helper()
	s := filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRUDefault())
	repo, err := gogit.InitWithOptions(s, memfs.New(), gogit.InitOptions{DefaultBranch: "refs/heads/main"})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	return &testRepo{t: t, repo: repo, tree: tree, dir: dir, when: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (r *testRepo) signature() *object.Signature {
	r.when = r.when.Add(time.Minute)
	return &object.Signature{Name: "A", Email: "a@example.com", When: r.when}
}

// commit adds files; a name that ends in ! is executable.
func (r *testRepo) commit(message string, files map[string]string) plumbing.Hash {
	r.t.Helper()
	for name, content := range files {
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, "!") {
			name, mode = strings.TrimSuffix(name, "!"), 0o755
		}
		if err := util.WriteFile(r.tree.Filesystem, name, []byte(content), mode); err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.tree.Add(name); err != nil {
			r.t.Fatal(err)
		}
	}
	h, err := r.tree.Commit(message, &gogit.CommitOptions{Author: r.signature(), AllowEmptyCommits: true})
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *testRepo) ref(name string, h plumbing.Hash) {
	r.t.Helper()
	if err := r.repo.Storer.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(name), h)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *testRepo) annotate(tag string, h plumbing.Hash) {
	r.t.Helper()
	if _, err := r.repo.CreateTag(tag, h, &gogit.CreateTagOptions{Tagger: r.signature(), Message: "m"}); err != nil {
		r.t.Fatal(err)
	}
}

// submodule commits a tree that is parent's, a .gitmodules file, and a link to a
// commit of another repository at path.
func (r *testRepo) submodule(path, url string, h plumbing.Hash) plumbing.Hash {
	r.t.Helper()
	r.commit("list module", map[string]string{".gitmodules": "[submodule \"m\"]\n\tpath = " + path + "\n\turl = " + url + "\n"})
	head, err := r.repo.Head()
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := r.repo.CommitObject(head.Hash())
	if err != nil {
		r.t.Fatal(err)
	}
	t, err := c.Tree()
	if err != nil {
		r.t.Fatal(err)
	}
	t.Entries = append(t.Entries, object.TreeEntry{Name: path, Mode: filemode.Submodule, Hash: h})
	sort.Sort(object.TreeEntrySorter(t.Entries))
	return r.rawCommit(t, head.Hash())
}

func (r *testRepo) rawCommit(t *object.Tree, parents ...plumbing.Hash) plumbing.Hash {
	r.t.Helper()
	store := func(o interface {
		Encode(plumbing.EncodedObject) error
	}) plumbing.Hash {
		e := r.repo.Storer.NewEncodedObject()
		if err := o.Encode(e); err != nil {
			r.t.Fatal(err)
		}
		h, err := r.repo.Storer.SetEncodedObject(e)
		if err != nil {
			r.t.Fatal(err)
		}
		return h
	}
	author := *r.signature()
	h := store(&object.Commit{Author: author, Committer: author, Message: "raw", TreeHash: store(t), ParentHashes: parents})
	r.ref("refs/heads/main", h)
	return h
}

// gitServer serves the repositories below its root, and counts requests.
type gitServer struct {
	*gittestserver.GitServer
	requests atomic.Int32
}

func serve(t testing.TB, middleware ...gittestserver.HTTPMiddleware) *gitServer {
	t.Helper()
	s := &gitServer{GitServer: gittestserver.NewGitServer(t.TempDir())}
	s.AddHTTPMiddlewares(append(middleware, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.requests.Add(1)
			next.ServeHTTP(w, r)
		})
	})...)
	if err := s.StartHTTP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.StopHTTP)
	return s
}

func (s *gitServer) repo(t testing.TB, name string) *testRepo {
	return newRepo(t, filepath.Join(s.Root(), name))
}

// into returns an empty directory in one of its own, as Fetch wants it.
func into(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "content")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func filesIn(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode()&0o111 != 0 {
			rel += "!"
		}
		b, err := os.ReadFile(p)
		files[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestReferences(t *testing.T) {
	server := serve(t)
	r := server.repo(t, "infra.git")
	first := r.commit("first", map[string]string{"f": "1"})
	r.ref("refs/tags/light", first)
	r.annotate("v1.0.0", first)
	second := r.commit("second", map[string]string{"f": "2"})
	r.ref("refs/tags/v1.1.0", second)
	r.ref("refs/tags/v1.1.0+b2", second)
	r.ref("refs/tags/v2.0.0-rc.1", second)
	third := r.commit("third", map[string]string{"f": "3"})
	r.ref("refs/tags/v1.1.0+b1", third) // the same version, committed later
	r.ref("refs/heads/feature/x", first)
	r.ref("refs/heads/master", second)
	r.ref("refs/pull/7/head", third)
	aside := r.commit("on no branch", map[string]string{"f": "pr"})
	r.ref("refs/pull/8/head", aside)
	r.ref("refs/heads/main", third)
	localPath := r.dir

	for name, c := range map[string]struct {
		reason string
		ref    Reference
		want   string // revision
		file   string
	}{
		"default":          {"Flux's default branch is master", Reference{}, "master@sha1:" + second.String(), "2"},
		"branch":           {"the usual case", Reference{Branch: "main"}, "main@sha1:" + third.String(), "3"},
		"branch with /":    {"the whole name is kept", Reference{Branch: "feature/x"}, "feature/x@sha1:" + first.String(), "1"},
		"light tag":        {"points to the commit itself", Reference{Tag: "light"}, "light@sha1:" + first.String(), "1"},
		"annotated tag":    {"the commit counts, not the tag object", Reference{Tag: "v1.0.0"}, "v1.0.0@sha1:" + first.String(), "1"},
		"tag over semver":  {"order of the code, not of its documentation", Reference{Tag: "light", SemVer: ">=1", Branch: "main"}, "light@sha1:" + first.String(), "1"},
		"semver":           {"highest in the range", Reference{SemVer: "1.0.x"}, "v1.0.0@sha1:" + first.String(), "1"},
		"semver tie":       {"build metadata does not order; the last commit does", Reference{SemVer: "~1.1"}, "v1.1.0+b1@sha1:" + third.String(), "3"},
		"semver prerelase": {"only when the range has one", Reference{SemVer: ">=2.0.0-0"}, "v2.0.0-rc.1@sha1:" + second.String(), "2"},
		"name of branch":   {"the full name is in the revision", Reference{Name: "refs/heads/main", Branch: "x"}, "refs/heads/main@sha1:" + third.String(), "3"},
		"name of tag":      {"also peeled", Reference{Name: "refs/tags/v1.0.0^{}"}, "refs/tags/v1.0.0^{}@sha1:" + first.String(), "1"},
		"pull request":     {"its commit is on a branch", Reference{Name: "refs/pull/7/head"}, "refs/pull/7/head@sha1:" + third.String(), "3"},
		"fork":             {"its commit is on no branch; Flux cannot fetch it", Reference{Name: "refs/pull/8/head"}, "refs/pull/8/head@sha1:" + aside.String(), "pr"},
		"HEAD":             {"symbolic", Reference{Name: "HEAD"}, "HEAD@sha1:" + third.String(), "3"},
		"commit":           {"no name in the revision", Reference{Commit: first.String(), Tag: "v1.1.0"}, "sha1:" + first.String(), "1"},
		"commit on branch": {"with its name", Reference{Commit: first.String(), Branch: "main"}, "main@sha1:" + first.String(), "1"},
	} {
		for place, url := range map[string]string{"http": server.HTTPAddress() + "/infra.git", "local": localPath} {
			t.Run(name+" "+place, func(t *testing.T) {
				req := Request{URL: url, Ref: c.ref, AllowLocal: true}
				dir := into(t)
				got, err := Fetch(t.Context(), req, dir)
				if err != nil {
					t.Fatal(err)
				}
				if got.Revision != c.want || got.Unchanged {
					t.Errorf("revision %s, unchanged %v; want %s: %s", got.Revision, got.Unchanged, c.want, c.reason)
				}
				if diff := cmp.Diff(map[string]string{"f": c.file}, filesIn(t, dir)); diff != "" {
					t.Errorf("%s: %s", c.reason, diff)
				}
				if !fluxgit.IsConcreteCommit(got.Commit) || got.Commit.Message == "" {
					t.Error("the commit is not complete")
				}
				if around, _ := os.ReadDir(filepath.Dir(dir)); len(around) != 1 {
					t.Errorf("left behind: %v", around)
				}
				// Nothing changed: one request at most, nothing fetched.
				server.requests.Store(0)
				req.Known = got.Revision
				again, err := Fetch(t.Context(), req, into(t))
				if err != nil {
					t.Fatal(err)
				}
				if !again.Unchanged || again.Revision != c.want {
					t.Errorf("second time: %+v", again)
				}
				if n := server.requests.Load(); n > 1 && name != "semver tie" {
					t.Errorf("%d requests for an unchanged reference", n)
				}
			})
		}
	}
}

func TestTagsCanBeVerified(t *testing.T) {
	server := serve(t)
	r := server.repo(t, "r.git")
	c := r.commit("c", map[string]string{"f": "1"})
	r.annotate("v1", c)
	r.ref("refs/tags/light", c)
	got, err := Fetch(t.Context(), Request{URL: server.HTTPAddress() + "/r.git", Ref: Reference{Tag: "v1"}}, into(t))
	if err != nil {
		t.Fatal(err)
	}
	if tag := got.Commit.ReferencingTag; tag == nil || tag.Name != "v1" || !fluxgit.IsAnnotatedTag(*tag) {
		t.Errorf("tag = %+v", tag)
	}
	got, err = Fetch(t.Context(), Request{URL: server.HTTPAddress() + "/r.git", Ref: Reference{Name: "refs/tags/light"}}, into(t))
	if err != nil {
		t.Fatal(err)
	}
	if tag := got.Commit.ReferencingTag; tag == nil || tag.Name != "light" || fluxgit.IsAnnotatedTag(*tag) {
		t.Errorf("light tag = %+v", tag)
	}
}

func TestContent(t *testing.T) {
	dir := t.TempDir()
	r := newRepo(t, dir)
	if err := r.tree.Filesystem.Symlink("/etc/passwd", "link"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tree.Add("link"); err != nil {
		t.Fatal(err)
	}
	r.commit("c", map[string]string{"a/b/main.tf": "1", "a/x.tf": "2", "ab/y.tf": "3", "run.sh!": "4", "README": "5"})
	all := map[string]string{"a/b/main.tf": "1", "a/x.tf": "2", "ab/y.tf": "3", "run.sh!": "4", "README": "5"}
	for name, c := range map[string]struct {
		reason string
		sparse []string
		want   map[string]string
		err    error
	}{
		"all":       {"executables stay so, links are left out", nil, all, nil},
		"sparse":    {"whole path elements: a is not ab", []string{"a"}, map[string]string{"a/b/main.tf": "1", "a/x.tf": "2"}, nil},
		"deeper":    {"with or without ./", []string{"./a/b", "ab/"}, map[string]string{"a/b/main.tf": "1", "ab/y.tf": "3"}, nil},
		"root":      {"means everything", []string{"."}, all, nil},
		"not there": {"a typing error, not an empty artifact", []string{"a", "c"}, nil, ErrSparse},
	} {
		to := into(t)
		_, err := Fetch(t.Context(), Request{URL: dir, Ref: Reference{Branch: "main"}, Sparse: c.sparse, AllowLocal: true}, to)
		if !errors.Is(err, c.err) {
			t.Fatalf("%s: %v; want %v: %s", name, err, c.err, c.reason)
		}
		if diff := cmp.Diff(c.want, filesIn(t, to)); c.err == nil && diff != "" {
			t.Errorf("%s: %s: %s", name, c.reason, diff)
		}
	}
}

func TestHostileTrees(t *testing.T) {
	for _, name := range []string{"..", ".", "a/b", `..\x`} {
		dir := t.TempDir()
		r := newRepo(t, dir)
		r.commit("c", map[string]string{"f": "1"})
		head, _ := r.repo.Head()
		c, _ := r.repo.CommitObject(head.Hash())
		tree, _ := c.Tree()
		r.rawCommit(&object.Tree{Entries: []object.TreeEntry{{Name: name, Mode: filemode.Regular, Hash: tree.Entries[0].Hash}}})
		to := into(t)
		if _, err := Fetch(t.Context(), Request{URL: dir, Ref: Reference{Branch: "main"}, AllowLocal: true}, to); err == nil {
			t.Errorf("a tree with the entry %q was written", name)
		}
		if got := filesIn(t, filepath.Dir(to)); len(got) > 0 {
			t.Errorf("%q: wrote %v", name, got)
		}
	}
}

func TestSubmodules(t *testing.T) {
	var authorized atomic.Value // the Authorization header of the last request for module.git
	other := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			authorized.Store(r.Header.Get("Authorization"))
			next.ServeHTTP(w, r)
		})
	})
	server := serve(t)
	inner := server.repo(t, "inner.git").commit("inner", map[string]string{"i": "inner"})
	foreign := other.repo(t, "module.git").commit("foreign", map[string]string{"o": "other"})
	middle := server.repo(t, "middle.git")
	middle.commit("middle", map[string]string{"m": "middle"})
	middleHead := middle.submodule("deep", "../inner.git", inner)

	outer := server.repo(t, "outer.git")
	outer.commit("outer", map[string]string{"f": "outer"})
	outer.submodule("mod", server.HTTPAddress()+"/middle.git", middleHead)
	req := Request{URL: server.HTTPAddress() + "/outer.git", Ref: Reference{Branch: "main"}}
	modules := ".gitmodules"

	dir := into(t)
	if _, err := Fetch(t.Context(), req, dir); err != nil {
		t.Fatal(err)
	}
	got := filesIn(t, dir)
	delete(got, modules)
	if diff := cmp.Diff(map[string]string{"f": "outer"}, got); diff != "" {
		t.Errorf("without submodules: %s", diff)
	}
	if info, err := os.Stat(filepath.Join(dir, "mod")); err != nil || !info.IsDir() {
		t.Errorf("git leaves an empty directory there: %v", err)
	}

	req.Submodules = true
	dir = into(t)
	if _, err := Fetch(t.Context(), req, dir); err != nil {
		t.Fatal(err)
	}
	got = filesIn(t, dir)
	delete(got, modules)
	delete(got, "mod/"+modules)
	if diff := cmp.Diff(map[string]string{"f": "outer", "mod/m": "middle", "mod/deep/i": "inner"}, got); diff != "" {
		t.Errorf("with submodules: %s", diff)
	}

	exposing := server.repo(t, "exposing.git")
	exposing.commit("c", map[string]string{"f": "1"})
	exposing.submodule("mod", other.HTTPAddress()+"/module.git", foreign)
	req.URL = server.HTTPAddress() + "/exposing.git"
	host := strings.TrimPrefix(server.HTTPAddress(), "http://")
	req.Auth = &fluxgit.AuthOptions{Transport: fluxgit.HTTP, Host: host, Username: "u", Password: "p"}
	if _, err := Fetch(t.Context(), req, into(t)); err != nil {
		t.Fatal(err)
	}
	if authorized.Load() != "" {
		t.Error("the credentials went to another host")
	}

	// A repository that others write must not read this machine's.
	secret := newRepo(t, t.TempDir())
	secretHead := secret.commit("c", map[string]string{"s": "secret"})
	climbing := server.repo(t, "climbing.git")
	climbing.commit("c", map[string]string{"f": "1"})
	climbing.submodule("mod", "file://"+secret.dir, secretHead)
	req.URL, req.AllowLocal = server.HTTPAddress()+"/climbing.git", true
	if _, err := Fetch(t.Context(), req, into(t)); !errors.Is(err, ErrLocal) {
		t.Errorf("a remote repository's local submodule: %v", err)
	}

	// A local repository's may be.
	local := newRepo(t, filepath.Join(t.TempDir(), "local"))
	local.commit("c", map[string]string{"f": "1"})
	local.submodule("mod", secret.dir, secretHead)
	dir = into(t)
	if _, err := Fetch(t.Context(), Request{URL: local.dir, Ref: Reference{Branch: "main"}, Submodules: true, AllowLocal: true}, dir); err != nil {
		t.Fatal(err)
	}
	if got := filesIn(t, dir)["mod/s"]; got != "secret" {
		t.Errorf("local submodule: %q", got)
	}
}

func TestResolveURL(t *testing.T) {
	for name, c := range map[string]struct{ parent, url, want string }{
		"absolute":       {"https://h/a/b.git", "https://o/c.git", "https://o/c.git"},
		"sibling":        {"https://h/a/b.git", "../c.git", "https://h/a/c.git"},
		"child":          {"https://h/a/b.git", "./c.git", "https://h/a/b.git/c.git"},
		"short ssh":      {"https://h/a/b.git", "git@o:a/c.git", "ssh://git@o/a/c.git"},
		"sibling by ssh": {"ssh://git@h/a/b.git", "../../x/c.git", "ssh://git@h/x/c.git"},
		"local sibling":  {"/srv/a", "../b", "/srv/b"},
	} {
		got, err := resolveURL(c.parent, c.url)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if _, err := resolveURL("https://h/a", "nonsense"); err == nil {
		t.Error("nonsense was accepted")
	}
}

func TestWhatIsNotThere(t *testing.T) {
	server := serve(t)
	r := server.repo(t, "r.git")
	commit := r.commit("c", map[string]string{"f": "1"})
	server.repo(t, "empty.git")
	elsewhere := newRepo(t, t.TempDir()).commit("elsewhere", map[string]string{"f": "2"})
	r.ref("refs/heads/other", r.commit("d", nil))
	r.ref("refs/heads/main", commit)
	url := server.HTTPAddress() + "/r.git"
	head, _ := r.repo.Reference("refs/heads/other", true)
	for name, c := range map[string]struct {
		req  Request
		want error
		text string
	}{
		"branch":              {Request{URL: url, Ref: Reference{Branch: "nope"}}, ErrReference, "branch 'nope' does not exist"},
		"default branch":      {Request{URL: url}, ErrReference, "branch 'master' (the default, as spec.ref names none) does not exist"},
		"tag":                 {Request{URL: url, Ref: Reference{Tag: "nope"}}, ErrReference, "tag 'nope' does not exist"},
		"name":                {Request{URL: url, Ref: Reference{Name: "refs/x/y"}}, ErrReference, "reference 'refs/x/y' does not exist"},
		"bad name":            {Request{URL: url, Ref: Reference{Name: "/refs"}}, ErrReference, "slash"},
		"semver":              {Request{URL: url, Ref: Reference{SemVer: ">1"}}, ErrReference, "no tag matches"},
		"bad semver":          {Request{URL: url, Ref: Reference{SemVer: "what?"}}, ErrReference, "version range 'what?'"},
		"short commit":        {Request{URL: url, Ref: Reference{Commit: "abc"}}, ErrReference, "not a full hash"},
		"commit":              {Request{URL: url, Ref: Reference{Commit: elsewhere.String()}}, ErrReference, "is not on any branch or tag"},
		"commit elsewhere":    {Request{URL: url, Ref: Reference{Commit: head.Hash().String(), Branch: "main"}}, ErrReference, "is not on branch 'main'"},
		"empty":               {Request{URL: server.HTTPAddress() + "/empty.git", Ref: Reference{Branch: "main"}}, ErrEmpty, "empty"},
		"repository":          {Request{URL: server.HTTPAddress() + "/nope.git", Ref: Reference{Branch: "main"}}, nil, "not found"},
		"local, not allowed":  {Request{URL: "file:///tmp"}, ErrLocal, "not allowed"},
		"local path":          {Request{URL: "./nope", AllowLocal: true}, gogit.ErrRepositoryNotExists, "there is no git repository"},
		"local, with a host":  {Request{URL: "file://host/x", AllowLocal: true}, nil, "absolute"},
		"local, empty":        {Request{URL: filepath.Join(server.Root(), "empty.git"), AllowLocal: true, Ref: Reference{Branch: "main"}}, ErrEmpty, "empty"},
		"nobody listens":      {Request{URL: "http://127.0.0.1:1/r.git"}, nil, "connection refused"},
		"unknown transport":   {Request{URL: "ftp://h/r.git", Auth: &fluxgit.AuthOptions{Transport: "ftp"}}, nil, "transport 'ftp' is not supported"},
		"both kinds of login": {Request{URL: url, Auth: &fluxgit.AuthOptions{Transport: fluxgit.HTTP, Username: "u", BearerToken: "t"}}, nil, "at the same time"},
	} {
		_, err := Fetch(t.Context(), c.req, into(t))
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %v with %q", name, err, c.want, c.text)
		}
	}
}

func TestDeadline(t *testing.T) {
	silent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-silent:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(silent)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Fetch(ctx, Request{URL: server.URL}, into(t))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "in time") {
		t.Errorf("Fetch from a silent server: %v", err)
	}
}

func TestErrorsHideCredentials(t *testing.T) {
	for _, url := range []string{"http://user:hunter2@127.0.0.1:1/r.git", "https://user:hunter2@127.0.0.1:1/r.git"} {
		_, err := Fetch(t.Context(), Request{URL: url}, into(t))
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "127.0.0.1:1/r.git") {
			t.Errorf("error: %v", err)
		}
	}
	if got := Redact("ssh://git@host/x"); got != "ssh://git@host/x" {
		t.Errorf("a login name alone is no secret: %s", got)
	}
}
