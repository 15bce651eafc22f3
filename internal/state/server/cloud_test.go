// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// document is an answer of the cloud protocol.
type document struct {
	Data struct {
		ID         string         `json:"id"`
		Attributes map[string]any `json:"attributes"`
	} `json:"data"`
}

// cloud asks by the cloud protocol, and wants the code.
func (u *user) cloud(method, path, body string, code int) document {
	u.t.Helper()
	a := u.ask(method, "/api/v2/"+path, body)
	if a.code != code {
		u.t.Errorf("%s %s: %d %s, want %d", method, path, a.code, a.body, code)
	}
	if kind := a.header.Get("Content-Type"); kind != "application/vnd.api+json" {
		u.t.Errorf("%s %s: it is of type %q", method, path, kind)
	}
	var d document
	if err := json.Unmarshal([]byte(a.body), &d); err != nil {
		u.t.Errorf("%s %s: %v", method, path, err)
	}
	return d
}

func newVersion(content string, serial int, more string) string {
	return fmt.Sprintf(`{"data":{"type":"state-versions","attributes":{"serial":%d,"lineage":"l","md5":"%x"%s}}}`, serial, md5.Sum([]byte(content)), more)
}

func TestCloudProtocol(t *testing.T) {
	w := newWorld(t)
	ann, bob := w.as("ann-token"), w.as("bob-token")
	if d := bob.cloud("GET", "organizations/ns/entitlement-set", "", 200); d.Data.Attributes["operations"] != false || d.Data.Attributes["state-storage"] != true {
		t.Errorf("%+v", d)
	}
	ws := bob.cloud("GET", "organizations/ns/workspaces/net", "", 200)
	if ws.Data.Attributes["execution-mode"] != "local" || ws.Data.Attributes["locked"] != false {
		t.Errorf("%+v", ws)
	}
	if d := bob.cloud("POST", "organizations/ns/workspaces", `{"data":{"attributes":{"name":"net"}}}`, 201); d.Data.ID != ws.Data.ID {
		t.Errorf("the workspace is %s, and %s when it is made", ws.Data.ID, d.Data.ID)
	}
	at := "workspaces/" + ws.Data.ID
	bob.cloud("PATCH", at, `{}`, 200)
	bob.cloud("GET", at+"/current-state-version", "", 404)
	bob.cloud("GET", at+"/current-state-version-outputs", "", 404)

	if d := bob.cloud("POST", at+"/actions/lock", `{"reason":"why"}`, 200); d.Data.Attributes["locked"] != true {
		t.Errorf("%+v", d)
	}
	bob.cloud("POST", at+"/actions/lock", `{"reason":"the same user on another machine"}`, 409)
	ann.cloud("POST", at+"/actions/lock", `{}`, 409)
	ann.cloud("POST", at+"/actions/unlock", ``, 409)
	one := text(1, "l", 1)
	ann.cloud("POST", at+"/state-versions", newVersion(one, 1, ""), 409)
	made := bob.cloud("POST", at+"/state-versions", newVersion(one, 1, ""), 201)
	bob.cloud("GET", at+"/current-state-version", "", 404)
	if d := bob.cloud("GET", "state-versions/"+made.Data.ID, "", 200); d.Data.Attributes["status"] != "pending" {
		t.Errorf("before the upload: %+v", d)
	}
	// The addresses are good without credentials, for this content alone.
	nobody := w.as("")
	put, err := url.Parse(made.Data.Attributes["hosted-state-upload-url"].(string))
	if err != nil || put.Host != "states.test" {
		t.Fatalf("%v, %v", put, err)
	}
	if a := nobody.ask("PUT", put.Path, text(1, "l", 2)); a.code != 400 {
		t.Errorf("other content: %d %s", a.code, a.body)
	}
	for range 2 { // clients ask again
		if a := nobody.ask("PUT", put.Path, one); a.code != 200 {
			t.Errorf("upload: %d %s", a.code, a.body)
		}
		if a := nobody.ask("PUT", put.Path+"/json", "{}"); a.code != 200 {
			t.Errorf("upload of the other form: %d %s", a.code, a.body)
		}
	}
	for i := strings.LastIndexByte(put.Path, '/') + 1; i < len(put.Path); i++ {
		changed := []byte(put.Path)
		changed[i] ^= 1
		if changed[i] == '/' || changed[i] == '.' {
			continue
		}
		if a := nobody.ask("PUT", (&url.URL{Path: string(changed)}).EscapedPath(), one); a.code != 401 && a.code != 400 {
			t.Fatalf("changed at %d: %d", i, a.code)
		}
	}
	if d := bob.cloud("GET", "state-versions/"+made.Data.ID, "", 200); d.Data.Attributes["status"] != "finalized" {
		t.Errorf("after the upload: %+v", d)
	}
	current := bob.cloud("GET", at+"/current-state-version", "", 200)
	get, err := url.Parse(current.Data.Attributes["hosted-state-download-url"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if a := bob.ask("GET", get.Path, ""); a.code != 200 || a.body != one {
		t.Errorf("download: %d %s", a.code, a.body)
	}
	for _, token := range []string{"", "eve-token"} {
		if a := w.as(token).ask("GET", get.Path, ""); a.code != 401 && a.code != 403 {
			t.Errorf("download by %q: %d", token, a.code)
		}
	}
	if a := bob.ask("GET", "/api/v2/"+at+"/current-state-version-outputs", ""); a.code != 200 || !strings.Contains(a.body, `"name":"o"`) || strings.Contains(a.body, `"x"`) {
		t.Errorf("outputs: %d %s", a.code, a.body)
	}
	for range 2 { // the answer was lost
		bob.cloud("POST", at+"/actions/unlock", ``, 200)
	}
	// What is past: the lock, and then the address.
	if a := nobody.ask("PUT", put.Path, text(2, "l", 1)); a.code != 400 {
		t.Errorf("another content later: %d", a.code)
	}
	w.clock.Step(5 * time.Minute)
	if a := nobody.ask("PUT", put.Path, one); a.code != 401 || !strings.Contains(a.body, "over") {
		t.Errorf("the address later: %d %s", a.code, a.body)
	}
	// Older clients send the content at once.
	two := text(2, "l", 2)
	inline := fmt.Sprintf(`,"state":%q`, base64.StdEncoding.EncodeToString([]byte(two)))
	bob.cloud("POST", at+"/state-versions", newVersion(two, 2, inline), 201)
	bob.cloud("POST", at+"/state-versions", newVersion(one, 2, inline), 400)
	bob.cloud("POST", at+"/state-versions", newVersion(two, 3, inline), 400)
	bob.cloud("POST", at+"/state-versions", newVersion(two, 2, inline+`,"force":true`), 403)
	bob.cloud("POST", at+"/state-versions", `{"data":{"attributes":{"md5":"x"}}}`, 400)
	other := text(9, "m", 0)
	inline = fmt.Sprintf(`,"state":%q`, base64.StdEncoding.EncodeToString([]byte(other)))
	bob.cloud("POST", at+"/state-versions", newVersion(other, 9, inline), 409)
	ann.cloud("POST", at+"/state-versions", newVersion(other, 9, inline+`,"force":true`), 201)

	// A lock of the other protocol is nobody's here.
	if err := w.store.Lock(t.Context(), netKey, state.Lock{ID: "x", Who: "bob"}, store.Holder{User: "bob"}); err != nil {
		t.Fatal(err)
	}
	bob.cloud("POST", at+"/actions/lock", ``, 409)
	bob.cloud("POST", at+"/actions/unlock", ``, 409)
	bob.cloud("POST", at+"/actions/force-unlock", ``, 403)
	ann.cloud("POST", at+"/actions/force-unlock", ``, 200)

	for _, path := range []string{"workspaces/ws-x", "workspaces/x", "state-versions/sv-x", "workspaces/ws-" + base64.RawURLEncoding.EncodeToString([]byte("a/b/c"))} {
		bob.cloud("GET", path, "", 404)
	}
	bob.cloud("GET", "workspaces/ws-"+base64.RawURLEncoding.EncodeToString([]byte("../net")), "", 400)
	bob.cloud("GET", "organizations/ns/workspaces/NET", "", 400)
	for _, path := range []string{"organizations/ns/workspaces/net", at, at + "/current-state-version"} {
		w.as("eve-token").cloud("GET", path, "", 403)
		w.as("nobody").cloud("GET", path, "", 401)
	}
}

func TestCloudList(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"net", "app", "net-2"} {
		if _, err := w.store.Write(t.Context(), store.Key{Namespace: "ns", Name: name}, []byte(text(1, "l", 1)), store.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	names := func(token, query string) string {
		var d struct {
			Data []struct {
				Attributes struct {
					Name string `json:"name"`
				} `json:"attributes"`
			} `json:"data"`
		}
		a := w.as(token).ask("GET", "/api/v2/organizations/ns/workspaces"+query, "")
		if err := json.Unmarshal([]byte(a.body), &d); err != nil || a.code != 200 {
			t.Errorf("%d %s", a.code, a.body)
		}
		var out []string
		for _, item := range d.Data {
			out = append(out, item.Attributes.Name)
		}
		return strings.Join(out, " ")
	}
	run := w.grant(server.Grant{Run: "r"})
	for _, tc := range []struct{ reason, token, query, want string }{
		{"all that may be read", "carl-token", "", "app net net-2"}, {"a part of the name", "carl-token", "?search[name]=net", "net net-2"},
		{"none has tags", "carl-token", "?search[tags]=x", ""}, {"a run sees its own", run, "", "net"}, {"nothing for who may nothing", "eve-token", "", ""},
	} {
		if got := names(tc.token, tc.query); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
		}
	}
}

// TestCloudUploadEndsWithTheRun: an address does not outlive the token that it was
// given to.
func TestCloudUploadEndsWithTheRun(t *testing.T) {
	w := newWorld(t)
	token, revoke, err := w.grants.New(server.Grant{State: netKey, Write: true, Run: "r"})
	if err != nil {
		t.Fatal(err)
	}
	run, one := w.as(token), text(1, "l", 1)
	at := "workspaces/" + run.cloud("GET", "organizations/ns/workspaces/net", "", 200).Data.ID
	for range 2 { // a run that asks again holds it already
		run.cloud("POST", at+"/actions/lock", ``, 200)
	}
	made := run.cloud("POST", at+"/state-versions", newVersion(one, 1, ""), 201)
	put, err := url.Parse(made.Data.Attributes["hosted-state-upload-url"].(string))
	if err != nil {
		t.Fatal(err)
	}
	revoke()
	if a := w.as("").ask("PUT", put.Path, one); a.code != 401 {
		t.Errorf("after the run: %d %s", a.code, a.body)
	}
	if _, _, err := w.store.Read(t.Context(), netKey, 0); err == nil {
		t.Error("it was written")
	}
}
