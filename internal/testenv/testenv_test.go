// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestRequest(t *testing.T) {
	cases := map[string]struct {
		reason       string
		method, path string
		want         string
	}{
		"get":               {reason: "one object of the core group", method: "GET", path: "/api/v1/namespaces/a/secrets/b", want: "get secrets"},
		"list":              {reason: "in a namespace", method: "GET", path: "/api/v1/namespaces/a/secrets", want: "list secrets"},
		"list all":          {reason: "in all namespaces", method: "GET", path: "/apis/apps/v1/deployments?limit=500", want: "list deployments.apps"},
		"watch":             {reason: "a list with a parameter", method: "GET", path: "/apis/apps/v1/deployments?watch=true", want: "watch deployments.apps"},
		"create":            {reason: "", method: "POST", path: "/apis/apps/v1/namespaces/a/deployments", want: "create deployments.apps"},
		"status":            {reason: "a subresource", method: "PATCH", path: "/apis/infra.contrib.fluxcd.io/v1alpha2/namespaces/a/terraforms/b/status?force=true", want: "patch terraforms.infra.contrib.fluxcd.io/status"},
		"update":            {reason: "", method: "PUT", path: "/api/v1/namespaces/a/configmaps/b", want: "update configmaps"},
		"delete":            {reason: "", method: "DELETE", path: "/api/v1/namespaces/a/configmaps/b", want: "delete configmaps"},
		"delete collection": {reason: "no name", method: "DELETE", path: "/api/v1/namespaces/a/configmaps", want: "deletecollection configmaps"},
		"namespace":         {reason: "an object like others", method: "GET", path: "/api/v1/namespaces/a", want: "get namespaces"},
		"namespaces":        {reason: "", method: "GET", path: "/api/v1/namespaces", want: "list namespaces"},
		"namespace status":  {reason: "not a resource named status", method: "PUT", path: "/api/v1/namespaces/a/finalize", want: "update namespaces/finalize"},
		"discovery":         {reason: "no resource", method: "GET", path: "/apis/apps/v1", want: "get /apis/apps/v1"},
		"health":            {reason: "no resource", method: "GET", path: "/readyz", want: "get /readyz"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Request(httptest.NewRequest(c.method, c.path, nil)); got != c.want {
				t.Errorf("got %q, want %q %s", got, c.want, c.reason)
			}
		})
	}
}

func TestEnv(t *testing.T) {
	env := Start(t)
	if Start(t) != env {
		t.Error("a second Start made another environment")
	}
	config, counter := env.CountRequests()
	counted, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ns := env.Namespace(t)
	key := metav1.ObjectMeta{Name: "cm", Namespace: ns}

	// The object is made, changed and deleted while it is watched.
	changes := make(chan error, 1)
	go func() {
		cm := &corev1.ConfigMap{ObjectMeta: key}
		err := counted.Create(t.Context(), cm)
		if err == nil {
			cm.Data = map[string]string{"key": "value"}
			err = counted.Update(t.Context(), cm)
		}
		changes <- err
	}()
	cm := &corev1.ConfigMap{ObjectMeta: key}
	Eventually(t, env, cm, func(cm *corev1.ConfigMap) bool { return cm.Data["key"] == "value" })
	if err := <-changes; err != nil {
		t.Fatal(err)
	}
	if cm.ResourceVersion == "" {
		t.Error("Eventually left the object as it was given")
	}
	untyped := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "cm", "namespace": ns},
	}}
	Eventually(t, env, untyped, func(u *unstructured.Unstructured) bool {
		value, _, _ := unstructured.NestedString(u.Object, "data", "key")
		return value == "value"
	})
	go func() { changes <- counted.Delete(t.Context(), cm.DeepCopy()) }()
	Gone(t, env, cm)
	if err := <-changes; err != nil {
		t.Fatal(err)
	}
	Gone(t, env, cm) // it is not there: that is at once

	got := counter.Counts()
	for what := range got {
		if what[:4] == "get " { // discovery of the client, which is cached by the library as it likes
			delete(got, what)
		}
	}
	want := map[string]int{"create configmaps": 1, "update configmaps": 1, "delete configmaps": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted requests:\n%s", diff)
	}
	if n := counter.Writes(); n != 3 {
		t.Errorf("%d writes, want 3", n)
	}
	counter.Reset()
	if n := counter.Total(); n != 0 {
		t.Errorf("%d requests after Reset", n)
	}
}

func TestGit(t *testing.T) {
	server := Git(t)
	first := server.Commit(map[string]string{"a/b.txt": "one", "c.txt": "two"})
	server.Tag("v1.0.0")
	second := server.Remove("a")
	if first == second || len(first) != 40 {
		t.Errorf("commits %q and %q", first, second)
	}
	response, err := http.Get(server.URL() + "/info/refs?service=git-upload-pack")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got := response.Header.Get("Content-Type"); got != "application/x-git-upload-pack-advertisement" {
		t.Errorf("the server does not speak smart HTTP: %s", got)
	}
	for ref, want := range map[string]bool{"v1.0.0": true, Branch: false} {
		clone := filepath.Join(t.TempDir(), "clone")
		if out, err := exec.Command("git", "clone", "--quiet", "--branch", ref, server.URL(), clone).CombinedOutput(); err != nil {
			t.Fatalf("clone: %v: %s", err, out)
		}
		_, err := os.Stat(filepath.Join(clone, "a", "b.txt"))
		if (err == nil) != want {
			t.Errorf("a/b.txt at %s: %v, want it there: %v", ref, err, want)
		}
	}
}
