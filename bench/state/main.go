// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Command state measures what safety costs: round trips of the state service a second
// beside the fsyncs that the disk makes a second, and what confinement, journal and ledger add
// to each process that a run starts. The API server is `terrace up --without-controllers` on
// the same cores. Run it through `make bench`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/bench/rig"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/run/isolation"
	"github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	terrace := flag.String("terrace", "bin/terrace", "terrace binary")
	rounds := flag.Int("rounds", 200, "how often each thing is done")
	flag.Parse()
	if err := measure(ctx, *terrace, *rounds); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, terrace string, rounds int) (err error) {
	if rounds < 1 {
		return errors.New("-rounds must be 1 or more")
	}
	if err := rig.Binaries(&terrace); err != nil {
		return err
	}
	r, err := rig.Start(ctx, rig.Options{Terrace: terrace, AddToScheme: v1alpha1.AddToScheme, Served: []string{"/apis/terrace.dev/v1alpha1/states"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Stop(err != nil)) }()
	b := &bench{Rig: r, rounds: rounds, times: map[string]time.Duration{}}
	for _, part := range []func(context.Context) error{b.disk, b.ledger, b.journal, b.processes, b.states} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	b.print(os.Stdout)
	return nil
}

type bench struct {
	*rig.Rig
	rounds int
	order  []string
	times  map[string]time.Duration // of one
}

// Names of what is measured.
const (
	fsync       = "fsync of 4 KiB to a file that grows"
	entry       = "ledger: intent and outcome"
	begun       = "journal: a run that starts a process"
	bare        = "process: /bin/true"
	confined    = "process: /bin/true, confined and bounded"
	lockUnlock  = "state: lock and unlock"
	readState   = "state: read 100 KiB"
	writeState  = "state: write 100 KiB"
	plannedRun  = "state: lock, read, unlock, as a plan"
	sizeOfState = 100 << 10
)

// each times rounds of do, and keeps the time of one.
func (b *bench) each(what string, do func(n int) error) error {
	begin := time.Now()
	for n := range b.rounds {
		if err := do(n); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	b.order = append(b.order, what)
	b.times[what] = time.Since(begin) / time.Duration(b.rounds)
	return nil
}

func (b *bench) disk(context.Context) error {
	f, err := os.Create(filepath.Join(b.Dir, "disk"))
	if err != nil {
		return err
	}
	defer f.Close()
	page := make([]byte, 4096)
	return b.each(fsync, func(int) error {
		if _, err := f.Write(page); err != nil {
			return err
		}
		return f.Sync()
	})
}

func (b *bench) ledger(ctx context.Context) error {
	l, err := audit.Open(audit.Options{Dir: filepath.Join(b.Dir, "audit"), KeyFile: filepath.Join(b.Dir, "audit.key")})
	if err != nil {
		return err
	}
	defer l.Close()
	return b.each(entry, func(int) error {
		i, err := l.Begin(ctx, audit.Entry{Actor: audit.Actor{Kind: audit.Terrace, Name: "bench"}, Action: audit.Apply, Unit: "Terraform/bench/u"})
		if err != nil {
			return err
		}
		return i.End(ctx, audit.Outcome{Result: audit.Succeeded})
	})
}

// journal times a job that does nothing but to tell of a process, which is what makes it durable.
func (b *bench) journal(context.Context) error {
	done := make(chan run.Unit, 1)
	e, err := run.New(run.Options{Dir: filepath.Join(b.Dir, "runs"), Concurrency: 1, OnChange: func(u run.Unit) { done <- u }})
	if err != nil {
		return err
	}
	defer func() { _ = e.Shutdown(context.Background()) }()
	u := run.Unit{Kind: "Terraform", Namespace: "bench", Name: "u"}
	return b.each(begun, func(n int) error {
		id := fmt.Sprint(n)
		e.Start(run.Job{Unit: u, ID: id, Kind: run.Plan, Do: func(_ context.Context, r *run.Run) (any, error) {
			return nil, r.Started(os.Getpid(), 0, "plan")
		}})
		for s, _ := e.Get(u); s.Phase != run.Done; s, _ = e.Get(u) {
			<-done
		}
		s, _ := e.Get(u)
		e.Forget(u, id)
		return s.Err
	})
}

func (b *bench) processes(context.Context) error {
	start := func(p isolation.Profile) func(int) error {
		return func(int) error {
			cmd := exec.Command("/bin/true")
			if err := p.Start(cmd); err != nil {
				return err
			}
			return cmd.Wait()
		}
	}
	if err := b.each(bare, start(isolation.Profile{})); err != nil {
		return err
	}
	return b.each(confined, start(isolation.Profile{Confine: true, Write: []string{b.Dir}, Memory: 4 << 30, OpenFiles: 1024}))
}

func (b *bench) states(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bench-states"}}
	if err := b.Create(ctx, ns); err != nil {
		return err
	}
	blobs, err := blob.Open(ctx, blob.Options{URL: filepath.Join(b.Dir, "states"), KeyFile: filepath.Join(b.Dir, "states.key")})
	if err != nil {
		return err
	}
	defer blobs.Close()
	grants := server.NewGrants()
	key := store.Key{Namespace: ns.Name, Name: "u"}
	token, revoke, err := grants.New(server.Grant{State: key, Write: true, Run: "bench", Unit: "bench"})
	if err != nil {
		return err
	}
	defer revoke()
	s, err := server.New(server.Options{Store: store.New(store.Options{Client: b, Blobs: blobs}), Grants: grants})
	if err != nil {
		return err
	}
	h := httptest.NewServer(s)
	defer h.Close()
	c := &client{http: h.Client(), address: h.URL + "/state/" + key.Namespace + "/" + key.Name, token: token}
	lock := func(n int) string {
		return fmt.Sprintf(`{"ID":"00000000-0000-4000-8000-%012d","Operation":"bench"}`, n)
	}
	write := func(n int) error {
		payload, err := json.Marshal(map[string]any{
			"version": 4, "terraform_version": "1.12.6", "serial": n + 1, "lineage": "bench", "resources": []any{},
			"outputs": map[string]any{"o": map[string]any{"type": "string", "value": strings.Repeat("x", sizeOfState)}},
		})
		if err != nil {
			return err
		}
		return c.do(ctx, http.MethodPost, string(payload))
	}
	plan := func(n int) error {
		return errors.Join(c.do(ctx, "LOCK", lock(n)), c.do(ctx, http.MethodGet, ""), c.do(ctx, "UNLOCK", lock(n)))
	}
	return errors.Join(
		b.each(writeState, write),
		b.each(readState, func(int) error { return c.do(ctx, http.MethodGet, "") }),
		b.each(lockUnlock, func(n int) error {
			return errors.Join(c.do(ctx, "LOCK", lock(n)), c.do(ctx, "UNLOCK", lock(n)))
		}),
		b.each(plannedRun, plan),
	)
}

// client is as much of Terraform's HTTP backend as is measured.
type client struct {
	http           *http.Client
	address, token string
}

func (c *client) do(ctx context.Context, method, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, c.address, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.SetBasicAuth("run", c.token)
	answer, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %.200s", method, answer.Status, text)
	}
	return err
}

func (b *bench) print(out io.Writer) {
	fmt.Fprintf(out, "\nWhat safety costs, %d times each.\n\n", b.rounds)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tONE\tA SECOND\tFSYNCS\t")
	for _, what := range b.order {
		d := b.times[what]
		fmt.Fprintf(w, "%s\t%.2f ms\t%.0f\t%.1f\t\n", what, ms(d), float64(time.Second)/float64(d), float64(d)/float64(b.times[fsync]))
	}
	_ = w.Flush()
	fmt.Fprintln(out)
	var all rig.Budgets
	all.Add("what confinement, journal and ledger add to a run of one process, ms", 20,
		ms(b.times[confined]-b.times[bare]+b.times[begun]+b.times[entry]))
	all.Print(out)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
