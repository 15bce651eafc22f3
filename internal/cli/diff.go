// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/ssa/normalize"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terrace-dev/terrace/internal/plan"
)

// Exit codes of diff, which are those of the diff command and of flux.
const (
	exitDiffers    = 1
	exitDiffFailed = 2
)

func newDiff(a *app) *cobra.Command {
	var f renderFlags
	var output string
	cmd := &cobra.Command{
		Use:   "diff UNIT",
		Short: "Show what a Kustomization would change",
		Long: `Build a Kustomization and show what applying it would change: objects created,
changed, replaced and pruned. The API server itself is asked, by dry runs of
server-side apply, and nothing is written. Values of Secrets are masked.

It compares what the source fetched last, a local directory (--path), or another
revision of the repository (--revision). A Kustomization that is not in the cluster
yet is read from --kustomization-file.

The dry runs are made as you, not as spec.serviceAccountName: you need to be allowed
to patch the objects.

The exit code is 0 when there are no changes, 1 when there are, and more than 1 when
it failed.`,
		Example: `  terrace diff ks/apps
  terrace diff ks/apps --path ./apps/production
  terrace diff ks/apps --revision feature-x -o json
  terrace diff ks/shop --kustomization-file clusters/shop.yaml --path ./shop`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg([]kind{kustomization}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "text" && output != "json" {
				return usagef(cmd, "-o %s: use text or json", output)
			}
			differs, err := a.diff(cmd, f, output, args[0])
			switch {
			case err != nil:
				return &codedError{err: err, code: exitDiffFailed}
			case differs:
				return exitCode(exitDiffers)
			}
			return nil
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// diff prints what applying the unit would change, and tells whether there is
// anything. What could be compared is printed also with an error.
func (a *app) diff(cmd *cobra.Command, f renderFlags, format, word string) (bool, error) {
	r, err := a.rendered(cmd, word, f, false)
	if err != nil {
		return false, err
	}
	return a.compareNow(cmd.Context(), r, f, nil, format)
}

// compareNow builds the unit, compares its objects with the cluster's, and prints the
// changes, and what policies say of them.
func (a *app) compareNow(ctx context.Context, r *rendering, f renderFlags, policies []plan.PolicyResult, format string) (bool, error) {
	t, err := r.content(ctx, f)
	if err != nil {
		return false, err
	}
	defer t.close()
	variables, err := r.variables(ctx)
	if err != nil {
		return false, err
	}
	d, maskedBecause, err := r.decryptor(ctx)
	if err != nil {
		return false, err
	}
	out, err := r.build(ctx, t, d, variables, true)
	if err != nil {
		return false, err
	}
	// As before an apply: a Secret's stringData is data, and the like.
	if err := normalize.UnstructuredList(out.Objects); err != nil {
		return false, fmt.Errorf("diff %s: %w", r, err)
	}
	c := &comparison{unit: r.unit, masked: maskedBecause}
	if rec, ok := d.(*recording); ok {
		c.decrypted = rec.decrypted
		r.secrets = append(r.secrets, rec.Secrets()...)
	}
	if c.cluster, err = r.target(ctx); err != nil {
		return false, err
	}
	if c.mapper, err = c.cluster.mapper(); err != nil {
		return false, err
	}
	changes, failed := c.compare(ctx, out.Objects, inventoryOf(r.live))
	p, err := plan.FromObjects(changes, plan.Inputs{Revision: t.revision, Key: []byte(rand.Text()), Sensitive: r.secrets})
	if err != nil {
		return false, fmt.Errorf("diff %s: %w", r, err)
	}
	p.Policies = policies
	return p.HasChanges(), errors.Join(failed, a.printDiff(p, c.skipped, format))
}

// skip is an object that was not compared, and why.
type skip struct {
	Object string `json:"object"`
	Why    string `json:"why"`
}

// printDiff writes the changes to stdout; of a text, what was not compared to stderr.
func (a *app) printDiff(p *plan.Plan, skipped []skip, format string) error {
	slices.SortFunc(skipped, func(a, b skip) int { return strings.Compare(a.Object, b.Object) })
	if format == "json" {
		// Without the id: it would look like one that can be approved.
		return printValue(a.env.Stdout, "json", struct {
			Revision string              `json:"revision,omitempty"`
			Changes  []plan.Change       `json:"changes"`
			Counts   plan.Counts         `json:"counts"`
			Policies []plan.PolicyResult `json:"policies,omitempty"`
			Skipped  []skip              `json:"skipped,omitempty"`
		}{p.Revision, append([]plan.Change{}, p.Changes...), p.Counts, p.Policies, skipped})
	}
	for _, s := range skipped {
		fmt.Fprintf(a.env.Stderr, "skipped %s: %s\n", s.Object, s.Why)
	}
	p.Text(a.env.Stdout, a.env.Color)
	return nil
}

// inventoryOf reads what the unit has applied; nothing when it is not there.
func inventoryOf(o object) []string {
	if o.Unstructured == nil {
		return nil
	}
	list, _ := nestedMaps(o, "status", "inventory", "entries")
	var out []string
	for _, e := range list {
		id, _ := e["id"].(string)
		version, _ := e["v"].(string)
		out = append(out, id+" "+version)
	}
	return out
}

// target is the cluster that the unit's objects are on.
func (r *rendering) target(ctx context.Context) (*cluster, error) {
	remote := r.unit.Spec.KubeConfig
	switch {
	case remote == nil:
		return r.cluster, nil
	case remote.SecretRef == nil:
		return nil, fmt.Errorf("diff %s: spec.kubeConfig: the credentials of a configMapRef are Terrace's own: its cluster cannot be reached from here", r)
	}
	name := remote.SecretRef.Name
	data, err := r.cluster.data(ctx, "Secret", r.unit.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("diff %s: spec.kubeConfig: %w", r, r.cluster.explain("get secret/"+name, err))
	}
	content := data[remote.SecretRef.Key]
	for _, key := range []string{"value", "value.yaml"} {
		if remote.SecretRef.Key == "" && len(content) == 0 {
			content = data[key]
		}
	}
	c, err := clusterOf(content, r.cluster.config.UserAgent)
	if err != nil {
		return nil, fmt.Errorf("diff %s: spec.kubeConfig: secret/%s: %w", r, name, err)
	}
	return c, nil
}

// owned tells whether the labels of an object name a unit.
func owned(o *unstructured.Unstructured, namespace, name string) bool {
	return applier.UnitOf(o.GetLabels()) == types.NamespacedName{Namespace: namespace, Name: name}
}
