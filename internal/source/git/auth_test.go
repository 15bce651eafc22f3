// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/gitkit"
	fluxgit "github.com/fluxcd/pkg/git"
	"github.com/fluxcd/pkg/gittestserver"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// auth makes credentials the way the controller does: from a URL and a Secret.
func auth(t *testing.T, location string, data map[string]string) *fluxgit.AuthOptions {
	t.Helper()
	u, err := url.Parse(location)
	if err != nil {
		t.Fatal(err)
	}
	secret := map[string][]byte{}
	for k, v := range data {
		secret[k] = []byte(v)
	}
	o, err := fluxgit.NewAuthOptions(*u, secret)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func tryFetch(t *testing.T, location string, secret map[string]string, proxy *url.URL) error {
	t.Helper()
	_, err := Fetch(t.Context(), Request{URL: location, Ref: Reference{Branch: "main"}, Auth: auth(t, location, secret), Proxy: proxy}, into(t))
	return err
}

func TestHTTPLogin(t *testing.T) {
	server := gittestserver.NewGitServer(t.TempDir()).Auth("user", "right")
	if err := server.StartHTTP(); err != nil {
		t.Fatal(err)
	}
	defer server.StopHTTP()
	newRepo(t, server.Root()+"/r.git").commit("c", map[string]string{"f": "1"})
	location := server.HTTPAddress() + "/r.git"
	bearer := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer right" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	bearer.repo(t, "r.git").commit("c", map[string]string{"f": "1"})
	for name, c := range map[string]struct {
		url    string
		secret map[string]string
		want   error
		text   string
	}{
		"basic":          {location, map[string]string{"username": "user", "password": "right"}, nil, ""},
		"in the URL":     {strings.Replace(location, "://", "://user:right@", 1), nil, nil, ""},
		"wrong password": {location, map[string]string{"username": "user", "password": "wrong"}, ErrNotAccepted, "credentials are not accepted"},
		"none":           {location, nil, ErrNotAccepted, "asks for credentials and there are none"},
		"bearer":         {bearer.HTTPAddress() + "/r.git", map[string]string{"bearerToken": "right"}, nil, ""},
		"wrong bearer":   {bearer.HTTPAddress() + "/r.git", map[string]string{"bearerToken": "wrong"}, ErrNotAccepted, "credentials are not accepted"},
	} {
		err := tryFetch(t, c.url, c.secret, nil)
		if !errors.Is(err, c.want) || err != nil && (!strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "wrong")) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}
}

func TestProxy(t *testing.T) {
	server := serve(t)
	server.repo(t, "r.git").commit("c", map[string]string{"f": "1"})
	var through atomic.Int32
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		through.Add(1)
		r.SetURL(&url.URL{Scheme: r.In.URL.Scheme, Host: r.In.URL.Host})
	}})
	defer proxy.Close()
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := tryFetch(t, server.HTTPAddress()+"/r.git", nil, u); err != nil {
		t.Fatal(err)
	}
	if through.Load() == 0 || through.Load() != server.requests.Load() {
		t.Errorf("%d requests went through the proxy, %d arrived", through.Load(), server.requests.Load())
	}
}

// authority signs certificates for 127.0.0.1.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) issue() (cert, key string) {
	k := newKey(a.t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "x"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, k.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kder}))
}

func TestTLS(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	git := serve(t)
	git.repo(t, "r.git").commit("c", map[string]string{"f": "1"})
	behind, err := url.Parse(git.HTTPAddress())
	if err != nil {
		t.Fatal(err)
	}
	cert, key := ca.issue()
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	start := func(mode tls.ClientAuthType) string {
		s := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(behind))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: mode, ClientCAs: pool}
		s.StartTLS()
		t.Cleanup(s.Close)
		return s.URL + "/r.git"
	}
	plain, mutual := start(tls.NoClientCert), start(tls.RequireAndVerifyClientCert)
	mine, mineKey := ca.issue()
	theirs, theirsKey := stranger.issue()
	for name, c := range map[string]struct {
		url    string
		secret map[string]string
		text   string // of the error; empty for none
	}{
		"CA":                 {plain, map[string]string{"ca.crt": ca.pem}, ""},
		"CA by its old key":  {plain, map[string]string{"caFile": ca.pem}, ""},
		"unknown CA":         {plain, nil, "unknown authority"},
		"other CA":           {plain, map[string]string{"ca.crt": stranger.pem}, "unknown authority"},
		"client certificate": {mutual, map[string]string{"ca.crt": ca.pem, "tls.crt": mine, "tls.key": mineKey}, ""},
		"no certificate":     {mutual, map[string]string{"ca.crt": ca.pem}, "certificate required"},
		"other certificate":  {mutual, map[string]string{"ca.crt": ca.pem, "tls.crt": theirs, "tls.key": theirsKey}, "tls"},
	} {
		err := tryFetch(t, c.url, c.secret, nil)
		if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %q", name, err, c.text)
		}
	}
}

func sshKey(t *testing.T, passphrase string) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var block *pem.Block
	if passphrase == "" {
		block, err = gossh.MarshalPrivateKey(key, "")
	} else {
		block, err = gossh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block))
}

func TestSSH(t *testing.T) {
	stranger := sshKey(t, "")
	parsed, err := gossh.ParsePrivateKey([]byte(stranger))
	if err != nil {
		t.Fatal(err)
	}
	refused := string(gossh.MarshalAuthorizedKey(parsed.PublicKey()))
	server := gittestserver.NewGitServer(t.TempDir())
	server.PublicKeyLookupFunc(func(content string) (*gitkit.PublicKey, error) {
		if strings.TrimSpace(content) == strings.TrimSpace(refused) {
			return nil, errors.New("not known")
		}
		return &gitkit.PublicKey{Id: "a"}, nil
	})
	server.Auth("", "")
	server.KeyDir(t.TempDir())
	if err := server.ListenSSH(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.StartSSH() }()
	t.Cleanup(func() { _ = server.StopSSH() })
	newRepo(t, server.Root()+"/r.git").commit("c", map[string]string{"f": "1"})

	location := server.SSHAddress() + "/r.git"
	host := strings.TrimPrefix(server.SSHAddress(), "ssh://git@")
	var hostKey gossh.PublicKey
	_, _ = gossh.Dial("tcp", host, &gossh.ClientConfig{HostKeyCallback: func(_ string, _ net.Addr, key gossh.PublicKey) error {
		hostKey = key
		return errors.New("seen")
	}})
	if hostKey == nil {
		t.Fatal("the server shows no host key")
	}
	right := knownhosts.Line([]string{host}, hostKey)
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(other)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	otherRSA, err := gossh.NewPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		secret map[string]string
		want   error
		text   string
	}{
		"right":           {map[string]string{"identity": sshKey(t, ""), "known_hosts": right}, nil, ""},
		"with passphrase": {map[string]string{"identity": sshKey(t, "secret"), "password": "secret", "known_hosts": right}, nil, ""},
		"wrong host key":  {map[string]string{"identity": sshKey(t, ""), "known_hosts": knownhosts.Line([]string{host}, signer.PublicKey())}, ErrHostKey, "no key of a kind that it shows"},
		"other host key":  {map[string]string{"identity": sshKey(t, ""), "known_hosts": knownhosts.Line([]string{host}, otherRSA)}, ErrHostKey, gossh.FingerprintSHA256(hostKey)},
		"unknown client":  {map[string]string{"identity": stranger, "known_hosts": right}, ErrNotAccepted, "credentials are not accepted"},
		"unknown host":    {map[string]string{"identity": sshKey(t, ""), "known_hosts": knownhosts.Line([]string{"example.com"}, hostKey)}, ErrHostKey, gossh.FingerprintSHA256(hostKey)},
		"bad identity":    {map[string]string{"identity": "nothing", "known_hosts": right}, nil, "read SSH identity"},
		"bad known_hosts": {map[string]string{"identity": sshKey(t, ""), "known_hosts": "x y z"}, nil, "read known_hosts"},
	} {
		err := tryFetch(t, location, c.secret, nil)
		if (err == nil) != (c.text == "") || c.want != nil && !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %q", name, err, c.text)
		}
	}
}
