// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/server"
	stateserver "github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// The tests here are about the state service as it is seen from the network: its HTTPS
// address, a real API server behind it, and tokens as their owners come by them.

// service is the HTTPS address of a world's state service.
type service struct {
	t    *testing.T
	url  string
	http *http.Client
}

// service finds the address, as a client on the same machine does.
func (w *world) service() *service {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join(w.cfg.DataDir, server.ServerFile))
	must(w.t, err)
	var found struct{ StateAddress, StateCA string }
	must(w.t, json.Unmarshal(content, &found))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(found.StateCA)) {
		w.t.Fatalf("%s has no CA", server.ServerFile)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &service{w.t, found.StateAddress, &http.Client{Transport: transport}}
}

// ask sends a request about the state at NAMESPACE/NAME; without an answer the code is 0.
// It may be called from any goroutine.
func (s *service) ask(token, method, path, body string) (code int, text string) {
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+"/state/"+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		r.SetBasicAuth("anybody", token)
	}
	res, err := s.http.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(answer)
}

// want fails unless a request is answered with a code and a word.
func (s *service) want(code int, word, token, method, path, body string) {
	s.t.Helper()
	if got, text := s.ask(token, method, path, body); got != code || !strings.Contains(text, word) {
		s.t.Errorf("%s %s: %d %.300s, want %d with %q", method, path, got, text, code, word)
	}
}

// stateText is a state with one resource.
func stateText[N int | int64](serial N, lineage, value string) string {
	return fmt.Sprintf(`{"version":4,"serial":%d,"lineage":%q,"outputs":{"o":{"value":%q,"type":"string"}},"resources":[{"mode":"managed","type":"a","name":"b","instances":[]}]}`,
		serial, lineage, value)
}

// lockText is what a tool says of itself when it takes a lock.
func lockText(id, who string) string {
	return fmt.Sprintf(`{"ID":%q,"Operation":"OperationTypeApply","Info":"","Who":%q,"Version":"1.12.0","Created":"2026-01-01T10:00:00Z","Path":""}`, id, who)
}

// telling is a unit's program that tells the environment of its run, and ends when the
// test says so. In a plan nothing of a module runs but what gives OpenTofu a key.
type telling struct{ told, goOn string }

func newTelling(t *testing.T, name string) telling {
	t.Helper()
	dir := t.TempDir()
	p := telling{filepath.Join(dir, name+"-told"), filepath.Join(dir, name+"-on")}
	must(t, syscall.Mkfifo(p.told, 0o600))
	must(t, syscall.Mkfifo(p.goOn, 0o600))
	return p
}

// command begins with what OpenTofu wants to hear of one that gives keys.
func (p telling) command() string {
	return `echo '{"magic":"OpenTofu-External-Key-Provider","version":1}'; env >&2; env > '` + p.told + `'; cat '` + p.goOn + `'; exit 1`
}

func (p telling) inPlan() string {
	return fmt.Sprintf(`
terraform {
  encryption {
    key_provider "external" "k" { command = ["/bin/sh", "-c", %q] }
    method "aes_gcm" "m" { keys = key_provider.external.k }
    state { method = method.aes_gcm.m }
  }
}
`, p.command()) + moduleA
}

func (p telling) inApply() string {
	return fmt.Sprintf("resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = %q }\n}\n", p.command())
}

// environment waits for what the program of a unit tells.
func (p telling) environment(w *world, unit string) map[string]string {
	w.t.Helper()
	told := make(chan string, 1)
	go func() {
		content, _ := os.ReadFile(p.told) // returns when the program has written
		told <- string(content)
	}()
	var content string
	select {
	case content = <-told:
	case <-time.After(patience):
		w.t.Fatalf("the program of %s has not run:\n%s", unit, w.runLog(unit))
	}
	env := map[string]string{}
	for line := range strings.Lines(content) {
		if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			env[name] = value
		}
	}
	return env
}

// TestTokensOfRuns takes the tokens that real runs have out of their environment, and
// tries what they are not for while the runs are at work, and everything afterwards.
func TestTokensOfRuns(t *testing.T) {
	plan, apply := newTelling(t, "plan"), newTelling(t, "apply")
	w := newWorld(t, map[string]string{"owner/main.tf": moduleA, "plan/main.tf": plan.inPlan(), "apply/main.tf": apply.inApply()})
	w.unit("owner", "path: ./owner\napprovePlan: auto")
	w.awaitReady("owner")
	service := w.service()
	const id = "0f6b1b2c-0000-4000-8000-000000000002"
	never := map[string]string{ // what no run may, nor with another state
		"ask for a token": "POST %s/tokens", "break a lock": "UNLOCK %s", "roll back": "POST %s/rollback?version=1", "force": "POST %s?force",
		"remove": "DELETE %s?force", "move": "POST %s/move?to=mine",
	}
	payload := stateText(7, "l", "x")
	check := func(name string, p telling, write bool) (token string) {
		t.Helper()
		w.unit(name, "path: ./"+name+"\napprovePlan: auto\nretryInterval: 1h")
		env := p.environment(w, name)
		token = env["TF_HTTP_PASSWORD"]
		if !strings.HasPrefix(token, "terrace_run_") || !strings.HasSuffix(env["TF_HTTP_ADDRESS"], "/state/"+w.ns+"/"+name) {
			t.Fatalf("the run of %s has no token of its own: %q", name, env["TF_HTTP_ADDRESS"])
		}
		mine, theirs := w.ns+"/"+name, w.ns+"/owner"
		for what, request := range never {
			for _, at := range []string{mine, theirs} {
				method, path, _ := strings.Cut(fmt.Sprintf(request, at), " ")
				body := ""
				if what == "force" {
					body = payload
				}
				if code, text := service.ask(token, method, path, body); code != http.StatusForbidden {
					t.Errorf("a run of %s: %s of %s: %d %.200s", name, what, at, code, text)
				}
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodPost, "LOCK", "UNLOCK"} {
			for _, at := range []string{theirs, w.ns + "/none", "default/" + name} {
				body := map[string]string{http.MethodPost: payload, "LOCK": lockText(id, "x"), "UNLOCK": lockText(id, "x")}[method]
				service.want(http.StatusForbidden, "may reach the state "+mine, token, method, at, body)
			}
		}
		service.want(http.StatusForbidden, "may reach the state "+mine, token, http.MethodGet, theirs+"/versions/1", "")
		service.want(http.StatusForbidden, "may reach the state "+mine, token, http.MethodGet, theirs+"/versions", "")
		if write {
			// Who may write, and is told of the lock, is not the run that has it.
			jane := w.stateToken(name, time.Now())
			code, held := service.ask(jane, "LOCK", mine, lockText(id, "jane"))
			var lock struct{ ID string }
			if err := json.Unmarshal([]byte(held), &lock); err != nil || code != http.StatusLocked || lock.ID == "" {
				t.Errorf("the lock of a run at work: %d %s", code, held)
			}
			service.want(http.StatusLocked, lock.ID, jane, "LOCK", mine, held)
			service.want(http.StatusLocked, lock.ID, jane, http.MethodPost, mine+"?ID="+lock.ID, payload)
			service.want(http.StatusForbidden, "force-unlock", jane, "UNLOCK", mine, held)
		} else {
			service.want(http.StatusOK, "", token, "LOCK", mine, lockText(id, "x"))
			service.want(http.StatusForbidden, "not update it", token, http.MethodPost, mine, payload)
			service.want(http.StatusForbidden, "not update it", token, http.MethodPost, mine+"?ID="+id, payload)
			service.want(http.StatusOK, "", token, "UNLOCK", mine, lockText(id, "x"))
			service.want(http.StatusNotFound, "", token, http.MethodGet, mine, "")
		}
		// What the run says is kept; its token must not be in it.
		must(t, os.WriteFile(p.goOn, nil, 0o600))
		w.await(name, "failing", func(tf *infra.Terraform) bool { return tf.Status.ReconciliationFailures > 0 })
		_, log := w.get("/api/v1/units/terraform/"+w.ns+"/"+name+"/log", "")
		if text := w.runLog(name) + log + readyOf(w.terraform(name)).Message; strings.Contains(text, token) {
			t.Errorf("the token of the run of %s is in what is kept of it:\n%s", name, text)
		} else if write && !strings.Contains(text, "TF_HTTP_PASSWORD=") {
			t.Errorf("the run of %s did not tell its environment, so this shows nothing:\n%s", name, text)
		}
		return token
	}
	for name, token := range map[string]string{"plan": check("plan", plan, false), "apply": check("apply", apply, true)} {
		for _, method := range []string{http.MethodGet, http.MethodPost, "LOCK"} {
			service.want(http.StatusUnauthorized, "its run has ended", token, method, w.ns+"/"+name, payload)
		}
	}
	if s := w.state("owner"); len(s.Status.Versions) != 1 || s.Status.Lock != nil {
		t.Errorf("the state of the other unit: %+v", s.Status)
	}
}

// stateToken is a token for a state that jane asked for at that time, for an hour, signed
// with the key that the server has.
func (w *world) stateToken(name string, at time.Time) string {
	w.t.Helper()
	tokens, err := stateserver.OpenTokens(filepath.Join(w.cfg.DataDir, "keys", "state-tokens.key"), testingclock.NewFakePassiveClock(at))
	must(w.t, err)
	token, _, err := tokens.Mint(store.Key{Namespace: w.ns, Name: name}, true, "jane", time.Hour)
	must(w.t, err)
	return token
}

// An expired token is refused, by the server whose key signed it.
func TestExpiredTokenIsRefused(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": moduleA})
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	service := w.service()
	service.want(http.StatusOK, "terraform_data", w.stateToken("net", time.Now()), http.MethodGet, w.ns+"/net", "")
	old := w.stateToken("net", time.Now().Add(-time.Hour-2*time.Second))
	for method, body := range map[string]string{http.MethodGet: "", http.MethodPost: stateText(9, "l", "x"), "LOCK": lockText("a", "b"), "UNLOCK": "", http.MethodDelete: ""} {
		service.want(http.StatusUnauthorized, "expired", old, method, w.ns+"/net", body)
	}
	if s := w.state("net"); len(s.Status.Versions) != 1 || s.Status.Lock != nil {
		t.Errorf("the state: %+v", s.Status)
	}
}

// stateAccount makes a ServiceAccount that may do these things with the states of its
// namespace, and returns a token of it, once the API server agrees.
func (w *world) stateAccount(name string, verbs ...string) string {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	must(w.t, w.client.Create(w.ctx(), account))
	if len(verbs) > 0 {
		must(w.t, w.client.Create(w.ctx(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"terrace.dev"}, Resources: []string{"states"}, Verbs: verbs}},
		}))
		must(w.t, w.client.Create(w.ctx(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.ns, Name: name}},
		}))
	}
	request := &authenticationv1.TokenRequest{}
	must(w.t, w.client.SubResource("token").Create(w.ctx(), account, request))
	// The API server learns of an account and of a binding by a watch, a moment later.
	ctx, cancel := context.WithTimeout(w.ctx(), patience)
	defer cancel()
	for known := false; !known; {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: request.Status.Token}}
		must(w.t, w.client.Create(ctx, review))
		known = review.Status.Authenticated
	}
	for _, verb := range verbs {
		for allowed := false; !allowed; {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + w.ns + ":" + name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: w.ns, Name: "net", Verb: verb, Group: "terrace.dev", Resource: "states",
				},
			}}
			must(w.t, w.client.Create(ctx, review))
			allowed = review.Status.Allowed
		}
	}
	return request.Status.Token
}

// Who may do one thing with states may do no other; who may do none, none.
func TestAccountsMayWhatRBACSays(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": moduleA})
	service := w.service()
	w.unit("net", "approvePlan: auto")
	w.awaitReady("net")
	path := w.ns + "/net"
	lineage := w.state("net").Status.Lineage
	requests := []struct {
		needs              []string
		method, path, body string
	}{
		{[]string{"get"}, http.MethodGet, path, ""},
		{[]string{"get"}, http.MethodGet, path + "/versions/1", ""},
		{[]string{"get"}, http.MethodGet, path + "/versions", ""},
		{[]string{"get"}, http.MethodPost, path + "/tokens", `{"read":true}`},
		{[]string{"lock"}, "LOCK", path, lockText("a", "b")},
		{[]string{"force-unlock"}, "UNLOCK", path, ""},
		{[]string{"lock"}, "LOCK", path, lockText("a", "b")},
		{[]string{"unlock"}, "UNLOCK", path, lockText("a", "b")},
		{[]string{"update"}, http.MethodPost, path, stateText(50, lineage, "x")},
		{[]string{"update", "rollback"}, http.MethodPost, path + "?force", stateText(1, "other", "x")},
		{[]string{"rollback"}, http.MethodPost, path + "/rollback?version=1", ""},
		{[]string{"get", "delete", "update"}, http.MethodPost, path + "/move?to=other", ""},
		{[]string{"delete"}, http.MethodDelete, w.ns + "/other?force", ""},
	}
	all := []string{"get", "update", "lock", "unlock", "force-unlock", "rollback", "delete"}
	accounts := map[string][]string{"none": nil}
	for _, verb := range all {
		accounts["only-"+verb] = []string{verb}
		accounts["all-but-"+verb] = slices.DeleteFunc(slices.Clone(all), func(v string) bool { return v == verb })
	}
	service.want(http.StatusUnauthorized, "no token", "", http.MethodGet, path, "")
	service.want(http.StatusUnauthorized, "unknown", "nonsense", http.MethodGet, path, "")
	before := w.state("net").Status.DeepCopy()
	for name, verbs := range accounts {
		token := w.stateAccount(name, verbs...)
		for _, r := range requests {
			missing := ""
			for _, verb := range r.needs {
				if missing == "" && !slices.Contains(verbs, verb) {
					missing = verb
				}
			}
			if missing == "" {
				continue // what is allowed is tried below: it would change what the others find
			}
			service.want(http.StatusForbidden, fmt.Sprintf("user \"system:serviceaccount:%s:%s\" cannot %s states.terrace.dev \"", w.ns, name, missing), token, r.method, r.path, r.body)
		}
		service.want(http.StatusForbidden, "cannot get", token, http.MethodGet, "default/net", "")
	}
	if s := w.state("net"); len(s.Status.Versions) != len(before.Versions) || s.Status.Lock != nil {
		t.Errorf("somebody who may not did: %+v", s.Status)
	}
	admin := w.stateAccount("all", all...)
	for _, r := range requests {
		if code, text := service.ask(admin, r.method, r.path, r.body); code/100 != 2 {
			t.Errorf("who may all: %s %s: %d %.300s", r.method, r.path, code, text)
		}
	}
}

// TestRaceForOneLockOverTheNetwork has 64 clients ask for one lock at a time: each time
// one gets it, the others are told whose it is, and only that one writes.
func TestRaceForOneLockOverTheNetwork(t *testing.T) {
	const clients, rounds = 64, 5
	w := newWorld(t, map[string]string{"main.tf": moduleA})
	service, path := w.service(), w.ns+"/race"
	tokens := make([]string, clients)
	for i := range tokens {
		tokens[i] = w.stateToken("race", time.Now())
	}
	for round := range rounds {
		codes, texts := make([]int, clients), make([]string, clients)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				<-start
				codes[i], texts[i] = service.ask(tokens[i], "LOCK", path, lockText(fmt.Sprintf("%d-%d", round, i), fmt.Sprint("client-", i)))
			})
		}
		close(start)
		wg.Wait()
		winner := slices.Index(codes, http.StatusOK)
		if winner < 0 {
			t.Fatalf("round %d: nobody won: %v %.300s", round, codes, texts[0])
		}
		for i, code := range codes {
			if i != winner && (code != http.StatusLocked || !strings.Contains(texts[i], fmt.Sprintf(`"ID":"%d-%d"`, round, winner))) {
				t.Errorf("round %d: client %d beside the winner %d: %d %.300s", round, i, winner, code, texts[i])
			}
		}
		id, loser := fmt.Sprintf("%d-%d", round, winner), (winner+1)%clients
		service.want(http.StatusLocked, id, tokens[loser], http.MethodPost, fmt.Sprintf("%s?ID=%d-%d", path, round, loser), stateText(round+1, "l", "loser"))
		service.want(http.StatusLocked, id, tokens[loser], "UNLOCK", path, lockText(fmt.Sprintf("%d-%d", round, loser), "loser"))
		service.want(http.StatusOK, "", tokens[winner], http.MethodPost, path+"?ID="+id, stateText(round+1, "l", "winner"))
		service.want(http.StatusOK, "", tokens[winner], "UNLOCK", path, lockText(id, fmt.Sprint("client-", winner)))
		service.want(http.StatusOK, "winner", tokens[loser], http.MethodGet, path, "")
	}
	if s := w.state("race"); len(s.Status.Versions) != rounds || s.Status.Lock != nil {
		t.Errorf("after %d rounds: %d versions, lock %+v", rounds, len(s.Status.Versions), s.Status.Lock)
	}
}
