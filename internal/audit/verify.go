// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kinds of a Finding.
const (
	// Malformed is what is no line of a ledger.
	Malformed = "malformed"
	// Edited is a line whose content is not what its hash says.
	Edited = "edited"
	// Forged is a line that the ledger's key did not sign.
	Forged = "forged"
	// Dropped is what is missing between two lines, or before the first.
	Dropped = "dropped"
	// Reordered is a line or a segment in another's place.
	Reordered = "reordered"
	// Duplicated is a line that was there before.
	Duplicated = "duplicated"
	// Truncated is a segment, or the ledger, without its end.
	Truncated = "truncated"
	// Forked is a line that the key signed, and that follows another history.
	Forked = "forked"
)

// Finding is one thing that is not as it was written.
type Finding struct {
	// Kind is Malformed, Edited and so on.
	Kind string `json:"kind"`
	// File is in the ledger's directory, and Line counts from 1; 0 is the whole file.
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Text string `json:"text"`
}

func (f Finding) String() string {
	where := f.File
	if f.Line > 0 {
		where += fmt.Sprintf(" line %d", f.Line)
	}
	return fmt.Sprintf("%s: %s: %s", where, f.Kind, f.Text)
}

// Head is how far a ledger goes: the Seq of its last entry and the hash of its last
// line.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// String is "SEQ:HASH".
func (h Head) String() string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }

// ParseHead reads what Head.String wrote.
func ParseHead(s string) (Head, error) {
	var h Head
	number, hash, _ := strings.Cut(s, ":")
	if _, err := fmt.Sscanf(number, "%d", &h.Seq); err != nil || len(hash) != hashLen || strings.Trim(hash, "0123456789abcdef") != "" {
		return h, fmt.Errorf("%q is not SEQ:HASH, as \"terrace audit verify\" prints it", s)
	}
	h.Hash = hash
	return h, nil
}

// Report is what Verify found out.
type Report struct {
	// Ledger is its id.
	Ledger   string `json:"ledger"`
	Segments int    `json:"segments"`
	// Entries is how many are there and as they were written.
	Entries uint64 `json:"entries"`
	// First and Last are the Seq of the first and last entry.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// From and Until are the times of the first and last entry.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Head is what to note elsewhere.
	Head Head `json:"head"`
	// Unfinished is how many intents have no outcome.
	Unfinished int `json:"unfinished"`
	// Torn is how many bytes follow the last whole line: one that is being written,
	// or that a crash left half-written. The next start cuts it off and says so.
	Torn int `json:"torn,omitempty"`
	// Findings are in the order of the ledger; at most 100, and More is how many
	// there are besides.
	Findings []Finding `json:"findings,omitempty"`
	More     int       `json:"more,omitempty"`
}

// Holds tells whether nothing was found.
func (r Report) Holds() bool { return len(r.Findings) == 0 }

const maxFindings = 100

// VerifyOptions widen or narrow what Verify expects.
type VerifyOptions struct {
	// Exported says that the directory is a copy of closed segments, perhaps not
	// from the first one on: there is no live segment and no checkpoint.
	Exported bool
	// Known are heads that were noted earlier: the ledger must have each of them.
	Known []Head
}

// Verify reads the whole ledger in dir and reports what is not as it was written.
// It needs no private key, and may run while the ledger is being written. The error
// is about what kept it from finding out: ErrNoLedger, or a file that cannot be read.
func Verify(ctx context.Context, dir string, key ed25519.PublicKey, o VerifyOptions) (Report, error) {
	v := &verifier{ctx: ctx, dir: dir, key: key, open: map[uint64]bool{}, known: map[string]Head{}}
	for _, h := range o.Known {
		v.known[h.Hash] = h
	}
	if err := v.run(o.Exported); err != nil {
		return v.report, fmt.Errorf("verify ledger %s: %w", dir, err)
	}
	return v.report, nil
}

// verifier goes through the lines of a ledger.
type verifier struct {
	ctx    context.Context
	dir    string
	key    ed25519.PublicKey
	report Report
	all    []Finding
	gaps   []gap

	prev   string // hash of the line before; empty when it is not known
	seq    uint64 // of the last entry that is in order
	bad    uint64 // lines since then that could not be believed
	lost   bool   // a segment is missing: the next one is believed
	pruned uint64 // segments that an entry says were removed
	open   map[uint64]bool
	known  map[string]Head
	point  *checkpoint
	seen   bool // the line of the checkpoint

	// Of the segment that is read:
	number uint64
	name   string
	line   int
	skip   bool // it is not the segment of its name: its order says nothing
	ended  bool
	after  bool // a line after its end was told of
	broken bool // its last line could not be believed
	// foreign says that another key signs it, which was told of once for all lines.
	foreign bool
}

// gap is a run of entries that were not where they should be.
type gap struct {
	from, to uint64
	file     string
	line     int
}

func (v *verifier) find(kind, format string, args ...any) {
	v.all = append(v.all, Finding{Kind: kind, File: v.name, Line: v.line, Text: fmt.Sprintf(format, args...)})
}

func (v *verifier) run(exported bool) error {
	// The checkpoint is read first: what is written afterwards can only put the
	// ledger ahead of it.
	if !exported {
		if err := v.readPoint(); err != nil {
			return err
		}
	}
	numbers, err := segments(v.dir)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		if v.point == nil {
			return ErrNoLedger
		}
		v.name, v.line = segmentName(v.point.Segment), 0
		v.find(Truncated, "it is missing, with all entries: the checkpoint knows %d", v.point.Seq)
	}
	for i, n := range numbers {
		if i > 0 && n != numbers[i-1]+1 {
			v.name, v.line = segmentName(numbers[i-1]+1), 0
			v.find(Dropped, "it is missing, and so is all up to %s", segmentName(n))
			v.lost, v.prev = true, ""
		}
		v.lost = v.lost || i == 0 && n > 1
		if err := v.segment(n, exported || i < len(numbers)-1); err != nil {
			return err
		}
		v.report.Segments++
	}
	v.conclude(numbers, exported)
	if err := v.unknown(numbers); err != nil {
		return err
	}
	slices.SortStableFunc(v.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	shown := min(len(v.all), maxFindings)
	v.report.Findings, v.report.More = v.all[:shown], len(v.all)-shown
	return nil
}

func (v *verifier) readPoint() error {
	point, err := readCheckpoint(v.dir, v.key)
	var corrupt *CorruptError
	v.name, v.line = checkpointName, 0
	switch {
	case errors.As(err, &corrupt):
		v.find(Edited, "%s", corrupt.What)
		v.seen = true // there is nothing to look for
	case err != nil:
		return err
	}
	v.point = point
	return nil
}

// segment reads one segment; closed says that it must have its end.
func (v *verifier) segment(number uint64, closed bool) error {
	v.number, v.name, v.line = number, segmentName(number), 0
	v.skip, v.ended, v.after, v.broken, v.foreign = false, false, false, false, false
	f, err := os.Open(filepath.Join(v.dir, v.name))
	if err != nil {
		return err
	}
	defer f.Close()
	in := newLineReader(f)
	for {
		raw, whole, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", v.name, err)
		}
		if in.n%256 == 0 && v.ctx.Err() != nil {
			return v.ctx.Err()
		}
		v.line = in.n
		if !whole {
			if closed {
				v.find(Truncated, "it ends in the middle of a line")
				v.broken = true
			}
			v.report.Torn = len(raw)
			break
		}
		v.take(raw)
	}
	empty := v.line == 0
	v.line = 0
	if empty {
		v.find(Truncated, "it is empty")
	} else if closed && !v.ended && !v.broken && !v.skip {
		v.find(Truncated, "it has no end: what followed is missing")
	}
	if closed && !v.ended {
		v.prev = ""
	}
	if v.skip {
		v.lost = true
	}
	return nil
}

// take looks at a line: first whether it can be believed, then whether it is in
// its place.
func (v *verifier) take(raw []byte) {
	l, hash, ok := v.believe(raw)
	v.broken = !ok
	if v.point != nil && hash == v.point.Head {
		v.seen = true
	}
	if !ok {
		v.bad++
		v.prev = ""
		return
	}
	delete(v.known, hash)
	if v.line == 1 && l.Begin == nil {
		v.find(Dropped, "the first line, which begins the segment, is missing")
		v.prev = ""
	}
	switch {
	case l.Begin != nil:
		v.begin(l, hash)
	case v.skip:
	case v.ended && !v.after && l.End == nil:
		v.find(Reordered, "it follows the end of the segment")
		v.after = true
	case l.End != nil:
		v.end(l, hash)
	default:
		v.entry(l, hash)
	}
}

// believe tells whether the line is one that the key signed.
func (v *verifier) believe(raw []byte) (l line, hash string, ok bool) {
	s, err := unseal(raw)
	if err != nil {
		v.find(Malformed, "%v", err)
		return l, "", false
	}
	if !s.whole() {
		v.find(Edited, "%v", errEdited)
		return l, s.hash, false
	}
	l, lerr := s.line()
	if v.foreign {
		return l, s.hash, false
	}
	if !s.signed(lineDomain, v.key) {
		if lerr == nil && l.Begin != nil && l.Begin.Key != fingerprint(v.key) {
			v.foreign = true
			v.find(Forged, "the segment is signed with the key %.16q…, and not with %.16q…, the public key that was given", l.Begin.Key, fingerprint(v.key))
		} else {
			v.find(Forged, "%v", errForged)
		}
		return l, s.hash, false
	}
	if lerr != nil {
		v.find(Malformed, "%v", lerr)
		return l, s.hash, false
	}
	return l, s.hash, true
}

func (v *verifier) begin(l line, hash string) {
	b := l.Begin
	switch {
	case b.Segment != v.number:
		v.find(Reordered, "it is the beginning of %s", segmentName(b.Segment))
		v.skip = v.skip || v.line == 1
		return
	case v.line != 1:
		v.find(Duplicated, "it is the beginning of the segment once more")
		return
	case v.report.Ledger != "" && b.Ledger != v.report.Ledger || v.point != nil && b.Ledger != v.point.Ledger:
		v.find(Forked, "it is of another ledger, %s", b.Ledger)
		v.skip = true
		return
	}
	v.report.Ledger = b.Ledger
	switch {
	case v.lost:
	case b.After > v.seq+v.bad:
		v.gap(b.After)
	case b.After < v.seq, v.prev != "" && l.Prev != v.prev:
		v.find(Forked, "it does not follow the segment before it")
	}
	if v.report.First == 0 {
		v.report.First = b.After + 1
	}
	v.lost, v.seq, v.prev, v.bad = false, b.After, hash, 0
}

func (v *verifier) end(l line, hash string) {
	switch e := l.End; {
	case e.Segment != v.number:
		v.find(Reordered, "it is the end of %s", segmentName(e.Segment))
		return
	case v.ended:
		v.find(Duplicated, "it is the end of the segment once more")
		return
	case v.lost:
	case e.Last > v.seq+v.bad:
		v.gap(e.Last)
	case e.Last < v.seq, v.prev != "" && l.Prev != v.prev:
		v.find(Forked, "it does not follow the line before it")
	}
	v.ended, v.lost = true, false
	v.seq, v.prev, v.bad = max(v.seq, l.End.Last), hash, 0
}

func (v *verifier) entry(l line, hash string) {
	e := l.Entry
	switch {
	case v.lost:
	case e.Seq <= v.seq && v.fill(e.Seq):
		v.find(Reordered, "entry %d stands behind entry %d", e.Seq, v.seq)
		v.count(e)
		return
	case e.Seq <= v.seq:
		v.find(Duplicated, "entry %d is there once more", e.Seq)
		return
	case e.Seq > v.seq+1+v.bad:
		v.gap(e.Seq - 1)
	case v.prev != "" && l.Prev != v.prev:
		v.find(Forked, "entry %d does not follow the line before it", e.Seq)
	}
	v.lost, v.seq, v.prev, v.bad = false, e.Seq, hash, 0
	v.count(e)
}

// count takes an entry into the report.
func (v *verifier) count(e *Entry) {
	r := &v.report
	r.Entries++
	if r.First == 0 {
		r.First = e.Seq
	}
	if r.From.IsZero() {
		r.From = e.Time
	}
	r.Last, r.Until = max(r.Last, e.Seq), e.Time
	v.pruned = max(v.pruned, e.Pruned)
	switch e.Phase {
	case PhaseIntent:
		v.open[e.Seq] = true
	case PhaseOutcome:
		delete(v.open, e.Intent)
	}
}

// gap notes that the entries up to one are missing here. They may still be found
// elsewhere.
func (v *verifier) gap(to uint64) {
	v.gaps = append(v.gaps, gap{from: v.seq + 1, to: to, file: v.name, line: v.line})
}

// fill takes an entry out of the gaps; false when it is in none.
func (v *verifier) fill(seq uint64) bool {
	for i, g := range v.gaps {
		if seq < g.from || seq > g.to {
			continue
		}
		before, behind := g, g
		before.to, behind.from = seq-1, seq+1
		v.gaps = slices.Delete(v.gaps, i, i+1)
		for _, rest := range []gap{before, behind} {
			if rest.from <= rest.to {
				v.gaps = append(v.gaps, rest)
			}
		}
		return true
	}
	return false
}

// conclude finds what only the whole shows.
func (v *verifier) conclude(numbers []uint64, exported bool) {
	r := &v.report
	for _, g := range v.gaps {
		v.name, v.line = g.file, g.line
		if g.from == g.to {
			v.find(Dropped, "entry %d is missing before it", g.from)
		} else {
			v.find(Dropped, "entries %d to %d are missing before it", g.from, g.to)
		}
	}
	if !exported && len(numbers) > 0 {
		if first := numbers[0]; first > v.pruned+1 {
			v.name, v.line = segmentName(1), 0
			v.find(Dropped, "it is missing, as is all up to %s, and no entry says that it was exported and removed", segmentName(first))
		}
		last := segmentName(numbers[len(numbers)-1])
		switch {
		case v.seen:
		case v.point == nil:
			v.name, v.line = checkpointName, 0
			v.find(Truncated, "it is missing: nothing says whether the end of the ledger is there")
		case v.point.Seq > v.seq:
			v.name, v.line = last, 0
			v.find(Truncated, "it ends with entry %d, and the checkpoint knows entry %d", v.seq, v.point.Seq)
		default:
			v.name, v.line = last, 0
			v.find(Truncated, "the line that the checkpoint knows, %.16s…, is missing", v.point.Head)
		}
	}
	r.Unfinished = len(v.open)
	r.Head = Head{Seq: v.seq, Hash: v.prev}
}

// unknown finds the heads that were noted and are not there.
func (v *verifier) unknown(numbers []uint64) error {
	for _, h := range v.known {
		if len(numbers) > 0 && numbers[0] > 1 && h.Seq < v.report.First {
			return fmt.Errorf("entry %d, whose hash was given, was exported and removed here: verify the exported copy", h.Seq)
		}
		v.name, v.line = checkpointName, 0
		if len(numbers) > 0 {
			v.name = segmentName(numbers[len(numbers)-1])
		}
		if h.Seq > v.seq {
			v.find(Truncated, "it ends with entry %d, and entry %d was noted", v.seq, h.Seq)
		} else {
			v.find(Forked, "entry %d is not followed as it was when %s was noted", h.Seq, h)
		}
	}
	return nil
}
