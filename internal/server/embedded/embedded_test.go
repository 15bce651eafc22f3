// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controlplane"
	"github.com/terrace-dev/terrace/internal/server"
)

// patience bounds every wait; nothing is measured by it.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func TestReadManifests(t *testing.T) {
	cases := map[string]struct {
		reason string
		files  map[string]string
		paths  []string
		want   []string // kind and name, then where it is from
		errs   []string
	}{
		"several documents": {
			reason: "empty ones are counted, so that the number is what an editor shows",
			files:  map[string]string{"a.yaml": "kind: A\napiVersion: v1\nmetadata: {name: one}\n---\n# nothing\n---\nkind: B\napiVersion: v1\nmetadata: {name: two, namespace: ns}\n"},
			paths:  []string{"a.yaml"},
			want:   []string{"A one: a.yaml, document 1", "B ns/two: a.yaml, document 3"},
		},
		"directory": {
			reason: "in the order of names, manifests only, not what is below",
			files: map[string]string{
				"d/b.yml": "{kind: B, apiVersion: v1, metadata: {name: b}}", "d/a.json": `{"kind":"A","apiVersion":"v1","metadata":{"name":"a"}}`,
				"d/README.md": "# no manifest", "d/below/c.yaml": "not: read",
			},
			paths: []string{"d"},
			want:  []string{"A a: d/a.json, document 1", "B b: d/b.yml, document 1"},
		},
		"list": {
			reason: "what kubectl get -o yaml prints",
			files:  map[string]string{"l.yaml": "kind: List\napiVersion: v1\nitems:\n- {kind: A, apiVersion: v1, metadata: {name: a}}\n- {kind: B, apiVersion: v1, metadata: {name: b}}\n"},
			paths:  []string{"l.yaml"},
			want:   []string{"A a: l.yaml, document 1", "B b: l.yaml, document 1"},
		},
		"errors": {
			reason: "all at once, each with its place",
			files: map[string]string{
				"bad.yaml":  "kind: A\n---\na: [\n---\nkind: B\napiVersion: v1\nmetadata: {generateName: b-}\n",
				"good.yaml": "{kind: A, apiVersion: v1, metadata: {name: a}}", "empty/x.txt": "",
			},
			paths: []string{"bad.yaml", "good.yaml", "missing.yaml", "empty"},
			want:  []string{"A a: good.yaml, document 1", "B : bad.yaml, document 3"},
			errs: []string{
				"bad.yaml, document 1: apiVersion and kind are not both there", "bad.yaml, document 2: ",
				"bad.yaml, document 3: B has no metadata.name", "missing.yaml: no such file", "empty has no .yaml",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range c.files {
				writeFile(t, filepath.Join(dir, file), content)
			}
			var paths []string
			for _, p := range c.paths {
				paths = append(paths, filepath.Join(dir, p))
			}
			found, err := readManifests(paths)
			var got []string
			for _, m := range found {
				got = append(got, describe(m.object)+": "+strings.TrimPrefix(m.from, dir+"/"))
			}
			if diff := cmp.Diff(c.want, got, inOrder); diff != "" {
				t.Errorf("%s\n%s", c.reason, diff)
			}
			if (err != nil) != (len(c.errs) > 0) {
				t.Fatalf("error: %v", err)
			}
			for _, want := range c.errs {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not say %q:\n%v", want, err)
				}
			}
		})
	}
}

// inOrder compares lists without their order.
var inOrder = cmp.Transformer("sorted", func(in []string) string {
	return strings.Join(slices.Sorted(slices.Values(in)), "\n")
})

func TestGitSource(t *testing.T) {
	here := t.TempDir()
	if err := os.Mkdir(filepath.Join(here, "My_Infra.git"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	cases := map[string]struct {
		reason string
		git    config.GitOptions
		name   string
		url    string
		err    string
	}{
		"https":        {reason: "as it is", git: config.GitOptions{URL: "https://example.org/team/infra.git"}, name: "infra", url: "https://example.org/team/infra.git"},
		"slash":        {reason: "the last element is the one before", git: config.GitOptions{URL: "https://example.org/infra/"}, name: "infra", url: "https://example.org/infra/"},
		"scp":          {reason: "what forges show for cloning", git: config.GitOptions{URL: "git@example.org:team/infra.git"}, name: "infra", url: "ssh://git@example.org/team/infra.git"},
		"scp, no user": {reason: "forges take git", git: config.GitOptions{URL: "example.org:infra"}, name: "infra", url: "ssh://git@example.org/infra"},
		"path":         {reason: "relative to where terrace is started; the name is made fit", git: config.GitOptions{URL: "./My_Infra.git"}, name: "my-infra", url: "file://" + here + "/My_Infra.git"},
		"named":        {reason: "the given name wins", git: config.GitOptions{URL: "https://example.org/infra", Name: "live"}, name: "live", url: "https://example.org/infra"},
		"missing path": {reason: "a typing error", git: config.GitOptions{URL: "./nowhere"}, err: "there is no repository at ./nowhere"},
		"no name":      {reason: "nothing to name it by", git: config.GitOptions{URL: "https://user:secret@!!!"}, err: "--git"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m, err := gitSource(c.git)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
					t.Fatalf("error %v, want %q (%s)", err, c.err, c.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			spec := m.object.Object["spec"].(map[string]any)
			if got := m.object.GetName() + " " + spec["url"].(string); got != c.name+" "+c.url {
				t.Errorf("got %s, want %s %s (%s)", got, c.name, c.url, c.reason)
			}
		})
	}
}

func TestFind(t *testing.T) {
	files := map[string]string{
		"network/main.tf":          `module "subnet" { source = "../modules/subnet" }`,
		"cluster/main.tofu":        "",
		"modules/subnet/main.tf":   "",
		"other/main.tf":            "",
		"units.yaml":               "apiVersion: infra.contrib.fluxcd.io/v1alpha2\nkind: Terraform\n",
		"network/values.yaml":      "a: b\n",
		"cluster/docs/readme.html": "",
	}
	cases := map[string]struct {
		reason string
		below  string
		want   content
	}{
		"all": {
			reason: "a directory that another uses as a module is not a unit",
			want:   content{modules: []string{"cluster", "network", "other"}, manifests: []string{"units.yaml"}},
		},
		"path": {
			reason: "only what is below, but whole elements",
			below:  "./cluster", want: content{modules: []string{"cluster"}},
		},
		"nothing": {reason: "a path that is not there", below: "nowhere"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for name, text := range files {
				if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(w, text); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := find(tar.NewReader(&archive), c.below)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(content{})); diff != "" {
				t.Errorf("%s\n%s", c.reason, diff)
			}
		})
	}
}

// output collects what Up prints and lets a test wait for a part of it.
type output struct {
	mu   sync.Mutex
	text strings.Builder
	news chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	select {
	case o.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// up runs Up until the test ends, or until stop.
func up(t *testing.T, cfg config.Config) (out *output, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out = &output{news: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() { done <- Up(ctx, cfg, out) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { stop() }) //nolint:errcheck // the test has looked, if it cares
	timeout := time.After(patience)
	for !strings.Contains(out.String(), "Terrace is ready") {
		select {
		case <-out.news:
		case err := <-done:
			done <- err
			t.Fatalf("Up ended: %v", err)
		case <-timeout:
			t.Fatal("Up is not ready")
		}
	}
	return out, stop
}

// await waits until Up has printed text.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	timeout := time.After(patience)
	for !strings.Contains(o.String(), text) {
		select {
		case <-o.news:
		case <-timeout:
			t.Fatalf("Up did not print %q but:\n%s", text, o)
		}
	}
}

func admin(t *testing.T, dir string) client.Client {
	t.Helper()
	api, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(api, client.Options{Scheme: server.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestUp(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Default(config.Up)
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.APIAddress = "127.0.0.1:0"
	cfg.WithoutControllers = true
	// The object comes before its namespace and its definition.
	cfg.Files = []string{filepath.Join(dir, "all.yaml")}
	writeFile(t, cfg.Files[0], `
apiVersion: test.terrace.dev/v1
kind: Widget
metadata: {name: w, namespace: made}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cm, resourceVersion: "12", uid: from-another-cluster}
data: {key: one}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.terrace.dev}
spec:
  group: test.terrace.dev
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`)
	out, stop := up(t, cfg)
	for _, want := range []string{"terrace kubectl --data-dir " + cfg.DataDir, "export KUBECONFIG=" + cfg.DataDir + "/kubeconfig"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	c := admin(t, cfg.DataDir)
	cm := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "cm"}, cm); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "made"}, &corev1.Namespace{}); err != nil {
		t.Errorf("the namespace that is only mentioned: %v", err)
	}
	if err := c.List(t.Context(), &infra.TerraformList{}); err != nil {
		t.Errorf("the definitions: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}

	// What cannot be applied ends the start, with each document that failed.
	writeFile(t, cfg.Files[0], `
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {key: two}
---
apiVersion: nowhere.example.com/v1
kind: Thing
metadata: {name: thing}
---
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: unit}
spec: {intervall: 1m}
`)
	err := Up(t.Context(), cfg, io.Discard)
	if err == nil {
		t.Fatal("it started with manifests that cannot be applied")
	}
	for _, want := range []string{
		"document 2: Thing thing: the API has no kind Thing of nowhere.example.com/v1",
		"document 3: Terraform default/unit: ", "intervall",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
}

func TestUpRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cases := map[string]struct {
		reason string
		change func(*config.Config)
		want   string
		start  bool // whether it is a StartError
	}{
		"port in use": {
			reason: "the control plane's own error comes through",
			change: func(c *config.Config) { c.APIAddress, c.WithoutControllers = taken.Addr().String(), true },
			want:   "address already in use", start: true,
		},
		"no manifest": {
			reason: "found before anything starts",
			change: func(c *config.Config) { c.Files = []string{"/nowhere.yaml"} },
			want:   "read manifests: ",
		},
		"no tofu": {
			reason: "found before anything starts",
			change: func(c *config.Config) { c.Tofu = "/nowhere/tofu" },
			want:   "/nowhere/tofu",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default(config.Up)
			cfg.DataDir = filepath.Join(t.TempDir(), "data")
			cfg.APIAddress = "127.0.0.1:0"
			c.change(&cfg)
			err := Up(t.Context(), cfg, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q (%s)", err, c.want, c.reason)
			}
			var start *controlplane.StartError
			if errors.As(err, &start) != c.start {
				t.Errorf("%T", err)
			}
			if !c.start && exists(cfg.DataDir) {
				t.Error("the data directory was made all the same")
			}
		})
	}
}

// TestUpGit starts everything on a local repository and reads what is printed of it.
func TestUpGit(t *testing.T) {
	tool, err := filepath.Abs("../../../bin/tofu")
	if err != nil {
		t.Fatal(err)
	}
	if !exists(tool) {
		t.Fatalf("%s is not there: run `make build` first", tool)
	}
	dir := t.TempDir()
	repo := filepath.Join(dir, "live")
	writeFile(t, filepath.Join(repo, "network", "main.tf"), "output \"o\" { value = 1 }\n")
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch", "main"},
		{"add", "--all"},
		{"-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--message", "begin"},
	} {
		git := exec.Command("git", args...)
		git.Dir = repo
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	cfg := config.Default(config.Up)
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.APIAddress = "127.0.0.1:0"
	cfg.Tofu = tool
	cfg.Git = config.GitOptions{URL: repo, Branch: "main", Namespace: "team"}
	out, stop := up(t, cfg)
	out.await(t, "Git source team/live is at main@sha1:")
	out.await(t, "./network")
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
