// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/bench/rig"
)

// bare is a client that does nothing but apply, as the same account: no build, no
// look at what is there, no wait, no status.
type bare struct {
	dynamic.Interface
	mapper     meta.RESTMapper
	concurrent int
}

func newBare(config *rest.Config, mapper meta.RESTMapper, concurrent int) (*bare, error) {
	config.Impersonate = rest.ImpersonationConfig{UserName: user(floorNamespace)}
	c, err := dynamic.NewForConfig(config)
	return &bare{c, mapper, concurrent}, err
}

// decode reads the objects of a manifest, into the floor's namespace.
func decode(manifest string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return nil, err
		}
		o.SetNamespace(floorNamespace)
		objects = append(objects, o)
	}
	return objects, nil
}

// each does something with every object of every app, app by app, as many apps at a
// time as Terrace works on.
func (c *bare) each(ctx context.Context, apps [][]*unstructured.Unstructured, do func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.concurrent)
	for _, objects := range apps {
		group.Go(func() error {
			for _, o := range objects {
				gvk := o.GroupVersionKind()
				m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
				if err != nil {
					return err
				}
				if err := do(ctx, c.Resource(m.Resource).Namespace(o.GetNamespace()), o); err != nil {
					return fmt.Errorf("%s %s: %w", gvk.Kind, o.GetName(), err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func apply(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	_, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "bench", Force: true})
	return err
}

func remove(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	background := metav1.DeletePropagationBackground
	return r.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
}

// floor measures the bare client, before there are controllers.
func (b *bench) floor(ctx context.Context) error {
	c, err := newBare(b.Counted(), b.RESTMapper(), b.concurrent)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		mcpu string
		do   func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error
	}{
		{"bare client: install", firstCPU, apply},
		{"bare client: upgrade", secondCPU, apply},
		{"bare client: no change", secondCPU, apply},
		{"bare client: delete", secondCPU, remove},
	} {
		apps := make([][]*unstructured.Unstructured, b.apps)
		for i := range apps {
			if apps[i], err = decode(substituted(i, step.mcpu)); err != nil {
				return err
			}
		}
		r := result{name: step.name, units: b.apps, bare: true}
		before := ownCPU()
		r.Cost, err = b.Measure(ctx, step.name, rig.Nothing, func(ctx context.Context) error { return c.each(ctx, apps, step.do) })
		if err != nil {
			return err
		}
		// The bare client is this process.
		r.Terrace = ownCPU() - before
		b.results = append(b.results, r)
	}
	return nil
}

// ownCPU is what this process has used so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for a wrong first argument only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
