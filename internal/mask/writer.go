// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"bytes"
	"io"
	"sync"
)

const (
	// longLine is how much of a line without an end is held back.
	longLine = 64 << 10
	// margin is what is held back of a long line in any case, for what is found by
	// its form and has no known length.
	margin = 4 << 10
)

// Writer returns a writer that masks what is written and hands it to w by whole
// lines, so that a value split over several writes is found. A line of more than
// 64 KiB is handed on in parts, cut where no known value is. Close hands on the
// rest and does not close w. The writer is safe for concurrent use; parts of
// lines that several goroutines write at once mix, as they do in a file. After an
// error of w it only returns that error.
// It knows what the masker has learnt by the time that it hands a line on.
func (m *Masker) Writer(w io.Writer) io.WriteCloser {
	return &writer{masker: m, to: w}
}

type writer struct {
	masker *Masker
	to     io.Writer

	mu     sync.Mutex
	rest   []byte
	key    keyBlock
	err    error
	closed bool
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	w.rest = append(w.rest, p...)
	if end := bytes.LastIndexByte(w.rest, '\n') + 1; end > 0 {
		w.emit(w.masker.text(string(w.rest[:end]), &w.key))
		w.rest = append(w.rest[:0], w.rest[end:]...)
	}
	if keep := w.keep(); len(w.rest) > longLine+keep {
		w.part(keep)
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// keep is how much of a long line stays back, so that whatever begins in it is seen
// whole with what follows.
func (w *writer) keep() int {
	if w.masker == nil {
		return margin
	}
	return max(margin, w.masker.known.Load().longest)
}

// part hands on the beginning of a line that has become too long.
func (w *writer) part(keep int) {
	cut := len(w.rest) - keep
	for _, sp := range w.masker.find(string(w.rest)) {
		if sp.start < cut && cut < sp.end {
			cut = sp.start
		}
	}
	if cut <= 0 {
		return
	}
	w.emit(w.masker.text(string(w.rest[:cut]), &w.key))
	w.rest = append(w.rest[:0], w.rest[cut:]...)
}

func (w *writer) emit(s string) {
	if w.err == nil && s != "" {
		_, w.err = io.WriteString(w.to, s)
	}
}

func (w *writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return w.err
	}
	w.closed = true
	w.emit(w.masker.text(string(w.rest), &w.key))
	w.rest = nil
	return w.err
}
