// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// patience is how long a test waits for an event before it gives up.
const patience = 90 * time.Second

// makeNamespace makes a namespace that is deleted when the test ends.
func makeNamespace(t *testing.T, c kubernetes.Interface) string {
	t.Helper()
	ns, err := c.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return ns.Name
}

// watcher is the Watch method of a typed client.
type watcher func(context.Context, metav1.ListOptions) (watch.Interface, error)

// await watches the object of that name until cond is true for an event.
func await(t *testing.T, w watcher, name string, what string, cond func(watch.Event) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		events, err := w(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
		if err != nil {
			t.Fatal(err)
		}
		for event := range events.ResultChan() {
			if cond(event) {
				events.Stop()
				return
			}
		}
	}
	t.Fatalf("waited %v for %s of %s", patience, what, name)
}

// bearer is a client of cp with only a token.
func bearer(cp *ControlPlane, token string) *rest.Config {
	config := rest.AnonymousClientConfig(cp.RESTConfig())
	config.BearerToken = token
	return config
}

// mint asks for a token of a service account, which the controller may be about to make.
func mint(t *testing.T, cp *ControlPlane, namespace, name string) string {
	t.Helper()
	c := client(t, cp.RESTConfig())
	await(t, c.CoreV1().ServiceAccounts(namespace).Watch, name, "existence", func(e watch.Event) bool { return e.Type == watch.Added })
	request, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func TestNamespaceDeletion(t *testing.T) {
	c := client(t, shared(t).RESTConfig())
	name := makeNamespace(t, c)
	for i := range 3 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cm-%d", i)}}
		if _, err := c.CoreV1().ConfigMaps(name).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		ns, err := c.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		events, err := c.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), ResourceVersion: ns.ResourceVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-events.ResultChan()
		events.Stop()
	}
}

func TestOwnerReferences(t *testing.T) {
	c := client(t, shared(t).RESTConfig())
	ns := makeNamespace(t, c)
	cms := c.CoreV1().ConfigMaps(ns)
	owner, err := cms.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned, err := cms.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "owned",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := cms.Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=owned", ResourceVersion: owned.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if err := cms.Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(patience)
	for {
		select {
		case e := <-events.ResultChan():
			if e.Type == watch.Deleted {
				return
			}
		case <-timeout:
			t.Fatal("the owned object is still there")
		}
	}
}

func TestRoles(t *testing.T) {
	cp := shared(t)
	c := client(t, cp.RESTConfig())
	ns := makeNamespace(t, c)

	// A role that joins "view" by its label, as CRDs bring along.
	extra := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "extra-", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"},
		},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"things"}, Verbs: []string{"get"}}},
	}
	made, err := c.RbacV1().ClusterRoles().Create(t.Context(), extra, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.RbacV1().ClusterRoles().Delete(context.Background(), made.Name, metav1.DeleteOptions{}) //nolint:errcheck // the server ends soon
	await(t, c.RbacV1().ClusterRoles().Watch, "view", "the aggregated rule", func(e watch.Event) bool {
		role, ok := e.Object.(*rbacv1.ClusterRole)
		if !ok {
			return false
		}
		var things, cms bool
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				things = things || resource == "things"
				cms = cms || resource == "configmaps"
			}
		}
		return things && cms
	})

	// An account that may edit in its namespace, as impersonation and as a token.
	if _, err := c.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "deployer"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "deployer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "deployer"}},
	}
	if _, err := c.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitAccess(t, cp, ns)
	impersonating := cp.RESTConfig()
	impersonating.Impersonate.UserName = fmt.Sprintf("system:serviceaccount:%s:deployer", ns)
	for who, config := range map[string]*rest.Config{"impersonated": impersonating, "by token": bearer(cp, mint(t, cp, ns, "deployer"))} {
		deployer := client(t, config)
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}}
		if _, err := deployer.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Errorf("%s in its namespace: %v", who, err)
		}
		if _, err := deployer.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s in another namespace: %v, want forbidden", who, err)
		}
	}
}

// awaitAccess waits until the authorizer, which reads a cache, knows the role
// binding. No event tells of that.
func awaitAccess(t *testing.T, cp *ControlPlane, ns string) {
	t.Helper()
	config := cp.RESTConfig()
	config.Impersonate.UserName = fmt.Sprintf("system:serviceaccount:%s:deployer", ns)
	c := client(t, config)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := c.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
	}
}

func TestTokenSecret(t *testing.T) {
	cp := shared(t)
	c := client(t, cp.RESTConfig())
	ns := makeNamespace(t, c)
	mint(t, cp, ns, "default") // the account is there
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if _, err := c.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var token string
	await(t, c.CoreV1().Secrets(ns).Watch, "token", "a token", func(e watch.Event) bool {
		s, ok := e.Object.(*corev1.Secret)
		if ok {
			token = string(s.Data[corev1.ServiceAccountTokenKey])
		}
		return token != ""
	})
	// The API server looks the Secret up in a cache of its own, which may lag.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bearer := client(t, bearer(cp, token)).Discovery()
	for {
		_, err := bearer.ServerVersion()
		if err == nil {
			return
		}
		if ctx.Err() != nil || !apierrors.IsUnauthorized(err) {
			t.Fatalf("use the token: %v", err)
		}
	}
}

func TestServerSideApply(t *testing.T) {
	c := client(t, shared(t).RESTConfig())
	cms := c.CoreV1().ConfigMaps(makeNamespace(t, c))
	apply := func(manager, key string, force bool) error {
		_, err := cms.Apply(t.Context(), applycorev1.ConfigMap("cm", "").WithData(map[string]string{"key": key}),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
		return err
	}
	if err := apply("a", "1", false); err != nil {
		t.Fatal(err)
	}
	if err := apply("b", "2", false); !apierrors.IsConflict(err) {
		t.Errorf("second manager: %v, want a conflict", err)
	}
	if err := apply("b", "2", true); err != nil {
		t.Errorf("by force: %v", err)
	}
}

func testCRD() *apiextensionsv1.CustomResourceDefinition {
	text := apiextensionsv1.JSONSchemaProps{Type: "string", Description: "Colour of the widget."}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.test.terrace.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "test.terrace.dev", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"colour": text}},
					},
				}},
			}},
		},
	}
}

func TestInstallCRDs(t *testing.T) {
	cp := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	crd := testCRD()
	if err := InstallCRDs(ctx, cp.RESTConfig(), []*apiextensionsv1.CustomResourceDefinition{crd}); err != nil {
		t.Fatal(err)
	}
	// It is served at once.
	objects, err := dynamic.NewForConfig(cp.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "test.terrace.dev/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "w"}, "spec": map[string]any{"colour": "blue"},
	}}
	widgets := objects.Resource(schema.GroupVersionResource{Group: "test.terrace.dev", Version: "v1", Resource: "widgets"}).Namespace("default")
	if _, err := widgets.Create(ctx, widget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	explains(t, cp)

	definitions, err := apiextensions.NewForConfig(cp.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	version := func() string {
		have, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return have.ResourceVersion
	}
	before := version()
	if err := InstallCRDs(ctx, cp.RESTConfig(), []*apiextensionsv1.CustomResourceDefinition{testCRD()}); err != nil {
		t.Fatal(err)
	}
	if after := version(); after != before {
		t.Errorf("an unchanged definition was written: version %s, then %s", before, after)
	}
	changed := testCRD()
	changed.Spec.Names.ShortNames = []string{"wd"}
	if err := InstallCRDs(ctx, cp.RESTConfig(), []*apiextensionsv1.CustomResourceDefinition{changed}); err != nil {
		t.Fatal(err)
	}
	if after := version(); after == before {
		t.Error("a changed definition was not written")
	}
}

// explains reads what kubectl explain reads. The document of a new kind follows
// its definition within moments, without an event.
func explains(t *testing.T, cp *ControlPlane) {
	t.Helper()
	c := client(t, cp.RESTConfig())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		text, err := c.Discovery().RESTClient().Get().AbsPath("/openapi/v3/apis/test.terrace.dev/v1").DoRaw(ctx)
		if err == nil && strings.Contains(string(text), "Colour of the widget.") {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("no OpenAPI document: %v", err)
		}
	}
}
