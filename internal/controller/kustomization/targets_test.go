// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"errors"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/kube"
	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/testenv"
)

// TestShare keeps a remote cluster connected for as long as a unit applies to it,
// however seldom it does.
func TestShare(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	c := &Controller{opts: Options{Clock: clock}}
	tg := &targets{c: c, remote: map[string]*remoteCluster{}}
	made := 0
	share := func(unit, key string) *kube.Cluster {
		t.Helper()
		cluster, err := tg.share(t.Context(), unitName(unit), key, func() (*rest.Config, error) {
			made++
			return &rest.Config{Host: "http://127.0.0.1:1"}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		return cluster
	}
	x := share("a", "x")
	if share("b", "x") != x || made != 1 {
		t.Error("two units of one kubeconfig have two connections")
	}
	clock.Step(2 * idleCluster)
	y := share("c", "y")
	if tg.remote["x"] == nil {
		t.Error("a cluster with units was closed because they are quiet")
	}
	share("a", "y")
	share("b", "y")
	clock.Step(idleCluster - time.Minute)
	if share("c", "y") != y || tg.remote["x"] == nil {
		t.Error("a cluster was closed although it was left a moment ago")
	}
	clock.Step(2 * time.Minute)
	share("c", "y")
	if tg.remote["x"] != nil {
		t.Error("a cluster that nobody uses stays connected")
	}
	for _, unit := range []string{"a", "b", "c"} {
		tg.mu.Lock()
		tg.useLocked(unitName(unit), "")
		tg.mu.Unlock()
	}
	if r := tg.remote["y"]; len(r.units) != 0 || !r.idle.Equal(clock.Now()) {
		t.Errorf("units %v, idle since %v", r.units, r.idle)
	}
	if _, err := tg.share(t.Context(), unitName("a"), "z", func() (*rest.Config, error) { return nil, errors.New("no kubeconfig") }); err == nil || tg.remote["z"] != nil {
		t.Errorf("a kubeconfig that cannot be read: %v", err)
	}
}

// TestShareWhileConnecting lets nobody wait for a cluster but those who apply to it: a
// cloud may take its time to let Terrace in.
func TestShareWhileConnecting(t *testing.T) {
	c := &Controller{opts: Options{Clock: clocktesting.NewFakeClock(noon)}}
	local, err := kube.NewCluster(&rest.Config{Host: "http://127.0.0.1:3"}, owner, func(types.NamespacedName) {})
	if err != nil {
		t.Fatal(err)
	}
	tg := &targets{c: c, local: local, remote: map[string]*remoteCluster{}}
	t.Cleanup(tg.close)
	asked, let := make(chan struct{}), make(chan error)
	slow := func() (*rest.Config, error) {
		asked <- struct{}{}
		return &rest.Config{Host: "http://127.0.0.1:1"}, <-let
	}
	type answer struct {
		cluster *kube.Cluster
		err     error
	}
	share := func(unit string) chan answer {
		out := make(chan answer, 1)
		go func() {
			cluster, err := tg.share(t.Context(), unitName(unit), "slow", slow)
			out <- answer{cluster, err}
		}()
		return out
	}
	first := share("a")
	<-asked // and not let in yet
	if _, err := tg.share(t.Context(), unitName("b"), "other", func() (*rest.Config, error) { return &rest.Config{Host: "http://127.0.0.1:2"}, nil }); err != nil {
		t.Fatal(err)
	}
	tg.forget(unitName("b"))
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tg.share(late, unitName("c"), "slow", slow); !errors.Is(err, context.Canceled) {
		t.Errorf("who may not wait any longer: %v", err)
	}
	let <- errors.New("not you")
	if a := <-first; a.err == nil || tg.remote["slow"] != nil {
		t.Errorf("refused: %v, remembered %v", a.err, tg.remote["slow"])
	}
	// The next try begins anew, and who comes meanwhile has the same cluster.
	first = share("a")
	<-asked
	second := share("b")
	let <- nil
	a, b := <-first, <-second
	if a.err != nil || b.err != nil || a.cluster == nil || a.cluster != b.cluster {
		t.Errorf("%v and %v, the same: %v", a.err, b.err, a.cluster == b.cluster)
	}
	if r := tg.remote["slow"]; !r.units[unitName("a")] || !r.units[unitName("b")] {
		t.Errorf("used by %v", r.units)
	}
}

// TestConnectToWhatIsNamed never has a cluster known by a kubeconfig that names another:
// a unit whose Secret is changed, and then changed back, would go to the wrong one.
func TestConnectToWhatIsNamed(t *testing.T) {
	kubeconfig := func(host string) map[string][]byte {
		return map[string][]byte{"value": []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: \"" + host + "\"}}]\n")}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "far", UID: "1"}, Data: kubeconfig("http://127.0.0.1:1")}
	api := fake.NewClientBuilder().WithObjects(secret).Build()
	watch := &testenv.LateWatch{Client: api}
	c := &Controller{opts: Options{Clock: clocktesting.NewFakeClock(noon), Client: api}, refs: reference.NewReader(watch, api, []byte("key"))}
	local, err := kube.NewCluster(&rest.Config{Host: "http://127.0.0.1:3"}, owner, func(types.NamespacedName) {})
	if err != nil {
		t.Fatal(err)
	}
	tg := &targets{c: c, local: local, remote: map[string]*remoteCluster{}}
	t.Cleanup(tg.close)
	ks := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "u"}, Spec: kustomizev1.KustomizationSpec{
		KubeConfig: &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "far"}},
	}}
	digest := func() map[string]string {
		t.Helper()
		ref := reference.Reference{Kind: reference.Secret, Namespace: "ns", Name: "far"}
		d, err := c.refs.Digest(t.Context(), ref, reference.Data{})
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{ref.String(): d}
	}
	first, err := clusterName(ks, digest())
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	watch.Seen = &metav1.PartialObjectMetadata{ObjectMeta: *secret.ObjectMeta.DeepCopy()}
	secret.Data = kubeconfig("http://127.0.0.1:2")
	if err := api.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, name, err := tg.connect(t.Context(), ks); name != first || !errors.Is(err, reference.ErrChanged) || len(tg.remote) != 0 {
		t.Errorf("connected to %q by the name before the change: %v, known %v", name, err, tg.remote)
	}
	_, name, err := tg.connect(t.Context(), ks)
	second, _ := clusterName(ks, digest())
	if err != nil || name == first || name != second || tg.remote[second] == nil {
		t.Errorf("another look connected to %q: %v, known %v", name, err, tg.remote)
	}
}

func TestKubeConfigIn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, key, want string
		content           map[string]string
	}{
		"value":      {"the name that is looked for first", "", "v", map[string]string{"value": "v", "value.yaml": "y"}},
		"value.yaml": {"and the other one", "", "y", map[string]string{"value.yaml": "y"}},
		"named":      {"a key that the spec names", "k", "n", map[string]string{"value": "v", "k": "n"}},
		"missing":    {"no other is taken instead", "k", "", map[string]string{"value": "v"}},
		"none":       {"there is none", "", "", map[string]string{"other": "secret-text"}},
	} {
		t.Run(name, func(t *testing.T) {
			content := map[string][]byte{}
			for k, v := range tc.content {
				content[k] = []byte(v)
			}
			got, err := kubeConfigIn(unitName("s"), &meta.SecretKeyReference{Name: "s", Key: tc.key}, content)
			if string(got) != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("%s: %q %v", tc.reason, got, err)
			}
		})
	}
}

// TestInhabited keeps a namespace in which others live, also while nothing of theirs is
// watched.
func TestInhabited(t *testing.T) {
	namespace := kube.Key{Kind: schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, Name: "shared"}
	guest := key("ConfigMap", "g")
	guest.Namespace = "shared"
	unit := func(namespace, name string, inventory ...kube.Key) *kustomizev1.Kustomization {
		ks := &kustomizev1.Kustomization{}
		ks.Namespace, ks.Name = namespace, name
		ks.Status.Inventory = inventoryOf(inventory)
		return ks
	}
	remote := unit("ns", "remote", guest)
	remote.Spec.KubeConfig = &meta.KubeConfigReference{}
	leaving := unit("ns", "leaving", guest)
	leaving.Finalizers = []string{kustomizev1.KustomizationFinalizer}
	now := metav1.NewTime(noon)
	leaving.DeletionTimestamp = &now
	stack := &infra.Terraform{}
	stack.Namespace, stack.Name = "shared", "t"
	for name, tc := range map[string]struct {
		reason string
		others []runtime.Object
		object kube.Key
		stale  []kube.Key
		want   string
	}{
		"empty":      {"nobody lives there", nil, namespace, nil, ""},
		"no space":   {"another kind is no namespace", []runtime.Object{unit("ns", "b", guest)}, guest, nil, ""},
		"own":        {"Terrace does", nil, kube.Key{Kind: namespace.Kind, Name: "terrace"}, nil, "Terrace runs in it"},
		"objects":    {"another unit has an object in it", []runtime.Object{unit("ns", "b", guest)}, namespace, nil, "it still holds ConfigMap/shared/g of another unit"},
		"self":       {"what is its own goes along", []runtime.Object{unit("ns", "a", guest)}, namespace, nil, ""},
		"elsewhere":  {"another unit has objects elsewhere", []runtime.Object{unit("ns", "b", key("ConfigMap", "c"))}, namespace, nil, ""},
		"remote":     {"the namespace of that name in another cluster", []runtime.Object{remote}, namespace, nil, ""},
		"leaving":    {"it goes as well", []runtime.Object{leaving}, namespace, nil, ""},
		"unit":       {"a unit lives in it", []runtime.Object{unit("shared", "u")}, namespace, nil, "it still holds Kustomization/shared/u"},
		"going unit": {"the unit goes with it", []runtime.Object{unit("shared", "u")}, namespace, []kube.Key{{Kind: kustomizev1.GroupVersion.WithKind("Kustomization"), Namespace: "shared", Name: "u"}}, ""},
		"stack":      {"a Terraform unit lives in it", []runtime.Object{stack}, namespace, nil, "it still holds Terraform/shared/t"},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(kustomizev1.AddToScheme(scheme), infra.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			local, err := kube.NewCluster(&rest.Config{Host: "http://127.0.0.1:1"}, owner, func(types.NamespacedName) {})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(local.Close)
			c := &Controller{opts: Options{Client: fake.NewClientBuilder().WithScheme(scheme).WithRuntimeObjects(tc.others...).Build(), Namespace: "terrace"}}
			c.targets = &targets{c: c, local: local}
			if got := c.inhabited(t.Context(), &cycle{name: unitName("a"), cluster: local}, tc.object, tc.stale); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
