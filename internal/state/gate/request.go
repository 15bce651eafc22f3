// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/terrace-dev/terrace/internal/state"
)

// resource is what a request is about.
type resource string

const (
	secrets resource = "secrets"
	leases  resource = "leases"
)

// verb is what a request does.
type verb string

const (
	get    verb = "get"
	list   verb = "list"
	create verb = "create"
	update verb = "update"
	remove verb = "delete"
)

// changes reports whether the verb does more than read.
func (v verb) changes() bool { return v != get && v != list }

// request is a request to the Kubernetes API that is of a form which the gate knows.
type request struct {
	resource  resource
	verb      verb
	namespace string
	name      string // empty for list and create
	query     url.Values
}

// parseRequest takes a request apart and refuses every form that the backends do not
// use: other groups, subresources, watches, collections, patches, percent-encoded
// paths, options that it does not know.
func parseRequest(method string, u *url.URL) (request, error) {
	// Names in the Kubernetes API need no encoding: one that has it means to look
	// different here and there.
	if u.EscapedPath() != u.Path {
		return request{}, fmt.Errorf("the path is encoded")
	}
	parts := strings.Split(u.Path, "/")
	if slices.Contains(parts[1:], "") || slices.Contains(parts, ".") || slices.Contains(parts, "..") {
		return request{}, fmt.Errorf("the path is not clean")
	}
	var r request
	switch {
	case strings.HasPrefix(u.Path, "/api/v1/namespaces/"):
		r.resource, parts = secrets, parts[4:]
	case strings.HasPrefix(u.Path, "/apis/coordination.k8s.io/v1/namespaces/"):
		r.resource, parts = leases, parts[5:]
	default:
		return request{}, fmt.Errorf("the path is none of a state")
	}
	if len(parts) < 2 || len(parts) > 3 || parts[1] != string(r.resource) {
		return request{}, fmt.Errorf("the path is none of a state")
	}
	r.namespace = parts[0]
	if len(parts) == 3 {
		r.name = parts[2]
	}
	var err error
	if r.verb, err = verbOf(method, r.resource, r.name != ""); err != nil {
		return request{}, err
	}
	r.query, err = queryOf(u.RawQuery, r.verb)
	return r, err
}

func verbOf(method string, res resource, named bool) (verb, error) {
	switch {
	case method == http.MethodGet && named:
		return get, nil
	case method == http.MethodGet && res == secrets:
		return list, nil
	case method == http.MethodPost && !named:
		return create, nil
	case method == http.MethodPut && named:
		return update, nil
	case method == http.MethodDelete && named:
		return remove, nil
	}
	return "", fmt.Errorf("the method %q is not for this path", method)
}

// queryOf passes on the options that do no harm.
func queryOf(raw string, v verb) (url.Values, error) {
	in, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fmt.Errorf("the query is malformed")
	}
	known := []string{"pretty", "timeout"}
	switch v {
	case list:
		known = append(known, "labelSelector", "limit", "continue")
	case create, update:
		known = append(known, "fieldManager", "fieldValidation")
	}
	for name, values := range in {
		if !slices.Contains(known, name) || len(values) != 1 {
			return nil, fmt.Errorf("the option %q is not for this request", name)
		}
	}
	if v == list {
		if _, err := labels.Parse(in.Get("labelSelector")); err != nil {
			return nil, fmt.Errorf("the label selector is malformed")
		}
	}
	return in, nil
}

// target is the state that a request is about.
type target struct {
	state.Scope
	part int // of the payload, for Secrets
	// initOnly: the request may create the empty state that init needs, and change
	// nothing that is there.
	initOnly bool
}

// authorize returns the state that a request to an object of that name is about, or
// an error if the run may not do that.
func (s Scope) authorize(r request, name string) (target, error) {
	if r.namespace != s.Namespace {
		return target{}, fmt.Errorf("the namespace %q is not that of the run's state", r.namespace)
	}
	for _, sc := range s.state().Workspaces() {
		t := target{Scope: sc, initOnly: !s.Write || sc.Workspace != s.Workspace}
		ok := false
		switch r.resource {
		case secrets:
			t.part, ok = sc.Part(name)
		case leases:
			ok = name == sc.LeaseName()
		}
		if !ok {
			continue
		}
		if t.initOnly && (r.verb == remove || r.resource == secrets && r.verb.changes() && t.part > 0) {
			return target{}, fmt.Errorf("the run may only read the state")
		}
		return t, nil
	}
	return target{}, fmt.Errorf("%q in %s is not of the run's state", name, r.resource)
}
