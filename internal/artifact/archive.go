// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Filter reports whether an entry is left out of an archive; name is relative
// to the archived directory, with slashes. What is below a directory that is
// left out is asked about too: Flux lets a later pattern take it in again.
type Filter func(name string, info fs.FileInfo) bool

// Modes in archives, as Flux writes them.
const (
	fileMode       = 0o600
	executableMode = 0o700
	dirMode        = 0o750
)

// archive writes dir to w as a gzipped tarball of at most max bytes.
func archive(ctx context.Context, w io.Writer, dir string, filter Filter, max int64) error {
	zw := gzip.NewWriter(&limitWriter{w: w, left: max, max: max})
	tw := tar.NewWriter(zw)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !e.Type().IsRegular() && !e.IsDir() {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if name != "." && filter != nil && filter(name, info) {
			return nil
		}
		return add(tw, root, name, info)
	})
	return errors.Join(err, tw.Close(), zw.Close())
}

func add(tw *tar.Writer, root *os.Root, name string, info fs.FileInfo) error {
	h := &tar.Header{Name: name, ModTime: time.Time{}}
	switch {
	case info.IsDir():
		h.Typeflag, h.Mode = tar.TypeDir, dirMode
		return tw.WriteHeader(h)
	case info.Mode()&0o111 != 0:
		h.Mode = executableMode
	default:
		h.Mode = fileMode
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return errors.Join(err, f.Close())
}

type limitWriter struct {
	w         io.Writer
	left, max int64
}

func (l *limitWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, l.max)
	}
	return l.w.Write(p)
}

type limits struct {
	size    int64
	entries int
}

// An archive may unpack to ratio times its own size once it is beyond freeSize;
// source code packs 3 to 20 times, and gzip's most is about 1,030.
const (
	ratio    = 200
	freeSize = 64 << 20
)

// unpack writes a gzipped tarball into the empty directory dir. Every write goes
// through os.Root, so that even an archive that passes the checks here by some
// trick stays inside. Symbolic links are made at the end: no entry is written
// through one.
func unpack(ctx context.Context, r io.Reader, dir string, l limits) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	packed := &countReader{r: r}
	zr, err := gzip.NewReader(packed)
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	u := &unpacker{root: root, limits: l, packed: packed, made: map[string]bool{".": true}, links: map[string]string{}}
	tr := tar.NewReader(&boundReader{r: zr, u: u})
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if n >= l.entries {
			return fmt.Errorf("%w: more than %d entries", ErrTooLarge, l.entries)
		}
		if err := u.entry(h, tr); err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	return u.makeLinks()
}

type unpacker struct {
	root   *os.Root
	limits limits
	packed *countReader
	// unpacked counts the bytes that came out of the decompressor, and written
	// those of files: a sparse file has many of the latter and none of the former.
	unpacked, written int64
	made              map[string]bool
	links             map[string]string
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // a comment of `git archive`
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.mkdir(name)
	case tar.TypeReg:
		return u.file(name, h, content)
	case tar.TypeSymlink:
		u.links[name] = h.Linkname
		return nil
	case tar.TypeLink:
		return fmt.Errorf("%w: hard link", ErrUnsafe)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return fmt.Errorf("%w: device", ErrUnsafe)
	default:
		return fmt.Errorf("%w: entry of type %q", ErrUnsafe, h.Typeflag)
	}
}

// entryName checks the name of an entry and cleans it.
func entryName(name string) (string, error) {
	switch {
	case name == "":
		return "", fmt.Errorf("%w: empty name", ErrUnsafe)
	case strings.ContainsAny(name, "\\\x00"):
		return "", fmt.Errorf("%w: bad character in the name", ErrUnsafe)
	case path.IsAbs(name):
		return "", fmt.Errorf("%w: absolute path", ErrUnsafe)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: path climbs out", ErrUnsafe)
		}
	}
	return path.Clean(name), nil
}

func (u *unpacker) mkdir(name string) error {
	if u.made[name] {
		return nil
	}
	if err := u.mkdir(path.Dir(name)); err != nil {
		return err
	}
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return shape(err)
	}
	u.made[name] = true
	return nil
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if u.written+h.Size > u.limits.size {
		return fmt.Errorf("%w: unpacks to more than %d bytes", ErrTooLarge, u.limits.size)
	}
	if err := u.mkdir(path.Dir(name)); err != nil {
		return err
	}
	// An entry that comes twice counts the second time, as tar has it.
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return shape(err)
	}
	mode := fs.FileMode(0o400)
	if h.Mode&0o111 != 0 {
		mode = 0o500
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return shape(err)
	}
	_, err = io.Copy(writerOnly{f}, &writtenReader{r: content, u: u})
	return errors.Join(err, f.Close())
}

// shape tells a tree that cannot exist, such as a file inside a file, from a
// disk that fails.
func shape(err error) error {
	for _, bad := range []error{fs.ErrExist, fs.ErrInvalid, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.ENAMETOOLONG, syscall.EILSEQ} {
		if errors.Is(err, bad) {
			return fmt.Errorf("%w: %v", ErrUnsafe, errors.Unwrap(err))
		}
	}
	return err
}

// makeLinks makes the symbolic links and then follows each one: only that shows
// where a chain of links ends.
func (u *unpacker) makeLinks() error {
	// In order, so that a link comes before what an archive puts below it.
	for _, name := range slices.Sorted(maps.Keys(u.links)) {
		target := u.links[name]
		if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
			return fmt.Errorf("entry %q: %w: links out of the tree", name, ErrUnsafe)
		}
		if err := u.mkdir(path.Dir(name)); err != nil {
			return fmt.Errorf("entry %q: %w", name, err)
		}
		if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("entry %q: %w", name, shape(err))
		}
		if err := u.root.Symlink(target, name); err != nil {
			return fmt.Errorf("entry %q: %w", name, shape(err))
		}
	}
	for name := range u.links {
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("entry %q: %w: links out of the tree or to itself", name, ErrUnsafe)
		}
	}
	return nil
}

// check stops an archive that explodes.
func (u *unpacker) check() error {
	out := max(u.unpacked, u.written)
	if out > u.limits.size+int64(u.limits.entries)*1024 {
		return fmt.Errorf("%w: unpacks to more than %d bytes", ErrTooLarge, u.limits.size)
	}
	if out > freeSize && out/ratio > u.packed.n {
		return fmt.Errorf("%w: unpacks to more than %d times its size", ErrTooLarge, ratio)
	}
	return nil
}

type countReader struct {
	r io.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// boundReader counts what the decompressor gives.
type boundReader struct {
	r io.Reader
	u *unpacker
}

func (b *boundReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.u.unpacked += int64(n)
	if over := b.u.check(); over != nil {
		return n, over
	}
	return n, err
}

// writtenReader counts what goes into files.
type writtenReader struct {
	r io.Reader
	u *unpacker
}

func (w *writtenReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.u.written += int64(n)
	if over := w.u.check(); over != nil {
		return n, over
	}
	return n, err
}

// writerOnly hides other methods of a file, so that a copy passes by the
// counting reader.
type writerOnly struct{ io.Writer }
