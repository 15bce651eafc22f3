// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package dependency finds who needs what, and wakes units when what they need has
// changed: a source, a Secret, another unit, or an object of any kind, of which it also
// tells whether it is ready.
//
// It reads from a watch cache that it indexes, starts a watch for each kind that
// somebody depends on, and writes nothing.
package dependency

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/terrace-dev/terrace/internal/graph"
)

// cacheTimeout bounds the wait for the cache of a kind that a dependency names.
const cacheTimeout = 5 * time.Second

// ready is the condition by which most kinds say that they are.
const ready = "Ready"

// Dependants returns the objects to wake when the named one has changed.
type Dependants func(ctx context.Context, kind, namespace, name string) []reconcile.Request

// Objects answers for one controller. It is safe for concurrent use.
type Objects struct {
	client     client.Client
	cache      cache.Cache
	controller controller.Controller
	dependants Dependants

	mu      sync.Mutex
	watched map[schema.GroupVersionKind]bool
}

// NewObjects returns an Objects that wakes the dependants through the controller. c
// has to read unstructured objects from cache.
func NewObjects(c client.Client, cache cache.Cache, ctl controller.Controller, dependants Dependants) *Objects {
	return &Objects{client: c, cache: cache, controller: ctl, dependants: dependants, watched: map[schema.GroupVersionKind]bool{}}
}

// NotReady says why an object is not ready, "" when it is. Its kind is watched from now on.
func (o *Objects) NotReady(ctx context.Context, ref graph.Node) (string, error) {
	gvk, err := o.kindOf(ref)
	if apimeta.IsNoMatchError(err) {
		// Its CRD may be installed later, which no watch of ours tells; time does.
		return fmt.Sprintf("dependency '%s' is not ready: the API server does not know kind %s", ref, ref.Kind), nil
	} else if err != nil {
		return "", err
	}
	if err := o.watch(gvk); err != nil {
		return "", err
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(gvk)
	// The first look at a kind waits for its cache, which never fills when Terrace may not
	// list the kind: that must not hold a worker for ever.
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	err = o.client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, obj)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("dependency '%s' is not ready: it does not exist", ref), nil
	case apierrors.IsTimeout(err):
		return fmt.Sprintf("dependency '%s' is not ready: objects of kind %s cannot be read yet; Terrace needs to get, list and watch them", ref, ref.Kind), nil
	case err != nil:
		return "", err
	}
	if why := whyNot(obj); why != "" {
		return fmt.Sprintf("dependency '%s' is not ready: %s", ref, why), nil
	}
	return "", nil
}

func whyNot(obj *unstructured.Unstructured) string {
	res, err := status.Compute(obj)
	if err != nil {
		return err.Error()
	}
	if res.Status != status.CurrentStatus {
		return res.Message
	}
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, item := range conditions {
		cond, ok := item.(map[string]any)
		if ok && cond["type"] == ready && cond["status"] != string(metav1.ConditionTrue) {
			return fmt.Sprint(cond["message"])
		}
	}
	return ""
}

// watch makes changes of objects of a kind wake those that depend on them.
func (o *Objects) watch(gvk schema.GroupVersionKind) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watched[gvk] {
		return nil
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(gvk)
	err := o.controller.Watch(source.Kind(o.cache, client.Object(obj), handler.EnqueueRequestsFromMapFunc(
		func(ctx context.Context, obj client.Object) []reconcile.Request {
			return o.dependants(ctx, gvk.Kind, obj.GetNamespace(), obj.GetName())
		})))
	if err != nil {
		return fmt.Errorf("watch %s: %w", gvk.Kind, err)
	}
	o.watched[gvk] = true
	return nil
}

// kindOf finds the version and group of a kind that a person wrote without them.
func (o *Objects) kindOf(ref graph.Node) (schema.GroupVersionKind, error) {
	mapper := o.client.RESTMapper()
	if ref.Group != "" {
		m, err := mapper.RESTMapping(schema.GroupKind{Group: ref.Group, Kind: ref.Kind})
		if err != nil {
			return schema.GroupVersionKind{}, err
		}
		return m.GroupVersionKind, nil
	}
	if group, ok := wellKnownGroups[ref.Kind]; ok {
		if m, err := mapper.RESTMapping(schema.GroupKind{Group: group, Kind: ref.Kind}); err == nil {
			return m.GroupVersionKind, nil
		}
	}
	plural, _ := apimeta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: ref.Kind})
	return mapper.KindFor(schema.GroupVersionResource{Resource: plural.Resource})
}

// wellKnownGroups settle which group a bare kind means where several could.
var wellKnownGroups = map[string]string{
	"Terraform":                "infra.contrib.fluxcd.io",
	"GitRepository":            "source.toolkit.fluxcd.io",
	"OCIRepository":            "source.toolkit.fluxcd.io",
	"Bucket":                   "source.toolkit.fluxcd.io",
	"HelmRepository":           "source.toolkit.fluxcd.io",
	"HelmChart":                "source.toolkit.fluxcd.io",
	"ExternalArtifact":         "source.toolkit.fluxcd.io",
	"Kustomization":            "kustomize.toolkit.fluxcd.io",
	"HelmRelease":              "helm.toolkit.fluxcd.io",
	"Deployment":               "apps",
	"StatefulSet":              "apps",
	"DaemonSet":                "apps",
	"Job":                      "batch",
	"CustomResourceDefinition": "apiextensions.k8s.io",
}
