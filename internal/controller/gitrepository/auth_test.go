// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/auth/githubapp"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

// TestGitHubApp mints a token at a GitHub that is a test server, and logs in
// with it.
func TestGitHubApp(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	var minted atomic.Int32
	github := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/app/installations/2/access_tokens") || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ey") {
			http.NotFound(w, r)
			return
		}
		minted.Add(1)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"token": "minted", "expires_at": time.Now().Add(time.Hour)})
	}))
	defer github.Close()

	b := newBench(t, secret("creds", map[string]string{
		githubapp.KeyAppID: "1", githubapp.KeyAppInstallationID: "2",
		githubapp.KeyAppPrivateKey: private, githubapp.KeyAppBaseURL: github.URL,
	}))
	b.server.Auth(githubapp.AccessTokenUsername, "minted")
	if err := b.server.StartHTTP(); err != nil {
		t.Fatal(err)
	}
	r := b.repo("infra.git")
	first := r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) { g.Spec.Provider, g.Spec.SecretRef = "github", ref("creds") }))
	b.expect("with a minted token", b.ready(), stored("main@sha1:"+first)...)
	b.ready()
	if n := minted.Load(); n != 1 {
		t.Errorf("%d tokens were minted; want one for its life time", n)
	}

	broken := secret("creds", map[string]string{
		githubapp.KeyAppID: "1", githubapp.KeyAppInstallationID: "3",
		githubapp.KeyAppPrivateKey: private, githubapp.KeyAppBaseURL: github.URL,
	})
	if err := b.client.Update(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	g, _, err := b.run()
	if err == nil || conditions.GetReason(g, sourcev1.FetchFailedCondition) != "AuthenticationFailed" {
		t.Errorf("another installation: %v, %v", err, describe(g))
	}
}

func TestProxySecret(t *testing.T) {
	var through atomic.Int32
	var login atomic.Value
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		through.Add(1)
		login.Store(r.In.Header.Get("Proxy-Authorization"))
		r.SetURL(&url.URL{Scheme: r.In.URL.Scheme, Host: r.In.URL.Host})
	}})
	defer proxy.Close()
	b := newBench(t, secret("proxy", map[string]string{"address": proxy.URL, "username": "u", "password": "p"}))
	r := b.repo("infra.git")
	first := r.commit("first", map[string]string{"f": "1"})
	b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) { g.Spec.ProxySecretRef = ref("proxy") }))
	b.expect("through the proxy", b.ready(), stored("main@sha1:"+first)...)
	if through.Load() == 0 || through.Load() != b.requests.Load() || login.Load() != "Basic dTpw" {
		t.Errorf("%d of %d requests went through the proxy, with %q", through.Load(), b.requests.Load(), login.Load())
	}
}

// TestCloudProviders reaches no cloud: it shows that the credentials are asked
// for, and that not getting them is told.
func TestCloudProviders(t *testing.T) {
	for _, provider := range []string{"azure", "aws"} {
		t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
		t.Setenv("AZURE_TENANT_ID", "")
		b := newBench(t)
		r := b.repo("infra.git")
		r.commit("first", map[string]string{"f": "1"})
		b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) {
			g.Spec.Provider = provider
			g.Spec.Timeout = nil
			if provider == "aws" { // CodeCommit only
				g.Spec.URL = "https://example.com/infra.git"
			}
		}))
		if provider == "azure" { // would look for a metadata service
			b.o.DefaultServiceAccount = "sa"
		}
		g, _, err := b.run()
		want := "AuthenticationFailed"
		if provider == "azure" {
			want = "FeatureGateDisabled"
		}
		if got := conditions.GetReason(g, sourcev1.FetchFailedCondition); got != want {
			t.Errorf("%s: reason %s, %v: %v", provider, got, err, describe(g))
		}
		if b.requests.Load() != 0 {
			t.Errorf("%s: the repository was asked without credentials", provider)
		}
	}
}
