// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	controller "github.com/terrace-dev/terrace/internal/controller/policy"
	"github.com/terrace-dev/terrace/internal/policy"
)

const own = "terrace-system"

// trees has a directory for each digest, and counts how often one was asked for.
type trees struct {
	dirs  map[string]string
	asked int
	err   error
}

func (s *trees) Tree(_ context.Context, a *meta.Artifact) (string, func(), error) {
	s.asked++
	return s.dirs[a.Digest], func() {}, s.err
}

func newTrees(t *testing.T, contents map[string]map[string]string) *trees {
	t.Helper()
	s := &trees{dirs: map[string]string{}}
	for digest, files := range contents {
		dir := t.TempDir()
		for name, text := range files {
			file := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.dirs[digest] = dir
	}
	return s
}

func newClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), sourcev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Policy{}, &sourcev1.GitRepository{}).Build()
}

func object(namespace, name string, spec v1alpha1.PolicySpec) *v1alpha1.Policy {
	return &v1alpha1.Policy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Generation: 1},
		Spec:       spec,
	}
}

func repository(digest string) *sourcev1.GitRepository {
	g := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "rules"}}
	if digest != "" {
		g.Status.Artifact = &meta.Artifact{Revision: "main@sha1:" + digest, Digest: digest, URL: "http://x", Path: "x"}
	}
	return g
}

const denyAll = "package main\ndeny contains \"no\"\n"

func reconcile(t *testing.T, c client.Client, ctl *controller.Controller, namespace, name string) (*v1alpha1.Policy, error) {
	t.Helper()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	res, err := ctl.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	if res.RequeueAfter != 0 {
		t.Errorf("looked at again after %s: a watch tells what there is to know", res.RequeueAfter)
	}
	var obj v1alpha1.Policy
	if err := c.Get(t.Context(), key, &obj); err != nil {
		t.Fatal(err)
	}
	return &obj, err
}

func TestReconcile(t *testing.T) {
	source := func(path string) v1alpha1.PolicySpec {
		return v1alpha1.PolicySpec{Source: &v1alpha1.PolicySource{Kind: "GitRepository", Name: "rules", Path: path}}
	}
	content := map[string]map[string]string{"sha256:1": {
		"broken/a.rego": "package main\n!", "none/README.md": "nothing here", "data/list.yaml": "[1]\n",
		"ok/a.rego": denyAll, "ok/a_test.rego": "package main\n!", "ok/config.yaml": "x: 1\n",
		"old/a.rego": "package main\ndeny[x] { x := input.a }\n",
		"lib/a.rego": "package s3\ndeny contains \"no\"\n",
	}}
	cases := map[string]struct {
		reason   string
		spec     v1alpha1.PolicySpec
		objects  []client.Object
		tree     error
		status   metav1.ConditionStatus
		why      string
		message  string // begins so
		revision string
		retried  bool
	}{
		"Rego":          {"Inline rules.", v1alpha1.PolicySpec{Rego: denyAll}, nil, nil, metav1.ConditionTrue, "Compiled", "The policy is in use", "", false},
		"CEL":           {"Conditions.", v1alpha1.PolicySpec{CEL: []v1alpha1.CELRule{{Expression: "plan.counts.destroy == 0"}}}, nil, nil, metav1.ConditionTrue, "Compiled", "The policy is in use", "", false},
		"Mistake":       {"The place of a mistake is told.", v1alpha1.PolicySpec{Rego: "package main\n!"}, nil, nil, metav1.ConditionFalse, "Invalid", "spec.rego:2:1: ", "", false},
		"MistakeCEL":    {"In conditions too.", v1alpha1.PolicySpec{CEL: []v1alpha1.CELRule{{Expression: "plan.x"}}}, nil, nil, metav1.ConditionFalse, "Invalid", "cel[0]:1:5: undefined field 'x'", "", false},
		"Empty":         {"An object that says nothing is no policy that is kept.", v1alpha1.PolicySpec{}, nil, nil, metav1.ConditionFalse, "Invalid", "compile: there are no rules", "", false},
		"Selector":      {"A selector that cannot be understood.", v1alpha1.PolicySpec{Rego: denyAll, Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}, nil, nil, metav1.ConditionFalse, "Invalid", "spec.selector: ", "", false},
		"Source":        {"Rules of a source; the tests beside them are left out.", source("./ok/"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionTrue, "Compiled", "The policy is in use", "main@sha1:sha256:1", false},
		"SourceData":    {"A data file that is none; without a path it is the whole source.", source(""), []client.Object{repository("sha256:1")}, nil, metav1.ConditionFalse, "Invalid", "read the source: data/list.yaml: the document is not an object", "main@sha1:sha256:1", false},
		"SourceOld":     {"The syntax of v0 is told of.", source("/old"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionTrue, "Compiled", "The policy is in use; a.rego is in the syntax of Rego v0", "main@sha1:sha256:1", false},
		"SourceBroken":  {"The file of a mistake is told.", source("broken"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionFalse, "Invalid", "a.rego:2:1: ", "main@sha1:sha256:1", false},
		"SourceNothing": {"A path without rules.", source("none"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionFalse, "Invalid", "compile: there are no rules", "main@sha1:sha256:1", false},
		"SourceNoPath":  {"A path that is not there, without the place on this machine.", source("absent"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionFalse, "Invalid", "read the source: spec.source.path \"absent\": no such file or directory", "main@sha1:sha256:1", false},
		"SourceOut":     {"A path that leads out.", source("../../etc"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionFalse, "Invalid", "read the source: spec.source.path \"../../etc\": ", "main@sha1:sha256:1", false},
		"SourcePackage": {"Another package than main has to be named.", source("lib"), []client.Object{repository("sha256:1")}, nil, metav1.ConditionFalse, "Invalid", "compile: no rule deny, violation or warn in package main; the files are of package s3", "main@sha1:sha256:1", false},
		"SourceAbsent":  {"A source that is not there is waited for.", source(""), nil, nil, metav1.ConditionFalse, "SourceNotReady", "waiting for the source: GitRepository prod/rules does not exist", "", false},
		"SourceNew":     {"And so is one without an artifact.", source(""), []client.Object{repository("")}, nil, metav1.ConditionFalse, "SourceNotReady", "waiting for the source: GitRepository prod/rules has no artifact yet", "", false},
		"SourceFails":   {"An artifact that cannot be had is tried again.", source(""), []client.Object{repository("sha256:1")}, errors.New("no route"), metav1.ConditionFalse, "SourceNotReady", "fetch artifact main@sha1:sha256:1: no route", "", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, append(tc.objects, object("prod", "p", tc.spec))...)
			s := newTrees(t, content)
			s.err = tc.tree
			obj, err := reconcile(t, c, controller.New(controller.Options{Client: c, Artifacts: s, Namespace: own}), "prod", "p")
			if (err != nil) != tc.retried {
				t.Fatalf("%s: error %v, want one: %v", tc.reason, err, tc.retried)
			}
			ready := apimeta.FindStatusCondition(obj.Status.Conditions, "Ready")
			if ready == nil {
				t.Fatalf("%s: no Ready condition", tc.reason)
			}
			if ready.Status != tc.status || ready.Reason != tc.why || !strings.HasPrefix(ready.Message, tc.message) {
				t.Errorf("%s: Ready is %s, %s, %q", tc.reason, ready.Status, ready.Reason, ready.Message)
			}
			if obj.Status.Revision != tc.revision || obj.Status.ObservedGeneration != 1 {
				t.Errorf("%s: revision %q, generation %d", tc.reason, obj.Status.Revision, obj.Status.ObservedGeneration)
			}
		})
	}
}

// TestReconcileTwice: what has not changed is neither compiled nor written again.
func TestReconcileTwice(t *testing.T) {
	spec := v1alpha1.PolicySpec{Source: &v1alpha1.PolicySource{Kind: "GitRepository", Name: "rules"}}
	writes := 0
	c := interceptor.NewClient(newClient(t, repository("sha256:1"), object("prod", "p", spec)), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			writes++
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	s := newTrees(t, map[string]map[string]string{"sha256:1": {"a.rego": denyAll}, "sha256:2": {"a.rego": "package main\n!"}})
	ctl := controller.New(controller.Options{Client: c, Artifacts: s, Namespace: own})
	for range 3 {
		if _, err := reconcile(t, c, ctl, "prod", "p"); err != nil {
			t.Fatal(err)
		}
		if _, err := ctl.For(t.Context(), policy.Unit{Kind: "Terraform", Namespace: "prod"}); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 || s.asked != 1 {
		t.Errorf("%d writes and %d reads of the source, want one each", writes, s.asked)
	}

	// Another artifact is another policy, at once.
	if err := c.Status().Update(t.Context(), updated(t, c, "sha256:2")); err != nil {
		t.Fatal(err)
	}
	ps, err := ctl.For(t.Context(), policy.Unit{Kind: "Terraform", Namespace: "prod"})
	if err != nil || len(ps) != 1 || ps[0].Err() == nil {
		t.Errorf("the artifact with a mistake gives %v, %v", ps, err)
	}
	if obj, _ := reconcile(t, c, ctl, "prod", "p"); apimeta.IsStatusConditionTrue(obj.Status.Conditions, "Ready") || writes != 2 {
		t.Errorf("after %d writes the policy is ready with a mistake", writes)
	}
}

func updated(t *testing.T, c client.Client, digest string) *sourcev1.GitRepository {
	t.Helper()
	var g sourcev1.GitRepository
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "prod", Name: "rules"}, &g); err != nil {
		t.Fatal(err)
	}
	g.Status = repository(digest).Status
	return &g
}

func TestFor(t *testing.T) {
	selector := func(k, v string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{k: v}}
	}
	objects := []client.Object{
		object("prod", "all", v1alpha1.PolicySpec{Rego: denyAll}),
		object("prod", "terraform", v1alpha1.PolicySpec{Rego: denyAll, Kinds: []string{"Terraform"}, Enforcement: "approve"}),
		object("prod", "network", v1alpha1.PolicySpec{Rego: denyAll, Selector: selector("layer", "network")}),
		object("prod", "mistake", v1alpha1.PolicySpec{Rego: "package main\n!", Kinds: []string{"Kustomization"}}),
		object("prod", "sourceless", v1alpha1.PolicySpec{Source: &v1alpha1.PolicySource{Kind: "GitRepository", Name: "gone"}, Selector: selector("layer", "app")}),
		object("prod", "unreadable", v1alpha1.PolicySpec{Rego: denyAll, Kinds: []string{"Terraform"}, Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}),
		object("dev", "dev", v1alpha1.PolicySpec{Rego: denyAll}),
		object(own, "everywhere", v1alpha1.PolicySpec{CEL: []v1alpha1.CELRule{{Expression: "true"}}}),
	}
	cases := map[string]struct {
		reason string
		unit   policy.Unit
		want   []string // with ! in front of a broken one
	}{
		"Terraform":     {"Those of its kind, and of Terrace's namespace. What cannot be selected by is for all, and broken.", policy.Unit{Kind: "Terraform", Namespace: "prod"}, []string{"prod/all deny", "prod/terraform approve", "!prod/unreadable deny", "terrace-system/everywhere deny"}},
		"Labels":        {"Those that its labels ask for.", policy.Unit{Kind: "Kustomization", Namespace: "prod", Labels: map[string]string{"layer": "network"}}, []string{"prod/all deny", "!prod/mistake deny", "prod/network deny", "terrace-system/everywhere deny"}},
		"Sourceless":    {"One without its rules is there and broken.", policy.Unit{Kind: "Kustomization", Namespace: "prod", Labels: map[string]string{"layer": "app"}}, []string{"prod/all deny", "!prod/mistake deny", "!prod/sourceless deny", "terrace-system/everywhere deny"}},
		"OtherSpace":    {"Policies of other namespaces are no concern.", policy.Unit{Kind: "Terraform", Namespace: "dev"}, []string{"dev/dev deny", "terrace-system/everywhere deny"}},
		"NoOwnPolicies": {"A namespace without policies has those of Terrace's.", policy.Unit{Kind: "Terraform", Namespace: "test"}, []string{"terrace-system/everywhere deny"}},
		"OwnSpace":      {"In Terrace's namespace they count once.", policy.Unit{Kind: "Terraform", Namespace: own}, []string{"terrace-system/everywhere deny"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctl := controller.New(controller.Options{Client: newClient(t, objects...), Artifacts: newTrees(t, nil), Namespace: own})
			ps, err := ctl.For(t.Context(), tc.unit)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range ps {
				mark := ""
				if p.Err() != nil {
					mark = "!"
				}
				got = append(got, fmt.Sprintf("%s%s %s", mark, p.Name(), p.Enforcement()))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}

	t.Run("ListFails", func(t *testing.T) {
		c := interceptor.NewClient(newClient(t, objects...), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("no cache")
			},
		})
		ctl := controller.New(controller.Options{Client: c, Artifacts: newTrees(t, nil), Namespace: own})
		if ps, err := ctl.For(t.Context(), policy.Unit{Kind: "Terraform", Namespace: "prod"}); err == nil {
			t.Errorf("policies that cannot be listed are %d", len(ps))
		}
	})
}

// TestDigest: a set is another one when a policy of it changes, breaks or goes.
func TestDigest(t *testing.T) {
	c := newClient(t, object("prod", "a", v1alpha1.PolicySpec{Rego: denyAll}), object("prod", "b", v1alpha1.PolicySpec{Rego: denyAll}))
	ctl := controller.New(controller.Options{Client: c, Artifacts: newTrees(t, nil)})
	seen := map[string]string{}
	look := func(step string) {
		t.Helper()
		for range 2 { // the second look has to give the same
			ps, err := ctl.For(t.Context(), policy.Unit{Kind: "Terraform", Namespace: "prod"})
			if err != nil {
				t.Fatal(err)
			}
			d := policy.Digest(ps)
			if before, ok := seen[d]; ok && before != step {
				t.Errorf("the policies are the same after %q as after %q", step, before)
			}
			seen[d] = step
		}
	}
	change := func(step string, do func(*v1alpha1.Policy)) {
		t.Helper()
		var obj v1alpha1.Policy
		if err := c.Get(t.Context(), types.NamespacedName{Namespace: "prod", Name: "a"}, &obj); err != nil {
			t.Fatal(err)
		}
		obj.Generation++
		do(&obj)
		if err := c.Update(t.Context(), &obj); err != nil {
			t.Fatal(err)
		}
		look(step)
	}
	look("start")
	change("other rules", func(o *v1alpha1.Policy) { o.Spec.Rego += "# more\n" })
	change("broken", func(o *v1alpha1.Policy) { o.Spec.Rego = "!" })
	change("approve", func(o *v1alpha1.Policy) { o.Spec.Rego, o.Spec.Enforcement = denyAll, "approve" })
	if err := c.Delete(t.Context(), object("prod", "a", v1alpha1.PolicySpec{})); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "prod", Name: "a"}}); err != nil {
		t.Errorf("a policy that is gone: %v", err)
	}
	look("deleted")
	if len(seen) != 5 {
		t.Errorf("%d sets, want 5: %v", len(seen), seen)
	}
}
