// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/server"
)

// get asks the world's server for a path, with its token or another.
func (w *world) get(path, token string) (int, string) {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join(w.cfg.DataDir, server.ServerFile))
	must(w.t, err)
	var found struct{ Address, Token string }
	must(w.t, json.Unmarshal(content, &found))
	if token == "" {
		token = found.Token
	}
	req, err := http.NewRequestWithContext(w.ctx(), http.MethodGet, "http://"+found.Address+path, nil)
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	must(w.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(w.t, err)
	return resp.StatusCode, string(body)
}

func TestServerShowsPlansAndLogsToWhoHasTheToken(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", `approvePlan: ""`)
	w.awaitPending("u")
	base := "/api/v1/units/terraform/" + w.ns + "/u"

	for _, path := range []string{"/plan", "/log", "/glass"} {
		if code, _ := w.get(base+path, "guessed"); code != http.StatusUnauthorized {
			t.Errorf("%s answers %d to a wrong token", path, code)
		}
	}
	if code, text := w.get(base+"/plan", ""); code != http.StatusOK || !strings.Contains(text, "terraform_data.x will be created") {
		t.Errorf("plan: %d %s", code, text)
	}
	code, text := w.get(base+"/plan?format=json", "")
	var plan struct{ ID string }
	if err := json.Unmarshal([]byte(text), &plan); code != http.StatusOK || err != nil || plan.ID != w.terraform("u").Status.Plan.Pending {
		t.Errorf("plan as JSON: %d %v %s", code, err, text)
	}
	if code, text := w.get(base+"/log", ""); code != http.StatusOK || !strings.Contains(text, "Plan: 1 to add") {
		t.Errorf("log: %d %s", code, text)
	}
	for query, want := range map[string]int{"?format=json&after=1": http.StatusOK, "?after=x": http.StatusBadRequest, "?after=-1": http.StatusBadRequest} {
		if code, text := w.get(base+"/log"+query, ""); code != want || want == http.StatusOK && !strings.HasPrefix(text, `{"run":"`) || strings.Contains(text, `"line":1,`) {
			t.Errorf("log%s: %d %s", query, code, text)
		}
	}
	// A run that has ended ends the log of whoever follows it.
	if code, text := w.get(base+"/log?follow=true", ""); code != http.StatusOK || !strings.Contains(text, "Plan: 1 to add") {
		t.Errorf("log that is followed: %d %s", code, text)
	}
	for _, path := range []string{base + "x/plan", base + "x/log", "/api/v1/units/secret/" + w.ns + "/u/plan", base + "/glass"} {
		if code, _ := w.get(path, ""); code != http.StatusNotFound {
			t.Errorf("%s answers %d", path, code)
		}
	}
}

func TestServerShowsHealthMetricsAndArtifacts(t *testing.T) {
	w := newWorld(t, modA())
	w.unit("u", `approvePlan: auto`)
	w.change("u", func(tf *infra.Terraform) { tf.Labels = map[string]string{infra.LayerLabel: "network"} })
	w.awaitReady("u")
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := w.get(path, "none needed"); code != http.StatusOK || text != "ok\n" {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	// The gauge of units is read from a cache, whose progress nothing tells of.
	const gauge = `terrace_units{kind="Terraform",layer="network",state="ready"} 1`
	_, text := w.get("/metrics", "none needed")
	for deadline := time.Now().Add(patience); !strings.Contains(text, gauge) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		_, text = w.get("/metrics", "none needed")
	}
	for _, want := range []string{
		gauge,
		`terrace_run_duration_seconds_count{kind="plan",outcome="succeeded"} 1`,
		`terrace_run_duration_seconds_count{kind="apply",outcome="succeeded"} 1`,
		"terrace_runs_queued 0",
		"rest_client_requests_total",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}

	var src sourcev1.GitRepository
	must(t, w.client.Get(w.ctx(), client.ObjectKey{Namespace: w.ns, Name: "src"}, &src))
	resp, err := http.Get(src.Status.Artifact.URL)
	must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the artifact's URL answers %s", resp.Status)
	}
	for _, path := range []string{"/", "/gitrepository/", "/../keys/plans.key", "/%2e%2e/keys/plans.key"} {
		if code, text := w.get(path, ""); code == http.StatusOK || strings.Contains(text, "AGE-SECRET-KEY") {
			t.Errorf("%s answers %d %q", path, code, text)
		}
	}
}

func TestEventsArePostedToTheirAddress(t *testing.T) {
	type event struct {
		Reason         string
		InvolvedObject struct{ Kind, Name string }
	}
	got := make(chan event, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e event
		if json.NewDecoder(r.Body).Decode(&e) == nil {
			got <- e
		}
	}))
	defer receiver.Close()
	w := newWorld(t, modA(), func(c *config.Config) { c.EventsAddr = receiver.URL })
	w.unit("u", `approvePlan: auto`)
	w.awaitReady("u")
	for {
		select {
		case e := <-got:
			if e.InvolvedObject.Kind == "Terraform" && e.InvolvedObject.Name == "u" && e.Reason == infra.ReasonAppliedSucceed {
				return
			}
		case <-t.Context().Done():
			t.Fatal("no event arrived")
		}
	}
}
