// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/fluxcd/pkg/ssa"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Cluster is one API server, seen with one identity. It keeps what is dear to make:
// connections, the mapping of kinds, and the watches.
type Cluster struct {
	// View holds the objects that owners have labelled.
	View *View

	config *rest.Config
	http   *http.Client
	owner  Owner

	mu      sync.Mutex
	mapper  apimeta.RESTMapper
	clients map[string]*Client
}

// NewCluster connects to an API server. wake is called with a unit when an object of
// its own, or a kind that it waits for, has changed; it must not block.
func NewCluster(config *rest.Config, owner Owner, wake func(unit types.NamespacedName)) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server's own flow control decides
	config.WarningHandler = rest.NoWarnings{}
	config.WarningHandlerWithContext = rest.NoWarnings{}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	c := &Cluster{config: config, http: h, owner: owner, clients: map[string]*Client{}}
	if err := c.forgetKinds(); err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfigAndClient(config, h)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	meta, err := metadata.NewForConfigAndClient(config, h)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	c.View = newView(dyn, meta, owner, c.mapping, wake)
	return c, nil
}

// Close ends the watches.
func (c *Cluster) Close() { c.View.close() }

// Client returns a client that acts as a user, as itself if that is empty. Clients
// are kept: they share the cluster's connections and its knowledge of kinds.
func (c *Cluster) Client(user string) (*Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.clients[user]; ok {
		return k, nil
	}
	config, h := c.config, c.http
	if user != "" {
		config = rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		var err error
		if h, err = rest.HTTPClientFor(config); err != nil {
			return nil, fmt.Errorf("connect to %s as %s: %w", config.Host, user, err)
		}
	}
	dyn, err := dynamic.NewForConfigAndClient(config, h)
	if err != nil {
		return nil, fmt.Errorf("connect to %s as %s: %w", config.Host, user, err)
	}
	k := &Client{cluster: c, dynamic: dyn, config: config, http: h}
	c.clients[user] = k
	return k, nil
}

// mapping returns how a kind is addressed. Errors: UnknownKindError.
func (c *Cluster) mapping(gvk schema.GroupVersionKind) (*apimeta.RESTMapping, error) {
	c.mu.Lock()
	mapper := c.mapper
	c.mu.Unlock()
	m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if apimeta.IsNoMatchError(err) {
		return nil, &UnknownKindError{gvk}
	}
	if failed, ok := errors.AsType[*apiutil.ErrResourceDiscoveryFailed](err); ok && notServed(*failed) {
		return nil, &UnknownKindError{gvk}
	}
	if err != nil {
		return nil, fmt.Errorf("look up kind %s: %w", gvk.Kind, err)
	}
	return m, nil
}

// notServed tells whether versions of a group were looked for and are not there. What
// could not be asked may well be there.
func notServed(failed apiutil.ErrResourceDiscoveryFailed) bool {
	for _, err := range failed {
		if !apimeta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return false
		}
	}
	return true
}

// served returns the version in which the objects of a kind can be reached: the given
// one, or another if that has gone, which does not take the objects along. Errors:
// UnknownKindError if the kind is gone; others if the API server cannot tell, as when
// an aggregated one is away.
func (c *Cluster) served(ctx context.Context, gvk schema.GroupVersionKind) (schema.GroupVersionKind, error) {
	_, err := c.mapping(gvk)
	if _, unknown := asUnknown(err); !unknown {
		return gvk, err
	}
	c.mu.Lock()
	mapper := c.mapper
	c.mu.Unlock()
	m, err := mapper.RESTMapping(gvk.GroupKind())
	if err == nil {
		return m.GroupVersionKind, nil
	}
	if failed, ok := errors.AsType[*apiutil.ErrResourceDiscoveryFailed](err); !apimeta.IsNoMatchError(err) && (!ok || !notServed(*failed)) {
		return gvk, fmt.Errorf("look up kind %s: %w", gvk.Kind, err)
	}
	if gvk.Group != "" {
		d, err := discovery.NewDiscoveryClientForConfigAndClient(c.config, c.http)
		if err != nil {
			return gvk, fmt.Errorf("connect to %s: %w", c.config.Host, err)
		}
		if err := d.RESTClient().Get().AbsPath("/apis", gvk.Group, gvk.Version).Do(ctx).Error(); ignoreNotFound(err) != nil {
			return gvk, fmt.Errorf("look up kind %s: %w", gvk.Kind, err)
		}
	}
	return gvk, &UnknownKindError{gvk}
}

// forgetKinds drops what is known of kinds, because one of them is gone.
func (c *Cluster) forgetKinds() error {
	mapper, err := apiutil.NewDynamicRESTMapper(c.config, c.http)
	if err != nil {
		return fmt.Errorf("ask %s for its kinds: %w", c.config.Host, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mapper = mapper
	return nil
}

// Namespaced tells whether objects of a kind are in namespaces. Errors: UnknownKindError.
func (c *Cluster) Namespaced(gvk schema.GroupVersionKind) (bool, error) {
	m, err := c.mapping(gvk)
	if err != nil {
		return false, err
	}
	return m.Scope.Name() == apimeta.RESTScopeNameNamespace, nil
}

// Client reads and writes objects of a cluster as one user.
type Client struct {
	cluster *Cluster
	dynamic dynamic.Interface
	config  *rest.Config
	http    *http.Client

	once sync.Once
	lib  client.Client
	err  error
}

// Cluster is what the client reads and writes.
func (k *Client) Cluster() *Cluster { return k.cluster }

// resource returns the endpoint of an object.
func (k *Client) resource(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	m, err := k.cluster.mapping(gvk)
	if err != nil {
		return nil, err
	}
	r := k.dynamic.Resource(m.Resource)
	if m.Scope.Name() != apimeta.RESTScopeNameNamespace {
		return r, nil
	}
	return r.Namespace(namespace), nil
}

// apply sends one object; dry tells the API server to write nothing.
func (k *Client) apply(ctx context.Context, o *unstructured.Unstructured, dry bool) (*unstructured.Unstructured, error) {
	r, err := k.resource(o.GroupVersionKind(), o.GetNamespace())
	if err != nil {
		return nil, err
	}
	opts := metav1.ApplyOptions{FieldManager: k.cluster.owner.Field, Force: true}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	answer, err := r.Apply(ctx, o.GetName(), o, opts)
	if err != nil {
		return nil, k.gone(o.GroupVersionKind(), err)
	}
	return answer, nil
}

// gone turns the answer that a path is not served into an UnknownKindError: the kind
// was known, and its CRD has been deleted.
func (k *Client) gone(gvk schema.GroupVersionKind, err error) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) || status.ErrStatus.Details == nil || status.ErrStatus.Details.Name != "" || len(status.ErrStatus.Details.Causes) == 0 {
		return err
	}
	if ferr := k.cluster.forgetKinds(); ferr != nil {
		return ferr
	}
	return &UnknownKindError{gvk}
}

// Get reads an object; nil if it does not exist.
func (k *Client) Get(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	r, err := k.resource(gvk, namespace)
	if err != nil {
		return nil, err
	}
	o, err := r.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// delete deletes exactly the object of that uid, in the background.
func (k *Client) delete(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string, uid types.UID) error {
	r, err := k.resource(gvk, namespace)
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	if uid != "" {
		opts.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	return ignoreNotFound(r.Delete(ctx, name, opts))
}

// list reads the objects of a namespace that match a selector.
func (k *Client) list(ctx context.Context, gvk schema.GroupVersionKind, namespace string, opts metav1.ListOptions) ([]unstructured.Unstructured, error) {
	r, err := k.resource(gvk, namespace)
	if err != nil {
		return nil, err
	}
	all, err := r.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	return all.Items, nil
}

// manager returns Flux's own applier, for the objects that need what it does beside
// applying: fields left to others, and traces of earlier managers.
func (k *Client) manager() (*ssa.ResourceManager, error) {
	k.once.Do(func() {
		k.cluster.mu.Lock()
		mapper := k.cluster.mapper
		k.cluster.mu.Unlock()
		k.lib, k.err = client.New(k.config, client.Options{HTTPClient: k.http, Mapper: mapper})
	})
	if k.err != nil {
		return nil, k.err
	}
	return ssa.NewResourceManager(k.lib, nil, ssa.Owner(k.cluster.owner)), nil
}
