// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/plan"
)

func newShowPlan(a *app) *cobra.Command {
	var server serverFlags
	var output string
	var useExitCode bool
	cmd := &cobra.Command{
		Use:   "plan UNIT",
		Short: "Show the changes of a unit's plan",
		Long: `Show the plan that waits for an approval, or else the last one, as tofu shows
it, or as JSON, with what policies say of it. Sensitive values are masked.

The plan is read from the Terrace server; where that is not reachable, from the
readable plan that spec.storeReadablePlan made a Terraform keep. That of a
Kustomization is what "terrace diff" shows of what its source fetched.`,
		Example: `  terrace show plan tf/network
  terrace show plan ks/apps
  terrace show plan tf/network -o json | jq .resource_changes[].address
  terrace show plan tf/network --exit-code || echo "changes are waiting"`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg(planned),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "text" && output != "json" {
				return usagef(cmd, "-o %s: use text or json", output)
			}
			c, o, err := a.target(cmd, args[0], planned)
			if err != nil {
				return err
			}
			if err := a.showPlan(cmd.Context(), c, o, server, output); err != nil {
				return err
			}
			if id, _ := pendingPlan(o); useExitCode && id != "" {
				return exitCode(ExitChanges)
			}
			return nil
		},
	}
	server.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&useExitCode, "exit-code", false, "exit with 2 when the plan waits for an approval")
	return cmd
}

// showPlan prints the unit's plan. What is not the plan itself goes to stderr.
func (a *app) showPlan(ctx context.Context, c *cluster, o object, f serverFlags, format string) error {
	id, _ := pendingPlan(o)
	if o.Kind.Name == terraform.Name && id == "" && o.text("status", "lastPlan", "id") == "" {
		return hintf(fmt.Errorf("show plan of %s: there is none yet", o), "%q says how far the unit is", "terrace show "+argument(o))
	}
	body, err := a.openPlan(ctx, c, o, f, format)
	// The plan of a Kustomization is made anew at each look, also at this one.
	if f.url == "" && o.Kind.Name == kustomization.Name && (errors.Is(err, errNoServer) || errors.Is(err, errNotKept)) {
		ks, err := o.kustomization()
		if err != nil {
			return err
		}
		policies, err := a.judged(ctx, c, o, f)
		if err != nil {
			return err
		}
		_, err = a.compareNow(ctx, &rendering{unit: ks, cluster: c, live: o}, renderFlags{}, policies, format)
		return err
	}
	if err != nil {
		return err
	}
	defer body.Close()
	if id == "" {
		fmt.Fprintf(a.env.Stderr, "no plan of %s is pending; this is the last one\n", o)
	}
	if _, err := io.Copy(a.env.Stdout, body); err != nil {
		return fmt.Errorf("show plan of %s: %w", o, err)
	}
	return nil
}

// maxJudged bounds what a server says of policies, in bytes.
const maxJudged = 64 << 20

// judged is what policies say of the plan of a Kustomization, as the server knows it: nothing
// if there is no server, or if they say nothing.
func (a *app) judged(ctx context.Context, c *cluster, o object, f serverFlags) ([]plan.PolicyResult, error) {
	s, err := a.server(ctx, c, f)
	var body io.ReadCloser
	if err == nil {
		body, err = s.get(ctx, o, "policies", nil)
	}
	if errors.Is(err, errNoServer) || errors.Is(err, errNotKept) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var results []plan.PolicyResult
	if err := json.NewDecoder(io.LimitReader(body, maxJudged)).Decode(&results); err != nil {
		return nil, fmt.Errorf("read policies of %s: %w", o, err)
	}
	return results, nil
}

// openPlan opens the plan where it is kept.
func (a *app) openPlan(ctx context.Context, c *cluster, o object, f serverFlags, format string) (io.ReadCloser, error) {
	if format == "" {
		format = "text"
	}
	s, err := a.server(ctx, c, f)
	if err == nil {
		var body io.ReadCloser
		if body, err = s.get(ctx, o, "plan", url.Values{"format": {format}}); err == nil {
			return body, nil
		}
	}
	// A server that was named is the one that was meant.
	if f.url != "" || !errors.Is(err, errNoServer) && !errors.Is(err, errNotKept) {
		return nil, err
	}
	if o.Kind.Name != terraform.Name {
		return nil, err
	}
	tf, terr := o.terraform()
	if terr != nil {
		return nil, terr
	}
	readable, rerr := c.readablePlan(ctx, tf, format)
	if apierrors.IsNotFound(rerr) {
		return nil, err
	}
	return readable, rerr
}

// readablePlan reads the plan that spec.storeReadablePlan made the unit keep:
// a ConfigMap of text or a Secret of compressed JSON, in numbered parts when
// one cannot hold it. An error of Kubernetes' "not found" says that there is none.
func (c *cluster) readablePlan(ctx context.Context, tf *infra.Terraform, format string) (io.ReadCloser, error) {
	name := "tfplan-" + tf.WorkspaceName() + "-" + tf.Name
	resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if format == "json" {
		name += ".json"
		resource.Resource = "secrets"
	}
	read := func(name string) (*unstructured.Unstructured, error) {
		return c.client.Resource(resource).Namespace(tf.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	var parts []*unstructured.Unstructured
	switch whole, err := read(name); {
	case err == nil:
		parts = append(parts, whole)
	case !apierrors.IsNotFound(err):
		return nil, c.explain("read plan "+name, err)
	default:
		for n := 0; ; n++ {
			part, err := read(fmt.Sprintf("%s-%d", name, n))
			if apierrors.IsNotFound(err) && n > 0 {
				break
			}
			if err != nil {
				return nil, err
			}
			parts = append(parts, part)
		}
	}
	if id := parts[0].GetAnnotations()[infra.PlanSavedAnnotation]; id != "" && tf.Status.Plan.Pending != "" && id != tf.Status.Plan.Pending {
		return nil, fmt.Errorf("read plan %s: it is plan %s, and %s is pending", name, id, tf.Status.Plan.Pending)
	}
	return joinPlan(parts, format)
}

func joinPlan(parts []*unstructured.Unstructured, format string) (io.ReadCloser, error) {
	var all bytes.Buffer
	for _, p := range parts {
		text, _, _ := unstructured.NestedString(p.Object, "data", "tfplan")
		if format != "json" {
			all.WriteString(text)
			continue
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("read plan %s: %w", p.GetName(), err)
		}
		all.Write(data)
	}
	if format != "json" {
		if b := all.Bytes(); len(b) > 0 && b[len(b)-1] != '\n' {
			all.WriteByte('\n')
		}
		return io.NopCloser(&all), nil
	}
	z, err := gzip.NewReader(&all)
	if err != nil {
		return nil, fmt.Errorf("read plan %s: %w", parts[0].GetName(), err)
	}
	return z, nil
}
