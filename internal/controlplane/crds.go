// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// FieldManager owns the fields that Terrace sets on objects by server-side apply.
const FieldManager = "terrace"

// InstallCRDs applies the definitions by server-side apply, taking over fields
// that others have set, and returns when the API serves every version of each.
// One that is already as wanted is not written. It works against any cluster.
func InstallCRDs(ctx context.Context, config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := apiextensions.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("install definitions: %w", err)
	}
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("install definitions: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, crd := range crds {
		group.Go(func() error {
			if err := installCRD(ctx, client.CustomResourceDefinitions(), served, crd); err != nil {
				return fmt.Errorf("install definition %s: %w", crd.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func installCRD(ctx context.Context, client apiextensions.CustomResourceDefinitionInterface, served discovery.DiscoveryInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	patch, err := applyPatch(crd)
	if err != nil {
		return err
	}
	force := true
	applied, err := client.Patch(ctx, crd.Name, types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager, Force: &force})
	if err != nil {
		return err
	}
	if err := waitEstablished(ctx, client, applied); err != nil {
		return err
	}
	return waitServed(ctx, served, crd)
}

// applyPatch encodes what is to be owned: neither status nor the zero values
// that the Go types carry along.
func applyPatch(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	text, err := json.Marshal(crd)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	object["apiVersion"] = apiextensionsv1.SchemeGroupVersion.String()
	object["kind"] = "CustomResourceDefinition"
	delete(object, "status")
	if meta, ok := object["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	return json.Marshal(object)
}

// waitEstablished watches the definition from the version that was applied.
func waitEstablished(ctx context.Context, client apiextensions.CustomResourceDefinitionInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	for {
		done, err := established(crd)
		if done || err != nil {
			return err
		}
		crd, err = nextVersion(ctx, client, crd)
		if err != nil {
			return err
		}
	}
}

// nextVersion returns the definition after its next change, or as it is when the
// watch was cut.
func nextVersion(ctx context.Context, client apiextensions.CustomResourceDefinitionInterface, crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	watch, err := client.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", crd.Name).String(),
		ResourceVersion: crd.ResourceVersion,
	})
	if err != nil {
		return nil, err
	}
	defer watch.Stop()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait until it is established: %w", ctx.Err())
	case event := <-watch.ResultChan():
		if next, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition); ok {
			return next, nil
		}
		return client.Get(ctx, crd.Name, metav1.GetOptions{})
	}
}

func established(crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	for _, c := range crd.Status.Conditions {
		switch {
		case c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue:
			return true, nil
		case c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse:
			return false, fmt.Errorf("names are taken: %s", c.Message)
		}
	}
	return false, nil
}

// waitServed asks until discovery lists the kind in each version. The handler of
// a definition learns of "established" by a watch of its own, a moment later,
// and there is no event for that moment.
func waitServed(ctx context.Context, client discovery.DiscoveryInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, version := range crd.Spec.Versions {
		for version.Served {
			list, err := client.ServerResourcesForGroupVersion(schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name}.String())
			if err == nil && lists(list, crd.Spec.Names.Plural) {
				break
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait until version %s is served: %w", version.Name, ctx.Err())
			case <-tick.C:
			}
		}
	}
	return nil
}

func lists(list *metav1.APIResourceList, plural string) bool {
	for _, resource := range list.APIResources {
		if strings.EqualFold(resource.Name, plural) {
			return true
		}
	}
	return false
}
