// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Lives of certificates. A certificate is issued anew when less than a third of
// its life is left, so that even a process that nobody restarts never serves an
// expired one.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
)

// The certificates of the data directory, by file name in pki/ without ending.
const (
	authorityName = "ca"
	servingName   = "apiserver"
	adminName     = "admin"   // people, through the kubeconfig file
	terraceName   = "terrace" // this process
)

// authority issues the certificates of one data directory. All keys are ECDSA
// P-256: small, fast to make at first start, understood by every client.
type authority struct {
	dir   *directory
	now   func() time.Time
	life  time.Duration // of a leaf
	hosts []string      // names and addresses that the serving certificate answers to
}

// pair is a certificate with its key, both PEM.
type pair struct {
	cert, key []byte
}

func (a *authority) file(name, ending string) string {
	return filepath.Join(pkiDir, name+ending)
}

// renew issues what is missing, unreadable, too old or no longer fitting, and
// says whether anything changed. Keys of leaves change with their certificate;
// the authority keeps its key, so that what it has signed stays valid.
func (a *authority) renew() (changed bool, err error) {
	if err := os.MkdirAll(a.dir.join(pkiDir), 0o700); err != nil {
		return false, unusable(a.dir.path, err)
	}
	ca, caKey, fresh, err := a.renewAuthority()
	if err != nil {
		return false, err
	}
	changed = fresh
	for _, want := range a.leaves() {
		if a.current(want, ca) {
			continue
		}
		if err := a.issue(want, ca, caKey); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// leaf describes a certificate that is to exist.
type leaf struct {
	name    string
	subject pkix.Name
	usage   x509.ExtKeyUsage
	hosts   []string
}

func (a *authority) leaves() []leaf {
	masters := []string{"system:masters"}
	return []leaf{
		{name: servingName, subject: pkix.Name{CommonName: "kube-apiserver"}, usage: x509.ExtKeyUsageServerAuth, hosts: a.hosts},
		{name: adminName, subject: pkix.Name{CommonName: "admin", Organization: masters}, usage: x509.ExtKeyUsageClientAuth},
		{name: terraceName, subject: pkix.Name{CommonName: "system:terrace", Organization: masters}, usage: x509.ExtKeyUsageClientAuth},
	}
}

func (a *authority) renewAuthority() (*x509.Certificate, crypto.Signer, bool, error) {
	key, newKey, err := a.key(a.file(authorityName, ".key"))
	if err != nil {
		return nil, nil, false, err
	}
	if old := a.load(authorityName); !newKey && old != nil && old.IsCA && samePublic(old, key) && a.fresh(old) {
		return old, key, false, nil
	}
	ca, text, err := a.sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "terrace"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, authorityLife, nil, key.Public(), key)
	if err != nil {
		return nil, nil, false, err
	}
	return ca, key, true, a.dir.write(a.file(authorityName, ".crt"), text)
}

// current says whether the leaf on disk is the wanted one for long enough.
func (a *authority) current(want leaf, ca *x509.Certificate) bool {
	have := a.load(want.name)
	if have == nil || !a.fresh(have) || have.CheckSignatureFrom(ca) != nil {
		return false
	}
	if _, err := os.Stat(a.dir.join(a.file(want.name, ".key"))); err != nil {
		return false
	}
	if have.Subject.CommonName != want.subject.CommonName || !slices.Equal(have.Subject.Organization, want.subject.Organization) {
		return false
	}
	for _, host := range want.hosts {
		if have.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

func (a *authority) issue(want leaf, ca *x509.Certificate, caKey crypto.Signer) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyText, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	template := &x509.Certificate{Subject: want.subject, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{want.usage}}
	for _, host := range want.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	_, text, err := a.sign(template, a.life, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	// The key goes first: whoever watches the files loads both again after the
	// second, and keeps what it had while the two do not fit.
	if err := a.dir.write(a.file(want.name, ".key"), keyText); err != nil {
		return err
	}
	return a.dir.write(a.file(want.name, ".crt"), text)
}

// sign issues template, by its own key when parent is nil.
func (a *authority) sign(template *x509.Certificate, life time.Duration, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, []byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = a.now().Add(-time.Minute).UTC() // clocks of clients may be behind
	template.NotAfter = a.now().Add(life).UTC()
	if parent == nil {
		parent = template
	} else if template.NotAfter.After(parent.NotAfter) {
		template.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate %q: %w", template.Subject.CommonName, err)
	}
	issued, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate %q: %w", template.Subject.CommonName, err)
	}
	text, err := cert.EncodeCertificates(issued)
	return issued, text, err
}

// load returns the certificate on disk, nil when there is none that can be read.
func (a *authority) load(name string) *x509.Certificate {
	certs, err := cert.CertsFromFile(a.dir.join(a.file(name, ".crt")))
	if err != nil {
		return nil
	}
	return certs[0]
}

func (a *authority) fresh(c *x509.Certificate) bool {
	left := c.NotAfter.Sub(a.now())
	return left > c.NotAfter.Sub(c.NotBefore)/3 && !a.now().Before(c.NotBefore)
}

// key returns the private key of a file, made at first. A key that is there but
// cannot be read is an error: to replace it would lock out whoever relies on it.
func (a *authority) key(name string) (key crypto.Signer, made bool, err error) {
	text, err := a.dir.read(name)
	if err != nil {
		return nil, false, err
	}
	if text == nil {
		if text, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
			return nil, false, err
		}
		if err = a.dir.write(name, text); err != nil {
			return nil, false, err
		}
		made = true
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		return nil, false, damagedFile(a.dir.join(name), err)
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, false, damagedFile(a.dir.join(name), fmt.Errorf("no signing key"))
	}
	return signer, made, nil
}

func damagedFile(path string, err error) error {
	return &StartError{
		What: fmt.Sprintf("read %s: %v", path, err),
		Hint: "restore the file from a backup; if it is removed, a new one is made and what relied on the old one must sign in again",
		Err:  ErrCorrupt,
	}
}

// pair returns a certificate and its key from disk.
func (a *authority) pair(name string) (pair, error) {
	c, err := a.dir.read(a.file(name, ".crt"))
	if err != nil {
		return pair{}, err
	}
	k, err := a.dir.read(a.file(name, ".key"))
	if err != nil {
		return pair{}, err
	}
	return pair{cert: bytes.Clone(c), key: bytes.Clone(k)}, nil
}

func samePublic(c *x509.Certificate, key crypto.Signer) bool {
	public, ok := c.PublicKey.(*ecdsa.PublicKey)
	return ok && public.Equal(key.Public())
}

// servingHosts lists what clients may call the API server that listens on ip.
func servingHosts(ip net.IP) []string {
	hosts := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1", serviceIP}
	if name, err := os.Hostname(); err == nil && !ip.IsLoopback() {
		hosts = append(hosts, name)
	}
	if !ip.IsUnspecified() {
		hosts = append(hosts, ip.String())
	} else if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, addr := range addrs {
			if n, ok := addr.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				hosts = append(hosts, n.IP.String())
			}
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
