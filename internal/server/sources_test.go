// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// The tests here are about sources of other controllers: objects with an artifact
// in their status, which somebody serves over HTTP.

// tarball is a tar.gz of files.
func tarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, content := range files {
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(content))
		must(t, err)
	}
	must(t, w.Close())
	must(t, z.Close())
	return b.Bytes()
}

// foreignStore serves content by path, as a source controller does.
func foreignStore(t *testing.T, content map[string][]byte) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, ok := content[r.URL.Path]
		if !ok {
			http.NotFound(rw, r)
			return
		}
		_, _ = rw.Write(b)
	}))
	t.Cleanup(s.Close)
	return s
}

func artifactOf(url, revision string, content []byte) *meta.Artifact {
	return &meta.Artifact{
		Path: "p", URL: url, Revision: revision, Digest: "sha256:" + sum(content), LastUpdateTime: metav1.Now(),
	}
}

// publishArtifact makes a Bucket or an OCIRepository with an artifact; nil leaves it without.
func (w *world) publishArtifact(kind, name string, a *meta.Artifact) {
	w.t.Helper()
	spec := `{interval: 1h, url: "oci://registry.test/x"}`
	if kind == "Bucket" {
		spec = `{interval: 1h, endpoint: bucket.test, bucketName: b}`
	}
	w.apply("apiVersion: source.toolkit.fluxcd.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec: " + spec)
	if a == nil {
		return
	}
	key := client.ObjectKey{Namespace: w.ns, Name: name}
	if kind == "Bucket" {
		var o sourcev1.Bucket
		must(w.t, w.client.Get(w.ctx(), key, &o))
		o.Status.Artifact = a
		must(w.t, w.client.Status().Update(w.ctx(), &o))
		return
	}
	var o sourcev1.OCIRepository
	must(w.t, w.client.Get(w.ctx(), key, &o))
	o.Status.Artifact = a
	must(w.t, w.client.Status().Update(w.ctx(), &o))
}

// from applies a unit of another source than the world's.
func (w *world) from(kind, source, name, spec string) {
	w.t.Helper()
	w.apply(fmt.Sprintf("apiVersion: infra.contrib.fluxcd.io/v1alpha2\nkind: Terraform\nmetadata: {name: %s}\nspec:\n%s",
		name, indent(fmt.Sprintf("interval: 1h\nretryInterval: 1s\nsourceRef: {kind: %s, name: %s}\n%s", kind, source, spec))))
}

func TestSourcesOfOtherControllers(t *testing.T) {
	w := newWorld(t, modA())
	good := tarball(t, modA())
	second := tarball(t, map[string]string{"main.tf": strings.Replace(moduleA, `"a"`, `"b"`, 1)})
	store := foreignStore(t, map[string][]byte{"/good": good, "/second": second})
	hash := strings.Repeat("0123456789", 6) + "abcd"

	w.publishArtifact("Bucket", "bucket", artifactOf(store.URL+"/good", "sha256:"+hash, good))
	w.publishArtifact("OCIRepository", "oci", artifactOf(store.URL+"/good", "6.1.0@sha256:"+hash, good))
	w.from("Bucket", "bucket", "b", `approvePlan: ""`)
	w.from("OCIRepository", "oci", "o", "approvePlan: \"\"\nwriteOutputsToSecret: {name: out}")
	if id := w.awaitPending("b"); !strings.HasPrefix(id, "plan-") || len(id) < len("plan-")+10 {
		t.Errorf("the id of a Bucket's plan is %q", id)
	}
	id := w.awaitPending("o")
	if !strings.HasPrefix(id, "plan-6.1.0-") {
		t.Errorf("the id of an OCIRepository's plan is %q", id)
	}
	// The id that a tool computes from the revision names the first plan of it.
	w.change("b", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "plan-sha256:012" })
	w.change("o", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "plan-6.1.0-" + hash[:10] })
	w.awaitReady("o")
	w.output("out", "o", "a")
	w.awaitReady("b")

	w.change("o", func(tf *infra.Terraform) { tf.Spec.ApprovePlan = "auto" })
	w.publishArtifact("OCIRepository", "oci", artifactOf(store.URL+"/second", "6.2.0@sha256:"+hash, second))
	w.output("out", "o", "b")
}

func TestSourcesThatGiveNothing(t *testing.T) {
	w := newWorld(t, modA())
	good, garbage := tarball(t, modA()), []byte("this is no archive")
	climbs := tarball(t, map[string]string{"../../escape": "x"})
	store := foreignStore(t, map[string][]byte{"/good": good, "/garbage": garbage, "/other": []byte("other content"), "/climbs": climbs})
	w.publishArtifact("Bucket", "none", nil)
	w.publishArtifact("Bucket", "garbage", artifactOf(store.URL+"/garbage", "sha256:aa", garbage))
	w.publishArtifact("Bucket", "digest", artifactOf(store.URL+"/other", "sha256:bb", good))
	w.publishArtifact("Bucket", "gone", artifactOf(store.URL+"/nowhere", "sha256:cc", good))
	w.publishArtifact("Bucket", "climbs", artifactOf(store.URL+"/climbs", "sha256:dd", climbs))

	for _, name := range []string{"missing", "none", "garbage", "digest", "gone", "climbs"} {
		w.from("Bucket", name, name, "approvePlan: auto")
	}
	for name, want := range map[string]string{
		"missing": "Source 'Bucket/" + w.ns + "/missing' not found",
		"none":    "Source is not ready, artifact not found",
		"garbage": "sha256:aa", "digest": "sha256:bb", "gone": "sha256:cc", "climbs": "sha256:dd",
	} {
		tf := w.awaitReason(name, infra.ReasonArtifactFailed)
		if m := readyOf(tf).Message; !strings.Contains(m, want) {
			t.Errorf("%s: the message does not say %q: %q", name, want, m)
		}
		if tf.Status.ObservedGeneration != tf.Generation || condition(tf, "Reconciling").Type != "" {
			t.Errorf("%s: observed %d of %d, conditions %+v", name, tf.Status.ObservedGeneration, tf.Generation, tf.Status.Conditions)
		}
	}
	if n := w.spawned(""); n != 0 {
		t.Errorf("%d processes ran without content", n)
	}
	// Each recovers by itself.
	for _, name := range []string{"missing", "none", "garbage", "digest", "gone", "climbs"} {
		w.publishArtifact("Bucket", name, artifactOf(store.URL+"/good", "sha256:"+sum([]byte(name)), good))
	}
	for _, name := range []string{"missing", "none", "garbage", "digest", "gone", "climbs"} {
		w.awaitReady(name)
	}
}

// The API server refuses a kind that is none of the three.
func TestUnknownKindOfSource(t *testing.T) {
	w := newWorld(t, modA())
	tf := &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "u"}}
	tf.Spec.SourceRef = infra.CrossNamespaceSourceReference{Kind: "HelmChart", Name: "x"}
	if err := w.client.Create(w.ctx(), tf); err == nil || !strings.Contains(err.Error(), "sourceRef.kind") {
		t.Errorf("the answer does not name the field: %v", err)
	}
}
