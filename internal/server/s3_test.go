// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// inS3 are the lines of a unit's spec that keep its state in a bucket of the user's own, with
// the lock beside it.
func inS3(endpoint string) string {
	return `backendConfig:
  customConfiguration: |
    backend "s3" {
      bucket                      = "states"
      key                         = "u/terraform.tfstate"
      region                      = "eu-central-1"
      endpoints                   = { s3 = "` + endpoint + `" }
      use_path_style              = true
      use_lockfile                = true
      skip_credentials_validation = true
      skip_region_validation      = true
      skip_requesting_account_id  = true
      skip_metadata_api_check     = true
      skip_s3_checksum            = true
    }
backendConfigsFrom: [{kind: Secret, name: s3}]`
}

// A state in S3, with its lock beside it, goes on working through
// customConfiguration; the credentials come from a Secret.
func TestStateInS3(t *testing.T) {
	store := s3mem.New()
	must(t, store.CreateBucket("states"))
	s3 := httptest.NewServer(gofakes3.New(store).Server())
	defer s3.Close()

	w := newWorld(t, modA())
	w.putSecret("s3", map[string]string{"access_key": "AKIAEXAMPLE", "secret_key": "canary-of-the-secret-key"})
	w.unit("u", `
approvePlan: auto
vars: [{name: v, value: one}]
`+inS3(s3.URL)+`
writeOutputsToSecret: {name: out}`)
	w.output("out", "o", "one")
	w.awaitReady("u")

	object, err := store.GetObject("states", "u/terraform.tfstate", nil)
	must(t, err)
	defer object.Contents.Close()
	state, err := io.ReadAll(object.Contents)
	must(t, err)
	if !strings.Contains(string(state), "terraform_data") {
		t.Errorf("the state is not in the bucket: %s", state)
	}
	locks, err := store.ListBucket("states", &gofakes3.Prefix{HasPrefix: true, Prefix: "u/terraform.tfstate.tflock"}, gofakes3.ListBucketPage{})
	must(t, err)
	if len(locks.Contents) != 0 {
		t.Errorf("%d locks are left", len(locks.Contents))
	}
	if log := w.runLog("u"); strings.Contains(log, "canary-of-the-secret-key") {
		t.Error("the secret key is in the log")
	}
}

// TestStatesInABucketWithAKMSKey keeps the states of a real process in S3, by a key that a
// KMS key wraps: versions, rotation, kill -9, another KMS key; and what does not start.
func TestStatesInABucketWithAKMSKey(t *testing.T) {
	store := s3mem.New()
	must(t, store.CreateBucket("states"))
	s3 := httptest.NewServer(gofakes3.New(store).Server())
	defer s3.Close()
	const old, fresh = "smGbjm71Nxd1Ig5FS0wj9SlbzAIrnolCz9bQQ6uAhl4=", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	const secret = "canary-of-the-secret-key"
	told := filepath.Join(t.TempDir(), "told")
	module := func(value string) map[string]string {
		return map[string]string{"a/main.tf": `
resource "terraform_data" "x" {
  input = "` + value + `"
  provisioner "local-exec" { command = "env > ` + told + `" }
}
`}
	}
	w := newWorld(t, module("a"), func(c *config.Config) {
		c.WatchNamespaces = []string{"nobody"}
		c.RunAllowWrite = append(c.RunAllowWrite, filepath.Dir(told))
	})
	w.stop()
	by := func(keys string) func(*exec.Cmd) {
		return func(c *exec.Cmd) {
			c.Args = append(c.Args, "--state-storage", "s3://states?prefix=team/&region=eu-central-1&use_path_style=true&endpoint="+url.QueryEscape(s3.URL))
			c.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY="+secret, "TERRACE_KMS_KEY="+keys)
		}
	}
	p := w.startProcess(by("base64key://" + old))
	w.unit("a", "path: ./a\napprovePlan: auto")
	w.awaitReady("a")
	w.awaitRevision("a", w.commit(module("b")))
	if status, text := w.ask(http.MethodPost, "/api/v1/states/rotate-key", true); status != http.StatusOK || !strings.Contains(text, `"versions":2`) {
		t.Errorf("rotate: %d %s", status, text)
	}
	p.kill()
	said := p.out.String()

	inBucket := func(want int) {
		t.Helper()
		all, err := store.ListBucket("states", &gofakes3.Prefix{}, gofakes3.ListBucketPage{})
		must(t, err)
		n := 0
		for _, o := range all.Contents {
			if !strings.HasPrefix(o.Key, "team/") {
				t.Errorf("%s is not where it belongs", o.Key)
			}
			if strings.Contains(o.Key, "/sha256/") {
				n++
			}
			object, err := store.GetObject("states", o.Key, nil)
			must(t, err)
			content, err := io.ReadAll(object.Contents)
			must(t, err)
			must(t, object.Contents.Close())
			if bytes.Contains(content, []byte("terraform_data")) {
				t.Errorf("%s is in the clear", o.Key)
			}
		}
		if n != want {
			t.Errorf("%d blobs are in the bucket; %d versions were wanted", n, want)
		}
	}
	inBucket(2)
	for _, name := range []string{"states.key", "plans.key"} {
		content, err := os.ReadFile(filepath.Join(w.cfg.DataDir, "keys", name))
		must(t, err)
		if bytes.Contains(content, []byte("AGE-SECRET-KEY-1")) {
			t.Errorf("%s is in the clear", name)
		}
	}

	// fails starts a process that is to end by itself, and returns what it says.
	fails := func(change ...func(*exec.Cmd)) string {
		t.Helper()
		out, err := w.command(testenv.Start(t).Kubeconfig, change...).CombinedOutput()
		if err == nil {
			t.Error("it has started")
		}
		said += string(out)
		return string(out)
	}
	keys := filepath.Join(w.cfg.DataDir, "keys")
	for reason, tc := range map[string]struct {
		start func(*exec.Cmd)
		want  string
	}{
		"without the key":  {by(""), "it is wrapped by base64key, and no KMS key is given\nterrace: hint: give that key with --kms-key"},
		"with another key": {by("base64key://" + fresh), "it is wrapped by base64key: decrypt with base64key"},
		"with another bucket": {func(c *exec.Cmd) {
			by("base64key://" + old)(c)
			c.Args[len(c.Args)-1] = strings.Replace(c.Args[len(c.Args)-1], "//states", "//none", 1)
		}, "open blob store s3://none"},
	} {
		before, err := os.ReadFile(filepath.Join(keys, "states.key"))
		must(t, err)
		if out := fails(tc.start); !strings.Contains(out, tc.want) || !strings.Contains(out, "terrace: error: ") {
			t.Errorf("%s it says\n%s\nwithout %q", reason, out, tc.want)
		}
		if after, err := os.ReadFile(filepath.Join(keys, "states.key")); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the key file is another: %v", reason, err)
		}
	}
	// Whoever has lost the key file does not go on with a new one beside what it cannot read.
	lost := filepath.Join(keys, "states.key")
	must(t, os.Rename(lost, lost+".copy"))
	if out := fails(by("base64key://" + old)); !strings.Contains(out, "encrypted with another key file") {
		t.Errorf("without its key file it says\n%s", out)
	}
	must(t, os.Rename(lost+".copy", lost))

	p = w.startProcess(by("base64key://" + fresh + ",base64key://" + old))
	w.awaitRevision("a", w.commit(module("c")))
	_, ledger := w.ask(http.MethodGet, "/api/v1/audit", true)
	for _, want := range []string{"keys/states.key is wrapped by base64key", "keys/plans.key is wrapped by base64key"} {
		if !strings.Contains(ledger, want) {
			t.Errorf("the ledger has no %q", want)
		}
	}
	p.kill()
	said += p.out.String()
	p = w.startProcess(by("base64key://" + fresh))
	w.awaitRevision("a", w.commit(module("d")))
	if status, text := w.ask(http.MethodPost, "/api/v1/states/rotate-key", true); status != http.StatusOK || !strings.Contains(text, `"versions":4`) {
		t.Errorf("rotate again, which reads every version: %d %s", status, text)
	}
	inBucket(4)
	p.kill()
	said += p.out.String()

	environment, err := os.ReadFile(told)
	must(t, err)
	for place, text := range map[string]string{"a run's environment": string(environment), "the ledger": ledger, "what the processes say": said} {
		for _, never := range []string{secret, "AKIAEXAMPLE", strings.TrimSuffix(old, "="), strings.TrimSuffix(fresh, "=")} {
			if strings.Contains(text, never) {
				t.Errorf("%s has %q", place, never)
			}
		}
	}
}

// racedState is a bucket with one state in it, and a watch over who does what with that.
type racedState struct {
	t    *testing.T
	s3   http.Handler
	gate chan struct{} // a write waits until it is closed

	mu      sync.Mutex
	holder  string // the access key of who holds the lock; empty for nobody
	refused int    // how often the lock was not got, in this round
	told    string // the access key of who came while the other one wrote
	await   bool   // the next write waits for that
	writing bool   // and does so
	serial  int64
	lineage string
	writers map[string]int
}

var accessKey = regexp.MustCompile(`Credential=([A-Z]+)/`)

// ServeHTTP implements http.Handler. It answers as S3 does, and looks on.
func (r *racedState) ServeHTTP(rw http.ResponseWriter, q *http.Request) {
	who := "nobody"
	if m := accessKey.FindStringSubmatch(q.Header.Get("Authorization")); m != nil {
		who = m[1]
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	lock := strings.HasSuffix(q.URL.Path, ".tflock")
	if q.Method == http.MethodPut && !lock {
		r.write(who, body)
	}
	if q.Method == http.MethodDelete && lock {
		r.release(who)
	}
	answer := httptest.NewRecorder()
	r.s3.ServeHTTP(answer, q)
	switch {
	case q.Method == http.MethodPut && lock:
		r.locked(who, answer.Code)
	case q.Method == http.MethodGet && lock && answer.Code == http.StatusOK:
		r.read(who)
	}
	for k, v := range answer.Header() {
		rw.Header()[k] = v
	}
	rw.WriteHeader(answer.Code)
	_, _ = rw.Write(answer.Body.Bytes())
}

// locked has seen the answer to who asked for the lock.
func (r *racedState) locked(who string, code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if code == http.StatusOK {
		if r.holder != "" {
			r.t.Errorf("%s got the lock that %s holds", who, r.holder)
		}
		r.holder = who
		return
	}
	if code != http.StatusPreconditionFailed {
		r.t.Errorf("%s asked for the lock: %d", who, code)
	}
	r.refused++
}

// read has seen the answer to who asked whose the lock is, which is what it does when it did
// not get it.
func (r *racedState) read(who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if who != r.holder && r.await && r.writing {
		r.await = false
		r.told = who
		close(r.gate)
	}
}

// release sees the end of a lock before it is one.
func (r *racedState) release(who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holder != who {
		r.t.Errorf("%s gave back the lock that %q holds", who, r.holder)
	}
	r.holder = ""
}

// write sees a state that is to be written, and holds it up until the other one has come
// for the lock: so each round is a race, however it was scheduled.
func (r *racedState) write(who string, body []byte) {
	var s struct {
		Serial  int64
		Lineage string
	}
	if err := json.Unmarshal(body, &s); err != nil {
		r.t.Errorf("%s wrote what is no state: %v", who, err)
	}
	r.mu.Lock()
	if r.holder != who {
		r.t.Errorf("%s wrote while %q holds the lock", who, r.holder)
	}
	if s.Serial <= r.serial || r.lineage != "" && s.Lineage != r.lineage {
		r.t.Errorf("%s wrote serial %d of %s over serial %d of %s", who, s.Serial, s.Lineage, r.serial, r.lineage)
	}
	r.serial, r.lineage = s.Serial, s.Lineage
	r.writers[who]++
	waits, gate := r.await, r.gate
	r.writing = waits
	r.mu.Unlock()
	if !waits {
		return
	}
	select {
	case <-gate:
	case <-time.After(patience):
		r.t.Errorf("nobody else came for the lock while %s held it", who)
	}
}

// round begins a race.
func (r *racedState) round() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused, r.told, r.await, r.writing, r.gate = 0, "", true, false, make(chan struct{})
}

// TestTwoTerracesRaceForOneState has two processes with two API servers, and one state in a
// bucket of the user's own: one writes at a time, the other says who holds the lock and
// comes again, and in the end both are Ready with all that was made, made once.
func TestTwoTerracesRaceForOneState(t *testing.T) {
	store := s3mem.New()
	must(t, store.CreateBucket("states"))
	race := &racedState{t: t, s3: gofakes3.New(store).Server(), writers: map[string]int{}}
	s3 := httptest.NewServer(race)
	defer s3.Close()
	made := filepath.Join(t.TempDir(), "made")
	module := func(n int) map[string]string {
		return map[string]string{"main.tf": fmt.Sprintf(`
resource "terraform_data" "x" {
  count = %d
  provisioner "local-exec" { command = "echo ${count.index} >> %s" }
}
`, n, made)}
	}
	near := newWorld(t, module(1), func(c *config.Config) {
		c.WatchNamespaces = []string{"nobody"}
		c.RunAllowWrite = append(c.RunAllowWrite, filepath.Dir(made))
	})
	near.stop()
	far, raw := near.elsewhere()
	kubeconfig := filepath.Join(privateDir(t), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(raw), 0o600))
	far.cfg, far.repo = near.cfg, near.repo
	far.cfg.DataDir = privateDir(t)
	far.applyTo(far.ns, "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: src}\nspec: {interval: 1h, url: \"file://"+near.repo+"\", ref: {branch: main}}")
	near.startProcess()
	far.startProcessOn(kubeconfig)

	worlds := map[string]*world{"NEAR": near, "FAR": far}
	race.round()
	for key, w := range worlds {
		w.putSecret("s3", map[string]string{"access_key": key, "secret_key": "secret"})
		w.unit("u", `
approvePlan: auto
retryInterval: 1s
`+inS3(s3.URL))
	}
	const rounds = 3
	for n := 1; n <= rounds; n++ {
		seen := map[string]func(string, func(*infra.Terraform) bool){}
		revision := "main@sha1:" + near.git("rev-parse", "HEAD")
		if n > 1 {
			for key, w := range worlds {
				seen[key] = w.follow("u")
			}
			race.round()
			revision = near.commit(module(n))
		}
		for _, w := range worlds {
			w.awaitRevision("u", revision)
		}
		race.mu.Lock()
		refused, told, holder := race.refused, race.told, race.holder
		race.mu.Unlock()
		if refused == 0 || worlds[told] == nil || holder != "" {
			t.Errorf("round %d: the lock was refused %d times, %q came while the other wrote; it is held by %q", n, refused, told, holder)
		}
		if look := seen[told]; look != nil {
			look("told who holds the lock", func(tf *infra.Terraform) bool {
				c := condition(tf, "StateLocked")
				return c.Reason == infra.ReasonLockHeld && strings.Contains(c.Message, "Terraform Locked with Lock Identifier: ") && strings.Contains(c.Message, "@")
			})
		}
		content, err := os.ReadFile(made)
		must(t, err)
		if got := strings.Fields(string(content)); len(got) != n || len(slices.Compact(slices.Sorted(slices.Values(got)))) != n {
			t.Errorf("round %d: made were %v", n, got)
		}
	}

	object, err := store.GetObject("states", "u/terraform.tfstate", nil)
	must(t, err)
	defer object.Contents.Close()
	var state struct {
		Serial    int64
		Lineage   string
		Resources []struct{ Instances []struct{} }
	}
	must(t, json.NewDecoder(object.Contents).Decode(&state))
	race.mu.Lock()
	defer race.mu.Unlock()
	if state.Serial != race.serial || state.Lineage != race.lineage || len(state.Resources) != 1 || len(state.Resources[0].Instances) != rounds {
		t.Errorf("the state at the end: %+v; the last that was written has serial %d", state, race.serial)
	}
	t.Logf("states written: %v", race.writers)
}
