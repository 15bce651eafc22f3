// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Filter says which entries are asked for; the zero value means all.
type Filter struct {
	// Unit is "KIND/NAMESPACE/NAME"; an empty part stands for any, as in
	// "/infra/" for the units of a namespace. The kind may be in any case.
	Unit string
	// Since and Until bound the time: Since is included, Until is not.
	Since, Until time.Time
	// Actor is a name, an email address, or KIND:NAME, in any case.
	Actor string
	// Action is one action.
	Action Action
	// Limit keeps the newest entries only; zero means no limit.
	Limit int
}

func (f Filter) matches(e Entry) bool {
	return (f.Unit == "" || matchUnit(f.Unit, e.Unit)) &&
		(f.Since.IsZero() || !e.Time.Before(f.Since)) &&
		(f.Until.IsZero() || e.Time.Before(f.Until)) &&
		(f.Actor == "" || matchActor(f.Actor, e.Actor)) &&
		(f.Action == "" || f.Action == e.Action)
}

func matchUnit(pattern, unit string) bool {
	want, got := strings.SplitN(pattern, "/", 3), strings.SplitN(unit, "/", 3)
	if len(want) != 3 || len(got) != 3 {
		return pattern == unit
	}
	return (want[0] == "" || strings.EqualFold(want[0], got[0])) &&
		(want[1] == "" || want[1] == got[1]) &&
		(want[2] == "" || want[2] == got[2])
}

func matchActor(who string, a Actor) bool {
	return slices.ContainsFunc([]string{a.Name, a.Email, a.Committer, a.CommitterEmail, a.String()}, func(s string) bool {
		return strings.EqualFold(s, who)
	})
}

// Query goes through the entries that match, the newest last, and ends at the first
// error. Each entry's hash is checked as it is read; whether all entries are there
// is Verify's to say. Entries that are appended meanwhile may be among them.
func (l *Ledger) Query(ctx context.Context, f Filter) iter.Seq2[Entry, error] {
	return Query(ctx, l.opts.Dir, f)
}

// Query is Ledger.Query for a ledger that another process may be writing, or for a
// copy of one.
func Query(ctx context.Context, dir string, f Filter) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		numbers, err := segments(dir)
		if err == nil && len(numbers) == 0 {
			err = ErrNoLedger
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && f.Limit > 0 {
			err = queryNewest(ctx, dir, numbers, f, yield)
		} else if err == nil {
			err = queryAll(ctx, dir, numbers, f, yield)
		}
		if err != nil && !errors.Is(err, errStop) {
			yield(Entry{}, fmt.Errorf("read ledger %s: %w", dir, err))
		}
	}
}

// recent is how many segments Recent reads.
const recent = 2

// Recent goes through the last entries, oldest first: those of the last segment and of the
// one before, however long the ledger is.
func (l *Ledger) Recent(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		numbers, err := segments(l.opts.Dir)
		if err == nil {
			err = queryAll(ctx, l.opts.Dir, numbers[max(0, len(numbers)-recent):], Filter{}, yield)
		}
		if err != nil && !errors.Is(err, errStop) {
			yield(Entry{}, fmt.Errorf("read ledger %s: %w", l.opts.Dir, err))
		}
	}
}

// errStop says that the reader wants no more.
var errStop = errors.New("stop")

func queryAll(ctx context.Context, dir string, numbers []uint64, f Filter, yield func(Entry, error) bool) error {
	for _, n := range numbers {
		stopped := false
		err := readSegment(dir, n, func(e Entry) bool {
			stopped = f.matches(e) && !yield(e, nil)
			return !stopped && ctx.Err() == nil
		})
		if stopped {
			return errStop
		}
		if err := errors.Join(ctx.Err(), gone(err, n == numbers[0])); err != nil {
			return err
		}
	}
	return nil
}

// queryNewest reads the segments from the last one back, until it has as many as
// are wanted.
func queryNewest(ctx context.Context, dir string, numbers []uint64, f Filter, yield func(Entry, error) bool) error {
	var found []Entry
	for _, n := range slices.Backward(numbers) {
		var here []Entry
		room := f.Limit - len(found)
		err := readSegment(dir, n, func(e Entry) bool {
			if f.matches(e) {
				here = append(here, e)
			}
			if len(here) >= 2*room {
				here = append(here[:0], here[len(here)-room:]...)
			}
			return ctx.Err() == nil
		})
		if err := errors.Join(ctx.Err(), gone(err, n == numbers[0])); err != nil {
			return err
		}
		found = append(here[max(0, len(here)-room):], found...)
		if len(found) == f.Limit {
			break
		}
	}
	for _, e := range found {
		if !yield(e, nil) {
			return errStop
		}
	}
	return nil
}

// gone forgives that the oldest segment is not there any more: it was exported and
// removed since the directory was listed.
func gone(err error, oldest bool) error {
	if oldest && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// readSegment calls take with each entry of a segment, in order, until it returns
// false. A last line without its newline is being written, and not there yet.
func readSegment(dir string, number uint64, take func(Entry) bool) error {
	name := segmentName(number)
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	in := newLineReader(f)
	for {
		raw, ended, err := in.next()
		if errors.Is(err, io.EOF) || err == nil && !ended {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		s, err := unseal(raw)
		if err == nil && !s.whole() {
			err = errEdited
		}
		var l line
		if err == nil {
			l, err = s.line()
		}
		if err != nil {
			return &CorruptError{File: name, Line: in.n, What: err.Error()}
		}
		if l.Entry != nil && !take(l.entry(s.hash)) {
			return nil
		}
	}
}
