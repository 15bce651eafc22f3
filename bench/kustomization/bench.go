// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/bench/rig"
)

// bench is a benchmark under way.
type bench struct {
	options
	*rig.Rig
	repository rig.Repository
	names      []string // of the Kustomizations
	units      *rig.Followed[*kustomizev1.Kustomization]
	kubelet    *kubelet
	end        context.CancelFunc // of the watches
	results    []result
	pprof      string // where the profiler of the controllers listens
}

// result is what one phase cost, for all units together. For the bare client, the
// CPU of Terrace is that of the client.
type result struct {
	rig.Cost
	name string
	// units is by which "per Kustomization" divides.
	units int
	// bare tells that the client was the benchmark itself.
	bare bool
	// api and controller are what the processes held at the end of the phase.
	api, controller rig.Memory
}

func (b *bench) start(ctx context.Context) error {
	var err error
	b.Rig, err = rig.Start(ctx, rig.Options{
		Terrace: b.terrace, AddToScheme: kustomizev1.AddToScheme, Aside: ofSource,
		Served: []string{"/apis/kustomize.toolkit.fluxcd.io/v1/kustomizations"},
	})
	if err != nil {
		return err
	}
	b.repository = rig.Repository{Dir: filepath.Join(b.Dir, "repo"), Source: client.ObjectKey{Namespace: namespace, Name: source}}
	for i := range b.apps {
		b.names = append(b.names, appName(i))
	}
	if err := writeApps(ctx, b.repository, b.apps); err != nil {
		return err
	}
	for _, name := range []string{namespace, floorNamespace} {
		if err := tenant(ctx, b, name); err != nil {
			return err
		}
	}
	return b.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: shared},
		Data:       map[string]string{"MCPU": firstCPU},
	})
}

func (b *bench) stop(keep bool) error {
	if b.end != nil {
		b.end()
	}
	return b.Stop(keep)
}

// begin starts the controllers and the watches. It is not measured.
func (b *bench) begin(ctx context.Context) error {
	if err := b.startController(); err != nil {
		return err
	}
	if err := b.Settle(ctx); err != nil {
		return err
	}
	ctx, b.end = context.WithCancel(ctx)
	b.units = rig.Follow(ctx, b, &kustomizev1.Kustomization{}, &kustomizev1.KustomizationList{}, namespace, nil)
	b.kubelet = startKubelet(ctx, b, b.apps)
	return nil
}

func (b *bench) startController() error {
	args := []string{"--tofu", b.tofu, "--concurrent", strconv.Itoa(b.concurrent)}
	if b.profiles != "" {
		address, err := b.profiler()
		if err != nil {
			return err
		}
		args = append(args, "--pprof="+address)
	}
	return b.StartController(args...)
}

// measure measures one phase and what it leaves in memory.
func (b *bench) measure(ctx context.Context, name string, units int, do func(context.Context) error) error {
	r := result{name: name, units: units}
	var err error
	if r.Cost, err = b.Measure(ctx, name, b.Settle, do); err != nil {
		return errors.Join(err, b.kubelet.failed())
	}
	if err := b.kubelet.failed(); err != nil {
		return err
	}
	if r.api, err = b.API.Resident(); err != nil {
		return err
	}
	if r.controller, err = b.Controller.Resident(); err != nil {
		return err
	}
	b.results = append(b.results, r)
	return b.profile(ctx, name)
}

// forEach does something for every unit, as many at a time as Terrace works on.
func (b *bench) forEach(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(b.concurrent)
	for i := range b.apps {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// until waits for every unit to be as done says.
func (b *bench) until(ctx context.Context, what string, done func(*kustomizev1.Kustomization) bool) error {
	return b.units.Until(ctx, what, b.names, func(ks *kustomizev1.Kustomization) bool { return ks != nil && done(ks) }, said)
}

// install is from the first object to the last unit that is ready.
func (b *bench) install(ctx context.Context) error {
	err := b.measure(ctx, "install", b.apps, func(ctx context.Context) error {
		if err := b.repository.CreateSource(ctx, b); err != nil {
			return err
		}
		if err := b.forEach(ctx, func(ctx context.Context, i int) error { return b.Create(ctx, kustomization(i)) }); err != nil {
			return fmt.Errorf("create Kustomizations: %w", err)
		}
		return b.until(ctx, "all units to be ready", ready)
	})
	if err != nil {
		return err
	}
	return b.check(firstCPU)
}

// check looks at what is there: a benchmark of work that was not done says nothing.
func (b *bench) check(mcpu string) error {
	for name, ks := range b.units.Seen() {
		if ks.Status.Inventory == nil || len(ks.Status.Inventory.Entries) != 4 {
			return fmt.Errorf("every Kustomization is ready, and %s has not four objects in its inventory: %v", name, ks.Status.Inventory)
		}
	}
	for name, d := range b.kubelet.deployments.Seen() {
		if got := d.Spec.Template.Spec.Containers[0].Resources.Requests.Cpu().String(); got != mcpu {
			return fmt.Errorf("every Kustomization is ready, and Deployment %s asks for a CPU of %s and not %s", name, got, mcpu)
		}
	}
	if n := len(b.kubelet.deployments.Seen()); n != b.apps {
		return fmt.Errorf("every Kustomization is ready, and there are %d Deployments and not %d", n, b.apps)
	}
	return nil
}

// upgrade changes the one value that every unit substitutes.
func (b *bench) upgrade(ctx context.Context) error {
	built := map[string]string{}
	for name, ks := range b.units.Seen() {
		built[name] = digest(ks)
	}
	err := b.measure(ctx, "upgrade", b.apps, func(ctx context.Context) error {
		values := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: shared}}
		if err := b.Patch(ctx, values, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"data":{"MCPU":%q}}`, secondCPU))); err != nil {
			return err
		}
		return b.until(ctx, "all units to be ready with the new value", func(ks *kustomizev1.Kustomization) bool {
			return ready(ks) && digest(ks) != built[ks.Name]
		})
	})
	if err != nil {
		return err
	}
	return b.check(secondCPU)
}

// idle looks at what is asked and used while nothing happens: nothing polls.
func (b *bench) idle(ctx context.Context) error {
	return b.measure(ctx, "idle, 10 s (in all)", 1, func(ctx context.Context) error { return rig.Pause(ctx, 10*time.Second) })
}

// noChange asks for a reconcile of every unit, which finds nothing to do.
func (b *bench) noChange(ctx context.Context) error {
	at := time.Now().Format(time.RFC3339Nano)
	return b.measure(ctx, "no change, requested", b.apps, func(ctx context.Context) error {
		err := b.forEach(ctx, func(ctx context.Context, i int) error {
			return b.Patch(ctx, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: b.names[i]}}, rig.RequestReconcile(at))
		})
		if err != nil {
			return fmt.Errorf("ask for reconciles: %w", err)
		}
		return b.until(ctx, "all units to have handled the request", func(ks *kustomizev1.Kustomization) bool {
			return ready(ks) && ks.Status.LastHandledReconcileAt == at
		})
	})
}

func (b *bench) unrelatedCommit(ctx context.Context) error {
	return b.measure(ctx, "commit that touches no unit", b.apps, func(ctx context.Context) error {
		return b.commit(ctx, "README.md", "# Bench, changed\n")
	})
}

// oneAppCommit is measured as a whole: one unit changes, and all take note.
func (b *bench) oneAppCommit(ctx context.Context) error {
	before := digest(b.units.Seen()[b.names[0]])
	err := b.measure(ctx, "commit that touches one unit (in all)", 1, func(ctx context.Context) error {
		return b.commit(ctx, file(b.names[0]), strings.Replace(podinfo, "app ${INDEX}", "changed ${INDEX}", 1))
	})
	if err == nil && digest(b.units.Seen()[b.names[0]]) == before {
		return errors.New("the unit that the commit touches is ready at it, and was not built anew")
	}
	return err
}

// commit changes a file, wakes the source, and waits until every unit is ready at
// the commit.
func (b *bench) commit(ctx context.Context, name, text string) error {
	hash, err := b.repository.Change(ctx, b, name, text)
	if err != nil {
		return err
	}
	return b.until(ctx, "all units to be ready at the commit", func(ks *kustomizev1.Kustomization) bool {
		return ready(ks) && strings.HasSuffix(ks.Status.LastAppliedRevision, hash)
	})
}

// restart stops the controllers and starts them again. It is over when they have
// come to rest, of which a second and a half is the wait that says so.
func (b *bench) restart(ctx context.Context) error {
	if err := b.StopController(); err != nil {
		return err
	}
	return b.measure(ctx, "restart of the controllers", b.apps, func(ctx context.Context) error {
		if err := b.startController(); err != nil {
			return err
		}
		return b.Settle(ctx)
	})
}

// delete is over when the units and their objects are gone.
func (b *bench) delete(ctx context.Context) error {
	err := b.measure(ctx, "delete", b.apps, func(ctx context.Context) error {
		err := b.forEach(ctx, func(ctx context.Context, i int) error {
			return b.Delete(ctx, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: b.names[i]}})
		})
		if err != nil {
			return fmt.Errorf("delete Kustomizations: %w", err)
		}
		return b.units.Until(ctx, "all units to be gone", b.names, func(ks *kustomizev1.Kustomization) bool { return ks == nil }, said)
	})
	if err != nil {
		return err
	}
	var services corev1.ServiceList
	if err := b.List(ctx, &services, client.InNamespace(namespace)); err != nil {
		return err
	}
	if left := len(services.Items) + len(b.kubelet.deployments.Seen()); left > 0 {
		return fmt.Errorf("every Kustomization is gone, and %d Services and Deployments are left", left)
	}
	return nil
}
