// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

const (
	lockName       = "_lock"
	checkpointName = "checkpoint.json"
)

var segmentPattern = regexp.MustCompile(`^audit-([0-9]{6,12})\.jsonl$`)

func segmentName(n uint64) string { return fmt.Sprintf("audit-%06d.jsonl", n) }

// segmentNumber is the number in a segment's name; false when it is no such name.
func segmentNumber(name string) (uint64, bool) {
	m := segmentPattern.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	// Two names of one number would be two files for one segment.
	return n, err == nil && n > 0 && segmentName(n) == name
}

// segments returns the numbers of the segments in a directory, ascending.
func segments(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, e := range entries {
		if n, ok := segmentNumber(e.Name()); ok {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// checkpoint says how far a ledger goes, signed. It is overwritten in place after
// each commit and not synced: it may be behind the ledger, never ahead of it.
type checkpoint struct {
	Ledger  string    `json:"ledger"`
	Segment uint64    `json:"segment"`
	Seq     uint64    `json:"seq"`
	Head    string    `json:"head"` // hash of the last line
	Time    time.Time `json:"time"`
}

// checkpointSize is the size of the file: one sector, which a disk writes whole or
// not at all.
const checkpointSize = 512

func (c checkpoint) encode(key ed25519.PrivateKey) ([]byte, error) {
	b, _, err := seal(c, checkpointDomain, key)
	if err != nil {
		return nil, err
	}
	if len(b) >= checkpointSize {
		return nil, fmt.Errorf("a checkpoint of %d bytes is too long", len(b))
	}
	return pad(b), nil
}

func pad(b []byte) []byte {
	return append(append(b, bytes.Repeat([]byte{' '}, checkpointSize-1-len(b))...), '\n')
}

// readCheckpoint returns the checkpoint of a directory; nil when there is none.
// One that is not what was signed is a *CorruptError.
func readCheckpoint(dir string, key ed25519.PublicKey) (*checkpoint, error) {
	// A reader may meet the writer half-way, so what cannot be read is read again.
	for try := 0; ; try++ {
		data, err := os.ReadFile(filepath.Join(dir, checkpointName))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		c, err := parseCheckpoint(data, key)
		if err == nil {
			return c, nil
		}
		if try == 3 {
			return nil, &CorruptError{File: checkpointName, What: err.Error()}
		}
	}
}

func parseCheckpoint(data []byte, key ed25519.PublicKey) (*checkpoint, error) {
	text := bytes.TrimRight(data, " \n")
	s, err := unseal(text)
	if err != nil || len(text) >= checkpointSize || !bytes.Equal(pad(bytes.Clone(text)), data) {
		return nil, errors.New("it is not a checkpoint")
	}
	if !s.whole() {
		return nil, errors.New("its hash is not that of its content")
	}
	if !s.signed(checkpointDomain, key) {
		return nil, errors.New("its signature is not by the ledger's key")
	}
	var c checkpoint
	if err := s.decode(&c); err != nil {
		return nil, errors.New("it is not a checkpoint")
	}
	return &c, nil
}

// lastLine reads the last line of a closed segment.
func lastLine(path string) (sealed, error) {
	f, err := os.Open(path)
	if err != nil {
		return sealed{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sealed{}, err
	}
	buf := make([]byte, min(info.Size(), maxLine))
	if _, err := f.ReadAt(buf, info.Size()-int64(len(buf))); err != nil && !errors.Is(err, io.EOF) {
		return sealed{}, err
	}
	text, ok := bytes.CutSuffix(buf, []byte{'\n'})
	if !ok {
		return sealed{}, errForm
	}
	return unseal(text[bytes.LastIndexByte(text, '\n')+1:])
}
