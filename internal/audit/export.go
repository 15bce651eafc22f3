// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	internalblob "github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/durable"
)

// ExportReport says what an export did. Both lists are names of segments,
// ascending.
type ExportReport struct {
	// Copied were written; Present were there already.
	Copied  []string `json:"copied"`
	Present []string `json:"present"`
	// Removed were removed from the ledger's directory.
	Removed []string `json:"removed,omitempty"`
}

// Export copies the closed segments of the ledger in dir, which another process may
// be writing, to a bucket: a directory, or a URL that gocloud.dev/blob has a driver
// for in this binary. Each segment is checked first, and one that does not hold is
// an error. What is there already is left as it is; if it is something else,
// that is an error too: an export never overwrites.
func Export(ctx context.Context, dir string, key ed25519.PublicKey, bucket string) (ExportReport, error) {
	var r ExportReport
	numbers, err := closedSegments(dir)
	if err == nil {
		err = exportTo(ctx, dir, key, bucket, numbers, &r)
	}
	if err != nil {
		return r, fmt.Errorf("export ledger %s to %s: %w", dir, internalblob.Redacted(bucket), err)
	}
	return r, nil
}

// closedSegments returns the numbers of the segments that have their end.
func closedSegments(dir string) ([]uint64, error) {
	numbers, err := segments(dir)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		return nil, ErrNoLedger
	}
	last := len(numbers) - 1
	_, err = endOf(dir, numbers[last])
	if err == nil {
		return numbers, nil
	}
	return numbers[:last], nil
}

// endOf reads the end of a closed segment.
func endOf(dir string, number uint64) (end, error) {
	name := segmentName(number)
	s, err := lastLine(filepath.Join(dir, name))
	if err != nil {
		return end{}, fmt.Errorf("read %s: %w", name, err)
	}
	l, err := s.line()
	if err == nil && l.End == nil {
		err = errors.New("it has no end")
	}
	if err != nil {
		return end{}, fmt.Errorf("read %s: %w", name, err)
	}
	return *l.End, nil
}

func exportTo(ctx context.Context, dir string, key ed25519.PublicKey, location string, numbers []uint64, r *ExportReport) error {
	bucket, local, err := internalblob.OpenBucket(ctx, location)
	if err != nil {
		return err
	}
	t := &target{bucket: bucket, dir: local}
	for _, n := range numbers {
		if err = t.export(ctx, dir, key, n, r); err != nil {
			break
		}
	}
	return errors.Join(err, t.bucket.Close())
}

// target is where segments are exported to.
type target struct {
	bucket *blob.Bucket
	dir    string // of a local one; empty for object storage
}

func (t *target) export(ctx context.Context, dir string, key ed25519.PublicKey, number uint64, r *ExportReport) error {
	name := segmentName(number)
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	same, err := t.has(ctx, name, content)
	if err != nil {
		return err
	}
	if same {
		r.Present = append(r.Present, name)
		return nil
	}
	if err := holds(ctx, dir, key, number); err != nil {
		return err
	}
	err = t.bucket.WriteAll(ctx, name, content, &blob.WriterOptions{ContentType: "application/jsonl", IfNotExist: true})
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if t.dir != "" {
		// The driver does not sync, and the local copy may be removed after this.
		f, err := os.Open(filepath.Join(t.dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close(), durable.SyncDir(t.dir)); err != nil {
			return err
		}
	}
	r.Copied = append(r.Copied, name)
	return nil
}

// has tells whether the bucket has the segment; one that differs is an error.
func (t *target) has(ctx context.Context, name string, content []byte) (bool, error) {
	a, err := t.bucket.Attributes(ctx, name)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", name, err)
	}
	same := a.Size == int64(len(content))
	if same && len(a.MD5) > 0 {
		sum := md5.Sum(content) // what object storage keeps; it is no proof, only a reason not to read
		same = bytes.Equal(sum[:], a.MD5)
	} else if same {
		in, err := t.bucket.NewReader(ctx, name, nil)
		if err != nil {
			return false, fmt.Errorf("read %s: %w", name, err)
		}
		there, err := io.ReadAll(io.LimitReader(in, a.Size+1))
		if err := errors.Join(err, in.Close()); err != nil {
			return false, fmt.Errorf("read %s: %w", name, err)
		}
		same = bytes.Equal(there, content)
	}
	if !same {
		return false, fmt.Errorf("the bucket has another %s, of another ledger or changed: it is not overwritten; export to an empty place", name)
	}
	return true, nil
}

// holds verifies one closed segment by itself.
func holds(ctx context.Context, dir string, key ed25519.PublicKey, number uint64) error {
	v := &verifier{ctx: ctx, dir: dir, key: key, open: map[uint64]bool{}, lost: true}
	if err := v.segment(number, true); err != nil {
		return err
	}
	v.conclude(nil, true)
	if len(v.all) > 0 {
		return &CorruptError{File: v.all[0].File, Line: v.all[0].Line, What: v.all[0].Kind + ": " + v.all[0].Text}
	}
	return nil
}

// Export is the function Export for a ledger that is open. It records what it
// copied, and then removes the oldest segments that are beyond Options.KeepLocal;
// one with an intent that has no outcome stays.
func (l *Ledger) Export(ctx context.Context, bucket string) (ExportReport, error) {
	l.exports.Lock()
	defer l.exports.Unlock()
	r, err := Export(ctx, l.opts.Dir, l.public, bucket)
	if err != nil {
		return r, err
	}
	remove, err := l.removable(len(r.Copied) + len(r.Present))
	if err != nil {
		return r, fmt.Errorf("export ledger: %w", err)
	}
	if len(r.Copied) == 0 && len(remove) == 0 {
		return r, nil
	}
	e := Entry{
		Actor: Actor{Kind: Terrace, Name: "ledger"}, Action: ledgerExport,
		Detail: fmt.Sprintf("%d segments were copied to %s, and %d removed here", len(r.Copied), internalblob.Redacted(bucket), len(remove)),
	}
	if len(remove) > 0 {
		e.Pruned = remove[len(remove)-1]
	}
	if _, err := l.append(bound(e)); err != nil {
		return r, err
	}
	// Oldest first: a crash leaves no hole.
	for _, n := range remove {
		if err := os.Remove(filepath.Join(l.opts.Dir, segmentName(n))); err != nil {
			return r, fmt.Errorf("remove exported segment: %w", err)
		}
		r.Removed = append(r.Removed, segmentName(n))
	}
	if err := durable.SyncDir(l.opts.Dir); err != nil {
		return r, fmt.Errorf("remove exported segments: %w", err)
	}
	return r, nil
}

// removable returns the segments that may go, when the first n closed ones are
// exported.
func (l *Ledger) removable(n int) ([]uint64, error) {
	numbers, err := segments(l.opts.Dir)
	if err != nil || l.opts.KeepLocal <= 0 || n <= l.opts.KeepLocal {
		return nil, err
	}
	l.mu.Lock()
	oldest := ^uint64(0)
	for seq := range l.open {
		oldest = min(oldest, seq)
	}
	l.mu.Unlock()
	var out []uint64
	for _, number := range numbers[:n-l.opts.KeepLocal] {
		e, err := endOf(l.opts.Dir, number)
		if err != nil {
			return nil, err
		}
		if e.Last >= oldest {
			break
		}
		out = append(out, number)
	}
	return out, nil
}
