// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listing is what is below dir: contents of files, targets of links.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(at)
			found[name] = "-> " + target
			return err
		}
		b, err := os.ReadFile(at)
		found[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func open(t *testing.T) *Dir {
	t.Helper()
	d, err := OpenDir(filepath.Join(t.TempDir(), "unit"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func reach(t *testing.T, root, dir string) *Reach {
	t.Helper()
	r, err := ReachOf(root, dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func syncTo(t *testing.T, d *Dir, root, dir string) {
	t.Helper()
	if err := d.Sync(root, reach(t, root, dir), nil); err != nil {
		t.Fatal(err)
	}
}

// What a run made stays, what the artifact has is as in the artifact, what it
// no longer has goes.
func TestSync(t *testing.T) {
	first := artifact(t, map[string]string{
		"u/main.tf": `module "m" { source = "../m" }`, "u/old/x": "old", "u/becomes": "a file", "u/gone/y": "",
		"u/link": "-> main.tf", "m/main.tf": "", "other": "",
	})
	second := artifact(t, map[string]string{
		"u/main.tf": "", "u/becomes/dir": "now", "u/link": "-> becomes/dir", "u/terraform.tfstate": "of Git", "u/new": "",
	})
	d := open(t)
	syncTo(t, d, first, "u")
	work := filepath.Join(d.Path(), "work")
	want := map[string]string{
		"u/main.tf": `module "m" { source = "../m" }`, "u/old/x": "old", "u/becomes": "a file", "u/gone/y": "",
		"u/link": "-> main.tf", "m/main.tf": "",
	}
	if diff := cmp.Diff(want, listing(t, work)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}

	// A run works in there.
	write(t, work, "u/terraform.tfstate", "of the run")
	write(t, work, "u/out.txt", "made by a resource")
	write(t, work, "u/gone/kept", "made by a resource")
	if err := os.WriteFile(filepath.Join(work, "u/main.tf"), []byte("overwritten"), 0o600); err != nil {
		t.Fatal(err)
	}

	syncTo(t, d, second, "u")
	want = map[string]string{
		"u/main.tf": "", "u/becomes/dir": "now", "u/link": "-> becomes/dir", "u/new": "",
		"u/terraform.tfstate": "of the run", "u/out.txt": "made by a resource", "u/gone/kept": "made by a resource",
	}
	if diff := cmp.Diff(want, listing(t, work)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

// A run that puts links in the way of the next copy leads nothing out.
func TestSyncDoesNotFollow(t *testing.T) {
	root := artifact(t, map[string]string{"u/dir/x": "1", "u/y": "1"})
	d := open(t)
	syncTo(t, d, root, "u")
	outside := t.TempDir()
	u := filepath.Join(d.Path(), "work", "u")
	for _, name := range []string{"dir", "y"} {
		if err := os.RemoveAll(filepath.Join(u, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(outside, name), filepath.Join(u, name)); err != nil {
			t.Fatal(err)
		}
	}
	syncTo(t, d, root, "u")
	if diff := cmp.Diff(map[string]string{"dir/x": "1", "y": "1"}, listing(t, u)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{}, listing(t, outside)); diff != "" {
		t.Errorf("outside (-want +got)\n%s", diff)
	}
}

// A copy that was not finished is done again.
func TestSyncAfterKill(t *testing.T) {
	root := artifact(t, map[string]string{"u/a": "a", "u/b": "b"})
	d := open(t)
	r := reach(t, root, "u")
	unsure := synced{}
	for _, name := range r.Files {
		unsure[name] = syncedFile{}
	}
	if err := d.save(syncedPart, unsure); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(d.Path(), "work"), "u/a", "torn")
	syncTo(t, d, root, "u")
	if diff := cmp.Diff(map[string]string{"u/a": "a", "u/b": "b"}, listing(t, filepath.Join(d.Path(), "work"))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func prepare(t *testing.T, d *Dir, q Request) *Prepared {
	t.Helper()
	p, err := d.Prepare(q)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPrepare(t *testing.T) {
	root := artifact(t, map[string]string{"u/main.tf": "artifact", "u/main.tf.tpl": ""})
	d := open(t)
	q := Request{
		Source: root, Reach: reach(t, root, "u"),
		Files: map[string][]byte{VarsFile: []byte("{}"), RenderedFile: []byte("rendered")},
		Mappings: []Mapping{
			{Location: LocationHome, Path: ".netrc", Content: []byte("secret")},
			{Location: LocationWorkspace, Path: "certs/ca", Content: []byte("ca")},
		},
		CLIConfig: []byte("cli"),
	}
	p := prepare(t, d, q)
	all := listing(t, d.Path())
	delete(all, syncedPart)
	delete(all, generatedPart)
	want := map[string]string{
		"work/u/main.tf": "rendered", "work/u/main.tf.tpl": "", "work/u/" + VarsFile: "{}", "work/u/certs/ca": "ca",
		"home/.netrc": "secret", "cli.tfrc": "cli",
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p.CLIConfig != d.Path()+"/cli.tfrc" || p.Module != d.Path()+"/work/u" || !p.InitNeeded {
		t.Errorf("got %+v", p)
	}
	for name, mode := range map[string]fs.FileMode{"home/.netrc": 0o600, "work/u/certs": 0o700 | fs.ModeDir, "work/u/" + VarsFile: 0o600} {
		if info, err := os.Stat(filepath.Join(d.Path(), name)); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}

	// What is not generated any more goes, and the artifact's file is back.
	prepare(t, d, Request{Source: root, Reach: q.Reach})
	want = map[string]string{"main.tf": "artifact", "main.tf.tpl": ""}
	if diff := cmp.Diff(want, listing(t, p.Module)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{}, listing(t, d.Home())); diff != "" {
		t.Errorf("home (-want +got)\n%s", diff)
	}

	// What is decrypted stands in its file's place for the run, and the artifact keeps its own.
	q.Decrypted = map[string][]byte{"u/main.tf.tpl": []byte("decrypted secret")}
	prepare(t, d, q)
	if got := listing(t, p.Module)["main.tf.tpl"]; got != "decrypted secret" {
		t.Errorf("the run finds %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(root, "u", "main.tf.tpl")); err != nil || len(got) != 0 {
		t.Errorf("the artifact has %q, %v", got, err)
	}
	if err := d.Scrub(); err != nil {
		t.Fatal(err)
	}
	for name, content := range listing(t, d.Path()) {
		if strings.Contains(content, "secret") {
			t.Errorf("%s still holds a secret", name)
		}
	}
}

// init runs again exactly when what it reads has changed or what it made is gone.
func TestInitNeeded(t *testing.T) {
	tests := map[string]struct {
		reason string
		change func(t *testing.T, q *Request, files map[string]string, d *Dir)
		want   bool
	}{
		"nothing": {change: func(*testing.T, *Request, map[string]string, *Dir) {}},
		"another source": {reason: "no init reads resources of known providers", change: func(_ *testing.T, _ *Request, f map[string]string, _ *Dir) {
			f["u/x.tf"] = `resource "terraform_data" "y" {}`
		}},
		"variables": {change: func(_ *testing.T, q *Request, _ map[string]string, _ *Dir) { q.Files[VarsFile] = []byte("{}") }},
		"tool":      {change: func(_ *testing.T, q *Request, _ map[string]string, _ *Dir) { q.Init.Tool = "new" }, want: true},
		"backend":   {change: func(_ *testing.T, q *Request, _ map[string]string, _ *Dir) { q.Files[BackendFile] = []byte("new") }, want: true},
		"backend config": {change: func(_ *testing.T, q *Request, _ map[string]string, _ *Dir) {
			q.Files[BackendConfigFile] = []byte("new")
		}, want: true},
		"CLI config": {change: func(_ *testing.T, q *Request, _ map[string]string, _ *Dir) { q.CLIConfig = []byte("new") }, want: true},
		"provider": {change: func(_ *testing.T, _ *Request, f map[string]string, _ *Dir) {
			f["u/x.tf"] = `resource "new_thing" "y" {}`
		}, want: true},
		"module": {change: func(_ *testing.T, _ *Request, f map[string]string, _ *Dir) {
			f["u/x.tf"] = `module "m" { source = "../m" }`
		}, want: true},
		"module's provider": {
			change: func(_ *testing.T, _ *Request, f map[string]string, _ *Dir) { f["m/x.tf"] = `provider "new" {}` }, want: true,
		},
		"lock file": {change: func(_ *testing.T, _ *Request, f map[string]string, _ *Dir) { f["u/"+LockFile] = "new" }, want: true},
		"data lost": {
			change: func(t *testing.T, _ *Request, _ map[string]string, d *Dir) {
				if err := os.RemoveAll(filepath.Join(d.DataDir(), "modules")); err != nil {
					t.Fatal(err)
				}
			}, want: true,
		},
		"provider lost": {
			reason: "the shared cache was emptied",
			change: func(t *testing.T, _ *Request, _ map[string]string, d *Dir) {
				if err := os.RemoveAll(filepath.Join(d.Path(), "cache")); err != nil {
					t.Fatal(err)
				}
			}, want: true,
		},
		"forgotten": {
			change: func(t *testing.T, _ *Request, _ map[string]string, d *Dir) {
				if err := d.ForgetInit(); err != nil {
					t.Fatal(err)
				}
			}, want: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"u/main.tf": `module "a" { source = "../m" }`, "m/main.tf": ""}
			root := artifact(t, files)
			d := open(t)
			q := Request{Source: root, Reach: reach(t, root, "u"), Files: map[string][]byte{}}
			p := prepare(t, d, q)
			if !p.InitNeeded {
				t.Fatal("the first init is needed")
			}
			// As init leaves it.
			write(t, d.DataDir(), "modules/modules.json", "{}")
			write(t, d.Path(), "cache/p", "")
			write(t, d.DataDir(), "providers/h/n/t/1.0.0/linux_amd64", "-> "+d.Path()+"/cache/p")
			write(t, p.Module, LockFile, "made by init")
			if err := d.InitDone(p); err != nil {
				t.Fatal(err)
			}
			tc.change(t, &q, files, d)
			q.Source = artifact(t, files)
			q.Reach = reach(t, q.Source, "u")
			p = prepare(t, d, q)
			if p.InitNeeded != tc.want {
				t.Errorf("needed is %t, want %t: %s", p.InitNeeded, tc.want, tc.reason)
			}
			lock, err := os.ReadFile(filepath.Join(p.Module, LockFile))
			wantLock := files["u/"+LockFile]
			if wantLock == "" {
				wantLock = "made by init"
			}
			if err != nil || string(lock) != wantLock {
				t.Errorf("the lock file is %q, %v", lock, err)
			}
		})
	}
}

// The providers that init chose stay chosen though the artifact has an older
// lock file, as long as that is the one that it was chosen from.
func TestUpgradedLockStays(t *testing.T) {
	root := artifact(t, map[string]string{"u/main.tf": "", "u/" + LockFile: "of the artifact"})
	d := open(t)
	q := Request{Source: root, Reach: reach(t, root, "u")}
	p := prepare(t, d, q)
	if err := os.WriteFile(filepath.Join(p.Module, LockFile), []byte("upgraded"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.InitDone(p); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p = prepare(t, d, q)
		lock, err := os.ReadFile(filepath.Join(p.Module, LockFile))
		if p.InitNeeded || string(lock) != "upgraded" || err != nil {
			t.Errorf("needed is %t, the lock file %q, %v", p.InitNeeded, lock, err)
		}
	}
}
