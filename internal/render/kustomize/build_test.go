// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxkustomize "github.com/fluxcd/pkg/apis/kustomize"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// files are the names and contents of a tree.
type files map[string]string

func (f files) write(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range f {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

func unit(path string, change func(*kustomizev1.KustomizationSpec)) *kustomizev1.Kustomization {
	u := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "fleet"}}
	u.Spec.Path = path
	if change != nil {
		change(&u.Spec)
	}
	return u
}

func TestBuildErrors(t *testing.T) {
	tests := map[string]struct {
		reason string
		files  files
		path   string
		spec   func(*kustomizev1.KustomizationSpec)
		is     error
		want   []string
		not    []string
	}{
		"no path": {
			reason: "the controller tells this one apart",
			files:  files{"a.yaml": configMap},
			path:   "apps/gone",
			is:     ErrPathNotFound,
			want:   []string{"apps/gone", "no such file"},
		},
		"path is a file": {
			reason: "a unit is a directory",
			files:  files{"a.yaml": configMap},
			path:   "a.yaml",
			is:     ErrPathNotFound,
			want:   []string{"a.yaml", "not a directory"},
		},
		"not a manifest": {
			reason: "kustomize's own error speaks of directories; this one names the file and the rule",
			files:  files{"app/values.yaml": "replicas: 1\n", "app/a.yaml": configMap},
			path:   "app",
			want:   []string{"app/values.yaml", "no kustomization.yaml", "add a kustomization.yaml"},
		},
		"broken YAML": {
			reason: "as above",
			files:  files{"app/a.yaml": "a: [\n"},
			path:   "app",
			want:   []string{"failed to decode Kubernetes YAML from app/a.yaml"},
		},
		"missing resource": {
			reason: "names are those of the artifact",
			files:  files{"app/kustomization.yaml": "resources: [gone.yaml]\n"},
			path:   "app",
			want:   []string{"kustomize build failed", "app/gone.yaml"},
			not:    []string{mount, os.TempDir()},
		},
		"broken kustomization": {
			reason: "the file is named",
			files:  files{"app/kustomization.yaml": "resources: {\n"},
			path:   "app",
			want:   []string{"parse app/kustomization.yaml"},
		},
		"same object twice": {
			reason: "kustomize refuses it",
			files:  files{"a.yaml": configMap, "b.yaml": configMap},
			want:   []string{"kustomize build failed", "settings"},
		},
		"climbs out": {
			reason: "a resource above the artifact",
			files:  files{"app/kustomization.yaml": "resources: [../../secret.yaml]\n"},
			path:   "app",
			want:   []string{"leads out of the artifact"},
		},
		"climbs out and back": {
			reason: "what is above the root has no name, so that nobody can come back by one",
			files:  files{"kustomization.yaml": "resources: [../../etc/passwd]\n"},
			want:   []string{"leads out of the artifact"},
		},
		"absolute": {
			reason: "an absolute path is not in the artifact",
			files:  files{"kustomization.yaml": "configMapGenerator:\n- name: x\n  files: [/etc/hostname]\n"},
			want:   []string{"leads out of the artifact"},
		},
		"remote component": {
			reason: "components of the spec are local in Flux, always",
			files:  files{"a.yaml": configMap},
			spec: func(s *kustomizev1.KustomizationSpec) {
				s.Components = []string{"https://example.org/x"}
			},
			want: []string{"component path 'https://example.org/x' must be local and relative"},
		},
		"missing component": {
			reason: "unless the spec ignores it",
			files:  files{"a.yaml": configMap},
			spec:   func(s *kustomizev1.KustomizationSpec) { s.Components = []string{"gone"} },
			want:   []string{"gone", "no such file"},
		},
		"bad patch": {
			reason: "a patch without a target",
			files:  files{"a.yaml": configMap},
			spec: func(s *kustomizev1.KustomizationSpec) {
				s.Patches = []fluxkustomize.Patch{{Patch: "- op: replace\n  path: /x\n  value: y\n"}}
			},
			want: []string{"kustomize build failed"},
		},
		"alias bomb": {
			reason: "nine lines that would become 10^9 nodes",
			files:  files{"a.yaml": bomb},
			want:   []string{"a.yaml", "aliases expand"},
		},
		"alias bomb in a kustomization": {
			reason: "as above",
			files:  files{"kustomization.yaml": bomb},
			want:   []string{"kustomization.yaml", "aliases expand"},
		},
		"object without a name": {
			reason: "Flux refuses it",
			files:  files{"a.yaml": "apiVersion: v1\nkind: ConfigMap\n"},
			want:   []string{"a.yaml"},
		},
		"huge object": {
			reason: "the API server would refuse it",
			files:  files{"kustomization.yaml": "configMapGenerator:\n- name: x\n  files: [big]\n", "big": strings.Repeat("x", maxObjectSize)},
			want:   []string{"ConfigMap/x-", "more than the"},
		},
		"huge file": {
			reason: "read in part is not read",
			files:  files{"a.yaml": strings.Repeat("#", maxFileSize+1)},
			want:   []string{"a.yaml", "more than the limit"},
		},
		"generator plugin": {
			reason: "plugins run programs",
			files:  files{"kustomization.yaml": "generators: [g.yaml]\n", "g.yaml": "apiVersion: example.org/v1\nkind: Exec\nmetadata:\n  name: x\n  annotations:\n    config.kubernetes.io/function: |\n      exec: {path: ./run.sh}\n"},
			want:   []string{"kustomize build failed"},
		},
		"helm": {
			reason: "charts run helm",
			files:  files{"kustomization.yaml": "helmCharts:\n- name: minecraft\n  repo: https://example.org\n  releaseName: x\n"},
			want:   []string{"must specify --enable-helm"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := Build(t.Context(), Input{Dir: tc.files.write(t), Unit: unit(tc.path, tc.spec)})
			if err == nil {
				t.Fatalf("%s: no error, %d objects", tc.reason, len(out.Objects))
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%s: %v is not %v", tc.reason, err, tc.is)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: the error lacks %q:\n%v", tc.reason, part, err)
				}
			}
			for _, part := range append(tc.not, mount+"/", "/tmp/") {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%s: the error has %q:\n%v", tc.reason, part, err)
				}
			}
			if out == nil || out.Reads == nil {
				t.Errorf("%s: no Reads with the error", tc.reason)
			}
		})
	}
}

// bomb multiplies ten by each of nine aliases.
var bomb = func() string {
	s := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		one := fmt.Sprintf("*a%d", i)
		s += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Join([]string{one, one, one, one, one, one, one, one, one, one}, ", "))
	}
	return s
}()

func TestLinksStayInside(t *testing.T) {
	outside := files{"secret.yaml": configMap, "dir/kustomization.yaml": "resources: []\n"}.write(t)
	tests := map[string]struct {
		reason string
		target string
		ok     bool
	}{
		"inside":                {"a link within the artifact is followed", "../real/cm.yaml", true},
		"through a directory":   {"several links on the way", "../chain/cm.yaml", true},
		"absolute":              {"an absolute link is outside, wherever it leads", filepath.Join(outside, "secret.yaml"), false},
		"relative":              {"a link that climbs", "../../../../../../../../../../.." + filepath.Join(outside, "secret.yaml"), false},
		"itself":                {"a loop", "link.yaml", false},
		"nothing":               {"a link to what is not there", "../real/gone.yaml", false},
		"climbs through a link": {"'..' is that of where the link leads", "../up/../../x/cm.yaml", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := files{"app/kustomization.yaml": "resources: [link.yaml]\n", "real/cm.yaml": configMap, "deep/er/x": ""}.write(t)
			for link, target := range map[string]string{"app/link.yaml": tc.target, "chain": "chain2", "chain2": "deep/../real", "up": "deep/er"} {
				if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("app", nil)})
			if (err == nil) != tc.ok {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if tc.ok && len(out.Objects) != 1 {
				t.Errorf("%s: %d objects", tc.reason, len(out.Objects))
			}
			if _, err := out.Reads.Digest(dir); err != nil {
				t.Errorf("%s: digest: %v", tc.reason, err)
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		dir := files{"a.yaml": configMap}.write(t)
		if err := os.Symlink(filepath.Join(outside, "dir"), filepath.Join(dir, "app")); err != nil {
			t.Fatal(err)
		}
		if _, err := Build(t.Context(), Input{Dir: dir, Unit: unit("app", nil)}); !errors.Is(err, ErrOutside) {
			t.Errorf("a path that is a link out of the artifact: %v", err)
		}
	})
}

func TestRemoteBases(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(configMap))
	}))
	defer server.Close()
	url := server.URL + "/cm.yaml"
	tests := map[string]struct {
		files files
		name  string // what the error names
	}{
		"resource":            {files{"kustomization.yaml": "resources: [" + url + "]\n"}, url},
		"upper case":          {files{"kustomization.yaml": "Resources: [" + strings.Replace(url, "http", "HTTP", 1) + "]\n"}, strings.Replace(url, "http", "HTTP", 1)},
		"base":                {files{"kustomization.yaml": "bases: [\"git@example.org:org/repo\"]\n"}, "git@example.org:org/repo"},
		"GitHub":              {files{"kustomization.yaml": "resources: [\"github.com/org/repo//dir?ref=v1\"]\n"}, "github.com/org/repo//dir?ref=v1"},
		"SSH":                 {files{"kustomization.yaml": "resources: [\"ssh://git@example.org/x/y\"]\n"}, "ssh://git@example.org/x/y"},
		"file":                {files{"kustomization.yaml": "resources: [\"file:///srv/repo\"]\n"}, "file:///srv/repo"},
		"forced git":          {files{"kustomization.yaml": "resources: [\"git::https://example.org/x/y\"]\n"}, "git::https://example.org/x/y"},
		"component":           {files{"kustomization.yaml": "components: [" + url + "]\n"}, url},
		"patch":               {files{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: " + url + "}]\n", "a.yaml": configMap}, url},
		"old patch":           {files{"kustomization.yaml": "resources: [a.yaml]\npatchesStrategicMerge: [" + url + "]\n", "a.yaml": configMap}, url},
		"old JSON patch":      {files{"kustomization.yaml": "resources: [a.yaml]\npatchesJson6902: [{path: " + url + ", target: {kind: X, name: z}}]\n", "a.yaml": configMap}, url},
		"replacement":         {files{"kustomization.yaml": "resources: [a.yaml]\nreplacements: [{path: " + url + "}]\n", "a.yaml": configMap}, url},
		"crds":                {files{"kustomization.yaml": "resources: [a.yaml]\ncrds: [" + url + "]\n", "a.yaml": configMap}, url},
		"configuration":       {files{"kustomization.yaml": "resources: [a.yaml]\nconfigurations: [" + url + "]\n", "a.yaml": configMap}, url},
		"openapi":             {files{"kustomization.yaml": "resources: [a.yaml]\nopenapi: {path: " + url + "}\n", "a.yaml": configMap}, url},
		"generator file":      {files{"kustomization.yaml": "configMapGenerator: [{name: x, files: [\"key=" + url + "\"]}]\n"}, url},
		"generator env":       {files{"kustomization.yaml": "secretGenerator: [{name: x, env: " + url + "}]\n"}, url},
		"generator entry":     {files{"kustomization.yaml": "generators: [" + url + "]\n"}, url},
		"inline generator":    {files{"kustomization.yaml": "generators:\n- |-\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: x}\n  files: [\"key=" + url + "\"]\n"}, url},
		"one line":            {files{"kustomization.yaml": "generators:\n- '{\"apiVersion\":\"builtin\",\"kind\":\"ConfigMapGenerator\",\"metadata\":{\"name\":\"x\"},\"files\":[\"k=" + url + "\"]}'\n"}, url},
		"alias":               {files{"kustomization.yaml": "generators:\n- |-\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: x, annotations: {a: &u \"k=" + url + "\"}}\n  files: [*u]\n"}, url},
		"transformer file":    {files{"kustomization.yaml": "resources: [a.yaml]\ntransformers: [t.yaml]\n", "a.yaml": configMap, "t.yaml": "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: x}\nPath: " + url + "\n"}, url},
		"transformer, nested": {files{"kustomization.yaml": "resources: [a.yaml]\ntransformers: [t]\n", "a.yaml": configMap, "t/kustomization.yaml": "resources: [t.yaml]\n", "t/t.yaml": "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: x}\npath: " + url + "\n"}, url},
		"deep":                {files{"kustomization.yaml": "resources: [one]\n", "one/kustomization.yaml": "components: [../two]\n", "two/kustomization.yaml": "kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\nresources: [" + url + "]\n"}, url},
		"by a scan":           {files{"one/kustomization.yaml": "resources: [" + url + "]\n"}, url},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Build(t.Context(), Input{Dir: tc.files.write(t), Unit: unit("", nil)})
			var remote *RemoteBaseError
			if !errors.As(err, &remote) {
				t.Fatalf("got %v", err)
			}
			if !strings.HasSuffix(remote.Name, tc.name) {
				t.Errorf("names %q, want %q", remote.Name, tc.name)
			}
		})
	}
	t.Run("computed transformer", func(t *testing.T) {
		tree := files{"kustomization.yaml": "resources: [a.yaml]\ntransformers: [t]\n", "a.yaml": configMap,
			"t/kustomization.yaml": "resources: [t.yaml]\npatches:\n- target: {kind: PatchTransformer}\n  patch: |-\n    - op: replace\n      path: /path\n      value: " + url + "\n",
			"t/t.yaml":             "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: x}\npath: local.yaml\n"}
		_, err := Build(t.Context(), Input{Dir: tree.write(t), Unit: unit("", nil)})
		if err == nil || !strings.Contains(err.Error(), "t/kustomization.yaml is used as a list of generators, transformers or validators") {
			t.Errorf("got %v", err)
		}
	})
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests, although remote bases are not allowed", n)
	}
	t.Run("allowed", func(t *testing.T) {
		dir := files{"kustomization.yaml": "resources: [" + url + "]\n"}.write(t)
		out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", nil), RemoteBases: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Objects) != 1 || asked.Load() == 0 {
			t.Errorf("%d objects, %d requests", len(out.Objects), asked.Load())
		}
		if diff := cmp.Diff([]string{url}, out.Reads.Remote()); diff != "" {
			t.Errorf("Remote (-want +got):\n%s", diff)
		}
	})
}

func TestRemoteRepository(t *testing.T) {
	repo := files{"base/kustomization.yaml": "resources: [cm.yaml]\nopenapi: {path: schema.json}\n", "base/cm.yaml": configMap, "base/schema.json": `{"definitions":{}}`}.write(t)
	t.Setenv("TMPDIR", t.TempDir())
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "x"}} {
		if out, err := exec.Command("git", append([]string{"-C", repo}, args...)...).CombinedOutput(); err != nil {
			t.Skipf("no git here: %v: %s", err, out)
		}
	}
	dir := files{"kustomization.yaml": "resources: [\"file://" + repo + "//base?ref=main\"]\n"}.write(t)
	out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", nil), RemoteBases: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Objects) != 1 {
		t.Errorf("%d objects", len(out.Objects))
	}
	if got := openapi.GetSchemaVersion(); strings.Contains(got, "custom") {
		t.Errorf("the schema of a remote base stays: %s", got)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("the clone stays: %v, %v", left, err)
	}
}

// cipher is a Decryptor for text that begins with "enc:", and for objects with a
// field sops.
type cipher struct {
	asked []string
	err   error
}

func (c *cipher) File(_ context.Context, name string, content []byte) ([]byte, error) {
	c.asked = append(c.asked, name)
	plain, ok := bytes.CutPrefix(content, []byte("enc:"))
	if ok && c.err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", name, c.err)
	}
	return plain, nil
}

func (c *cipher) Object(_ context.Context, o *unstructured.Unstructured) (bool, error) {
	if _, ok := o.Object["sops"]; !ok {
		return false, nil
	}
	if c.err != nil {
		return false, fmt.Errorf("decrypt %s: %w", o.GetName(), c.err)
	}
	delete(o.Object, "sops")
	for k, v := range o.Object["stringData"].(map[string]any) {
		o.Object["stringData"].(map[string]any)[k] = strings.TrimPrefix(v.(string), "ENC:")
	}
	return true, nil
}

const sopsSecret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  a: ENC:004${x}\n  b: ENC:yes\nsops: {mac: m}\n"

func TestDecryption(t *testing.T) {
	tree := files{
		"app/kustomization.yaml":  "namePrefix: p-\nresources: [whole.yaml, object.yaml, ../base]\npatches: [{path: patch.yaml}]\nsecretGenerator:\n- name: g\n  envs: [values]\n  files: [key.json=secret.bin]\n  options: {disableNameSuffixHash: true}\n",
		"app/whole.yaml":          "enc:" + configMap,
		"app/object.yaml":         sopsSecret,
		"app/patch.yaml":          "enc:apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  patched: \"yes\"\n",
		"app/values":              "enc:A=1\n",
		"app/secret.bin":          "enc:{}",
		"base/kustomization.yaml": "configMapGenerator:\n- name: c\n  files: [f.txt]\n  options: {disableNameSuffixHash: true}\n",
		"base/f.txt":              "enc:text",
	}
	dir := tree.write(t)
	c := &cipher{}
	u := unit("app", postBuild)
	out, err := Build(t.Context(), Input{Dir: dir, Unit: u, Decrypt: c, Variables: map[string]string{"x": "5"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, o := range out.Objects {
		for _, f := range []string{"data", "stringData"} {
			if v, ok := o.Object[f]; ok {
				got[o.GetKind()+"/"+o.GetName()] = v
			}
		}
	}
	want := map[string]any{
		"ConfigMap/p-settings": map[string]any{"a": "b", "patched": "yes"},
		"Secret/p-s":           map[string]any{"a": "0045", "b": "yes"},
		"Secret/p-g":           map[string]any{"A": "MQ==", "key.json": "e30="},
		"ConfigMap/p-c":        map[string]any{"f.txt": "text"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	slices.Sort(c.asked)
	if diff := cmp.Diff([]string{"app/key.json", "app/object.yaml", "app/patch.yaml", "app/values.env", "app/whole.yaml", "base/f.txt"}, c.asked); diff != "" {
		t.Errorf("each file once, with a name that tells its format (-want +got):\n%s", diff)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "app/whole.yaml")); err != nil || tree["app/whole.yaml"] != "enc:"+configMap {
		t.Error("the tree was written to")
	}
	c.err = errors.New("no key fits")
	_, err = Build(t.Context(), Input{Dir: dir, Unit: u, Decrypt: c, Variables: map[string]string{"x": "5"}, Strict: true})
	if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "app/") || strings.Contains(err.Error(), "kustomize build failed") {
		t.Errorf("the error of decryption is told as it is, got %v", err)
	}
}

func TestEncryptedWithoutDecryption(t *testing.T) {
	tests := map[string]struct {
		reason string
		object string
		field  string
		fails  bool
	}{
		"whole Secret":    {"Flux refuses it as well", sopsSecret, "", true},
		"data":            {"a value without the metadata", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  a.b: ENC[AES256_GCM,data:x,iv:y,tag:z,type:str]\n", `data["a.b"]`, true},
		"stringData":      {"Flux applies the cipher text as the value", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  a: ENC[AES256_GCM,data:x,iv:y,tag:z,type:str]\n", "stringData.a", true},
		"custom resource": {"any object of SOPS", "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: s}\nsops: {mac: x}\n", "", true},
		"own field":       {"a kind may have a field of that name", "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: s}\nsops: {enabled: true}\n", "", false},
		"opted out":       {"the annotation keeps it, in any case", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  annotations: {kustomize.toolkit.fluxcd.io/decrypt: Disabled}\nsops: {mac: m}\n", "", false},
		"ConfigMap":       {"it cannot hold secrets: somebody else's", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata:\n  a: ENC[AES256_GCM,data:x,iv:y,tag:z,type:str]\n", "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Build(t.Context(), Input{Dir: files{"a.yaml": tc.object}.write(t), Unit: unit("", nil)})
			var e *EncryptedError
			if errors.As(err, &e) != tc.fails {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if !tc.fails {
				if err != nil {
					t.Errorf("%s: %v", tc.reason, err)
				}
				return
			}
			if e.Field != tc.field || !strings.HasSuffix(e.Object, "/s") || !strings.Contains(err.Error(), "configuring decryption is required") || strings.Contains(err.Error(), "ENC[") {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	dir := smallApp.write(t)
	build := func(change func(*Input)) string {
		in := Input{Dir: dir, Unit: unit("apps/prod", postBuild), Variables: map[string]string{"domain": "one"}, Strict: true}
		change(&in)
		out, err := Build(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return out.Digest
	}
	base := build(func(*Input) {})
	tests := map[string]struct {
		reason string
		change func(*Input)
		same   bool
	}{
		"again":     {"builds are deterministic", func(*Input) {}, true},
		"revision":  {"no object has it", func(in *Input) { in.Revision = "main@sha1:b" }, true},
		"unused":    {"a variable that nothing uses", func(in *Input) { in.Variables = map[string]string{"domain": "one", "x": "y"} }, true},
		"status":    {"not an input", func(in *Input) { in.Unit.Status.LastAppliedRevision = "x" }, true},
		"variable":  {"a value that is used", func(in *Input) { in.Variables = map[string]string{"domain": "two"} }, false},
		"key":       {"without the key it tells nothing", func(in *Input) { in.Key = []byte("k") }, false},
		"namespace": {"part of the spec", func(in *Input) { in.Unit.Spec.TargetNamespace = "z" }, false},
		"common label": {"part of the objects", func(in *Input) {
			in.Unit.Spec.CommonMetadata = &kustomizev1.CommonMetadata{Labels: map[string]string{"a": "b"}}
		}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := build(tc.change); (got == base) != tc.same {
				t.Errorf("%s: %s and %s", tc.reason, base, got)
			}
		})
	}
}

// TestParallel builds trees that bring a schema of their own beside others that
// would show it.
func TestParallel(t *testing.T) {
	plain := buildCases["patches"]
	custom := buildCases["own schema"]
	merged := maps.Clone(custom.files)
	merged["kustomization.yaml"] = strings.Replace(merged["kustomization.yaml"], "openapi: {path: schema.json}\n", "", 1)
	units := []Input{
		{Dir: plain.files.write(t), Unit: unit("", plain.spec)},
		{Dir: custom.files.write(t), Unit: unit("", nil)},
		{Dir: merged.write(t), Unit: unit("", nil)},
		{Dir: buildCases["crds"].files.write(t), Unit: unit("", nil)},
		{Dir: smallApp.write(t), Unit: unit("apps/prod", postBuild), Variables: map[string]string{"domain": "d"}, Strict: true},
	}
	want := make([]string, len(units))
	for i, in := range units {
		out, err := Build(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = out.Digest
	}
	if want[1] == want[2] {
		t.Fatal("the schema of the tree makes no difference, so the test shows nothing")
	}
	var wg sync.WaitGroup
	for i := range 120 {
		wg.Go(func() {
			// Few of the slow ones: each parses the schema anew.
			n := i % len(units)
			if (n == 1 || n == 3) && i%3 != 0 {
				n = 4
			}
			out, err := Build(t.Context(), units[n])
			if err != nil {
				t.Error(err)
			} else if out.Digest != want[n] {
				t.Errorf("unit %d differs when built in parallel", n)
			}
		})
	}
	wg.Wait()
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, Input{Dir: smallApp.write(t), Unit: unit("apps/prod", nil)}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNoArtifact(t *testing.T) {
	for name, in := range map[string]Input{
		"no directory": {Dir: filepath.Join(t.TempDir(), "gone"), Unit: unit("", nil)},
		"no unit":      {Dir: t.TempDir()},
	} {
		if out, err := Build(t.Context(), in); err == nil || out == nil || out.Reads == nil {
			t.Errorf("%s: %v, %v", name, out, err)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{configMap, deployment + "---\n" + service, "resources: [a.yaml]\n", "resources: [../x]\n", "- a\n- b\n", "a: &a [*a]\n", bomb, "kind: List\nitems: [{}]\n", "apiVersion: v1\nkind: X\nmetadata: {name: 1}\n", "\x00", "namePrefix: ${x}\nconfigMapGenerator: [{name: x, files: [a.yaml]}]\n"} {
		f.Add("a.yaml", s, configMap)
		f.Add("kustomization.yaml", s, configMap)
		f.Add("sub/Kustomization", s, service)
	}
	f.Fuzz(func(t *testing.T, name, one, two string) {
		if !filepath.IsLocal(name) || filepath.Clean(name) == "b.yaml" || strings.ContainsRune(name, 0) || len(name) > 100 {
			t.Skip()
		}
		tree := files{filepath.Clean(name): one, "b.yaml": two}
		if filepath.Clean(name) == "." || strings.HasPrefix(filepath.Clean(name), "b.yaml/") {
			t.Skip()
		}
		dir := tree.write(t)
		out, err := Build(t.Context(), Input{Dir: dir, Unit: unit("", nil)})
		if err == nil && out.Digest == "" {
			t.Error("no digest")
		}
		before, digestErr := out.Reads.Digest(dir)
		again, _ := out.Reads.Digest(dir)
		if digestErr != nil || before != again {
			t.Errorf("digests %s and %s, %v", before, again, digestErr)
		}
	})
}
