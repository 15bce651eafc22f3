// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another executor has the directory.
var ErrInUse = errors.New("in use by another process")

// store is the directory of an executor:
//
//	_lock                              held while an executor lives
//	_active/RUN-UNIT.jsonl             journals of runs that have begun and not ended
//	NAMESPACE/KIND-NAME/RUN.jsonl      their records, once they have
//	NAMESPACE/KIND-NAME/RUN.log.gz     their logs, and RUN.log.gz.LINES while they grow;
//	                                   RUN.log of earlier versions
//
// Names that begin with "_" cannot be namespaces. Only _active has to be read at
// start, however many units there are.
type store struct {
	dir   string
	lock  *os.File
	limit LogLimit
	kept  func(Unit, string) bool
}

const (
	lockName   = "_lock"
	activeName = "_active"
	recordExt  = ".jsonl"
	logExt     = ".log"

	// compressedExt follows logExt.
	compressedExt = ".gz"
)

func openStore(opts Options) (store, error) {
	dir := opts.Dir
	if dir == "" {
		return store{}, errors.New("no directory is given")
	}
	if err := mkdir(filepath.Join(dir, activeName)); err != nil {
		return store{}, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return store{}, err
	}
	// A second executor would take the first one's runs for orphans and end them.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return store{}, ErrInUse
		}
		return store{}, fmt.Errorf("lock %s: %w", lockName, err)
	}
	return store{dir: dir, lock: lock, limit: opts.Log, kept: opts.Kept}, nil
}

func (s *store) close() { s.lock.Close() }

// fileName makes a file name of a name that somebody else chose.
func fileName(s string) string {
	s = url.PathEscape(s)
	if s == "" {
		return "_"
	}
	if s[0] == '_' || s[0] == '.' {
		s = fmt.Sprintf("%%%02X", s[0]) + s[1:]
	}
	// File systems stop at 255 bytes, and extensions follow.
	const limit = 180
	if len(s) > limit {
		s = s[:limit-17] + "~" + hash(s)
	}
	return s
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

func (s *store) unitDir(u Unit) string {
	return filepath.Join(s.dir, fileName(u.Namespace), fileName(u.Kind+"-"+u.Name))
}

func (s *store) logPath(u Unit, run string) string {
	return filepath.Join(s.unitDir(u), run+logExt+compressedExt)
}

func (s *store) recordPath(u Unit, run string) string {
	return filepath.Join(s.unitDir(u), run+recordExt)
}

func (s *store) activePath(u Unit, run string) string {
	return filepath.Join(s.dir, activeName, run+"-"+hash(u.String())+recordExt)
}

// unfinished returns the runs that have begun and not ended, oldest first.
func (s *store) unfinished() ([]Record, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, activeName, "*"+recordExt))
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, name := range names {
		rec, err := readRecord(name)
		if err != nil {
			return nil, err
		}
		switch {
		case rec.Run == "":
			// The crash came before the first entry was on disk, and so before
			// the run was let go.
			err = os.Remove(name)
		case !rec.Ended.IsZero():
			err = s.archive(name, rec.Unit, rec.Run)
		default:
			out = append(out, rec)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.Run, b.Run) })
	return out, nil
}

// archive moves a journal to the records of its unit.
func (s *store) archive(path string, u Unit, run string) error {
	if err := mkdir(s.unitDir(u)); err != nil {
		return err
	}
	return os.Rename(path, s.recordPath(u, run))
}

// records returns the records of a unit, oldest first.
func (s *store) records(u Unit) ([]Record, error) {
	runs, err := s.runs(u)
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, run := range runs {
		rec, err := readRecord(s.recordPath(u, run))
		if errors.Is(err, fs.ErrNotExist) {
			rec, err = readRecord(s.activePath(u, run))
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && rec.Run == "":
			continue // it runs and has started nothing yet, or a crash took its record
		case err != nil:
			return nil, err
		}
		out = append(out, rec)
	}
	return out, nil
}

// runs returns the ids of the runs of a unit that are kept, oldest first.
func (s *store) runs(u Unit) ([]string, error) {
	entries, err := os.ReadDir(s.unitDir(u))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !unfinishedFile(e.Name()) {
			out = append(out, runOf(e.Name()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// unfinishedFile tells by its name that a file is one that a crash kept from being
// renamed, or that is about to be.
func unfinishedFile(name string) bool { return strings.HasPrefix(name, ".") }

// runOf returns the run that a file in a unit's directory belongs to.
func runOf(name string) string {
	if run, ok := strings.CutSuffix(name, recordExt); ok {
		return run
	}
	if i := strings.LastIndex(name, logExt); i >= 0 {
		return name[:i]
	}
	return name
}

// excess returns the runs of a unit that are too many or too old. A run's id begins with
// its time.
func (s *store) excess(u Unit, now time.Time) ([]string, error) {
	runs, err := s.runs(u)
	if err != nil {
		return nil, err
	}
	oldest := now.Add(-s.limit.Age).UTC().Format(idLayout)
	n := max(len(runs)-s.limit.Runs, 0)
	for n < len(runs) && strings.ToLower(runs[n]) < oldest {
		n++
	}
	return runs[:n], nil
}

// prune removes the runs of a unit that are too many or too old, and what a crash has
// left. No run of the unit may be going on.
func (s *store) prune(u Unit, now time.Time) error {
	gone, err := s.excess(u, now)
	if err != nil {
		return err
	}
	gone = slices.DeleteFunc(gone, func(run string) bool { return s.kept(u, run) })
	entries, err := os.ReadDir(s.unitDir(u))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if unfinishedFile(e.Name()) || slices.Contains(gone, runOf(e.Name())) {
			if err := os.Remove(filepath.Join(s.unitDir(u), e.Name())); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// overfull returns the units that have runs which are too many or too old.
func (s *store) overfull(ctx context.Context, now time.Time) ([]Unit, error) {
	namespaces, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var out []Unit
	for _, ns := range namespaces {
		if !ns.IsDir() || ns.Name() == activeName {
			continue
		}
		dirs, err := os.ReadDir(filepath.Join(s.dir, ns.Name()))
		if err != nil {
			return nil, err
		}
		for _, d := range dirs {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			u, ok := s.unitIn(filepath.Join(s.dir, ns.Name(), d.Name()))
			if !ok {
				continue
			}
			gone, err := s.excess(u, now)
			if err != nil {
				return nil, err
			}
			if len(gone) > 0 {
				out = append(out, u)
			}
		}
	}
	return out, nil
}

// unitIn returns the unit that a directory is of: by its name, or, when that is cut, as a
// record in it has it.
func (s *store) unitIn(dir string) (Unit, bool) {
	namespace, err := url.PathUnescape(filepath.Base(filepath.Dir(dir)))
	name, nameErr := url.PathUnescape(filepath.Base(dir))
	if err == nil && nameErr == nil {
		if namespace == "_" {
			namespace = ""
		}
		kind, name, _ := strings.Cut(name, "-")
		if u := (Unit{Kind: kind, Namespace: namespace, Name: name}); s.unitDir(u) == dir {
			return u, true
		}
	}
	records, err := fs.Glob(os.DirFS(dir), "*"+recordExt)
	if err != nil {
		return Unit{}, false
	}
	for _, name := range records {
		if rec, err := readRecord(filepath.Join(dir, name)); err == nil && s.unitDir(rec.Unit) == dir {
			return rec.Unit, true
		}
	}
	return Unit{}, false
}

// removeEmpty removes the directory of a unit that has no runs any more, and that of
// the namespace with its last unit.
func (s *store) removeEmpty(u Unit) {
	if os.Remove(s.unitDir(u)) == nil {
		_ = os.Remove(filepath.Dir(s.unitDir(u)))
	}
}
