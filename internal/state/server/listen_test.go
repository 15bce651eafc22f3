// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/state/server"
)

// ca is an authority of clients or servers.
type ca struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newCA(t *testing.T) *ca {
	t.Helper()
	c := &ca{t: t}
	c.cert, c.key = c.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "ca"}})
	return c
}

func (c *ca) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

func (c *ca) issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	template.NotBefore = template.NotAfter.Add(-48 * time.Hour)
	parent, signer := template, key
	if c.cert != nil {
		parent, signer = c.cert, c.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert, key
}

func (c *ca) client(template *x509.Certificate) tls.Certificate {
	cert, key := c.issue(template)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func listen(t *testing.T, o server.ListenOptions, h http.Handler) *server.Listener {
	t.Helper()
	l, err := server.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- l.Serve(ctx, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestClientCertificates: who has a certificate of the cluster needs no token; what it
// may do is asked as for others.
func TestClientCertificates(t *testing.T) {
	cluster, stranger := newCA(t), newCA(t)
	pool := x509.NewCertPool()
	pool.AddCert(cluster.cert)
	word := &reviewer{rights: map[string]map[string]bool{"ann": may("get")}}
	w := newWorld(t, func(o *server.Options) { o.Kubernetes = server.NewKubernetes(word, pool, nil, nil) })
	l := listen(t, server.ListenOptions{ClientCA: cluster.pem()}, w.handler)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for reason, tc := range map[string]struct {
		cert *tls.Certificate
		want int
	}{
		"a user of the cluster":            {ptr(cluster.client(&x509.Certificate{Subject: pkix.Name{CommonName: "ann"}, ExtKeyUsage: client})), 404},
		"a user without rights":            {ptr(cluster.client(&x509.Certificate{Subject: pkix.Name{CommonName: "eve"}, ExtKeyUsage: client})), 403},
		"another authority":                {ptr(stranger.client(&x509.Certificate{Subject: pkix.Name{CommonName: "ann"}, ExtKeyUsage: client})), 401},
		"a server's certificate":           {ptr(cluster.client(&x509.Certificate{Subject: pkix.Name{CommonName: "ann"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})), 401},
		"an expired certificate":           {ptr(cluster.client(&x509.Certificate{Subject: pkix.Name{CommonName: "ann"}, ExtKeyUsage: client, NotAfter: time.Now().Add(-time.Hour)})), 401},
		"no certificate":                   {nil, 401},
		"a certificate that names no user": {ptr(cluster.client(&x509.Certificate{ExtKeyUsage: client})), 401},
	} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(l.CA())
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if tc.cert == nil {
				return &tls.Certificate{}, nil
			}
			return tc.cert, nil
		}}}}
		res, err := c.Get(l.URL() + netPath)
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s: %d %s, want %d", reason, res.StatusCode, b, tc.want)
		}
	}
}

func ptr(c tls.Certificate) *tls.Certificate { return &c }

func TestListen(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	ask := func(l *server.Listener, roots []byte, name string) error {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name}}}
		res, err := c.Get(l.URL())
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	clock := testingclock.NewFakeClock(time.Now().Add(-25 * 24 * time.Hour))
	l := listen(t, server.ListenOptions{Names: []string{"terrace-state.terrace-system.svc"}, Clock: clock}, hello)
	for _, name := range []string{"", "127.0.0.1", "localhost", "terrace-state.terrace-system.svc"} {
		if err := ask(l, l.CA(), name); err != nil {
			t.Errorf("as %q: %v", name, err)
		}
	}
	if err := ask(l, l.CA(), "example.org"); err == nil {
		t.Error("the certificate is good for every name")
	}
	clock.SetTime(time.Now()) // the first certificate ends soon: there is another one
	if err := ask(l, l.CA(), ""); err != nil {
		t.Errorf("after its renewal: %v", err)
	}
	authority := newCA(t)
	cert, key := authority.issue(&x509.Certificate{DNSNames: []string{"states.example.org"}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	own := server.ListenOptions{
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), KeyPEM: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
	given := listen(t, own, hello)
	if err := ask(given, authority.pem(), "states.example.org"); err != nil || len(given.CA()) != 0 {
		t.Errorf("with a certificate of one's own: %v", err)
	}
	for reason, o := range map[string]server.ListenOptions{
		"not ours": {Address: "203.0.113.1:1"}, "no address": {Address: "x"}, "no key": {CertPEM: own.CertPEM},
		"no authority": {ClientCA: []byte("x")},
	} {
		if l, err := server.Listen(o); err == nil {
			l.Close()
			t.Errorf("%s: it listens", reason)
		} else if !strings.Contains(err.Error(), "open the state service") {
			t.Errorf("%s: %v", reason, err)
		}
	}
}
