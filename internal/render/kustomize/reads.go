// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"slices"
)

// question is something that a build asked of a tree.
type question struct {
	ask  ask
	name string
}

type ask byte

const (
	askContent   ask = 'c' // of a file
	askKind      ask = 'k' // absent, a file or a directory, and where links lead
	askMembers   ask = 'm' // of a directory
	askManifests ask = 's' // members of a directory that a scan considers
)

// Reads is what a build asked of a tree: the content of files, the existence of
// names, the members of directories. It is immutable and safe for concurrent
// use. The zero value asked nothing.
type Reads struct {
	questions []question // sorted
	files     []string
	remote    []string
}

// Digest asks the same of the tree at dir and returns "sha256:<hex>" of the
// answers. Trees with the same digest build the same objects from the same
// Input; a tree with another digest differs in something that the build read.
// Only the named files are read. A name that is absent is an answer; an error
// means that dir itself cannot be read, or that a file cannot for a reason that
// lies outside of the tree.
//
// What comes from remote bases is not covered, see Remote.
func (r *Reads) Digest(dir string) (string, error) {
	d, err := openDisk(dir)
	if err != nil {
		return "", err
	}
	defer d.close()
	sum := sha256.New()
	for _, q := range r.questions {
		if err := d.answer(q, sum); err != nil {
			return "", fmt.Errorf("digest what a build reads: %w", err)
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// Files returns the names of the files whose content was read, relative to the
// artifact, sorted.
func (r *Reads) Files() []string { return slices.Clone(r.files) }

// Remote returns the bases and files outside of the artifact that the build
// referred to, sorted; none unless Input.RemoteBases is set. What they contain
// is not part of the digest.
func (r *Reads) Remote() []string { return slices.Clone(r.remote) }

// answer writes the question and its answer, each with its length, so that no
// two lists of answers are written alike.
func (d *disk) answer(q question, sum hash.Hash) error {
	put := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(sum, "%d:", len(p))
			sum.Write([]byte(p))
		}
	}
	put(string(q.ask), q.name)
	switch q.ask {
	case askContent:
		content, err := d.read(q.name)
		if err != nil {
			return foul(err, put)
		}
		put("content", string(content))
	case askKind:
		e, err := d.resolve(q.name)
		if err != nil {
			return foul(err, put)
		}
		put("kind", e.name, e.mode.Type().String())
	case askMembers, askManifests:
		list := d.list
		if q.ask == askManifests {
			list = d.manifests
		}
		members, err := list(q.name)
		if err != nil {
			return foul(err, put)
		}
		put("members", fmt.Sprint(len(members)))
		for _, m := range members {
			put(m.name, fmt.Sprint(m.dir))
		}
	}
	return nil
}

// foul records an error that the tree itself gives as an answer. Other errors,
// such as one of the device, must not become part of a digest.
func foul(err error, put func(...string)) error {
	var p *fs.PathError
	if !errors.As(err, &p) || errors.Is(err, fs.ErrPermission) || isFault(err) {
		return err
	}
	put("error", p.Err.Error())
	return nil
}

// recorder collects the questions of one build.
type recorder struct {
	asked  map[question]bool
	files  map[string]bool
	remote map[string]bool
}

func newRecorder() *recorder {
	return &recorder{asked: map[question]bool{}, files: map[string]bool{}, remote: map[string]bool{}}
}

func (r *recorder) reads() *Reads {
	out := &Reads{files: keys(r.files), remote: keys(r.remote)}
	for q := range r.asked {
		out.questions = append(out.questions, q)
	}
	slices.SortFunc(out.questions, func(a, b question) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.ask, b.ask))
	})
	return out
}

func keys(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
