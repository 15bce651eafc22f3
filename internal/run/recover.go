// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"slices"
	"syscall"
	"time"
)

// identity is what the kernel says of a process.
type identity struct {
	startTime uint64
	dead      bool // has ended and waits for its parent to take note
}

// lookInterval is how often processes that are not our children are looked at: there
// is no portable way to be told of their end.
const lookInterval = 20 * time.Millisecond

// alive reports whether the very process p lives: not another one that was given
// its PID since, before or after a reboot.
func (p Process) alive() bool {
	boot, err := bootID()
	if err != nil || boot != p.Boot {
		return false
	}
	id, err := identify(p.PID)
	return err == nil && !id.dead && id.startTime == p.StartTime
}

// recover ends what the interrupted runs of a unit left behind and reports them. If
// the executor shuts down before that, they stay in the journal.
func (e *Executor) recover(u Unit, left []Record) {
	defer e.busy.Done()
	e.mu.Lock()
	log, latest := e.units[u].log, e.units[u].state.Run
	e.mu.Unlock()
	var found []Interruption
	for _, rec := range left {
		i := Interruption{
			Run: rec.Run, ID: rec.ID, Unit: rec.Unit, Kind: rec.Kind, Begun: rec.Begun,
			Facts: rec.Facts, Processes: rec.Processes, LogPath: e.store.logPath(u, rec.Run),
		}
		var err error
		i.Orphaned, i.Killed, err = end(e.recovery, rec, e.opts.Grace)
		if err != nil {
			log.end(log.pieces)
			return
		}
		// Terrace wrote the log, and it is another one that ended: nothing more comes.
		if rec.Run == latest {
			log.interrupt(e.opts.Clock.Now().UTC(), &InterruptedError{Interruption: i})
		} else {
			reopenLog(i.LogPath).interrupt(e.opts.Clock.Now().UTC(), &InterruptedError{Interruption: i})
		}
		found = append(found, i)
	}
	last := found[len(found)-1]
	err := &InterruptedError{Interruption: last}

	e.mu.Lock()
	en := e.units[u]
	now := e.opts.Clock.Now()
	en.left, en.log = found, nil
	en.state.Begun = last.Begun
	en.state.Phase, en.state.Since, en.state.Err = Done, now, err
	e.mu.Unlock()
	e.opts.Observe(Observation{
		Unit: u, Kind: last.Kind, Run: last.Run, Outcome: Interrupted, Took: max(now.Sub(last.Begun), 0),
	})
	e.opts.OnChange(u)
}

// end asks the processes of a run to end, with SIGINT as a person would, so that
// tofu still writes its state and gives the lock back. What is left after the
// grace is killed. It returns when nothing lives, or ctx ends.
func end(ctx context.Context, rec Record, grace time.Duration) (orphaned, killed bool, err error) {
	leaders := slices.DeleteFunc(slices.Clone(rec.Processes), func(p Process) bool { return !p.alive() })
	for _, p := range leaders {
		p.signal(syscall.SIGINT, true)
	}
	// Without a leader its group cannot be told from another's that was given the
	// same number, so descendants are known by their mark only.
	strays := descendants(rec)
	if len(leaders) == 0 {
		for _, p := range strays {
			p.signal(syscall.SIGINT, false)
		}
	}
	if len(leaders)+len(strays) == 0 {
		return false, false, nil
	}
	waiting := leaders
	if len(leaders) == 0 {
		waiting = strays
	}
	patience, stop := context.WithTimeout(ctx, grace)
	gone := wait(patience, waiting)
	stop()
	if err := context.Cause(ctx); err != nil {
		return true, false, err
	}
	for _, p := range leaders {
		if p.alive() {
			p.signal(syscall.SIGKILL, true)
		}
	}
	// Providers ignore SIGINT and leave with tofu, if it came to that.
	strays = descendants(rec)
	for len(strays) > 0 || !gone {
		for _, p := range strays {
			p.signal(syscall.SIGKILL, false)
		}
		if !wait(ctx, append(strays, leaders...)) {
			return true, true, context.Cause(ctx)
		}
		killed, gone = true, true
		strays = descendants(rec)
	}
	return true, killed, nil
}

// descendants returns the living processes that carry the run's mark, without those
// that Started was told of.
func descendants(rec Record) []Process {
	all, _ := marked(MarkName, rec.Run)
	return slices.DeleteFunc(all, func(p Process) bool {
		return slices.ContainsFunc(rec.Processes, func(q Process) bool {
			return p.PID == q.PID && p.StartTime == q.StartTime
		})
	})
}

// signal sends s to p, or to the group that p leads, if p lives: a number alone is
// never signalled.
func (p Process) signal(s syscall.Signal, group bool) {
	if !p.alive() {
		return
	}
	if pgid, err := syscall.Getpgid(p.PID); group && err == nil && pgid == p.PID {
		_ = syscall.Kill(-p.PID, s)
		return
	}
	_ = syscall.Kill(p.PID, s)
}

// wait returns true when none of the processes lives, false when ctx ends.
func wait(ctx context.Context, ps []Process) bool {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		if !slices.ContainsFunc(ps, Process.alive) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}
