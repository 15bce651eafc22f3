// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/state/https"
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
	authority *https.Authority
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
	l.tls.GetCertificate = l.authority.Certificate
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
	return l.authority.PEM()
}

// Close closes an address that is not served.
func (l *Listener) Close() error { return l.listener.Close() }

// Serve serves h until ctx ends; requests that are being served then get ten seconds.
// It may be called once. The error says why it stopped before.
func (l *Listener) Serve(ctx context.Context, h http.Handler) error {
	srv := &http.Server{
		Handler:           h,
		TLSConfig:         l.tls,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       5 * time.Minute,
		WriteTimeout:      6 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
	if err := https.Serve(ctx, srv, l.listener); err != nil {
		return fmt.Errorf("serve states: %w", err)
	}
	return nil
}

// newAuthority returns an authority of the listener's own, for the names and addresses by
// which it is reached.
func newAuthority(c clock.PassiveClock, names []string) (*https.Authority, error) {
	var dns []string
	var ips []net.IP
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if ip := net.ParseIP(name); ip != nil {
			ips = append(ips, ip)
		} else if name != "" {
			dns = append(dns, name)
		}
	}
	return https.NewAuthority(c, "terrace state service", dns, ips)
}
