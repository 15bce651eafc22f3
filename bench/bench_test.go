// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	cases := map[string]struct {
		reason string
		text   string
		want   cpu
		fails  bool
	}{
		"plain": {
			reason: "utime 7, stime 3, cutime 20, cstime 5, in hundredths of a second",
			text:   "42 (terrace) S 1 42 42 0 -1 4194560 9 9 0 0 7 3 20 5 20 0 8 0 100 1 1",
			want:   cpu{own: 100 * time.Millisecond, children: 250 * time.Millisecond},
		},
		"command with a parenthesis and spaces": {
			reason: "a process may call itself anything",
			text:   "42 (a) b (c) S 1 42 42 0 -1 4194560 9 9 0 0 1 0 0 2 20 0 8 0 100 1 1",
			want:   cpu{own: 10 * time.Millisecond, children: 20 * time.Millisecond},
		},
		"too short": {reason: "a file that ends early is not zero", text: "42 (terrace) S 1", fails: true},
		"not a number": {
			reason: "a format that we do not know is not zero",
			text:   "42 (terrace) S 1 42 42 0 -1 4194560 9 9 0 0 x 3 20 5 20 0 8 0 100 1 1",
			fails:  true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat([]byte(tc.text))
			if (err != nil) != tc.fails {
				t.Fatalf("%s: error %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(cpu{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestProxyTellsTofuFromTerrace(t *testing.T) {
	cases := map[string]struct {
		reason       string
		method, path string
		body         string
		want         requests
	}{
		"state read":     {"the backend reads its Secret", "GET", "/api/v1/namespaces/bench/secrets/tfstate-default-u1", "", requests{tofu: 1}},
		"state list":     {"the backend lists the workspaces at init", "GET", "/api/v1/namespaces/bench/secrets?labelSelector=tfstate%3Dtrue", "", requests{tofu: 1}},
		"state create":   {"the name is in the body only", "POST", "/api/v1/namespaces/bench/secrets", `{"metadata":{"labels":{"tfstateSecretSuffix":"u1"}}}`, requests{tofu: 1}},
		"lock":           {"the backend's lock", "PUT", "/apis/coordination.k8s.io/v1/namespaces/bench/leases/lock-tfstate-default-u1", "", requests{tofu: 1}},
		"outputs create": {"Terrace's own Secret", "POST", "/api/v1/namespaces/bench/secrets", `{"metadata":{"name":"u1-outputs"}}`, requests{terrace: 1, kinds: map[string]int{"POST secrets": 1}}},
		"outputs read":   {"Terrace's own Secret", "GET", "/api/v1/namespaces/bench/secrets/u1-outputs", "", requests{terrace: 1, kinds: map[string]int{"GET secrets": 1}}},
		"status":         {"subresources are told apart", "PATCH", "/apis/infra.contrib.fluxcd.io/v1alpha2/namespaces/bench/terraforms/u1/status", "", requests{terrace: 1, kinds: map[string]int{"PATCH terraforms/status": 1}}},
		"watch":          {"a watch is not a list", "GET", "/api/v1/secrets?watch=true", "", requests{terrace: 1, kinds: map[string]int{"WATCH secrets": 1}}},
		"discovery":      {"what is no resource", "GET", "/apis", "", requests{terrace: 1, kinds: map[string]int{"GET (discovery)": 1}}},
		"namespace":      {"a namespace itself is a resource too", "GET", "/api/v1/namespaces/bench", "", requests{terrace: 1, kinds: map[string]int{"GET namespaces": 1}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var p proxy
			p.note(httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
			if diff := cmp.Diff(tc.want, p.take(), cmp.AllowUnexported(requests{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(requests{}, p.take(), cmp.AllowUnexported(requests{})); diff != "" {
				t.Errorf("a second take gives the same again (-want +got):\n%s", diff)
			}
		})
	}
}
