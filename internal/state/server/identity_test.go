// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// allowed tries everything, and says what an identity may do with a state. The state
// has a version, and is not locked; it is put back after each request.
func (u *user) allowed(path string) []string {
	var out []string
	for _, s := range []struct{ what, method, path, body string }{
		{"get", "GET", "", ""}, {"get version", "GET", "/versions/1", ""}, {"list versions", "GET", "/versions", ""},
		{"lock", "LOCK", "", lockInfo("try")}, {"unlock", "UNLOCK", "", lockInfo("try")},
		{"write", "POST", "", text(1000, "l", 1)}, {"force", "POST", "?force", text(1, "z", 1)},
		{"force-unlock", "UNLOCK", "", ""}, {"rollback", "POST", "/rollback?version=1", ""},
		{"token", "POST", "/tokens", ""}, {"move", "POST", "/move?to=other", ""}, {"delete", "DELETE", "", ""},
	} {
		a := u.ask(s.method, path+s.path, s.body)
		switch a.code {
		case 403:
		case 401:
			return []string{"401"}
		default:
			out = append(out, s.what)
		}
	}
	return out
}

func TestWhoMayWhat(t *testing.T) {
	reads := []string{"get", "get version", "list versions"}
	plans := append(slices.Clone(reads), "lock", "unlock")
	applies := append(slices.Clone(plans), "write")
	grant := func(g server.Grant) func(*world) string {
		return func(w *world) string {
			token, revoke, err := w.grants.New(g)
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(revoke)
			return token
		}
	}
	minted := func(write bool) func(*world) string {
		return func(w *world) string {
			token, _, err := w.tokens.Mint(netKey, write, "ann", time.Hour)
			if err != nil {
				w.t.Fatal(err)
			}
			return token
		}
	}
	for name, tc := range map[string]struct {
		reason string
		token  func(*world) string
		want   []string
		other  []string // what it may do with another state
	}{
		"Plan":       {reason: "a plan reads and locks", token: grant(server.Grant{State: netKey, Run: "r"}), want: plans},
		"Apply":      {reason: "an apply writes as well", token: grant(server.Grant{State: netKey, Run: "r", Write: true}), want: applies},
		"TokenRead":  {reason: "a token to read reads", token: minted(false), want: reads},
		"TokenWrite": {reason: "a token to write does what a run does", token: minted(true), want: applies},
		"Reader":     {reason: "RBAC says get", token: func(*world) string { return "carl-token" }, want: reads, other: reads},
		"Writer":     {reason: "RBAC says get, update, lock, unlock", token: func(*world) string { return "bob-token" }, want: append(slices.Clone(applies), "token"), other: append(slices.Clone(applies), "token")},
		"Nothing":    {reason: "RBAC says nothing", token: func(*world) string { return "eve-token" }},
		"Nobody":     {reason: "the token is unknown", token: func(*world) string { return "mallory" }, want: []string{"401"}, other: []string{"401"}},
		"NoToken":    {reason: "no token", token: func(*world) string { return "" }, want: []string{"401"}, other: []string{"401"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.must(text(1, "l", 1))
			u := w.as(tc.token(w))
			if diff := cmp.Diff(tc.want, u.allowed(netPath)); diff != "" {
				t.Errorf("%s:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.other, u.allowed("/state/ns/other")); diff != "" {
				t.Errorf("%s: another state:\n%s", tc.reason, diff)
			}
			if got := u.allowed("/state/elsewhere/net"); len(got) > 0 && got[0] != "401" {
				t.Errorf("%s: another namespace: %v", tc.reason, got)
			}
		})
	}
}

func TestTokenPlaces(t *testing.T) {
	w := newWorld(t)
	w.must(text(1, "l", 1))
	for _, h := range []string{"Authorization: Bearer ann-token", "Authorization: bearer ann-token", "X-Terrace-Token: ann-token"} {
		if a := w.as("").ask("GET", netPath, "", h); a.code != 200 {
			t.Errorf("%s: %d", h, a.code)
		}
	}
	a := w.as("").ask("GET", netPath, "", "Authorization: Bearer "+strings.Repeat("a", 1<<16))
	if a.code != 401 || w.reviewer.asked > 3 {
		t.Errorf("a huge token: %d", a.code)
	}
	if a := w.as("").ask("GET", netPath, ""); a.code != 401 || !strings.Contains(a.header.Get("WWW-Authenticate"), "Basic") || !strings.Contains(a.body, "no token") {
		t.Errorf("no token: %d %v %s", a.code, a.header, a.body)
	}
}

func TestGrantOfARun(t *testing.T) {
	w := newWorld(t)
	var locks, written, seen []string
	var refuse error
	token, revoke, err := w.grants.New(server.Grant{
		State: netKey, Write: true, Run: "run-1", Unit: "Terraform/ns/net",
		OnLock:  func(id string) error { locks = append(locks, id); return refuse },
		OnWrite: func(v v1alpha1.StateVersion, b []byte) { written = append(written, fmt.Sprint(v.Version, string(b))) },
		OnRead:  func(v v1alpha1.StateVersion, b []byte) { seen = append(seen, fmt.Sprint(v.Version, string(b))) },
	})
	if err != nil {
		t.Fatal(err)
	}
	run, one := w.as(token), text(1, "l", 1)
	refuse = errBroken
	if a := run.ask("LOCK", netPath, lockInfo("a")); a.code != 503 {
		t.Errorf("a lock that cannot be noted is taken: %d", a.code)
	}
	if _, err := w.store.Get(t.Context(), netKey); !errors.Is(err, store.ErrNoState) {
		t.Errorf("it was taken: %v", err)
	}
	refuse = nil
	for _, s := range [][3]string{{"LOCK", "", lockInfo("a")}, {"POST", "?ID=a", one}, {"GET", "", ""}, {"UNLOCK", "", lockInfo("a")}} {
		if a := run.ask(s[0], netPath+s[1], s[2]); a.code != 200 {
			t.Errorf("%s: %d %s", s[0], a.code, a.body)
		}
	}
	if diff := cmp.Diff([][]string{{"a", "a"}, {"1" + one}, {"1" + one}}, [][]string{locks, written, seen}); diff != "" {
		t.Error(diff)
	}
	o, err := w.store.Get(t.Context(), netKey)
	if err != nil {
		t.Fatal(err)
	}
	if v := o.Status.Versions[0]; v.By != "Terraform/ns/net" || v.Run != "run-1" || v.Operation != "apply" {
		t.Errorf("%+v", v)
	}
	if a := run.ask("GET", "/state/ns/other", ""); a.code != 403 || !strings.Contains(a.body, "run run-1 may reach the state ns/net, and not ns/other") {
		t.Errorf("another state: %d %s", a.code, a.body)
	}
	revoke()
	if a := run.ask("GET", netPath, ""); a.code != 401 || !strings.Contains(a.body, "its run has ended") {
		t.Errorf("after the run: %d %s", a.code, a.body)
	}
	revoke()
}

// TestRevokeWaits: a state that has arrived is written before the run counts as ended.
func TestRevokeWaits(t *testing.T) {
	arrived, goOn, revoked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(o *server.Options) {
		o.Audit = func(context.Context, server.Event) (func(int64, error), error) {
			close(arrived)
			<-goOn
			return nil, nil
		}
	})
	token, revoke, err := w.grants.New(server.Grant{State: netKey, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	code := make(chan int, 1)
	go func() { code <- w.as(token).ask("POST", netPath, text(1, "l", 1)).code }()
	<-arrived
	go func() { revoke(); close(revoked) }()
	// The token goes at once, the write gets its end.
	for w.as(token).ask("GET", netPath, "").code != 401 {
	}
	select {
	case <-revoked:
		t.Error("revoked while a write was on its way")
	default:
	}
	close(goOn)
	<-revoked
	if c := <-code; c != 200 {
		t.Errorf("the write: %d", c)
	}
	if _, _, err := w.store.Read(t.Context(), netKey, 0); err != nil {
		t.Error(err)
	}
}

func TestSignedTokens(t *testing.T) {
	w := newWorld(t)
	w.must(text(1, "l", 1))
	mint := func(user, body string) answer { return w.as(user).ask("POST", netPath+"/tokens", body) }
	for _, tc := range []struct {
		reason, user, body string
		code               int
		says               string
	}{
		{"an empty question asks for an hour", "ann-token", "", 201, `"expires":"2026-01-01T01:00:00Z"`},
		{"as long as asked for", "ann-token", `{"for":"36h"}`, 201, `"expires":"2026-01-02T12:00:00Z"`},
		{"no longer than a month", "ann-token", `{"for":"8760h"}`, 400, "720h"},
		{"no token of the past", "ann-token", `{"for":"-1h"}`, 400, "no duration"},
		{"no nonsense", "ann-token", `{"for":"soon"}`, 400, "no duration"},
		{"no nonsense at all", "ann-token", `x`, 400, "not understood"},
		{"a reader gives no right to write", "carl-token", "", 403, "cannot lock"},
		{"a reader gives the right to read", "carl-token", `{"read":true}`, 201, "token"},
		{"who may nothing gives nothing", "eve-token", `{"read":true}`, 403, "cannot get"},
	} {
		if a := mint(tc.user, tc.body); a.code != tc.code || !strings.Contains(a.body, tc.says) {
			t.Errorf("%s: %d %s", tc.reason, a.code, a.body)
		}
	}
	var made server.TokenAnswer
	if err := json.Unmarshal([]byte(mint("ann-token", `{"for":"1h"}`).body), &made); err != nil {
		t.Fatal(err)
	}
	if a := w.as(made.Token).ask("POST", netPath, text(2, "l", 1)); a.code != 200 {
		t.Errorf("with a good token: %d %s", a.code, a.body)
	}
	if o, err := w.store.Get(t.Context(), netKey); err != nil || !strings.HasPrefix(o.Status.Versions[0].By, "ann (token ") {
		t.Errorf("who wrote with the token: %+v, %v", o.Status.Versions[0], err)
	}
	if a := w.as(made.Token).ask("POST", netPath+"/tokens", ""); a.code != 403 || !strings.Contains(a.body, "own account") {
		t.Errorf("a token asks for a token: %d %s", a.code, a.body)
	}
	for i := range len(made.Token) {
		changed := []byte(made.Token)
		changed[i] ^= 1
		if a := w.as(string(changed)).ask("GET", netPath, ""); a.code != 401 {
			t.Errorf("changed at %d: %d %s", i, a.code, a.body)
		}
	}
	w.clock.Step(time.Hour)
	if a := w.as(made.Token).ask("GET", netPath, ""); a.code != 401 || !strings.Contains(a.body, "expired at 2026-01-01T01:00:00Z") {
		t.Errorf("expired: %d %s", a.code, a.body)
	}
	other, err := server.OpenTokens(filepath.Join(t.TempDir(), "k"), w.clock)
	if err != nil {
		t.Fatal(err)
	}
	foreign, _, err := other.Mint(netKey, true, "ann", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if a := w.as(foreign).ask("GET", netPath, ""); a.code != 401 {
		t.Errorf("signed with another key: %d", a.code)
	}
	without := newWorld(t, func(o *server.Options) { o.Tokens = nil })
	if a := without.ask("POST", netPath+"/tokens", ""); a.code != 501 {
		t.Errorf("a server without tokens: %d", a.code)
	}
}

func TestTokenKeyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys", "tokens")
	one, err := server.OpenTokens(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	two, err := server.OpenTokens(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := one.Mint(netKey, false, "ann", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if _, err := two.Authorize(t.Context(), r); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := server.OpenTokens(file, nil); err == nil {
		t.Error("a key that others read is taken")
	}
	if err := os.WriteFile(file, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.OpenTokens(file, nil); err == nil {
		t.Error("a damaged key is taken")
	}
}

// TestReviewsAreKeptForAMoment: asking the API server for each request would cost more
// than the request; a right that is taken away is gone soon.
func TestReviewsAreKeptForAMoment(t *testing.T) {
	w := newWorld(t)
	w.must(text(1, "l", 1))
	for range 5 {
		if a := w.ask("GET", netPath, ""); a.code != 200 {
			t.Fatal(a.code)
		}
	}
	if w.reviewer.asked != 2 {
		t.Errorf("%d reviews for five requests, want 2", w.reviewer.asked)
	}
	w.reviewer.rights["ann"] = nil
	w.clock.Step(6 * time.Second)
	if a := w.ask("GET", netPath, ""); a.code != 403 {
		t.Errorf("after the right was taken away: %d", a.code)
	}
	// Failures are not kept.
	w.clock.Step(6 * time.Second)
	w.reviewer.fail(errBroken)
	if a := w.ask("GET", netPath, ""); a.code != 503 {
		t.Errorf("while the API server is away: %d", a.code)
	}
	w.reviewer.fail(nil)
	if a := w.ask("GET", netPath, ""); a.code != 403 {
		t.Errorf("when it is back: %d", a.code)
	}
	// Who tries many tokens fills no memory, and is asked about each.
	for i := range 3000 {
		if a := w.as(fmt.Sprint("guess-", i)).ask("GET", netPath, ""); a.code != 401 {
			t.Fatal(a.code)
		}
	}
}

// FuzzToken: no token that was not signed is known.
func FuzzToken(f *testing.F) {
	tokens, err := server.NewTokens(make([]byte, 32), nil)
	if err != nil {
		f.Fatal(err)
	}
	good, _, err := tokens.Mint(netKey, true, "ann", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{good, "terrace_state_", "terrace_state_.", "terrace_state_e30.e30", "", good + ".", strings.TrimSuffix(good, "A") + "A"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if strings.ContainsAny(token, "\r\n\x00") {
			t.Skip("no header has that")
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		if _, err := tokens.Authorize(t.Context(), r); err == nil && strings.TrimSpace(token) != good {
			t.Errorf("%q is taken", token)
		}
	})
}
