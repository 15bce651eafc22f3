// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/terrace-dev/terrace"

// file is what the rules look at in a Go file.
type file struct {
	path    string   // from the module's root, with slashes
	pkg     string   // directory of path
	test    bool     // named _test.go
	imports []string // import paths
	doc     string   // the package comment, "" when this file has none
	head    string   // the first lines, up to 1 KiB
}

// tree parses every Go file of the main module; the modules below tools are not
// part of it.
func tree(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if base := d.Name(); rel != "." && (strings.HasPrefix(base, ".") || base == "testdata" || rel == "bin" || rel == "dist" || rel == "tools") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		f := file{path: rel, pkg: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"), doc: parsed.Doc.Text(), head: string(src[:min(len(src), 1024)])}
		if ignored(parsed) {
			return nil
		}
		for _, spec := range parsed.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, p)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d Go files below %s: the walk is wrong", len(files), root)
	}
	return files
}

// ignored tells whether a file has the constraint that keeps it out of every
// build: a program that is run by name.
func ignored(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() > f.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err == nil && !expr.Eval(func(tag string) bool { return tag != "ignore" }) && expr.String() == "ignore" {
				return true
			}
		}
	}
	return false
}

// root is the module's root, seen from this package.
const root = "../.."

// rule says that files of the packages in From, unless also in Except, must not
// import what is in To. A pattern is a path from the module's root, or the path
// of a foreign module; with /... it stands for everything below it as well.
type rule struct {
	reason string
	from   []string
	except []string
	to     []string
	tests  bool // whether test files must keep it too
}

var (
	values  = []string{"api/...", "internal/plan", "internal/graph", "internal/approval", "internal/mask"}
	engines = []string{"internal/artifact/...", "internal/attribution", "internal/audit/...", "internal/blob/...", "internal/dependency", "internal/durable", "internal/history", "internal/kube/...", "internal/policy/...", "internal/reference", "internal/render/...", "internal/run/...", "internal/source/...", "internal/state/...", "internal/status/...", "internal/tofu/..."}
)

var rules = map[string]rule{
	"the API server is linked in one place": {
		reason: "k8s.io/kubernetes and etcd take minutes to compile and seconds to link: a room that imports them makes each of its tests, and of its importers' tests, pay that (docs/adr/0012)",
		from:   []string{"..."},
		except: []string{"internal/controlplane/...", "internal/server/embedded", "cmd/terrace"},
		to:     []string{"k8s.io/kubernetes/...", "go.etcd.io/etcd/server/v3/...", "internal/controlplane/...", "internal/server/embedded"},
		tests:  true,
	},
	"values know no engine": {
		reason: "plans, graphs and approvals are decided by pure functions, which are tested without a cluster, a clock or a disk",
		from:   values,
		to:     append([]string{"internal/cli/...", "internal/config/...", "internal/controller/...", "internal/server/...", "internal/demo/...", "internal/testenv/..."}, engines...),
	},
	"values touch no outside": {
		reason: "a decision that reads a file, a socket or a cluster gives different answers to the same question",
		from:   []string{"internal/plan", "internal/graph", "internal/approval"},
		to:     []string{"os", "os/exec", "net", "net/http", "k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/pkg/client"},
	},
	"engines know no controller": {
		reason: "an engine does what it is told with values; who tells it, and why, is the controller's affair",
		from:   engines,
		to:     []string{"internal/controller/...", "internal/server/...", "internal/cli/...", "internal/config/...", "internal/demo/..."},
	},
	"the engine of processes knows no cluster": {
		reason: "tofu and run are used by every way of running a unit, and are tested with a directory and a binary",
		from:   []string{"internal/tofu/...", "internal/run/...", "internal/blob/..."},
		to:     []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/..."},
	},
	"rendering knows no cluster": {
		reason: "what a path says is the same with and without a cluster: terrace build, the benchmark and the tests render without one",
		from:   []string{"internal/render/..."},
		to:     []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/pkg/client", "internal/kube/...", "internal/reference"},
	},
	"the Kustomization controller stands alone": {
		reason: "controllers meet only through API objects, so that each can be read, tested and replaced without the others",
		from:   []string{"internal/controller/kustomization/..."},
		to:     []string{"internal/controller/gitrepository/...", "internal/controller/terraform/...", "internal/server/...", "internal/cli/...", "internal/tofu/...", "internal/run/...", "internal/state/..."},
	},
	"the Terraform controller stands alone": {
		reason: "controllers meet only through API objects, so that each can be read, tested and replaced without the others",
		from:   []string{"internal/controller/terraform/..."},
		to:     []string{"internal/controller/gitrepository/...", "internal/controller/kustomization/...", "internal/server/...", "internal/cli/..."},
	},
	"the GitRepository controller stands alone": {
		reason: "controllers meet only through API objects, so that each can be read, tested and replaced without the others",
		from:   []string{"internal/controller/gitrepository/..."},
		to:     []string{"internal/controller/kustomization/...", "internal/controller/terraform/...", "internal/server/...", "internal/cli/...", "internal/tofu/...", "internal/run/...", "internal/state/..."},
	},
	"only the composition root sees all": {
		reason: "what runs together is decided in internal/server, where it can be read as a list",
		from:   []string{"..."},
		except: []string{"internal/server/...", "internal/controller/...", "cmd/terrace"},
		to:     []string{"internal/controller/..."},
	},
	"the command line is a client": {
		reason: "a verb does through the API what any other client could do; what is heavy is handed in by cmd/terrace",
		from:   []string{"internal/cli/..."},
		to:     []string{"internal/controller/...", "internal/server/...", "internal/controlplane/...", "k8s.io/kubernetes/...", "k8s.io/kubectl/..."},
	},
	"the demo is a client": {
		reason: "it shows what a user can do, so it may do only that: through the API and the binary",
		from:   []string{"internal/demo/..."},
		to:     append([]string{"internal/controller/...", "internal/server/...", "internal/config/..."}, engines...),
	},
	"test scaffolding stays in tests": {
		reason: "what only tests need must not be in the binary",
		from:   []string{"..."},
		except: []string{"internal/testenv/..."},
		to:     []string{"internal/testenv/...", "testing", "github.com/fluxcd/pkg/gittestserver"},
	},
	"tofu is started by us": {
		reason: "terraform-exec kills an apply when Terrace dies, and refuses the environment that manifests ask for (docs/adr/0015)",
		from:   []string{"..."},
		to:     []string{"github.com/hashicorp/terraform-exec/..."},
		tests:  true,
	},
	"tofu is a process": {
		reason: "its packages are internal to it, and terraform's are not under an open licence (docs/adr/0003, 0014)",
		from:   []string{"..."},
		to:     []string{"github.com/opentofu/opentofu/...", "github.com/hashicorp/terraform/..."},
		tests:  true,
	},
}

func TestImports(t *testing.T) {
	files := tree(t)
	for name, r := range rules {
		t.Run(name, func(t *testing.T) {
			for _, f := range files {
				if f.test && !r.tests || !matches(r.from, f.pkg) || matches(r.except, f.pkg) {
					continue
				}
				for _, imported := range f.imports {
					if local, ok := strings.CutPrefix(imported, module+"/"); ok {
						imported = local
					}
					if matches(r.to, imported) && !within(f.pkg, imported) {
						t.Errorf("%s imports %s, but: %s", f.path, imported, r.reason)
					}
				}
			}
		})
	}
}

// within tells whether two packages belong to the same room.
func within(pkg, imported string) bool {
	return room(pkg) != "" && room(pkg) == room(imported)
}

// room is the part of the tree that a package belongs to: internal/tofu for
// internal/tofu/workdir, and internal/controller/terraform for its own.
func room(pkg string) string {
	parts := strings.Split(pkg, "/")
	n := 2
	if parts[0] != "internal" {
		return ""
	}
	if len(parts) > 2 && (parts[1] == "controller" || parts[1] == "source" || parts[1] == "server") {
		n = 3
	}
	return strings.Join(parts[:min(n, len(parts))], "/")
}

// matches tells whether a package is one of the patterns.
func matches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		base, all := strings.CutSuffix(p, "...")
		if !all {
			return p == pkg
		}
		return base == "" || pkg == strings.TrimSuffix(base, "/") || strings.HasPrefix(pkg, base)
	})
}

func TestMatches(t *testing.T) {
	cases := map[string]struct {
		reason   string
		patterns []string
		pkg      string
		want     bool
	}{
		"exact":         {"a plain path is itself", []string{"internal/plan"}, "internal/plan", true},
		"exact below":   {"a plain path is not what is below it", []string{"internal/plan"}, "internal/plan/x", false},
		"tree itself":   {"a tree includes its root", []string{"internal/tofu/..."}, "internal/tofu", true},
		"tree below":    {"a tree includes what is below", []string{"internal/tofu/..."}, "internal/tofu/workdir", true},
		"tree boundary": {"a tree ends at a slash", []string{"internal/tofu/..."}, "internal/tofux", false},
		"everything":    {"the bare ellipsis is every package", []string{"..."}, "cmd/terrace", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := matches(tc.patterns, tc.pkg); got != tc.want {
				t.Errorf("%s: matches(%v, %q) = %v, want %v", tc.reason, tc.patterns, tc.pkg, got, tc.want)
			}
		})
	}
}

// TestPackagesAreDocumented wants one package comment for each package: a reader
// who opens a room learns what it is for and what it does not do.
func TestPackagesAreDocumented(t *testing.T) {
	docs := map[string]string{}
	for _, f := range tree(t) {
		if f.test {
			continue
		}
		docs[f.pkg] += f.doc
	}
	for pkg, doc := range docs {
		if len(strings.Fields(doc)) < 8 {
			t.Errorf("%s: the package comment is missing or says nothing: %q", pkg, strings.TrimSpace(doc))
		}
	}
}

// TestLicenceHeaders wants the two-line SPDX form in every Go file and script.
func TestLicenceHeaders(t *testing.T) {
	const text, id = "SPDX-FileCopyrightText: The Terrace Authors", "SPDX-License-Identifier: Apache-2.0"
	for _, f := range tree(t) {
		if !strings.Contains(f.head, text) || !strings.Contains(f.head, id) {
			t.Errorf("%s: no SPDX header in the first lines", f.path)
		}
	}
	scripts, err := filepath.Glob(filepath.Join(root, "hack", "*.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(scripts, filepath.Join(root, ".ci", "run"), filepath.Join(root, "Makefile")) {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if head := string(src[:min(len(src), 1024)]); !strings.Contains(head, text) || !strings.Contains(head, id) {
			t.Errorf("%s: no SPDX header in the first lines", name)
		}
	}
}

// TestArchitecturePage compares the rooms that docs/architecture.md lists with
// those that exist.
func TestArchitecturePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range regexp.MustCompile("(?m)^\\| `internal/([a-z]+)` \\|").FindAllSubmatch(page, -1) {
		told = append(told, string(m[1]))
	}
	slices.Sort(told)

	rooms := map[string]bool{}
	for _, f := range tree(t) {
		if parts := strings.Split(f.pkg, "/"); parts[0] == "internal" && len(parts) > 1 {
			rooms[parts[1]] = true
		}
	}
	var there []string
	for r := range rooms {
		there = append(there, r)
	}
	slices.Sort(there)
	if diff := cmp.Diff(there, told); diff != "" {
		t.Errorf("docs/architecture.md does not list the rooms of internal/ (-there +told):\n%s", diff)
	}
}

// TestNoMachineInTheTree looks through every tracked file for the places and hosts
// of the machine that it was written on: they would be wrong on the next one.
func TestNoMachineInTheTree(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout: nothing is tracked")
	}
	// Written in parts, or this file would find itself.
	forbidden := regexp.MustCompile(strings.Join([]string{
		`/roo` + `t/`, `/wor` + `k/(main|shared)`, `/Use` + `rs/[a-z]`, `/home/(?:[a-qs-z]|r[a-tv-z])[a-z]+/`,
		`proxy\.gol` + `ang\.org`, `sum\.gol` + `ang\.org`, `deb\.deb` + `ian\.org`, `registry\.npm` + `js\.org`,
	}, "|"))
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		src, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted in the work tree
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(src), "\n") {
			if m := forbidden.FindString(line); m != "" {
				t.Errorf("%s:%d: %q is a place of one machine, or a registry's host", name, i+1, m)
			}
		}
	}
}

// forbiddenNames are words that say nothing about what a package is.
var forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "models", "manager", "misc", "types"}

// TestPackageNames keeps the names of packages nouns of the domain.
func TestPackageNames(t *testing.T) {
	for _, f := range tree(t) {
		if slices.Contains(forbiddenNames, path.Base(f.pkg)) {
			t.Errorf("%s: a package is named after what it holds, not %q", f.pkg, path.Base(f.pkg))
		}
	}
}
