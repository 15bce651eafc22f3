// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/audit"
)

// auditor is a data directory with a ledger, and a command line that finds it.
type auditor struct {
	t      *testing.T
	data   string
	ledger *audit.Ledger
}

func newAuditor(t *testing.T) *auditor {
	t.Helper()
	d := &auditor{t: t, data: t.TempDir()}
	check(t, os.WriteFile(filepath.Join(d.data, "kubeconfig"), []byte(`
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, namespace: infra}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
`), 0o600))
	clock := clocktesting.NewFakePassiveClock(now.Add(-48 * time.Hour))
	l, err := audit.Open(audit.Options{
		Dir: filepath.Join(d.data, "audit"), KeyFile: filepath.Join(d.data, "keys", "audit.key"),
		Clock: clock, MaxAge: 24 * time.Hour,
	})
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	d.ledger = l
	alice := audit.Actor{Kind: audit.Git, Name: "Alice", Email: "alice@example.org"}
	_, err = l.Append(t.Context(), audit.Entry{Actor: alice, Action: audit.Approve, Unit: "Terraform/infra/network", PlanID: "plan-main-1"})
	check(t, err)
	clock.SetTime(now.Add(-time.Hour))
	in, err := l.Begin(t.Context(), audit.Entry{
		Actor: alice, Action: audit.Apply, Unit: "Terraform/infra/network", PlanID: "plan-main-1", Run: "apply-1",
		Revision: "main@sha1:0a1b2c3d", Counts: &audit.Counts{Add: 2, Destroy: 1},
	})
	check(t, err)
	check(t, in.End(t.Context(), audit.Outcome{Result: audit.Failed, Detail: "quota\nexceeded"}))
	_, err = l.Append(t.Context(), audit.Entry{
		Actor: audit.Actor{Kind: audit.Kubernetes, Name: "mallory\x1b[2J\u202e"}, Action: audit.Suspend, Unit: "Kustomization/apps/web",
	})
	check(t, err)
	return d
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve lets the ledger be asked over HTTP, as the server file says.
func (d *auditor) serve() *httptest.Server {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(tokenHeader) != "secret" {
			http.Error(w, "the server's token is missing or wrong", http.StatusUnauthorized)
			return
		}
		d.ledger.Handler().ServeHTTP(w, r)
	}))
	d.t.Cleanup(web.Close)
	d.found(web.Listener.Addr().String(), "secret")
	return web
}

func (d *auditor) found(address, token string) {
	check(d.t, os.WriteFile(filepath.Join(d.data, "server.json"), fmt.Appendf(nil, `{"address":%q,"token":%q}`, address, token), 0o600))
}

func (d *auditor) run(args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	var out, errs bytes.Buffer
	a := &app{env: Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: func() time.Time { return now },
		LookupEnv: func(key string) (string, bool) {
			return map[string]string{"KUBECONFIG": filepath.Join(d.data, "kubeconfig")}[key], key == "KUBECONFIG"
		},
	}}
	root := newRoot(a)
	if !slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == "audit" }) {
		verb := newAudit(a)
		a.flags.add(verb.PersistentFlags())
		root.AddCommand(verb)
	}
	root.SetArgs(append([]string{"audit"}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	code = a.report(root.ExecuteContext(d.t.Context()))
	return code, out.String(), errs.String()
}

const auditTable = `SEQ   TIME                   ACTOR                     ACTION         UNIT                      OUTCOME   CHANGES    DETAIL
1     2025-12-31T00:00:00Z   terrace:ledger            ledger-begin   -                         -         -          a new ledger
2     2025-12-31T00:00:00Z   git:Alice                 approve        Terraform/infra/network   -         -          -
3     2026-01-01T23:00:00Z   git:Alice                 apply          Terraform/infra/network   begun     +2 ~0 -1   -
4     2026-01-01T23:00:00Z   git:Alice                 apply          Terraform/infra/network   failed    +2 ~0 -1   quota …
5     2026-01-01T23:00:00Z   kubernetes:mallory�[2J�   suspend        Kustomization/apps/web    -         -          -
`

func TestAuditShowsTheLedger(t *testing.T) {
	d := newAuditor(t)
	for name, prepare := range map[string]func(){
		"from the directory":                          func() {},
		"from the directory, when the server is dead": func() { d.found("127.0.0.1:1", "secret") },
		"from the server":                             func() { d.serve(); check(t, os.Rename(filepath.Join(d.data, "keys"), filepath.Join(d.data, "k"))) },
	} {
		prepare()
		if code, out, errs := d.run(); code != ExitDone || out != auditTable || errs != "" {
			t.Errorf("%s: %d %s\n%s", name, code, errs, cmp.Diff(auditTable, out))
		}
		_ = os.Rename(filepath.Join(d.data, "k"), filepath.Join(d.data, "keys"))
		_ = os.Remove(filepath.Join(d.data, "server.json"))
	}

	web := d.serve()
	for name, tc := range map[string]struct {
		reason string
		args   string
		want   []int // seqs
	}{
		"Unit":      {"of the context's namespace", "--unit tf/network", []int{2, 3, 4}},
		"Name":      {"of any kind", "--unit network --action apply", []int{3, 4}},
		"Other":     {"no such unit in another namespace", "--unit network -n apps", nil},
		"Namespace": {"only when it is asked for", "-n apps", []int{5}},
		"Since":     {"a span before now", "--since 24h", []int{3, 4, 5}},
		"Days":      {"days are spans too", "--since 7d --limit 1", []int{5}},
		"Until":     {"a date begins at midnight", "--until 2026-01-01", []int{1, 2}},
		"Actor":     {"by address", "--actor ALICE@example.org --limit 0", []int{2, 3, 4}},
		"Server":    {"the server that is named needs no cluster", "--kubeconfig /nowhere --server " + web.URL + " --server-token-file " + d.file("token", "secret"), []int{1, 2, 3, 4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := d.run(append(strings.Fields(tc.args), "-o", "json")...)
			if code != ExitDone {
				t.Fatalf("%s: %d %s", tc.reason, code, errs)
			}
			var got []int
			for line := range strings.Lines(out) {
				var e struct{ Seq int }
				check(t, json.Unmarshal([]byte(line), &e))
				got = append(got, e.Seq)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, d)
			}
		})
	}
	if _, _, errs := d.run("--limit", "2"); errs != "only the newest 2 entries are shown; --limit 0 shows all\n" {
		t.Errorf("a limit is told as %q", errs)
	}
	if _, out, errs := d.run("--actor", "nobody"); out != "" || errs != "no entries found\n" {
		t.Errorf("nothing is told as %q %q", out, errs)
	}
	if _, out, _ := d.run("-o", "wide", "--limit", "2"); !strings.Contains(out, "main@sha1:0a1b2c3d   plan-main-1   apply-1   quota exceeded") {
		t.Errorf("wide: %s", out)
	}
	if _, out, _ := d.run("-o", "yaml", "--action", "approve"); !strings.HasPrefix(out, "---\naction: approve\nactor:\n") {
		t.Errorf("yaml: %s", out)
	}
}

// file writes a file beside the ledger, and returns its path.
func (d *auditor) file(name, content string) string {
	path := filepath.Join(d.data, name)
	check(d.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestAuditVerify(t *testing.T) {
	d := newAuditor(t)
	key := filepath.Join(d.data, "keys", "audit.pub")
	dir := filepath.Join(d.data, "audit")
	holds := func(args ...string) {
		t.Helper()
		code, out, errs := d.run(append([]string{"verify"}, args...)...)
		if code != ExitDone || !strings.Contains(out, "Holds:       yes") || !strings.HasSuffix(out, "Head:        "+d.ledger.Head().String()+"\n") {
			t.Errorf("verify %q: %d\n%s%s", args, code, out, errs)
		}
	}
	holds()
	holds("--dir", dir)
	holds("--dir", dir, "--public-key", key)
	holds("--head", d.ledger.Head().String())
	web := d.serve()
	server := []string{"--server", web.URL, "--server-token-file", d.file("token", "secret\n")}
	holds(server...)
	holds(append(server, "--public-key", key)...)
	if _, _, errs := d.run(append([]string{"verify"}, server...)...); !strings.Contains(errs, "the public key is what the server says") {
		t.Errorf("a key that the server gave is told as %q", errs)
	}
	var r audit.Report
	_, out, _ := d.run("verify", "-o", "json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Last != 5 || r.Segments != 2 {
		t.Errorf("as JSON: %v %s", err, out)
	}

	for name, tc := range map[string]struct {
		reason string
		args   []string
		code   int
		want   string
	}{
		"Token":    {"could not find out", []string{"--server", web.URL}, exitUnverified, "terrace: error: read ledger: the server's token is missing or wrong\n"},
		"NoServer": {"could not find out", []string{"--server", "http://127.0.0.1:1"}, exitUnverified, "the Terrace server is not reachable"},
		"NoLedger": {"could not find out", []string{"--dir", t.TempDir(), "--public-key", key}, exitUnverified, "there is no ledger"},
		"NoKey":    {"a copy has no key beside it", []string{"--dir", t.TempDir()}, ExitUsage, "name the public key with --public-key"},
		"NotAKey":  {"the private key is not asked for", []string{"--dir", dir, "--public-key", filepath.Join(d.data, "keys", "audit.key")}, exitUnverified, "it is not the PEM of a public key"},
		"BadHead":  {"a head is one piece", []string{"--head", "5"}, ExitUsage, `--head "5" is not SEQ:HASH`},
		"Both":     {"two places", []string{"--dir", dir, "--server", web.URL}, ExitUsage, "exclude each other"},
		"Output":   {"an output format that a verb has not", []string{"-o", "yaml"}, ExitUsage, "-o yaml: use json"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errs := d.run(append([]string{"verify"}, tc.args...)...)
			if code != tc.code || !strings.Contains(errs, tc.want) || strings.Count(errs, "error:") != 1 {
				t.Errorf("%s: %d %s", tc.reason, code, errs)
			}
		})
	}

	// The same lie, seen in the directory and from afar.
	segment := filepath.Join(dir, "audit-000001.jsonl")
	text, err := os.ReadFile(segment)
	check(t, err)
	check(t, os.WriteFile(segment, bytes.Replace(text, []byte("Alice"), []byte("Mallo"), 1), 0o600))
	for _, args := range [][]string{nil, server} {
		code, out, errs := d.run(append([]string{"verify"}, args...)...)
		if code != ExitFailed || !strings.HasPrefix(out, "audit-000001.jsonl line 3: edited: ") ||
			!strings.Contains(errs, "it is not as it was written: 1 finding\nterrace: hint: keep the directory") {
			t.Errorf("verify %q of an edited ledger: %d\n%s%s", args, code, out, errs)
		}
	}
	if code, _, errs := d.run(); code != ExitFailed || !strings.Contains(errs, "audit-000001.jsonl line 3") {
		t.Errorf("an edited ledger is shown: %d %s", code, errs)
	}
}

func TestAuditExport(t *testing.T) {
	d := newAuditor(t)
	bucket := filepath.Join(t.TempDir(), "bucket")
	code, out, errs := d.run("export", "--to", bucket)
	if code != ExitDone || out != "audit-000001.jsonl copied\n" || errs != "1 segment copied, 0 there already\n" {
		t.Errorf("export: %d %q %q", code, out, errs)
	}
	web := d.serve()
	code, out, errs = d.run("export", "--to", "file://"+bucket, "--server", web.URL, "--server-token-file", d.file("token", "secret"))
	if code != ExitDone || out != "" || !strings.HasSuffix(errs, "0 segments copied, 1 there already\n") {
		t.Errorf("export from the server: %d %q %q", code, out, errs)
	}
	if code, _, errs := d.run("verify", "--exported", "--dir", bucket, "--public-key", filepath.Join(d.data, "keys", "audit.pub")); code != ExitDone {
		t.Errorf("verify of the copy: %d %s", code, errs)
	}
	if code, _, errs := d.run("export"); code != ExitUsage || !strings.Contains(errs, "needs --to URL") {
		t.Errorf("export to nowhere: %d %s", code, errs)
	}
}

func TestMoment(t *testing.T) {
	a := &app{env: Env{Now: func() time.Time { return now }}}
	for in, want := range map[string]string{
		"":                     "0001-01-01T00:00:00Z",
		"90m":                  "2026-01-01T22:30:00Z",
		"2d":                   "2025-12-31T00:00:00Z",
		"2025-06-07":           "2025-06-07T00:00:00Z",
		"2025-06-07T08:09:10Z": "2025-06-07T08:09:10Z",
		"yesterday":            "",
		"-1h":                  "",
		"-1d":                  "",
		"5":                    "",
	} {
		got, err := a.moment(in)
		if want == "" && err == nil || want != "" && (err != nil || got.Format(time.RFC3339) != want) {
			t.Errorf("moment(%q) = %v, %v; want %q", in, got, err, want)
		}
	}
}

func TestAuditRefusesUsage(t *testing.T) {
	d := newAuditor(t)
	for args, want := range map[string]string{
		"-o xml":               "audit: -o xml: use wide, json or yaml",
		"--limit -1":           "audit: --limit -1",
		"--since yesterday":    `audit: --since "yesterday": use a span`,
		"--unit gitrepo/stack": `audit: --unit "gitrepo": this verb takes`,
		"network":              "audit: takes no argument",
	} {
		if code, _, errs := d.run(strings.Fields(args)...); code != ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
}

func TestMarkedErrorIsOneError(t *testing.T) {
	err := error(&markedError{errors.Join(context.Canceled), errNoServer})
	if !errors.Is(err, errNoServer) || !errors.Is(err, context.Canceled) || err.Error() != "context canceled" {
		t.Errorf("%v", err)
	}
}
