// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	terrace "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/plan"
)

func newShow(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show UNIT",
		Short: "Show one unit: source, plan, outputs, conditions",
		Long: `Show what a unit is made from, how far it has come and what it waits for.
"terrace show plan UNIT" shows the changes of its plan.`,
		Example: `  terrace show tf/network
  terrace show plan tf/network`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, o, err := a.target(cmd, args[0], kinds)
			if err != nil {
				return err
			}
			return a.describe(o)
		},
	}
	cmd.AddCommand(newShowPlan(a))
	return cmd
}

// describe prints the object's facts, then its conditions as a table.
func (a *app) describe(o object) error {
	facts := []fact{
		{"Name", o.Kind.Name + " " + o.GetNamespace() + "/" + o.GetName()},
		{"Layer", o.GetLabels()[infra.LayerLabel]},
		{"Source", strings.TrimSuffix(sourceOf(o), none)},
		{"Path", o.text("spec", "path")},
		{"URL", o.text("spec", "url")},
		{"Revision", strings.TrimSuffix(revision(o, true), none)},
	}
	if o.suspended() {
		facts = append(facts, fact{"Suspended", "yes: nothing is reconciled until \"terrace resume\""})
	}
	if o.Kind.Name == terraform.Name {
		tf, err := o.terraform()
		if err != nil {
			return err
		}
		facts = append(facts, terraformFacts(tf, a.env.Now())...)
	}
	if o.Kind.Name == kustomization.Name {
		more, err := kustomizationFacts(o)
		if err != nil {
			return err
		}
		facts = append(facts, more...)
	}
	printFacts(a.env.Stdout, facts)
	fmt.Fprintln(a.env.Stdout)
	t := newTable(a.env.Stdout, nil, "CONDITION", "STATUS", "REASON", "MESSAGE")
	t.print(true, conditionRows(o)...)
	for _, text := range longMessages(o) {
		fmt.Fprintf(a.env.Stdout, "\n%s\n", text)
	}
	return nil
}

// fact is one line of a description; one without a value is not printed.
type fact struct{ name, value string }

func printFacts(out io.Writer, facts []fact) {
	for _, f := range facts {
		if f.value != "" {
			fmt.Fprintf(out, "%-13s%s\n", f.name+":", f.value)
		}
	}
}

// describedConditions are the condition types that a description has, in its order.
func describedConditions() []string {
	return []string{"Ready", "Reconciling", "Stalled", infra.ConditionPlan, infra.ConditionApply,
		infra.ConditionOutput, infra.ConditionHealthCheck, infra.ConditionStateLocked, "Healthy", "ArtifactInStorage", "FetchFailed"}
}

// longMessages are the messages of which the table shows the first line only,
// each once: where in which file an error is, stands in the others.
func longMessages(o object) []string {
	var long []string
	for _, kind := range describedConditions() {
		c, _ := o.condition(kind)
		text := strings.TrimSpace(c.Message)
		if strings.Contains(text, "\n") && !slices.Contains(long, text) {
			long = append(long, text)
		}
	}
	return long
}

func conditionRows(o object) [][]string {
	var rows [][]string
	for _, kind := range describedConditions() {
		c, ok := o.condition(kind)
		if !ok && kind != "Ready" {
			continue
		}
		text, _, cut := strings.Cut(strings.TrimSpace(c.Message), "\n")
		if cut {
			text += " …"
		}
		rows = append(rows, []string{c.Type, string(c.Status), orNone(c.Reason), text})
	}
	return rows
}

// terraformFacts are the lines that only a Terraform has.
func terraformFacts(tf *infra.Terraform, now time.Time) []fact {
	facts := []fact{
		{"Approval", approvalMode(tf)},
		{"Plan", planLine(tf)},
		{"Policies", policyLine(tf)},
		{"Running", tf.Status.RunningID},
		{"Applied", tf.Status.Plan.LastApplied},
		{"Depends on", dependencies(tf)},
	}
	if tf.Spec.WriteOutputsToSecret != nil {
		facts = append(facts, fact{"Outputs", fmt.Sprintf("secret/%s: %s", tf.Spec.WriteOutputsToSecret.Name, strings.Join(tf.Status.AvailableOutputs, ", "))})
	} else if len(tf.Status.AvailableOutputs) > 0 {
		facts = append(facts, fact{"Outputs", strings.Join(tf.Status.AvailableOutputs, ", ")})
	}
	if id := tf.Status.Lock.Pending; id != "" {
		facts = append(facts, fact{"Lock", id + " is in the way; \"terrace force-unlock\" removes it"})
	}
	if at := tf.Status.NextDriftCheckAt; at != nil {
		facts = append(facts, fact{"Drift check", "due " + relative(at.Time, now)})
	}
	if at := tf.Status.LastDriftDetectedAt; at != nil {
		facts = append(facts, fact{"Drift", "last seen " + relative(at.Time, now)})
	}
	if n := tf.Status.ReconciliationFailures; n > 0 {
		facts = append(facts, fact{"Failures", fmt.Sprintf("%d in a row", n)})
	}
	return append(facts, fact{"Unused", strings.Join(tf.Status.UnusedFields, ", ")})
}

func approvalMode(tf *infra.Terraform) string {
	switch by := terrace.Approver(tf.GetAnnotations(), tf.Spec.ApprovePlan); {
	case tf.Spec.PlanOnly:
		return "plan only: nothing is ever applied"
	case tf.Spec.ApprovePlan == infra.ApprovePlanAuto:
		return "auto: every plan is applied"
	case tf.Spec.ApprovePlan == infra.ApprovePlanDisable:
		return "disabled: drift is looked for, nothing is planned"
	case tf.Spec.ApprovePlan == "":
		return "manual: each plan waits for \"terrace approve\""
	case by != "":
		return tf.Spec.ApprovePlan + ", by " + by
	default:
		return tf.Spec.ApprovePlan
	}
}

// policyLine is what policies say of the plan that waits, empty when they have nothing against it.
func policyLine(tf *infra.Terraform) string {
	last := tf.Status.LastPlan
	if last == nil || last.Policy == nil || last.ID != tf.Status.Plan.Pending {
		return ""
	}
	var parts []string
	for _, p := range []struct{ what, why string }{
		{"deny", last.Policy.Denied}, {"ask for an approval", last.Policy.NeedsApproval}, {"warn", last.Policy.Warnings},
	} {
		if p.why != "" {
			parts = append(parts, p.what+": "+p.why)
		}
	}
	return strings.Join(parts, "; ")
}

func planLine(tf *infra.Terraform) string {
	id := tf.Status.Plan.Pending
	if id == "" {
		return ""
	}
	line := id + " waits for approval"
	switch {
	case tf.Status.RunningID == id:
		line = id + " is being applied"
	case tf.Spec.ApprovePlan == infra.ApprovePlanAuto && !tf.Spec.PlanOnly:
		line = id + " is to be applied"
	}
	if p := tf.Status.LastPlan; p != nil && p.ID == id {
		line += ": " + sentence(p)
	}
	if tf.Status.Plan.IsDestroyPlan {
		line += " (destroys the unit)"
	}
	if tf.Status.Plan.IsDriftDetectionPlan {
		line += " (repairs drift)"
	}
	return line
}

// sentence is a plan's counts as the tool's own summary has them.
func sentence(p *infra.PlanRecord) string {
	return plan.Counts{Create: p.Create, Update: p.Update, Delete: p.Delete, Replace: p.Replace, Import: p.Import, Forget: p.Forget}.String()
}

func dependencies(tf *infra.Terraform) string {
	var names []string
	for _, d := range tf.Spec.DependsOn {
		ns := d.Namespace
		if ns == "" {
			ns = tf.Namespace
		}
		names = append(names, "terraform/"+ns+"/"+d.Name)
	}
	if extra := tf.GetAnnotations()[infra.DependsOnAnnotation]; extra != "" {
		names = append(names, extra)
	}
	return strings.Join(names, ", ")
}

// relative is a time as seen from now: "in 5m" or "3h ago".
func relative(then, now time.Time) string {
	if then.After(now) {
		return "in " + age(now, then)
	}
	return age(then, now) + " ago"
}
