// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
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

// authority signs the gate's own certificates. Its key never leaves the process: it
// is made anew at each start, and so is all that trusts it.
type authority struct {
	clock clock.PassiveClock
	ip    net.IP
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	pem   []byte

	mu      sync.Mutex
	current *tls.Certificate
}

func newAuthority(c clock.PassiveClock, ip net.IP) (*authority, error) {
	a := &authority{clock: c, ip: ip}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "terrace state gate"},
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
		return nil, fmt.Errorf("make the gate's key: %w", err)
	}
	der, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "terrace state gate"},
		IPAddresses: []net.IP{a.ip},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, serverLife, &key.PublicKey, a.cert)
	if err != nil {
		return nil, fmt.Errorf("make the gate's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the gate's certificate: %w", err)
	}
	a.current = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return a.current, nil
}
