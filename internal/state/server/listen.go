// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	serverLife    = 30 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = 10 * 24 * time.Hour
)

// ListenOptions configure a Listener.
type ListenOptions struct {
	// Address is host:port to listen on; empty is 127.0.0.1:0.
	Address string
	// CertPEM and KeyPEM are the server's certificate. Without them there is an
	// authority of the listener's own, made anew for each, that clients have to be told
	// of: Listener.CA.
	CertPEM, KeyPEM []byte
	// Names are further DNS names and IP addresses by which clients know the server, for
	// the listener's own certificate.
	Names []string
	// ClientCA are the certificates, in PEM, of the authorities whose client
	// certificates are asked for; who they are is found out by Kubernetes. Empty asks
	// for none.
	ClientCA []byte
	// Clock tells when certificates expire; nil is the real one.
	Clock clock.PassiveClock
}

// Listener is an HTTPS address that is open and not yet served.
type Listener struct {
	listener  net.Listener
	tls       *tls.Config
	authority *authority
	host      string
}

// Listen opens the address. The error says why it cannot be opened, or what is wrong
// with the certificates.
func Listen(o ListenOptions) (*Listener, error) {
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	l := &Listener{tls: &tls.Config{MinVersion: tls.VersionTLS12}}
	if len(o.ClientCA) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(o.ClientCA) {
			return nil, errors.New("open the state service: the CA of clients has no certificate")
		}
		// They are asked for and checked by who needs them: a Terraform that has a
		// certificate for something else must get on.
		l.tls.ClientCAs, l.tls.ClientAuth = pool, tls.RequestClientCert
	}
	if len(o.CertPEM) > 0 {
		cert, err := tls.X509KeyPair(o.CertPEM, o.KeyPEM)
		if err != nil {
			return nil, fmt.Errorf("open the state service: its certificate: %w", err)
		}
		l.tls.Certificates = []tls.Certificate{cert}
	}
	var err error
	if l.listener, err = net.Listen("tcp", o.Address); err != nil {
		return nil, fmt.Errorf("open the state service: %w", err)
	}
	l.host = l.listener.Addr().String()
	if ip := l.listener.Addr().(*net.TCPAddr); ip.IP.IsUnspecified() {
		// What listens on all addresses is reached on this machine's own.
		l.host = fmt.Sprintf("127.0.0.1:%d", ip.Port)
	}
	if len(o.CertPEM) > 0 {
		return l, nil
	}
	host, _, _ := net.SplitHostPort(l.host)
	names := append([]string{host, "127.0.0.1", "localhost"}, o.Names...)
	if l.authority, err = newAuthority(o.Clock, names); err != nil {
		return nil, errors.Join(fmt.Errorf("open the state service: make its certificate authority: %w", err), l.listener.Close())
	}
	l.tls.GetCertificate = l.authority.certificate
	return l, nil
}

// URL is where the listener is reached on this machine.
func (l *Listener) URL() string { return "https://" + l.host }

// CA is the certificate, in PEM, of the listener's own authority; empty when its
// certificate was given.
func (l *Listener) CA() []byte {
	if l.authority == nil {
		return nil
	}
	return l.authority.pem
}

// Close closes an address that is not served.
func (l *Listener) Close() error { return l.listener.Close() }

// Serve serves h until ctx ends; requests that are being served then get ten seconds.
// It may be called once. The error says why it stopped before.
func (l *Listener) Serve(ctx context.Context, h http.Handler) error {
	// Terraform asks one thing after the other. HTTP/2 would bring it nothing, and make
	// each shutdown wait a second for farewells.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	srv := &http.Server{
		Handler:           h,
		Protocols:         &protocols,
		TLSConfig:         l.tls,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       5 * time.Minute,
		WriteTimeout:      6 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		// Handshakes that fail are the client's to report.
		ErrorLog: log.New(discard{}, "", 0),
	}
	stopped := make(chan error, 1)
	go func() { stopped <- srv.ServeTLS(l.listener, "", "") }()
	select {
	case err := <-stopped:
		return fmt.Errorf("serve states: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		_ = srv.Close()
	}
	<-stopped
	return nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// authority signs a listener's own certificates. Its key never leaves the process.
type authority struct {
	clock clock.PassiveClock
	dns   []string
	ips   []net.IP
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	pem   []byte

	mu      sync.Mutex
	current *tls.Certificate
}

func newAuthority(c clock.PassiveClock, names []string) (*authority, error) {
	a := &authority{clock: c}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if ip := net.ParseIP(name); ip != nil {
			a.ips = append(a.ips, ip)
		} else if name != "" {
			a.dns = append(a.dns, name)
		}
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "terrace state service"},
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

func (a *authority) sign(template *x509.Certificate, life time.Duration, key *ecdsa.PublicKey, parent *x509.Certificate) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = a.clock.Now().Add(-time.Hour) // clocks differ, and are set
	template.NotAfter = a.clock.Now().Add(life)
	return x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
}

// certificate returns the server's certificate, a new one before it expires.
func (a *authority) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil && a.clock.Now().Before(a.current.Leaf.NotAfter.Add(-renewBefore)) {
		return a.current, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the state service: %w", err)
	}
	der, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "terrace state service"},
		DNSNames:    a.dns,
		IPAddresses: a.ips,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, serverLife, &key.PublicKey, a.cert)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the state service: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the state service: %w", err)
	}
	a.current = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return a.current, nil
}
