// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

func TestProxyCountsAndForwards(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Impersonated", r.Header.Get("Impersonate-User"))
		_, _ = w.Write([]byte(r.Method + " " + r.URL.RequestURI() + " " + string(body)))
	}))
	defer server.Close()
	p, err := startProxy(&rest.Config{Host: server.URL}, func(r *http.Request) bool { return strings.Contains(r.URL.Path, "gitrepositories") })
	if err != nil {
		t.Fatal(err)
	}
	defer p.server.Close()

	cases := []struct {
		reason, method, path, body string
		want                       Requests
	}{
		{"an apply", "PATCH", "/apis/apps/v1/namespaces/n/deployments/d?fieldManager=m&force=true", "{}", Requests{Terrace: 1, Kinds: map[string]int{"PATCH deployments": 1}}},
		{"a dry-run writes nothing, so it is told apart", "PATCH", "/apis/apps/v1/namespaces/n/deployments/d?dryRun=All&force=true", "{}", Requests{Terrace: 1, Kinds: map[string]int{"PATCH?dryRun deployments": 1}}},
		{"what the benchmark counts aside is nobody's kind", "GET", "/apis/source.toolkit.fluxcd.io/v1/namespaces/n/gitrepositories/g", "", Requests{Aside: 1}},
	}
	for _, tc := range cases {
		t.Run(tc.reason, func(t *testing.T) {
			req, err := http.NewRequestWithContext(context.Background(), tc.method, p.URL+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Impersonate-User", "flux")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if want := tc.method + " " + tc.path + " " + tc.body; string(got) != want {
				t.Errorf("the server got %q, want %q", got, want)
			}
			if who := resp.Header.Get("Impersonated"); who != "flux" {
				t.Errorf("the server was asked as %q: the account is lost", who)
			}
			if diff := cmp.Diff(tc.want, p.Take()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
	if got := p.total(); got != len(cases) {
		t.Errorf("total is %d after %d requests: Take must not reset it", got, len(cases))
	}
}

func TestTallyKnowsWrites(t *testing.T) {
	var tl tally
	next := roundTripper(func(r *http.Request) (*http.Response, error) {
		switch r.URL.Path {
		case "/refused":
			return &http.Response{StatusCode: http.StatusForbidden}, nil
		case "/lost":
			return nil, errors.New("connection reset")
		}
		return &http.Response{StatusCode: http.StatusOK}, nil
	})
	for _, r := range []struct{ method, path string }{
		{"GET", "/"}, {"PATCH", "/"}, {"DELETE", "/"}, {"POST", "/refused"}, {"PUT", "/lost"},
	} {
		req := httptest.NewRequest(r.method, r.path, nil)
		if resp, err := tl.wrap(next).RoundTrip(req); err == nil && resp.Body != nil {
			resp.Body.Close()
		}
	}
	if requests, writes := tl.take(); requests != 5 || writes != 2 {
		t.Errorf("%d requests of which %d wrote, want 5 and 2: a read, a refusal and a lost request write nothing", requests, writes)
	}
	if requests, writes := tl.take(); requests != 0 || writes != 0 {
		t.Errorf("a second take gives %d and %d again", requests, writes)
	}
}

func TestExceptLeavesOutResourcesWithTheirSubresources(t *testing.T) {
	r := Requests{Terrace: 10, Kinds: map[string]int{"PATCH gitrepositories": 1, "PATCH gitrepositories/status": 2, "POST events": 3, "PATCH terraforms/status": 4}}
	if got := r.Except("gitrepositories", "events"); got != 4 {
		t.Errorf("Except counts %d, want the 4 of terraforms/status", got)
	}
	if got := r.Except(); got != 10 {
		t.Errorf("Except of nothing counts %d, want all 10", got)
	}
}
