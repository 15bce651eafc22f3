// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// followEvery is how often the output files are looked at while the process
// runs: rarely enough to cost nothing, often enough for someone who watches.
const followEvery = 100 * time.Millisecond

// maxCollected bounds the error text that is kept in memory.
const maxCollected = 64 << 10

// follower copies what the process appends to its output files.
type follower struct {
	done  chan struct{}
	ended chan error
}

// follow starts to copy the files to Session.Output and Session.Errors, and standard
// error to errs as well. Within one look standard output comes first; the tools print
// their errors last.
func (s *Session) follow(c command, out, errOut string, errs io.Writer) *follower {
	shown := s.Output
	if shown == nil {
		shown = io.Discard
	}
	errors := s.Errors
	if errors == nil {
		errors = shown
	}
	f := &follower{done: make(chan struct{}), ended: make(chan error, 1)}
	var files []*tail
	if !c.capture {
		files = append(files, &tail{path: out, to: []io.Writer{shown}})
	}
	files = append(files, &tail{path: errOut, to: []io.Writer{errors, errs}})
	go func() { f.ended <- f.loop(files) }()
	return f
}

func (f *follower) loop(files []*tail) error {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	defer func() {
		for _, t := range files {
			t.close()
		}
	}()
	for last := false; ; {
		for _, t := range files {
			if err := t.copy(); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		select {
		case <-f.done:
			last = true // once more, for what came since
		case <-ticker.C:
		}
	}
}

// stop waits until all that was written has been copied. The process must have
// ended.
func (f *follower) stop() error {
	close(f.done)
	return <-f.ended
}

// tail reads a growing file from where it stopped.
type tail struct {
	path string
	to   []io.Writer
	file *os.File
	buf  []byte
}

func (t *tail) copy() error {
	if t.file == nil {
		f, err := os.Open(t.path)
		if err != nil {
			return err
		}
		t.file, t.buf = f, make([]byte, 32<<10)
	}
	for {
		n, err := t.file.Read(t.buf)
		for _, w := range t.to {
			if n > 0 {
				_, _ = w.Write(t.buf[:n])
			}
		}
		if err == io.EOF || n == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tail) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// logLine is a line of TF_LOG output, which comes on standard error too.
var logLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT[0-9:.]+\S* \[(TRACE|DEBUG|INFO|WARN|ERROR)\]`)

// collector keeps the beginning of standard error, without log lines.
type collector struct {
	kept    strings.Builder
	partial []byte
}

// Write takes text in any pieces and never fails.
func (c *collector) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			break
		}
		c.line(append(c.partial, p[:i+1]...))
		c.partial, p = c.partial[:0], p[i+1:]
	}
	if room := maxCollected - len(c.partial); room > 0 {
		c.partial = append(c.partial, p[:min(room, len(p))]...)
	}
	return n, nil
}

func (c *collector) line(l []byte) {
	if c.kept.Len()+len(l) <= maxCollected && !logLine.Match(l) {
		c.kept.Write(l)
	}
}

// String is what was kept, the last unfinished line included.
func (c *collector) String() string {
	if len(c.partial) > 0 {
		c.line(c.partial)
		c.partial = nil
	}
	return c.kept.String()
}
