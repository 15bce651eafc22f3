// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Counter counts the requests of the clients that were made from its
// configuration, by verb and resource: "get secrets", "patch
// terraforms.infra.contrib.fluxcd.io/status", "watch namespaces"; a path that is
// no resource counts as itself: "get /readyz". It may be used from any goroutine.
type Counter struct {
	mu     sync.Mutex
	counts map[string]int
}

// CountRequests returns a configuration like e.Config and the counter of what is
// sent with it.
func (e *Env) CountRequests() (*rest.Config, *Counter) {
	c := &Counter{counts: map[string]int{}}
	config := rest.CopyConfig(e.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			c.add(Request(r))
			return next.RoundTrip(r)
		})
	})
	return config, c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *Counter) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

// Reset begins again at zero.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
}

// Counts returns a copy of all counts.
func (c *Counter) Counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// Total is the number of requests with one of the verbs; all, without verbs.
func (c *Counter) Total(verbs ...string) int {
	total := 0
	for what, n := range c.Counts() {
		verb, _, _ := strings.Cut(what, " ")
		if len(verbs) == 0 || slices.Contains(verbs, verb) {
			total += n
		}
	}
	return total
}

// Writes is the number of requests that can change an object.
func (c *Counter) Writes() int {
	return c.Total("create", "update", "patch", "delete", "deletecollection")
}

// String lists the counts, one a line, in the order of their names.
func (c *Counter) String() string {
	counts := c.Counts()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%4d %s\n", counts[what], what)
	}
	return b.String()
}

// Request returns what Counter calls a request.
func Request(r *http.Request) string {
	resource, named, ok := resource(r.URL.Path)
	if !ok {
		return strings.ToLower(r.Method) + " " + r.URL.Path
	}
	return verb(r, named) + " " + resource
}

func verb(r *http.Request, named bool) string {
	switch r.Method {
	case http.MethodGet:
		switch {
		case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
			return "watch"
		case named:
			return "get"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodDelete:
		if !named {
			return "deletecollection"
		}
	}
	return strings.ToLower(r.Method)
}

// resource reads a path of the Kubernetes API:
// /api/v1/… or /apis/GROUP/VERSION/…, then [namespaces/NAME/]RESOURCE[/NAME[/SUBRESOURCE]].
func resource(path string) (resource string, named, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = "."+parts[1], parts[3:]
	default:
		return "", false, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}
	resource = parts[0] + group
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return resource, len(parts) > 1, true
}
