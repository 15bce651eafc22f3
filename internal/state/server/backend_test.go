// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/server"
)

// step is one request, and what is to come of it.
type step struct {
	method, path, body string
	headers            []string
	token              string // ann's unless it is said
	code               int
	says               string // a part of the answer
}

// TestProtocol has the rules of Terraform's HTTP backend, as they were measured.
func TestProtocol(t *testing.T) {
	one, two := text(1, "l", 1), text(2, "l", 2)
	for name, tc := range map[string]struct {
		reason string
		steps  []step
	}{
		"NoState": {"init asks before there is one", []step{{method: "GET", code: 404}}},
		"RoundTrip": {"what was posted is got", []step{
			{method: "POST", body: one, headers: []string{"Content-Type: application/json", "Content-MD5: " + sum(one)}, code: 200},
			{method: "GET", code: 200, says: one},
		}},
		"Put": {"update_method can be PUT", []step{{method: "PUT", body: one, code: 200}, {method: "GET", code: 200, says: one}}},
		"Apply": {"LOCK, GET, GET, POST, UNLOCK", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "GET", code: 404}, {method: "GET", code: 404},
			{method: "POST", path: "?ID=a", body: one, code: 200},
			{method: "UNLOCK", body: lockInfo("a"), code: 200},
			{method: "GET", code: 200, says: one},
		}},
		"LockTwice": {"the answer to LOCK was lost", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200}, {method: "LOCK", body: lockInfo("a"), code: 200},
		}},
		"LockHeld": {"the loser is told who holds it", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "LOCK", body: lockInfo("b"), code: 423, says: `"Who":"me@a"`},
		}},
		"LockAfterUnlock": {"-lock-timeout asks again with the same ID", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "LOCK", body: lockInfo("b"), code: 423},
			{method: "UNLOCK", body: lockInfo("a"), code: 200},
			{method: "LOCK", body: lockInfo("b"), code: 200},
		}},
		"UnlockTwice": {"the answer to UNLOCK was lost", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "UNLOCK", body: lockInfo("a"), code: 200}, {method: "UNLOCK", body: lockInfo("a"), code: 200},
		}},
		"UnlockForeign": {"another ID releases nothing", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "UNLOCK", body: lockInfo("b"), code: 423, says: `"ID":"a"`},
		}},
		"UnlockUnknown": {"nothing is locked, and by that ID nothing was", []step{
			{method: "POST", body: one, code: 200}, {method: "UNLOCK", body: lockInfo("b"), code: 409},
		}},
		"PostTwice": {"the answer to POST was lost", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "POST", path: "?ID=a", body: one, code: 200}, {method: "POST", path: "?ID=a", body: one, code: 200},
			{method: "GET", path: "/versions", code: 200, says: `"version":1`}, {method: "GET", path: "/versions/2", code: 404},
		}},
		"PostUnderOtherLock": {"the holder's LockInfo comes back", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "POST", path: "?ID=b", body: one, code: 423, says: `"ID":"a"`},
			{method: "POST", body: one, code: 423, says: `"ID":"a"`},
			{method: "GET", code: 404},
		}},
		"PostUnlocked":    {"-lock=false sends no ID", []step{{method: "POST", body: one, code: 200}}},
		"PostLowerSerial": {"it would undo a write", []step{{method: "POST", body: two, code: 200}, {method: "POST", body: one, code: 409, says: "serial"}}},
		"PostSameSerial":  {"two made the same serial", []step{{method: "POST", body: text(2, "l", 1), code: 200}, {method: "POST", body: two, code: 409, says: "serial"}}},
		"PostLineage": {"another state, unless somebody insists", []step{
			{method: "POST", body: one, code: 200},
			{method: "POST", body: text(2, "m", 1), code: 409, says: "lineage"},
			{method: "POST", path: "?force=maybe", body: text(2, "m", 1), code: 400},
			{method: "POST", path: "?force", body: text(2, "m", 1), code: 200},
		}},
		"ForceNeedsMore": {"writing over another state is not what a writer may", []step{
			{method: "POST", token: "bob-token", body: one, code: 200},
			{method: "POST", token: "bob-token", path: "?force=true", body: text(2, "m", 1), code: 403, says: "rollback"},
			{method: "POST", token: "bob-token", path: "?force=false", body: two, code: 200},
		}},
		"WrongMD5": {"damaged on the way", []step{
			{method: "POST", body: one, headers: []string{"Content-MD5: " + sum(two)}, code: 400},
			{method: "POST", body: one, headers: []string{"Content-MD5: x"}, code: 400},
			{method: "GET", code: 404},
		}},
		"NoState4": {"what is no state is refused", []step{
			{method: "POST", body: "", code: 400}, {method: "POST", body: "{}", code: 400}, {method: "POST", body: "[1]", code: 400},
			{method: "POST", body: `{"version":3,"serial":1}`, code: 400}, {method: "GET", code: 404},
		}},
		"Large":     {"size is bounded", []step{{method: "POST", body: strings.Repeat(" ", 1<<20) + one, code: 413}}},
		"Encrypted": {"by OpenTofu", []step{{method: "POST", body: `{"serial":1,"lineage":"l","meta":{},"encrypted_data":"eA==","encryption_version":"v0"}`, code: 200}}},
		"ForceUnlockOfTerraform": {"an UNLOCK without a body", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "UNLOCK", token: "bob-token", code: 403, says: "force-unlock"},
			{method: "UNLOCK", code: 200},
			{method: "LOCK", body: lockInfo("b"), code: 200},
		}},
		"ForceUnlockOfOpenTofu": {"an ID and nothing else is not what the holder says", []step{
			{method: "LOCK", token: "bob-token", body: lockInfo("a"), code: 200},
			{method: "UNLOCK", token: "bob-token", body: bareLock("a"), code: 403, says: "force-unlock"},
			{method: "UNLOCK", body: bareLock("b"), code: 423},
			{method: "UNLOCK", body: bareLock("a"), code: 200},
			{method: "UNLOCK", body: bareLock("a"), code: 200},
			{method: "LOCK", body: lockInfo("b"), code: 200},
		}},
		"BareHolder": {"a holder that only ever said its ID gives it back", []step{
			{method: "LOCK", token: "bob-token", body: `{"ID":"a"}`, code: 200},
			{method: "UNLOCK", token: "bob-token", body: `{"ID":"a"}`, code: 200},
		}},
		"BrokenLock": {"who lost its lock writes no more, but may say the same again", []step{
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "POST", path: "?ID=a", body: one, code: 200},
			{method: "UNLOCK", code: 200},
			{method: "POST", path: "?ID=a", body: two, code: 409, says: "not held any more"},
			{method: "POST", path: "?ID=a", body: one, code: 200},
		}},
		"BadLock": {"a lock is a JSON object with an ID", []step{
			{method: "LOCK", code: 400}, {method: "LOCK", body: "{", code: 400}, {method: "LOCK", body: `{"ID":""}`, code: 400},
			{method: "LOCK", body: `{"ID":"` + strings.Repeat("a", 1<<20) + `"}`, code: 413}, {method: "UNLOCK", body: "x", code: 400},
		}},
		"LockAddress": {"lock_address with methods that proxies know", []step{
			{method: "PUT", path: "/lock", body: lockInfo("a"), code: 200}, {method: "POST", path: "/lock", body: lockInfo("b"), code: 423},
			{method: "DELETE", path: "/lock", body: lockInfo("a"), code: 200}, {method: "POST", path: "/lock", body: lockInfo("b"), code: 200},
			{method: "UNLOCK", path: "/lock", body: lockInfo("b"), code: 200}, {method: "LOCK", path: "/lock", body: lockInfo("b"), code: 200},
			{method: "GET", path: "/lock", code: 405},
		}},
		"Delete": {"not with resources in it, and not while it is locked", []step{
			{method: "DELETE", code: 404},
			{method: "POST", body: one, code: 200},
			{method: "DELETE", token: "bob-token", code: 403},
			{method: "DELETE", code: 409, says: "resources"},
			{method: "LOCK", body: lockInfo("a"), code: 200}, {method: "DELETE", path: "?force=1", code: 423},
			{method: "UNLOCK", body: lockInfo("a"), code: 200},
			{method: "DELETE", path: "?force=1", code: 200}, {method: "GET", code: 404},
		}},
		"Rollback": {"an old version becomes the newest", []step{
			{method: "POST", body: one, code: 200}, {method: "POST", body: two, code: 200},
			{method: "POST", token: "bob-token", path: "/rollback?version=1", code: 403},
			{method: "POST", path: "/rollback?version=9", code: 404}, {method: "POST", path: "/rollback", code: 400},
			{method: "POST", path: "/rollback?version=1", code: 200, says: `"serial":3`},
			{method: "GET", path: "/versions/1", code: 200, says: one}, {method: "GET", path: "/versions/0", code: 400},
			{method: "GET", path: "/versions/3", code: 200, says: `"serial": 3`},
			{method: "LOCK", body: lockInfo("a"), code: 200},
			{method: "POST", path: "/rollback?version=1", code: 423}, {method: "POST", path: "/rollback?version=1&ID=a", code: 200},
		}},
		"Move": {"another name for the same", []step{
			{method: "POST", body: one, code: 200},
			{method: "POST", token: "bob-token", path: "/move?to=new", code: 403}, {method: "POST", path: "/move?to=../x", code: 400},
			{method: "POST", path: "/move?to=new", code: 200}, {method: "GET", code: 404},
		}},
		"Methods": {"others are refused", []step{{method: "PATCH", code: 405}, {method: "PROPFIND", code: 405}}},
		"Account": {"who is not known gets nothing", []step{
			{method: "GET", token: "nobody", code: 401}, {method: "POST", token: "nobody", body: one, code: 401},
			{method: "LOCK", token: "eve-token", body: lockInfo("a"), code: 403}, {method: "GET", token: "eve-token", code: 403},
			{method: "POST", token: "carl-token", body: one, code: 403}, {method: "GET", token: "carl-token", code: 404},
			{method: "GET", path: "/versions", token: "eve-token", code: 403}, {method: "GET", path: "/versions/1", token: "eve-token", code: 403},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for i, s := range tc.steps {
				token := s.token
				if token == "" {
					token = "ann-token"
				}
				a := w.as(token).ask(s.method, netPath+s.path, s.body, s.headers...)
				if a.code != s.code || !strings.Contains(a.body, s.says) {
					t.Errorf("%s: step %d, %s %s: %d %q, want %d %q", tc.reason, i, s.method, s.path, a.code, a.body, s.code, s.says)
				}
			}
		})
	}
}

func TestHeldLockIsTheHoldersLockInfo(t *testing.T) {
	w := newWorld(t)
	w.ask("LOCK", netPath, lockInfo("a"))
	a := w.ask("LOCK", netPath, lockInfo("b"))
	var got, want state.Lock
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatalf("%q: %v", a.body, err)
	}
	if err := json.Unmarshal([]byte(lockInfo("a")), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s\n%s", a.header, diff)
	}
}

func TestGetDescribesTheVersion(t *testing.T) {
	w := newWorld(t)
	one := text(1, "l", 1)
	posted := w.ask("POST", netPath, one)
	got := w.ask("GET", netPath, "")
	if tag := got.header.Get("ETag"); tag == "" || tag != posted.header.Get("ETag") || !strings.HasPrefix(tag, `"1-`) {
		t.Errorf("ETag %q, and %q when it was posted", tag, posted.header.Get("ETag"))
	}
	if got.header.Get("Content-MD5") != sum(one) || got.header.Get("X-Terrace-Version") != "1" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", got.header)
	}
	head := w.ask("HEAD", netPath, "")
	if head.code != 200 || head.body != "" || head.header.Get("ETag") != got.header.Get("ETag") {
		t.Errorf("HEAD: %+v", head)
	}
	if other := w.ask("POST", netPath, text(2, "l", 1)); other.header.Get("ETag") == got.header.Get("ETag") {
		t.Error("two versions have the same ETag")
	}
}

func TestPaths(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]int{
		"/state/ns/Net": 400, "/state/NS/net": 400, "/state/ns/a%2Fb": 400, "/state/ns/a_b": 400, "/state/n.s/net": 400,
		"/state/ns": 404, "/state/": 404, "/": 404, "/state/ns/net/more": 404, "/state/ns/" + strings.Repeat("a", 254): 400,
	} {
		if a := w.ask("GET", path, ""); a.code != want {
			t.Errorf("%s: %d %s, want %d", path, a.code, a.body, want)
		}
		if a := w.as("").ask("GET", path, ""); strings.HasPrefix(path, "/state/ns/") && a.code == 200 {
			t.Errorf("%s without a token: %d", path, a.code)
		}
	}
}

func TestAwayIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.failing = errBroken
	for _, method := range []string{"GET", "POST", "LOCK", "UNLOCK"} {
		body := lockInfo("a")
		if method == "POST" {
			body = text(1, "l", 1)
		}
		if a := w.ask(method, netPath, body); a.code != 503 {
			t.Errorf("%s: %d %s; clients only try 5xx again", method, a.code, a.body)
		}
	}
	w.failing = nil
	w.reviewer.fail(errBroken)
	if a := w.as("bob-token").ask("GET", netPath, ""); a.code != 503 {
		t.Errorf("nobody knows who it is: %d", a.code)
	}
}

// TestRaceForOneLock: of 64 clients one wins each time, and writes.
func TestRaceForOneLock(t *testing.T) {
	w := newWorld(t)
	for round := range 5 {
		var winner atomic.Pointer[string]
		var wins, held atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				id := fmt.Sprintf("%d-%d", round, i)
				switch a := w.ask("LOCK", netPath, lockInfo(id)); a.code {
				case http.StatusOK:
					wins.Add(1)
					winner.Store(&id)
				case http.StatusLocked:
					held.Add(1)
				default:
					t.Errorf("%d %s", a.code, a.body)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 || held.Load() != 63 {
			t.Fatalf("%d winners, %d losers", wins.Load(), held.Load())
		}
		id := *winner.Load()
		if a := w.ask("POST", netPath+"?ID="+id, text(round+1, "l", 1)); a.code != 200 {
			t.Errorf("the winner writes: %d %s", a.code, a.body)
		}
		if a := w.ask("UNLOCK", netPath, lockInfo(id)); a.code != 200 {
			t.Errorf("the winner unlocks: %d %s", a.code, a.body)
		}
	}
}

func TestLedger(t *testing.T) {
	w := newWorld(t)
	type told struct {
		Verb, By, Run, Detail string
		Version, Made         int64
		Failed                bool
	}
	look := func() []told {
		var out []told
		for _, e := range w.recorded() {
			if e.State != netKey {
				t.Errorf("%+v is about another state", e)
			}
			out = append(out, told{e.Verb, e.By, e.Run, e.Detail, e.Version, e.made, e.err != nil})
		}
		return out
	}
	for _, s := range []struct {
		method, path, body string
		code               int
		want               []told
	}{
		{"LOCK", "", lockInfo("a"), 200, nil},
		{"POST", "?ID=a", text(1, "l", 1), 200, []told{{Verb: "write", By: "ann", Detail: "serial 1, 1 resources", Made: 1}}},
		{"GET", "", "", 200, nil},
		{"POST", "", text(2, "l", 1), 423, []told{{Verb: "write", By: "ann", Detail: "serial 2, 1 resources", Failed: true}}},
		{"UNLOCK", "", "", 200, []told{{Verb: "force-unlock", By: "ann", Detail: `state is locked by "a" of me@a (OperationTypeApply) since 2026-01-01T10:00:00Z`}}},
		{"LOCK", "", lockInfo("a"), 200, nil}, {"UNLOCK", "", lockInfo("a"), 200, nil},
		{"POST", "?force", text(1, "m", 0), 200, []told{{Verb: "write", By: "ann", Detail: "serial 1, 0 resources, by force", Made: 2}}},
		{"POST", "/rollback?version=1", "", 200, []told{{Verb: "rollback", By: "ann", Detail: "to version 1", Version: 1, Made: 3}}},
		{"POST", "/tokens", `{"read":true}`, 201, []told{{Verb: "token", By: "ann", Detail: "reads, until 2026-01-01T01:00:00Z"}}},
		{"DELETE", "?force", "", 200, []told{{Verb: "delete", By: "ann", Detail: "by force"}}},
	} {
		if a := w.ask(s.method, netPath+s.path, s.body); a.code != s.code {
			t.Errorf("%s %s: %d %s", s.method, s.path, a.code, a.body)
		}
		if diff := cmp.Diff(s.want, look()); diff != "" {
			t.Errorf("%s %s:\n%s", s.method, s.path, diff)
		}
	}
	// What cannot be recorded is not done.
	w.must(text(1, "l", 0))
	w.refuse = errBroken
	for _, s := range [][3]string{{"POST", "", text(2, "l", 1)}, {"POST", "/rollback?version=1", ""}, {"DELETE", "", ""}, {"UNLOCK", "", ""}, {"POST", "/tokens", ""}} {
		if a := w.ask(s[0], netPath+s[1], s[2]); a.code != 503 || strings.Contains(a.body, "terrace_state_") {
			t.Errorf("%s %s without a ledger: %d %s", s[0], s[1], a.code, a.body)
		}
	}
	if a := w.ask("GET", netPath, ""); a.body != text(1, "l", 0) {
		t.Errorf("it was done all the same: %s", a.body)
	}
}

// FuzzLock: whatever comes as a lock, the server answers, and what it takes it can
// show to a loser and take back.
func FuzzLock(f *testing.F) {
	for _, s := range []string{lockInfo("a"), bareLock("a"), "", "{", `{"ID":1}`, `{"ID":"\u0000"}`, `{"ID":"a","Created":"x"}`, `[]`, "null", `{"ID":"a","ID":"b"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := newWorld(t)
		a := w.ask("LOCK", netPath, string(body))
		switch a.code {
		case 400, 413:
		case 200:
			b := w.ask("LOCK", netPath, lockInfo("other"))
			var held state.Lock
			if err := json.Unmarshal([]byte(b.body), &held); b.code == 423 && (err != nil || held.ID == "") {
				t.Errorf("a loser is told %q: %v", b.body, err)
			}
			if c := w.ask("UNLOCK", netPath, string(body)); c.code != 200 {
				t.Errorf("the holder cannot unlock: %d %s", c.code, c.body)
			}
		default:
			t.Errorf("%d %s", a.code, a.body)
		}
	})
}

// FuzzPost: whatever comes as a state is refused, or comes back as it was.
func FuzzPost(f *testing.F) {
	for _, s := range []string{text(1, "l", 1), "", "{", `{"version":4}`, `{"version":4,"serial":-1}`, `{"version":4,"serial":1e99}`, `{"encrypted_data":1}`, `{"version":4,"outputs":[]}`} {
		f.Add([]byte(s), "", "")
	}
	f.Add([]byte(text(1, "l", 1)), "ID=a", base64.StdEncoding.EncodeToString(make([]byte, 16)))
	f.Fuzz(func(t *testing.T, body []byte, query, md5 string) {
		if strings.ContainsAny(query, " #\x00\r\n\x7f") || strings.ContainsFunc(query, func(r rune) bool { return r < 32 || r > 126 }) {
			t.Skip("no request line has that")
		}
		w := newWorld(t, func(o *server.Options) { o.MaxPayload = 4096 })
		a := w.ask("POST", netPath+"?"+query, string(body), "Content-MD5: "+md5)
		switch got := w.ask("GET", netPath, ""); {
		case a.code == 200 && got.body != string(body):
			t.Errorf("%q came back as %q", body, got.body)
		case a.code != 200 && got.code != 404:
			t.Errorf("%d, and yet there is %q", a.code, got.body)
		case a.code >= 500:
			t.Errorf("%d %s", a.code, a.body)
		}
	})
}
