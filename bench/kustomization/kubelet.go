// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/bench/rig"
)

// kubelet stands for kubelets and the deployment controller: a Deployment whose spec
// it sees for the first time has rolled out, one write later.
type kubelet struct {
	client      client.Client
	deployments *rig.Followed[*appsv1.Deployment]
	queue       chan *appsv1.Deployment

	mu  sync.Mutex
	err error
}

// kubeletWorkers is how many statuses are written at a time.
const kubeletWorkers = 4

// startKubelet works on the Deployments of the namespace until ctx ends.
func startKubelet(ctx context.Context, c client.WithWatch, apps int) *kubelet {
	// Long enough that the watch need not wait for the writes.
	k := &kubelet{client: c, queue: make(chan *appsv1.Deployment, 4*apps)}
	k.deployments = rig.Follow(ctx, c, &appsv1.Deployment{}, &appsv1.DeploymentList{}, namespace, func(d *appsv1.Deployment) {
		if d.Status.ObservedGeneration != d.Generation {
			select {
			case k.queue <- d:
			case <-ctx.Done():
			}
		}
	})
	for range kubeletWorkers {
		go k.work(ctx)
	}
	return k
}

func (k *kubelet) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-k.queue:
			if err := k.rollOut(ctx, d); err != nil {
				k.mu.Lock()
				k.err = errors.Join(k.err, err)
				k.mu.Unlock()
			}
		}
	}
}

// rollOut writes what the deployment controller would have written in the end.
func (k *kubelet) rollOut(ctx context.Context, d *appsv1.Deployment) error {
	replicas := *d.Spec.Replicas
	now := metav1.Now()
	condition := func(kind appsv1.DeploymentConditionType, reason, message string) appsv1.DeploymentCondition {
		return appsv1.DeploymentCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now}
	}
	patch, err := json.Marshal(map[string]any{"status": appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas,
		Conditions: []appsv1.DeploymentCondition{
			condition(appsv1.DeploymentAvailable, "MinimumReplicasAvailable", "Deployment has minimum availability."),
			condition(appsv1.DeploymentProgressing, "NewReplicaSetAvailable", "ReplicaSet has successfully progressed."),
		},
	}})
	if err != nil {
		return err
	}
	target := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}
	err = k.client.Status().Patch(ctx, target, client.RawPatch("application/merge-patch+json", patch))
	if apierrors.IsNotFound(err) || ctx.Err() != nil {
		return nil // deleted meanwhile, or the benchmark is over
	}
	if err != nil {
		return fmt.Errorf("write the status of Deployment %s: %w", d.Name, err)
	}
	return nil
}

// failed returns what could not be written, nil if everything could.
func (k *kubelet) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
