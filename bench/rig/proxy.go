// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
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

// Requests counts the API requests of the controllers.
type Requests struct {
	// Terrace's own, and those that the benchmark counts aside.
	Terrace, Aside int
	// Kinds are Terrace's own, as "GET secrets" or "PATCH?dryRun deployments".
	Kinds map[string]int
}

// Proxy stands between the controllers and the API server and counts. It listens
// on loopback without TLS and speaks to the server with the administrator's
// certificate: whoever can connect is the administrator, for as long as the
// benchmark runs. So the controllers are spared the encryption of what they ask.
type Proxy struct {
	// URL is where it listens.
	URL    string
	server *http.Server
	aside  func(*http.Request) bool

	mu    sync.Mutex
	count Requests
	all   int // requests since the start
}

func startProxy(cfg *rest.Config, aside func(*http.Request) bool) (*Proxy, error) {
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
	p := &Proxy{URL: "http://" + l.Addr().String(), aside: aside}
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Note(r)
		forward.ServeHTTP(w, r)
	})}
	go func() { _ = p.server.Serve(l) }() // ends with ErrServerClosed, at Close
	return p, nil
}

// CountAside returns a proxy that serves nothing, for tests of what is counted aside.
func CountAside(aside func(*http.Request) bool) *Proxy { return &Proxy{aside: aside} }

// Note counts a request.
func (p *Proxy) Note(r *http.Request) {
	aside := p.aside != nil && p.aside(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all++
	if aside {
		p.count.Aside++
		return
	}
	p.count.Terrace++
	if p.count.Kinds == nil {
		p.count.Kinds = map[string]int{}
	}
	verb := r.Method
	switch query := r.URL.Query(); {
	case query.Get("watch") != "":
		verb = "WATCH"
	case query.Get("dryRun") != "":
		verb += "?dryRun"
	}
	resource, _ := Target(r.URL.Path)
	p.count.Kinds[verb+" "+resource]++
}

// Take returns the counts since the last call.
func (p *Proxy) Take() Requests {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.count
	p.count = Requests{}
	return c
}

// total is the number of requests since the start.
func (p *Proxy) total() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// Target reads resource and name out of an API path:
// /api/v1/namespaces/NS/secrets/NAME, /apis/GROUP/VERSION/namespaces/NS/RESOURCE/NAME/status.
func Target(path string) (resource, name string) {
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
