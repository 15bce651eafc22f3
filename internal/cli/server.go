// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/terrace-dev/terrace/internal/install"
)

// tokenHeader carries the server's token where Authorization cannot: the
// Kubernetes API server strips that one from what it forwards to a Service.
const tokenHeader = "X-Terrace-Token"

// serverFlags name the Terrace server when it cannot be found.
type serverFlags struct {
	url, tokenFile string
}

func (f *serverFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.url, "server", "", "URL of the Terrace server (default: found through the cluster)")
	fs.StringVar(&f.tokenFile, "server-token-file", "", "file with the token of the Terrace server")
}

// server is the process that keeps plans and run logs: what is too large, or
// too secret, for an object of the API.
type server struct {
	base  string
	token string
	http  *http.Client
	// local says that the server runs on this machine.
	local bool
}

// errNoServer says that no Terrace server is known: what it keeps has to be
// found elsewhere, if it can.
var errNoServer = errors.New("the Terrace server is not reachable")

// server finds the Terrace server of the cluster: the one that the flags name,
// else the one whose address an embedded control plane left beside its
// kubeconfig, else the Service that `terrace install` makes, through the
// Kubernetes API server.
func (a *app) server(ctx context.Context, c *cluster, f serverFlags) (*server, error) {
	if f.url != "" {
		s := &server{base: strings.TrimSuffix(f.url, "/"), http: http.DefaultClient}
		if f.tokenFile == "" {
			return s, nil
		}
		token, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read server token: %w", err)
		}
		s.token = strings.TrimSpace(string(token))
		return s, nil
	}
	if c.dir != "" {
		if s, err := localServer(filepath.Join(c.dir, "server.json")); err == nil || !errors.Is(err, os.ErrNotExist) {
			return s, err
		}
	}
	return c.proxiedServer(ctx)
}

func localServer(file string) (*server, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("find the Terrace server: %w", err)
	}
	var found struct{ Address, Token string }
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, fmt.Errorf("find the Terrace server: %s: %w", file, err)
	}
	host, port, err := net.SplitHostPort(found.Address)
	if err != nil {
		return nil, fmt.Errorf("find the Terrace server: %s: %w", file, err)
	}
	// A server that listens on all addresses is reached on this machine's own.
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return &server{base: "http://" + net.JoinHostPort(host, port), token: found.Token, http: http.DefaultClient, local: true}, nil
}

func (c *cluster) proxiedServer(ctx context.Context) (*server, error) {
	client, base, err := c.proxied("http:" + install.ServiceName + ":http")
	if err != nil {
		return nil, err
	}
	s := &server{base: base.String(), http: client}
	secret, err := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).
		Namespace(install.Namespace).Get(ctx, install.TokenSecretName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, hintf(errNoServer, "the cluster has no Secret %s/%s; name the server with --server and --server-token-file", install.Namespace, install.TokenSecretName)
	case err != nil:
		return nil, hintf(fmt.Errorf("%w: %v", errNoServer, err), "its token is in the Secret %s/%s; whoever may read that may read plans and run logs", install.Namespace, install.TokenSecretName)
	}
	encoded, _, _ := unstructured.NestedString(secret.Object, "data", "token")
	token, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: token: %w", install.Namespace, install.TokenSecretName, err)
	}
	s.token = string(token)
	return s, nil
}

// proxied is the way through the API server to a Service in Terrace's namespace, which is
// named SCHEME:SERVICE:PORT.
func (c *cluster) proxied(service string) (*http.Client, *url.URL, error) {
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	base.Path = path.Join(base.Path, "/api/v1/namespaces", install.Namespace, "services", service, "proxy")
	return client, base, nil
}

// get opens what the server has about the object: its "plan", "log" or "glass".
// The caller closes the body. What the server does not have is errNotKept.
func (s *server) get(ctx context.Context, o object, what string, query url.Values) (io.ReadCloser, error) {
	path := fmt.Sprintf("/api/v1/units/%s/%s/%s/%s", strings.ToLower(o.Kind.Name), o.GetNamespace(), o.GetName(), what)
	return s.open(ctx, fmt.Sprintf("read %s of %s", what, o), path, query)
}

// open asks the server for what is at a path; see get for what it returns.
func (s *server) open(ctx context.Context, doing, path string, query url.Values) (io.ReadCloser, error) {
	return s.request(ctx, http.MethodGet, doing, path, query)
}

// request asks the server for something; see get for what it returns.
func (s *server) request(ctx context.Context, method, doing, path string, query url.Values) (io.ReadCloser, error) {
	u := s.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if s.token != "" {
		req.Header.Set(tokenHeader, s.token)
		if req.URL.Scheme == "http" || s.http == http.DefaultClient {
			req.Header.Set("Authorization", "Bearer "+s.token)
		}
	}
	res, err := s.http.Do(req)
	if err != nil {
		var request *url.Error
		if errors.As(err, &request) {
			err = request.Err
		}
		return nil, fmt.Errorf("%s: %w: %s: %v", doing, errNoServer, s.base, err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
	why, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	why = cmp.Or(why, res.Status)
	switch res.StatusCode {
	case http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w: %s", doing, errNotKept, why)
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return nil, fmt.Errorf("%s: %w: %s", doing, errNoServer, why)
	}
	return nil, fmt.Errorf("%s: %s", doing, why)
}

// errNotKept says that the server answered, and has not what was asked for.
var errNotKept = errors.New("not kept")
