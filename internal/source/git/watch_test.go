// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWatcher(t *testing.T) {
	told := make(chan string, 100)
	w, err := NewWatcher(func(key string) { told <- key })
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = w.Run(t.Context()) }()

	work := t.TempDir() // with .git, as people have it
	r := newRepo(t, filepath.Join(work, ".git"))
	first := r.commit("first", map[string]string{"f": "1"})
	if err := w.Watch("a", "file://"+work); err != nil {
		t.Fatal(err)
	}
	expect := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-t.Context().Done():
			t.Fatalf("%s was not told", what)
		}
	}
	second := r.commit("second", map[string]string{"f": "2"})
	expect("a commit")
	r.ref("refs/heads/feature/x", first)
	expect("a new branch")
	r.ref("refs/heads/feature/x", second)
	expect("a commit on a branch in a directory that is new")
	r.ref("refs/tags/v1", first)
	expect("a tag")

	// The index changes with every status; what follows tells that it was not told.
	if err := os.WriteFile(filepath.Join(work, ".git", "index"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A watch of something else ends the former.
	bare := newRepo(t, t.TempDir())
	if err := w.Watch("b", bare.dir); err != nil {
		t.Fatal(err)
	}
	bare.commit("first", map[string]string{"f": "1"})
	select {
	case key := <-told:
		if key != "b" {
			t.Errorf("%s was told of a change of the index", key)
		}
	case <-t.Context().Done():
		t.Fatal("a first commit was not told")
	}
	if err := w.Watch("a", "https://example.com/r.git"); err != nil {
		t.Fatal(err)
	}
	w.Forget("b")
	if len(w.keys) != 0 || len(w.places) != 0 {
		t.Errorf("still watched: %v", w.keys)
	}
	if err := w.Watch("a", filepath.Join(work, "nope")); err == nil {
		t.Error("a repository that is not there was watched")
	}
}

func TestWatchOfWorktree(t *testing.T) {
	main := t.TempDir()
	r := newRepo(t, filepath.Join(main, ".git"))
	r.commit("c", map[string]string{"f": "1"})
	gitDir := filepath.Join(main, ".git", "worktrees", "w")
	for name, content := range map[string]string{
		filepath.Join(gitDir, "HEAD"):      "ref: refs/heads/main\n",
		filepath.Join(gitDir, "commondir"): "../..\n",
		filepath.Join(main, "w", ".git"):   "gitdir: " + gitDir + "\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := make(chan int, 10)
	w, err := NewWatcher(func(key int) { told <- key })
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = w.Run(t.Context()) }()
	if err := w.Watch(1, filepath.Join(main, "w")); err != nil {
		t.Fatal(err)
	}
	r.commit("d", map[string]string{"f": "2"})
	select {
	case <-told:
	case <-t.Context().Done():
		t.Fatal("a commit of the main repository was not told")
	}
	dir := into(t)
	got, err := Fetch(t.Context(), Request{URL: filepath.Join(main, "w"), Ref: Reference{Branch: "main"}, AllowLocal: true}, dir)
	if err != nil || filesIn(t, dir)["f"] != "2" {
		t.Errorf("%v, %v", got, err)
	}
}
