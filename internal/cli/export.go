// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	terrace "github.com/terrace-dev/terrace/api/v1alpha1"
)

func newExport(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "export [UNIT…]",
		Short: "Print units and sources as manifests",
		Long: `Print units and sources as YAML that can be applied elsewhere: without status and
without what the API server and the verbs of this command added.`,
		Example: `  terrace export tf/network > network.yaml
  terrace export -A > everything.yaml`,
		ValidArgsFunction: a.unitsArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return usagef(cmd, "needs UNIT or -A, and not both")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var objects []object
			if len(args) > 0 {
				objects, err = a.named(cmd, c, args, false)
			} else {
				s := selection{Kinds: kinds, Namespace: c.namespace}
				if all {
					s.Namespace = ""
				}
				objects, _, err = c.list(cmd.Context(), s)
			}
			if err != nil {
				return err
			}
			for _, o := range objects {
				fmt.Fprintln(a.env.Stdout, "---")
				if err := printValue(a.env.Stdout, "yaml", manifest(o)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "of all namespaces")
	return cmd
}

// requestAnnotations are those that a verb or kubectl leaves on an object: they
// ask for something once, and mean nothing in a manifest.
var requestAnnotations = []string{
	infra.ReconcileRequestAnnotation, infra.BreakTheGlassAnnotation, infra.CancelAnnotation, infra.ImportAnnotation,
	terrace.ApprovedByAnnotation, terrace.SuspensionByAnnotation, approvedAtAnnotation, terrace.ApprovedPlanAnnotation, terrace.PruneApprovedAnnotation, terrace.PolicyOverrideAnnotation,
	"reconcile.fluxcd.io/forceAt", "reconcile.fluxcd.io/resetAt",
	"kubectl.kubernetes.io/last-applied-configuration",
}

// manifest is the object as its author would have written it.
func manifest(o object) map[string]any {
	meta := map[string]any{"name": o.GetName(), "namespace": o.GetNamespace()}
	if l := o.GetLabels(); len(l) > 0 {
		meta["labels"] = l
	}
	annotations := maps.Clone(o.GetAnnotations())
	for _, a := range requestAnnotations {
		delete(annotations, a)
	}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	out := map[string]any{"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "metadata": meta}
	if spec, ok := o.Object["spec"]; ok {
		out["spec"] = spec
	}
	// The id of an approved plan is an approval, not a wish: elsewhere it would
	// name nothing, or approve what nobody saw.
	if id := o.text("spec", "approvePlan"); strings.HasPrefix(id, "plan-") && o.Kind.Name == terraform.Name {
		spec := o.DeepCopy().Object["spec"].(map[string]any)
		unstructured.RemoveNestedField(spec, "approvePlan")
		out["spec"] = spec
	}
	return out
}
