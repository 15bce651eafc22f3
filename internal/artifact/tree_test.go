// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
)

// tarball packs entries; content fills those that are regular files.
func tarball(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, h := range entries {
		content := h.Uname // a place for the content that the header does not need
		h.Uname = ""
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, content string) tar.Header {
	return tar.Header{Name: name, Uname: content, Mode: 0o644}
}

func link(name, target string) tar.Header {
	return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
}

// origin serves one tarball and counts how often it is asked.
func origin(t *testing.T, body []byte) (*meta.Artifact, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	return &meta.Artifact{
		URL: server.URL + "/a.tar.gz", Path: "gitrepository/x/y/a.tar.gz",
		Revision: "main@sha1:1", Digest: digest.FromBytes(body).String(),
	}, &n
}

func TestForeignArchives(t *testing.T) {
	garbage := []byte("this is no archive")
	truncated := tarball(t, file("a", strings.Repeat("x", 1000)))
	for name, c := range map[string]struct {
		reason string
		body   []byte
		want   map[string]string
		err    error
	}{
		"plain":            {"the usual case", tarball(t, file("a/b.tf", "x"), file("./c", "y")), map[string]string{"a/b.tf": "x", "c": "y"}, nil},
		"executable":       {"scripts stay runnable", tarball(t, tar.Header{Name: "run", Uname: "x", Mode: 0o4755}), map[string]string{"run!": "x"}, nil},
		"twice":            {"the later entry counts, as tar has it", tarball(t, file("a", "1"), file("a", "2")), map[string]string{"a": "2"}, nil},
		"git archive":      {"begins with a global header", tarball(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "c"}}, file("a", "1")), map[string]string{"a": "1"}, nil},
		"link inside":      {"modules are shared by links", tarball(t, link("envs/a/mod", "../../mod"), file("mod/m.tf", "m")), map[string]string{"envs/a/mod": "-> ../../mod", "mod/m.tf": "m"}, nil},
		"dangling link":    {"its target was ignored by the source", tarball(t, link("a", "b/c")), map[string]string{"a": "-> b/c"}, nil},
		"climbs out":       {"would write beside the tree", tarball(t, file("../evil", "x")), nil, ErrUnsafe},
		"climbs and comes": {"a name with .. has no good reason", tarball(t, file("a/../b", "x")), nil, ErrUnsafe},
		"absolute":         {"would write anywhere", tarball(t, file("/etc/evil", "x")), nil, ErrUnsafe},
		"backslash":        {"a separator elsewhere", tarball(t, file(`..\evil`, "x")), nil, ErrUnsafe},
		"link out":         {"would read beside the tree", tarball(t, link("a", "../../etc/passwd")), nil, ErrUnsafe},
		"link absolute":    {"would read anything", tarball(t, link("a", "/etc/passwd")), nil, ErrUnsafe},
		"link chain out":   {"each link looks harmless alone", tarball(t, link("a/b/c/x", "../../.."), link("y", "a/b/c/x/.."), file("a/b/c/f", "")), nil, ErrUnsafe},
		"link loop":        {"cannot be followed", tarball(t, link("a", "b"), link("b", "a")), nil, ErrUnsafe},
		"through a link":   {"writes where the link points", tarball(t, link("a", "b"), file("b/x", "1"), file("a/y", "2")), nil, ErrUnsafe},
		"link below link":  {"makes a link where another points", tarball(t, link("a", "b"), link("a/c", "d"), file("b/x", "1")), nil, ErrUnsafe},
		"hard link":        {"may name files beside the tree", tarball(t, tar.Header{Name: "a", Linkname: "b", Typeflag: tar.TypeLink}), nil, ErrUnsafe},
		"device":           {"reads the machine", tarball(t, tar.Header{Name: "a", Typeflag: tar.TypeBlock, Devmajor: 8}), nil, ErrUnsafe},
		"fifo":             {"blocks its reader", tarball(t, tar.Header{Name: "a", Typeflag: tar.TypeFifo}), nil, ErrUnsafe},
		"file in file":     {"cannot exist", tarball(t, file("a", "1"), file("a/b", "2")), nil, ErrUnsafe},
		"file for dir":     {"cannot exist", tarball(t, file("a/b", "1"), file("a", "2")), nil, ErrUnsafe},
		"too many entries": {"exhausts inodes", tarball(t, file("1", ""), file("2", ""), file("3", ""), file("4", ""), file("5", ""), file("6", "")), nil, ErrTooLarge},
		"too large":        {"exhausts the disk", tarball(t, file("a", strings.Repeat("x", 2000))), nil, ErrTooLarge},
		"tarball too big":  {"exhausts the disk before it is unpacked", bytes.Repeat([]byte("x"), 5000), nil, ErrTooLarge},
		"no archive":       {"the server answers something else", garbage, nil, errAny},
		"truncated":        {"the maker died", truncated[:len(truncated)-20], nil, errAny},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := newStore(t, Options{Dir: dir, MaxTreeSize: 1500, MaxEntries: 5, MaxSize: 4000})
			a, _ := origin(t, c.body)
			tree, release, err := s.Tree(t.Context(), a)
			if c.err != nil {
				if err == nil || c.err != errAny && !errors.Is(err, c.err) {
					t.Fatalf("Tree: %v; want %v: %s", err, c.err, c.reason)
				}
				if left, _ := os.ReadDir(filepath.Join(dir, "trees")); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				for info := range s.blobs.List(t.Context()) {
					t.Errorf("blob %s is left", info.Digest)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if diff := cmp.Diff(c.want, readTree(t, tree)); diff != "" {
				t.Errorf("%s: %s", c.reason, diff)
			}
		})
	}
}

var errAny = errors.New("any error")

func TestExplosion(t *testing.T) {
	bomb := tarball(t, file("a", strings.Repeat("\x00", freeSize+1<<20)))
	if len(bomb)*ratio > freeSize {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	a, _ := origin(t, bomb)
	if _, _, err := newStore(t, Options{}).Tree(t.Context(), a); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Tree: %v", err)
	}
}

func TestForeignAnswers(t *testing.T) {
	good := tarball(t, file("a", "x"))
	a, _ := origin(t, good)
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusServiceUnavailable)
	}))
	defer broken.Close()
	big := int64(1 << 40)
	s := newStore(t, Options{})
	for name, c := range map[string]struct {
		reason string
		change func(*meta.Artifact)
		want   error
	}{
		"wrong digest":   {"the server was changed", func(a *meta.Artifact) { a.Digest = digest.FromString("else").String() }, ErrDigest},
		"no digest":      {"nothing to check by", func(a *meta.Artifact) { a.Digest = "" }, ErrDigest},
		"other digest":   {"only sha256 is stored", func(a *meta.Artifact) { a.Digest = digest.SHA512.FromBytes(good).String() }, ErrDigest},
		"gone":           {"collected by its controller", func(a *meta.Artifact) { a.URL = missing.URL }, ErrNotFound},
		"server in need": {"worth another try", func(a *meta.Artifact) { a.URL = broken.URL }, errAny},
		"file URL":       {"reads the machine", func(a *meta.Artifact) { a.URL = "file:///etc/passwd" }, ErrNotFound},
		"announced size": {"refused before the download", func(a *meta.Artifact) { a.Size = &big }, ErrTooLarge},
	} {
		b := a.DeepCopy()
		c.change(b)
		if _, _, err := s.Tree(t.Context(), b); err == nil || c.want != errAny && !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v: %s", name, err, c.want, c.reason)
		}
	}
	if _, _, err := s.Tree(t.Context(), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("nil artifact: %v", err)
	}
	// Once mended, it works.
	_, release, err := s.Tree(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestTreeIsSharedAndReadOnly(t *testing.T) {
	s := newStore(t, Options{})
	a, asked := origin(t, tarball(t, file("d/a", "x")))
	const callers = 20
	var wg sync.WaitGroup
	dirs := make([]string, callers)
	releases := make([]func(), callers)
	for i := range callers {
		wg.Go(func() {
			var err error
			if dirs[i], releases[i], err = s.Tree(t.Context(), a); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	for i := range callers {
		if dirs[i] != dirs[0] {
			t.Errorf("caller %d has a tree of its own", i)
		}
	}
	err := filepath.WalkDir(dirs[0], func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if want := fs.FileMode(0o400); err == nil && !e.IsDir() && info.Mode().Perm() != want || e.IsDir() && info.Mode().Perm() != 0o500 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range releases {
		release()
		release() // a second one changes nothing
	}
}

func TestIdleTreesAreCollected(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, Options{Dir: dir, IdleTrees: 1})
	var used, first string
	for i, content := range []string{"1", "2", "3"} {
		a, _ := origin(t, tarball(t, file("a", content)))
		tree, release, err := s.Tree(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		switch i {
		case 0:
			used = tree // not released: somebody reads it
			defer release()
		case 1:
			first = tree
			release()
		default:
			release()
		}
	}
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree that is idle for longest: %v", err)
	}
	if _, err := os.Stat(filepath.Join(used, "a")); err != nil {
		t.Errorf("the tree in use: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "trees")); len(left) != 2 {
		t.Errorf("trees: %v", left)
	}
	// A collected foreign artifact leaves no tarball; the two trees have theirs.
	n := 0
	for range s.blobs.List(t.Context()) {
		n++
	}
	if n != 2 {
		t.Errorf("%d tarballs are stored", n)
	}
}

func TestGivingUpLeavesTheWorkToOthers(t *testing.T) {
	body := tarball(t, file("a", "x"))
	asked, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := false
		once.Do(func() { first = true })
		if first {
			close(asked)
			select {
			case <-answer:
			case <-r.Context().Done():
			}
			return
		}
		_, _ = w.Write(body)
	}))
	defer server.Close()
	defer close(answer)
	a := &meta.Artifact{URL: server.URL, Digest: digest.FromBytes(body).String()}
	s := newStore(t, Options{})
	ctx, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := s.Tree(ctx, a); !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller: %v", err)
		}
	})
	<-asked
	wg.Go(func() {
		_, release, err := s.Tree(t.Context(), a)
		if err != nil {
			t.Errorf("the second caller: %v", err)
			return
		}
		release()
	})
	giveUp()
	wg.Wait()
}

func TestPinFetchesForeignArtifacts(t *testing.T) {
	s := newStore(t, Options{})
	a, asked := origin(t, tarball(t, file("a", "x")))
	unit := Owner{"Terraform", "apps", "db"}
	if err := s.Pin(t.Context(), unit, a); err != nil {
		t.Fatal(err)
	}
	a.URL = "http://127.0.0.1:1/gone"
	_, release, err := s.Tree(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if n := asked.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	if err := s.Unpin(t.Context(), unit); err != nil {
		t.Fatal(err)
	}
	for info := range s.blobs.List(t.Context()) {
		t.Errorf("blob %s is left", info.Digest)
	}
}

// FuzzUnpack throws anything at the archive reader: it may fail, but it writes
// nothing outside of the directory, no more than it may, and nothing that leads
// out.
func FuzzUnpack(f *testing.F) {
	f.Add(tarball(f, file("a/b", "x"), link("l", "a/b"), tar.Header{Name: "d/", Typeflag: tar.TypeDir}))
	f.Add(tarball(f, link("a/b/c/x", "../../.."), link("y", "a/b/c/x/.."), file("a/b/c/f", "")))
	f.Add(tarball(f, file("../x", "x"), link("../y", "/"), tar.Header{Name: "h", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}))
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, packed []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "tree")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		// Also as a bare tar, so that the fuzzer gets past the compression.
		var zipped bytes.Buffer
		zw := gzip.NewWriter(&zipped)
		_, _ = zw.Write(packed)
		_ = zw.Close()
		for _, body := range [][]byte{packed, zipped.Bytes()} {
			_ = unpack(t.Context(), bytes.NewReader(body), dir, limits{size: 1 << 16, entries: 50})
			if err := seal(dir); err != nil {
				t.Fatal(err)
			}
			checkInside(t, parent, dir)
			if err := removeTree(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func checkInside(t *testing.T, parent, dir string) {
	t.Helper()
	if around, _ := os.ReadDir(parent); len(around) != 1 {
		t.Fatalf("written beside the tree: %v", around)
	}
	var size int64
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			size += info.Size()
		}
		if info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket|fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Fatalf("%s has mode %v", p, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if size > 1<<16 {
		t.Fatalf("unpacked %d bytes", size)
	}
}
