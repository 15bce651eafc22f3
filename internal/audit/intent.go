// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// Intent is an effect that was recorded before it began. It ends once.
type Intent struct {
	ledger *Ledger
	entry  Entry

	mu    sync.Mutex
	ended bool
}

// Outcome says how an intent ended. What is empty stays as the intent said it.
type Outcome struct {
	// Result is Succeeded, Failed, Cancelled, TimedOut or Interrupted.
	Result     string
	Revision   string
	PlanID     string
	PlanDigest string
	Counts     *Counts
	Run        string
	// Detail says why; it must hold no secret.
	Detail string
}

// Begin records the intent of an effect. When it returns nil the intent is
// durable and the effect may begin; after an error it must not. The caller ends the
// intent, also when the effect fails.
func (l *Ledger) Begin(ctx context.Context, e Entry) (*Intent, error) {
	if err := ctx.Err(); err != nil {
		return nil, failed(e, err)
	}
	e, err := prepare(e)
	if err != nil {
		return nil, failed(e, err)
	}
	e.Phase = PhaseIntent
	if e, err = l.append(e); err != nil {
		return nil, err
	}
	return &Intent{ledger: l, entry: e}, nil
}

// Seq is the Seq of the intent's entry.
func (i *Intent) Seq() uint64 { return i.entry.Seq }

// End records how the intent ended. It is to be called once: later calls return
// ErrEnded and record nothing. After another error the intent has no outcome, and
// End may be called again. It records also when ctx has ended, because what
// ended the effect is often what ended ctx.
func (i *Intent) End(_ context.Context, o Outcome) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return ErrEnded
	}
	if o.Result == "" {
		return failed(i.entry, errors.New("the outcome says no result"))
	}
	e := i.entry
	e.Phase, e.Intent, e.Outcome = PhaseOutcome, e.Seq, o.Result
	for to, from := range map[*string]string{
		&e.Revision: o.Revision, &e.PlanID: o.PlanID, &e.PlanDigest: o.PlanDigest, &e.Run: o.Run, &e.Detail: o.Detail,
	} {
		if from != "" {
			*to = from
		}
	}
	if o.Counts != nil {
		e.Counts = o.Counts
	}
	if _, err := i.ledger.append(bound(e)); err != nil {
		return err
	}
	i.ended = true
	return nil
}

// Unfinished returns the intents that an earlier process left without an outcome
// and that have none yet, oldest first. Who recovers a run ends them with
// Interrupt.
func (l *Ledger) Unfinished() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Entry
	for _, seq := range slices.Sorted(maps.Keys(l.found)) {
		out = append(out, l.found[seq].entry)
	}
	return out
}

// Interrupt ends, as Interrupted, the intents of a run that an earlier process left
// without an outcome, and says how many there were. Calling it again does nothing.
// An empty run means the intents that belong to none.
func (l *Ledger) Interrupt(ctx context.Context, run, detail string) (int, error) {
	l.mu.Lock()
	var of []*Intent
	for _, seq := range slices.Sorted(maps.Keys(l.found)) {
		if i := l.found[seq]; i.entry.Run == run {
			of = append(of, i)
		}
	}
	l.mu.Unlock()
	n := 0
	for _, i := range of {
		err := i.End(ctx, Outcome{Result: Interrupted, Detail: detail})
		if errors.Is(err, ErrEnded) {
			continue
		}
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
