// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit is the ledger: who let what happen, to which unit, and how it
// ended, in a form that shows tampering.
//
// A ledger is a directory of segments, files of JSON lines that only grow. Each
// line carries the hash of the line before it, its own hash, and a signature of
// that by the control plane's key; a signed checkpoint beside the segments says
// how far the ledger goes. So an entry that was edited, left out, moved, repeated
// or cut off is found by Verify, which needs the public key and nothing else.
//
// What has an effect outside is recorded twice: the intent, which is on disk
// before the effect begins, and the outcome. An intent whose outcome is missing
// after a crash is found when the ledger is opened.
//
// The package decides nothing, and hides nothing: who appends has taken secrets
// out of what it says. Whoever has the private key can write another history;
// what was exported to a place that the key's holder cannot change is the guard
// against that (docs/adr/0019).
package audit

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Kinds of an Actor.
const (
	// Kubernetes is a user or service account, as the API server knew it.
	Kubernetes = "kubernetes"
	// Git is the author of a commit.
	Git = "git"
	// Forge is a user of a forge, who acted on a pull request.
	Forge = "forge"
	// Terrace is the control plane acting by itself.
	Terrace = "terrace"
)

// Actor is who did something, or let it happen.
type Actor struct {
	// Kind is one of Kubernetes, Git, Forge, Terrace: who vouches for the name.
	Kind string `json:"kind"`
	// Name is the user's name; for Git the author's.
	Name string `json:"name"`
	// Email is the author's; Git only.
	Email string `json:"email,omitempty"`
	// Committer and CommitterEmail are set when the committer is not the author.
	Committer      string `json:"committer,omitempty"`
	CommitterEmail string `json:"committerEmail,omitempty"`
}

// String is "KIND:NAME".
func (a Actor) String() string { return a.Kind + ":" + a.Name }

// Action is what was done: lower-case words joined by "-".
type Action string

// The actions that Terrace records.
const (
	Plan           Action = "plan"
	Approve        Action = "approve"
	Apply          Action = "apply"
	Destroy        Action = "destroy"
	Drift          Action = "drift"  // drift was found
	Repair         Action = "repair" // drift was undone
	Import         Action = "import" // an object was taken into a state
	Rollback       Action = "rollback"
	Unlock         Action = "unlock"
	Suspend        Action = "suspend"
	Resume         Action = "resume"
	Prune          Action = "prune"
	PolicyOverride Action = "policy-override"
	Token          Action = "token" // a token was minted
	StateWrite     Action = "state-write"
	KeyRotation    Action = "key-rotation"
	BreakGlass     Action = "break-the-glass"

	// The ledger writes these about itself.
	ledgerBegin   Action = "ledger-begin"
	ledgerRecover Action = "ledger-recover"
	ledgerExport  Action = "ledger-export"
)

// Phases of an Entry.
const (
	// PhaseIntent is of an entry that was on disk before its effect began.
	PhaseIntent = "intent"
	// PhaseOutcome is of an entry that says how an intent ended.
	PhaseOutcome = "outcome"
)

// Results of an Outcome: the words of runs.
const (
	Succeeded   = "succeeded"
	Failed      = "failed"
	Cancelled   = "cancelled"
	TimedOut    = "timed-out"
	Interrupted = "interrupted"
)

// Counts are the resources or objects of a plan; one that is replaced counts as
// added and as destroyed.
type Counts struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Destroy int `json:"destroy"`
}

// Entry is one record. Who appends sets Actor, Action and what is known of the
// rest; the ledger sets Seq, Time, Phase, Intent, Pruned, Prev and Hash.
//
// Texts are cut: Detail to 4 KiB, the others to 1 KiB. They must hold no secret.
type Entry struct {
	// Seq counts the entries of a ledger, from 1, without a gap.
	Seq uint64 `json:"seq"`
	// Time is the control plane's, in UTC.
	Time   time.Time `json:"time"`
	Actor  Actor     `json:"actor"`
	Action Action    `json:"action"`
	// Unit is "KIND/NAMESPACE/NAME", such as "Terraform/infra/network"; empty for
	// what concerns none.
	Unit     string `json:"unit,omitempty"`
	Revision string `json:"revision,omitempty"`
	// PlanID and PlanDigest name the plan that was made, approved or applied.
	PlanID     string  `json:"planID,omitempty"`
	PlanDigest string  `json:"planDigest,omitempty"`
	Counts     *Counts `json:"counts,omitempty"`
	// Phase is empty for what is over when it is recorded.
	Phase string `json:"phase,omitempty"`
	// Intent is, of an outcome, the Seq of its intent.
	Intent uint64 `json:"intent,omitempty"`
	// Outcome is how it ended: Succeeded, Failed and so on. Empty for an intent.
	Outcome string `json:"outcome,omitempty"`
	// Run is the id of the run that did it.
	Run    string `json:"run,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Pruned is, of the ledger's own entry about it, the number of the last segment
	// that was removed here after it had been exported.
	Pruned uint64 `json:"pruned,omitempty"`
	// Prev is the hash of the line before this one, and Hash is this line's.
	Prev string `json:"prev,omitempty"`
	Hash string `json:"hash,omitempty"`
}

const (
	detailLimit = 4 << 10
	textLimit   = 1 << 10
)

var (
	// ErrInUse says that another process has the ledger open.
	ErrInUse = errors.New("in use by another process")
	// ErrClosed is returned by a ledger that was closed.
	ErrClosed = errors.New("the ledger is closed")
	// ErrEnded says that an intent has its outcome already.
	ErrEnded = errors.New("the intent has its outcome already")
	// ErrNoLedger says that a directory holds no ledger.
	ErrNoLedger = errors.New("there is no ledger")
)

// CorruptError says where a ledger is not what was written.
type CorruptError struct {
	File string // in the ledger's directory
	Line int    // from 1; 0 when the whole file is meant
	What string
}

func (e *CorruptError) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.What
	}
	return fmt.Sprintf("%s line %d: %s", e.File, e.Line, e.What)
}

// Hint is the next step.
func (e *CorruptError) Hint() string {
	return "\"terrace audit verify\" says all that is wrong; keep the directory as evidence: moved away, it lets a new ledger begin"
}

// prepare checks what a caller wants to append, and bounds its texts.
func prepare(e Entry) (Entry, error) {
	switch e.Actor.Kind {
	case Kubernetes, Git, Forge, Terrace:
	default:
		return e, fmt.Errorf("actor kind %q: use kubernetes, git, forge or terrace", e.Actor.Kind)
	}
	if !validAction(e.Action) {
		return e, fmt.Errorf("action %q: use lower-case words joined by \"-\"", e.Action)
	}
	if e.Phase != "" || e.Intent != 0 || e.Pruned != 0 {
		return e, errors.New("phase, intent and pruned are the ledger's to set")
	}
	return bound(e), nil
}

func bound(e Entry) Entry {
	for _, s := range []*string{
		&e.Actor.Name, &e.Actor.Email, &e.Actor.Committer, &e.Actor.CommitterEmail,
		&e.Unit, &e.Revision, &e.PlanID, &e.PlanDigest, &e.Outcome, &e.Run,
	} {
		*s = cut(*s, textLimit)
	}
	e.Detail = cut(e.Detail, detailLimit)
	return e
}

func validAction(a Action) bool {
	return a != "" && len(a) <= 64 && a[0] != '-' && strings.Trim(string(a), "abcdefghijklmnopqrstuvwxyz-") == ""
}

// cut bounds a text to limit bytes of UTF-8; what is cut ends in "…".
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	n := limit - len("…")
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
