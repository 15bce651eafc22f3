// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/server"
	"github.com/terrace-dev/terrace/internal/testenv"
)

func TestMain(m *testing.M) {
	// A test that fails prints the object and the run's log; what the process itself says
	// is kept for the tests that read it.
	ctrl.SetLogger(funcr.New(processLog.add, funcr.Options{Verbosity: 1}))
	os.Exit(m.Run())
}

// patience bounds every wait of these tests; nothing is measured by it.
const patience = 2 * time.Minute

// moduleA is the module that most cases use: an input, a resource, an output.
const moduleA = `
variable "v" { default = "a" }
resource "terraform_data" "x" { input = var.v }
output "o" { value = terraform_data.x.output }
`

// world is one namespace with a Git repository and a Terrace that watches it, all
// real but small.
type world struct {
	t      *testing.T
	client client.WithWatch
	api    *rest.Config
	ns     string
	repo   string // a local Git repository with a working tree
	cfg    config.Config
	log    *requestLog
	spawns string // the file that the tofu wrapper counts in

	stop func()
}

func newWorld(t *testing.T, files map[string]string, opts ...func(*config.Config)) *world {
	t.Helper()
	t.Parallel()
	env := testenv.Start(t)
	w := &world{t: t, client: env.Client, ns: env.Namespace(t), repo: t.TempDir(), log: &requestLog{}}
	w.api = rest.CopyConfig(env.Config)
	w.api.Wrap(w.log.wrap)

	w.git("init", "-q", "-b", "main")
	w.commit(files)

	dir := t.TempDir()
	w.spawns = filepath.Join(dir, "spawns")
	w.cfg = config.Default(config.Up)
	// Runs may use what the test itself makes, to tell and to be told things by; the data
	// directory lies elsewhere, and is as closed to them as it is to a user's.
	w.cfg.DataDir = privateDir(t)
	w.cfg.Tofu = countingTofu(t, dir, w.spawns)
	w.cfg.RunAllowWrite = []string{filepath.Dir(dir)}
	w.cfg.RunAllowRead = []string{filepath.Join(testenv.Root(t), "bin"), filepath.Join(testenv.Root(t), ".cache")}
	w.cfg.WatchNamespaces = []string{w.ns}
	w.cfg.ShutdownGrace = 30 * time.Second
	for _, o := range opts {
		o(&w.cfg)
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	w.apply(`
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: src}
spec: {interval: 1h, url: "file://` + w.repo + `", ref: {branch: main}}
`)
	// Without content every unit says the same, whatever is wrong with it. A test that has
	// another process work here gives this one another namespace.
	if slices.Contains(w.cfg.WatchNamespaces, w.ns) && !w.watch(&sourcev1.GitRepositoryList{}, named("src"), func(o client.Object) bool {
		return o != nil && o.(*sourcev1.GitRepository).Status.Artifact != nil
	}) {
		t.Fatal("the source has no artifact")
	}
	return w
}

// privateDir is a directory that is not beside those of t.TempDir.
func privateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "terrace-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// countingTofu is tofu behind a script that leaves a line for each process.
func countingTofu(t *testing.T, dir, spawns string) string {
	t.Helper()
	real := filepath.Join(testenv.Root(t), "bin", "tofu")
	if _, err := os.Stat(real); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	path := filepath.Join(dir, "tofu")
	script := fmt.Sprintf("#!/bin/sh\necho \"$1\" >> '%s'\nexec '%s' \"$@\"\n", spawns, real)
	writeExecutable(t, path, script)
	return path
}

// writeExecutable writes a script that is run at once. No process is started while it is open:
// one that a test beside this one starts would have it open for writing until it is another
// program, and the kernel refuses to run a file that somebody writes (ETXTBSY).
func writeExecutable(t *testing.T, path, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must(t, os.WriteFile(path, []byte(script), 0o700))
}

// start starts Terrace; what it needs of an earlier one is in the data directory.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := server.New(ctx, w.cfg, w.api)
	if err != nil {
		cancel()
		w.t.Fatalf("start: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("stop: %v", err)
			}
		})
	}
}

func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

func (w *world) git(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = w.repo
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes files (empty content deletes) and returns the revision.
func (w *world) commit(files map[string]string) string {
	w.t.Helper()
	return w.commitAs("t <t@example.com>", files)
}

// commitAs is commit for what another author wrote.
func (w *world) commitAs(author string, files map[string]string) string {
	w.t.Helper()
	for name, content := range files {
		path := filepath.Join(w.repo, name)
		if content == "" {
			w.git("rm", "-q", name)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	w.git("add", "-A")
	w.git("commit", "-q", "--allow-empty", "-m", "change", "--author", author)
	return "main@sha1:" + w.git("rev-parse", "HEAD")
}

// apply applies manifests; an object without a namespace gets the world's.
func (w *world) apply(manifests string) {
	w.t.Helper()
	w.applyTo(w.ns, manifests)
}

// applyTo applies manifests; an object without a namespace gets the given one.
func (w *world) applyTo(namespace, manifests string) {
	w.t.Helper()
	for _, doc := range strings.Split(manifests, "\n---\n") {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
			w.t.Fatalf("%v in\n%s", err, doc)
		}
		if obj.GetNamespace() == "" {
			obj.SetNamespace(namespace)
		}
		err := w.client.Apply(w.ctx(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership)
		if err != nil {
			w.t.Fatalf("apply %s/%s: %v", obj.GetKind(), obj.GetName(), err)
		}
	}
}

// unit applies a Terraform named name; spec is YAML in flow style without the
// fields that every case has.
func (w *world) unit(name, spec string) {
	w.t.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: %s}
spec:
  interval: 1h
  sourceRef: {kind: GitRepository, name: src}
%s`, name, indent(spec)))
}

func indent(s string) string {
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(s), "\n") {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

func (w *world) ctx() context.Context { return w.t.Context() }

// terraform reads a unit; the name of a missing one is fatal.
func (w *world) terraform(name string) *infra.Terraform {
	w.t.Helper()
	var tf infra.Terraform
	if err := w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: name}, &tf); err != nil {
		w.t.Fatal(err)
	}
	return &tf
}

// change edits a unit's object.
func (w *world) change(name string, edit func(*infra.Terraform)) {
	w.t.Helper()
	tf := w.terraform(name)
	base := tf.DeepCopy()
	edit(tf)
	if err := w.client.Patch(w.ctx(), tf, client.MergeFrom(base)); err != nil {
		w.t.Fatal(err)
	}
}

// await watches a unit until cond holds.
func (w *world) await(name, what string, cond func(*infra.Terraform) bool) *infra.Terraform {
	w.t.Helper()
	var last *infra.Terraform
	ok := w.watch(&infra.TerraformList{}, named(name), func(o client.Object) bool {
		if o == nil {
			return false
		}
		last = o.(*infra.Terraform)
		return cond(last)
	})
	if !ok {
		text, _ := yaml.Marshal(last)
		w.t.Fatalf("%s is not %s; it is\n%s\nand its log\n%s", name, what, text, w.runLog(name))
	}
	return last
}

func named(name string) client.MatchingFields { return client.MatchingFields{"metadata.name": name} }

// watch calls cond with every version of an object, nil when it does not exist,
// until it is true; false when patience ends first.
func (w *world) watch(list client.ObjectList, fields client.MatchingFields, cond func(client.Object) bool) bool {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if err := w.client.List(ctx, list, client.InNamespace(w.ns), fields); err != nil {
			if ctx.Err() != nil {
				return false
			}
			w.t.Fatal(err)
		}
		items, err := apimeta.ExtractList(list)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(items) == 0 && cond(nil) {
			return true
		}
		for _, item := range items {
			if cond(item.(client.Object)) {
				return true
			}
		}
		stream, err := w.client.Watch(ctx, list, client.InNamespace(w.ns), fields,
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
		if err != nil {
			continue
		}
		for e := range stream.ResultChan() {
			obj, isObj := e.Object.(client.Object)
			if e.Type == "DELETED" && cond(nil) || e.Type != "DELETED" && isObj && cond(obj) {
				stream.Stop()
				return true
			}
		}
	}
	return false
}

func (w *world) awaitReady(name string) *infra.Terraform {
	w.t.Helper()
	return w.await(name, "Ready", isReady)
}

// awaitReason waits for a reason of the Ready condition.
func (w *world) awaitReason(name, reason string) *infra.Terraform {
	w.t.Helper()
	return w.await(name, "Ready with reason "+reason, func(tf *infra.Terraform) bool { return readyOf(tf).Reason == reason })
}

func (w *world) awaitPending(name string) string {
	w.t.Helper()
	tf := w.await(name, "waiting for approval", func(tf *infra.Terraform) bool {
		return tf.Status.Plan.Pending != "" && strings.Contains(readyOf(tf).Message, "set approvePlan: ")
	})
	return tf.Status.Plan.Pending
}

// awaitRevision waits until a unit knows a revision and is Ready.
func (w *world) awaitRevision(name, revision string) *infra.Terraform {
	w.t.Helper()
	return w.await(name, "Ready at "+revision, func(tf *infra.Terraform) bool {
		return isReady(tf) && tf.Status.LastPlannedRevision == revision
	})
}

func (w *world) awaitGone(name string) {
	w.t.Helper()
	if !w.watch(&infra.TerraformList{}, named(name), func(o client.Object) bool { return o == nil }) {
		text, _ := yaml.Marshal(w.terraform(name))
		w.t.Fatalf("%s is still there:\n%s", name, text)
	}
}

func (w *world) delete(name string) {
	w.t.Helper()
	tf := &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	if err := w.client.Delete(w.ctx(), tf); err != nil {
		w.t.Fatal(err)
	}
}

// secret waits for a Secret whose content satisfies cond.
func (w *world) secret(name string, cond func(map[string][]byte) bool) *corev1.Secret {
	w.t.Helper()
	var last *corev1.Secret
	if !w.watch(&corev1.SecretList{}, named(name), func(o client.Object) bool {
		if o == nil {
			return false
		}
		last = o.(*corev1.Secret)
		return cond == nil || cond(last.Data)
	}) {
		w.t.Fatalf("Secret %s is not as it should be: %v", name, last)
	}
	return last
}

func (w *world) secretGone(name string) {
	w.t.Helper()
	if !w.watch(&corev1.SecretList{}, named(name), func(o client.Object) bool { return o == nil }) {
		w.t.Fatalf("Secret %s is still there", name)
	}
}

func (w *world) putSecret(name string, content map[string]string) {
	w.t.Helper()
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, StringData: content}
	err := w.client.Create(w.ctx(), s)
	if err != nil {
		err = w.client.Update(w.ctx(), s)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// events returns the messages of a unit's events with a reason.
func (w *world) events(name, reason string) []string {
	w.t.Helper()
	var list corev1.EventList
	if err := w.client.List(w.ctx(), &list, client.InNamespace(w.ns)); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Terraform" && e.InvolvedObject.Name == name && e.Reason == reason {
			for range max(e.Count, 1) {
				out = append(out, e.Message)
			}
		}
	}
	return out
}

// awaitEvent waits until a unit has an event with a reason.
func (w *world) awaitEvent(name, reason string) {
	w.t.Helper()
	if !w.watch(&corev1.EventList{}, client.MatchingFields{"involvedObject.name": name, "reason": reason}, func(o client.Object) bool { return o != nil }) {
		w.t.Fatalf("%s has no event %s", name, reason)
	}
}

// spawned counts tofu processes by subcommand; "" counts all but the version call.
func (w *world) spawned(subcommand string) int {
	content, err := os.ReadFile(w.spawns)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	n := 0
	for s := bufio.NewScanner(bytes.NewReader(content)); s.Scan(); {
		if s.Text() == subcommand || subcommand == "" && s.Text() != "version" {
			n++
		}
	}
	return n
}

// runLog is the logs of a unit's runs as they are on disk.
func (w *world) runLog(name string) string {
	var out strings.Builder
	_ = filepath.WalkDir(filepath.Join(w.cfg.DataDir, "runs"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, name) && strings.HasSuffix(path, ".log.gz") {
			content, _ := os.ReadFile(path)
			fmt.Fprintf(&out, "-- %s\n%s\n", filepath.Base(path), unzipped(content))
		}
		return nil
	})
	return out.String()
}

// unzipped is what a gzip stream holds that may not have ended; nothing of what is none.
func unzipped(content []byte) []byte {
	zr, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil
	}
	plain, _ := io.ReadAll(zr)
	return plain
}

func readyOf(tf *infra.Terraform) metav1.Condition {
	if c := apimeta.FindStatusCondition(tf.Status.Conditions, infra.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func condition(tf *infra.Terraform, kind string) metav1.Condition {
	if c := apimeta.FindStatusCondition(tf.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func isReady(tf *infra.Terraform) bool {
	return readyOf(tf).Status == metav1.ConditionTrue && tf.Status.ObservedGeneration == tf.Generation
}

// request is one API request that the process under test made.
type request struct {
	verb, path string
}

// requestLog counts the API requests of a Terrace. What its gate forwards for tofu
// is told apart by the state's names.
type requestLog struct {
	mu       sync.Mutex
	requests []request
}

func (l *requestLog) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") != "true" {
			l.mu.Lock()
			l.requests = append(l.requests, request{r.Method, r.URL.Path + "?" + r.URL.RawQuery})
			l.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// since returns Terrace's own requests after the first n, and how many there are now.
func (l *requestLog) since(n int) (own []request, now int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests[n:] {
		if !strings.Contains(r.path, "tfstate") && !strings.Contains(r.path, "/leases") && !strings.Contains(r.path, "/states") {
			own = append(own, r)
		}
	}
	return own, len(l.requests)
}

func (l *requestLog) mark() int {
	_, n := l.since(0)
	return n
}
