// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	testingclock "k8s.io/utils/clock/testing"
)

func TestRenew(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	leaves := []string{servingName, adminName, terraceName}
	cases := map[string]struct {
		reason string
		later  time.Duration
		hosts  []string
		damage func(t *testing.T, a *authority)
		want   []string // renewed
	}{
		"nothing to do": {
			reason: "two thirds of the life may pass",
			later:  59 * 24 * time.Hour,
		},
		"a third is left": {
			reason: "90 days of life, 61 gone",
			later:  61 * 24 * time.Hour, want: leaves,
		},
		"expired": {
			reason: "the process was off for a year",
			later:  365 * 24 * time.Hour, want: leaves,
		},
		"authority grows old": {
			reason: "it is signed again with its key, so that old leaves would still be good; these have expired as well",
			later:  7 * 365 * 24 * time.Hour, want: append([]string{authorityName}, leaves...),
		},
		"clock set back": {
			reason: "a certificate from the future is not valid yet",
			later:  -24 * time.Hour, want: append([]string{authorityName}, leaves...),
		},
		"new address": {
			reason: "the server listens elsewhere now; clients are not concerned",
			hosts:  []string{"localhost", "192.0.2.7"}, want: []string{servingName},
		},
		"certificate damaged": {
			reason: "it can be made anew",
			damage: func(t *testing.T, a *authority) { write(t, a.dir.join(a.file(adminName, ".crt")), "nonsense") },
			want:   []string{adminName},
		},
		"key lost": {
			reason: "a certificate without its key is of no use",
			damage: func(t *testing.T, a *authority) { remove(t, a.dir.join(a.file(terraceName, ".key"))) },
			want:   []string{terraceName},
		},
		"authority lost": {
			reason: "leaves of another authority are not accepted",
			damage: func(t *testing.T, a *authority) { remove(t, a.dir.join(a.file(authorityName, ".key"))) },
			want:   append([]string{authorityName}, leaves...),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakePassiveClock(start)
			a := &authority{dir: &directory{path: t.TempDir()}, now: clock.Now, life: 90 * 24 * time.Hour, hosts: []string{"localhost"}}
			if changed, err := a.renew(); err != nil || !changed {
				t.Fatalf("first renewal: %v, %v", changed, err)
			}
			before := serials(t, a)
			clock.SetTime(start.Add(c.later))
			if c.hosts != nil {
				a.hosts = c.hosts
			}
			if c.damage != nil {
				c.damage(t, a)
			}
			changed, err := a.renew()
			if err != nil {
				t.Fatal(err)
			}
			if changed != (len(c.want) > 0) {
				t.Errorf("changed is %v", changed)
			}
			after := serials(t, a)
			for name := range after {
				wanted := false
				for _, w := range c.want {
					wanted = wanted || w == name
				}
				if renewed := after[name] != before[name]; renewed != wanted {
					t.Errorf("%s renewed: %v, want %v (%s)", name, renewed, wanted, c.reason)
				}
			}
			verify(t, a)
		})
	}
}

func serials(t *testing.T, a *authority) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range []string{authorityName, servingName, adminName, terraceName} {
		c := a.load(name)
		if c == nil {
			t.Fatalf("no certificate %s", name)
		}
		all[name] = c.SerialNumber.String()
	}
	return all
}

// verify checks each leaf as its peer would.
func verify(t *testing.T, a *authority) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(a.load(authorityName))
	for _, l := range a.leaves() {
		options := x509.VerifyOptions{Roots: roots, CurrentTime: a.now(), KeyUsages: []x509.ExtKeyUsage{l.usage}}
		if _, err := a.load(l.name).Verify(options); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		p, err := a.pair(l.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(p.cert, p.key); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
	}
	for _, host := range a.hosts {
		if err := a.load(servingName).VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(a.dir.path, pkiDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s is left behind", e.Name())
		}
	}
}

// TestRenewWhileRunning moves the clock of a running control plane to where its
// certificates have little life left, and sees the server present a new one and
// the kubeconfig change, without a restart. The clock starts in the past and
// arrives at the present, because the clients here have the real one.
func TestRenewWhileRunning(t *testing.T) {
	const age = 65 * 24 * time.Hour
	clock := testingclock.NewFakeClock(time.Now().Add(-age))
	cp := mustStart(t, Config{DataDir: filepath.Join(t.TempDir(), "data"), clock: clock, leafLife: 90 * 24 * time.Hour})
	defer mustStop(t, cp)
	address := strings.TrimPrefix(cp.URL(), "https://")
	presented := func() string {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only looks
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := presented()
	kubeconfig, err := os.ReadFile(cp.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	running := client(t, cp.RESTConfig())

	clock.Step(age)
	deadline := time.Now().Add(patience)
	for presented() == first { // the server watches the files; nothing tells us when it has looked
		if time.Now().After(deadline) {
			t.Fatal("the server still presents its first certificate")
		}
	}
	for {
		now, err := os.ReadFile(cp.KubeconfigPath())
		if err != nil {
			t.Fatal(err)
		}
		if string(now) != string(kubeconfig) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the kubeconfig has still the first certificate")
		}
	}
	admin, err := clientcmd.BuildConfigFromFlags("", cp.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, admin).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("list with the new kubeconfig: %v", err)
	}
	if _, err := running.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("list with a client from before: %v", err)
	}
}
