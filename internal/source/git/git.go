// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package git fetches the content of one revision of a Git repository.
//
// A request names a repository and a reference; out come a directory with the
// files of the commit that the reference points to, and the commit itself, whose
// signature the caller can verify. The reference is resolved by listing the
// remote's references, one request; objects are fetched only when that shows
// another commit than the caller has. Nothing is kept between calls, no git
// binary is needed, and no file but those in the given directory is written
// (symbolic links are left out, because artifacts hold none).
//
// Repositories of this machine are read in place and can be watched.
package git

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	fluxgit "github.com/fluxcd/pkg/git"
	// Its init lifts a restriction of go-git that keeps it from Azure DevOps and
	// CodeCommit, which is right as long as every fetch starts from nothing.
	_ "github.com/fluxcd/pkg/git/gogit"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

var (
	// ErrEmpty means that the repository has no commit.
	ErrEmpty = errors.New("git repository is empty")
	// ErrReference means that the repository has no such reference, or none that
	// matches the version range.
	ErrReference = errors.New("no such reference")
	// ErrNotAccepted means that the server wants other credentials, or any.
	ErrNotAccepted = errors.New("credentials are not accepted")
	// ErrHostKey means that the SSH server's key is not the one in known_hosts.
	ErrHostKey = errors.New("host key is not trusted")
	// ErrLocal means that the URL is local and the request does not allow that.
	ErrLocal = errors.New("local repositories are not allowed")
	// ErrSparse means that a directory to check out is not in the repository.
	ErrSparse = errors.New("no such directory in the repository")
)

// defaultBranch is what an empty Reference means, in Flux's API and so in ours.
const defaultBranch = "master"

// Reference says which commit is wanted. The first field that is set counts, in
// the order Commit, Name, Tag, SemVer, Branch; none means the branch master.
type Reference struct {
	Branch string
	Tag    string
	// SemVer is a range; the highest version among the tags counts, and of
	// versions that differ in build metadata only, the one committed last.
	SemVer string
	// Name is a full reference, such as refs/pull/420/head.
	Name string
	// Commit is a full hash. With Branch it is looked for on that branch only.
	Commit string
}

// Request is what to fetch and how.
type Request struct {
	// URL is http, https, ssh, or local: file:///abs, /abs, ./rel or ../rel.
	URL string
	Ref Reference
	// Auth are the credentials and the trust for the URL's transport; see
	// fluxgit.NewAuthOptions. Nil means none.
	Auth *fluxgit.AuthOptions
	// Proxy is used for all connections; nil means the environment's for http.
	Proxy *url.URL
	// Submodules fetches them too, recursively. Credentials go along to the same
	// host only.
	Submodules bool
	// Sparse are the directories that are wanted; empty means everything.
	Sparse []string
	// Known is the revision that the caller has. If the reference still points
	// to it, nothing is fetched.
	Known string
	// AllowLocal allows local URLs.
	AllowLocal bool
}

// Checkout is what was found.
type Checkout struct {
	// Commit has only Hash and Reference when Unchanged, else everything that is
	// needed to verify it, its tag included.
	Commit fluxgit.Commit
	// Revision is branch@sha1:hash, tag@sha1:hash, with Reference.Name
	// refs/…@sha1:hash, with Reference.Commit alone sha1:hash.
	Revision string
	// Unchanged means that the revision is the known one and nothing was fetched.
	Unchanged bool
}

// Fetch writes the files of the revision that r wants into the empty directory
// dir. It needs room for the repository's objects beside dir while it runs.
// Errors: ErrEmpty, ErrReference, ErrNotAccepted, ErrHostKey, ErrLocal,
// ErrSparse; none shows the URL's password or other credentials.
func Fetch(ctx context.Context, r Request, dir string) (*Checkout, error) {
	c, err := fetch(ctx, r, dir)
	if err != nil {
		return nil, r.explain(ctx, err)
	}
	return c, nil
}

func fetch(ctx context.Context, r Request, dir string) (*Checkout, error) {
	// A commit never changes: there is nothing to ask for.
	if c := r.pinned(); c != nil && r.known(c) {
		return &Checkout{Commit: *c, Revision: r.Known, Unchanged: true}, nil
	}
	repo, err := r.open(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer repo.close()
	targets, err := r.targets(ctx, repo)
	if err != nil {
		return nil, err
	}
	if len(targets) == 1 {
		if c := targets[0].partial(); r.known(c) {
			return &Checkout{Commit: *c, Revision: r.Known, Unchanged: true}, nil
		}
	}
	commit, target, err := newest(ctx, repo, targets)
	if err != nil {
		return nil, err
	}
	full, err := describe(repo.objects, commit, target)
	if err != nil {
		return nil, err
	}
	c := &Checkout{Commit: *full, Revision: r.revision(full)}
	if r.known(full) {
		c.Unchanged = true
		return c, nil
	}
	if err := r.export(ctx, repo, commit, dir); err != nil {
		return nil, err
	}
	return c, nil
}

// pinned is the commit that r names by its hash, or nil.
func (r Request) pinned() *fluxgit.Commit {
	if r.Ref.Commit == "" {
		return nil
	}
	return commitTarget(r.Ref).partial()
}

func commitTarget(ref Reference) target {
	t := target{commit: plumbing.NewHash(ref.Commit), pinned: true}
	if ref.Branch != "" {
		t.fetch = plumbing.NewBranchReferenceName(ref.Branch)
		t.reference = t.fetch
	}
	if ref.Name != "" { // not looked at, but part of the revision, as in Flux
		t.reference = plumbing.ReferenceName(ref.Name)
	}
	return t
}

func (r Request) targets(ctx context.Context, repo *repository) ([]target, error) {
	if r.Ref.Commit != "" {
		if !plumbing.IsHash(r.Ref.Commit) {
			return nil, fmt.Errorf("commit %q is not a full hash: %w", r.Ref.Commit, ErrReference)
		}
		return []target{commitTarget(r.Ref)}, nil
	}
	refs, err := repo.list(ctx)
	if err != nil {
		return nil, err
	}
	return resolve(refs, r.Ref)
}

func (r Request) known(c *fluxgit.Commit) bool {
	return r.Known != "" && fluxgit.TransformRevision(r.Known) == r.revision(c)
}

func (r Request) revision(c *fluxgit.Commit) string {
	if r.Ref.Name != "" {
		return c.AbsoluteReference()
	}
	return c.String()
}

// newest fetches the targets and returns the one that was committed last; there
// is more than one only when tags are the same version.
func newest(ctx context.Context, repo *repository, targets []target) (*object.Commit, target, error) {
	if err := repo.fetch(ctx, targets); err != nil {
		return nil, target{}, err
	}
	var best *object.Commit
	var of target
	for _, t := range targets {
		c, err := commitOf(repo.objects, t.commit)
		if err != nil {
			return nil, target{}, fmt.Errorf("read commit %s: %w", t.commit, err)
		}
		if best == nil || c.Committer.When.After(best.Committer.When) {
			best, of = c, t
		}
	}
	of.commit = best.Hash
	return best, of, nil
}

// open prepares to read the repository at r.URL; objects that must be fetched
// are kept in a directory of their own in scratch until close.
func (r Request) open(scratch string) (*repository, error) {
	if p, ok := Local(r.URL); ok {
		if !r.AllowLocal {
			return nil, ErrLocal
		}
		return openLocal(p)
	}
	dir, err := os.MkdirTemp(scratch, ".objects-")
	if err != nil {
		return nil, err
	}
	return openRemote(r, dir)
}

// Local returns the path of a local repository's URL, and whether it is one.
func Local(location string) (string, bool) {
	switch {
	case strings.HasPrefix(location, "file://"):
		u, err := url.Parse(location)
		if err != nil || u.Host != "" && u.Host != "localhost" {
			return "", true
		}
		return filepath.FromSlash(u.Path), true
	case filepath.IsAbs(location), strings.HasPrefix(location, "./"), strings.HasPrefix(location, "../"), location == ".", location == "..":
		return filepath.Clean(location), true
	default:
		return "", false
	}
}

// explain puts into words what went wrong, and keeps secrets out of them.
func (r Request) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("no complete answer in time: %w", context.DeadlineExceeded)
	case errors.Is(err, gogit.ErrRepositoryNotExists):
		err = fmt.Errorf("there is no git repository: %w", err)
	}
	shown := Redact(r.URL)
	text := fmt.Sprintf("fetch '%s': %v", shown, err)
	if shown != r.URL {
		// The transport repeats URLs in its errors, in more forms than one.
		text = strings.ReplaceAll(text, r.URL, shown)
		if u, perr := url.Parse(r.URL); perr == nil && u.User != nil {
			text = strings.ReplaceAll(text, u.User.String()+"@", "")
			if password, ok := u.User.Password(); ok && password != "" {
				text = strings.ReplaceAll(text, password, "***")
			}
		}
	}
	return &fetchError{text: text, err: err}
}

// fetchError has a text that is fit to be shown, and the error it tells of.
type fetchError struct {
	text string
	err  error
}

func (e *fetchError) Error() string { return e.text }
func (e *fetchError) Unwrap() error { return e.err }

// Redact returns a URL without the credentials that it may hold.
func Redact(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.User == nil {
		return location
	}
	if _, has := u.User.Password(); !has && u.Scheme == "ssh" {
		return location // only a login name
	}
	u.User = nil
	return u.String()
}
