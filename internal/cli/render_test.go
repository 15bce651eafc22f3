// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"
)

// enc is a value as SOPS writes it.
const enc = "ENC[AES256_GCM,data:c2VjcmV0,iv:AAAA,tag:AAAA,type:str]"

func TestMaskFile(t *testing.T) {
	cases := map[string]struct {
		reason  string
		content string
		want    string
	}{
		"Plain": {
			reason:  "what is not encrypted stays as it is, to the letter",
			content: "a:   1 # one\n",
			want:    "a:   1 # one\n",
		},
		"YAML": {
			reason:  "the values and the metadata of SOPS go, the keys stay",
			content: "password: " + enc + "\nuser: app\nsops:\n    mac: " + enc + "\n    version: 3.9.0\n",
			want:    "password: '**SOPS**'\nuser: app\n",
		},
		"Documents": {
			reason:  "each document of a file has the metadata",
			content: "a: " + enc + "\nsops: {mac: \"" + enc + "\", version: 3.9.0}\n---\nb: " + enc + "\nsops: {mac: \"" + enc + "\", version: 3.9.0}\n",
			want:    "a: '**SOPS**'\n---\nb: '**SOPS**'\n",
		},
		"JSON": {
			reason:  "as with YAML",
			content: `{"password": "` + enc + `", "sops": {"mac": "` + enc + `", "version": "3.9.0"}}`,
			want:    `{"password":"**SOPS**"}`,
		},
		"Binary": {
			reason:  "a whole file is one value",
			content: `{"data": "` + enc + `", "sops": {"mac": "` + enc + `", "version": "3.9.0"}}`,
			want:    masked,
		},
		"Dotenv": {
			reason:  "the metadata are variables of their own",
			content: "PASSWORD=" + enc + "\nsops_version=3.9.0\nsops_mac=" + enc + "\n",
			want:    "PASSWORD=**SOPS**\n",
		},
		"INI": {
			reason:  "the metadata are a section of their own",
			content: "[db]\npassword = " + enc + "\n\n[sops]\nversion = 3.9.0\nmac = " + enc + "\n",
			want:    "[db]\npassword = **SOPS**\n\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := masking{}.File(context.Background(), "file", []byte(tc.content))
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, string(got)); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestMaskObject(t *testing.T) {
	inside := base64.StdEncoding.EncodeToString([]byte("password: " + enc))
	o := &unstructured.Unstructured{}
	text := `{apiVersion: v1, kind: Secret, metadata: {name: a, annotations: {note: "x ` + enc + `"}},
data: {file: ` + inside + `, plain: ` + base64.StdEncoding.EncodeToString([]byte("plain")) + `}, stringData: {token: "` + enc + `"}, sops: {mac: "` + enc + `"}}`
	if err := sigsyaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	if hasMasked(o) {
		t.Error("hasMasked before masking")
	}
	did, err := masking{}.Object(context.Background(), o)
	if err != nil || !did {
		t.Fatalf("Object: %v, %v; want true", did, err)
	}
	want := map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": "a", "annotations": map[string]any{"note": "x **SOPS**"}},
		"data": map[string]any{
			"file": base64.StdEncoding.EncodeToString([]byte(masked)), "plain": base64.StdEncoding.EncodeToString([]byte("plain")),
		},
		"stringData": map[string]any{"token": masked},
	}
	if d := cmp.Diff(want, o.Object); d != "" {
		t.Errorf("-want, +got:\n%s", d)
	}
	if !hasMasked(o) {
		t.Error("hasMasked after masking: false")
	}
	unstructured.RemoveNestedField(o.Object, "stringData")
	o.SetAnnotations(nil)
	if !hasMasked(o) {
		t.Error("hasMasked of a value in base64: false")
	}
}

// TestMaskOddFiles holds that what cannot be read is refused, not shown.
func TestMaskOddFiles(t *testing.T) {
	for name, content := range map[string]string{
		"NotQuiteJSON":   `{"a": "` + enc + `", "sops": {"mac": "` + enc + `", "version": "3.9.0"}`,
		"NotQuiteYAML":   "a: [" + enc + "\nsops:\n    mac: " + enc + "\n    version: 3.9.0\n",
		"ListInDotenv":   "- a: " + enc + "\nsops_mac=" + enc + "\nsops_version=3.9.0\n",
		"EmptyDocuments": "---\n---\na: " + enc + "\nsops: {mac: \"" + enc + "\", version: 3.9.0}\n---\n",
		"BareCarriage":   "[db]\r\npassword = " + enc + "\r\n[sops]\r\nversion = 3.9.0\r\nmac = " + enc + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := masking{}.File(context.Background(), "file", []byte(content))
			if err == nil && string(out) != content && encryptedValue.Match(out) {
				t.Errorf("an encrypted value is left: %q", out)
			}
			if err != nil && strings.Contains(err.Error(), "c2VjcmV0") {
				t.Errorf("the error shows a value: %v", err)
			}
		})
	}
}

func TestLocate(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"repo/.git", "repo/apps/shop", "repo/other", "plain/apps/shop", "apps/apps", "deep/apps/shop/apps/shop"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		reason       string
		dir, path    string
		root, inside string
	}{
		"Repository":     {"a repository is a tree", "repo", "./apps/shop", "repo", "apps/shop"},
		"Path":           {"as with flux, the directory of the unit's path", "repo/apps/shop", "./apps/shop", "repo", "apps/shop"},
		"AnotherPath":    {"another directory of a repository stands for the unit's path", "repo/other", "./apps/shop", "repo", "other"},
		"Tree":           {"a tree without a repository", "plain", "apps/shop", "plain", "apps/shop"},
		"PathInTree":     {"the path in such a tree", "plain/apps/shop", "/apps/shop/", "plain", "apps/shop"},
		"NoPath":         {"a unit of a whole tree", "plain", "", "plain", ""},
		"Root":           {"the same", "plain", "./", "plain", ""},
		"Ambiguous":      {"what ends like the path is the path, as with flux", "deep/apps/shop", "apps/shop", "deep", "apps/shop"},
		"NothingMatches": {"the directory alone", "plain/apps", "other", "plain/apps", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			root, inside, err := locate(filepath.Join(base, tc.dir), tc.path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]string{filepath.Join(base, tc.root), tc.inside}, []string{root, inside}); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
	if _, _, err := locate(filepath.Join(base, "none"), ""); err == nil {
		t.Error("a directory that is not there: no error")
	}
}

// asked is a transport that keeps where a request went.
type asked struct{ urls []string }

func (a *asked) RoundTrip(req *http.Request) (*http.Response, error) {
	a.urls = append(a.urls, req.URL.String())
	return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
}

func TestArtifactsOfServices(t *testing.T) {
	cases := map[string]struct {
		reason string
		url    string
		api    []string
		direct []string
	}{
		"Terrace": {
			reason: "a Service without a port has that of its scheme",
			url:    "http://terrace.terrace-system.svc/gitrepository/a/b/c.tar.gz",
			api:    []string{"https://api:6443/k8s/api/v1/namespaces/terrace-system/services/http:terrace:80/proxy/gitrepository/a/b/c.tar.gz"},
		},
		"Flux": {
			reason: "the whole name of a Service, with its port",
			url:    "http://source-controller.flux-system.svc.cluster.local.:8080/x.tar.gz",
			api:    []string{"https://api:6443/k8s/api/v1/namespaces/flux-system/services/http:source-controller:8080/proxy/x.tar.gz"},
		},
		"Elsewhere": {
			reason: "other hosts are reached as they are, without the cluster's credentials",
			url:    "http://example.org/x.tar.gz",
			direct: []string{"http://example.org/x.tar.gz"},
		},
		"NoService": {
			reason: "a host that only looks like one",
			url:    "http://a.b.svcs.example.org/x.tar.gz",
			direct: []string{"http://a.b.svcs.example.org/x.tar.gz"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			api, direct := &asked{}, &asked{}
			c := &http.Client{Transport: services{api: api, direct: direct, host: &url.URL{Scheme: "https", Host: "api:6443", Path: "/k8s"}}}
			res, err := c.Get(tc.url)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if d := cmp.Diff([][]string{tc.api, tc.direct}, [][]string{api.urls, direct.urls}); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestClusterOf(t *testing.T) {
	kubeconfig := func(user, cluster string) string {
		return `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "https://example.org", ` + cluster + `}}], users: [{name: a, user: {` + user + `}}]}`
	}
	cases := map[string]struct {
		reason  string
		content string
		want    string // what the error says; empty for none
	}{
		"Token":   {"credentials within the file are used", kubeconfig("token: x", ""), ""},
		"Exec":    {"no program of a stranger is started", kubeconfig("exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}", ""), "by a program or a file"},
		"File":    {"no file of this machine is read and sent elsewhere", kubeconfig("tokenFile: /etc/passwd", ""), "by a program or a file"},
		"CA":      {"the same for the authority", kubeconfig("token: x", "certificate-authority: /etc/passwd"), "certificate authority is a file"},
		"Empty":   {"the key is missing", "", "no kubeconfig under the key"},
		"Not one": {"what is in it is not shown", "token: secret-words: x", "it is not a kubeconfig"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := clusterOf([]byte(tc.content), "test")
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s: %v", tc.reason, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret-words")):
				t.Errorf("%s: error %v, want one with %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	cases := map[string]struct {
		reason string
		steps  []string
		want   string
	}{
		"Field":   {"a field of a map", []string{"spec", "replicas"}, `spec: {list: [{a: 1, b: 2}, 3]}`},
		"InList":  {"a field of an element", []string{"spec", "list", "0", "b"}, `spec: {replicas: 3, list: [{a: 1}, 3]}`},
		"Element": {"an element leaves its place", []string{"spec", "list", "1"}, `spec: {replicas: 3, list: [{a: 1, b: 2}, null]}`},
		"Absent":  {"what is not there changes nothing", []string{"spec", "none", "x"}, `spec: {replicas: 3, list: [{a: 1, b: 2}, 3]}`},
		"Beyond":  {"nor an index that is too high", []string{"spec", "list", "7"}, `spec: {replicas: 3, list: [{a: 1, b: 2}, 3]}`},
		"Word":    {"nor a word for an index", []string{"spec", "list", "x", "y"}, `spec: {replicas: 3, list: [{a: 1, b: 2}, 3]}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got, want map[string]any
			if err := sigsyaml.Unmarshal([]byte(`spec: {replicas: 3, list: [{a: 1, b: 2}, 3]}`), &got); err != nil {
				t.Fatal(err)
			}
			if err := sigsyaml.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			remove(got, tc.steps)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestPendingPlan(t *testing.T) {
	cases := map[string]struct {
		reason   string
		ready    string
		id, does string
	}{
		"Waits":   {"the id and what it does", `{type: Ready, status: "False", reason: PlanWaiting, message: "plan plan-main-0badcafe00 waits: 1 to add"}`, "plan-main-0badcafe00", "1 to add"},
		"Worded":  {"also when more is said of the wait", `{type: Ready, status: Unknown, reason: PlanWaiting, message: "Plan plan-x-00 waits for an approval: 1 to add.\nmore"}`, "plan-x-00", "1 to add"},
		"Other":   {"another reason is no wait", `{type: Ready, status: "False", reason: BuildFailed, message: "plan plan-x-00 waits: 1 to add"}`, "", ""},
		"Strange": {"a message that names none", `{type: Ready, status: "False", reason: PlanWaiting, message: "later"}`, "", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := parse(t, []byte("{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: x}, status: {conditions: ["+tc.ready+"]}}"))[0]
			id, does := pendingPlan(o)
			if d := cmp.Diff([]string{tc.id, tc.does}, []string{id, does}); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}
