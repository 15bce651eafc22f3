// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (r *Reads) mustDigest(t *testing.T, dir string) string {
	t.Helper()
	d, err := r.Digest(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var monorepo = files{
	"base/kustomization.yaml":             "resources: [app.yaml]\n",
	"base/app.yaml":                       deployment,
	"base/unused.yaml":                    configMap,
	"apps/one/kustomization.yaml":         "resources: [../../base]\npatches: [{path: patch.yaml}]\ncomponents: [../../parts/debug]\nconfigMapGenerator:\n- name: c\n  files: [run.sh]\n",
	"apps/one/patch.yaml":                 "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 3\n",
	"apps/one/run.sh":                     "echo\n",
	"apps/one/notes.yaml":                 configMap,
	"parts/debug/kustomization.yaml":      "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nlabels: [{pairs: {debug: \"1\"}}]\n",
	"apps/scanned/a.yaml":                 service,
	"apps/scanned/README.md":              "text",
	"apps/scanned/deep/b.yaml":            serviceAccount,
	"apps/scanned/own/kustomization.yaml": "resources: [c.yaml]\n",
	"apps/scanned/own/c.yaml":             configMap,
	"apps/scanned/own/unused.yaml":        configMap,
	"README.md":                           "text",
}

func TestReadsFiles(t *testing.T) {
	dir := monorepo.write(t)
	tests := map[string][]string{
		"apps/one":     {"apps/one/kustomization.yaml", "apps/one/patch.yaml", "apps/one/run.sh", "base/app.yaml", "base/kustomization.yaml", "parts/debug/kustomization.yaml"},
		"apps/scanned": {"apps/scanned/a.yaml", "apps/scanned/deep/b.yaml", "apps/scanned/own/c.yaml", "apps/scanned/own/kustomization.yaml"},
	}
	for path, want := range tests {
		out, err := Build(t.Context(), Input{Dir: dir, Unit: unit(path, nil)})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.Reads.Files()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestReadsDigest(t *testing.T) {
	tests := map[string]struct {
		reason  string
		path    string
		edit    func(files)
		changes bool
	}{
		"nothing":                  {"the same tree elsewhere", "apps/one", func(files) {}, false},
		"unrelated file":           {"another application", "apps/one", func(f files) { f["apps/scanned/a.yaml"] += "#\n" }, false},
		"unused file beside":       {"the kustomization file does not list it", "apps/one", func(f files) { f["apps/one/notes.yaml"] += "#\n" }, false},
		"new file beside":          {"the kustomization file does not list it", "apps/one", func(f files) { f["apps/one/new.yaml"] = "x" }, false},
		"unused file of a base":    {"the base does not list it", "apps/one", func(f files) { delete(f, "base/unused.yaml") }, false},
		"base":                     {"a base outside of the path", "apps/one", func(f files) { f["base/app.yaml"] += "#\n" }, true},
		"component":                {"a component outside of the path", "apps/one", func(f files) { f["parts/debug/kustomization.yaml"] += "#\n" }, true},
		"patch":                    {"a patch", "apps/one", func(f files) { f["apps/one/patch.yaml"] += "#\n" }, true},
		"generator source":         {"a source of a generator", "apps/one", func(f files) { f["apps/one/run.sh"] = "" }, true},
		"file gone":                {"the build fails then", "apps/one", func(f files) { delete(f, "base/app.yaml") }, true},
		"second kustomization":     {"kustomize refuses two", "apps/one", func(f files) { f["base/kustomization.yml"] = "" }, true},
		"file became a directory":  {"same name, other kind", "apps/one", func(f files) { delete(f, "base/app.yaml"); f["base/app.yaml/x"] = "" }, true},
		"scan, new manifest":       {"the scan finds it", "apps/scanned", func(f files) { f["apps/scanned/deep/new.yml"] = configMap }, true},
		"scan, new directory":      {"it may hold manifests", "apps/scanned", func(f files) { f["apps/scanned/new/a.yaml"] = configMap }, true},
		"scan, manifest gone":      {"the scan found it", "apps/scanned", func(f files) { delete(f, "apps/scanned/a.yaml") }, true},
		"scan, renamed":            {"order and name matter", "apps/scanned", func(f files) { f["apps/scanned/z.yaml"] = f["apps/scanned/a.yaml"]; delete(f, "apps/scanned/a.yaml") }, true},
		"scan, text changed":       {"not a manifest", "apps/scanned", func(f files) { f["apps/scanned/README.md"] = "other" }, false},
		"scan, new text":           {"not a manifest", "apps/scanned", func(f files) { f["apps/scanned/NEW.md"] = "" }, false},
		"scan, kustomization":      {"the path is no longer scanned", "apps/scanned", func(f files) { f["apps/scanned/Kustomization"] = "resources: [a.yaml]\n" }, true},
		"scan, kustomization deep": {"the directory is no longer scanned", "apps/scanned", func(f files) { f["apps/scanned/deep/kustomization.yml"] = "resources: [b.yaml]\n" }, true},
		"scan, unused of a base":   {"the base does not list it", "apps/scanned", func(f files) { f["apps/scanned/own/unused.yaml"] = "" }, false},
		"scan, above":              {"outside of the path", "apps/scanned", func(f files) { f["apps/x.yaml"] = configMap }, false},
		"path gone": {"there is nothing to build", "apps/one", func(f files) {
			for name := range f {
				if filepath.Dir(name) == "apps/one" {
					delete(f, name)
				}
			}
		}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := monorepo.write(t)
			edited := maps.Clone(monorepo)
			tc.edit(edited)
			after := edited.write(t)
			out, err := Build(t.Context(), Input{Dir: before, Unit: unit(tc.path, nil)})
			if err != nil {
				t.Fatal(err)
			}
			if got := out.Reads.mustDigest(t, before) != out.Reads.mustDigest(t, after); got != tc.changes {
				t.Errorf("%s: changed is %v, want %v", tc.reason, got, tc.changes)
			}
		})
	}
}

// TestReadsDigestDecides edits trees at random. An equal digest must mean an
// equal build, and a different one that something that was read is different.
func TestReadsDigestDecides(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	contents := []string{service, serviceAccount, configMap, deployment, "", "#\n", "[broken", "resources: [a.yaml]\n", "resources: [../base]\n", "text"}
	names := []string{"base/app.yaml", "base/kustomization.yaml", "base/kustomization.yml", "apps/one/patch.yaml", "apps/one/run.sh", "apps/one/a.yaml", "apps/one/kustomization.yaml",
		"apps/scanned/a.yaml", "apps/scanned/new.yaml", "apps/scanned/deep/b.yaml", "apps/scanned/deep/kustomization.yaml", "apps/scanned/own/c.yaml", "apps/scanned/own/kustomization.yaml", "apps/scanned/own/x/y.yaml", "README.md", "parts/debug/kustomization.yaml"}
	result := func(dir, path string) (string, *Reads) {
		out, err := Build(t.Context(), Input{Dir: dir, Unit: unit(path, nil)})
		if err != nil {
			return "error: " + err.Error(), out.Reads
		}
		return out.Digest, out.Reads
	}
	equal, different := 0, 0
	for range 80 {
		tree := maps.Clone(monorepo)
		edit := func() string {
			name := names[rng.IntN(len(names))]
			if rng.IntN(4) == 0 {
				delete(tree, name)
			} else {
				tree[name] = contents[rng.IntN(len(contents))]
			}
			return name
		}
		edit() // so that also broken trees are the first of a pair
		before := tree.write(t)
		old := maps.Clone(tree)
		edited := edit()
		after := tree.write(t)
		for _, path := range []string{"apps/one", "apps/scanned"} {
			was, reads := result(before, path)
			is, _ := result(after, path)
			same := reads.mustDigest(t, before) == reads.mustDigest(t, after)
			if same {
				equal++
				if was != is {
					t.Errorf("%s: the digest is equal after an edit of %s, the build is not:\n%s\n%s", path, edited, was, is)
				}
			} else {
				different++
				if maps.Equal(old, tree) {
					t.Errorf("%s: the digest differs, the trees do not", path)
				}
			}
			if slices.Contains(reads.Files(), edited) && old[edited] != tree[edited] && same {
				t.Errorf("%s: %s was read and is different, the digest is equal", path, edited)
			}
		}
	}
	if equal < 30 || different < 30 {
		t.Errorf("the edits are one-sided: %d equal, %d different", equal, different)
	}
}

func TestReadsOfFailedBuild(t *testing.T) {
	tree := files{"app/kustomization.yaml": "resources: [gone.yaml]\n", "other": ""}
	before := tree.write(t)
	out, err := Build(t.Context(), Input{Dir: before, Unit: unit("app", nil)})
	if err == nil {
		t.Fatal("no error")
	}
	if len(out.Objects) != 0 || out.Digest != "" {
		t.Errorf("a failed build has objects: %v", out)
	}
	tree["other"] = "changed"
	if out.Reads.mustDigest(t, before) != out.Reads.mustDigest(t, tree.write(t)) {
		t.Error("an unrelated file changes the digest of a failed build")
	}
	tree["app/gone.yaml"] = configMap
	if out.Reads.mustDigest(t, before) == out.Reads.mustDigest(t, tree.write(t)) {
		t.Error("the missing file is there, the digest is the same")
	}
}

func TestReadsDigestOfNoDirectory(t *testing.T) {
	if _, err := (&Reads{}).Digest(filepath.Join(t.TempDir(), "gone")); err == nil {
		t.Error("no error for a tree that is not there")
	}
}

func TestReadsFollowLinks(t *testing.T) {
	tree := files{"app/kustomization.yaml": "resources: [link.yaml]\n", "one/cm.yaml": configMap, "two/cm.yaml": configMap}
	dirs := make([]string, 2)
	for i, target := range []string{"../one/cm.yaml", "../two/cm.yaml"} {
		dirs[i] = tree.write(t)
		if err := os.Symlink(target, filepath.Join(dirs[i], "app/link.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	out, err := Build(t.Context(), Input{Dir: dirs[0], Unit: unit("app", nil)})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Objects) != 1 {
		t.Errorf("%d objects", len(out.Objects))
	}
	before := out.Reads.mustDigest(t, dirs[0])
	if err := os.WriteFile(filepath.Join(dirs[0], "one/cm.yaml"), []byte(fmt.Sprint(configMap, "#")), 0o644); err != nil {
		t.Fatal(err)
	}
	if out.Reads.mustDigest(t, dirs[0]) == before {
		t.Error("what a link leads to changed, the digest did not")
	}
}
