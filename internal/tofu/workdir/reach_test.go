// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// artifact makes a tree of files; a content that starts with "-> " is a link.
func artifact(t testing.TB, files map[string]string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "artifact")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		write(t, root, name, content)
	}
	return root
}

func write(t testing.TB, root, name, content string) {
	t.Helper()
	at := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if target, link := strings.CutPrefix(content, "-> "); link {
		if err := os.Symlink(target, at); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReachFiles(t *testing.T) {
	tests := map[string]struct {
		reason string
		files  map[string]string
		path   string
		opts   Options
		want   []string
		whole  bool
	}{
		"path alone": {
			reason: "The whole tree of the path counts, hidden files too, but not .git; the rest of the artifact does not.",
			files:  map[string]string{"u/main.tf": "", "u/.hidden/x": "", "u/sub/y": "", "u/.git/HEAD": "", "v/main.tf": "", "README": ""},
			path:   "./u",
			want:   []string{"u/.hidden/x", "u/main.tf", "u/sub/y"},
		},
		"path with a leading slash": {
			files: map[string]string{"u/main.tf": "", "x": ""}, path: "/u/", want: []string{"u/main.tf"},
		},
		"root": {
			files: map[string]string{"main.tf": "", "v/x": "", ".git/config": ""}, want: []string{"main.tf", "v/x"},
		},
		"local modules": {
			reason: "They are followed, and theirs, with all files in them.",
			files: map[string]string{
				"u/main.tf":   `module "a" { source = "../m/a" }`,
				"m/a/main.tf": `module "b" { source = "./b/../../b" }`,
				"m/a/tpl/x":   "", "m/a/b/keep": "", "m/b/main.tf": "", "m/c/main.tf": "",
			},
			path: "u",
			want: []string{"m/a/b/keep", "m/a/main.tf", "m/a/tpl/x", "m/b/main.tf", "u/main.tf"},
		},
		"module that calls itself": {
			files: map[string]string{"u/main.tf": `module "a" { source = "../u" }`}, path: "u", want: []string{"u/main.tf"},
		},
		"module above the unit": {
			reason: "It holds the unit and its siblings, which are not read.",
			files:  map[string]string{"m/main.tf": "", "m/examples/u/main.tf": `module "m" { source = "../../" }`, "m/examples/v/x": ""},
			path:   "m/examples/u",
			want:   []string{"m/examples/u/main.tf", "m/main.tf"},
		},
		"remote modules": {
			reason: "init fetches them.",
			files:  map[string]string{"u/main.tf": "module \"a\" {\n  source = \"x/y/z\"\n  version = \"1.0\"\n}", "v": ""},
			path:   "u", want: []string{"u/main.tf"},
		},
		"file functions": {
			reason: "Literal, relative to path.module, path.root, path.cwd; by any name.",
			files: map[string]string{
				"u/main.tf": `
locals {
  a = file("../f/a")
  b = core::filesha256("${path.module}/../f/b")
  c = templatefile("${path.root}/../f/c.tpl", {})
  d = filebase64(join("/", [path.cwd, "..", "f", "d"]))
  e = fileexists(format("%s/../f/e", abspath(path.root)))
  f = yamldecode(file("../f/missing"))
}`,
				"f/a": "", "f/b": "", "f/c.tpl": "${file(\"../f/nested\")}", "f/d": "", "f/e": "", "f/nested": "", "f/other": "",
			},
			path: "u",
			want: []string{"f/a", "f/b", "f/c.tpl", "f/d", "f/e", "f/nested", "u/main.tf"},
		},
		"file function of a module": {
			reason: "path.module is the module's, relative to the unit.",
			files: map[string]string{
				"u/main.tf":   `module "a" { source = "../m/a" }`,
				"m/a/main.tf": `output "o" { value = file("${path.module}/../shared.txt") }`, "m/shared.txt": "", "m/other": "",
			},
			path: "u",
			want: []string{"m/a/main.tf", "m/shared.txt", "u/main.tf"},
		},
		"argument of a module": {
			reason: "The caller's path is known where the module uses it.",
			files: map[string]string{
				"u/main.tf":   "module \"a\" {\n  source = \"../m\"\n  tpl = \"${path.module}/../f/x.tpl\"\n}",
				"m/main.tf":   "variable \"tpl\" {}\noutput \"o\" { value = templatefile(var.tpl, {}) }",
				"f/x.tpl":     "",
				"f/other.tpl": "",
			},
			path: "u",
			want: []string{"f/x.tpl", "m/main.tf", "u/main.tf"},
		},
		"interpolated file": {
			reason: "The directory before what is not known.",
			files: map[string]string{
				"u/main.tf":  "variable \"env\" {}\noutput \"o\" { value = file(\"../env/${var.env}.json\") }",
				"env/a.json": "", "env/b.json": "", "other/c": "",
			},
			path: "u",
			want: []string{"env/a.json", "env/b.json", "u/main.tf"},
		},
		"fileset": {
			files: map[string]string{
				"u/main.tf": `output "o" { value = fileset("${path.module}/..", "p/*.json") }`,
				"p/a.json":  "", "q/b.json": "",
			},
			path: "u",
			want: []string{"p/a.json", "u/main.tf"},
		},
		"conditional": {
			files: map[string]string{
				"u/main.tf": "variable \"b\" {}\nlocals { x = file(var.b ? \"../f/a\" : \"../f/b\") }",
				"f/a":       "", "f/b": "", "f/c": "",
			},
			path: "u",
			want: []string{"f/a", "f/b", "u/main.tf"},
		},
		"locals": {
			reason: "A definition is no use: only what is made of it is read.",
			files: map[string]string{
				"u/main.tf": "locals { root = \"${path.module}/..\" }\nresource \"x_y\" \"z\" { source = \"${local.root}/f/a\" }",
				"f/a":       "", "f/b": "",
			},
			path: "u",
			want: []string{"f/a", "u/main.tf"},
		},
		"argument of a resource": {
			reason: "Providers read files too.",
			files: map[string]string{
				"u/main.tf": `data "archive_file" "z" { source_dir = "../src" }`, "src/a.py": "", "src/b/c.py": "", "other": "",
			},
			path: "u",
			want: []string{"src/a.py", "src/b/c.py", "u/main.tf"},
		},
		"absolute file": {
			reason: "It is not of the artifact.",
			files:  map[string]string{"u/main.tf": `locals { x = file("/etc/hostname"), y = file(pathexpand("~/x")) }`, "v": ""},
			path:   "u", want: []string{"u/main.tf"},
		},
		"unknown file": {
			files: map[string]string{"u/main.tf": "variable \"f\" {}\noutput \"o\" { value = file(var.f) }", "v/x": ""},
			path:  "u", want: []string{"u/main.tf", "v/x"}, whole: true,
		},
		"unknown module": {
			files: map[string]string{"u/main.tf": "variable \"m\" {}\nmodule \"m\" { source = \"../${var.m}\" }", "v/x": ""},
			path:  "u", want: []string{"u/main.tf", "v/x"}, whole: true,
		},
		"variable files": {
			files: map[string]string{"u/main.tf": "", "env/a.tfvars": "", "env/b.tfvars": ""},
			path:  "u", opts: Options{VarFiles: []string{"env/a.tfvars"}},
			want: []string{"env/a.tfvars", "u/main.tf"},
		},
		"tofu files": {
			reason: "They win over the .tf file of the name; the other one still is in the tree of the path.",
			files: map[string]string{
				"u/a.tf": `locals { x = file("../f/tf") }`, "u/a.tofu": `locals { x = file("../f/tofu") }`,
				"f/tf": "", "f/tofu": "",
			},
			path: "u", opts: Options{TofuFiles: true},
			want: []string{"f/tofu", "u/a.tf", "u/a.tofu"},
		},
		"tofu files for terraform": {
			files: map[string]string{
				"u/a.tf": `locals { x = file("../f/tf") }`, "u/a.tofu": `locals { x = file("../f/tofu") }`,
				"f/tf": "", "f/tofu": "",
			},
			path: "u",
			want: []string{"f/tf", "u/a.tf", "u/a.tofu"},
		},
		"json": {
			files: map[string]string{
				"u/main.tf.json": `{"module":{"a":{"source":"../m"}},"locals":{"x":"${file(\"../f/a\")}"},"resource":{"x_y":{"z":{"source":"../f/b"}}}}`,
				"m/main.tf":      "", "f/a": "", "f/b": "", "f/c": "",
			},
			path: "u",
			want: []string{"f/a", "f/b", "m/main.tf", "u/main.tf.json"},
		},
		"template without its rendering": {
			files: map[string]string{"u/main.tf.tpl": "", "v": ""}, path: "u", want: []string{"u/main.tf.tpl", "v"}, whole: true,
		},
		"template with its rendering": {
			files: map[string]string{"u/main.tf.tpl": "", "v": "", "f": ""}, path: "u",
			opts: Options{Overlay: map[string][]byte{RenderedFile: []byte(`locals { x = file("../f") }`)}},
			want: []string{"f", "u/main.tf.tpl"},
		},
		"links": {
			reason: "What they lead to inside the artifact is read.",
			files: map[string]string{
				"u/main.tf": "-> ../shared/main.tf", "u/dir": "-> ../d", "u/dangling": "-> nowhere",
				"shared/main.tf": `locals { x = file("../f") }`, "d/x": "", "f": "", "shared/other": "",
			},
			path: "u",
			want: []string{"d/x", "f", "shared/main.tf", "u/dangling", "u/dir", "u/main.tf"},
		},
		"path through a link": {
			files: map[string]string{"live": "-> envs/prod", "envs/prod/main.tf": `locals { x = file("../f") }`, "envs/f": "", "f": ""},
			path:  "live",
			want:  []string{"envs/f", "envs/prod/main.tf"},
		},
		"syntax error": {
			reason: "The engine tells of it.",
			files:  map[string]string{"u/main.tf": "resource {{{", "v": ""}, path: "u", want: []string{"u/main.tf"},
		},
		"deep nesting": {
			reason: "It is not given to the parser, which would use up the stack.",
			files:  map[string]string{"u/main.tf": "x = " + strings.Repeat("[", 100_000), "v": ""}, path: "u",
			want: []string{"u/main.tf", "v"}, whole: true,
		},
		"strings that grow": {
			reason: "Thirty doublings would be a gigabyte.",
			files:  map[string]string{"u/main.tf": doublings(40) + "\noutput \"o\" { value = file(local.l40) }", "v": ""}, path: "u",
			want: []string{"u/main.tf", "v"}, whole: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := reachOf(artifact(t, tc.files), tc.path, tc.opts, false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.Files); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
			if r.Whole != tc.whole {
				t.Errorf("whole is %t: %s", r.Whole, r.WholeReason)
			}
		})
	}
}

func doublings(n int) string {
	var b strings.Builder
	b.WriteString("locals {\n  l0 = \"./xxxxxxxx\"\n")
	for i := range n {
		from, to := "l"+strconv.Itoa(i), "l"+strconv.Itoa(i+1)
		b.WriteString("  " + to + " = \"${local." + from + "}${local." + from + "}\"\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// R24: a path that leads out of the artifact is refused, wherever it is written.
func TestReachRefuses(t *testing.T) {
	tests := map[string]struct {
		reason string
		files  map[string]string
		path   string
		opts   Options
		want   error
	}{
		"path above":             {path: "../x", want: ErrOutside},
		"path through above":     {files: map[string]string{"u/main.tf": ""}, path: "u/../../x", want: ErrOutside},
		"path through a link":    {files: map[string]string{"u": "-> ../../etc"}, path: "u", want: ErrOutside},
		"path by absolute link":  {files: map[string]string{"u": "-> /etc"}, path: "u", want: ErrOutside},
		"path in a loop":         {files: map[string]string{"u": "-> u"}, path: "u", want: ErrOutside},
		"path is not there":      {path: "nope", want: ErrNotFound},
		"path is a file":         {files: map[string]string{"u": ""}, path: "u", want: ErrKind},
		"link in the tree":       {files: map[string]string{"u/x": "-> ../../x"}, path: "u", want: ErrOutside},
		"absolute in the tree":   {files: map[string]string{"u/x": "-> /etc/passwd"}, path: "u", want: ErrOutside},
		"file above":             {files: map[string]string{"u/main.tf": `locals { x = file("../../x") }`}, path: "u", want: ErrOutside},
		"module above":           {files: map[string]string{"u/main.tf": `module "m" { source = "../../m" }`}, path: "u", want: ErrOutside},
		"cwd above":              {files: map[string]string{"u/main.tf": `locals { x = file("${path.cwd}/../../x") }`}, path: "u", want: ErrOutside},
		"variable file above":    {files: map[string]string{"u/main.tf": ""}, path: "u", opts: Options{VarFiles: []string{"../x"}}, want: ErrOutside},
		"variable file missing":  {files: map[string]string{"u/main.tf": ""}, path: "u", opts: Options{VarFiles: []string{"x"}}, want: ErrNotFound},
		"variable file is a dir": {files: map[string]string{"u/main.tf": ""}, path: "u", opts: Options{VarFiles: []string{"u"}}, want: ErrKind},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ReachOf(artifact(t, tc.files), tc.path, tc.opts)
			var path *PathError
			if !errors.As(err, &path) || !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestReachDeclarations(t *testing.T) {
	root := artifact(t, map[string]string{
		"u/main.tf": `
terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
    old = "1.0"
  }
  backend "s3" {
    bucket = "b"
  }
}
provider "google" {}
resource "random_id" "x" { provider = other.west }
module "near" { source = "../m" }
module "far" {
  source  = "a/b/c"
  version = "~> 2"
}
`,
		"m/main.tf": "terraform {\n  required_version = \">= 1.7\"\n}\ndata \"http\" \"x\" {}\n",
	})
	r, err := ReachOf(root, "u", Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.Files = nil
	want := &Reach{
		Path:    "u",
		Backend: &Declared{Type: "s3", File: "u/main.tf", Line: 8},
		Remote:  []ModuleCall{{In: "u", Name: "far", Source: "a/b/c", Version: "~> 2"}},
		Local:   []ModuleCall{{In: "u", Name: "near", Source: "../m"}},
		Providers: []Provider{
			{In: "m", Name: "http"},
			{In: "u", Name: "aws", Source: "hashicorp/aws", Version: "~> 5.0"},
			{In: "u", Name: "google"}, {In: "u", Name: "old", Version: "1.0"},
			{In: "u", Name: "other"}, {In: "u", Name: "random"},
		},
		Core: []string{">= 1.6", ">= 1.7"},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := r.Backend.String(); got != `backend "s3" (u/main.tf:8)` {
		t.Errorf("got %s", got)
	}
}

// The digest changes exactly when what is read does.
func TestDigest(t *testing.T) {
	files := map[string]string{"u/main.tf": `module "m" { source = "../m" }`, "m/x": "1", "other": "1", "u/l": "-> main.tf"}
	digest := func(t *testing.T, files map[string]string, h *Hasher) string {
		t.Helper()
		root := artifact(t, files)
		r, err := ReachOf(root, "u", Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.Digest(root, h)
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.Digest(root, h)
		if err != nil || again != d {
			t.Errorf("the second digest is %s, %v", again, err)
		}
		return d
	}
	with := func(name, content string) map[string]string {
		changed := map[string]string{}
		for k, v := range files {
			changed[k] = v
		}
		changed[name] = content
		return changed
	}
	h := NewHasher(3)
	first := digest(t, files, h)
	tests := map[string]struct {
		files map[string]string
		same  bool
	}{
		"nothing":          {files: files, same: true},
		"file not read":    {files: with("other", "2"), same: true},
		"new file outside": {files: with("v/x", ""), same: true},
		"file of the path": {files: with("u/x", "")},
		"file of a module": {files: with("m/x", "2")},
		"link":             {files: with("u/l", "-> ./main.tf")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := digest(t, tc.files, h); (got == first) != tc.same {
				t.Errorf("same is %t, want %t", got == first, tc.same)
			}
			if got := digest(t, tc.files, nil); (got == first) != tc.same {
				t.Errorf("without a Hasher: same is %t, want %t", got == first, tc.same)
			}
		})
	}
	if h.count > 3 {
		t.Errorf("%d files are remembered, at most 3 may be", h.count)
	}
}

// FuzzReach: whatever is in a configuration, it neither panics nor leads out.
func FuzzReach(f *testing.F) {
	for _, seed := range []string{
		`module "m" { source = "../m" }`,
		`locals { x = file("${path.module}/../f/${each.key}") }`,
		`resource "a" "b" { x = templatefile(join("/", ["..", "f"]), {}) }`,
		"terraform {\n  required_providers {\n    a = { source = \"x\" }\n  }\n  cloud {}\n}",
		`x = !!!!!-----[[[[((((${"${"%{if true}"}"}))))`,
		"x = <<EOT\n%{ for a in b }${a}%{ endfor }\nEOT\n",
		`{"module":{"a":[{"source":"../m"}]},"terraform":[{"backend":{"s3":{}}}]}`,
		doublings(12),
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	root := artifact(f, map[string]string{"u/keep": "", "m/main.tf": "variable \"a\" {}\nlocals { x = file(var.a) }", "f/a": ""})
	f.Fuzz(func(t *testing.T, src string, asJSON bool) {
		name := "main.tofu"
		if asJSON {
			name = "main.tf.json"
		}
		r, err := reachOf(root, "u", Options{TofuFiles: true, Overlay: map[string][]byte{name: []byte(src)}}, false)
		if err != nil {
			var path *PathError
			if !errors.As(err, &path) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		for _, name := range r.Files {
			if !fs.ValidPath(name) {
				t.Errorf("%q leads out", name)
			}
		}
	})
}

// BenchmarkReach is what one unit of an artifact costs when a commit came: to
// find what it reads and to hash that, known files aside.
func BenchmarkReach(b *testing.B) {
	files := map[string]string{}
	for i := range 1000 {
		unit := fmt.Sprintf("units/u%d/", i)
		files[unit+"main.tf"] = "module \"m\" {\n  source = \"../../modules/m\"\n  name = \"x\"\n}\n"
		files[unit+"terraform.tfvars"] = "a = 1\n"
	}
	files["modules/m/main.tf"] = "variable \"name\" {}\nresource \"terraform_data\" \"x\" { input = var.name }\noutput \"o\" { value = file(\"${path.module}/data.json\") }\n"
	files["modules/m/data.json"] = "{}"
	root := artifact(b, files)
	h := NewHasher(10_000)
	i := 0
	for b.Loop() {
		r, err := ReachOf(root, fmt.Sprintf("units/u%d", i%1000), Options{TofuFiles: true})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Digest(root, h); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
