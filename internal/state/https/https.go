// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package https is what the gate and the state service share as servers: a certificate
// authority that lives and dies with the process, and a server that stops in order. Who may
// ask for what is theirs.
package https

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	serverLife    = 30 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = 10 * 24 * time.Hour
	// grace is what requests get that are being served at the end.
	grace = 10 * time.Second
)

// Authority signs the certificates of one server. Its key never leaves the process: it is
// made anew at each start, and so is all that trusts it.
type Authority struct {
	clock clock.PassiveClock
	name  string
	dns   []string
	ips   []net.IP
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	pem   []byte

	mu      sync.Mutex
	current *tls.Certificate
}

// NewAuthority returns an authority for a server that is called name, such as "terrace state
// gate", and is reached by the DNS names and addresses.
func NewAuthority(c clock.PassiveClock, name string, dns []string, ips []net.IP) (*Authority, error) {
	a := &Authority{clock: c, name: name, dns: dns, ips: ips}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := a.sign(template, authorityLife, &a.key.PublicKey, template)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, nil
}

// PEM is the certificate of the authority: what clients have to trust.
func (a *Authority) PEM() []byte { return a.pem }

func (a *Authority) sign(template *x509.Certificate, life time.Duration, key *ecdsa.PublicKey, parent *x509.Certificate) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = a.clock.Now().Add(-time.Hour) // clocks differ, and are set
	template.NotAfter = a.clock.Now().Add(life)
	return x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
}

// Certificate returns the server's certificate, a new one before it expires. It is a
// tls.Config's GetCertificate.
func (a *Authority) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil && a.clock.Now().Before(a.current.Leaf.NotAfter.Add(-renewBefore)) {
		return a.current, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the %s: %w", a.name, err)
	}
	der, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: a.name},
		DNSNames:    a.dns,
		IPAddresses: a.ips,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, serverLife, &key.PublicKey, a.cert)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the %s: %w", a.name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the %s: %w", a.name, err)
	}
	a.current = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return a.current, nil
}

// Serve serves on l, with the TLS configuration and the bounds of s, until ctx ends; requests
// that are being served then get ten seconds. The error says why it stopped before.
func Serve(ctx context.Context, s *http.Server, l net.Listener) error {
	// Terraform asks one thing after the other. HTTP/2 would bring it nothing, and make
	// each shutdown wait a second for farewells.
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	// Handshakes that fail are the client's to report, and runs die in the middle of everything.
	s.ErrorLog = log.New(io.Discard, "", 0)
	stopped := make(chan error, 1)
	go func() { stopped <- s.ServeTLS(l, "", "") }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := s.Shutdown(ending); err != nil {
		_ = s.Close()
	}
	<-stopped
	return nil
}
