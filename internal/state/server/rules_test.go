// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// TestConversations has what the tools send for each of their commands, as it was
// measured, and what goes wrong with it on the way.
func TestConversations(t *testing.T) {
	one, two, empty := text(1, "l", 1), text(2, "l", 1), text(3, "l", 0)
	sealed := func(serial int, lineage string) string {
		return fmt.Sprintf(`{"serial":%d,"lineage":%q,"meta":{},"encrypted_data":"eA==","encryption_version":"v0"}`, serial, lineage)
	}
	lock := func(id string) step { return step{method: "LOCK", body: lockInfo(id), code: 200} }
	unlock := func(id string) step { return step{method: "UNLOCK", body: lockInfo(id), code: 200} }
	for name, tc := range map[string]struct {
		reason string
		steps  []step
	}{
		"Plan": {"it writes nothing, also before there is a state", []step{
			lock("a"), {method: "GET", code: 404}, unlock("a"), {method: "GET", code: 404},
			{method: "POST", body: one, code: 200},
			lock("b"), {method: "GET", code: 200, says: one}, unlock("b"), {method: "GET", path: "/versions/2", code: 404},
		}},
		"ApplyTwice": {"each apply is a version", []step{
			lock("a"), {method: "POST", path: "?ID=a", body: one, code: 200}, unlock("a"),
			lock("b"), {method: "GET", code: 200}, {method: "GET", code: 200}, {method: "POST", path: "?ID=b", body: two, code: 200}, unlock("b"),
			{method: "GET", path: "/versions/1", code: 200, says: one}, {method: "GET", path: "/versions/2", code: 200, says: two},
		}},
		"Several": {"an apply that takes long writes more than once under its lock", []step{
			lock("a"), {method: "POST", path: "?ID=a", body: one, code: 200}, {method: "POST", path: "?ID=a", body: two, code: 200},
			{method: "POST", path: "?ID=a", body: empty, code: 200}, unlock("a"), {method: "GET", code: 200, says: empty},
		}},
		"Destroy": {"it leaves a state of nothing, which may be removed", []step{
			{method: "POST", body: one, code: 200}, {method: "DELETE", code: 409},
			lock("a"), {method: "POST", path: "?ID=a", body: empty, code: 200}, unlock("a"),
			{method: "GET", code: 200, says: empty}, {method: "DELETE", code: 200}, {method: "GET", code: 404},
		}},
		"MigrateAway": {"init -migrate-state reads and leaves all as it was", []step{
			{method: "POST", body: one, code: 200},
			{method: "GET", code: 200}, lock("a"), {method: "GET", code: 200, says: one}, unlock("a"), {method: "GET", code: 200, says: one},
		}},
		"PushByForce": {"the tool makes the serial higher; the lineage it does not", []step{
			{method: "POST", body: one, code: 200}, lock("a"), {method: "GET", code: 200},
			{method: "POST", path: "?ID=a", body: text(2, "other", 1), code: 409, says: "lineage"},
			{method: "POST", path: "?ID=a&force=true", body: text(2, "other", 1), code: 200}, unlock("a"),
		}},
		"OwnQuery": {"a query in the address stays, and the ID is added to it", []step{
			{method: "LOCK", path: "?env=prod", body: lockInfo("a"), code: 200}, {method: "GET", path: "?env=prod", code: 404},
			{method: "POST", path: "?env=prod", body: one, code: 423},
			{method: "POST", path: "?ID=a&env=prod", body: one, code: 200}, {method: "UNLOCK", path: "?env=prod", body: lockInfo("a"), code: 200},
		}},
		"TwoIDs": {"no second ID helps who does not hold the lock", []step{
			lock("a"), {method: "POST", path: "?ID=b&ID=a", body: one, code: 423}, {method: "POST", path: "?id=a", body: one, code: 423}, {method: "GET", code: 404},
		}},
		"LateUnlock": {"an UNLOCK that comes again releases nobody else", []step{
			lock("a"), unlock("a"), lock("b"),
			{method: "UNLOCK", body: lockInfo("a"), code: 423, says: `"ID":"b"`},
			{method: "UNLOCK", body: bareLock("a"), code: 423, says: `"ID":"b"`},
			{method: "POST", path: "?ID=b", body: one, code: 200}, unlock("b"),
		}},
		"LatePost": {"a POST that comes again under another's lock says whose it is, and changes nothing", []step{
			lock("a"), {method: "POST", path: "?ID=a", body: one, code: 200}, unlock("a"), lock("b"),
			{method: "POST", path: "?ID=a", body: two, code: 423, says: `"ID":"b"`},
			{method: "POST", path: "?ID=a", body: one, code: 423, says: `"ID":"b"`}, unlock("b"),
			{method: "POST", path: "?ID=a", body: two, code: 409}, {method: "GET", code: 200, says: one},
		}},
		"OlderVersionAgain": {"only the newest may come twice", []step{
			{method: "POST", body: one, code: 200}, {method: "POST", body: two, code: 200},
			{method: "POST", body: one, code: 409, says: "serial"}, {method: "POST", body: two, code: 200}, {method: "GET", path: "/versions/3", code: 404},
		}},
		"EncryptedFollows": {"what OpenTofu encrypts has a serial and a lineage all the same", []step{
			{method: "POST", body: sealed(2, "l"), code: 200}, {method: "POST", body: sealed(2, "l"), code: 200},
			{method: "POST", body: sealed(1, "l"), code: 409, says: "serial"}, {method: "POST", body: sealed(3, "m"), code: 409, says: "lineage"},
			{method: "POST", body: one, code: 409, says: "serial"},
			{method: "POST", body: sealed(3, "l"), code: 200}, {method: "POST", path: "/rollback?version=1", code: 409, says: "encrypted"},
			{method: "DELETE", code: 409, says: "nobody can tell"}, {method: "GET", code: 200, says: sealed(3, "l")},
		}},
		"WordsOfALock": {"operations have names with spaces, and whatever a person said", []step{
			{method: "LOCK", body: `{"ID":"a","Operation":"migration source state","Info":"a \"b\"\n<c>","Who":"ann@x","Version":"1.11.4","Created":"2026-01-01T10:00:00.123456789Z","Path":"p"}`, code: 200},
			{method: "LOCK", body: lockInfo("b"), code: 423, says: `"Operation":"migration source state"`},
			{method: "LOCK", body: `{"ID":"a"}`, code: 200}, unlock("a"),
		}},
		"Types": {"clients say what they like of the type", []step{
			{method: "POST", body: one, headers: []string{"Content-Type: text/plain"}, code: 200},
			{method: "POST", body: two, headers: []string{"Content-Type: "}, code: 200},
		}},
		"Junk": {"nothing follows a state", []step{{method: "POST", body: one + "{}", code: 400}, {method: "POST", body: one + "x", code: 400}, {method: "GET", code: 404}}},
		"Serials": {"a serial is a number that has a next", []step{
			{method: "POST", body: `{"version":4,"serial":-1,"lineage":"l"}`, code: 400}, {method: "POST", body: `{"version":4,"serial":1.5,"lineage":"l"}`, code: 400},
			{method: "POST", body: `{"version":4,"serial":18446744073709551615,"lineage":"l"}`, code: 400}, {method: "GET", code: 404},
			{method: "POST", body: `{"version":4,"serial":0,"lineage":"l"}`, code: 200},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for i, s := range tc.steps {
				a := w.ask(s.method, netPath+s.path, s.body, s.headers...)
				if a.code != s.code || !strings.Contains(a.body, s.says) {
					t.Errorf("%s: step %d, %s %s: %d %q, want %d %q", tc.reason, i, s.method, s.path, a.code, a.body, s.code, s.says)
				}
			}
		})
	}
}

// torn is a body that ends before its end.
type torn struct{ io.Reader }

func (r torn) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// TestBodiesThatDoNotSayTheirLength: what comes in pieces is bounded and checked as well.
func TestBodiesThatDoNotSayTheirLength(t *testing.T) {
	one := text(1, "l", 1)
	for name, tc := range map[string]struct {
		method string
		body   io.Reader
		code   int
	}{
		"Whole":    {"POST", strings.NewReader(one), 200},
		"TooLarge": {"POST", io.MultiReader(strings.NewReader(strings.Repeat(" ", 1<<20)), strings.NewReader(one)), 413},
		"Torn":     {"POST", torn{strings.NewReader(one)}, 400},
		"Lock":     {"LOCK", strings.NewReader(lockInfo("a")), 200},
		"LongLock": {"LOCK", io.MultiReader(strings.NewReader(strings.Repeat(" ", 64<<10)), strings.NewReader(lockInfo("a"))), 413},
		"TornLock": {"LOCK", torn{strings.NewReader(lockInfo("a"))}, 400},
		// Half a request must not be taken for one without a body, which breaks locks.
		"TornUnlock": {"UNLOCK", torn{strings.NewReader("")}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if tc.method == "UNLOCK" {
				w.ask("LOCK", netPath, lockInfo("a"))
			}
			r := httptest.NewRequestWithContext(t.Context(), tc.method, "http://states.test"+netPath, io.NopCloser(tc.body))
			r.ContentLength = -1
			r.SetBasicAuth("anybody", w.token)
			rec := httptest.NewRecorder()
			w.handler.ServeHTTP(rec, r)
			if rec.Code != tc.code {
				t.Errorf("%d %s, want %d", rec.Code, rec.Body, tc.code)
			}
			written, locked := w.ask("GET", netPath, "").code == 200, w.ask("LOCK", netPath, lockInfo("z")).code == 423
			if written != (tc.code == 200 && tc.method == "POST") || locked != (tc.code == 200 && tc.method == "LOCK" || tc.method == "UNLOCK") {
				t.Errorf("a state is there: %v, a lock: %v", written, locked)
			}
		})
	}
}

// TestTheSameAtOnce: a client asks again while its first request is still served.
func TestTheSameAtOnce(t *testing.T) {
	w := newWorld(t)
	ask := func(method, path, body string) {
		t.Helper()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if a := w.ask(method, path, body); a.code != http.StatusOK {
					t.Errorf("%s: %d %s", method, a.code, a.body)
				}
			})
		}
		wg.Wait()
	}
	ask("LOCK", netPath, lockInfo("a"))
	ask("POST", netPath+"?ID=a", text(1, "l", 1))
	ask("UNLOCK", netPath, lockInfo("a"))
	o, err := w.store.Get(t.Context(), netKey)
	if err != nil || len(o.Status.Versions) != 1 || o.Status.Lock != nil {
		t.Errorf("%+v, %v", o.Status, err)
	}
}

// TestLockOfARunIsItsOwn: the protocol tells losers all that the holder said of itself.
// Who says that again is not the run; to break its lock is a right of its own.
func TestLockOfARunIsItsOwn(t *testing.T) {
	w := newWorld(t)
	run, bob := w.as(w.grant(server.Grant{Run: "run-1", Unit: "u", Write: true})), w.as("bob-token")
	for range 2 { // the answer was lost
		if a := run.ask("LOCK", netPath, lockInfo("a")); a.code != 200 {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	told := bob.ask("LOCK", netPath, lockInfo("b")).body
	w.recorded()
	for _, tc := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"LOCK", "", told, 423, `"ID":"a"`}, {"POST", "?ID=a", text(1, "l", 1), 423, `"ID":"a"`},
		{"UNLOCK", "", told, 403, "force-unlock"}, {"DELETE", "/lock", told, 403, "force-unlock"}, {"UNLOCK", "", bareLock("a"), 403, "force-unlock"},
	} {
		if a := bob.ask(tc.method, netPath+tc.path, tc.body); a.code != tc.code || !strings.Contains(a.body, tc.says) {
			t.Errorf("%s %s: %d %s, want %d", tc.method, tc.path, a.code, a.body, tc.code)
		}
	}
	if a := run.ask("POST", netPath+"?ID=a", text(1, "l", 1)); a.code != 200 {
		t.Errorf("the run writes: %d %s", a.code, a.body)
	}
	w.recorded()
	if a := w.ask("UNLOCK", netPath, told); a.code != 200 {
		t.Errorf("who may break locks: %d %s", a.code, a.body)
	}
	if e := w.recorded(); len(e) != 1 || e[0].Verb != "force-unlock" || !strings.Contains(e[0].Detail, "me@a") {
		t.Errorf("the ledger: %+v", e)
	}
	if a := run.ask("POST", netPath+"?ID=a", text(2, "l", 1)); a.code != 409 {
		t.Errorf("the run writes without its lock: %d %s", a.code, a.body)
	}
	for range 2 {
		if a := run.ask("UNLOCK", netPath, lockInfo("a")); a.code != 200 {
			t.Errorf("the run gives back what was broken: %d %s", a.code, a.body)
		}
	}
}

// FuzzRequest: whatever is asked for at whatever address, nobody without the right to
// sees what a state holds, nobody without the right to changes it, and nothing is
// answered as if the server were broken.
func FuzzRequest(f *testing.F) {
	const secret, id = "content-of-a-state", "ws-bnMvbmV0" // ns/net
	content := strings.Replace(text(1, "l", 1), `"x"`, `"`+secret+`"`, 1)
	for _, seed := range [][4]string{
		{"GET", "state/ns/net", "", ""}, {"POST", "state/ns/net", "force&ID=a", text(2, "l", 1)}, {"LOCK", "state/ns/net", "", lockInfo("a")}, {"UNLOCK", "state/ns/net", "", ""},
		{"DELETE", "state/ns/net", "force=1", ""}, {"PUT", "state/ns/net/lock", "", lockInfo("a")}, {"GET", "state/ns/net/versions", "", ""}, {"HEAD", "state/ns/net/versions/1", "", ""},
		{"POST", "state/ns/net/rollback", "version=1&force=x", ""}, {"POST", "state/ns/net/move", "to=other", ""}, {"POST", "state/ns/net/tokens", "", `{"for":"1h","read":true}`},
		{"GET", "state/ns/../ns/net", "", ""}, {"POST", "state/ns/net/", "%zz", ""}, {"CONNECT", "state//net", ";", ""}, {"OPTIONS", "*", "", ""},
		{"GET", "api/v2/organizations/ns/workspaces", "search[name]=n&page[number]=2", ""}, {"GET", "api/v2/organizations/ns/workspaces/net", "", ""},
		{"POST", "api/v2/organizations/ns/workspaces", "", `{"data":{"attributes":{"name":"net"}}}`}, {"PATCH", "api/v2/workspaces/" + id, "", ""},
		{"POST", "api/v2/workspaces/" + id + "/actions/lock", "", `{"reason":"x"}`}, {"GET", "api/v2/workspaces/" + id + "/current-state-version", "include=outputs", ""},
		{"POST", "api/v2/workspaces/" + id + "/state-versions", "", newVersion(text(2, "l", 1), 2, `,"state":"e30="`)}, {"GET", "api/v2/state-versions/sv-bnMvbmV0L3ZlcnNpb24vMQ/download", "", ""},
		{"PUT", "api/v2/uploads/e30.e30", "", text(2, "l", 1)}, {"PUT", "api/v2/uploads/e30.e30/json", "", "{}"}, {"GET", "api/v2/account/details", "", ""}, {"GET", ".well-known/terraform.json", "", ""},
	} {
		f.Add(uint8(slices.Index(fuzzMethods, seed[0])), seed[1], seed[2], []byte(seed[3]))
	}
	f.Fuzz(func(t *testing.T, method uint8, path, query string, body []byte) {
		w := newWorld(t, func(o *server.Options) { o.MaxPayload = 4096 })
		w.must(content)
		key := store.Key{Namespace: "ns", Name: "net"}
		before, err := w.store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(token string) (int, string) {
			// As it comes from the network: by a path and a query that need not be good.
			r := (&http.Request{
				Method: fuzzMethods[int(method)%len(fuzzMethods)], URL: &url.URL{Path: "/" + path, RawQuery: query}, Host: "states.test",
				Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
			}).WithContext(t.Context())
			if token != "" {
				r.SetBasicAuth("anybody", token)
			}
			rec := httptest.NewRecorder()
			w.handler.ServeHTTP(rec, r)
			return rec.Code, rec.Body.String() + fmt.Sprint(rec.Header())
		}
		readers := w.grant(server.Grant{Run: "plan"})
		for _, token := range []string{"", "nonsense", "eve-token", "carl-token", readers} {
			code, answer := ask(token)
			if code >= 500 && code != http.StatusNotImplemented {
				t.Errorf("%q is answered %d %s", token, code, answer)
			}
			if token != "carl-token" && token != readers && strings.Contains(answer, secret) {
				t.Errorf("%q sees the content: %s", token, answer)
			}
			after, err := w.store.Get(context.Background(), key)
			if err != nil || len(after.Status.Versions) != len(before.Status.Versions) || after.Status.Versions[0] != before.Status.Versions[0] {
				t.Fatalf("%q changed the state: %v", token, err)
			}
			if after.Status.Lock != nil && token != readers {
				t.Fatalf("%q took the lock", token)
			}
		}
		if code, answer := ask("ann-token"); code >= 500 && code != http.StatusNotImplemented {
			t.Errorf("who may all is answered %d %s", code, answer)
		}
	})
}

var fuzzMethods = []string{"GET", "HEAD", "POST", "PUT", "LOCK", "UNLOCK", "DELETE", "PATCH", "OPTIONS", "CONNECT"}
