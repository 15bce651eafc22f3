// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// The tests here are about references into other namespaces.

// neighbour is another namespace, with a source, a unit and a Secret to refer to.
// A world watches it only if its configuration says so.
func (w *world) neighbour() string {
	w.t.Helper()
	ns := testenv.Start(w.t).Namespace(w.t)
	w.apply(`
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: theirs, namespace: ` + ns + `}
spec: {interval: 1h, url: "file://` + w.repo + `", ref: {branch: main}}
---
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: base, namespace: ` + ns + `}
spec: {approvePlan: auto, interval: 1h, sourceRef: {kind: GitRepository, name: theirs}}
---
apiVersion: v1
kind: Secret
metadata: {name: cli, namespace: ` + ns + `}
stringData: {a.tfrc: "disable_checkpoint = true"}`)
	return ns
}

// crossing are units that each refer into another namespace in one way.
func crossing(ns string) map[string]string {
	return map[string]string{
		"source":     "sourceRef: {kind: GitRepository, name: theirs, namespace: " + ns + "}",
		"dependency": "dependsOn: [{name: base, namespace: " + ns + "}]",
		"cli":        "cliConfigSecretRef: {name: cli, namespace: " + ns + "}",
	}
}

func (w *world) crossingUnit(name, spec string) {
	w.t.Helper()
	if strings.HasPrefix(spec, "sourceRef") {
		w.apply("apiVersion: infra.contrib.fluxcd.io/v1alpha2\nkind: Terraform\nmetadata: {name: " + name + "}\nspec:\n" + indent("interval: 1h\napprovePlan: auto\n"+spec))
		return
	}
	w.unit(name, "approvePlan: auto\n"+spec)
}

func TestReferencesIntoOtherNamespacesAreDenied(t *testing.T) {
	w := newWorld(t, modA())
	ns := w.neighbour()
	for name, spec := range crossing(ns) {
		w.crossingUnit(name, spec)
	}
	w.unit("annotated", "approvePlan: auto")
	w.apply(strings.ReplaceAll(`
apiVersion: infra.contrib.fluxcd.io/v1alpha2
kind: Terraform
metadata: {name: noted, annotations: {terrace.dev/depends-on: Terraform/NS/base}}
spec: {approvePlan: auto, interval: 1h, sourceRef: {kind: GitRepository, name: src}}`, "NS", ns))
	for _, name := range []string{"source", "dependency", "cli", "noted"} {
		tf := w.awaitReason(name, infra.ReasonAccessDenied)
		if c := condition(tf, "Stalled"); c.Status != metav1.ConditionTrue || c.Reason != infra.ReasonAccessDenied {
			t.Errorf("%s: Stalled is %+v", name, c)
		}
		if m := readyOf(tf).Message; !strings.Contains(m, ns) || !strings.Contains(m, "--allow-cross-namespace-refs") {
			t.Errorf("%s: the message names neither the namespace nor the way out: %q", name, m)
		}
		w.awaitEvent(name, infra.ReasonAccessDenied)
	}
	w.awaitReady("annotated") // by now each was looked at more than once
	for _, name := range []string{"source", "dependency", "cli", "noted"} {
		if n := len(w.events(name, infra.ReasonAccessDenied)); n != 1 {
			t.Errorf("%s: %d events", name, n)
		}
	}
	// One who takes the reference back goes on.
	w.change("dependency", func(tf *infra.Terraform) { tf.Spec.DependsOn = nil })
	w.awaitReady("dependency")
}

func TestReferencesIntoOtherNamespacesAreFollowedIfAllowed(t *testing.T) {
	w := newWorld(t, modA(), func(c *config.Config) { c.AllowCrossNamespaceRefs = true })
	w.stop()
	ns := w.neighbour()
	w.cfg.WatchNamespaces = append(w.cfg.WatchNamespaces, ns)
	w.start()
	for name, spec := range crossing(ns) {
		w.crossingUnit(name, spec)
	}
	for _, name := range []string{"source", "dependency", "cli"} {
		w.awaitReady(name)
	}
}
