// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state/store"
)

const (
	// reviewLife is how long the answer to a review is taken for true: what was granted
	// or taken away shows after this time.
	reviewLife = 5 * time.Second
	// maxReviews bounds how many answers are kept.
	maxReviews = 1024
)

// Reviewer creates TokenReviews and SubjectAccessReviews: a client.Client whose
// account may create them.
type Reviewer interface {
	Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error
}

// Kubernetes knows people and pipelines by their account in Kubernetes: a Bearer token
// (or the password of Basic authentication) that the API server recognizes, or a
// client certificate of the cluster's CA. What they may do is what RBAC says of the
// resource states.
type Kubernetes struct {
	reviewer Reviewer
	audience []string
	clients  *x509.CertPool
	clock    clock.PassiveClock
	users    cache[[sha256.Size]byte, authenticationv1.TokenReviewStatus]
	access   cache[[sha256.Size]byte, authorizationv1.SubjectAccessReviewStatus]
}

// NewKubernetes asks the reviewer. Certificates are taken from clients that the pool
// trusts; a nil pool takes none. Audiences are those that a token must be for; none
// means the API server's own. A nil clock is the real one.
func NewKubernetes(r Reviewer, clients *x509.CertPool, audiences []string, c clock.PassiveClock) *Kubernetes {
	if c == nil {
		c = clock.RealClock{}
	}
	return &Kubernetes{reviewer: r, audience: audiences, clients: clients, clock: c}
}

// Authorize implements Authorizer.
func (k *Kubernetes) Authorize(ctx context.Context, r *http.Request) (Identity, error) {
	var user authenticationv1.UserInfo
	token := Token(r)
	switch {
	case token != "":
		status, err := k.review(ctx, token)
		if err != nil {
			return Identity{}, err
		}
		if !status.Authenticated {
			return Identity{}, ErrUnknown
		}
		user = status.User
	case r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && k.clients != nil:
		var err error
		if user, err = k.certified(r.TLS.PeerCertificates); err != nil {
			return Identity{}, err
		}
	default:
		return Identity{}, ErrUnknown
	}
	return Identity{Name: user.Username, Mint: true, Allow: func(ctx context.Context, verb Verb, key store.Key) error {
		return k.allow(ctx, user, verb, key)
	}}, nil
}

// certified is the user of a client certificate, as the API server sees it: the common
// name, with the organizations as groups.
func (k *Kubernetes) certified(chain []*x509.Certificate) (authenticationv1.UserInfo, error) {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: k.clients, Intermediates: between, CurrentTime: k.clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || leaf.Subject.CommonName == "" {
		return authenticationv1.UserInfo{}, &TokenError{"the client certificate is not one of the cluster, or it has expired"}
	}
	groups := append([]string{}, leaf.Subject.Organization...)
	return authenticationv1.UserInfo{Username: leaf.Subject.CommonName, Groups: append(groups, "system:authenticated")}, nil
}

func (k *Kubernetes) review(ctx context.Context, token string) (authenticationv1.TokenReviewStatus, error) {
	return k.users.get(k.clock.Now(), sha256.Sum256([]byte(token)), func() (authenticationv1.TokenReviewStatus, error) {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: k.audience}}
		if err := k.reviewer.Create(ctx, review); err != nil {
			return authenticationv1.TokenReviewStatus{}, fmt.Errorf("ask the API server whose token it is: %w", err)
		}
		return review.Status, nil
	})
}

func (k *Kubernetes) allow(ctx context.Context, user authenticationv1.UserInfo, verb Verb, key store.Key) error {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: key.Namespace, Name: key.Name, Verb: string(verb),
			Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "states",
		},
	}
	if len(user.Extra) > 0 {
		spec.Extra = map[string]authorizationv1.ExtraValue{}
		for name, values := range user.Extra {
			spec.Extra[name] = authorizationv1.ExtraValue(values)
		}
	}
	question, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("ask the API server whether %s may: %w", user.Username, err)
	}
	status, err := k.access.get(k.clock.Now(), sha256.Sum256(question), func() (authorizationv1.SubjectAccessReviewStatus, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: spec}
		if err := k.reviewer.Create(ctx, review); err != nil {
			return review.Status, fmt.Errorf("ask the API server whether %s may: %w", user.Username, err)
		}
		return review.Status, nil
	})
	if err != nil {
		return err
	}
	if !status.Allowed {
		return &DeniedError{fmt.Sprintf("user %q cannot %s states.%s %q in namespace %q", user.Username, verb, v1alpha1.GroupVersion.Group, key.Name, key.Namespace)}
	}
	return nil
}

// cache keeps answers for reviewLife. Its zero value is empty.
type cache[K comparable, V any] struct {
	mu   sync.Mutex
	kept map[K]answer[V]
}

type answer[V any] struct {
	value V
	until time.Time
}

// get returns the answer that is kept, or asks. Failures are not kept.
func (c *cache[K, V]) get(now time.Time, key K, ask func() (V, error)) (V, error) {
	c.mu.Lock()
	a, ok := c.kept[key]
	c.mu.Unlock()
	if ok && now.Before(a.until) {
		return a.value, nil
	}
	value, err := ask()
	if err != nil {
		return value, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= maxReviews {
		for k, a := range c.kept {
			if !now.Before(a.until) {
				delete(c.kept, k)
			}
		}
		// Still full of what is fresh: somebody tries many tokens. Begin again.
		if len(c.kept) >= maxReviews {
			clear(c.kept)
		}
	}
	if c.kept == nil {
		c.kept = map[K]answer[V]{}
	}
	c.kept[key] = answer[V]{value, now.Add(reviewLife)}
	return value, nil
}
