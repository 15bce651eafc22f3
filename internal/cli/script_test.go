// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	gitobject "github.com/go-git/go-git/v5/plumbing/object"
	"github.com/rogpeppe/go-internal/testscript"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// patience bounds each wait of a script for something to happen.
const patience = 2 * time.Minute

// TestScripts runs the scripts of testdata/script, one or more a verb, with the
// binary that `make build` made, against a real API server. No controllers
// run: the scripts write the status that a verb is to find. Besides the
// commands of testscript they have:
//
//	objects FILE             creates the objects of the file, with their status
//	status NAME FILE         merges the file into the status of a Terraform, or of a
//	                         Kustomization when NAME is ks/…
//	handle NAME FILE         the same once a reconcile is requested, as its answer
//	approved NAME FILE       the same once its plan is approved
//	imported NAME FILE       the file as its status.lastImport once an import is requested
//	serve                    serves the files of $WORK/server as a Terrace server
//	watch NAME FILE SEEN THEN ARGS…
//	                         runs terrace, waits for a line that matches SEEN, merges
//	                         the file into the status, waits for THEN, interrupts
//	ready DIR                waits for the control plane of the directory
//	applied FILE UNIT        applies the objects of the file as a Kustomization's
//	artifact NAME DIR        serves a GitRepository of the directory, and its artifact
//	commit DIR               makes the directory a Git repository with one commit, HASH
//	owned KIND NAME OWNER NAME
//	                         makes an object of group apps the owner of another
func TestScripts(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	env := testenv.Start(t)
	client, err := dynamic.NewForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			namespace := env.Namespace(e.T().(testing.TB))
			e.Setenv("PATH", filepath.Join(root, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("NS", namespace)
			e.Values["script"] = &script{client: client, namespace: namespace}
			return kubeconfig(e, env.Kubeconfig, namespace)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"objects":  command((*script).objects),
			"status":   command((*script).status),
			"handle":   command((*script).handle),
			"approved": command((*script).approved),
			"imported": command((*script).imported),
			"serve":    command((*script).serve),
			"watch":    command((*script).watch),
			"ready":    command((*script).ready),
			"applied":  command((*script).applied),
			"artifact": command((*script).artifact),
			"commit":   command((*script).commit),
			"owned":    command((*script).owned),
		},
	})
}

// script is the cluster's side of a script.
type script struct {
	client    dynamic.Interface
	namespace string
}

func command(do func(*script, *testscript.TestScript, []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		ts.Check(do(ts.Value("script").(*script), ts, args))
	}
}

// kubeconfig gives the script a data directory with a kubeconfig whose
// namespace is the script's own.
func kubeconfig(e *testscript.Env, from, namespace string) error {
	cfg, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return err
	}
	for _, c := range cfg.Contexts {
		c.Namespace = namespace
	}
	if err := clientcmd.ResolveLocalPaths(cfg); err != nil {
		return err
	}
	file := filepath.Join(e.WorkDir, "data", "kubeconfig")
	e.Setenv("KUBECONFIG", file)
	return clientcmd.WriteToFile(*cfg, file)
}

func (s *script) of(u *unstructured.Unstructured) dynamic.ResourceInterface {
	resource, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	return s.client.Resource(resource).Namespace(s.namespace)
}

// units are the objects that a name of a script is one of, and the name alone:
// Terraforms, or Kustomizations when it begins with ks/.
func (s *script) units(word string) (dynamic.ResourceInterface, string) {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("infra.contrib.fluxcd.io/v1alpha2")
	u.SetKind("Terraform")
	name, isKustomization := strings.CutPrefix(word, "ks/")
	if isKustomization {
		u.SetAPIVersion("kustomize.toolkit.fluxcd.io/v1")
		u.SetKind("Kustomization")
	}
	return s.of(u), name
}

// manifests reads the objects of a file.
func manifests(ts *testscript.TestScript, file string) (all []*unstructured.Unstructured, err error) {
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(ts.ReadFile(file)), 4096)
	for {
		var raw json.RawMessage
		err := documents.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		u := &unstructured.Unstructured{}
		if err = errors.Join(err, u.UnmarshalJSON(raw)); err != nil {
			return nil, err
		}
		all = append(all, u)
	}
}

func (s *script) objects(ts *testscript.TestScript, args []string) error {
	all, err := manifests(ts, args[0])
	if err != nil {
		return err
	}
	for _, u := range all {
		created, err := s.of(u).Create(context.Background(), u, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		status, found := u.Object["status"]
		if !found {
			continue
		}
		created.Object["status"] = status
		_, err = s.of(u).UpdateStatus(context.Background(), created, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			continue // a kind whose status is no resource of its own has been given it already
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *script) applied(ts *testscript.TestScript, args []string) error {
	all, err := manifests(ts, args[0])
	if err != nil {
		return err
	}
	for _, u := range all {
		u.SetNamespace(s.namespace)
		u.SetLabels(map[string]string{
			"kustomize.toolkit.fluxcd.io/name": args[1], "kustomize.toolkit.fluxcd.io/namespace": s.namespace,
		})
		if _, err := s.of(u).Apply(context.Background(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "kustomize-controller"}); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) artifact(ts *testscript.TestScript, args []string) error {
	name, dir := args[0], ts.MkAbs(args[1])
	var store *artifact.Store
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { store.Handler().ServeHTTP(w, r) }))
	ts.Defer(web.Close)
	store, err := artifact.NewStore(artifact.Options{Dir: ts.MkAbs("artifacts"), AdvertisedURL: web.URL})
	if err != nil {
		return err
	}
	owner := artifact.Owner{Kind: "GitRepository", Namespace: s.namespace, Name: name}
	a, err := store.Archive(context.Background(), owner, "main@sha1:"+ts.Getenv("HASH"), "content.tar.gz", dir, func(name string, _ fs.FileInfo) bool {
		return name == ".git" || strings.HasSuffix(name, "ignored.yaml")
	})
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"interval": "1m", "url": "file://" + dir}}}
	u.SetAPIVersion("source.toolkit.fluxcd.io/v1")
	u.SetKind("GitRepository")
	u.SetName(name)
	created, err := s.of(u).Create(context.Background(), u, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Object["status"] = map[string]any{"artifact": fields}
	_, err = s.of(u).UpdateStatus(context.Background(), created, metav1.UpdateOptions{})
	return err
}

func (s *script) status(ts *testscript.TestScript, args []string) error {
	return s.patchStatus(ts, args[0], args[1], nil)
}

// patchStatus merges the file, and more, into the status of a unit.
func (s *script) patchStatus(ts *testscript.TestScript, word, file string, more map[string]any) error {
	status := map[string]any{}
	if err := yaml.Unmarshal([]byte(ts.ReadFile(file)), &status); err != nil {
		return err
	}
	for k, v := range more {
		status[k] = v
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	units, name := s.units(word)
	_, err = units.Patch(context.Background(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// once waits until ask finds something on the unit, and returns that.
func (s *script) once(word string, ask func(*unstructured.Unstructured) (string, bool)) (*unstructured.Unstructured, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	units, name := s.units(word)
	w, err := units.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
	})
	if err != nil {
		return nil, "", err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if u, ok := e.Object.(*unstructured.Unstructured); ok {
			if answer, found := ask(u); found {
				return u, answer, nil
			}
		}
	}
	return nil, "", fmt.Errorf("%s: nothing was requested", word)
}

func (s *script) handle(ts *testscript.TestScript, args []string) error {
	u, token, err := s.once(args[0], func(u *unstructured.Unstructured) (string, bool) {
		token := u.GetAnnotations()["reconcile.fluxcd.io/requestedAt"]
		handled, _, _ := unstructured.NestedString(u.Object, "status", "lastHandledReconcileAt")
		return token, token != "" && token != handled
	})
	if err != nil {
		return err
	}
	return s.patchStatus(ts, args[0], args[1], map[string]any{
		"lastHandledReconcileAt": token, "observedGeneration": u.GetGeneration(),
	})
}

func (s *script) approved(ts *testscript.TestScript, args []string) error {
	_, _, err := s.once(args[0], func(u *unstructured.Unstructured) (string, bool) {
		if plan := u.GetAnnotations()["terrace.dev/approved-plan"]; plan != "" {
			return plan, true
		}
		plan, found, _ := unstructured.NestedString(u.Object, "spec", "approvePlan")
		return plan, found && plan != ""
	})
	if err != nil {
		return err
	}
	return s.patchStatus(ts, args[0], args[1], nil)
}

func (s *script) imported(ts *testscript.TestScript, args []string) error {
	_, value, err := s.once(args[0], func(u *unstructured.Unstructured) (string, bool) {
		value := u.GetAnnotations()["terrace.dev/import"]
		last, _, _ := unstructured.NestedString(u.Object, "status", "lastImport", "request")
		// Of the requests of a script each is answered but those that nobody waits for.
		return value, value != "" && infra.ImportName(value) != last && strings.Contains(value, "aws_vpc")
	})
	if err != nil {
		return err
	}
	end := map[string]any{}
	if err := yaml.Unmarshal([]byte(ts.ReadFile(args[1])), &end); err != nil {
		return err
	}
	end["request"] = infra.ImportName(value)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"lastImport": end}})
	if err != nil {
		return err
	}
	units, name := s.units(args[0])
	_, err = units.Patch(context.Background(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// serve answers with the file $WORK/server/NAME-WHAT, after which -FORMAT or
// -RUN stand when they were asked for.
func (s *script) serve(ts *testscript.TestScript, _ []string) error {
	work := ts.Getenv("WORK")
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// /api/v1/units/KIND/NAMESPACE/NAME/WHAT
		parts := strings.Split(r.URL.Path, "/")
		name := strings.Join(parts[min(6, len(parts)):], "-")
		for _, key := range []string{"format", "run"} {
			if v := r.URL.Query().Get(key); v != "" {
				name += "-" + v
			}
		}
		data, err := os.ReadFile(filepath.Join(work, "server", filepath.Base(name)))
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			http.Error(w, "the token is wrong", http.StatusUnauthorized)
		case err != nil:
			http.Error(w, "nothing is kept", http.StatusNotFound)
		default:
			_, _ = w.Write(bytes.ReplaceAll(data, []byte("$WORK"), []byte(work)))
		}
	}))
	ts.Defer(web.Close)
	found := fmt.Sprintf(`{"address":%q,"token":"secret"}`, web.Listener.Addr())
	return os.WriteFile(filepath.Join(work, "data", "server.json"), []byte(found), 0o600)
}

func (s *script) watch(ts *testscript.TestScript, args []string) error {
	name, file, seen, then := args[0], args[1], regexp.MustCompile(args[2]), regexp.MustCompile(args[3])
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	program, err := exec.LookPath("../../bin/terrace")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args[4:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+ts.Getenv("KUBECONFIG"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	wait := func(for_ *regexp.Regexp) error {
		for lines.Scan() {
			ts.Logf("%s", lines.Text())
			if for_.MatchString(lines.Text()) {
				return nil
			}
		}
		return fmt.Errorf("watch: no line matches %s: %s", for_, stderr.String())
	}
	if err := wait(seen); err != nil {
		return err
	}
	if err := s.patchStatus(ts, name, file, nil); err != nil {
		return err
	}
	if err := wait(then); err != nil {
		return err
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("an interrupt is how watching ends: %w: %s", err, stderr.String())
	}
	return nil
}

func (s *script) ready(ts *testscript.TestScript, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	file := filepath.Join(ts.MkAbs(args[0]), "kubeconfig")
	// The process says that it is ready on its output, which a script sees only
	// at its end. So it is asked, as every client could.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := serves(ctx, file)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ready %s: %w", args[0], err)
		case <-tick.C:
		}
	}
}

// commit makes one commit of all that is in the directory, by a fixed author at a
// fixed time.
func (s *script) commit(ts *testscript.TestScript, args []string) error {
	dir := ts.MkAbs(args[0])
	repo, err := gogit.PlainInitWithOptions(dir, &gogit.PlainInitOptions{
		InitOptions: gogit.InitOptions{DefaultBranch: plumbing.NewBranchReferenceName("main")},
	})
	if err != nil {
		return err
	}
	tree, err := repo.Worktree()
	if err != nil {
		return err
	}
	if err := tree.AddWithOptions(&gogit.AddOptions{All: true}); err != nil {
		return err
	}
	hash, err := tree.Commit("Add the web server\n\nIt serves.\n", &gogit.CommitOptions{
		Author: &gitobject.Signature{Name: "Alice", Email: "alice@example.org", When: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)},
	})
	ts.Setenv("HASH", hash.String())
	return err
}

func (s *script) owned(_ *testscript.TestScript, args []string) error {
	get := func(kind, name string) (*unstructured.Unstructured, dynamic.ResourceInterface, error) {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("apps/v1")
		u.SetKind(kind)
		of := s.of(u)
		u, err := of.Get(context.Background(), name, metav1.GetOptions{})
		return u, of, err
	}
	owner, _, err := get(args[2], args[3])
	if err != nil {
		return err
	}
	owned, of, err := get(args[0], args[1])
	if err != nil {
		return err
	}
	owned.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	_, err = of.Update(context.Background(), owned, metav1.UpdateOptions{})
	return err
}

// serves tells whether the cluster of the kubeconfig serves Terrace's kinds.
func serves(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	units, _ := (&script{client: client}).units("any")
	_, err = units.List(ctx, metav1.ListOptions{Limit: 1})
	return err
}
