// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package demo is the story of the README as a program: a Git repository with a
// whole stack in it, from the network to the applications, from an empty directory
// to a change in production. It is a client and nothing more: it starts the terrace
// binary as a process, types the commands that a user would type, and watches the
// objects. What is promised and does not happen ends it with an error.
//
// Everything is in one directory, which is removed at the end unless it is to be
// kept.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Options say what the demonstration uses and where it tells about it.
type Options struct {
	// Terrace is the binary to demonstrate. Empty: the one that is running.
	Terrace string
	// Tofu is the tofu or terraform binary that the control plane runs. Empty: its
	// own choice.
	Tofu string
	// Mirror is a directory with providers, laid out as a filesystem mirror, from
	// which hashicorp/local is installed. Empty: from its registry, over the network.
	Mirror string
	// Dir is where everything is kept, made if it is not there; it must be empty.
	// Empty: a new temporary directory.
	Dir string
	// Keep leaves the directory, with its kubeconfig, logs and repository.
	Keep bool
	// Out receives the story.
	Out io.Writer
	// Color allows colours on Out.
	Color bool
}

// Run tells the story and returns nil when all of it was as promised. It has
// stopped all that it started when it returns. Cancelling ctx ends it early, in
// order.
func Run(ctx context.Context, o Options) (err error) {
	if o.Terrace == "" {
		if o.Terrace, err = os.Executable(); err != nil {
			return fmt.Errorf("demo: find the running binary: %w", err)
		}
	}
	for _, path := range []*string{&o.Terrace, &o.Tofu, &o.Mirror} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		if _, err := os.Stat(*path); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	dir, err := directory(o.Dir)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}

	t := &tale{
		options: o,
		dir:     dir,
		say:     newTeller(o.Out, o.Color),
		repo:    &repository{dir: filepath.Join(dir, "repository")},
	}
	defer func() {
		stopErr := t.end()
		if o.Keep {
			t.say.line("Kept: %s", dir)
		} else if rmErr := os.RemoveAll(dir); rmErr != nil {
			stopErr = errors.Join(stopErr, rmErr)
		}
		err = errors.Join(err, stopErr)
	}()

	if err := t.tell(ctx); err != nil {
		t.say.summary(t.rows, false)
		t.plane.tail(o.Out)
		return fmt.Errorf("demo: %w", err)
	}
	t.say.summary(t.rows, true)
	return nil
}

// directory makes the directory of the demonstration, or sees that it is empty.
func directory(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "terrace-demo-")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("use %s: it is not empty", dir)
	}
	return dir, nil
}

// tale is the demonstration under way.
type tale struct {
	options Options
	dir     string
	say     *teller
	repo    *repository
	plane   *plane // nil until it was started
	units   *units // nil until the API answers
	rows    []row
}

// row is a line of the summary.
type row struct {
	step string
	ran  string
	took time.Duration
	ok   bool
}

// step is one chapter. do returns what ran, for the summary.
type step struct {
	title string
	do    func(context.Context) (ran string, err error)
}

// tell goes through the chapters and stops at the first that fails.
func (t *tale) tell(ctx context.Context) error {
	for i, s := range t.story() {
		t.say.chapter(i+1, s.title)
		begun := time.Now()
		ran, err := s.do(ctx)
		t.rows = append(t.rows, row{step: s.title, ran: ran, took: time.Since(begun), ok: err == nil})
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	return nil
}

// end stops the watch and the control plane.
func (t *tale) end() error {
	if t.units != nil {
		t.units.stop()
	}
	return t.plane.stop()
}
