// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNoLog says that there is no log of such a run.
var ErrNoLog = errors.New("no log")

// LogOptions say what of a log is read.
type LogOptions struct {
	// Follow waits for what is still to come, while the run goes on or is recovered.
	Follow bool
	// After is the Number of the line that the first one comes after: for one who has
	// read so far before.
	After int64
}

// Log opens the log of a run of the unit: of the one with that run id, or the latest
// of the job with that id, or the latest of all if it is empty. The error is
// ErrNoLog when there is none.
func (e *Executor) Log(u Unit, run string, opts LogOptions) (*LogReader, error) {
	e.mu.Lock()
	en, ok := e.units[u]
	if ok && en.log != nil && (run == "" || run == en.state.Run || run == en.state.ID) {
		log, id := en.log, en.state.Run
		e.mu.Unlock()
		return log.reader(id, opts), nil
	}
	e.mu.Unlock()
	id, err := e.store.findLog(u, run)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", u, err)
	}
	pieces, err := findPieces(e.store.logPath(u, id))
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", u, err)
	}
	if len(pieces) == 0 {
		return nil, fmt.Errorf("open the log of %s: %w", u, ErrNoLog)
	}
	return storedLog(pieces).reader(id, opts), nil
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
			return r, nil
		}
	}
	for _, r := range runs {
		if rec, err := readRecord(s.recordPath(u, r)); err == nil && rec.ID == run {
			return r, nil
		}
	}
	return "", ErrNoLog
}

// unbounded is the size of a piece of which all can be read.
const unbounded = math.MaxInt64

// findPieces returns what is on disk of a log, in order: none when there is none.
func findPieces(path string) ([]*piece, error) {
	head, plain := path, false
	_, err := os.Stat(head)
	if errors.Is(err, fs.ErrNotExist) {
		head, plain = strings.TrimSuffix(path, compressedExt), true
		_, err = os.Stat(head)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Dir(head))
	if err != nil {
		return nil, err
	}
	pieces := []*piece{{path: head}}
	for _, e := range entries {
		lines, is := strings.CutPrefix(e.Name(), filepath.Base(head)+".")
		if before, err := strconv.ParseInt(lines, 10, 64); is && err == nil {
			pieces = append(pieces, &piece{path: head + "." + lines, before: before})
		}
	}
	slices.SortStableFunc(pieces[1:], func(a, b *piece) int { return strings.Compare(a.path, b.path) })
	for i, p := range pieces {
		p.nth, p.size, p.ended, p.plain = i+1, unbounded, true, plain
	}
	return pieces, nil
}

// storedLog is a log that nobody writes any more.
func storedLog(pieces []*piece) *logFile {
	l := newLog("", LogLimit{})
	l.stored = true
	l.lines = unbounded
	l.end(pieces)
	return l
}

// reopenLog is the log of a run that was interrupted: what is there of it can be read,
// and what follows is said by interrupt.
func reopenLog(path string) *logFile {
	l := newLog(path, LogLimit{})
	l.lines, l.done = unbounded, true
	l.pieces, _ = findPieces(path)
	l.nth = len(l.pieces)
	return l
}

// interrupt ends the log of a run that was interrupted, and says so in it.
func (l *logFile) interrupt(at time.Time, err error) {
	if len(l.pieces) == 0 {
		l.end(nil)
		return
	}
	l.join(Line{Time: at, Stream: Own, Text: lastWords(err)})
}

// LogReader reads the log of a run: one that goes on, or one of before. Close may be
// called at any time, Next from one goroutine.
type LogReader struct {
	log    *logFile
	run    string
	follow bool
	end    int64 // without follow: the number of the last line
	closed bool  // guarded by log.mu

	reading sync.Mutex // guards what follows
	at      *decoder   // nil between pieces
	nth     int        // of the last piece that was opened
	last    int64      // number of the last line that was passed on
	torn    error      // how the last piece ended that has no end
}

// reader starts at the beginning. Without Follow it ends where the log ends now.
func (l *logFile) reader(run string, opts LogOptions) *LogReader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &LogReader{log: l, run: run, follow: opts.Follow, end: l.lines, last: max(opts.After, 0)}
}

// Run is the id of the run whose log it is.
func (r *LogReader) Run() string { return r.run }

// Next returns the lines that come next: one at least, and as many as are there
// without waiting and handy. The error is io.EOF at the end of the log, and
// fs.ErrClosed after Close. Of lines that are not kept one says how many they are.
func (r *LogReader) Next() ([]Line, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	for {
		if r.at == nil {
			at, err := r.open()
			if err == io.EOF && r.torn != nil && r.log.stored {
				note := "… the log breaks off here …"
				if !errors.Is(r.torn, io.ErrUnexpectedEOF) {
					note = fmt.Sprintf("… the log breaks off here: %v …", r.torn)
				}
				r.torn = nil
				return []Line{{Number: r.last, Stream: Own, Text: note, breaksOff: true}}, nil
			}
			if err != nil {
				return nil, err
			}
			r.at = at
		}
		lines, err := r.at.next()
		lines = r.pass(lines)
		if err != nil {
			// A segment that is left although its lines are in the head tells nothing.
			old := r.at.n < r.last
			r.at.file.Close()
			r.at = nil
			switch {
			case errors.Is(err, fs.ErrClosed):
				return nil, err
			case err == io.EOF && !old:
				r.torn = nil
			case !old:
				r.torn = err
			}
		}
		if len(lines) > 0 {
			return lines, nil
		}
	}
}

// pass returns those of the lines that have not been passed on, with a line in the
// place of each gap.
func (r *LogReader) pass(lines []Line) []Line {
	out := make([]Line, 0, len(lines))
	for _, l := range lines {
		if l.Number <= r.last || l.Number > r.end && !r.follow {
			continue
		}
		if n := l.Number - r.last - 1; n > 0 {
			out = append(out, Line{
				Number: l.Number - 1, Time: l.Time, Stream: Own, Text: fmt.Sprintf("… %d lines dropped …", n), Dropped: n,
			})
		}
		out = append(out, l)
		r.last = l.Number
	}
	return out
}

// open opens the next piece, and waits until there is one.
func (r *LogReader) open() (*decoder, error) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if r.closed {
			return nil, fs.ErrClosed
		}
		if r.last >= r.end && !r.follow || l.closed && r.last >= l.lines {
			return nil, io.EOF
		}
		for _, p := range l.pieces {
			if p.nth <= r.nth {
				continue
			}
			r.nth = p.nth
			file, err := os.Open(p.path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // one that was found on disk and is gone since
			}
			if err != nil {
				return nil, err
			}
			return newDecoder(&source{reader: r, piece: p, file: file}), nil
		}
		if l.closed || !r.follow {
			return nil, io.EOF
		}
		l.grown.Wait()
	}
}

// Close ends a Next that waits.
func (r *LogReader) Close() error {
	r.log.mu.Lock()
	r.closed = true
	r.log.grown.Broadcast()
	r.log.mu.Unlock()
	r.reading.Lock()
	defer r.reading.Unlock()
	if r.at != nil {
		r.at.file.Close()
		r.at = nil
	}
	return nil
}

// source reads the file of a piece as far as it can be read, and waits for more
// while it grows. The file stays readable when the segment is dropped meanwhile.
type source struct {
	reader *LogReader
	piece  *piece
	file   *os.File
	offset int64
}

func (s *source) Read(b []byte) (int, error) {
	size, err := s.wait()
	if err != nil {
		return 0, err
	}
	n, err := s.file.ReadAt(b[:min(int64(len(b)), size-s.offset)], s.offset)
	s.offset += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// wait returns the size of what can be read, once that is more than what was.
func (s *source) wait() (int64, error) {
	l := s.reader.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case s.reader.closed:
			return 0, fs.ErrClosed
		case s.offset < s.piece.size:
			return s.piece.size, nil
		case s.piece.ended || !s.reader.follow:
			return 0, io.EOF
		}
		l.grown.Wait()
	}
}

// decoder makes lines of a piece.
type decoder struct {
	file  *os.File
	in    io.Reader
	zip   *gzip.Reader // nil until the header is there
	plain bool
	n     int64 // lines so far, those among them that are not kept
	buf   []byte
	rest  []byte // of a line
}

func newDecoder(s *source) *decoder {
	return &decoder{file: s.file, in: s, plain: s.piece.plain, n: s.piece.before, buf: make([]byte, 32<<10)}
}

// next returns the next lines, which may be none. The error is io.EOF at the end of
// what is whole, and another where it breaks off.
func (d *decoder) next() ([]Line, error) {
	n, err := d.read()
	d.rest = append(d.rest, d.buf[:n]...)
	var lines []Line
	end := 0
	for text := range bytes.Lines(d.rest) {
		if text[len(text)-1] != '\n' {
			break
		}
		end += len(text)
		lines = d.take(lines, string(text[:len(text)-1]))
	}
	d.rest = append(d.rest[:0], d.rest[end:]...)
	if err == io.EOF && d.plain && len(d.rest) > 0 {
		lines = d.take(lines, string(d.rest))
	}
	if err == nil && len(d.rest) > longestLine {
		err = errors.New("a line has no end")
	}
	return lines, err
}

func (d *decoder) read() (int, error) {
	if d.plain {
		return d.in.Read(d.buf)
	}
	if d.zip == nil {
		zip, err := gzip.NewReader(d.in)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		d.zip = zip
	}
	return d.zip.Read(d.buf)
}

// take adds the line that a stored one is, if it is one.
func (d *decoder) take(lines []Line, stored string) []Line {
	if d.plain {
		var n int64
		if _, err := fmt.Sscanf(stored, "… %d lines dropped …", &n); err == nil {
			d.skip(n)
			return lines
		}
	}
	l := Line{Stream: Stdout, Text: stored}
	stamped := false
	if stamp, text, ok := strings.Cut(stored, " "); ok {
		if at, err := time.Parse(stampLayout, stamp); err == nil {
			l.Time, l.Text, stamped = at, text, true
		}
	}
	if stream, text, ok := strings.Cut(l.Text, " "); ok && stamped && !d.plain {
		switch Stream(stream) {
		case Stdout, Stderr, Own:
			l.Stream, l.Text = Stream(stream), text
		case droppedMark:
			n, _ := strconv.ParseInt(text, 10, 64)
			d.skip(n)
			return lines
		}
	}
	d.n++
	l.Number = d.n
	return append(lines, l)
}

// skip counts lines that are not kept.
func (d *decoder) skip(n int64) {
	const limit = 1 << 40 // more than a run can have; a damaged file has anything
	if 0 < n && n <= limit && d.n < limit {
		d.n += n
	}
}
