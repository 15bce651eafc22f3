// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/aws/aws-sdk-go-v2/aws"
	lib "github.com/getsops/sops/v3"
	"golang.org/x/oauth2"
)

// fakeKey is a master key of a key service that only turns a share round.
type fakeKey struct {
	kind   string
	fields map[string]any
	share  []byte
}

func (k *fakeKey) seal(share []byte) { k.share = share }

func (k *fakeKey) Encrypt([]byte) error         { return nil }
func (k *fakeKey) EncryptIfNeeded([]byte) error { return nil }
func (k *fakeKey) EncryptedDataKey() []byte     { return nil }
func (k *fakeKey) SetEncryptedDataKey([]byte)   {}
func (k *fakeKey) Decrypt() ([]byte, error)     { return nil, errors.New("not here") }
func (k *fakeKey) NeedsRotation() bool          { return false }
func (k *fakeKey) ToString() string             { return k.kind }
func (k *fakeKey) TypeToIdentifier() string     { return k.kind }
func (k *fakeKey) ToMap() map[string]interface{} {
	out := map[string]any{"created_at": "2026-01-01T00:00:00Z"}
	for f, v := range k.fields {
		out[f] = v
	}
	switch k.kind {
	case "hc_vault":
		out["enc"] = "vault:v1:" + base64.StdEncoding.EncodeToString(turn(k.share))
	case "azure_kv":
		out["enc"] = base64.RawURLEncoding.EncodeToString(turn(k.share))
	default:
		out["enc"] = base64.StdEncoding.EncodeToString(turn(k.share))
	}
	return out
}

// turn is the cipher of the fake services.
func turn(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] ^ 0x5a
	}
	return out
}

// services are the key services as this package meets them, by host.
type services struct {
	t        *testing.T
	tokens   atomic.Int32 // tokens of GCP that were handed out
	requests atomic.Int32
}

func (s *services) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests.Add(1)
	w := httptest.NewRecorder()
	body := []byte{}
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	s.serve(w, r, body)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *services) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	var in map[string]any
	_ = json.Unmarshal(body, &in)
	field := func(name string) string { v, _ := in[name].(string); return v }
	plain := func(name string, enc *base64.Encoding) []byte {
		b, err := enc.DecodeString(strings.TrimPrefix(field(name), "vault:v1:"))
		if err != nil {
			s.t.Errorf("%s %s: %s is not base64", r.Method, r.URL, name)
		}
		return turn(b)
	}
	std := base64.StdEncoding
	switch {
	case r.URL.Host == "standby.example.org":
		w.Header().Set("Location", "https://vault.example.org:8200"+r.URL.Path)
		w.WriteHeader(http.StatusTemporaryRedirect)
	case r.URL.Host == "downgrade.example.org":
		w.Header().Set("Location", "http://vault.example.org:8200"+r.URL.Path)
		w.WriteHeader(http.StatusTemporaryRedirect)
	case r.URL.Host == "page.example.org":
		_, _ = io.WriteString(w, "<html>internal page</html>")
	case r.URL.Host == "vault.example.org:8200":
		switch {
		case r.Method != http.MethodPut || r.URL.Path != "/v1/team/transit/decrypt/key one" || r.URL.Scheme != "https":
			answer(w, http.StatusNotFound, map[string]any{"errors": []string{}})
		case r.Header.Get("X-Vault-Token") != "hunter2":
			answer(w, http.StatusForbidden, map[string]any{"errors": []string{"permission denied"}})
		default:
			answer(w, http.StatusOK, map[string]any{"data": map[string]any{"plaintext": std.EncodeToString(plain("ciphertext", std))}})
		}
	case r.URL.Host == "kms.eu-west-1.amazonaws.com":
		auth := r.Header.Get("Authorization")
		ctx, _ := in["EncryptionContext"].(map[string]any)
		if !strings.Contains(auth, "Credential=AKIDHUNTER2/") && !strings.Contains(auth, "Credential=ASSUMED/") || ctx["app"] != "shop" {
			answer(w, http.StatusBadRequest, map[string]any{"__type": "AccessDeniedException", "message": "not you"})
			return
		}
		answer(w, http.StatusOK, map[string]any{"Plaintext": std.EncodeToString(plain("CiphertextBlob", std)), "KeyId": field("KeyId")})
	case r.URL.Host == "sts.eu-west-1.amazonaws.com":
		if !strings.Contains(string(body), "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no such role</Message></Error></ErrorResponse>")
			return
		}
		_, _ = io.WriteString(w, "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASSUMED</AccessKeyId>"+
			"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>")
	case r.URL.Host == "oauth2.googleapis.com":
		s.tokens.Add(1)
		answer(w, http.StatusOK, map[string]any{"access_token": "gcp", "token_type": "Bearer", "expires_in": 3600})
	case r.URL.Host == "cloudkms.googleapis.com":
		if r.Header.Get("Authorization") != "Bearer gcp" || r.URL.Path != "/v1/projects/p/locations/l/keyRings/r/cryptoKeys/k:decrypt" {
			answer(w, http.StatusForbidden, map[string]any{"error": map[string]any{"message": "permission denied on resource"}})
			return
		}
		answer(w, http.StatusOK, map[string]any{"plaintext": std.EncodeToString(plain("ciphertext", std))})
	case r.URL.Host == "login.microsoftonline.com" && strings.HasSuffix(r.URL.Path, "/instance"):
		answer(w, http.StatusOK, map[string]any{"tenant_discovery_endpoint": "https://login.microsoftonline.com/tenant/v2.0/.well-known/openid-configuration"})
	case r.URL.Host == "login.microsoftonline.com" && strings.HasSuffix(r.URL.Path, "openid-configuration"):
		base := "https://login.microsoftonline.com/tenant"
		answer(w, http.StatusOK, map[string]any{"issuer": base + "/v2.0", "authorization_endpoint": base + "/authorize", "token_endpoint": base + "/token"})
	case r.URL.Host == "login.microsoftonline.com":
		if !strings.Contains(string(body), "client_secret=hunter2") {
			answer(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client", "error_description": "hunter"})
			return
		}
		answer(w, http.StatusOK, map[string]any{"access_token": "azure", "token_type": "Bearer", "expires_in": 3600})
	case r.URL.Host == "shop.vault.azure.net":
		switch {
		case r.Header.Get("Authorization") != "Bearer azure":
			w.Header().Set("WWW-Authenticate", `Bearer authorization="https://login.microsoftonline.com/tenant", resource="https://vault.azure.net"`)
			answer(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": "Unauthorized"}})
		case r.URL.Path != "/keys/k/v1/decrypt" || field("alg") != "RSA-OAEP-256":
			answer(w, http.StatusNotFound, map[string]any{"error": map[string]any{"code": "KeyNotFound", "message": "gone"}})
		default:
			answer(w, http.StatusOK, map[string]any{"kid": "k", "value": base64.RawURLEncoding.EncodeToString(plain("value", base64.RawURLEncoding))})
		}
	default:
		s.t.Errorf("a request to %s", r.URL)
		w.WriteHeader(http.StatusBadGateway)
	}
}

func serviceAccount(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "t@p.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestServices(t *testing.T) {
	account := serviceAccount(t)
	vault := func(address, key string) *fakeKey {
		return &fakeKey{kind: "hc_vault", fields: map[string]any{"vault_address": address, "engine_path": "team/transit", "key_name": key}}
	}
	kms := func(extra string, v any) *fakeKey {
		return &fakeKey{kind: "kms", fields: map[string]any{
			"arn": "arn:aws:kms:eu-west-1:1:key/a", "context": map[string]string{"app": "shop"}, "aws_profile": "unknown", extra: v,
		}}
	}
	gcp := func(id string) *fakeKey { return &fakeKey{kind: "gcp_kms", fields: map[string]any{"resource_id": id}} }
	azure := func(url, name string) *fakeKey {
		return &fakeKey{kind: "azure_kv", fields: map[string]any{"vault_url": url, "name": name, "version": "v1"}}
	}
	const (
		awsCreds   = "aws_access_key_id: AKIDHUNTER2\naws_secret_access_key: hunter2\n"
		gcpKey     = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
		azureCreds = "tenantId: tenant\nclientId: c\nclientSecret: "
		https      = "https://vault.example.org:8200"
	)
	cases := map[string]struct {
		reason string
		key    *fakeKey
		data   map[string]string
		want   []string // in the error; none if it decrypts
	}{
		"Vault":          {"A token with a line feed, as kubectl makes of a file.", vault(https, "key one"), map[string]string{"sops.vault-token": "hunter2\n"}, nil},
		"VaultStandby":   {"A standby redirects to the active server.", vault("https://standby.example.org", "key one"), map[string]string{"sops.vault-token": "hunter2"}, nil},
		"VaultDowngrade": {"A token is not sent in the clear.", vault("https://downgrade.example.org", "key one"), map[string]string{"sops.vault-token": "hunter2"}, []string{"redirect away from https"}},
		"VaultDenied":    {"What Vault says helps.", vault(https, "key one"), map[string]string{"sops.vault-token": "old"}, []string{"403", "permission denied", https}},
		"VaultOther":     {"What some other server says is not shown.", vault("https://page.example.org", "key one"), map[string]string{"sops.vault-token": "hunter2"}, []string{"not that of a key service"}},
		"VaultAddress":   {"The address is the file's.", vault("file:///etc/passwd", "key one"), map[string]string{"sops.vault-token": "hunter2"}, []string{"not a URL"}},
		"VaultPath":      {"A name cannot lead to another endpoint.", vault(https, "../../sys/raw"), map[string]string{"sops.vault-token": "hunter2"}, []string{"404"}},
		"VaultNone":      {"Without a token nobody is asked.", vault(https, "key one"), map[string]string{"sops.aws-kms": awsCreds}, []string{"encrypted for Vault " + https}},
		"AWS":            {"The profile of the file's author does not exist here.", kms("x", "y"), map[string]string{"sops.aws-kms": awsCreds}, nil},
		"AWSRole":        {"In a role.", kms("role", "arn:aws:iam::1:role/r"), map[string]string{"sops.aws-kms": awsCreds}, nil},
		"AWSNoRole":      {"A role that is refused.", kms("role", "arn:aws:iam::1:role/x"), map[string]string{"sops.aws-kms": awsCreds}, []string{"assume role", "AccessDenied"}},
		"AWSDenied":      {"The encryption context is part of the key.", kms("context", map[string]string{}), map[string]string{"sops.aws-kms": awsCreds}, []string{"AccessDeniedException: not you"}},
		"AWSArn":         {"The region is a part of a host name.", kms("arn", "arn:aws:kms:evil.example.org/:1:key/a"), map[string]string{"sops.aws-kms": awsCreds}, []string{"not the ARN"}},
		"AWSNone":        {"The process's own credentials are not used.", kms("x", "y"), nil, []string{"encrypted for AWS KMS"}},
		"GCP":            {"A service account.", gcp(gcpKey), map[string]string{"sops.gcp-kms": account + "\n"}, nil},
		"GCPDenied":      {"Another key.", gcp(gcpKey + "2"), map[string]string{"sops.gcp-kms": account}, []string{"403", "permission denied on resource"}},
		"GCPKey":         {"A name cannot lead to another endpoint.", gcp(gcpKey + "?x"), map[string]string{"sops.gcp-kms": account}, []string{"not the resource id"}},
		"GCPNone":        {"The process's own credentials are not used.", gcp(gcpKey), nil, []string{"encrypted for GCP KMS"}},
		"Azure":          {"A service principal.", azure("https://shop.vault.azure.net", "k"), map[string]string{"sops.azure-kv": azureCreds + "hunter2"}, nil},
		"AzureCLI":       {"As az writes it, on Windows.", azure("https://shop.vault.azure.net", "k"), map[string]string{"sops.azure-kv": inUTF16(`{"appId": "c", "tenant": "tenant", "password": "hunter2"}`)}, nil},
		"AzureDenied":    {"A wrong password.", azure("https://shop.vault.azure.net", "k"), map[string]string{"sops.azure-kv": azureCreds + "other"}, []string{"get a token"}},
		"AzureKey":       {"Another key.", azure("https://shop.vault.azure.net", "l"), map[string]string{"sops.azure-kv": azureCreds + "hunter2"}, []string{"404", "KeyNotFound"}},
		"AzureURL":       {"A token is not sent in the clear.", azure("http://shop.vault.azure.net", "k"), map[string]string{"sops.azure-kv": azureCreds + "hunter2"}, []string{"https"}},
		"AzureManaged":   {"The identity of the machine is not the Secret's.", azure("https://shop.vault.azure.net", "k"), map[string]string{"sops.azure-kv": "clientId: c"}, []string{"managed identity"}},
		"AzureNone":      {"The process's own credentials are not used.", azure("https://shop.vault.azure.net", "k"), nil, []string{"encrypted for Azure Key Vault"}},
		"Huawei":         {"It is named, not forgotten.", &fakeKey{kind: "hckms", fields: map[string]any{"key_id": "r:k"}}, nil, []string{"Huawei", "not supported"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("VAULT_TOKEN", "hunter2")
			t.Setenv("AWS_ACCESS_KEY_ID", "AKIDHUNTER2")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
			s := &services{t: t}
			d := New(mustKeys(t, tc.data), WithHTTPClient(&http.Client{Transport: s}))
			in := seal(t, "yaml", "a: secret\n", nil, lib.KeyGroup{tc.key})
			got, err := d.File(context.Background(), "a.yaml", in)
			if len(tc.want) == 0 {
				if err != nil || string(got) != "a: secret\n" {
					t.Errorf("%s\ngot %q, %v", tc.reason, got, err)
				}
				return
			}
			if !errors.Is(err, ErrNoKey) {
				t.Fatalf("%s\nerror = %v, want ErrNoKey", tc.reason, err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s\nno %q in: %v", tc.reason, w, err)
				}
			}
			for _, secret := range []string{"hunter", "internal page"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%s\n%q in: %v", tc.reason, secret, err)
				}
			}
			if strings.HasSuffix(name, "None") && s.requests.Load() != 0 {
				t.Errorf("%s\nsomebody was asked", tc.reason)
			}
		})
	}
}

// account is an identity of WithIdentity that the fake services let in, or not.
type account struct{ refuse error }

func (a account) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "ASSUMED", SecretAccessKey: "s", SessionToken: "t"}, a.refuse
}

func (a account) Token() (*oauth2.Token, error) { return &oauth2.Token{AccessToken: "gcp"}, a.refuse }

func (a account) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "azure", ExpiresOn: time.Now().Add(time.Hour)}, a.refuse
}

func TestWithIdentity(t *testing.T) {
	kms := &fakeKey{kind: "kms", fields: map[string]any{"arn": "arn:aws:kms:eu-west-1:1:key/a", "context": map[string]string{"app": "shop"}}}
	gcp := &fakeKey{kind: "gcp_kms", fields: map[string]any{"resource_id": "projects/p/locations/l/keyRings/r/cryptoKeys/k"}}
	azure := &fakeKey{kind: "azure_kv", fields: map[string]any{"vault_url": "https://shop.vault.azure.net", "name": "k", "version": "v1"}}
	vault := &fakeKey{kind: "hc_vault", fields: map[string]any{"vault_address": "https://vault.example.org:8200", "engine_path": "team/transit", "key_name": "key one"}}
	no := errors.New("the account has no annotation")
	for name, tc := range map[string]struct {
		reason string
		key    *fakeKey
		data   map[string]string
		refuse error
		want   []string // in the error; none if it decrypts
	}{
		"AWS":          {"The account is let in.", kms, nil, nil, nil},
		"GCP":          {"The account is let in.", gcp, nil, nil, nil},
		"Azure":        {"The account is let in.", azure, nil, nil, nil},
		"AWSRefused":   {"What the account lacks helps.", kms, nil, no, []string{"ServiceAccount ns/a", no.Error()}},
		"GCPRefused":   {"What the account lacks helps.", gcp, nil, no, []string{"ServiceAccount ns/a", no.Error()}},
		"AzureRefused": {"What the account lacks helps.", azure, nil, no, []string{"ServiceAccount ns/a", no.Error()}},
		"AWSStatic":    {"Credentials of the Secret come first.", kms, map[string]string{"sops.aws-kms": "aws_access_key_id: AKIDHUNTER2\naws_secret_access_key: s\n"}, no, nil},
		"GCPStatic":    {"Credentials of the Secret come first.", gcp, map[string]string{"sops.gcp-kms": serviceAccount(t)}, no, nil},
		"AzureStatic":  {"Credentials of the Secret come first.", azure, map[string]string{"sops.azure-kv": "tenantId: tenant\nclientId: c\nclientSecret: hunter2"}, no, nil},
		"Vault":        {"Vault is asked by a token of the Secret only.", vault, nil, nil, []string{"encrypted for Vault"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := account{tc.refuse}
			d := New(mustKeys(t, tc.data), WithHTTPClient(&http.Client{Transport: &services{t: t}}), WithIdentity(&Identity{
				Name: "ServiceAccount ns/a", GCP: a, Azure: a,
				AWS: func(region string) aws.CredentialsProvider {
					if region != "eu-west-1" {
						t.Errorf("credentials for region %s", region)
					}
					return a
				},
			}))
			got, err := d.File(context.Background(), "a.yaml", seal(t, "yaml", "a: secret\n", nil, lib.KeyGroup{tc.key}))
			if len(tc.want) == 0 {
				if err != nil || string(got) != "a: secret\n" {
					t.Errorf("%s\ngot %q, %v", tc.reason, got, err)
				}
				return
			}
			if !errors.Is(err, ErrNoKey) {
				t.Fatalf("%s\nerror = %v, want ErrNoKey", tc.reason, err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s\nno %q in: %v", tc.reason, w, err)
				}
			}
		})
	}
}

func inUTF16(s string) string {
	out := []byte{0xff, 0xfe}
	for _, c := range []byte(s) {
		out = append(out, c, 0)
	}
	return string(out)
}

func TestWithEnvironment(t *testing.T) {
	t.Setenv("VAULT_TOKEN", "hunter2")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDHUNTER2")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	for name, key := range map[string]*fakeKey{
		"Vault": {kind: "hc_vault", fields: map[string]any{"vault_address": "https://vault.example.org:8200", "engine_path": "team/transit", "key_name": "key one"}},
		"AWS":   {kind: "kms", fields: map[string]any{"arn": "arn:aws:kms:eu-west-1:1:key/a", "context": map[string]string{"app": "shop"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(nil, WithEnvironment(), WithHTTPClient(&http.Client{Transport: &services{t: t}}))
			got, err := d.File(context.Background(), "a.yaml", seal(t, "yaml", "a: secret\n", nil, lib.KeyGroup{key}))
			if err != nil || string(got) != "a: secret\n" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestTokensAreKept asks for one token for many files.
func TestTokensAreKept(t *testing.T) {
	s := &services{t: t}
	d := New(mustKeys(t, map[string]string{"sops.gcp-kms": serviceAccount(t)}), WithHTTPClient(&http.Client{Transport: s}))
	for range 3 {
		key := &fakeKey{kind: "gcp_kms", fields: map[string]any{"resource_id": "projects/p/locations/l/keyRings/r/cryptoKeys/k"}}
		ctx, cancel := context.WithCancel(context.Background())
		if _, err := d.File(ctx, "a.yaml", seal(t, "yaml", "a: b\n", nil, lib.KeyGroup{key})); err != nil {
			t.Fatal(err)
		}
		cancel() // the end of one build is not that of the token
	}
	if got := s.tokens.Load(); got != 1 {
		t.Errorf("%d tokens were asked for, want 1", got)
	}
}

// TestLocalFirst asks nobody if age opens the file.
func TestLocalFirst(t *testing.T) {
	id, g := newAge(t)
	s := &services{t: t}
	d := New(mustKeys(t, map[string]string{"a.agekey": id.String(), "sops.vault-token": "hunter2"}), WithHTTPClient(&http.Client{Transport: s}))
	vault := &fakeKey{kind: "hc_vault", fields: map[string]any{"vault_address": "https://vault.example.org:8200", "engine_path": "team/transit", "key_name": "key one"}}
	if _, err := d.File(context.Background(), "a.yaml", seal(t, "yaml", "a: b\n", nil, append(lib.KeyGroup{vault}, g...))); err != nil {
		t.Fatal(err)
	}
	if n := s.requests.Load(); n != 0 {
		t.Errorf("%d requests, want none", n)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, g := newAge(t)
	if _, err := New(nil).File(ctx, "a.yaml", seal(t, "yaml", "a: b\n", nil, g)); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoKey) {
		t.Errorf("error = %v, want that of the context", err)
	}
}
