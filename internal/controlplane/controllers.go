// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// discoveryPeriod is how often the garbage collector and the rest look for new
// kinds. A kind that was just defined is collected within this time.
const discoveryPeriod = 30 * time.Second

// controllers are the parts of kube-controller-manager that run in process:
//
//   - namespace: without it a deleted Namespace stays Terminating for ever
//   - garbage collector: owner references, foreground and orphan deletion
//   - cluster role aggregation: else view, edit and admin are empty, and no CRD's
//     roles join them
//   - service accounts: a "default" in each Namespace
//   - service account tokens: fills Secrets of type kubernetes.io/service-account-token
type controllers struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

// startControllers runs the controllers until stop. They have no leader
// election: the lock of the data directory has decided.
func startControllers(config *rest.Config, tokens serviceaccount.TokenGenerator, rootCA []byte, log logr.Logger) (*controllers, error) {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), lower(log)))
	c := &controllers{cancel: cancel}
	if err := c.start(ctx, config, tokens, rootCA, lower(log)); err != nil {
		cancel()
		c.wait.Wait()
		return nil, fmt.Errorf("start the controllers of Kubernetes: %w", err)
	}
	return c, nil
}

func (c *controllers) start(ctx context.Context, config *rest.Config, tokens serviceaccount.TokenGenerator, rootCA []byte, log logr.Logger) error {
	config = rest.CopyConfig(config)
	config.UserAgent = "terrace-controlplane"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagedFields))
	// The token controller cares for one type of Secret; a cache of all would
	// hold every Terraform state in memory.
	tokenSecrets := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		}))

	aggregation := clusterroleaggregation.NewClusterRoleAggregation(shared.Rbac().V1().ClusterRoles(), client.RbacV1())
	c.run(func() { aggregation.Run(ctx, 1) })

	namespaces := namespace.NewNamespaceController(ctx, client, objects, client.Discovery().ServerPreferredNamespacedResources,
		shared.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
	c.run(func() { namespaces.Run(ctx, 4) })

	accounts, err := serviceaccountcontroller.NewServiceAccountsController(log, shared.Core().V1().ServiceAccounts(),
		shared.Core().V1().Namespaces(), client, serviceaccountcontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	c.run(func() { accounts.Run(ctx, 1) })

	secrets, err := serviceaccountcontroller.NewTokensController(log, shared.Core().V1().ServiceAccounts(),
		tokenSecrets.Core().V1().Secrets(), client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: tokens, RootCA: rootCA})
	if err != nil {
		return err
	}
	c.run(func() { secrets.Run(ctx, 1) })

	started := make(chan struct{})
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	collector, err := garbagecollector.NewGarbageCollector(ctx, client, objects, mapper, garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(shared, metadatainformer.NewSharedInformerFactory(objects, 0)), started)
	if err != nil {
		return err
	}
	c.run(func() { collector.Run(ctx, 2, discoveryPeriod) })
	c.run(func() { collector.Sync(ctx, client.Discovery(), discoveryPeriod) })

	shared.Start(ctx.Done())
	tokenSecrets.Start(ctx.Done())
	close(started)
	return nil
}

func (c *controllers) run(f func()) { c.wait.Go(f) }

// stop ends the controllers and waits for them.
func (c *controllers) stop(ctx context.Context) error {
	c.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.wait.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the controllers of Kubernetes: %w", ctx.Err())
	}
}

// withoutManagedFields keeps out of the caches what no controller here reads.
func withoutManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}
