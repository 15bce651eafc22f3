// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/utils/clock"
)

// ErrNoLog says that there is no log of such a run.
var ErrNoLog = errors.New("no log")

// stampLayout is RFC 3339 in UTC with milliseconds.
const stampLayout = "2006-01-02T15:04:05.000Z"

// stamper puts the time before each line that it is given.
type stamper struct {
	log   *logFile
	clock clock.WithDelayedExecution
}

func (s *stamper) Write(p []byte) (int, error) {
	now := s.clock.Now().UTC().Format(stampLayout)
	for text := range bytes.Lines(p) {
		// A part of a line that was too long is a line of its own.
		text = bytes.TrimSuffix(text, []byte("\n"))
		s.log.append(now + " " + string(text) + "\n")
	}
	return len(p), nil
}

// logFile is the log of a run while it is written. The beginning goes to the log's
// own file; when that has its size, what follows goes to segments beside it, of
// which only the last two stay. Closing appends them to the file. So neither the
// disk nor the memory is filled by a provider in debug mode, and what is on disk is
// readable at any moment.
type logFile struct {
	path  string
	limit LogLimit

	mu      sync.Mutex
	grown   *sync.Cond
	pieces  []piece // what is kept, in order; the first is the head
	file    *os.File
	size    int64 // of all that was ever written
	lines   int64
	failed  error // why lines are missing
	missing int64
	closed  bool
}

// piece is a part of what was written that is kept somewhere.
type piece struct {
	start, end int64 // in all that was ever written
	lines      int64 // before it
	path       string
	offset     int64 // of start in the file
}

func newLog(path string, limit LogLimit) *logFile {
	l := &logFile{path: path, limit: limit}
	l.grown = sync.NewCond(&l.mu)
	return l
}

func (l *logFile) open() error {
	if err := mkdir(filepath.Dir(l.path)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next(l.path)
}

// next begins a piece in a new file. The caller holds mu.
func (l *logFile) next(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file = f
	l.pieces = append(l.pieces, piece{start: l.size, end: l.size, lines: l.lines, path: path})
	return nil
}

// append adds a line, with its newline.
func (l *logFile) append(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.file == nil {
		return
	}
	if err := l.room(int64(len(text))); err != nil {
		l.failed = err
		l.missing++
		return
	}
	current := &l.pieces[len(l.pieces)-1]
	if _, err := l.file.WriteString(text); err != nil {
		// Half a line would run into the next.
		_ = l.file.Truncate(current.end - current.start)
		l.failed = err
		l.missing++
		return
	}
	l.size += int64(len(text))
	l.lines++
	current.end = l.size
	l.grown.Broadcast()
}

// room goes on to another segment when n bytes more are too many for this one.
func (l *logFile) room(n int64) error {
	current := l.pieces[len(l.pieces)-1]
	limit := l.limit.Tail / 2
	if len(l.pieces) == 1 {
		limit = l.limit.Head
	}
	if length := current.end - current.start; length == 0 || length+n <= limit {
		return nil
	}
	if err := l.next(segmentPath(l.path, l.lines)); err != nil {
		return err
	}
	for len(l.pieces) > 3 {
		_ = os.Remove(l.pieces[1].path)
		l.pieces = slices.Delete(l.pieces, 1, 2)
	}
	return nil
}

// segmentPath names a segment by the number of lines before it, so that after a
// crash it is known how many are missing.
func segmentPath(path string, lines int64) string {
	return fmt.Sprintf("%s.%012d", path, lines)
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.file == nil {
		return
	}
	_ = l.file.Close()
	if l.failed != nil {
		// The disk may have room again; if not, this is lost as well.
		_ = appendText(l.path, fmt.Sprintf("… %d lines could not be written: %v …\n", l.missing, l.failed))
	}
	if offsets, err := joinSegments(l.path); err == nil {
		for i := range l.pieces[1:] {
			p := &l.pieces[i+1]
			if o, ok := offsets[p.path]; ok {
				p.path, p.offset = l.path, o
			}
		}
	}
	l.closed = true
	l.grown.Broadcast()
}

func appendText(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// joinSegments appends the segments of a log to it, with a line that says how
// much is missing between, and removes them. It returns where each begins. After a
// crash it does what close did not come to.
func joinSegments(path string) (map[string]int64, error) {
	segments, err := filepath.Glob(globEscape(path) + ".*")
	if err != nil || len(segments) == 0 {
		return nil, err
	}
	slices.Sort(segments)
	head, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, at := int64(bytes.Count(head, []byte("\n"))), int64(len(head))
	offsets := map[string]int64{}
	for _, segment := range segments {
		before, err := strconv.ParseInt(strings.TrimPrefix(segment, path+"."), 10, 64)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(segment)
		if err != nil {
			return offsets, err
		}
		if before > lines {
			n, err := f.WriteString(gap(before - lines))
			if err != nil {
				return offsets, err
			}
			at += int64(n)
		}
		if _, err := f.Write(text); err != nil {
			return offsets, err
		}
		offsets[segment] = at
		at += int64(len(text))
		lines = before + int64(bytes.Count(text, []byte("\n")))
	}
	for segment := range offsets {
		_ = os.Remove(segment)
	}
	return offsets, nil
}

func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(s)
}

func gap(lines int64) string { return fmt.Sprintf("… %d lines dropped …\n", lines) }

// logReader reads a log that is being written.
type logReader struct {
	log    *logFile
	follow bool
	at     int64 // in all that was ever written
	end    int64 // where to stop without follow
	lines  int64 // that were read
	within bool  // a line
	rest   string
	closed bool
}

// reader starts at the beginning. Without follow it ends where the log ends now.
func (l *logFile) reader(follow bool) *logReader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &logReader{log: l, follow: follow, end: l.size}
}

func (r *logReader) Read(p []byte) (int, error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for {
		if r.closed {
			return 0, fs.ErrClosed
		}
		if r.rest != "" {
			n := copy(p, r.rest)
			r.rest = r.rest[n:]
			return n, nil
		}
		end := r.end
		if r.follow {
			end = r.log.size
		}
		if r.at < end {
			n, err := r.read(p[:min(int64(len(p)), end-r.at)])
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		if !r.follow || r.log.closed {
			return 0, io.EOF
		}
		r.log.grown.Wait()
	}
}

// read reads from the piece that has r.at, or notes what is missing before the next.
func (r *logReader) read(p []byte) (int, error) {
	for _, pc := range r.log.pieces {
		if r.at >= pc.end {
			continue
		}
		if r.at < pc.start {
			// What comes next has been dropped since the last Read.
			if r.within {
				r.rest = "\n"
			}
			r.rest += gap(pc.lines - r.lines)
			r.at, r.lines, r.within = pc.start, pc.lines, false
			return 0, nil
		}
		n, err := pc.readAt(p[:min(int64(len(p)), pc.end-r.at)], r.at)
		if n > 0 {
			r.at += int64(n)
			r.lines += int64(bytes.Count(p[:n], []byte("\n")))
			r.within = p[n-1] != '\n'
			return n, nil
		}
		return 0, err
	}
	return 0, io.EOF
}

// readAt reads from where at, in all that was ever written, is in the piece's file.
func (p *piece) readAt(b []byte, at int64) (int, error) {
	f, err := os.Open(p.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(b, p.offset+at-p.start)
}

func (r *logReader) Close() error {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.closed = true
	r.log.grown.Broadcast()
	return nil
}

// Log returns the log of a run of the unit: of the one with that run id, or the
// latest of the job with that id, or the latest of all if it is empty. Lines begin
// with the time in RFC 3339 and are masked. With follow, and while the run goes
// on, Read waits for more; otherwise it ends with what is there now. Close ends a
// Read that waits. The error is ErrNoLog when there is none.
func (e *Executor) Log(u Unit, run string, follow bool) (io.ReadCloser, error) {
	e.mu.Lock()
	en, ok := e.units[u]
	if ok && en.log != nil && (run == "" || run == en.state.Run || run == en.state.ID) {
		log := en.log
		e.mu.Unlock()
		return log.reader(follow), nil
	}
	e.mu.Unlock()
	path, err := e.store.findLog(u, run)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", u, err)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNoLog
	}
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", u, err)
	}
	return f, nil
}

// findLog looks only for what is in the unit's directory: run is a stranger's text.
func (s *store) findLog(u Unit, run string) (string, error) {
	runs, err := s.runs(u)
	if err != nil {
		return "", err
	}
	slices.Reverse(runs)
	for _, r := range runs {
		if run == "" || run == r {
			return s.logPath(u, r), nil
		}
	}
	for _, r := range runs {
		if rec, err := readRecord(s.recordPath(u, r)); err == nil && rec.ID == run {
			return s.logPath(u, r), nil
		}
	}
	return "", ErrNoLog
}
