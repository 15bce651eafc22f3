// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terrace-dev/terrace/internal/install"
)

func newInstall(a *app) *cobra.Command {
	var export, kindsOnly bool
	o := install.Options{Version: labelValue(a.env.Build.Version)}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install Terrace on an existing cluster, or print what that needs",
		Long: `Apply, or with --export print, what Terrace needs on an existing cluster: its
kinds, permissions, and a Deployment that runs "terrace controller". Applying
again upgrades. An embedded control plane needs none of it.`,
		Example: `  terrace install --export --image REGISTRY/terrace:v1 > terrace.yaml
  terrace install --image REGISTRY/terrace:v1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := toInstall(o, kindsOnly)
			if err != nil {
				return err
			}
			if export {
				for _, u := range objects {
					fmt.Fprintln(a.env.Stdout, "---")
					if err := printValue(a.env.Stdout, "yaml", u.Object); err != nil {
						return err
					}
				}
				return nil
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			for _, u := range objects {
				if err := c.apply(cmd.Context(), u); err != nil {
					return err
				}
				if err := c.awaitEstablished(cmd.Context(), u); err != nil {
					return err
				}
				fmt.Fprintf(a.env.Stdout, "applied %s/%s\n", strings.ToLower(u.GetKind()), u.GetName())
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&export, "export", false, "print the objects instead of applying them")
	fs.BoolVar(&kindsOnly, "crds-only", false, "the kinds alone, for a process that runs elsewhere")
	fs.StringVar(&o.Image, "image", "terrace:"+imageTag(a.env.Build.Version), "container image of the Deployment")
	fs.StringVar(&o.StorageSize, "storage-size", "10Gi", "size of the volume for plans, artifacts and run logs")
	a.flags.add(fs)
	return cmd
}

// toInstall are the objects, in order.
func toInstall(o install.Options, kindsOnly bool) ([]*unstructured.Unstructured, error) {
	if kindsOnly {
		return install.Kinds()
	}
	return install.Objects(o)
}

// apply applies an object on the server's side. Fields that another manager
// changed are taken over: an installation is what this version needs.
func (c *cluster) apply(ctx context.Context, u *unstructured.Unstructured) error {
	resource, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	client := c.client.Resource(resource).Namespace(u.GetNamespace())
	doing := fmt.Sprintf("apply %s/%s", strings.ToLower(u.GetKind()), u.GetName())
	if _, err := client.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return c.explain(doing, err)
	}
	return nil
}

// definitionKind lets definitions be watched like the other kinds.
var definitionKind = kind{Name: "CustomResourceDefinition", Resource: schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}}

// awaitEstablished waits until the API server serves the kind that u defines, so
// that whoever comes next finds it. It returns at once when u is something else.
func (c *cluster) awaitEstablished(ctx context.Context, u *unstructured.Unstructured) error {
	if u.GetKind() != definitionKind.Name {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := c.until(ctx, object{Unstructured: u, Kind: definitionKind}, func(o object) (bool, error) {
		established, _ := o.condition("Established")
		return established.Status == metav1.ConditionTrue, nil
	})
	return c.explain("wait until the cluster serves "+u.GetName(), err)
}

// labelValue makes a label value of a version: "+" is not allowed there.
func labelValue(version string) string {
	return strings.ReplaceAll(version, "+", "_")
}

// imageTag makes an image's tag of a version.
func imageTag(version string) string {
	if version == "" {
		return "latest"
	}
	return labelValue(version)
}
