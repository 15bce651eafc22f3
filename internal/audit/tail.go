// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// tail is what the last segment of a ledger holds.
type tail struct {
	begin    begin
	prev     string           // of the first line
	head     string           // hash of the last line
	seq      uint64           // of the last entry
	size     int64            // of the whole lines
	torn     int              // bytes behind them
	closed   bool             // the last line is the end of the segment
	open     map[uint64]Entry // intents of this segment without outcome
	finished map[uint64]bool  // intents that have their outcome in this segment
	hashes   map[string]bool
}

// readTail reads and checks the last segment. All but a last line without its
// newline must be as it was written.
func readTail(dir string, number uint64, key ed25519.PublicKey) (tail, error) {
	t := tail{open: map[uint64]Entry{}, finished: map[uint64]bool{}, hashes: map[string]bool{}}
	name := segmentName(number)
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return t, err
	}
	defer f.Close()
	in := newLineReader(f)
	for {
		raw, ended, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t, fmt.Errorf("read %s: %w", name, err)
		}
		if !ended {
			t.torn = len(raw)
			break
		}
		if err := t.take(raw, number, key); err != nil {
			return t, &CorruptError{File: name, Line: in.n, What: err.Error()}
		}
		t.size += int64(len(raw)) + 1
	}
	if t.head == "" {
		return t, &CorruptError{File: name, What: "it has no first line"}
	}
	if t.closed && t.torn > 0 {
		return t, &CorruptError{File: name, Line: in.n, What: "it follows the end of the segment"}
	}
	return t, nil
}

// take adds a line that must be the next one.
func (t *tail) take(raw []byte, number uint64, key ed25519.PublicKey) error {
	s, err := unseal(raw)
	if err != nil {
		return err
	}
	if !s.whole() {
		return errEdited
	}
	l, err := s.line()
	if err != nil {
		return err
	}
	first := t.head == ""
	if first && l.Begin != nil && l.Begin.Key != fingerprint(key) {
		return fmt.Errorf("the ledger is signed with another key, %.16q…: restore the key file that it was written with", l.Begin.Key)
	}
	if !s.signed(lineDomain, key) {
		return errForged
	}
	switch {
	case first != (l.Begin != nil):
		return errors.New("a segment has one beginning, its first line")
	case !first && l.Prev != t.head:
		return errors.New("it does not follow the line before it")
	case t.closed:
		return errors.New("it follows the end of the segment")
	case first && l.Begin.Segment != number:
		return fmt.Errorf("it is the beginning of segment %d", l.Begin.Segment)
	case first:
		t.begin, t.prev, t.seq = *l.Begin, l.Prev, l.Begin.After
	case l.End != nil:
		t.closed = true
	case l.Entry.Seq != t.seq+1:
		return fmt.Errorf("it is entry %d, and %d comes next", l.Entry.Seq, t.seq+1)
	default:
		t.note(l.entry(s.hash))
	}
	t.head = s.hash
	t.hashes[s.hash] = true
	return nil
}

var (
	errEdited = errors.New("its hash is not that of its content: it was edited")
	errForged = errors.New("its signature is not by the ledger's key")
)

func (t *tail) note(e Entry) {
	t.seq = e.Seq
	switch e.Phase {
	case PhaseIntent:
		t.open[e.Seq] = e
	case PhaseOutcome:
		delete(t.open, e.Intent)
		t.finished[e.Intent] = true
	}
}

// reaches tells whether the ledger goes as far as the checkpoint says. The
// checkpoint is written after its line is durable, so no crash makes it lead.
func (t *tail) reaches(c *checkpoint) error {
	name := segmentName(t.begin.Segment)
	switch {
	case c.Ledger != t.begin.Ledger:
		return &CorruptError{File: checkpointName, What: "it is of another ledger"}
	case c.Segment > t.begin.Segment:
		return &CorruptError{File: segmentName(c.Segment), What: "it is missing, and the checkpoint knows it"}
	case c.Segment < t.begin.Segment && c.Seq <= t.begin.After:
		return nil // a crash between a new segment and its checkpoint
	case !t.hashes[c.Head]:
		return &CorruptError{File: name, What: fmt.Sprintf("its end was cut off: it ends with entry %d, and the checkpoint knows entry %d", t.seq, c.Seq)}
	}
	return nil
}

// follows tells whether the segment before number ends with the line that prev is
// the hash of.
func follows(dir string, number uint64, prev string) error {
	name := segmentName(number - 1)
	s, err := lastLine(filepath.Join(dir, name))
	if err == nil && s.hash == prev && s.whole() {
		return nil
	}
	if err != nil && !errors.Is(err, errForm) {
		return err
	}
	return &CorruptError{File: name, What: "its last line is not the one that the next segment follows"}
}
