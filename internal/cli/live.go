// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	ids "github.com/fluxcd/cli-utils/pkg/object"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// kindMapper finds kinds by the words that people and manifests use for them. It
// asks the API server once.
type kindMapper struct {
	meta.RESTMapper
	cluster *cluster
}

func (c *cluster) mapper() (*kindMapper, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	cached := memory.NewMemCacheClient(d)
	m := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	return &kindMapper{RESTMapper: m, cluster: c}, nil
}

// named finds the kind that a word stands for, as kubectl does: deployment,
// deployments, deploy, deployments.apps or deployments.v1.apps.
func (m *kindMapper) named(word string) (*meta.RESTMapping, error) {
	full, short := schema.ParseResourceArg(strings.ToLower(word))
	for _, r := range []*schema.GroupVersionResource{full, {Group: short.Group, Resource: short.Resource}} {
		if r == nil {
			continue
		}
		gvk, err := m.KindFor(*r)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, m.cluster.explain("find kind "+word, err)
		}
		return m.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	return nil, hintf(fmt.Errorf("find kind %s: the cluster does not serve it", word), "%q lists its kinds", "terrace kubectl api-resources")
}

// resource addresses objects of a mapped kind; the namespace is passed over for
// kinds that have none.
func (c *cluster) resource(m *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.client.Resource(m.Resource).Namespace(namespace)
	}
	return c.client.Resource(m.Resource)
}

// live is an object of a unit's inventory as it is on the cluster now.
type live struct {
	id     ids.ObjMetadata
	object *unstructured.Unstructured // nil: not there, or not to be read
	health metav1.ConditionStatus
	// why the object is not as it should be; empty when it is.
	why string
}

// name is the object's, with its namespace where that is not the one given.
func (l live) name(namespace string) string {
	if l.id.Namespace == "" || l.id.Namespace == namespace {
		return l.id.Name
	}
	return l.id.Namespace + "/" + l.id.Name
}

// readers bounds how many objects are read at a time.
const readers = 8

// inventory reads the objects that a Kustomization has applied, in its order.
// Those of another cluster are listed and not read.
func (c *cluster) inventory(ctx context.Context, m *kindMapper, ks *kustomizev1.Kustomization) ([]live, error) {
	if ks.Status.Inventory == nil {
		return nil, nil
	}
	out := make([]live, len(ks.Status.Inventory.Entries))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for i, e := range ks.Status.Inventory.Entries {
		id, err := ids.ParseObjMetadata(e.ID)
		if err != nil {
			return nil, fmt.Errorf("read kustomization/%s/%s: status.inventory: %w", ks.Namespace, ks.Name, err)
		}
		out[i] = live{id: id, health: metav1.ConditionUnknown}
		if ks.Spec.KubeConfig != nil {
			out[i].why = "on another cluster"
			continue
		}
		group.Go(func() error { return c.look(ctx, m, e.Version, &out[i]) })
	}
	return out, group.Wait()
}

// look reads one object and how healthy it is. What the user may not read, and
// what is not there, is told of the object; other errors end the whole.
func (c *cluster) look(ctx context.Context, m *kindMapper, version string, l *live) error {
	mapping, err := m.RESTMapping(l.id.GroupKind, version)
	if meta.IsNoMatchError(err) {
		// The inventory keeps the version of the apply; the kind may have another by now.
		mapping, err = m.RESTMapping(l.id.GroupKind)
	}
	if meta.IsNoMatchError(err) {
		l.health, l.why = metav1.ConditionFalse, "the cluster does not know its kind"
		return nil
	}
	if err != nil {
		return c.explain("find kind "+l.id.GroupKind.String(), err)
	}
	l.object, err = c.resource(mapping, l.id.Namespace).Get(ctx, l.id.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		l.health, l.why = metav1.ConditionFalse, "not found"
		return nil
	case apierrors.IsForbidden(err):
		l.why = "you may not read it"
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return c.explain("get "+l.id.GroupKind.Kind+"/"+l.id.Namespace+"/"+l.id.Name, err)
	}
	l.health, l.why = health(l.object)
	return nil
}

// health is how kstatus judges an object: True when it is what it should be,
// False when it failed, Unknown while it is on its way; and why it is not True.
func health(u *unstructured.Unstructured) (metav1.ConditionStatus, string) {
	res, err := kstatus.Compute(u)
	if err != nil {
		return metav1.ConditionUnknown, err.Error()
	}
	switch res.Status {
	case kstatus.CurrentStatus:
		return metav1.ConditionTrue, ""
	case kstatus.FailedStatus:
		return metav1.ConditionFalse, res.Message
	case kstatus.TerminatingStatus:
		return metav1.ConditionUnknown, "being deleted"
	}
	return metav1.ConditionUnknown, res.Message
}
