// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/terrace-dev/terrace/internal/state"
)

const (
	// maxRequest is more than the API server takes: the largest object of etcd's
	// has 1.5 MiB.
	maxRequest = 3 << 20
	// maxResponse bounds a list of a namespace's states.
	maxResponse = 256 << 20
	// upstreamTimeout bounds what is done for one request.
	upstreamTimeout = time.Minute
)

// refusal is a request that is answered without, or in spite of, the API server.
type refusal struct {
	code   int
	reason metav1.StatusReason
	why    error
}

func (r *refusal) Error() string { return r.why.Error() }

func forbidden(why error) error {
	return &refusal{http.StatusForbidden, metav1.StatusReasonForbidden, why}
}

func invalid(why error) error {
	return &refusal{http.StatusBadRequest, metav1.StatusReasonBadRequest, why}
}

// ServeHTTP answers one request of a run.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, err := g.authenticate(r)
	if err == nil && !a.enter() {
		err = errors.New("the run has ended")
	}
	if err != nil {
		writeRefusal(w, &refusal{http.StatusUnauthorized, metav1.StatusReasonUnauthorized, err})
		return
	}
	defer a.serving.Done()
	// A run that is killed must not tear a write that has arrived: from here on the
	// request does not end with its connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), upstreamTimeout)
	defer cancel()
	res, err := a.serve(ctx, r)
	if err != nil {
		writeRefusal(w, a.refusal(err))
		return
	}
	header := w.Header()
	header.Set("Content-Type", res.contentType)
	if res.retryAfter != "" {
		header.Set("Retry-After", res.retryAfter)
	}
	w.WriteHeader(res.code)
	_, _ = w.Write(res.body)
}

// refusal is the answer to a request that cannot be served.
func (a *Access) refusal(err error) *refusal {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err}
	}
	why := r.why
	if a.scope.Run != "" {
		why = fmt.Errorf("run %s: %w", a.scope.Run, why)
	}
	return &refusal{r.code, r.reason, why}
}

func writeRefusal(w http.ResponseWriter, r *refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  "terrace state gate: " + r.Error(),
		Reason:   r.reason,
		Code:     int32(r.code),
	})
}

// answer is what the API server said.
type answer struct {
	code        int
	contentType string
	retryAfter  string
	body        []byte
}

func (a *answer) ok() bool { return a.code/100 == 2 }

// serve does what the request asks for, as far as the scope lets it.
func (a *Access) serve(ctx context.Context, r *http.Request) (*answer, error) {
	req, err := parseRequest(r.Method, r.URL)
	if err != nil {
		return nil, forbidden(err)
	}
	switch req.verb {
	case list:
		return a.list(ctx, req)
	case get:
		return a.get(ctx, req)
	case remove:
		return a.remove(ctx, req)
	default:
		return a.write(ctx, req, r)
	}
}

func (a *Access) get(ctx context.Context, req request) (*answer, error) {
	t, err := a.scope.authorize(req, req.name)
	if err != nil {
		return nil, forbidden(err)
	}
	res, _, err := a.fetch(ctx, req, t)
	return res, err
}

// fetch gets an object and looks whether it is the state's: the name alone does not
// tell. The object is nil when the API server has an error instead.
func (a *Access) fetch(ctx context.Context, req request, t target) (*answer, *object, error) {
	res, err := a.send(ctx, http.MethodGet, req, req.name, nil)
	if err != nil || !res.ok() {
		return res, nil, err
	}
	o, err := decodeJSON(res.body)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s %q: %w", req.resource, req.name, err)
	}
	labels, err := o.texts("metadata", "labels")
	if err != nil {
		return nil, nil, fmt.Errorf("read %s %q: %w", req.resource, req.name, err)
	}
	if !t.Owns(labels) {
		return nil, nil, forbidden(fmt.Errorf("%q in %s has the labels of another state", req.name, req.resource))
	}
	a.saw(req, t, o)
	return res, o, nil
}

// saw remembers an object that is in scope, and the state in it.
func (a *Access) saw(req request, t target, o *object) {
	a.mu.Lock()
	a.uids[string(req.resource)+"/"+o.GetName()] = string(o.GetUID())
	a.mu.Unlock()
	if req.resource != secrets || t.Workspace != a.scope.Workspace || t.part != 0 {
		return
	}
	b, err := o.compressed()
	if err != nil {
		return
	}
	a.mu.Lock()
	a.current = b
	a.mu.Unlock()
	if payload, err := state.Uncompress(b); err == nil {
		a.tell(payload)
	}
}

// tell tells of a state that the run has read or written.
func (a *Access) tell(payload []byte) {
	if a.scope.OnState != nil {
		a.scope.OnState(payload)
	}
}

// list returns the states of the suffix. Of those in other workspaces only the names
// are told: the backend makes a list of workspaces of them.
func (a *Access) list(ctx context.Context, req request) (*answer, error) {
	if req.namespace != a.scope.Namespace {
		return nil, forbidden(fmt.Errorf("the namespace %q is not that of the run's state", req.namespace))
	}
	selector := state.SuffixLabel + "=" + a.scope.Suffix
	if s := req.query.Get("labelSelector"); s != "" {
		selector = s + "," + selector
	}
	req.query.Set("labelSelector", selector)
	res, err := a.send(ctx, http.MethodGet, req, "", nil)
	if err != nil || !res.ok() {
		return res, err
	}
	o, err := decodeJSON(res.body)
	if err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	items, _ := o.Object["items"].([]any)
	kept := []any{}
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			if m := a.listed(req, m); m != nil {
				kept = append(kept, m)
			}
		}
	}
	o.Object["items"] = kept
	if res.body, err = o.encode(); err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	return res, nil
}

// listed is what the run may see of an item of a list; nil is nothing.
func (a *Access) listed(req request, item map[string]any) map[string]any {
	o := &object{}
	o.Object = item
	labels, err := o.texts("metadata", "labels")
	if err != nil || labels[state.SuffixLabel] != a.scope.Suffix {
		return nil
	}
	t, err := a.scope.authorize(req, o.GetName())
	if err == nil && t.Owns(labels) {
		a.saw(req, t, o)
		return item
	}
	seen := map[string]any{}
	for k, v := range labels {
		seen[k] = v
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": o.GetName(), "namespace": a.scope.Namespace, "labels": seen},
	}
}

// remove deletes exactly the object that was looked at. What the body asks for is of
// no matter: the backends ask for what is done here.
func (a *Access) remove(ctx context.Context, req request) (*answer, error) {
	t, err := a.scope.authorize(req, req.name)
	if err != nil {
		return nil, forbidden(err)
	}
	uid, res, err := a.uid(ctx, req, t)
	if err != nil || res != nil {
		return res, err
	}
	body, err := json.Marshal(map[string]any{
		"kind": "DeleteOptions", "apiVersion": "v1",
		"propagationPolicy": metav1.DeletePropagationBackground,
		"preconditions":     map[string]any{"uid": uid},
	})
	if err != nil {
		return nil, err
	}
	res, err = a.send(ctx, http.MethodDelete, req, req.name, body)
	if err == nil && res.ok() && req.resource == secrets && t.Workspace == a.scope.Workspace {
		a.mu.Lock()
		delete(a.written, t.part)
		a.mu.Unlock()
	}
	return res, err
}

// uid is that of an object in scope. If there is none, the answer is the API
// server's, to be passed on.
func (a *Access) uid(ctx context.Context, req request, t target) (string, *answer, error) {
	key := string(req.resource) + "/" + req.name
	a.mu.Lock()
	uid, ok := a.uids[key]
	a.mu.Unlock()
	if ok {
		return uid, nil, nil
	}
	res, o, err := a.fetch(ctx, request{resource: req.resource, verb: get, namespace: req.namespace, name: req.name}, t)
	if err != nil || o == nil {
		return "", res, err
	}
	return string(o.GetUID()), nil, nil
}

// write creates or updates an object.
func (a *Access) write(ctx context.Context, req request, r *http.Request) (*answer, error) {
	o, err := readObject(r)
	if err != nil {
		return nil, err
	}
	name, err := o.text("metadata", "name")
	if err != nil {
		return nil, invalid(err)
	}
	if req.verb == update && name != req.name {
		return nil, forbidden(fmt.Errorf("the body is %q, the path %q", name, req.name))
	}
	t, err := a.scope.authorize(req, name)
	if err != nil {
		return nil, forbidden(err)
	}
	if err := o.checkIdentity(req, t); err != nil {
		return nil, forbidden(err)
	}
	if req.resource == leases {
		return a.writeLease(ctx, req, t, o)
	}
	return a.writeSecret(ctx, req, t, o)
}

func readObject(r *http.Request) (*object, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	if err != nil {
		return nil, invalid(fmt.Errorf("read the body: %w", err))
	}
	if len(body) > maxRequest {
		return nil, &refusal{http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
			fmt.Errorf("the body has more than %d bytes", maxRequest)}
	}
	if r.Header.Get("Content-Encoding") != "" {
		return nil, invalid(errors.New("the body is encoded"))
	}
	o, err := decodeObject(r.Header.Get("Content-Type"), body)
	if err != nil {
		return nil, invalid(err)
	}
	return o, nil
}

func (a *Access) writeSecret(ctx context.Context, req request, t target, o *object) (*answer, error) {
	payload, err := o.compressed()
	if err != nil {
		return nil, invalid(err)
	}
	if t.initOnly {
		if res, err := a.checkInit(ctx, req, t, o); err != nil || res != nil {
			return res, err
		}
	}
	res, err := a.forward(ctx, req, t, o)
	if err == nil && res.ok() && payload != nil && t.Workspace == a.scope.Workspace {
		a.wrote(t.part, payload)
	}
	return res, err
}

// wrote keeps a part of the state. Terraform writes all parts, the first one first.
func (a *Access) wrote(part int, payload []byte) {
	a.mu.Lock()
	if part == 0 {
		clear(a.written)
	}
	a.written[part] = payload
	a.mu.Unlock()
	if whole, ok := a.LastState(); ok { // else more parts come
		a.tell(whole)
	}
}

// checkInit lets a run that may only read create the empty state that its backend
// wants to see, and refuses to change any other. The answer, if there is one, is to
// be passed on.
func (a *Access) checkInit(ctx context.Context, req request, t target, o *object) (*answer, error) {
	next, err := o.summary()
	if err != nil {
		return nil, invalid(err)
	}
	fresh := true // nothing is there that could be lost
	if req.verb == update {
		res, current, err := a.fetch(ctx, request{resource: secrets, verb: get, namespace: req.namespace, name: req.name}, t)
		if err != nil || current == nil {
			return res, err
		}
		was, err := current.summary()
		if err != nil {
			return nil, forbidden(errors.New("the run may only read the state"))
		}
		if was != nil && !was.Empty() {
			return nil, forbidden(errors.New("the run may only read the state"))
		}
		fresh = was == nil
		// What was looked at is what is replaced.
		if version, err := o.text("metadata", "resourceVersion"); err != nil || version != current.GetResourceVersion() {
			return nil, &refusal{http.StatusConflict, metav1.StatusReasonConflict, errors.New("the state has changed since it was read")}
		}
	}
	// An encrypted state does not tell whether it is empty.
	if next != nil && !next.Empty() && !(fresh && next.Encrypted) {
		return nil, forbidden(errors.New("the run may only read the state"))
	}
	return nil, nil
}

func (a *Access) writeLease(ctx context.Context, req request, t target, o *object) (*answer, error) {
	lock, err := o.lock()
	if err != nil {
		return nil, invalid(err)
	}
	if lock != nil && a.scope.OnLock != nil {
		if err := a.scope.OnLock(lock.ID); err != nil {
			return nil, fmt.Errorf("take note of the lock %q: %w", lock.ID, err)
		}
	}
	res, err := a.forward(ctx, req, t, o)
	if err != nil || !res.ok() {
		return res, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lock = ""
	if lock != nil {
		a.lock = lock.ID
	}
	return res, nil
}

// forward sends a checked object. An update replaces only what was seen to be in
// scope: with its UID in the body the API server refuses any other.
func (a *Access) forward(ctx context.Context, req request, t target, o *object) (*answer, error) {
	method := http.MethodPost
	if req.verb == update {
		method = http.MethodPut
		uid, res, err := a.uid(ctx, req, t)
		if err != nil || res != nil {
			return res, err
		}
		o.Object["metadata"].(map[string]any)["uid"] = uid
	}
	body, err := o.encode()
	if err != nil {
		return nil, err
	}
	res, err := a.send(ctx, method, req, req.name, body)
	if err == nil && res.ok() {
		if written, err := decodeJSON(res.body); err == nil {
			a.mu.Lock()
			a.uids[string(req.resource)+"/"+written.GetName()] = string(written.GetUID())
			a.mu.Unlock()
		}
	}
	return res, err
}

// send sends a request to the API server, with nothing of the run's own request but
// what was checked.
func (a *Access) send(ctx context.Context, method string, req request, name string, body []byte) (*answer, error) {
	a.forwarded.Add(1)
	return a.gate.send(ctx, method, req, name, body)
}

func (g *Gate) send(ctx context.Context, method string, req request, name string, body []byte) (*answer, error) {
	prefix := "api/v1"
	if req.resource == leases {
		prefix = "apis/coordination.k8s.io/v1"
	}
	u := g.base.JoinPath(prefix, "namespaces", req.namespace, string(req.resource))
	if name != "" {
		u = u.JoinPath(name)
	}
	u.RawQuery = url.Values(req.query).Encode()
	out, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, req.resource, err)
	}
	out.Header.Set("Accept", "application/json")
	if body != nil {
		out.Header.Set("Content-Type", "application/json")
	}
	g.forwarded.Add(1)
	in, err := g.client.Do(out)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	defer in.Body.Close()
	b, err := io.ReadAll(io.LimitReader(in.Body, maxResponse+1))
	if err != nil {
		return nil, fmt.Errorf("read the API server's answer: %w", err)
	}
	if len(b) > maxResponse {
		return nil, fmt.Errorf("read the API server's answer: more than %d bytes", maxResponse)
	}
	return &answer{
		code: in.StatusCode, contentType: in.Header.Get("Content-Type"), retryAfter: in.Header.Get("Retry-After"), body: b,
	}, nil
}
