// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// requests counts API requests. tofu's are those that its state backend makes,
// through Terrace's gate: Secrets and Leases of the state, and the list of them.
type requests struct {
	terrace, tofu int
	kinds         map[string]int // Terrace's own, as "GET secrets"
}

// proxy stands between the controllers and the API server and counts. It listens
// on loopback without TLS and speaks to the server with the administrator's
// certificate: whoever can connect is the administrator, for as long as the
// benchmark runs.
type proxy struct {
	url    string
	server *http.Server

	mu    sync.Mutex
	count requests
	all   int // requests since the start
}

func startProxy(cfg *rest.Config) (*proxy, error) {
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,                         // watches are streams
		ErrorLog:      log.New(io.Discard, "", 0), // a watch that ends is an error to it
	}
	p := &proxy{url: "http://" + l.Addr().String()}
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.note(r)
		forward.ServeHTTP(w, r)
	})}
	go func() { _ = p.server.Serve(l) }() // ends with ErrServerClosed, at Close
	return p, nil
}

func (p *proxy) note(r *http.Request) {
	resource, name := target(r.URL.Path)
	if r.Method == http.MethodPost && resource == "secrets" {
		name = created(r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all++
	if tofuState(resource, name, r.URL.Query().Get("labelSelector")) {
		p.count.tofu++
		return
	}
	p.count.terrace++
	if p.count.kinds == nil {
		p.count.kinds = map[string]int{}
	}
	verb := r.Method
	if r.URL.Query().Get("watch") != "" {
		verb = "WATCH"
	}
	p.count.kinds[verb+" "+resource]++
}

// take returns the counts since the last call.
func (p *proxy) take() requests {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.count
	p.count = requests{}
	return c
}

// total is the number of requests since the start.
func (p *proxy) total() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// target reads resource and name out of an API path:
// /api/v1/namespaces/NS/secrets/NAME, /apis/GROUP/VERSION/namespaces/NS/RESOURCE/NAME/status.
func target(path string) (resource, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return "(discovery)", ""
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	resource = parts[0]
	if len(parts) > 1 {
		name = parts[1]
	}
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return resource, name
}

// created tells a state Secret that is being created from others by its body, in
// whatever encoding that is, and leaves the body as it was.
func created(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "" // the server will have the same trouble, and answer it
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte("tfstateSecretSuffix")) {
		return "tfstate-"
	}
	return "(new)"
}

// tofuState tells whether a request is one of the kubernetes state backend.
func tofuState(resource, name, selector string) bool {
	switch resource {
	case "secrets":
		return strings.HasPrefix(name, "tfstate-") || name == "" && strings.Contains(selector, "tfstate=true")
	case "leases":
		return strings.HasPrefix(name, "lock-tfstate-") || name == ""
	}
	return false
}
