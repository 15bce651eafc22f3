// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const lockedText = `
Error: Error acquiring the state lock

Error message: the state is already locked by another terraform client
Lock Info:
  ID:        4f2d6f46-ad5f-4a12-8a2c-6f5f6a3d9f00
  Path:      
  Operation: OperationTypeApply
  Who:       ci@host
  Version:   1.12.6
  Created:   2026-11-30 12:04:05.123 +0000 UTC
  Info:      


OpenTofu acquires a state lock to protect the state from being written
by multiple users at the same time.
`

func TestFailure(t *testing.T) {
	cancelled := errors.New("cancelled by alice")
	tests := map[string]struct {
		reason string
		stderr string
		code   int
		cause  error
		text   string
	}{
		"one error": {
			reason: "Source lines and values of variables are left out: they may hold secrets.",
			stderr: "\nError: Unsupported argument\n\n  on main.tf line 3, in resource \"terraform_data\" \"x\":\n   3:   foo = var.secret\n    ├────────────────\n    │ var.secret is \"hunter2\"\n\nAn argument named \"foo\" is not expected here.\n",
			code:   1,
			text:   "tofu plan: exit code 1: Error: Unsupported argument\n  on main.tf line 3, in resource \"terraform_data\" \"x\"\n  An argument named \"foo\" is not expected here.",
		},
		"frames": {
			reason: "Terraform draws them where it thinks of a terminal.",
			stderr: "╷\n│ \x1b[31mError: \x1b[0mNo value for required variable\n│ \n│   on main.tf line 1:\n│    1: variable \"v\" {}\n│ \n│ The root module input variable \"v\" is not set.\n╵\n",
			code:   1,
			text:   "tofu plan: exit code 1: Error: No value for required variable\n  on main.tf line 1\n  The root module input variable \"v\" is not set.",
		},
		"several": {
			reason: "The first and how many more; warnings are no errors.",
			stderr: "\nWarning: old\n\nold thing\n\nError: first\n\nwhy\n\nWarning: other\n\nx\n\nError: second\n\nError: third\n",
			code:   1,
			text:   "tofu plan: exit code 1: Error: first\n  why\n(and 2 more)",
		},
		"no diagnostics": {
			reason: "A crash or a wrong flag prints something else.",
			stderr: "panic: runtime error\n",
			code:   2,
			text:   "tofu plan: exit code 2: panic: runtime error",
		},
		"interrupted": {
			stderr: "\nError: execution halted\n",
			code:   1,
			cause:  cancelled,
			text:   "tofu plan: interrupted: cancelled by alice: Error: execution halted",
		},
		"killed": {
			code:  -1,
			cause: cancelled,
			text:  "tofu plan: killed: cancelled by alice",
		},
		"by a signal": {
			reason: "The kernel may kill it for its memory.",
			code:   -1,
			text:   "tofu plan: ended by a signal",
		},
		"masked": {
			stderr: "\nError: wrong password s3cr3t\n",
			code:   1,
			text:   "tofu plan: exit code 1: Error: wrong password ***",
		},
		"locked": {
			stderr: lockedText,
			code:   1,
			text:   "tofu plan: state lock 4f2d6f46-ad5f-4a12-8a2c-6f5f6a3d9f00: held by ci@host (OperationTypeApply) since 2026-11-30 12:04:05.123 +0000 UTC",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &Session{
				Tool: &Tool{Product: OpenTofu},
				Mask: func(s string) string { return strings.ReplaceAll(s, "s3cr3t", "***") },
			}
			err := s.failure("plan", tc.code, tc.stderr, tc.cause)
			if diff := cmp.Diff(tc.text, err.Error()); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
			if tc.cause != nil && !errors.Is(err, tc.cause) {
				t.Errorf("the cause %v is not found in %v", tc.cause, err)
			}
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != tc.code || strings.Contains(exit.Stderr, "s3cr3t") {
				t.Errorf("exit error: %+v", exit)
			}
		})
	}
}

func TestParseLock(t *testing.T) {
	want := &LockError{
		ID: "4f2d6f46-ad5f-4a12-8a2c-6f5f6a3d9f00", Operation: "OperationTypeApply", Who: "ci@host",
		Version: "1.12.6", Created: "2026-11-30 12:04:05.123 +0000 UTC",
	}
	if diff := cmp.Diff(want, parseLock(lockedText), cmpopts.IgnoreUnexported(LockError{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, text := range []string{"", "Lock Info:", "Lock Info:\n  ID:   \n", "Error acquiring the state lock\n403"} {
		if got := parseLock(text); got != nil {
			t.Errorf("parseLock(%q) = %+v, want none: it names no lock", text, got)
		}
	}
}

func TestNeedsInit(t *testing.T) {
	tests := map[string]bool{
		"Error: Backend initialization required, please run \"tofu init\"": true,
		"Error: Inconsistent dependency lock file":                         true,
		"Error: Required plugins are not installed":                        true,
		"Error: Module not installed":                                      true,
		"Error: Unsupported argument":                                      false,
	}
	for text, want := range tests {
		var exit *ExitError
		err := (&Session{Tool: &Tool{Product: OpenTofu}}).failure("plan", 1, "\n"+text+"\n", nil)
		if !errors.As(err, &exit) || exit.NeedsInit != want {
			t.Errorf("NeedsInit of %q is not %t", text, want)
		}
	}
}

func TestCollector(t *testing.T) {
	c := &collector{}
	for _, piece := range []string{
		"2026-11-30T12:00:00.000Z [INFO]  secret log\nErr", "or: x\n",
		"2026-11-30T12:00:00.000+0100 [TRACE] y\nend",
	} {
		if _, err := c.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.String(), "Error: x\nend"; got != want {
		t.Errorf("got %q, want %q: log lines are no errors", got, want)
	}
	long := &collector{}
	for range 10 {
		_, _ = long.Write([]byte(strings.Repeat("x", maxCollected/4) + "\n"))
	}
	if n := len(long.String()); n > maxCollected {
		t.Errorf("%d bytes are kept, at most %d may be", n, maxCollected)
	}
}

func TestFindNothing(t *testing.T) {
	_, err := Find(context.Background(), t.TempDir()+"/tofu")
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func FuzzSummary(f *testing.F) {
	f.Add(lockedText)
	f.Add("╷\n│ Error: x\n")
	f.Fuzz(func(t *testing.T, text string) {
		if n := len(summary(stripFrames(text))); n > maxSummary {
			t.Errorf("a summary of %d bytes", n)
		}
		parseLock(text)
	})
}
