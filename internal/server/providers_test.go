// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
)

// needing is a module that declares a provider and has a resource of it.
func needing(source string) string {
	return fmt.Sprintf(`
terraform {
  required_providers {
    time = { source = %q }
  }
}
resource "time_static" "x" {}
`, source)
}

// allowHere sets the annotation of the world's namespace, or takes it away.
func (w *world) allowHere(patterns string) {
	w.t.Helper()
	var ns corev1.Namespace
	must(w.t, w.client.Get(w.ctx(), client.ObjectKey{Name: w.ns}, &ns))
	base := ns.DeepCopy()
	if ns.Annotations == nil {
		ns.Annotations = map[string]string{}
	}
	ns.Annotations[infra.AllowedProvidersAnnotation] = patterns
	must(w.t, w.client.Patch(w.ctx(), &ns, client.MergeFrom(base)))
}

func TestOnlyAllowedProvidersRun(t *testing.T) {
	// What is refused by what the module says never comes to init; a module from elsewhere
	// is known when init has fetched it, and a lock file names what nobody declares.
	files := map[string]string{
		"declared/main.tf":         needing("evil.example/miner/time"),
		"implied/main.tf":          `resource "miner_coin" "x" {}`,
		"lock/main.tf":             moduleA,
		"lock/.terraform.lock.hcl": "provider \"evil.example/miner/coin\" {\n  version = \"1.0.0\"\n}\n",
		"builtin/main.tf":          moduleA,
		"good/main.tf":             needing("terrace.test/hashicorp/time"),
	}
	w := newWorld(t, files, withMirror(t), func(c *config.Config) {
		c.AllowedProviders = []string{"corp/*", "terrace.test/hashicorp/time"}
	})
	for name, want := range map[string]string{
		"declared": "evil.example/miner/time", "implied": "registry.opentofu.org/hashicorp/miner", "lock": "evil.example/miner/coin",
	} {
		w.unit(name, "path: ./"+name+"\napprovePlan: auto\nretryInterval: 1h")
		m := readyOf(w.awaitReason(name, infra.ReasonAccessDenied)).Message
		for _, text := range []string{want, "--allowed-providers", "corp/*, terrace.test/hashicorp/time"} {
			if !strings.Contains(m, text) {
				t.Errorf("%s: the message does not have %q: %s", name, text, m)
			}
		}
	}
	if n := w.spawned(""); n != 0 {
		t.Errorf("%d processes of the tool ran for what is refused by the configuration", n)
	}
	for _, name := range []string{"builtin", "good"} {
		w.unit(name, "path: ./"+name+"\napprovePlan: auto")
		w.awaitReady(name)
	}
}

func TestProvidersOfFetchedModules(t *testing.T) {
	w := newWorld(t, map[string]string{"README": "x"}, withMirror(t), func(c *config.Config) {
		c.AllowedProviders = []string{"corp/*"}
		c.RunConfine = false // git fetches the module from the test's own repository
	})
	w.commit(map[string]string{"module/main.tf": needing("terrace.test/hashicorp/time")})
	w.commit(map[string]string{"unit/main.tf": `module "m" { source = "git::file://` + w.repo + `//module" }`})
	w.unit("u", "path: ./unit\napprovePlan: auto\nretryInterval: 1h")
	m := readyOf(w.awaitReason("u", infra.ReasonAccessDenied)).Message
	if !strings.Contains(m, "terrace.test/hashicorp/time") {
		t.Errorf("the message does not name the provider: %s", m)
	}
	if n := w.spawned("plan"); n != 0 || w.spawned("init") == 0 {
		t.Errorf("%d plans, %d inits; want an init and nothing after it", n, w.spawned("init"))
	}
	// The next attempt knows it without another init, and still refuses.
	w.reconcile("u")
	w.await("u", "refused again", func(tf *infra.Terraform) bool { return tf.Status.ReconciliationFailures > 1 })
	if n := w.spawned("plan"); n != 0 || w.spawned("init") != 1 {
		t.Errorf("%d plans, %d inits; want nothing more", n, w.spawned("init"))
	}
}

func TestNamespaceNarrowsProviders(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": needing("terrace.test/hashicorp/time")}, withMirror(t), func(c *config.Config) {
		c.AllowedProviders = []string{"terrace.test/*/*"}
	})
	for name, tc := range map[string]struct {
		reason, patterns string
		want             []string
	}{
		"other":   {"a list of others refuses it", "terrace.test/hashicorp/local, corp/*", []string{"terrace.test/hashicorp/time", infra.AllowedProvidersAnnotation, "namespace " + w.ns}},
		"broken":  {"a list that cannot be read refuses all", "time", []string{`"time"`, "NAMESPACE/TYPE", infra.AllowedProvidersAnnotation}},
		"fitting": {"one that has it allows it", "corp/* terrace.test/hashicorp/*", nil},
	} {
		w.allowHere(tc.patterns)
		w.unit(name, "approvePlan: auto\nretryInterval: 1h")
		if tc.want == nil {
			w.awaitReady(name)
			continue
		}
		m := readyOf(w.awaitReason(name, infra.ReasonAccessDenied)).Message
		for _, text := range tc.want {
			if !strings.Contains(m, text) {
				t.Errorf("%s: the message does not have %q: %s", tc.reason, text, m)
			}
		}
	}
}

func TestNamespaceWidensNothing(t *testing.T) {
	w := newWorld(t, map[string]string{"main.tf": needing("terrace.test/hashicorp/time")}, withMirror(t), func(c *config.Config) {
		c.AllowedProviders = []string{"corp/*"}
	})
	w.allowHere("*/*/*")
	w.unit("u", "approvePlan: auto\nretryInterval: 1h")
	if m := readyOf(w.awaitReason("u", infra.ReasonAccessDenied)).Message; !strings.Contains(m, "--allowed-providers") {
		t.Errorf("the message does not name the list: %s", m)
	}
}
