// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/install"

	"github.com/spf13/pflag"
)

func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	all, err := install.Objects(install.Options{Image: "terrace:v1", Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// strict converts an object into its type and fails on fields that the type
// does not have: the API server would only warn of them.
func strict(t *testing.T, u *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, into, true); err != nil {
		t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

func TestObjects(t *testing.T) {
	var order []string
	for _, u := range objects(t) {
		if !slices.Contains(order, u.GetKind()) {
			order = append(order, u.GetKind())
		}
		switch u.GetKind() {
		case "CustomResourceDefinition":
			if _, found := u.Object["status"]; found {
				t.Errorf("%s has a status, which is the API server's", u.GetName())
			}
		case "ClusterRole":
			strict(t, u, &rbacv1.ClusterRole{})
		case "ValidatingAdmissionPolicy":
			strict(t, u, &admissionv1.ValidatingAdmissionPolicy{})
		case "ValidatingAdmissionPolicyBinding":
			strict(t, u, &admissionv1.ValidatingAdmissionPolicyBinding{})
		case "ClusterRoleBinding":
			strict(t, u, &rbacv1.ClusterRoleBinding{})
		case "Service":
			strict(t, u, &corev1.Service{})
		case "PersistentVolumeClaim":
			strict(t, u, &corev1.PersistentVolumeClaim{})
		}
		if ns := u.GetNamespace(); ns != "" && ns != install.Namespace {
			t.Errorf("%s %s is in namespace %s", u.GetKind(), u.GetName(), ns)
		}
	}
	want := []string{"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding",
		"PersistentVolumeClaim", "Service", "Deployment"}
	if d := cmp.Diff(want, order); d != "" {
		t.Errorf("kinds in the order in which they can be applied: -want, +got:\n%s", d)
	}
}

// TestDeploymentArguments parses the container's arguments as the binary does:
// a flag that was renamed would else be found by the first user of a cluster.
func TestDeploymentArguments(t *testing.T) {
	for _, u := range objects(t) {
		if u.GetKind() != "Deployment" {
			continue
		}
		var d appsv1.Deployment
		strict(t, u, &d)
		container := d.Spec.Template.Spec.Containers[0]
		if container.Image != "terrace:v1" || container.Args[0] != "controller" {
			t.Errorf("container: image %q, verb %q", container.Image, container.Args[0])
		}
		c := config.Default(config.Controller)
		fs := pflag.NewFlagSet("controller", pflag.ContinueOnError)
		c.AddFlags(fs)
		if err := fs.Parse(container.Args[1:]); err != nil {
			t.Fatalf("arguments %s: %v", strings.Join(container.Args, " "), err)
		}
		if c.ShutdownGrace.Seconds() >= float64(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) {
			t.Errorf("the pod is killed after %d s, before --shutdown-grace %s has passed",
				*d.Spec.Template.Spec.TerminationGracePeriodSeconds, c.ShutdownGrace)
		}
	}
}

// TestBindings wants the two that the Deployment's account needs: its own role,
// and the one that lets it apply anything.
func TestBindings(t *testing.T) {
	got := map[string]string{}
	for _, u := range objects(t) {
		if u.GetKind() != "ClusterRoleBinding" {
			continue
		}
		var b rbacv1.ClusterRoleBinding
		strict(t, u, &b)
		got[b.Name] = b.RoleRef.Name + " to " + b.Subjects[0].Namespace + "/" + b.Subjects[0].Name
	}
	want := map[string]string{
		"terrace":            "terrace to terrace-system/terrace",
		"terrace-reconciler": "cluster-admin to terrace-system/terrace",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want, +got:\n%s", d)
	}
}

// TestNamespaceOfSettings holds the namespace that a setting falls back to
// against the one that is installed.
func TestNamespaceOfSettings(t *testing.T) {
	c := config.Default(config.Controller)
	fs := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse([]string{"--sops-age-secret=keys"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(fs, "", func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	if want := install.Namespace + "/keys"; c.SOPSAgeSecret != want {
		t.Errorf("--sops-age-secret=keys is %s, want %s", c.SOPSAgeSecret, want)
	}
}

func TestObjectsWithoutImage(t *testing.T) {
	if _, err := install.Objects(install.Options{}); err == nil {
		t.Error("no error")
	}
}

// TestVersionStaysText takes versions that YAML would read as numbers: the beginning of
// a commit's hash can be one.
func TestVersionStaysText(t *testing.T) {
	for _, version := range []string{"1179986", "12e4567", "1.10"} {
		all, err := install.Objects(install.Options{Image: "terrace:v1", Version: version})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range all {
			if o.GetKind() != "Deployment" {
				continue
			}
			found = true
			if got := o.GetLabels()["app.kubernetes.io/version"]; got != version {
				t.Errorf("the label of version %s is %q", version, got)
			}
		}
		if !found {
			t.Error("there is no Deployment")
		}
	}
}
