// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestServerAnswers(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get(tokenHeader) != "secret":
			http.Error(w, "the token is wrong", http.StatusUnauthorized)
		case r.URL.Path == "/api/v1/units/terraform/infra/network/plan" && r.URL.Query().Get("format") == "json":
			fmt.Fprint(w, "{}")
		case strings.HasSuffix(r.URL.Path, "/log"):
			http.Error(w, "the leader has gone", http.StatusServiceUnavailable)
		default:
			http.Error(w, "no plan is kept\nand more", http.StatusNotFound)
		}
	}))
	defer web.Close()
	cases := map[string]struct {
		reason string
		token  string
		what   string
		query  url.Values
		is     error
		err    string
	}{
		"Found":   {reason: "the token goes in both headers, since a proxy takes one away", token: "secret", what: "plan", query: url.Values{"format": {"json"}}},
		"Missing": {reason: "the first line of the server's reason, as an error that callers know", token: "secret", what: "plan", is: errNotKept, err: "read plan of terraform/infra/network: not kept: no plan is kept"},
		"Token":   {reason: "a wrong token is no reason to look elsewhere", token: "x", what: "plan", err: "read plan of terraform/infra/network: the token is wrong"},
		"Down":    {reason: "a server that is not there can be gone around", token: "secret", what: "log", is: errNoServer, err: "read log of terraform/infra/network: the Terrace server is not reachable: the leader has gone"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := &server{base: web.URL, token: tc.token, http: http.DefaultClient}
			body, err := s.get(context.Background(), fixture(t, "network"), tc.what, tc.query)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err || (tc.is != nil && !errors.Is(err, tc.is)) {
					t.Fatalf("%s: error %v, want %s", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer body.Close()
			if got, _ := io.ReadAll(body); string(got) != "{}" {
				t.Errorf("body %q", got)
			}
		})
	}
}

func TestLocalServer(t *testing.T) {
	file := t.TempDir() + "/server.json"
	for address, want := range map[string]string{
		"127.0.0.1:8081": "http://127.0.0.1:8081",
		"[::]:8081":      "http://127.0.0.1:8081",
		"[::1]:8081":     "http://[::1]:8081",
	} {
		writeFile(t, file, fmt.Sprintf(`{"address":%q,"token":"secret"}`, address))
		s, err := localServer(file)
		if err != nil {
			t.Fatal(err)
		}
		if s.base != want || s.token != "secret" || !s.local {
			t.Errorf("address %s: %+v, want %s", address, s, want)
		}
	}
}
