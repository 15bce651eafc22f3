// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	fluxgit "github.com/fluxcd/pkg/git"
	"github.com/fluxcd/pkg/sourceignore"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/terrace-dev/terrace/internal/artifact"
	gitsource "github.com/terrace-dev/terrace/internal/source/git"
)

// tree is the content that a unit is rendered from. It is a copy, as the source's
// artifact would hold it, in a directory of its own.
type tree struct {
	dir      string
	path     string // of the unit within dir
	revision string
	work     string // holds all of it, and goes away with it
}

// close removes the tree, whose directories are read-only.
func (t *tree) close() {
	_ = filepath.WalkDir(t.work, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = os.Chmod(name, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(t.work)
}

// content fetches what the flags and the unit's source say. The caller closes it.
func (r *rendering) content(ctx context.Context, f renderFlags) (_ *tree, err error) {
	work, err := os.MkdirTemp("", "terrace-render-")
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", r, err)
	}
	t := &tree{path: r.unit.Spec.Path, work: work}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	o := artifact.Options{Dir: filepath.Join(work, "artifacts")}
	if r.cluster != nil {
		if o.HTTPClient, err = r.cluster.artifacts(); err != nil {
			return nil, err
		}
	}
	store, err := artifact.NewStore(o)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", r, err)
	}
	a, err := r.artifact(ctx, store, t, f)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", r, err)
	}
	dir, _, err := store.Tree(ctx, a)
	if err != nil {
		return nil, hintf(fmt.Errorf("build %s: its source's artifact: %w", r, err), "--path names a local directory to build instead")
	}
	t.dir, t.revision = dir, a.Revision
	return t, nil
}

// artifact is the one of the unit's source, or one that is made of what the flags name.
func (r *rendering) artifact(ctx context.Context, store *artifact.Store, t *tree, f renderFlags) (*fluxmeta.Artifact, error) {
	if f.path != "" {
		root, inside, err := locate(f.path, r.unit.Spec.Path)
		if err != nil {
			return nil, err
		}
		t.path = inside
		return archive(ctx, store, root, "local", nil)
	}
	src, err := r.source(ctx)
	if err != nil {
		return nil, err
	}
	if f.revision == "" {
		fields, found, err := unstructured.NestedMap(src.Object, "status", "artifact")
		if err != nil || !found {
			ready, _ := src.condition("Ready")
			return nil, fmt.Errorf("%s has no artifact: %s", src, ready.Message)
		}
		a := &fluxmeta.Artifact{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, a); err != nil {
			return nil, fmt.Errorf("read %s: status.artifact: %w", src, err)
		}
		return a, nil
	}
	if src.Kind.Name != "GitRepository" {
		return nil, fmt.Errorf("--revision %s: its source is %s, and only a GitRepository can be read at another revision", f.revision, src)
	}
	if list, _ := nestedMaps(src, "spec", "include"); len(list) > 0 {
		return nil, fmt.Errorf("--revision %s: %s includes other repositories, which have no revision by that name", f.revision, src)
	}
	dir := filepath.Join(t.work, "checkout")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	found, err := r.checkout(ctx, src, f.revision, dir)
	if err != nil {
		return nil, fmt.Errorf("fetch revision %s of %s: %w", f.revision, src, err)
	}
	return archive(ctx, store, dir, found.Revision, ignored(src))
}

// source is the object that spec.sourceRef names.
func (r *rendering) source(ctx context.Context) (object, error) {
	sourceRef := r.unit.Spec.SourceRef
	k, ok := kindOf(sourceRef.Kind)
	if !ok || k.Role != source {
		return object{}, fmt.Errorf("spec.sourceRef.kind is %q: use one of %s", sourceRef.Kind, kindNames(ofRole(source)))
	}
	in := *r.cluster
	in.namespace = r.unit.Namespace
	if sourceRef.Namespace != "" {
		in.namespace = sourceRef.Namespace
	}
	return in.find(ctx, ref{[]kind{k}, sourceRef.Name})
}

// ignored is spec.ignore of a source, nil when it has none.
func ignored(src object) *string {
	if s, found, _ := unstructured.NestedString(src.Object, "spec", "ignore"); found {
		return &s
	}
	return nil
}

// archive makes an artifact of a directory, without what a source leaves out: what
// the .sourceignore files and ignore name, or else Flux's defaults.
func archive(ctx context.Context, store *artifact.Store, dir, revision string, ignore *string) (*fluxmeta.Artifact, error) {
	patterns, err := sourceignore.LoadIgnorePatterns(dir, nil)
	if err != nil {
		return nil, fmt.Errorf("read %s: .sourceignore: %w", dir, err)
	}
	if ignore != nil {
		patterns = append(patterns, sourceignore.ReadPatterns(strings.NewReader(*ignore), nil)...)
	}
	matcher := sourceignore.NewDefaultMatcher(nil, nil)
	if len(patterns) > 0 {
		matcher = sourceignore.NewMatcher(append(sourceignore.VCSPatterns(nil), patterns...))
	}
	return store.Archive(ctx, artifact.Owner{Kind: "GitRepository", Namespace: "local", Name: "local"}, revision, "local.tar.gz", dir,
		func(name string, info fs.FileInfo) bool {
			return matcher.Match(strings.Split(name, "/"), info.IsDir())
		})
}

// locate finds, for a directory that a user named, the root of the tree that it
// belongs to and the unit's path in it. The directory is the root when it is that of
// a repository, or when the unit's path leads on from it; it is the path itself when
// it ends like it, or lies in a repository.
func locate(dir, unitPath string) (root, inside string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", "", err
	}
	if info, err := os.Stat(dir); err != nil {
		return "", "", fmt.Errorf("--path: %w", err)
	} else if !info.IsDir() {
		return "", "", fmt.Errorf("--path: %s is not a directory", dir)
	}
	unitPath = strings.Trim(path.Clean("/"+filepath.ToSlash(unitPath)), "/")
	slashed := filepath.ToSlash(dir)
	switch {
	case unitPath == "", exists(filepath.Join(dir, ".git")):
		return dir, unitPath, nil
	case strings.HasSuffix(slashed, "/"+unitPath):
		return filepath.FromSlash(strings.TrimSuffix(slashed, "/"+unitPath)), unitPath, nil
	case exists(filepath.Join(dir, filepath.FromSlash(unitPath))):
		return dir, unitPath, nil
	}
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		if exists(filepath.Join(at, ".git")) {
			inside, err := filepath.Rel(at, dir)
			return at, filepath.ToSlash(inside), err
		}
	}
	return dir, "", nil
}

// fullHash is a commit's whole name.
var fullHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// checkout fetches a revision, as a person or a status names it, into dir.
func (r *rendering) checkout(ctx context.Context, src object, revision, dir string) (*gitsource.Checkout, error) {
	request := gitsource.Request{URL: src.text("spec", "url"), AllowLocal: true}
	request.Submodules, _, _ = unstructured.NestedBool(src.Object, "spec", "recurseSubmodules")
	request.Sparse, _, _ = unstructured.NestedStringSlice(src.Object, "spec", "sparseCheckout")
	repository, local := gitsource.Local(request.URL)
	if !local {
		if err := r.authenticate(ctx, src, &request); err != nil {
			return nil, err
		}
	}
	// Of a revision as a status has it, the commit alone says which content it is.
	if _, hash, ok := strings.Cut(revision, "@sha1:"); ok {
		revision = hash
	}
	if local && !fullHash.MatchString(revision) {
		if hash, err := resolve(repository, revision); err == nil {
			revision = hash
		}
	}
	if fullHash.MatchString(revision) {
		request.Ref = gitsource.Reference{Commit: revision}
		return gitsource.Fetch(ctx, request, dir)
	}
	request.Ref = gitsource.Reference{Branch: revision}
	found, err := gitsource.Fetch(ctx, request, dir)
	if errors.Is(err, gitsource.ErrReference) {
		request.Ref = gitsource.Reference{Tag: revision}
		found, err = gitsource.Fetch(ctx, request, dir)
	}
	if errors.Is(err, gitsource.ErrReference) {
		return nil, hintf(err, "name a branch, a tag or all 40 digits of a commit")
	}
	return found, err
}

// resolve finds the commit that a name stands for in a repository of this machine:
// also HEAD~1 and the first digits of a hash.
func resolve(dir, name string) (string, error) {
	repo, err := gogit.PlainOpenWithOptions(dir, &gogit.PlainOpenOptions{DetectDotGit: true})
	if err != nil {
		return "", err
	}
	hash, err := repo.ResolveRevision(plumbing.Revision(name))
	if err != nil {
		return "", err
	}
	return hash.String(), nil
}

// authenticate adds the credentials that the source's Secret has.
func (r *rendering) authenticate(ctx context.Context, src object, request *gitsource.Request) error {
	u, err := url.Parse(request.URL)
	if err != nil {
		return fmt.Errorf("spec.url: %w", errors.New("it is not a URL"))
	}
	if p := src.text("spec", "provider"); p != "" && p != "generic" {
		return hintf(fmt.Errorf("its credentials are those of provider %s, which are Terrace's own", p), "check the revision out and name it with --path")
	}
	var data map[string][]byte
	if name := src.text("spec", "secretRef", "name"); name != "" {
		if data, err = r.cluster.data(ctx, "Secret", src.GetNamespace(), name); err != nil {
			return hintf(fmt.Errorf("spec.secretRef: %w", r.cluster.explain("get secret/"+name, err)), "check the revision out and name it with --path")
		}
	}
	request.Auth, err = fluxgit.NewAuthOptions(*u, data)
	if err != nil {
		return fmt.Errorf("spec.secretRef: %w", err)
	}
	return nil
}

// artifacts is a client for the URLs of artifacts: those of a Service of the
// cluster are reached through the API server, as a pod's name is nothing outside.
func (c *cluster) artifacts() (*http.Client, error) {
	api, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	host, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return &http.Client{Transport: services{api: api.Transport, host: host, direct: http.DefaultTransport}}, nil
}

// services sends requests for Services of a cluster through its API server.
type services struct {
	api, direct http.RoundTripper
	host        *url.URL
}

// serviceHost is the name of a Service: its own and its namespace's.
var serviceHost = regexp.MustCompile(`^([a-z0-9-]+)\.([a-z0-9-]+)\.svc(\.|$)`)

// RoundTrip implements http.RoundTripper.
func (s services) RoundTrip(req *http.Request) (*http.Response, error) {
	m := serviceHost.FindStringSubmatch(req.URL.Hostname())
	if m == nil {
		return s.direct.RoundTrip(req)
	}
	port := req.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[req.URL.Scheme]
	}
	through := req.Clone(req.Context())
	to := *s.host
	to.Path = path.Join(to.Path, "/api/v1/namespaces", m[2], "services", req.URL.Scheme+":"+m[1]+":"+port, "proxy", req.URL.Path)
	to.RawQuery = req.URL.RawQuery
	through.URL, through.Host = &to, ""
	return s.api.RoundTrip(through)
}
