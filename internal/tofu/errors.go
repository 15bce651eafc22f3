// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrUnsupported says that the tool has no such option.
var ErrUnsupported = errors.New("the tool does not support it")

// maxSummary bounds ExitError.Summary, in bytes.
const maxSummary = 2 << 10

// ExitError is a process that ended with a failure, also one that was cancelled.
type ExitError struct {
	// Name is "tofu plan": what ran.
	Name string
	// Subcommand is "plan".
	Subcommand string
	// Code is the exit code, -1 when a signal ended the process.
	Code int
	// Stderr is standard error without log lines: masked, at most 64 KiB, its
	// beginning when there was more.
	Stderr string
	// Summary is the first error that the tool told of: its title, where it
	// is, and why; without frames and source lines. Masked, at most 2 KiB.
	Summary string
	// NeedsInit says that the tool asked for init: what it made before is
	// missing or does not fit any more.
	NeedsInit bool
	// Cause is why ctx ended, nil when the process failed by itself.
	Cause error
}

// Error is "tofu plan: exit code 1: Error: …".
func (e *ExitError) Error() string {
	var b strings.Builder
	b.WriteString(e.Name)
	switch {
	case e.Cause != nil && e.Code < 0:
		fmt.Fprintf(&b, ": killed: %v", e.Cause)
	case e.Cause != nil:
		fmt.Fprintf(&b, ": interrupted: %v", e.Cause)
	case e.Code < 0:
		b.WriteString(": ended by a signal")
	default:
		fmt.Fprintf(&b, ": exit code %d", e.Code)
	}
	if e.Summary != "" {
		b.WriteString(": ")
		b.WriteString(e.Summary)
	}
	return b.String()
}

// Unwrap is Cause.
func (e *ExitError) Unwrap() error { return e.Cause }

// LockError is a state that is locked by someone else: the lock as the backend
// describes it. Unwrap leads to the *ExitError.
type LockError struct {
	ID, Path, Operation, Who, Version, Created, Info string

	exit *ExitError
}

// Error names the holder and the time: `tofu plan: state lock 4f2…: held by
// ci@host (OperationTypeApply) since 2026-11-30 12:04:05 UTC`.
func (e *LockError) Error() string {
	s := fmt.Sprintf("%s: state lock %s", e.exit.Name, e.ID)
	if e.Who != "" {
		s += ": held by " + e.Who
	}
	if e.Operation != "" {
		s += " (" + e.Operation + ")"
	}
	if e.Created != "" {
		s += " since " + e.Created
	}
	return s
}

// Unwrap is the *ExitError of the process that met the lock.
func (e *LockError) Unwrap() error { return e.exit }

// failure makes the error of a process from how it ended.
func (s *Session) failure(sub string, code int, stderr string, cause error) error {
	mask := s.Mask
	if mask == nil {
		mask = func(s string) string { return s }
	}
	text := stripFrames(stderr)
	exit := &ExitError{
		Name:       s.name(sub),
		Subcommand: sub,
		Code:       code,
		Stderr:     mask(text),
		Summary:    bounded(mask(summary(text)), maxSummary),
		NeedsInit:  needsInit.MatchString(text),
		Cause:      cause,
	}
	if s.Isolation.Confine && cause == nil && denied.MatchString(text) {
		exit.Summary += "\n" + denialHint
	}
	if lock := parseLock(text); lock != nil && cause == nil {
		lock.exit = exit
		return lock
	}
	return exit
}

// denied is how programs say that a file may not be read or written.
var denied = regexp.MustCompile(`(?i)permission\s+denied|operation\s+not\s+permitted`)

// denialHint goes with an error that the confinement of runs may be the reason of.
const denialHint = "A run sees only its own directory, providers and the system's programs; what else it may read or write is named by --run-allow-read and --run-allow-write."

// needsInit is how the tools say that init has to run (again): a backend, a
// module or a provider that is not there or is not the recorded one. Line
// breaks may be anywhere in a sentence.
var needsInit = regexp.MustCompile(`(?i)initialization\s+required` +
	`|Inconsistent\s+dependency\s+lock\s+file` +
	`|Required\s+plugins\s+are\s+not\s+installed` +
	`|Module\s+not\s+installed` +
	`|Module\s+(source|version\s+requirements)\s+ha(s|ve)\s+changed` +
	`|missing\s+or\s+corrupted\s+provider\s+plugins`)

// ansi is a colour or cursor sequence.
var ansi = regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]")

// frame is what surrounds a diagnostic when the tool thinks of a terminal.
var frame = regexp.MustCompile(`(?m)^[│╷╵][ \t]?`)

func stripFrames(s string) string {
	return frame.ReplaceAllString(ansi.ReplaceAllString(s, ""), "")
}

// location is `  on main.tf line 3, in resource "x" "y":` and its kin.
var location = regexp.MustCompile(`^  (on|with) \S.*`)

// snippet is a source line or the value of a variable below it: they may hold
// what was not marked as sensitive.
var snippet = regexp.MustCompile(`^(  +\d+: |    +[├│])`)

// preamble is an error of init that only says that another one follows.
var preamble = regexp.MustCompile(`^Error: \S+ encountered problems during initiali[sz]ation`)

// summary boils the errors that the tool printed down to the first, and says
// how many more there are. Text without any (a crash, a wrong flag) gives its
// first lines.
func summary(text string) string {
	var errs [][]string
	inError := false
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "Error: "):
			inError = true
			errs = append(errs, []string{strings.TrimSpace(line)})
		case strings.HasPrefix(line, "Warning: "):
			inError = false
		case !inError, strings.TrimSpace(line) == "", snippet.MatchString(line):
		case location.MatchString(line):
			errs[len(errs)-1] = append(errs[len(errs)-1], strings.TrimRight(line, " :,"))
		default:
			errs[len(errs)-1] = append(errs[len(errs)-1], "  "+strings.TrimSpace(line))
		}
	}
	if len(errs) > 1 && preamble.MatchString(errs[0][0]) {
		errs = errs[1:]
	}
	if len(errs) == 0 {
		return bounded(strings.TrimSpace(text), maxSummary/4)
	}
	s := bounded(strings.Join(errs[0], "\n"), maxSummary-64)
	if more := len(errs) - 1; more > 0 {
		s += fmt.Sprintf("\n(and %d more)", more)
	}
	return s
}

// bounded cuts s to at most n bytes, between characters.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const dots = "…"
	return strings.ToValidUTF8(s[:n-len(dots)], "") + dots
}

// lockField is a line of the block that follows "Lock Info:".
var lockField = regexp.MustCompile(`^\s+(ID|Path|Operation|Who|Version|Created|Info):\s*(.*)$`)

// parseLock finds the description of the lock that is in the way; nil when
// there is none or it has no id.
func parseLock(text string) *LockError {
	_, block, ok := strings.Cut(text, "Lock Info:")
	if !ok {
		return nil
	}
	var l LockError
	for line := range strings.SplitSeq(strings.TrimPrefix(block, "\n"), "\n") {
		m := lockField.FindStringSubmatch(line)
		if m == nil {
			break
		}
		value := strings.TrimSpace(m[2])
		switch m[1] {
		case "ID":
			l.ID = value
		case "Path":
			l.Path = value
		case "Operation":
			l.Operation = value
		case "Who":
			l.Who = value
		case "Version":
			l.Version = value
		case "Created":
			l.Created = value
		case "Info":
			l.Info = value
		}
	}
	if l.ID == "" {
		return nil
	}
	return &l
}
