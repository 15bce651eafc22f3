// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/bench/rig"
)

func TestTheSourceIsCountedApart(t *testing.T) {
	cases := map[string]struct {
		reason       string
		method, path string
		body         string
		want         bool
	}{
		"source":          {"its status", "PATCH", "/apis/source.toolkit.fluxcd.io/v1/namespaces/n/gitrepositories/bench-source/status", "", true},
		"its event":       {"the name is in the body only", "POST", "/api/v1/namespaces/n/events", `{"metadata":{"name":"bench-source.18a"}}`, true},
		"its event again": {"a repeated event is counted up", "PATCH", "/api/v1/namespaces/n/events/bench-source.18a", "", true},
		"a unit's event":  {"that says something of the source", "POST", "/api/v1/namespaces/n/events", `{"metadata":{"name":"podinfo-1.18a"},"message":"Source 'GitRepository/n/bench-source' not found"}`, false},
		"a unit":          {"its status", "PATCH", "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/n/kustomizations/podinfo-1/status", "", false},
		"a watch":         {"of the units' objects", "GET", "/apis/apps/v1/deployments?watch=true", "", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := ofSource(httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body))); got != tc.want {
				t.Errorf("%s: counted apart is %t", tc.reason, got)
			}
		})
	}
}

func TestBareClientAppliesWhatAUnitIs(t *testing.T) {
	objects, err := decode(substituted(7, secondCPU))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
	}
	want := []string{
		"ServiceAccount " + floorNamespace + "/podinfo-7app", "Service " + floorNamespace + "/podinfo-7app",
		"Deployment " + floorNamespace + "/podinfo-7app", "Ingress " + floorNamespace + "/podinfo-7app",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if left := substituted(7, secondCPU); strings.Contains(left, "${") || !strings.Contains(left, "cpu: 2m") {
		t.Errorf("a variable is left, or the value is not in it:\n%s", left)
	}
}

func TestCellsDivideByUnits(t *testing.T) {
	cost := rig.Cost{
		Wall: 4 * time.Second, Terrace: 200 * time.Millisecond, API: 300 * time.Millisecond, Own: 30, OwnWrites: 20, Revisions: 60,
		Requests: rig.Requests{Terrace: 50, Kinds: map[string]int{"PATCH deployments": 30, "PATCH?dryRun deployments": 20}},
	}
	cases := map[string]struct {
		reason string
		bare   bool
		want   []string
	}{
		"terrace":     {"the benchmark's own requests and writes are not Terrace's", false, []string{"x", "4.0 s", "400.0 ms", "20.0 ms", "30.0 ms", "5.0", "2.0", "4.0", "100", "50"}},
		"bare client": {"it is the benchmark itself, and leaves nothing in memory", true, []string{"x", "4.0 s", "400.0 ms", "20.0 ms", "30.0 ms", "3.0", "2.0", "6.0", "-", "-"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := result{Cost: cost, name: "x", units: 10, bare: tc.bare, api: rig.Memory{Now: 100, Peak: 120}, controller: rig.Memory{Now: 50, Peak: 60}}
			if diff := cmp.Diff(tc.want, r.cells()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
