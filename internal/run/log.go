// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/durable"
)

// Stream says where a line of a log comes from.
type Stream string

// The streams of a log.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
	// Own is what Terrace itself says of the run.
	Own Stream = "terrace"
)

// Line is a line of a log.
type Line struct {
	// Number counts the lines of the run from 1 on, those among them that are not kept.
	Number int64 `json:"line"`
	// Time is when it was written, in milliseconds; zero when an earlier version did
	// not write it down.
	Time   time.Time `json:"time,omitzero"`
	Stream Stream    `json:"stream"`
	// Text is masked and has no newline.
	Text string `json:"text"`
	// Dropped says, in a line that stands for lines which are not kept, how many they
	// are. Number is that of the last of them.
	Dropped int64 `json:"dropped,omitempty"`

	// breaksOff marks what a reader says of a log without an end.
	breaksOff bool
}

// String is the line as people read it, without its newline.
func (l Line) String() string {
	if l.Dropped > 0 || l.Time.IsZero() {
		return l.Text
	}
	return l.Time.Format(stampLayout) + " " + l.Text
}

// A stored line is "TIME STREAM TEXT". Where lines are missing in a file there is
// "TIME dropped COUNT"; TIME is that of the line after it.
const (
	// stampLayout is RFC 3339 in UTC with milliseconds.
	stampLayout = "2006-01-02T15:04:05.000Z"
	droppedMark = "dropped"
)

func (l Line) appendTo(b []byte) []byte {
	stream, text := string(l.Stream), l.Text
	if l.Dropped > 0 {
		stream, text = droppedMark, strconv.FormatInt(l.Dropped, 10)
	}
	b = l.Time.AppendFormat(b, stampLayout)
	b = append(append(b, ' '), stream...)
	b = append(append(b, ' '), text...)
	return append(b, '\n')
}

const (
	// longestText is where a longer line is parted, in bytes.
	longestText = 256 << 10
	// longestLine is more than what a stored line can be.
	longestLine = longestText + 256
)

// stamper gives each line that it is given its time and stream.
type stamper struct {
	log    *logFile
	clock  clock.WithDelayedExecution
	stream Stream
}

func (s *stamper) Write(p []byte) (int, error) {
	s.log.append(s.clock.Now().UTC(), s.stream, p)
	return len(p), nil
}

// logFile is the log of a run while it is written. The beginning goes to the log's
// own file; when that has its size, what follows goes to segments beside it, of
// which only the last two stay. Closing makes one file of them. So neither the disk
// nor the memory is filled by a provider in debug mode.
//
// Every file is a gzip stream that is flushed after each write: what was appended
// can be read at any moment, also when no more comes.
type logFile struct {
	path  string
	limit LogLimit
	// stored says that nobody writes it: it was found on disk.
	stored bool

	mu      sync.Mutex
	grown   *sync.Cond
	pieces  []*piece     // what is kept, in order; the first is the head
	nth     int          // of the last piece
	out     *pieceWriter // of the last piece; nil when that could not be begun
	pending int64        // lines that are in out and not yet in its file
	lines   int64        // that were written and can be read
	failed  error        // why lines are missing
	missing int64
	done    bool // nothing is added any more
	closed  bool // and the pieces are as they stay
}

// piece is a file with a part of the log. size and ended are guarded by logFile.mu.
type piece struct {
	nth    int // in the order in which pieces came to be
	path   string
	before int64 // lines that precede it
	size   int64 // bytes of the file that can be read
	ended  bool  // no more comes
	plain  bool  // the form of earlier versions: lines "TIME TEXT", not compressed
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

// next begins a piece in a new file. The caller holds mu and has flushed.
func (l *logFile) next(path string) error {
	w, err := newPieceWriter(path)
	if err != nil {
		return err
	}
	l.endPiece()
	l.out = w
	l.nth++
	l.pieces = append(l.pieces, &piece{nth: l.nth, path: path, before: l.lines, size: w.size})
	return nil
}

// endPiece closes the file of the current piece and tells whether it is whole. The
// caller holds mu.
func (l *logFile) endPiece() bool {
	if l.out == nil {
		return false
	}
	l.out.finish()
	current := l.pieces[len(l.pieces)-1]
	current.size, current.ended = l.out.size, true
	whole := !l.out.broken
	l.out = nil
	return whole
}

// append adds the lines of p.
func (l *logFile) append(at time.Time, s Stream, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || len(l.pieces) == 0 {
		return
	}
	var stored []byte
	for text := range bytes.Lines(p) {
		// A part of a line that was too long is a line of its own.
		text = bytes.TrimSuffix(text, []byte("\n"))
		for {
			part := text[:min(len(text), longestText)]
			stored = Line{Time: at, Stream: s, Text: string(part)}.appendTo(stored[:0])
			l.add(stored)
			if text = text[len(part):]; len(text) == 0 {
				break
			}
		}
	}
	l.flush()
}

// add puts a stored line into the current piece, or the next. The caller holds mu.
func (l *logFile) add(stored []byte) {
	if err := l.room(int64(len(stored))); err != nil {
		l.failed = err
		l.missing++
		return
	}
	l.out.add(stored)
	l.pending++
}

// flush makes readable what was added. The caller holds mu.
func (l *logFile) flush() {
	if l.pending == 0 {
		return
	}
	if err := l.out.flush(); err != nil {
		l.failed = err
		l.missing += l.pending
	} else {
		l.lines += l.pending
	}
	l.pending = 0
	l.pieces[len(l.pieces)-1].size = l.out.size
	l.grown.Broadcast()
}

// room goes on to another segment when n bytes more are too many for this one, or
// when it could not be written. The caller holds mu.
func (l *logFile) room(n int64) error {
	limit := l.limit.Tail / 2
	if len(l.pieces) == 1 {
		limit = l.limit.Head
	}
	if l.out != nil && !l.out.broken && (l.out.text == 0 || l.out.text+n <= limit) {
		return nil
	}
	l.flush()
	if last := len(l.pieces) - 1; last > 0 && l.pieces[last].before == l.lines {
		// Nothing could be written to it, and the next has the same name.
		l.endPiece()
		_ = os.Remove(l.pieces[last].path)
		l.pieces = l.pieces[:last]
	}
	if err := l.next(segmentPath(l.path, l.lines)); err != nil {
		return err
	}
	for len(l.pieces) > 3 {
		_ = os.Remove(l.pieces[1].path)
		l.pieces = append(l.pieces[:1], l.pieces[2:]...)
	}
	return nil
}

// segmentPath names a segment by the number of lines before it, so that after a
// crash it is known how many are missing.
func segmentPath(path string, lines int64) string {
	return fmt.Sprintf("%s.%012d", path, lines)
}

// close ends the log.
func (l *logFile) close(at time.Time) {
	l.mu.Lock()
	if l.done || len(l.pieces) == 0 {
		l.mu.Unlock()
		return
	}
	if l.failed != nil {
		// The disk may have room again; if not, this is lost as well.
		note := fmt.Sprintf("terrace: %d lines could not be written: %v", l.missing, l.failed)
		l.add(Line{Time: at, Stream: Own, Text: note}.appendTo(nil))
		l.flush()
	}
	l.done = true
	whole := l.endPiece() && len(l.pieces) == 1
	l.mu.Unlock()
	if whole {
		l.end(l.pieces)
		return
	}
	l.join()
}

// end says that no more comes.
func (l *logFile) end(pieces []*piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pieces, l.done, l.closed = pieces, true, true
	l.grown.Broadcast()
}

// join makes one file of the pieces, with more lines at its end, and ends the log.
// Where that is not possible the pieces stay, and are read as they are. Nobody may
// write them any more.
func (l *logFile) join(more ...Line) {
	old := l.pieces
	lines, err := join(l.path, old, more)
	if err != nil {
		l.end(old)
		return
	}
	l.mu.Lock()
	l.nth++
	l.lines = lines
	whole := &piece{nth: l.nth, path: l.path, size: unbounded, ended: true}
	l.mu.Unlock()
	l.end([]*piece{whole})
	for _, p := range old {
		if p.path != l.path {
			_ = os.Remove(p.path)
		}
	}
}

// join writes what is in the pieces to one file, in the place of the head, and
// returns the number of its last line. After a crash between that and the removal
// of the segments their lines are known by their numbers.
func join(path string, pieces []*piece, more []Line) (int64, error) {
	r := storedLog(pieces).reader("", LogOptions{})
	defer r.Close()
	var out bytes.Buffer
	zip := writers.Get().(*gzip.Writer)
	defer writers.Put(zip)
	zip.Reset(&out)
	var stored []byte
	said := ""
	for {
		lines, err := r.Next()
		for _, line := range lines {
			if !line.breaksOff {
				stored = line.appendTo(stored[:0])
				_, _ = zip.Write(stored)
				said = line.Text
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	last := r.last
	for _, line := range more {
		if line.Text == said {
			continue // by the recovery before, whose outcome nobody settled
		}
		_, _ = zip.Write(line.appendTo(stored[:0]))
		last++
	}
	_ = zip.Close()
	return last, durable.Replace(path, out.Bytes())
}

// writers keeps compressors: making one costs more than what a run prints.
var writers = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

// pieceWriter compresses lines into a file.
type pieceWriter struct {
	file   *os.File
	zip    *gzip.Writer
	out    bytes.Buffer // what is not yet in the file
	size   int64        // of the file
	text   int64        // bytes before compression
	broken bool         // the file has its beginning only
}

func newPieceWriter(path string) (*pieceWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	w := &pieceWriter{file: f, zip: writers.Get().(*gzip.Writer)}
	w.zip.Reset(&w.out)
	if err := w.flush(); err != nil {
		w.finish()
		return nil, errors.Join(err, os.Remove(path))
	}
	return w, nil
}

func (w *pieceWriter) add(stored []byte) {
	_, _ = w.zip.Write(stored) // into memory
	w.text += int64(len(stored))
}

// flush brings to the file what was added. After an error nothing can be added: what
// comes next would refer to what is missing.
func (w *pieceWriter) flush() error {
	_ = w.zip.Flush()
	return w.write()
}

func (w *pieceWriter) write() error {
	n, err := w.file.Write(w.out.Bytes())
	w.out.Reset()
	if err != nil {
		_ = w.file.Truncate(w.size)
		w.broken = true
		return err
	}
	w.size += int64(n)
	return nil
}

// finish ends the stream, if it is whole, and closes the file.
func (w *pieceWriter) finish() {
	if !w.broken {
		_ = w.zip.Close()
		_ = w.write()
	}
	_ = w.file.Close()
	writers.Put(w.zip)
}
