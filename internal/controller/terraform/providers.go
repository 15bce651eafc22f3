// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/provider"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")

// namespaceTimeout bounds the wait for the watch of namespaces, which may not be allowed.
const namespaceTimeout = 30 * time.Second

// allowance is which providers the runs of one namespace may use. Both lists have to allow
// a provider.
type allowance struct {
	host      string // of sources that name no registry
	process   provider.List
	namespace string
	own       provider.List // the namespace's
}

func (c *Controller) registry() string {
	if c.opts.Tool.Product == tofu.Terraform {
		return provider.TerraformRegistry
	}
	return provider.OpenTofuRegistry
}

// allowance reads what the namespace of a unit adds to the list of the process. The error
// has the reason for the Ready condition: a list that cannot be read allows nothing.
func (c *Controller) allowance(ctx context.Context, namespace string) (allowance, error) {
	a := allowance{host: c.registry(), process: c.allowed, namespace: namespace}
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(namespaceKind)
	if err := c.opts.Metadata.Get(ctx, client.ObjectKey{Name: namespace}, ns); err != nil {
		return a, fmt.Errorf("read the providers that namespace %s allows: %w", namespace, err)
	}
	own, err := provider.ParseList(a.host, provider.Fields(ns.Annotations[infra.AllowedProvidersAnnotation]))
	if err != nil {
		return a, status.Failf(infra.ReasonAccessDenied, "annotation %s of namespace %s: %w; correct it, until then no provider runs here",
			infra.AllowedProvidersAnnotation, namespace, err)
	}
	a.own = own
	return a, nil
}

// check refuses a provider that is not allowed. found says what asks for it.
func (a allowance) check(source, found string) error {
	addr, err := provider.Parse(a.host, source)
	if err != nil {
		return status.Failf(infra.ReasonAccessDenied, "%s: %w, so it cannot be allowed", found, err)
	}
	if !a.process.Allows(addr) {
		return status.Failf(infra.ReasonAccessDenied,
			"%s asks for provider %s, which --allowed-providers does not allow; it has %s. Use a provider that is allowed, or ask whoever runs Terrace to add this one",
			found, addr, a.process)
	}
	if !a.own.Allows(addr) {
		return status.Failf(infra.ReasonAccessDenied,
			"%s asks for provider %s, which annotation %s of namespace %s does not allow; it has %s. Use a provider that is allowed, or add this one to the annotation",
			found, addr, infra.AllowedProvidersAnnotation, a.namespace, a.own)
	}
	return nil
}

// allProviders tells that there is nothing to refuse.
func (a allowance) allProviders() bool { return a.process.All() && a.own.All() }

// checkProviders refuses, before init, a unit whose modules or whose lock file ask for a
// provider that is not allowed. tree is the artifact. The error has reason AccessDenied.
func (s *session) checkProviders(ctx context.Context, tree string) error {
	a, err := s.c.allowance(ctx, s.job.tf.Namespace)
	if err != nil || a.allProviders() {
		return err
	}
	for _, p := range s.job.reach.Required() {
		if _, err := provider.Parse(a.host, p.Source); err != nil {
			continue // init says what is wrong with it
		}
		if err := a.check(p.Source, "the module at "+p.In); err != nil {
			return err
		}
	}
	return a.checkAll(s.job.reach.LockedProviders(tree))
}

// checkLocked refuses, after init and before anything of a provider runs, a lock file with
// a provider that is not allowed: modules that init fetched, and the state, ask for
// providers too. The error has reason AccessDenied.
func (s *session) checkLocked(ctx context.Context) error {
	a, err := s.c.allowance(ctx, s.job.tf.Namespace)
	if err != nil || a.allProviders() {
		return err
	}
	return a.checkAll(s.dir.LockedProviders(s.job.reach))
}

// checkAll refuses what is not allowed of a lock file that was read.
func (a allowance) checkAll(locked []string, err error) error {
	if err != nil {
		return status.Failf(infra.ReasonAccessDenied, "look for providers that are not allowed: %w", err)
	}
	for _, source := range locked {
		if err := a.check(source, workdir.LockFile); err != nil {
			return err
		}
	}
	return nil
}
