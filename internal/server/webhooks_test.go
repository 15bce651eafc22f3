// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// The tests here are about the services that a unit talks to: webhooks that judge
// plans, and health checks.

// hook answers as its path says and keeps what it was sent.
type hook struct {
	*httptest.Server
	mu   sync.Mutex
	got  map[string][]map[string]any
	body map[string]string
	code map[string]int
}

func newHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{got: map[string][]map[string]any{}, body: map[string]string{}, code: map[string]int{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		var payload map[string]any
		if err := json.NewDecoder(r.Body).Decode(&payload); err == nil {
			h.got[r.URL.Path] = append(h.got[r.URL.Path], payload)
		}
		if code := h.code[r.URL.Path]; code != 0 {
			rw.WriteHeader(code)
		}
		fmt.Fprint(rw, h.body[r.URL.Path])
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) answer(path string, code int, body string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.code[path], h.body[path] = code, body
}

func (h *hook) payloads(path string) []map[string]any {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got[path]
}

func TestWebhooksSeeThePlan(t *testing.T) {
	h := newHook(t)
	w := newWorld(t, modA())
	for _, path := range []string{"/default", "/both", "/spec", "/plan"} {
		h.answer(path, 200, `{"passed": "yes", "ok": true}`)
	}
	w.unit("u", strings.ReplaceAll(`
approvePlan: auto
targets: [terraform_data.x]
webhooks:
- {stage: post-planning, url: "URL/default", testExpression: "${{ .passed }}"}
- {stage: post-planning, url: "URL/both", payloadType: SpecAndPlan, testExpression: "${{ .ok }}"}
- {stage: post-planning, url: "URL/spec", payloadType: SpecOnly, testExpression: "${{ .ok }}"}
- {stage: post-planning, url: "URL/plan", payloadType: PlanOnly, testExpression: "${{ .ok }}"}
- {stage: post-planning, url: "URL/off", enabled: false, testExpression: "${{ .ok }}"}`, "URL", h.URL))
	w.awaitReady("u")
	for path, want := range map[string]struct{ spec, plan bool }{
		"/default": {true, true}, "/both": {true, true}, "/spec": {true, false}, "/plan": {false, true},
	} {
		got := h.payloads(path)
		if len(got) != 1 {
			t.Errorf("%s was called %d times", path, len(got))
			continue
		}
		p := got[0]
		if p["kind"] != "Terraform" || p["apiVersion"] != "infra.contrib.fluxcd.io/v1alpha2" || p["metadata"].(map[string]any)["name"] != "u" {
			t.Errorf("%s: the object is %v %v %v", path, p["apiVersion"], p["kind"], p["metadata"])
		}
		spec, _ := p["spec"].(map[string]any)
		if (spec != nil) != want.spec || want.spec && fmt.Sprint(spec["targets"]) != "[terraform_data.x]" {
			t.Errorf("%s: spec %v", path, spec)
		}
		status, _ := p["status"].(map[string]any)
		plan, _ := status["tfplan"].(map[string]any)
		if (plan != nil) != want.plan || want.plan && plan["resource_changes"] == nil {
			t.Errorf("%s: plan %v", path, plan)
		}
	}
	if n := len(h.payloads("/off")); n != 0 {
		t.Errorf("a disabled webhook was called %d times", n)
	}
}

func TestWebhooksKeepAPlanFromBeingApplied(t *testing.T) {
	h := newHook(t)
	w := newWorld(t, modA())
	for name, tc := range map[string]struct {
		code             int
		body, test, want string
	}{
		"refuses":  {200, `{"passed": false, "why": "too dear"}`, "${{ .passed }}", "refused: too dear"},
		"code":     {503, `{"passed": true}`, "${{ .passed }}", "503"},
		"no-json":  {200, `passed`, "${{ .passed }}", "JSON"},
		"neither":  {200, `{"passed": "perhaps"}`, "${{ .passed }}", "perhaps"},
		"no-value": {200, `{}`, "${{ .passed }}", ".passed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			h.answer("/"+name, tc.code, tc.body)
			w.unit(name, fmt.Sprintf(`
approvePlan: auto
retryInterval: 1s
webhooks: [{stage: post-planning, url: "%s/%s", testExpression: "%s", errorMessageTemplate: "refused: ${{ .why }}"}]`, h.URL, name, tc.test))
			tf := w.awaitReason(name, infra.ReasonPostPlanningWebhookFailed)
			if m := readyOf(tf).Message; !strings.Contains(m, tc.want) {
				t.Errorf("the message does not say %q: %q", tc.want, m)
			}
			if c := condition(tf, "Plan"); c.Status != metav1.ConditionFalse || c.Reason != infra.ReasonPostPlanningWebhookFailed {
				t.Errorf("Plan is %+v", c)
			}
			if tf.Status.LastAppliedRevision != "" || tf.Status.Plan.Pending != "" {
				t.Errorf("applied %q, pending %q", tf.Status.LastAppliedRevision, tf.Status.Plan.Pending)
			}
			h.answer("/"+name, 200, `{"passed": true}`)
			w.awaitReady(name)
		})
	}
}

// Health checks find their address in the outputs.
func TestHealthChecksOverOutputs(t *testing.T) {
	h := newHook(t)
	h.answer("/up", 200, "")
	h.answer("/moved", 302, "")
	h.answer("/down", 503, "")
	host := strings.TrimPrefix(h.URL, "http://")
	w := newWorld(t, map[string]string{"main.tf": `
output "host" { value = "` + host + `" }
output "port" { value = ` + host[strings.LastIndex(host, ":")+1:] + ` }
`})
	w.unit("u", `
approvePlan: auto
retryInterval: 1s
healthChecks:
- {name: web, type: http, url: "http://${{ .host }}/up"}
- {name: moved, type: http, url: "http://${{ .host }}/moved"}
- {name: port, type: tcp, address: "127.0.0.1:${{ .port }}"}`)
	tf := w.awaitReady("u")
	if c := condition(tf, "HealthCheck"); c.Status != metav1.ConditionTrue || c.Reason != infra.ReasonHealthChecksSucceed {
		t.Errorf("HealthCheck is %+v", c)
	}
	w.unit("down", `
approvePlan: auto
retryInterval: 1s
healthChecks: [{name: web, type: http, url: "http://${{ .host }}/down"}]`)
	tf = w.awaitReason("down", infra.ReasonHealthChecksFailed)
	if m := readyOf(tf).Message; !strings.Contains(m, `"web"`) || !strings.Contains(m, "503") {
		t.Errorf("Ready says %q", m)
	}
	w.awaitEvent("down", infra.ReasonHealthChecksFailed)
	if n := w.spawned("apply"); n != 2 {
		t.Errorf("%d applies", n)
	}
	h.answer("/down", 200, "")
	w.awaitReady("down")
}
