// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/bench/rig"
)

func TestProxyTellsTofuFromTerrace(t *testing.T) {
	cases := map[string]struct {
		reason       string
		method, path string
		body         string
		want         rig.Requests
	}{
		"state read":     {"the backend reads its Secret", "GET", "/api/v1/namespaces/bench/secrets/tfstate-default-u1", "", rig.Requests{Aside: 1}},
		"state list":     {"the backend lists the workspaces at init", "GET", "/api/v1/namespaces/bench/secrets?labelSelector=tfstate%3Dtrue", "", rig.Requests{Aside: 1}},
		"state create":   {"the name is in the body only", "POST", "/api/v1/namespaces/bench/secrets", `{"metadata":{"labels":{"tfstateSecretSuffix":"u1"}}}`, rig.Requests{Aside: 1}},
		"lock":           {"the backend's lock", "PUT", "/apis/coordination.k8s.io/v1/namespaces/bench/leases/lock-tfstate-default-u1", "", rig.Requests{Aside: 1}},
		"state version":  {"the state service records what tofu wrote", "PUT", "/apis/terrace.dev/v1alpha1/namespaces/bench/states/u1/status", "", rig.Requests{Aside: 1}},
		"outputs create": {"Terrace's own Secret", "POST", "/api/v1/namespaces/bench/secrets", `{"metadata":{"name":"u1-outputs"}}`, rig.Requests{Terrace: 1, Kinds: map[string]int{"POST secrets": 1}}},
		"outputs read":   {"Terrace's own Secret", "GET", "/api/v1/namespaces/bench/secrets/u1-outputs", "", rig.Requests{Terrace: 1, Kinds: map[string]int{"GET secrets": 1}}},
		"status":         {"subresources are told apart", "PATCH", "/apis/infra.contrib.fluxcd.io/v1alpha2/namespaces/bench/terraforms/u1/status", "", rig.Requests{Terrace: 1, Kinds: map[string]int{"PATCH terraforms/status": 1}}},
		"watch":          {"a watch is not a list", "GET", "/api/v1/secrets?watch=true", "", rig.Requests{Terrace: 1, Kinds: map[string]int{"WATCH secrets": 1}}},
		"discovery":      {"what is no resource", "GET", "/apis", "", rig.Requests{Terrace: 1, Kinds: map[string]int{"GET (discovery)": 1}}},
		"namespace":      {"a namespace itself is a resource too", "GET", "/api/v1/namespaces/bench", "", rig.Requests{Terrace: 1, Kinds: map[string]int{"GET namespaces": 1}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := rig.CountAside(ofTofu)
			p.Note(httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
			if diff := cmp.Diff(tc.want, p.Take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(rig.Requests{}, p.Take()); diff != "" {
				t.Errorf("a second take gives the same again (-want +got):\n%s", diff)
			}
		})
	}
}
