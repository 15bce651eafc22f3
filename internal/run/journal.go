// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/terrace-dev/terrace/internal/durable"
)

// Process is a process that a run started. PID, StartTime and Boot together name it
// for good: a PID alone is given to another process sooner or later.
type Process struct {
	PID        int       `json:"pid"`
	StartTime  uint64    `json:"startTime"` // as the kernel counts it
	Boot       string    `json:"boot"`      // of the machine, when it was started
	Subcommand string    `json:"subcommand"`
	At         time.Time `json:"at"`
}

// Record is what is kept of a run.
type Record struct {
	Run       string // as State.Run
	ID        string // of the job
	Unit      Unit
	Kind      Kind
	Begun     time.Time
	Ended     time.Time // zero while it runs
	Outcome   Outcome   // empty while it runs
	Message   string    // the error, masked and cut to 2 KiB
	Facts     map[string]string
	Processes []Process
	Steps     []StepRecord // known when it has ended
}

// line is an entry of a journal: a file of JSON lines that only grows, so that what
// was durable once cannot be lost by writing more. One of the members is set.
type line struct {
	Begun   *begunLine        `json:"begun,omitempty"`
	Process *Process          `json:"process,omitempty"`
	Facts   map[string]string `json:"facts,omitempty"`
	Ended   *endedLine        `json:"ended,omitempty"`
}

type begunLine struct {
	Run       string            `json:"run"`
	ID        string            `json:"id"`
	UnitKind  string            `json:"unitKind"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Kind      Kind              `json:"kind"`
	At        time.Time         `json:"at"`
	Facts     map[string]string `json:"facts,omitempty"`
}

type endedLine struct {
	At      time.Time    `json:"at"`
	Outcome Outcome      `json:"outcome"`
	Message string       `json:"message,omitempty"`
	Steps   []StepRecord `json:"steps,omitempty"`
}

// journal writes the entries of one run. The file comes with the first entry that has
// to survive a crash; a run without one has nothing to recover.
type journal struct {
	store *store

	mu     sync.Mutex
	record Record
	file   *os.File
	torn   bool // the last entry may have been written in part
	ended  bool
}

// add makes an entry durable: when it returns nil, no crash loses it.
func (j *journal) add(l line) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		return errors.New("the run has ended")
	}
	if j.file == nil {
		if err := j.create(); err != nil {
			return err
		}
	}
	if err := j.write(l); err != nil {
		return err
	}
	return j.file.Sync()
}

func (j *journal) create() error {
	path := j.store.activePath(j.record.Unit, j.record.Run)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	j.file = f
	if err := j.write(j.begun()); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

func (j *journal) begun() line {
	r := j.record
	return line{Begun: &begunLine{
		Run: r.Run, ID: r.ID, UnitKind: r.Unit.Kind, Namespace: r.Unit.Namespace, Name: r.Unit.Name,
		Kind: r.Kind, At: r.Begun, Facts: r.Facts,
	}}
}

func (j *journal) write(l line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if j.torn {
		b = append([]byte{'\n'}, b...)
	}
	_, err = j.file.Write(append(b, '\n'))
	j.torn = err != nil
	return err
}

// end closes the journal and makes it the run's record. Should that not be possible,
// the run is found as interrupted at the next start, which repeats nothing that
// the unit's status has as done.
func (j *journal) end(at time.Time, o Outcome, message string, steps []StepRecord) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	u := j.record.Unit
	last := line{Ended: &endedLine{At: at, Outcome: o, Message: message, Steps: steps}}
	defer func() { _ = j.store.prune(u, at) }()
	if j.file != nil {
		_ = j.write(last)
		_ = j.file.Sync()
		_ = j.file.Close()
		_ = j.store.archive(j.file.Name(), u, j.record.Run)
		return
	}
	f, err := os.OpenFile(j.store.recordPath(u, j.record.Run), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	j.file = f
	if j.write(j.begun()) == nil {
		_ = j.write(last)
	}
}

// settle ends the journal of a run that was interrupted.
func (s *store) settle(run string, u Unit, at time.Time) error {
	path := s.activePath(u, run)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// The crash may have torn the last entry: an empty line parts it from ours.
	j := journal{store: s, file: f, torn: true}
	err = errors.Join(j.write(line{Ended: &endedLine{At: at, Outcome: Interrupted}}), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return s.archive(path, u, run)
}

// readRecord reads a journal or record. Lines that are no entries are passed over: a
// crash tears the last one. The Record has no Run when not even the first is there.
func readRecord(path string) (Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	rec, err := parseRecord(f)
	if err != nil {
		return Record{}, fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return rec, nil
}

func parseRecord(r io.Reader) (Record, error) {
	var rec Record
	in := bufio.NewReader(r)
	for {
		text, err := in.ReadBytes('\n')
		var l line
		if json.Unmarshal(bytes.TrimSpace(text), &l) == nil {
			rec.take(l)
		}
		if err == io.EOF {
			return rec, nil
		}
		if err != nil {
			return Record{}, err
		}
	}
}

func (r *Record) take(l line) {
	switch {
	case l.Begun != nil:
		b := l.Begun
		r.Run, r.ID, r.Kind, r.Begun = b.Run, b.ID, b.Kind, b.At
		r.Unit = Unit{Kind: b.UnitKind, Namespace: b.Namespace, Name: b.Name}
		r.addFacts(b.Facts)
	case l.Process != nil:
		r.Processes = append(r.Processes, *l.Process)
	case l.Facts != nil:
		r.addFacts(l.Facts)
	case l.Ended != nil:
		r.Ended, r.Outcome, r.Message, r.Steps = l.Ended.At, l.Ended.Outcome, l.Ended.Message, l.Ended.Steps
	}
}

func (r *Record) addFacts(facts map[string]string) {
	if r.Facts == nil && len(facts) > 0 {
		r.Facts = map[string]string{}
	}
	maps.Copy(r.Facts, facts)
}

// Records returns what is kept of the unit's last runs, oldest first; also of one
// that runs, once it has journalled something.
func (e *Executor) Records(u Unit) ([]Record, error) {
	recs, err := e.store.records(u)
	if err != nil {
		return nil, fmt.Errorf("read the records of %s: %w", u, err)
	}
	return recs, nil
}
