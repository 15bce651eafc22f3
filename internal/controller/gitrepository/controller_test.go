// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/gittestserver"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-billy/v5/util"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/status"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // the test server logs every request
	os.Exit(m.Run())
}

// bench is a controller over a fake API server, with a git server beside it.
type bench struct {
	*Controller
	t         *testing.T
	client    client.WithWatch
	server    *gittestserver.GitServer
	requests  atomic.Int32 // to the git server
	writes    atomic.Int32 // to the API server
	events    []string
	artifacts *artifact.Store
	dir       string
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{sourcev1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&sourcev1.GitRepository{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				b.writes.Add(1)
				return c.Patch(ctx, o, p, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				b.writes.Add(1)
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	b.start("http://artifacts:80")
	b.server = gittestserver.NewGitServer(t.TempDir())
	b.server.AddHTTPMiddlewares(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b.requests.Add(1)
			next.ServeHTTP(w, r)
		})
	})
	if err := b.server.StartHTTP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.server.StopHTTP)
	return b
}

// start makes a controller, or another one as after a restart.
func (b *bench) start(url string) {
	b.t.Helper()
	var err error
	if b.artifacts, err = artifact.NewStore(artifact.Options{Dir: b.dir, AdvertisedURL: url}); err != nil {
		b.t.Fatal(err)
	}
	b.Controller, err = New(Options{
		Client: b.client, APIReader: b.client, Artifacts: b.artifacts, Recorder: b,
		Dir: b.t.TempDir(), AllowLocal: true, Jitter: func(d time.Duration) time.Duration { return d },
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) Event(o runtime.Object, kind, reason, message string) {
	b.AnnotatedEventf(o, nil, kind, reason, "%s", message)
}

func (b *bench) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	b.AnnotatedEventf(o, nil, kind, reason, format, args...)
}

func (b *bench) AnnotatedEventf(_ runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	text := fmt.Sprintf("%s %s "+format, append([]any{kind, reason}, args...)...)
	if r := annotations["source.toolkit.fluxcd.io/revision"]; r != "" {
		text += " @" + r
	}
	b.events = append(b.events, text)
}

var key = types.NamespacedName{Namespace: "apps", Name: "infra"}

// gitRepository is an object as a user writes it, changed by change.
func gitRepository(url string, change ...func(*sourcev1.GitRepository)) *sourcev1.GitRepository {
	g := &sourcev1.GitRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Generation: 1, UID: "1"},
		Spec: sourcev1.GitRepositorySpec{
			URL: url, Interval: metav1.Duration{Duration: time.Minute}, Reference: &sourcev1.GitRepositoryRef{Branch: "main"},
		},
		Status: sourcev1.GitRepositoryStatus{ObservedGeneration: -1},
	}
	for _, c := range change {
		c(g)
	}
	return g
}

func secret(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func (b *bench) create(o client.Object) {
	b.t.Helper()
	given := o.DeepCopyObject().(client.Object)
	if err := b.client.Create(b.t.Context(), o); err != nil {
		b.t.Fatal(err)
	}
	if g, ok := given.(*sourcev1.GitRepository); ok {
		g.ResourceVersion = o.GetResourceVersion()
		if err := b.client.Status().Update(b.t.Context(), g); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) get() *sourcev1.GitRepository {
	b.t.Helper()
	g := &sourcev1.GitRepository{}
	if err := b.client.Get(b.t.Context(), key, g); err != nil {
		b.t.Fatal(err)
	}
	return g
}

// edit changes the object as a user does; a change of the spec is a generation.
func (b *bench) edit(change func(*sourcev1.GitRepository)) {
	b.t.Helper()
	g := b.get()
	before := g.Spec.DeepCopy()
	change(g)
	if !cmp.Equal(before, &g.Spec) {
		g.Generation++
	}
	if err := b.client.Update(b.t.Context(), g); err != nil {
		b.t.Fatal(err)
	}
}

// run reconciles once and returns the object as it is then. Counters and events
// are of this run only.
func (b *bench) run() (*sourcev1.GitRepository, ctrl.Result, error) {
	b.t.Helper()
	b.requests.Store(0)
	b.writes.Store(0)
	b.events = nil
	res, err := b.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: key})
	g := &sourcev1.GitRepository{}
	if gerr := b.client.Get(b.t.Context(), key, g); gerr != nil && !apierrors.IsNotFound(gerr) {
		b.t.Fatal(gerr)
	}
	if left, _ := os.ReadDir(b.o.Dir); len(left) > 0 {
		b.t.Errorf("left in the working directory: %v", left)
	}
	return g, res, err
}

// ready runs and expects a Ready object.
func (b *bench) ready() *sourcev1.GitRepository {
	b.t.Helper()
	g, res, err := b.run()
	if err != nil || res.RequeueAfter != time.Minute || !conditions.IsReady(g) {
		b.t.Fatalf("not ready: %v, %+v, %v", err, res, describe(g))
	}
	return g
}

// describe gives the conditions as type=status reason: message, sorted.
func describe(g *sourcev1.GitRepository) []string {
	var out []string
	for _, c := range g.Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(out)
	return out
}

func (b *bench) expect(what string, g *sourcev1.GitRepository, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, describe(g)); diff != "" {
		b.t.Errorf("%s: %s", what, diff)
	}
}

func (b *bench) files(a *meta.Artifact) map[string]string {
	b.t.Helper()
	tree, release, err := b.artifacts.Tree(b.t.Context(), a)
	if err != nil {
		b.t.Fatal(err)
	}
	defer release()
	files := map[string]string{}
	err = filepath.WalkDir(tree, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(tree, p)
		content, err := os.ReadFile(p)
		files[rel] = string(content)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return files
}

// testRepo is a repository with the branch main that a test commits to.
type testRepo struct {
	t    *testing.T
	repo *gogit.Repository
	tree *gogit.Worktree
	url  string
	dir  string
	n    int
}

func (b *bench) repo(name string) *testRepo {
	b.t.Helper()
	r := newRepo(b.t, filepath.Join(b.server.Root(), name))
	r.url = b.server.HTTPAddress() + "/" + name
	return r
}

func newRepo(t *testing.T, dir string) *testRepo {
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
	return &testRepo{t: t, repo: repo, tree: tree, dir: dir}
}

func (r *testRepo) author() *object.Signature {
	r.n++
	return &object.Signature{Name: "A", Email: "a@example.com", When: time.Date(2026, 1, 1, 0, r.n, 0, 0, time.UTC)}
}

func (r *testRepo) commit(message string, files map[string]string, change ...func(*gogit.CommitOptions)) string {
	r.t.Helper()
	for name, content := range files {
		if err := util.WriteFile(r.tree.Filesystem, name, []byte(content), 0o644); err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.tree.Add(name); err != nil {
			r.t.Fatal(err)
		}
	}
	o := &gogit.CommitOptions{Author: r.author(), AllowEmptyCommits: true}
	for _, c := range change {
		c(o)
	}
	h, err := r.tree.Commit(message, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return h.String()
}

func (r *testRepo) ref(name, hash string) {
	r.t.Helper()
	if err := r.repo.Storer.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(name), plumbing.NewHash(hash))); err != nil {
		r.t.Fatal(err)
	}
}

func stored(revision string) []string {
	return []string{
		"ArtifactInStorage=True Succeeded: stored artifact for revision '" + revision + "'",
		"Ready=True Succeeded: stored artifact for revision '" + revision + "'",
	}
}

// TestStory is the life of an object: created, unchanged, a commit, a request, a
// restart, suspended, deleted.
func TestStory(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	first := r.commit("Add network\n\nand more", map[string]string{"main.tf": "1"})
	b.create(gitRepository(r.url))

	g := b.ready()
	b.expect("created", g, stored("main@sha1:"+first)...)
	want := &meta.Artifact{
		Path:     "gitrepository/apps/infra/" + first + ".tar.gz",
		URL:      "http://artifacts:80/gitrepository/apps/infra/" + first + ".tar.gz",
		Revision: "main@sha1:" + first,
		Digest:   g.Status.Artifact.Digest, Size: g.Status.Artifact.Size, LastUpdateTime: g.Status.Artifact.LastUpdateTime,
		Metadata: map[string]string{"terrace.dev/commit-author": "A", "terrace.dev/commit-author-email": "a@example.com"},
	}
	if diff := cmp.Diff(want, g.Status.Artifact); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(g.Finalizers, sourcev1.SourceFinalizer) || g.Status.ObservedGeneration != 1 {
		t.Errorf("finalizers %v, observed %d", g.Finalizers, g.Status.ObservedGeneration)
	}
	if n := b.writes.Load(); n != 2 {
		t.Errorf("%d writes; want the finalizer and the status", n)
	}
	if diff := cmp.Diff([]string{"Normal NewArtifact stored artifact for commit 'Add network' @main@sha1:" + first}, b.events); diff != "" {
		t.Error(diff)
	}

	for range 2 {
		b.ready()
		if r, w := b.requests.Load(), b.writes.Load(); r != 1 || w != 0 || len(b.events) != 0 {
			t.Errorf("unchanged: %d requests, %d writes, events %v; want one listing only", r, w, b.events)
		}
	}

	second := r.commit("Change it", map[string]string{"main.tf": "2"})
	g = b.ready()
	b.expect("a commit", g, stored("main@sha1:"+second)...)
	if n := b.writes.Load(); n != 1 {
		t.Errorf("a commit: %d writes", n)
	}
	if diff := cmp.Diff(map[string]string{"main.tf": "2"}, b.files(g.Status.Artifact)); diff != "" {
		t.Error(diff)
	}

	b.edit(func(g *sourcev1.GitRepository) {
		g.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	})
	g = b.ready()
	if g.Status.LastHandledReconcileAt != "now" || b.writes.Load() != 1 {
		t.Errorf("requested: handled %q with %d writes", g.Status.LastHandledReconcileAt, b.writes.Load())
	}

	b.start("http://artifacts:80")
	b.ready()
	if r, w := b.requests.Load(), b.writes.Load(); r != 1 || w != 0 {
		t.Errorf("restart: %d requests, %d writes; want one listing only", r, w)
	}
	b.start("http://elsewhere:80")
	if g = b.ready(); !strings.HasPrefix(g.Status.Artifact.URL, "http://elsewhere:80/") || b.requests.Load() != 1 {
		t.Errorf("restart at another address: URL %s, %d requests", g.Status.Artifact.URL, b.requests.Load())
	}

	b.edit(func(g *sourcev1.GitRepository) { g.Spec.Suspend = true })
	third := r.commit("Not seen", map[string]string{"main.tf": "3"})
	g, res, err := b.run()
	if err != nil || !res.IsZero() || b.requests.Load() != 0 || g.Status.ObservedGeneration != g.Generation {
		t.Errorf("suspended: %v, %+v, %d requests", err, res, b.requests.Load())
	}
	b.expect("suspended", g, stored("main@sha1:"+second)...)
	b.edit(func(g *sourcev1.GitRepository) { g.Spec.Suspend = false })
	b.expect("resumed", b.ready(), stored("main@sha1:"+third)...)

	a := b.get().Status.Artifact
	if err := b.client.Delete(t.Context(), b.get()); err != nil {
		t.Fatal(err)
	}
	if _, res, err := b.run(); err != nil || !res.IsZero() {
		t.Fatalf("deleted: %+v, %v", res, err)
	}
	if err := b.client.Get(t.Context(), key, g); !apierrors.IsNotFound(err) {
		t.Errorf("the object is still there: %v", err)
	}
	if b.artifacts.Has(a) {
		t.Error("its artifact is still there")
	}
	if _, res, err := b.run(); err != nil || !res.IsZero() {
		t.Errorf("an object that is gone: %+v, %v", res, err)
	}
}

func TestLeftoversOfACrashGo(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(t.TempDir(), "fetch")
	for range 2 {
		b.o.Dir = dir
		if _, err := New(b.o); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "apps-infra-1", "content"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a controller was made of nothing")
	}
}

func TestLostArtifacts(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	first := r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository(r.url))
	a := b.ready().Status.Artifact
	hex := strings.TrimPrefix(a.Digest, "sha256:")
	file := filepath.Join(b.dir, "blobs", "artifacts", "sha256", hex[:2], hex)

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	g := b.ready()
	b.expect("file lost", g, stored("main@sha1:"+first)...)
	if !b.artifacts.Has(g.Status.Artifact) {
		t.Error("the artifact was not made again")
	}

	if err := os.WriteFile(file, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	g = b.ready()
	if !slices.ContainsFunc(b.events, func(e string) bool { return strings.HasPrefix(e, "Warning ArtifactVerificationFailed") }) {
		t.Errorf("events: %v", b.events)
	}
	if diff := cmp.Diff(map[string]string{"f": "1"}, b.files(g.Status.Artifact)); diff != "" {
		t.Error(diff)
	}

	// Lost, and the server is away too: the status must not name what is not there.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.server.StopHTTP()
	g, _, err := b.run()
	if err == nil || g.Status.Artifact != nil || conditions.Has(g, sourcev1.ArtifactInStorageCondition) {
		t.Errorf("lost and not fetched: %v, %v", err, describe(g))
	}
	if c := conditions.Get(g, meta.ReconcilingCondition); c == nil || c.Reason != meta.ProgressingWithRetryReason || c.Message != "building artifact" {
		t.Errorf("Reconciling = %+v", c)
	}
}

func TestFormerArtifactsAreCollected(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	var all []*meta.Artifact
	b.create(gitRepository(r.url))
	for i := range 4 {
		r.commit("c", map[string]string{"f": fmt.Sprint(i)})
		all = append(all, b.ready().Status.Artifact)
	}
	b.ready() // collection comes with the next look
	var kept []bool
	for _, a := range all {
		kept = append(kept, b.artifacts.Has(a))
	}
	if diff := cmp.Diff([]bool{false, false, true, true}, kept); diff != "" {
		t.Error(diff)
	}
}

// TestFailures checks for each what the user reads, that it is told once, that
// the old artifact stays, and that mending it is enough.
func TestFailures(t *testing.T) {
	const fetchFailed = sourcev1.FetchFailedCondition
	for name, c := range map[string]struct {
		reason    string
		secret    map[string]string // named creds
		change    func(*sourcev1.GitRepository)
		condition string
		want      string // reason
		text      string
		stalled   bool
	}{
		"missing branch":   {"a typing error", nil, func(g *sourcev1.GitRepository) { g.Spec.Reference.Branch = "nope" }, fetchFailed, "GitOperationFailed", "branch 'nope' does not exist", false},
		"no server":        {"it may come back", nil, func(g *sourcev1.GitRepository) { g.Spec.URL = "http://127.0.0.1:1/r.git" }, fetchFailed, "GitOperationFailed", "connection refused", false},
		"no repository":    {"it may be made", nil, func(g *sourcev1.GitRepository) { g.Spec.URL += "x" }, fetchFailed, "GitOperationFailed", "repository not found", false},
		"unknown scheme":   {"nothing here can change that", nil, func(g *sourcev1.GitRepository) { g.Spec.URL = "ftp://h/r" }, fetchFailed, "URLInvalid", "http, https and ssh are supported", true},
		"missing secret":   {"it may be applied later", nil, func(g *sourcev1.GitRepository) { g.Spec.SecretRef = ref("nope") }, fetchFailed, "AuthenticationFailed", "secret 'apps/nope'", false},
		"password alone":   {"the Secret is incomplete", map[string]string{"password": "x"}, func(g *sourcev1.GitRepository) { g.Spec.SecretRef = ref("creds") }, fetchFailed, "AuthenticationFailed", "'password' requires 'username'", false},
		"ssh without key":  {"a Secret is needed", nil, func(g *sourcev1.GitRepository) { g.Spec.URL = "ssh://git@127.0.0.1:1/r.git" }, fetchFailed, "AuthenticationFailed", "'identity' is required", false},
		"bad proxy":        {"the Secret is incomplete", map[string]string{"x": "y"}, func(g *sourcev1.GitRepository) { g.Spec.ProxySecretRef = ref("creds") }, fetchFailed, "AuthenticationFailed", "configure proxy", false},
		"github, no ref":   {"only the object can mend it", nil, func(g *sourcev1.GitRepository) { g.Spec.Provider = "github" }, fetchFailed, "InvalidProviderConfiguration", "github app data must be specified", true},
		"github, no app":   {"the Secret is incomplete", map[string]string{"username": "u", "password": "p"}, func(g *sourcev1.GitRepository) { g.Spec.Provider, g.Spec.SecretRef = "github", ref("creds") }, fetchFailed, "InvalidProviderConfiguration", "github app data must be specified", false},
		"app, no github":   {"the provider is missing", map[string]string{"githubAppID": "1"}, func(g *sourcev1.GitRepository) { g.Spec.SecretRef = ref("creds") }, fetchFailed, "InvalidProviderConfiguration", "provider is not set to github", false},
		"azure account":    {"needs a feature gate", nil, func(g *sourcev1.GitRepository) { g.Spec.Provider, g.Spec.ServiceAccountName = "azure", "sa" }, fetchFailed, "FeatureGateDisabled", "service account 'sa'", true},
		"sparse":           {"a typing error", nil, func(g *sourcev1.GitRepository) { g.Spec.SparseCheckout = []string{"nope"} }, fetchFailed, "GitOperationFailed", "sparse checkout dir 'nope'", false},
		"missing include":  {"waits for it", nil, func(g *sourcev1.GitRepository) { g.Spec.Include = include("nope", "", "") }, sourcev1.IncludeUnavailableCondition, "NotFound", "included repository 'nope'", false},
		"missing keys":     {"the Secret may be applied later", nil, verifyMode("HEAD", "nope"), sourcev1.SourceVerifiedCondition, "VerificationError", "secret 'apps/nope'", false},
		"unsigned":         {"must not be published", map[string]string{"a.asc": "x"}, verifyMode("HEAD", "creds"), sourcev1.SourceVerifiedCondition, "InvalidCommitSignature", "unsupported signature type: empty", false},
		"tag of a branch":  {"there is no tag", map[string]string{"a.asc": "x"}, verifyMode("Tag", "creds"), sourcev1.SourceVerifiedCondition, "InvalidVerificationMode", "tag reference is not specified", true},
		"deadline":         {"as the object says", nil, func(g *sourcev1.GitRepository) { g.Spec.Timeout = &metav1.Duration{Duration: time.Nanosecond} }, fetchFailed, "GitOperationFailed", "in time", false},
		"local repository": {"is not there", nil, func(g *sourcev1.GitRepository) { g.Spec.URL = "file:///nope" }, fetchFailed, "GitOperationFailed", "there is no git repository", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, secret("creds", c.secret))
			r := b.repo("infra.git")
			first := r.commit("first", map[string]string{"f": "1"})
			b.create(gitRepository(r.url))
			before := b.ready().Status.Artifact
			good := b.get().Spec
			b.edit(c.change)
			r.commit("second", map[string]string{"f": "2"})

			g, res, err := b.run()
			cond := conditions.Get(g, c.condition)
			if cond == nil || cond.Reason != c.want || !strings.Contains(cond.Message, c.text) {
				t.Fatalf("%s = %+v; want %s with %q: %s", c.condition, cond, c.want, c.text, c.reason)
			}
			if ready := conditions.Get(g, meta.ReadyCondition); ready.Status != metav1.ConditionFalse || ready.Reason != c.want || ready.Message != cond.Message {
				t.Errorf("Ready = %+v", ready)
			}
			wait := c.condition == sourcev1.IncludeUnavailableCondition
			if conditions.IsStalled(g) != c.stalled || conditions.IsReconciling(g) == c.stalled || (err != nil) == (c.stalled || wait) {
				t.Errorf("stalled %v, error %v: %v", conditions.IsStalled(g), err, describe(g))
			}
			if c.stalled != (g.Status.ObservedGeneration == g.Generation) || c.stalled && !res.IsZero() || wait && res.RequeueAfter != includeRecheck {
				t.Errorf("observed generation %d of %d, result %+v", g.Status.ObservedGeneration, g.Generation, res)
			}
			if g.Status.Artifact == nil || g.Status.Artifact.Digest != before.Digest || !b.artifacts.Has(before) {
				t.Error("the old artifact must stay")
			}
			if len(b.events) != 1 || !strings.Contains(b.events[0], " "+c.want+" ") {
				t.Errorf("events: %v", b.events)
			}
			if _, _, _ = b.run(); b.writes.Load() != 0 || len(b.events) != 0 {
				t.Errorf("the same failure again: %d writes, events %v", b.writes.Load(), b.events)
			}

			b.edit(func(g *sourcev1.GitRepository) { g.Spec = good })
			g = b.ready()
			if g.Status.Artifact.Revision == "main@sha1:"+first || len(describe(g)) != 2 {
				t.Errorf("mended: %s, %v", g.Status.Artifact.Revision, describe(g))
			}
		})
	}
}

func ref(name string) *meta.LocalObjectReference { return &meta.LocalObjectReference{Name: name} }

func include(name, from, to string) []sourcev1.GitRepositoryInclude {
	return []sourcev1.GitRepositoryInclude{{GitRepositoryRef: meta.LocalObjectReference{Name: name}, FromPath: from, ToPath: to}}
}

func verifyMode(mode sourcev1.GitVerificationMode, secret string) func(*sourcev1.GitRepository) {
	return func(g *sourcev1.GitRepository) {
		g.Spec.Verification = &sourcev1.GitRepositoryVerification{Mode: mode, SecretRef: meta.LocalObjectReference{Name: secret}}
	}
}

func TestWrongPasswordAndRecovery(t *testing.T) {
	b := newBench(t, secret("creds", map[string]string{"username": "user", "password": "hunter2"}))
	b.server.Auth("user", "right")
	if err := b.server.StartHTTP(); err != nil {
		t.Fatal(err)
	}
	r := b.repo("infra.git")
	first := r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) { g.Spec.SecretRef = ref("creds") }))
	g, _, err := b.run()
	if err == nil || conditions.GetReason(g, meta.ReadyCondition) != "GitOperationFailed" || !strings.Contains(conditions.GetMessage(g, meta.ReadyCondition), "credentials are not accepted") {
		t.Fatalf("wrong password: %v, %v", err, describe(g))
	}
	if all := strings.Join(append(describe(g), append(b.events, err.Error())...), "\n"); strings.Contains(all, "hunter2") {
		t.Errorf("the password is shown: %s", all)
	}
	// Mending the Secret wakes the object, which is all that is needed.
	s := secret("creds", map[string]string{"username": "user", "password": "right"})
	if err := b.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]ctrl.Request{{NamespacedName: key}}, b.secretUsers(t.Context(), s)); diff != "" {
		t.Error(diff)
	}
	b.expect("mended", b.ready(), stored("main@sha1:"+first)...)
}

func TestRecoveryOfTheSameArtifactIsTold(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository(r.url))
	b.ready()
	b.edit(func(g *sourcev1.GitRepository) { g.Spec.Reference.Branch = "nope" })
	if _, _, err := b.run(); err == nil {
		t.Fatal("a missing branch was found")
	}
	b.edit(func(g *sourcev1.GitRepository) { g.Spec.Reference.Branch = "main" })
	b.ready()
	if len(b.events) != 1 || !strings.HasPrefix(b.events[0], "Normal Succeeded stored artifact for commit '") {
		t.Errorf("events: %v", b.events)
	}
}

func TestEmptyRepository(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	b.create(gitRepository(r.url))
	g, _, err := b.run()
	if err == nil || conditions.GetReason(g, sourcev1.FetchFailedCondition) != "EmptyGitRepository" {
		t.Errorf("%v, %v", err, describe(g))
	}
	if c := conditions.Get(g, meta.ReadyCondition); c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("Ready = %+v", c)
	}
	first := r.commit("first", map[string]string{"f": "1"})
	b.expect("first commit", b.ready(), stored("main@sha1:"+first)...)
}

func TestLocalRepositories(t *testing.T) {
	b := newBench(t)
	r := newRepo(t, filepath.Join(t.TempDir(), ".git"))
	first := r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository("file://" + filepath.Dir(r.dir)))
	b.expect("allowed", b.ready(), stored("main@sha1:"+first)...)

	// A commit wakes the object by itself.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = b.watcher.Run(ctx) }()
	second := r.commit("second", map[string]string{"f": "2"})
	if e := <-b.changed; client.ObjectKeyFromObject(e.Object) != key {
		t.Errorf("woken: %v", e.Object)
	}
	b.expect("a commit", b.ready(), stored("main@sha1:"+second)...)

	b.o.AllowLocal = false
	b.edit(func(g *sourcev1.GitRepository) { g.Spec.Interval.Duration = time.Hour })
	g, res, err := b.run()
	if err != nil || !res.IsZero() || !conditions.IsStalled(g) || conditions.GetReason(g, meta.ReadyCondition) != "URLInvalid" ||
		!strings.Contains(conditions.GetMessage(g, meta.ReadyCondition), "--allow-local-sources") {
		t.Errorf("not allowed: %v, %v", err, describe(g))
	}
}

func TestIgnore(t *testing.T) {
	files := map[string]string{
		"main.tf": "m", "logo.png": "p", ".github/ci.yml": "c", ".gitignore": "g", "docs/a.md": "a", "docs/b.md": "b", ".sops.yaml": "s",
	}
	for name, c := range map[string]struct {
		reason string
		ignore string // spec.ignore; "-" for none
		source string // .sourceignore
		want   []string
	}{
		"defaults":         {"Flux's", "-", "", []string{"main.tf", "docs/a.md", "docs/b.md"}},
		"spec":             {"replaces the defaults, but not those for Git's own files", "*.md", "", []string{"main.tf", "logo.png", ".github/ci.yml", ".sops.yaml"}},
		"spec, empty":      {"is no pattern, so the defaults hold", "", "", []string{"main.tf", "docs/a.md", "docs/b.md"}},
		"sourceignore":     {"replaces them too", "-", "/docs/\n.github", []string{"main.tf", "logo.png", ".sops.yaml", ".sourceignore"}},
		"both":             {"the object's come last", "!docs/b.md", "docs/*\n.*", []string{"main.tf", "logo.png", "docs/b.md"}},
		"all but one":      {"taken in again below what is left out", "/*\n!/docs/a.md", "", []string{"docs/a.md"}},
		"comment and more": {"comments are none", "# nothing", "", []string{"main.tf", "docs/a.md", "docs/b.md"}},
	} {
		b := newBench(t)
		r := b.repo("infra.git")
		all := maps.Clone(files)
		if c.source != "" {
			all[".sourceignore"] = c.source
		}
		r.commit("c", all)
		b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) {
			if c.ignore != "-" {
				g.Spec.Ignore = &c.ignore
			}
		}))
		got := slices.Sorted(maps.Keys(b.files(b.ready().Status.Artifact)))
		slices.Sort(c.want)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s: %s", name, c.reason, diff)
		}
		if b.ready(); b.requests.Load() != 1 || b.writes.Load() != 0 {
			t.Errorf("%s: unchanged cost %d requests, %d writes", name, b.requests.Load(), b.writes.Load())
		}
	}
}

func TestConfigurationChangesTheArtifact(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	first := r.commit("c", map[string]string{"a/f": "1", "b/f": "2"})
	b.create(gitRepository(r.url))
	b.ready()
	for _, c := range []struct {
		what   string
		change func(*sourcev1.GitRepository)
		want   []string
	}{
		{"ignore", func(g *sourcev1.GitRepository) { i := "/a"; g.Spec.Ignore = &i }, []string{"b/f"}},
		{"no ignore", func(g *sourcev1.GitRepository) { g.Spec.Ignore = nil }, []string{"a/f", "b/f"}},
		{"sparse", func(g *sourcev1.GitRepository) { g.Spec.SparseCheckout = []string{"./a"} }, []string{"a/f"}},
		{"submodules", func(g *sourcev1.GitRepository) { g.Spec.SparseCheckout, g.Spec.RecurseSubmodules = nil, true }, []string{"a/f", "b/f"}},
	} {
		b.edit(c.change)
		g := b.ready()
		if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(b.files(g.Status.Artifact)))); diff != "" {
			t.Errorf("%s: %s", c.what, diff)
		}
		b.expect(c.what, g, stored("main@sha1:"+first)...)
		if b.ready(); b.requests.Load() != 1 || b.writes.Load() != 0 {
			t.Errorf("%s: unchanged cost %d requests, %d writes", c.what, b.requests.Load(), b.writes.Load())
		}
	}
}

func TestInclude(t *testing.T) {
	b := newBench(t)
	lib := b.repo("lib.git")
	lib.commit("lib", map[string]string{"mod/m.tf": "1", "other": "o"})
	r := b.repo("infra.git")
	r.commit("c", map[string]string{"main.tf": "m"})
	dep := gitRepository(lib.url, func(g *sourcev1.GitRepository) { g.Name, g.UID = "lib", "2" })
	b.create(dep)
	b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) { g.Spec.Include = include("lib", "mod", "vendor/mod") }))

	g, res, err := b.run()
	if err != nil || res.RequeueAfter != includeRecheck || conditions.GetReason(g, meta.ReadyCondition) != "NoArtifact" {
		t.Fatalf("before the include is there: %v, %v", err, describe(g))
	}
	fetchLib := func() {
		t.Helper()
		if _, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(dep)}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]ctrl.Request{{NamespacedName: key}}, b.includers(t.Context(), dep)); diff != "" {
			t.Errorf("who includes it: %s", diff)
		}
	}
	fetchLib()
	g = b.ready()
	if diff := cmp.Diff(map[string]string{"main.tf": "m", "vendor/mod/m.tf": "1"}, b.files(g.Status.Artifact)); diff != "" {
		t.Error(diff)
	}
	if len(g.Status.IncludedArtifacts) != 1 || len(g.Status.ObservedInclude) != 1 {
		t.Errorf("status: %+v", g.Status)
	}
	if b.ready(); b.requests.Load() != 1 || b.writes.Load() != 0 {
		t.Errorf("unchanged cost %d requests, %d writes", b.requests.Load(), b.writes.Load())
	}
	lib.commit("lib 2", map[string]string{"mod/m.tf": "2"})
	fetchLib()
	g = b.ready()
	if diff := cmp.Diff(map[string]string{"main.tf": "m", "vendor/mod/m.tf": "2"}, b.files(g.Status.Artifact)); diff != "" {
		t.Error(diff)
	}
	for name, c := range map[string]struct {
		include []sourcev1.GitRepositoryInclude
		reason  string
	}{
		"to outside":   {include("lib", "", "../x"), "IllegalPath"},
		"from outside": {include("lib", "../x", "y"), "IllegalPath"},
		"not there":    {include("lib", "nope", "y"), "CopyFailure"},
		"in the way":   {include("lib", "mod", "main.tf"), "CopyFailure"},
	} {
		b.edit(func(g *sourcev1.GitRepository) { g.Spec.Include = c.include })
		g, _, err := b.run()
		if got := conditions.GetReason(g, sourcev1.StorageOperationFailedCondition); err == nil || got != c.reason {
			t.Errorf("%s: reason %s, %v", name, got, err)
		}
	}
	b.edit(func(g *sourcev1.GitRepository) { g.Spec.Include = include("lib", "", "") })
	if diff := cmp.Diff(map[string]string{"main.tf": "m", "lib/mod/m.tf": "2", "lib/other": "o"}, b.files(b.ready().Status.Artifact)); diff != "" {
		t.Error(diff)
	}
}

func TestConflictIsSilent(t *testing.T) {
	b := newBench(t)
	r := b.repo("infra.git")
	first := r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository(r.url))
	b.ready()
	stale := b.get()
	b.edit(func(g *sourcev1.GitRepository) { g.Annotations = map[string]string{"x": "y"} })
	r.commit("second", map[string]string{"f": "2"})
	cy := &cycle{base: stale, obj: stale.DeepCopy()}
	cy.obj.Status.LastHandledReconcileAt = "z"
	res, err := b.report(t.Context(), cy, status.Next, nil)
	if err != nil || res.RequeueAfter != conflictRetry {
		t.Errorf("conflict: %+v, %v", res, err)
	}
	if got := b.get().Status.Artifact.Revision; got != "main@sha1:"+first {
		t.Errorf("revision = %s", got)
	}
	if _, err := again(errors.New("other")); err == nil {
		t.Error("other errors are not silent")
	}
}
