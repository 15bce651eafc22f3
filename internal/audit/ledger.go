// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// Options say where a ledger is and how it is cut into segments.
type Options struct {
	// Dir is the ledger's directory; made with mode 0700.
	Dir string
	// KeyFile is the private key, PEM, mode 0600, in a directory other than Dir.
	// It is made, and the public key beside it (PublicKeyFile), when neither it nor
	// the ledger is there.
	KeyFile string
	// Clock gives the times of entries; nil is the real one.
	Clock clock.PassiveClock
	// MaxSegment is the size in bytes from which a segment is closed; zero means
	// 16 MiB.
	MaxSegment int64
	// MaxAge is the age from which a segment is closed by the next entry; zero means
	// 24 hours. What is closed can be exported.
	MaxAge time.Duration
	// KeepLocal is how many of the closed segments stay here once they are exported;
	// zero means all.
	KeepLocal int

	// wrap lets tests stand between the ledger and its segment.
	wrap func(*os.File) file
}

// file is a segment that is written.
type file interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// Ledger is a ledger that is open for writing. Its methods may be called
// concurrently.
type Ledger struct {
	opts   Options
	key    ed25519.PrivateKey
	public ed25519.PublicKey
	lock   *os.File
	id     string

	// mu guards what follows. It is never held over a write.
	mu      sync.Mutex
	pending *batch
	closed  bool
	open    map[uint64]Entry // intents without outcome
	found   map[uint64]*Intent

	// commit serialises writers, and guards what follows.
	commit     sync.Mutex
	file       file // nil when the next segment is yet to be made
	info       os.FileInfo
	number     uint64
	size       int64  // of what is durable
	head       string // hash of the last line
	seq        uint64 // of the last entry
	first      uint64 // Seq of the first entry that the segment may have
	begun      time.Time
	torn       bool // something may be in the file behind size
	checkpoint *os.File
	behind     bool // the checkpoint could not be written

	exports sync.Mutex // two would remove the same segments
}

// batch are entries that become durable together.
type batch struct {
	entries []Entry
	err     error
	done    chan struct{}
}

// Open opens the ledger in o.Dir for the one process that writes it, or begins a
// new one there; the error is ErrInUse when another process has it.
//
// The last segment is read and checked, the others are only looked for: Verify
// checks them all. A last line that a crash left half-written is cut off, and an
// entry says so. Anything else that is not as it was written is a *CorruptError.
func Open(o Options) (*Ledger, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.MaxSegment == 0 {
		o.MaxSegment = 16 << 20
	}
	if o.MaxAge == 0 {
		o.MaxAge = 24 * time.Hour
	}
	if o.wrap == nil {
		o.wrap = func(f *os.File) file { return f }
	}
	l := &Ledger{opts: o, open: map[uint64]Entry{}, found: map[uint64]*Intent{}}
	if err := l.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("open ledger %s: %w", o.Dir, err), l.release())
	}
	return l, nil
}

func (l *Ledger) start() error {
	if l.opts.Dir == "" || l.opts.KeyFile == "" {
		return errors.New("the directory and the key file must be given")
	}
	if err := os.MkdirAll(l.opts.Dir, 0o700); err != nil {
		return err
	}
	if err := l.acquire(); err != nil {
		return err
	}
	numbers, err := segments(l.opts.Dir)
	if err != nil {
		return err
	}
	key, made, err := loadKey(l.opts.KeyFile, len(numbers) == 0)
	if err != nil {
		return fmt.Errorf("key %s: %w", l.opts.KeyFile, err)
	}
	l.key, l.public = key, key.Public().(ed25519.PublicKey)
	if len(numbers) == 0 {
		return l.begin(made)
	}
	return l.resume(numbers)
}

// acquire keeps a second process out: both would continue the same hash.
func (l *Ledger) acquire() error {
	f, err := os.OpenFile(filepath.Join(l.opts.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	l.lock = f
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrInUse
		}
		return fmt.Errorf("lock %s: %w", lockName, err)
	}
	return nil
}

// begin writes the first segment of a new ledger. The checkpoint comes first: were
// it the other way round, a ledger without a checkpoint could be one of which all
// but the beginning was taken away.
func (l *Ledger) begin(newKey bool) error {
	point, err := readCheckpoint(l.opts.Dir, l.public)
	if err != nil {
		return err
	}
	if point != nil && point.Seq > 1 {
		return &CorruptError{File: segmentName(point.Segment), What: fmt.Sprintf("it is missing, and the checkpoint says that the ledger has %d entries", point.Seq)}
	}
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return err
	}
	l.id = hex.EncodeToString(raw)
	detail := "a new ledger"
	if !newKey {
		detail = "a new ledger; its key was there before: if another ledger was here, it was taken away"
	}
	now := l.now()
	header, head, err := l.seal(line{Begin: &begin{Ledger: l.id, Segment: 1, Time: now, Key: fingerprint(l.public)}})
	if err != nil {
		return err
	}
	first := Entry{Seq: 1, Time: now, Actor: Actor{Kind: Terrace, Name: "ledger"}, Action: ledgerBegin, Detail: detail}
	entry, hash, err := l.seal(line{Entry: &first, Prev: head})
	if err != nil {
		return err
	}
	l.number, l.seq, l.head = 1, 1, hash
	if err := l.openCheckpoint(); err != nil {
		return err
	}
	return l.create(append(header, entry...), now, 0)
}

// resume goes on with a ledger that is there.
func (l *Ledger) resume(numbers []uint64) error {
	last := numbers[len(numbers)-1]
	for i, n := range numbers {
		if want := numbers[0] + uint64(i); n != want {
			return &CorruptError{File: segmentName(want), What: "it is missing"}
		}
	}
	// Before the checkpoint: the segment says which key is missing, if it is that.
	t, err := readTail(l.opts.Dir, last, l.public)
	if err != nil {
		return err
	}
	point, err := readCheckpoint(l.opts.Dir, l.public)
	if err != nil {
		return err
	}
	if point == nil {
		return &CorruptError{File: checkpointName, What: "it is missing: nothing says whether the end of the ledger is there"}
	}
	if err := t.reaches(point); err != nil {
		return err
	}
	if len(numbers) > 1 {
		if err := follows(l.opts.Dir, last, t.prev); err != nil {
			return err
		}
	}
	l.id, l.number, l.seq, l.head = t.begin.Ledger, last, t.seq, t.head
	if err := l.remember(t); err != nil {
		return err
	}
	if err := l.openCheckpoint(); err != nil {
		return err
	}
	if t.closed {
		return l.next()
	}
	if err := l.reopen(t.size, t.begin.Time, t.begin.After); err != nil {
		return err
	}
	if t.torn == 0 {
		return nil
	}
	l.torn = true
	if err := l.heal(); err != nil {
		return err
	}
	_, err = l.append(Entry{
		Actor: Actor{Kind: Terrace, Name: "ledger"}, Action: ledgerRecover,
		Detail: fmt.Sprintf("after entry %d, %d bytes of an entry that a crash left half-written were cut off", t.seq, t.torn),
	})
	return err
}

// remember finds the intents that have no outcome.
func (l *Ledger) remember(t tail) error {
	l.open = t.open
	missing := map[uint64]bool{}
	for _, seq := range t.begin.Unfinished {
		if !t.finished[seq] {
			missing[seq] = true
		}
	}
	for n := l.number; len(missing) > 0 && n > 1; n-- {
		err := readSegment(l.opts.Dir, n-1, func(e Entry) bool {
			if missing[e.Seq] {
				l.open[e.Seq] = e
				delete(missing, e.Seq)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	for seq := range missing {
		return &CorruptError{File: segmentName(l.number), Line: 1, What: fmt.Sprintf("it names entry %d as unfinished, which is in no segment", seq)}
	}
	for seq, e := range l.open {
		l.found[seq] = &Intent{ledger: l, entry: e}
	}
	return nil
}

// create makes the segment l.number of its first lines, and opens it. It is there
// whole or not at all.
func (l *Ledger) create(content []byte, begun time.Time, after uint64) error {
	if err := writeWhole(l.path(), content, 0o600); err != nil {
		return err
	}
	return l.reopen(int64(len(content)), begun, after)
}

// reopen opens the segment l.number, of which size bytes are whole lines.
func (l *Ledger) reopen(size int64, begun time.Time, after uint64) error {
	f, err := os.OpenFile(l.path(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if l.info, err = f.Stat(); err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size, l.begun, l.first = l.opts.wrap(f), size, begun, after+1
	return nil
}

func (l *Ledger) path() string { return filepath.Join(l.opts.Dir, segmentName(l.number)) }

func (l *Ledger) now() time.Time { return l.opts.Clock.Now().UTC().Truncate(time.Microsecond) }

// seal returns the line as it is written.
func (l *Ledger) seal(v line) ([]byte, string, error) {
	b, hash, err := seal(v, lineDomain, l.key)
	if err == nil && len(b) >= maxLine {
		err = fmt.Errorf("a line of %d bytes is too long", len(b))
	}
	return append(b, '\n'), hash, err
}

// openCheckpoint writes the checkpoint of l.head, durable: it must be there before
// the ledger goes on.
func (l *Ledger) openCheckpoint() error {
	path := filepath.Join(l.opts.Dir, checkpointName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		b, err := l.point()
		if err != nil {
			return err
		}
		if err := writeWhole(path, b, 0o600); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	l.checkpoint = f
	if err := l.mark(); err != nil {
		return err
	}
	return f.Sync()
}

func (l *Ledger) point() ([]byte, error) {
	return checkpoint{Ledger: l.id, Segment: l.number, Seq: l.seq, Head: l.head, Time: l.now()}.encode(l.key)
}

// mark writes the checkpoint over the one before. A reader sees one or the other,
// or reads again.
func (l *Ledger) mark() error {
	b, err := l.point()
	if err == nil {
		_, err = l.checkpoint.WriteAt(b, 0)
	}
	l.behind = err != nil
	return err
}

// Append records an entry, and returns its Seq once it is durable. Entries that
// are appended at the same time share one sync. After an error nothing was
// recorded, and what the entry was to say must not happen; a full disk is such an
// error, and appending works again once there is room.
//
// ctx is looked at before the entry is written only: it does not interrupt a write.
func (l *Ledger) Append(ctx context.Context, e Entry) (seq uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, failed(e, err)
	}
	if e, err = prepare(e); err != nil {
		return 0, failed(e, err)
	}
	e, err = l.append(e)
	return e.Seq, err
}

func failed(e Entry, err error) error {
	about := e.Unit
	if about == "" {
		about = "the control plane"
	}
	return fmt.Errorf("record %s of %s in the ledger: %w", e.Action, about, err)
}

// append records an entry whose every field but the ledger's own is set. Who finds
// no batch begins one and commits it; until that begins, others join it.
func (l *Ledger) append(e Entry) (Entry, error) {
	l.mu.Lock()
	b := l.pending
	leads := b == nil
	if leads {
		b = &batch{done: make(chan struct{})}
		l.pending = b
	}
	i := len(b.entries)
	b.entries = append(b.entries, e)
	l.mu.Unlock()

	if leads {
		l.commit.Lock()
		l.mu.Lock()
		l.pending = nil
		l.mu.Unlock()
		b.err = l.write(b.entries)
		l.commit.Unlock()
		close(b.done)
	} else {
		<-b.done
	}
	if b.err != nil {
		return Entry{}, failed(e, b.err)
	}
	return b.entries[i], nil
}

// write makes the entries durable and fills in what the ledger sets. The caller
// holds commit.
func (l *Ledger) write(entries []Entry) error {
	if err := l.ready(); err != nil {
		return err
	}
	var text []byte
	now, head, seq := l.now(), l.head, l.seq
	for i := range entries {
		e := &entries[i]
		seq++
		e.Seq, e.Time, e.Prev, e.Hash = seq, now, "", ""
		raw, hash, err := l.seal(line{Entry: e, Prev: head})
		if err != nil {
			return err
		}
		text = append(text, raw...)
		e.Prev, e.Hash = head, hash
		head = hash
	}
	if err := l.add(text); err != nil {
		return err
	}
	l.head, l.seq = head, seq
	l.settle(entries)
	// The entries are durable: that the checkpoint is behind is no reason to say
	// that they are not. The next write does not go on without it.
	_ = l.mark()
	return nil
}

// ready brings the ledger to where an entry can be written.
func (l *Ledger) ready() error {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if l.torn {
		if err := l.heal(); err != nil {
			return fmt.Errorf("cut off what an earlier write left: %w", err)
		}
	}
	if l.behind {
		if err := l.mark(); err != nil {
			return fmt.Errorf("write %s: %w", checkpointName, err)
		}
	}
	if l.file != nil {
		if err := l.unchanged(); err != nil {
			return err
		}
		hasEntries := l.seq >= l.first
		if hasEntries && (l.size >= l.opts.MaxSegment || l.now().Sub(l.begun) >= l.opts.MaxAge) {
			if err := l.finish(); err != nil {
				return fmt.Errorf("close segment: %w", err)
			}
		}
	}
	if l.file == nil {
		if err := l.next(); err != nil {
			return fmt.Errorf("begin segment: %w", err)
		}
	}
	return nil
}

// unchanged tells whether the segment is the one that was opened, as long as it was
// left: entries that go into a file which was removed or replaced are lost.
func (l *Ledger) unchanged() error {
	info, err := os.Stat(l.path())
	if err != nil {
		return err
	}
	if !os.SameFile(info, l.info) {
		return &CorruptError{File: segmentName(l.number), What: "it was replaced while the ledger was open"}
	}
	if info.Size() != l.size {
		return &CorruptError{File: segmentName(l.number), What: fmt.Sprintf("it has %d bytes, and %d were written", info.Size(), l.size)}
	}
	return nil
}

// add appends whole lines to the segment and syncs it. After an error the segment
// is as it was, or marked as torn.
func (l *Ledger) add(text []byte) error {
	_, err := l.file.Write(text)
	if err == nil {
		err = l.file.Sync()
	}
	if err == nil {
		l.size += int64(len(text))
		return nil
	}
	l.torn = true
	_ = l.heal() // else before the next write
	return err
}

// heal cuts off what a failed write or a crash left behind the last whole line.
// After a sync that failed this is sound too: what is kept was synced before.
func (l *Ledger) heal() error {
	if err := l.file.Truncate(l.size); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	l.torn = false
	return nil
}

// finish closes the segment.
func (l *Ledger) finish() error {
	raw, hash, err := l.seal(line{End: &end{Segment: l.number, Time: l.now(), Last: l.seq}, Prev: l.head})
	if err != nil {
		return err
	}
	if err := l.add(raw); err != nil {
		return err
	}
	l.head = hash
	err = l.file.Close()
	l.file = nil
	return err
}

// next begins the segment after one that is closed.
func (l *Ledger) next() error {
	l.mu.Lock()
	unfinished := slices.Sorted(maps.Keys(l.open))
	l.mu.Unlock()
	now := l.now()
	raw, hash, err := l.seal(line{Prev: l.head, Begin: &begin{
		Ledger: l.id, Segment: l.number + 1, Time: now, Key: fingerprint(l.public), After: l.seq, Unfinished: unfinished,
	}})
	if err != nil {
		return err
	}
	l.number++
	if err := l.create(raw, now, l.seq); err != nil {
		l.number--
		return err
	}
	l.head = hash
	return nil
}

// settle notes the intents that the entries begin and end.
func (l *Ledger) settle(entries []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		switch e.Phase {
		case PhaseIntent:
			l.open[e.Seq] = e
		case PhaseOutcome:
			delete(l.open, e.Intent)
			delete(l.found, e.Intent)
		}
	}
}

// Head returns how far the ledger goes: noted elsewhere, it lets Verify tell an
// older copy of the ledger from the ledger.
func (l *Ledger) Head() Head {
	l.commit.Lock()
	defer l.commit.Unlock()
	return Head{Seq: l.seq, Hash: l.head}
}

// PublicKey is the key that checks the ledger.
func (l *Ledger) PublicKey() ed25519.PublicKey { return l.public }

// Close ends writing; what is appended afterwards is ErrClosed.
func (l *Ledger) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	l.commit.Lock()
	defer l.commit.Unlock()
	var err error
	if l.torn {
		err = l.heal()
	}
	err = errors.Join(err, l.mark(), l.checkpoint.Sync())
	if err := errors.Join(err, l.release()); err != nil {
		return fmt.Errorf("close ledger %s: %w", l.opts.Dir, err)
	}
	return nil
}

// release closes what is open; the lock is let go last.
func (l *Ledger) release() error {
	var errs []error
	if l.file != nil {
		errs = append(errs, l.file.Close())
		l.file = nil
	}
	if l.checkpoint != nil {
		errs = append(errs, l.checkpoint.Close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}
