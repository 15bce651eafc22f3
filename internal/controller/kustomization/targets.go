// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	authutils "github.com/fluxcd/pkg/auth/utils"
	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
}

type remoteCluster struct {
	*kube.Cluster
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
	for _, r := range t.remote {
		r.Close()
	}
}

// forget ends the interest of a unit that is gone.
func (t *targets) forget(unit types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clusters := []*kube.Cluster{t.local}
	for _, r := range t.remote {
		clusters = append(clusters, r.Cluster)
	}
	t.useLocked(unit, "")
	for _, c := range clusters {
		c.View.Unwatch(unit, nil)
		c.View.AwaitKinds(unit, false)
	}
}

// of returns the cluster that a unit applies to, and a client of it that acts as the
// unit's account.
func (t *targets) of(ctx context.Context, ks *kustomizev1.Kustomization) (*kube.Cluster, *kube.Client, error) {
	cluster := t.local
	if ks.Spec.KubeConfig != nil {
		var err error
		if cluster, err = t.connect(ctx, ks); err != nil {
			return nil, nil, err
		}
	} else {
		t.mu.Lock()
		t.useLocked(types.NamespacedName{Namespace: ks.Namespace, Name: ks.Name}, "")
		t.mu.Unlock()
	}
	k, err := cluster.Client(t.c.account(ks))
	return cluster, k, err
}

// account is the user that a unit applies as, "" for Terrace itself.
func (c *Controller) account(ks *kustomizev1.Kustomization) string {
	name := ks.Spec.ServiceAccountName
	if name == "" {
		name = c.opts.DefaultServiceAccount
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("system:serviceaccount:%s:%s", ks.Namespace, name)
}

// connect returns the cluster of a unit's kubeConfig. One that is known by the same
// content is shared.
func (t *targets) connect(ctx context.Context, ks *kustomizev1.Kustomization) (*kube.Cluster, error) {
	key, config, err := t.kubeConfig(ctx, ks)
	if err != nil {
		return nil, err
	}
	return t.share(types.NamespacedName{Namespace: ks.Namespace, Name: ks.Name}, key, config)
}

// share returns the cluster that a key names, for a unit, and makes it if nobody uses
// it yet. Those that have been without a unit for long are closed.
func (t *targets) share(unit types.NamespacedName, key string, config func() (*rest.Config, error)) (*kube.Cluster, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.useLocked(unit, key)
	for k, r := range t.remote {
		if k != key && len(r.units) == 0 && t.c.opts.Clock.Since(r.idle) > idleCluster {
			r.Close()
			delete(t.remote, k)
		}
	}
	if r, ok := t.remote[key]; ok {
		return r.Cluster, nil
	}
	made, err := config()
	if err != nil {
		return nil, err
	}
	cluster, err := kube.NewCluster(made, owner, t.c.Wake)
	if err != nil {
		return nil, err
	}
	t.remote[key] = &remoteCluster{Cluster: cluster, units: map[types.NamespacedName]bool{unit: true}}
	return cluster, nil
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

// kubeConfig returns what names a unit's kubeConfig, and how to make a configuration of it.
func (t *targets) kubeConfig(ctx context.Context, ks *kustomizev1.Kustomization) (key string, config func() (*rest.Config, error), err error) {
	ref := ks.Spec.KubeConfig
	noTimeout := time.Duration(0) // it would end watches
	sane := func(in *rest.Config) *rest.Config {
		return runtimeclient.KubeConfig(ctx, in, runtimeclient.KubeConfigOptions{UserAgent: "terrace", Timeout: &noTimeout})
	}
	switch {
	case ref.SecretRef != nil:
		secret := reference.Reference{Kind: reference.Secret, Namespace: ks.Namespace, Name: ref.SecretRef.Name}
		fetched := reference.Data{}
		digest, err := t.c.refs.Digest(ctx, secret, fetched)
		if err != nil {
			return "", nil, err
		}
		if digest == "" {
			return "", nil, fmt.Errorf("unable to read KubeConfig secret '%s': it does not exist", secret.Key())
		}
		return "secret " + ref.SecretRef.Key + " " + digest, func() (*rest.Config, error) {
			content := fetched[secret]
			if content == nil {
				if content, _, _, err = t.c.refs.Fetch(ctx, secret); err != nil {
					return nil, err
				}
			}
			raw, err := kubeConfigIn(secret.Key(), ref.SecretRef, content)
			if err != nil {
				return nil, err
			}
			made, err := clientcmd.RESTConfigFromKubeConfig(raw)
			if err != nil {
				return nil, fmt.Errorf("read the kubeconfig in secret '%s': %w", secret.Key(), err)
			}
			return sane(made), nil
		}, nil
	case ref.ConfigMapRef != nil:
		cm := reference.Reference{Kind: reference.ConfigMap, Namespace: ks.Namespace, Name: ref.ConfigMapRef.Name}
		digest, err := t.c.refs.Digest(ctx, cm, reference.Data{})
		if err != nil {
			return "", nil, err
		}
		if digest == "" {
			return "", nil, fmt.Errorf("unable to read KubeConfig ConfigMap '%s': it does not exist", cm.Key())
		}
		return "configmap " + ks.Namespace + " " + digest, func() (*rest.Config, error) {
			// What it returns asks for a new token by itself when the old one expires.
			made, err := authutils.GetRESTConfig(context.WithoutCancel(ctx), *ref, ks.Namespace, t.c.opts.Client)
			if err != nil {
				return nil, fmt.Errorf("connect by ConfigMap '%s': %w", cm.Key(), err)
			}
			return sane(made), nil
		}, nil
	}
	return "", nil, status.Fail(meta.ReconciliationFailedReason, errors.New("spec.kubeConfig names neither a Secret nor a ConfigMap: set secretRef or configMapRef"))
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

// accountExists tells whether the account that a unit applies as is there. What is
// gone can prune nothing, and must not keep the unit from being deleted.
func (c *Controller) accountExists(ctx context.Context, ks *kustomizev1.Kustomization) (bool, error) {
	name := ks.Spec.ServiceAccountName
	if name == "" {
		name = c.opts.DefaultServiceAccount
	}
	if name == "" {
		return true, nil
	}
	var sa corev1.ServiceAccount
	err := c.opts.Reader.Get(ctx, types.NamespacedName{Namespace: ks.Namespace, Name: name}, &sa)
	if err == nil {
		return true, nil
	}
	return false, client.IgnoreNotFound(err)
}
