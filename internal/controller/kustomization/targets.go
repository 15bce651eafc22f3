// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	authutils "github.com/fluxcd/pkg/auth/utils"
	"github.com/fluxcd/pkg/cache"
	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/status"
)

// idleCluster is how long a remote cluster stays connected and watched without a unit
// that applies to it.
const idleCluster = 30 * time.Minute

// targets are the clusters that units apply to: the one that Terrace works in, and
// one for each kubeconfig.
type targets struct {
	c     *Controller
	local *kube.Cluster

	mu     sync.Mutex
	remote map[string]*remoteCluster
	closed bool
}

type remoteCluster struct {
	// made is closed when there is a Cluster, or err says why there is none. It is not
	// waited for with the lock of the targets: a cloud may take its time to let Terrace in.
	made chan struct{}
	*kube.Cluster
	err error

	units map[types.NamespacedName]bool
	idle  time.Time // since when no unit applies to it, if none does
}

func newTargets(c *Controller) (*targets, error) {
	local, err := kube.NewCluster(c.opts.API, owner, c.Wake)
	if err != nil {
		return nil, err
	}
	return &targets{c: c, local: local, remote: map[string]*remoteCluster{}}, nil
}

// close ends every connection.
func (t *targets) close() {
	t.local.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, c := range t.remotesLocked() {
		c.Close()
	}
}

// remotesLocked are the remote clusters that are connected.
func (t *targets) remotesLocked() []*kube.Cluster {
	var out []*kube.Cluster
	for _, r := range t.remote {
		if r.Cluster != nil {
			out = append(out, r.Cluster)
		}
	}
	return out
}

// forget ends the interest of a unit that is gone.
func (t *targets) forget(unit types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clusters := append(t.remotesLocked(), t.local)
	t.useLocked(unit, "")
	for _, c := range clusters {
		c.View.Unwatch(unit, nil)
		c.View.AwaitKinds(unit, false)
	}
}

// of returns the cluster that a unit applies to, its name, and a client of it that acts as
// the unit's account.
func (t *targets) of(ctx context.Context, ks *kustomizev1.Kustomization) (cluster *kube.Cluster, name string, k *kube.Client, err error) {
	cluster = t.local
	if ks.Spec.KubeConfig != nil {
		if cluster, name, err = t.connect(ctx, ks); err != nil {
			return nil, "", nil, err
		}
	} else {
		t.mu.Lock()
		t.useLocked(types.NamespacedName{Namespace: ks.Namespace, Name: ks.Name}, "")
		t.mu.Unlock()
	}
	k, err = cluster.Client(t.c.account(ks))
	return cluster, name, k, err
}

// kubeConfigOf is what says where a unit's cluster is.
func kubeConfigOf(ks *kustomizev1.Kustomization) (reference.Reference, error) {
	switch of := ks.Spec.KubeConfig; {
	case of.SecretRef != nil:
		return reference.Reference{Kind: reference.Secret, Namespace: ks.Namespace, Name: of.SecretRef.Name}, nil
	case of.ConfigMapRef != nil:
		return reference.Reference{Kind: reference.ConfigMap, Namespace: ks.Namespace, Name: of.ConfigMapRef.Name}, nil
	}
	return reference.Reference{}, status.Fail(meta.ReconciliationFailedReason, errors.New("spec.kubeConfig names neither a Secret nor a ConfigMap: set secretRef or configMapRef"))
}

// clusterName names the cluster that a unit applies to by the digests of what the unit
// refers to: "" for Terrace's own.
func clusterName(ks *kustomizev1.Kustomization, digests map[string]string) (string, error) {
	of := ks.Spec.KubeConfig
	if of == nil {
		return "", nil
	}
	ref, err := kubeConfigOf(ks)
	if err != nil {
		return "", err
	}
	if of.SecretRef != nil {
		return "secret " + of.SecretRef.Key + " " + digests[ref.String()], nil
	}
	return "configmap " + ks.Namespace + " " + digests[ref.String()], nil
}

// account is the user that a unit applies as, "" for Terrace itself.
func (c *Controller) account(ks *kustomizev1.Kustomization) string {
	if name := c.accountName(ks); name != "" {
		return fmt.Sprintf("system:serviceaccount:%s:%s", ks.Namespace, name)
	}
	return ""
}

func (c *Controller) accountName(ks *kustomizev1.Kustomization) string {
	return cmp.Or(ks.Spec.ServiceAccountName, c.opts.DefaultServiceAccount)
}

// connect returns the cluster of a unit's kubeConfig, and its name. One that is known by the
// same content is shared.
func (t *targets) connect(ctx context.Context, ks *kustomizev1.Kustomization) (*kube.Cluster, string, error) {
	ref, err := kubeConfigOf(ks)
	if err != nil {
		return nil, "", err
	}
	fetched := reference.Data{}
	digest, err := t.c.refs.Digest(ctx, ref, fetched)
	if err != nil {
		return nil, "", err
	}
	if digest == "" {
		return nil, "", fmt.Errorf("unable to read KubeConfig %s '%s': it does not exist", kindIn[ref.Kind], ref.Key())
	}
	name, err := clusterName(ks, map[string]string{ref.String(): digest})
	if err != nil {
		return nil, "", err
	}
	cluster, err := t.share(ctx, types.NamespacedName{Namespace: ks.Namespace, Name: ks.Name}, name, func() (*rest.Config, error) {
		// What is newer than the digest is the cluster of another name.
		content, err := t.c.refs.Content(ctx, ref, digest, fetched)
		if err != nil {
			return nil, err
		}
		return t.config(ctx, ks, ref, content)
	})
	return cluster, name, err
}

// share returns the cluster that a key names, for a unit, and makes it if nobody uses
// it yet; who comes meanwhile waits for it. Those that have been without a unit for
// long are closed.
func (t *targets) share(ctx context.Context, unit types.NamespacedName, key string, config func() (*rest.Config, error)) (*kube.Cluster, error) {
	t.mu.Lock()
	r, known := t.remote[key]
	if !known {
		r = &remoteCluster{made: make(chan struct{}), units: map[types.NamespacedName]bool{}}
		t.remote[key] = r
	}
	t.useLocked(unit, key)
	for k, other := range t.remote {
		if len(other.units) == 0 && other.Cluster != nil && t.c.opts.Clock.Since(other.idle) > idleCluster {
			other.Close()
			delete(t.remote, k)
		}
	}
	t.mu.Unlock()
	if !known {
		t.open(key, r, config)
	}
	select {
	case <-r.made:
		return r.Cluster, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open connects to a cluster. What fails is forgotten: the next try begins anew.
func (t *targets) open(key string, r *remoteCluster, config func() (*rest.Config, error)) {
	made, err := config()
	var cluster *kube.Cluster
	if err == nil {
		cluster, err = kube.NewCluster(made, owner, t.c.Wake)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(r.made)
	if r.Cluster, r.err = cluster, err; err != nil {
		delete(t.remote, key)
	} else if t.closed {
		cluster.Close()
	}
}

// useLocked notes that a unit applies to the cluster of a key, and to no other.
func (t *targets) useLocked(unit types.NamespacedName, key string) {
	for k, r := range t.remote {
		switch {
		case k == key:
			r.units[unit] = true
		case r.units[unit]:
			delete(r.units, unit)
			if len(r.units) == 0 {
				r.idle = t.c.opts.Clock.Now()
			}
		}
	}
}

// config makes the configuration that the content of a unit's kubeConfig says.
func (t *targets) config(ctx context.Context, ks *kustomizev1.Kustomization, ref reference.Reference, content map[string][]byte) (*rest.Config, error) {
	of := ks.Spec.KubeConfig
	if of.SecretRef != nil {
		raw, err := kubeConfigIn(ref.Key(), of.SecretRef, content)
		if err != nil {
			return nil, err
		}
		made, err := clientcmd.RESTConfigFromKubeConfig(raw)
		if err != nil {
			return nil, fmt.Errorf("read the kubeconfig in secret '%s': %w", ref.Key(), err)
		}
		return sane(ctx, made), nil
	}
	tokens, err := cache.NewTokenCache(cachedTokens)
	if err != nil {
		return nil, fmt.Errorf("keep tokens: %w", err)
	}
	// What it returns fetches a new token by itself when the old one expires.
	made, err := authutils.GetRESTConfig(context.WithoutCancel(ctx), *of, ks.Namespace, t.c.given(ref, content), t.c.tokenOptions(tokens, ks.Namespace, ks.Name)...)
	if err != nil {
		return nil, fmt.Errorf("connect by ConfigMap '%s': %w", ref.Key(), err)
	}
	return sane(ctx, made), nil
}

// kindIn is how messages name a kind.
var kindIn = map[string]string{reference.Secret: "secret", reference.ConfigMap: "ConfigMap"}

func sane(ctx context.Context, in *rest.Config) *rest.Config {
	noTimeout := time.Duration(0) // it would end watches
	return runtimeclient.KubeConfig(ctx, in, runtimeclient.KubeConfigOptions{UserAgent: "terrace", Timeout: &noTimeout})
}

func kubeConfigIn(name types.NamespacedName, ref *meta.SecretKeyReference, content map[string][]byte) ([]byte, error) {
	if ref.Key != "" {
		if raw, ok := content[ref.Key]; ok {
			return raw, nil
		}
		return nil, fmt.Errorf("KubeConfig secret '%s' does not contain a '%s' key with a kubeconfig", name, ref.Key)
	}
	for _, key := range []string{"value", "value.yaml"} {
		if raw, ok := content[key]; ok {
			return raw, nil
		}
	}
	return nil, fmt.Errorf("KubeConfig secret '%s' does not contain a 'value' key with a kubeconfig", name)
}

// accountExists tells whether the account that a unit applies as is there, in the
// cluster that it applies to. What is gone can prune nothing, and must not keep the unit
// from being deleted.
func (c *Controller) accountExists(ctx context.Context, cy *cycle) (bool, error) {
	name := c.accountName(cy.ks)
	if name == "" {
		return true, nil
	}
	k, err := cy.cluster.Client("")
	if err != nil {
		return false, err
	}
	o, err := k.Get(ctx, corev1.SchemeGroupVersion.WithKind("ServiceAccount"), cy.ks.Namespace, name)
	if apierrors.IsForbidden(err) {
		return true, nil // a kubeconfig need not be allowed to look; the deletion tells
	}
	return o != nil, err
}
