// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/config"
)

// exitUnverified is the code of "audit verify" when it could not find out; that
// the ledger was changed is ExitFailed.
const exitUnverified = 2

type auditOptions struct {
	unit, since, until, actor, action, output string
	limit                                     int
	server                                    serverFlags
}

func newAudit(a *app) *cobra.Command {
	var o auditOptions
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who let what happen: the ledger",
		Long: `Show the entries of the ledger, the newest last: who planned, approved, applied,
destroyed, unlocked or suspended what, and how it ended. What has an effect has
two entries: OUTCOME is "begun" in the first, and how it ended in the second.

Entries of all namespaces are shown unless -n or --unit names one. --since and
--until take a time span before now (90m, 24h, 7d), a date, or a time.

The ledger is read from the Terrace server; where that is not reachable, from the
data directory, if that is on this machine. -o json and yaml print one entry after
the other, as they arrive; "terrace audit verify" tells whether all are there.`,
		Example: `  terrace audit
  terrace audit --unit tf/network --since 7d -o wide
  terrace audit -n infra --action apply
  terrace audit --actor alice@example.org -o json | jq -r .planID`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.audit(cmd, o)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.unit, "unit", "", "only entries about this unit: NAME or KIND/NAME")
	fs.StringVar(&o.since, "since", "", "only entries from then on")
	fs.StringVar(&o.until, "until", "", "only entries before then")
	fs.StringVar(&o.actor, "actor", "", "only what this one did: a name, an email address, or KIND:NAME")
	fs.StringVar(&o.action, "action", "", "only this action, such as approve, apply or destroy")
	fs.IntVar(&o.limit, "limit", 200, "show only the newest entries; 0 for all")
	fs.StringVarP(&o.output, "output", "o", "", "wide, json or yaml")
	o.server.add(fs)
	cmd.AddCommand(newAuditVerify(a), newAuditExport(a))
	return cmd
}

func (a *app) audit(cmd *cobra.Command, o auditOptions) error {
	switch o.output {
	case "", "wide", "json", "yaml":
	default:
		return usagef(cmd, "-o %s: use wide, json or yaml", o.output)
	}
	f, err := a.auditFilter(cmd, o)
	if err != nil {
		return err
	}
	entries, done, err := a.openAudit(cmd.Context(), o.server, f)
	if err != nil {
		return err
	}
	defer done()
	n := 0
	counted := func(yield func(audit.Entry, error) bool) {
		for e, err := range entries {
			n++
			if !yield(e, err) {
				return
			}
		}
	}
	if err := a.printEntries(counted, o.output); err != nil {
		return fmt.Errorf("read ledger: %w", err)
	}
	switch {
	case n == 0 && (o.output == "" || o.output == "wide"):
		fmt.Fprintln(a.env.Stderr, "no entries found")
	case n > 0 && n == o.limit:
		fmt.Fprintf(a.env.Stderr, "only the newest %d entries are shown; --limit 0 shows all\n", n)
	}
	return nil
}

// auditFilter turns the flags into what is asked for.
func (a *app) auditFilter(cmd *cobra.Command, o auditOptions) (audit.Filter, error) {
	f := audit.Filter{Actor: o.actor, Action: audit.Action(o.action), Limit: o.limit}
	if o.limit < 0 {
		return f, usagef(cmd, "--limit %d: use 0 for all, or a number of entries", o.limit)
	}
	var err error
	if f.Since, err = a.moment(o.since); err != nil {
		return f, usagef(cmd, "--since %v", err)
	}
	if f.Until, err = a.moment(o.until); err != nil {
		return f, usagef(cmd, "--until %v", err)
	}
	namespace := a.flags.namespace
	if o.unit == "" {
		if namespace != "" {
			f.Unit = "/" + namespace + "/"
		}
		return f, nil
	}
	r, err := parseRef(o.unit, ofRole(unit))
	if err != nil {
		return f, usagef(cmd, "--unit %v", err)
	}
	if namespace == "" {
		c, err := a.connect()
		if err != nil {
			return f, err
		}
		namespace = c.namespace
	}
	f.Unit = "/" + namespace + "/" + r.Name
	if len(r.Kinds) == 1 {
		f.Unit = r.Kinds[0].Name + f.Unit
	}
	return f, nil
}

// moment reads a span before now, a date, or a time; nothing is no bound.
func (a *app) moment(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 {
			return a.env.Now().AddDate(0, 0, -n), nil
		}
	}
	if span, err := time.ParseDuration(s); err == nil && span >= 0 {
		return a.env.Now().Add(-span), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: use a span such as 24h or 7d, a date such as 2026-01-31, or a time such as 2026-01-31T15:04:05Z", s)
}

// openAudit opens the entries: those of the server, else those of the data
// directory. The caller calls done at the end.
func (a *app) openAudit(ctx context.Context, f serverFlags, filter audit.Filter) (entries iter.Seq2[audit.Entry, error], done func(), err error) {
	s, err := a.findServer(ctx, f)
	if err == nil {
		var body io.ReadCloser
		if body, err = s.open(ctx, "read ledger", audit.Path, filter.Values()); err == nil {
			return audit.Decode(body), func() { body.Close() }, nil
		}
	}
	// A server that was named is the one that was meant.
	if dir, _ := a.localLedger(); dir != "" && f.url == "" && errors.Is(err, errNoServer) {
		return audit.Query(ctx, dir, filter), func() {}, nil
	}
	return nil, nil, err
}

// findServer finds the server, which has the ledger and the keys.
func (a *app) findServer(ctx context.Context, f serverFlags) (*server, error) {
	if f.url != "" {
		return a.server(ctx, nil, f)
	}
	c, err := a.connect()
	if err != nil {
		return nil, &markedError{err, errNoServer}
	}
	return a.server(ctx, c, f)
}

// markedError is an error that is also another one, without saying so.
type markedError struct{ err, mark error }

func (e *markedError) Error() string        { return e.err.Error() }
func (e *markedError) Unwrap() error        { return e.err }
func (e *markedError) Is(target error) bool { return target == e.mark }

// localLedger is the ledger of a data directory on this machine and its public
// key; empty when there is none, or when it cannot be seen.
func (a *app) localLedger() (dir, key string) {
	data := a.flags.dataDir
	if data == "" && a.flags.kubeconfig == "" {
		data, _ = a.env.LookupEnv(config.Variable("data-dir"))
	}
	if data == "" {
		_, found, err := a.loadingRules()
		if err != nil {
			return "", ""
		}
		data = found
	}
	dir, key = filepath.Join(data, "audit"), filepath.Join(data, "keys", "audit.pub")
	if data == "" || !exists(dir) || !exists(key) {
		return "", ""
	}
	return dir, key
}

// printEntries prints entries as they come, but for a table, whose widths depend on
// all of them.
func (a *app) printEntries(entries iter.Seq2[audit.Entry, error], format string) error {
	var rows [][]string
	for e, err := range entries {
		if err != nil {
			return err
		}
		switch format {
		case "json":
			err = json.NewEncoder(a.env.Stdout).Encode(e)
		case "yaml":
			var text []byte
			if text, err = yaml.Marshal(e); err == nil {
				_, err = fmt.Fprintf(a.env.Stdout, "---\n%s", text)
			}
		default:
			rows = append(rows, auditRow(e, format == "wide"))
		}
		if err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return nil
	}
	header := []string{"SEQ", "TIME", "ACTOR", "ACTION", "UNIT", "OUTCOME", "CHANGES"}
	if format == "wide" {
		header = append(header, "REVISION", "PLAN", "RUN")
	}
	newTable(a.env.Stdout, nil, append(header, "DETAIL")...).print(true, rows...)
	return nil
}

func auditRow(e audit.Entry, wide bool) []string {
	outcome, changes := e.Outcome, none
	if e.Phase == audit.PhaseIntent {
		outcome = "begun"
	}
	if e.Counts != nil {
		changes = fmt.Sprintf("+%d ~%d -%d", e.Counts.Add, e.Counts.Change, e.Counts.Destroy)
	}
	row := []string{
		strconv.FormatUint(e.Seq, 10), e.Time.UTC().Format(time.RFC3339), e.Actor.String(), string(e.Action), e.Unit, outcome, changes,
	}
	detail := e.Detail
	if wide {
		row = append(row, e.Revision, e.PlanID, e.Run)
	} else {
		var cut bool
		if detail, _, cut = strings.Cut(detail, "\n"); cut {
			detail += " …"
		}
		if text := []rune(detail); len(text) > messageWidth {
			detail = string(text[:messageWidth-1]) + "…"
		}
	}
	row = append(row, detail)
	for i := range row {
		row[i] = orNone(printable(row[i]))
	}
	return row
}

// printable takes out of a text what would move a terminal's cursor or change what
// is shown around it: names and messages of commits are written by strangers.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// ledgerFlags say which ledger "verify" and "export" read, and with which key.
type ledgerFlags struct {
	dir, publicKey string
	server         serverFlags
}

func (f *ledgerFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "dir", "", "directory of the ledger, or of a copy (default: the data directory's, else the server's)")
	fs.StringVar(&f.publicKey, "public-key", "", "file with the ledger's public key (default: keys/audit.pub beside the ledger, else the server's)")
	f.server.add(fs)
}

// ledger is a directory to read a ledger from, and its key.
type ledger struct {
	name string // for messages
	dir  string
	key  ed25519.PublicKey
}

// openLedger finds the ledger that the flags name, copying that of a server. The
// caller calls done at the end.
func (a *app) openLedger(cmd *cobra.Command, f ledgerFlags) (l ledger, done func(), err error) {
	done = func() {}
	dir, keyFile := f.dir, ""
	switch {
	case dir != "" && f.server.url != "":
		return l, done, usagef(cmd, "--dir and --server exclude each other")
	case dir != "":
		keyFile = filepath.Join(filepath.Dir(filepath.Clean(dir)), "keys", "audit.pub")
		if f.publicKey == "" && !exists(keyFile) {
			return l, done, usagef(cmd, "--dir %s: there is no %s beside it; name the public key with --public-key", dir, filepath.Join("keys", "audit.pub"))
		}
	case f.server.url == "":
		dir, keyFile = a.localLedger()
	}
	l.name, l.dir = dir, dir
	var told []byte
	if dir == "" {
		if l, told, done, err = a.fetchLedger(cmd.Context(), f.server); err != nil {
			return l, done, err
		}
	}
	switch {
	case f.publicKey != "":
		l.key, err = audit.ReadPublicKey(f.publicKey)
	case told != nil:
		fmt.Fprintln(a.env.Stderr, "the public key is what the server says; --public-key FILE names one that you keep")
		if l.key, err = audit.ParsePublicKey(told); err != nil {
			err = fmt.Errorf("read public key of the ledger from %s: %w", l.name, err)
		}
	default:
		l.key, err = audit.ReadPublicKey(keyFile)
	}
	if err != nil {
		done()
		return l, func() {}, err
	}
	return l, done, nil
}

// fetchLedger copies the server's ledger into a directory that done removes.
func (a *app) fetchLedger(ctx context.Context, f serverFlags) (l ledger, key []byte, done func(), err error) {
	done = func() {}
	s, err := a.findServer(ctx, f)
	if err != nil {
		return l, nil, done, hintf(fmt.Errorf("read ledger: %w", err), "--dir names the directory of a ledger, --data-dir that of a control plane on this machine")
	}
	dir, err := os.MkdirTemp("", "terrace-audit-")
	if err != nil {
		return l, nil, done, fmt.Errorf("read ledger: %w", err)
	}
	remove := func() { _ = os.RemoveAll(dir) }
	key, err = audit.Fetch(ctx, func(ctx context.Context, path string) (io.ReadCloser, error) {
		body, err := s.open(ctx, "read ledger", audit.Path+path, nil)
		if errors.Is(err, errNotKept) {
			err = &markedError{err, fs.ErrNotExist}
		}
		return body, err
	}, dir)
	if err != nil {
		remove()
		return l, nil, done, err
	}
	return ledger{name: s.base, dir: dir}, key, remove, nil
}

func newAuditVerify(a *app) *cobra.Command {
	var f ledgerFlags
	var o audit.VerifyOptions
	var heads []string
	var output string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Tell whether the ledger is as it was written",
		Long: `Read the whole ledger and tell of every entry and segment that was edited, forged,
dropped, reordered, duplicated or cut off, and where. It needs the public key only,
and works while the ledger is being written.

The last line it prints is the ledger's head. Noted elsewhere and given back with
--head, it also tells an older copy, or another history, from the ledger.

The exit code is 0 when the ledger holds, 1 when it was changed, and 2 when that
could not be found out.`,
		Example: `  terrace audit verify
  terrace audit verify --data-dir .terrace
  terrace audit verify --public-key audit.pub --head "$(cat noted-head)"
  terrace audit verify --dir /backup/ledger --public-key audit.pub --exported`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return usagef(cmd, "-o %s: use json", output)
			}
			for _, s := range heads {
				h, err := audit.ParseHead(s)
				if err != nil {
					return usagef(cmd, "--head %v", err)
				}
				o.Known = append(o.Known, h)
			}
			err := a.auditVerify(cmd, f, o, output)
			if changed := (changedError{}); err != nil && !errors.As(err, &changed) {
				return &codedError{err, exitUnverified}
			}
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&o.Exported, "exported", false, "it is a copy of closed segments, without the live one")
	cmd.Flags().StringArrayVar(&heads, "head", nil, "head that was noted earlier, as SEQ:HASH (repeatable)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	return cmd
}

// changedError says that a ledger does not hold.
type changedError struct {
	name string
	n    int
}

func (e changedError) Error() string {
	return fmt.Sprintf("verify ledger %s: it is not as it was written: %s", e.name, many(e.n, "finding"))
}

func (e changedError) Hint() string {
	return "keep the directory as it is, as evidence; what was exported elsewhere can be compared with it"
}

func (a *app) auditVerify(cmd *cobra.Command, f ledgerFlags, o audit.VerifyOptions, output string) error {
	l, done, err := a.openLedger(cmd, f)
	if err != nil {
		return err
	}
	defer done()
	r, err := audit.Verify(cmd.Context(), l.dir, l.key, o)
	if err != nil {
		return err
	}
	if output == "json" {
		if err := printValue(a.env.Stdout, output, r); err != nil {
			return err
		}
	} else {
		a.printReport(r)
	}
	if !r.Holds() {
		return changedError{l.name, len(r.Findings) + r.More}
	}
	return nil
}

func (a *app) printReport(r audit.Report) {
	out := a.env.Stdout
	for _, f := range r.Findings {
		fmt.Fprintln(out, printable(f.String()))
	}
	if r.More > 0 {
		fmt.Fprintf(out, "and %d more\n", r.More)
	}
	if !r.Holds() {
		return
	}
	printFacts(out, []fact{
		{"Ledger", r.Ledger},
		{"Entries", fmt.Sprintf("%d to %d, in %s", r.First, r.Last, many(r.Segments, "segment"))},
		{"From", r.From.Format(time.RFC3339)},
		{"Until", r.Until.Format(time.RFC3339)},
		{"Unfinished", unlessNone(r.Unfinished, "intent", " without an outcome yet")},
		{"Torn", unlessNone(r.Torn, "byte", " of an entry that is being written, or that a crash left")},
		{"Holds", "yes: every entry is as it was written"},
		{"Head", r.Head.String()},
	})
}

// many counts things: "1 segment", "2 segments".
func many(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// unlessNone is many, with more said about them; empty when there are none.
func unlessNone(n int, what, more string) string {
	if n == 0 {
		return ""
	}
	return many(n, what) + more
}

func newAuditExport(a *app) *cobra.Command {
	var f ledgerFlags
	var to string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Copy closed segments of the ledger elsewhere",
		Long: `Copy the closed segments of the ledger to a directory or to object storage. A
segment is closed when it is a day old or 16 MiB large. Each is checked before it
is copied. What is there already is left alone, so the command can be repeated; a
segment is never overwritten.

A place whose objects the control plane cannot change is what guards the ledger
against somebody who has its private key.`,
		Example: `  terrace audit export --to /backup/ledger
  terrace audit export --to file:///mnt/archive/ledger
  terrace audit export --to "s3://ledger?region=eu-central-1&prefix=terrace/"
  terrace audit verify --dir /backup/ledger --public-key audit.pub --exported`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usagef(cmd, "needs --to URL")
			}
			l, done, err := a.openLedger(cmd, f)
			if err != nil {
				return err
			}
			defer done()
			r, err := audit.Export(cmd.Context(), l.dir, l.key, to)
			for _, name := range r.Copied {
				fmt.Fprintf(a.env.Stdout, "%s copied\n", name)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stderr, "%s copied, %d there already\n", many(len(r.Copied), "segment"), len(r.Present))
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&to, "to", "", "directory, or URL of a bucket (s3://, azblob://)")
	return cmd
}
