// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

var netKey = store.Key{Namespace: "ns", Name: "net"}

const netPath = "/state/ns/net"

// holder is somebody whom the service knows nothing of.
var holder store.Holder

// reviewer is the API server's word on who people are, and what they may do.
type reviewer struct {
	mu      sync.Mutex
	users   map[string]string          // token → user
	rights  map[string]map[string]bool // user → verb → yes, for the states of ns
	asked   int
	failing error
}

func (r *reviewer) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.failing != nil {
		return r.failing
	}
	switch o := o.(type) {
	case *authenticationv1.TokenReview:
		user, ok := r.users[o.Spec.Token]
		o.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: authenticationv1.UserInfo{Username: user}}
	case *authorizationv1.SubjectAccessReview:
		a := o.Spec.ResourceAttributes
		o.Status.Allowed = a.Group == "terrace.dev" && a.Resource == "states" && a.Namespace == "ns" && r.rights[o.Spec.User][a.Verb]
	default:
		return fmt.Errorf("%T is no review", o)
	}
	return nil
}

func (r *reviewer) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing = err
}

func may(verbs ...string) map[string]bool {
	m := map[string]bool{}
	for _, v := range verbs {
		m[v] = true
	}
	return m
}

// event is what the ledger was told, and how it ended.
type event struct {
	server.Event
	made int64
	err  error
}

// world is a server of states, and who asks it.
type world struct {
	t        *testing.T
	handler  *server.Server
	store    *store.Store
	grants   *server.Grants
	tokens   *server.Tokens
	reviewer *reviewer
	clock    *testingclock.FakeClock

	mu      sync.Mutex
	events  []event
	refuse  error // what the ledger says
	failing error // what the API server says
	token   string
}

func newWorld(t *testing.T, change ...func(*server.Options)) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, grants: server.NewGrants(), clock: testingclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.State{}).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			w.mu.Lock()
			err := w.failing
			w.mu.Unlock()
			if err != nil {
				return err
			}
			return c.Get(ctx, k, o, opts...)
		},
	})
	blobs, err := blob.Open(t.Context(), blob.Options{URL: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "k")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	w.store = store.New(store.Options{Client: api, Blobs: blobs.Part("states"), Clock: w.clock})
	w.reviewer = &reviewer{
		users: map[string]string{"ann-token": "ann", "bob-token": "bob", "eve-token": "eve", "carl-token": "carl"},
		rights: map[string]map[string]bool{
			"ann": may("get", "update", "lock", "unlock", "force-unlock", "rollback", "delete"),
			"bob": may("get", "update", "lock", "unlock"), "carl": may("get"),
		},
	}
	if w.tokens, err = server.OpenTokens(filepath.Join(t.TempDir(), "keys", "tokens"), w.clock); err != nil {
		t.Fatal(err)
	}
	o := server.Options{
		Store: w.store, Grants: w.grants, Tokens: w.tokens, Clock: w.clock,
		Kubernetes: server.NewKubernetes(w.reviewer, nil, nil, w.clock), Audit: w.audit, MaxPayload: 1 << 20,
	}
	for _, f := range change {
		f(&o)
	}
	if w.handler, err = server.New(o); err != nil {
		t.Fatal(err)
	}
	w.token = "ann-token"
	return w
}

func (w *world) audit(_ context.Context, e server.Event) (func(int64, error), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	w.events = append(w.events, event{Event: e, made: -1})
	n := len(w.events) - 1
	return func(v int64, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events[n].made, w.events[n].err = v, err
	}, nil
}

// recorded returns what the ledger was told since it was asked last.
func (w *world) recorded() []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.events
	w.events = nil
	return out
}

// answer is what the server said.
type answer struct {
	code   int
	body   string
	header http.Header
}

// as returns the world as who has another token sees it.
func (w *world) as(token string) *user { return &user{w, token} }

type user struct {
	*world
	token string
}

func (w *world) ask(method, path, body string, headers ...string) answer {
	return w.as(w.token).ask(method, path, body, headers...)
}

// ask sends a request with the user's token as password. Headers are "Name: value".
func (u *user) ask(method, path, body string, headers ...string) answer {
	u.t.Helper()
	r := httptest.NewRequestWithContext(u.t.Context(), method, "http://states.test"+path, strings.NewReader(body))
	if u.token != "" {
		r.SetBasicAuth("anybody", u.token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	u.handler.ServeHTTP(rec, r)
	b, err := io.ReadAll(rec.Result().Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return answer{rec.Code, string(b), rec.Result().Header}
}

// must writes a state behind the server's back.
func (w *world) must(content string) {
	w.t.Helper()
	if _, err := w.store.Write(w.t.Context(), netKey, []byte(content), store.WriteOptions{Force: true}); err != nil {
		w.t.Fatal(err)
	}
}

func text(serial int, lineage string, resources int) string {
	return fmt.Sprintf(`{"version":4,"serial":%d,"lineage":%q,"outputs":{"o":{"value":"x","type":"string"}},"resources":[%s]}`,
		serial, lineage, strings.TrimSuffix(strings.Repeat(`{"type":"a"},`, resources), ","))
}

func lockInfo(id string) string {
	return fmt.Sprintf(`{"ID":%q,"Operation":"OperationTypeApply","Info":"","Who":"me@%s","Version":"1.11.4","Created":"2026-01-01T10:00:00Z","Path":""}`, id, id)
}

// bareLock is what OpenTofu's force-unlock sends.
func bareLock(id string) string {
	return fmt.Sprintf(`{"ID":%q,"Operation":"","Info":"","Who":"","Version":"","Created":"0001-01-01T00:00:00Z","Path":""}`, id)
}

func sum(text string) string {
	s := md5.Sum([]byte(text))
	return base64.StdEncoding.EncodeToString(s[:])
}

var errBroken = errors.New("the API server is away")
