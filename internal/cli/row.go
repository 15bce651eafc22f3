// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// none stands where a column has no value.
const none = "-"

// layout says which columns a table of objects has.
type layout struct {
	role       role
	namespaces bool
	wide       bool
}

// columns are the headers of the layout.
func (l layout) columns() []string {
	var c []string
	if l.namespaces {
		c = append(c, "NAMESPACE")
	}
	if l.role == record {
		c = append(c, "NAME", "UNIT", "OPERATION", "OUTCOME", "CHANGES", "TOOK", "AGE")
		if l.wide {
			c = append(c, "REVISION", "PLAN", "APPROVED BY")
		}
		return append(c, "MESSAGE")
	}
	c = append(c, "NAME", "KIND")
	if l.role == unit {
		c = append(c, "LAYER")
	}
	c = append(c, "REVISION", "READY")
	if l.role == unit {
		c = append(c, "PLAN")
	}
	if l.wide {
		if l.role == unit {
			c = append(c, "CHANGES", "SOURCE")
		} else {
			c = append(c, "URL")
		}
		c = append(c, "SUSPENDED", "AGE")
	}
	return append(c, "MESSAGE")
}

// row are the cells of an object under the columns of the layout.
func (l layout) row(o object, now time.Time) []string {
	if l.role == record {
		return l.runRow(o, now)
	}
	ready, _ := o.condition("Ready")
	var r []string
	if l.namespaces {
		r = append(r, o.GetNamespace())
	}
	r = append(r, o.GetName(), o.Kind.Name)
	if l.role == unit {
		r = append(r, orNone(o.GetLabels()[infra.LayerLabel]))
	}
	r = append(r, revision(o, l.wide), string(ready.Status))
	if l.role == unit {
		plan, _ := pendingPlan(o)
		r = append(r, orNone(plan))
	}
	if l.wide {
		if l.role == unit {
			r = append(r, changes(o), sourceOf(o))
		} else {
			r = append(r, orNone(o.text("spec", "url")))
		}
		r = append(r, yesNo(o.suspended()), age(o.GetCreationTimestamp().Time, now))
	}
	return append(r, message(o, ready.Message, l.wide))
}

// runRow are the cells of a Run.
func (l layout) runRow(o object, now time.Time) []string {
	var r []string
	if l.namespaces {
		r = append(r, o.GetNamespace())
	}
	var run v1alpha1.Run
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &run); err != nil {
		return append(r, o.GetName())
	}
	changed := none
	if c := run.Status.Counts; c != nil {
		changed = fmt.Sprintf("+%d ~%d -%d", c.Add, c.Change, c.Destroy)
	}
	took := run.Status.Ended.Sub(run.Status.Began.Time)
	r = append(r, o.GetName(), run.Spec.Unit.Kind+"/"+run.Spec.Unit.Name, run.Spec.Operation, run.Status.Outcome,
		changed, duration.HumanDuration(took), age(run.Status.Ended.Time, now))
	if l.wide {
		r = append(r, orNone(run.Spec.Revision), orNone(run.Spec.Plan), orNone(run.Spec.ApprovedBy))
	}
	text := run.Status.Message
	if i := run.Spec.Import; i != nil && text == "" {
		text = i.Address + " as " + i.ID
	}
	return append(r, message(o, text, l.wide))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// age is a time span as kubectl writes it.
func age(then, now time.Time) string {
	if then.IsZero() {
		return none
	}
	return duration.HumanDuration(now.Sub(then))
}

// revision is what the object was last brought to: for a source what it
// fetched, for a unit what it applied, else what it tried.
func revision(o object, full bool) string {
	r := ""
	for _, path := range [][]string{{"artifact", "revision"}, {"lastAppliedRevision"}, {"lastAttemptedRevision"}} {
		if o.Kind.Role == unit && path[0] == "artifact" {
			continue
		}
		if r = o.text(append([]string{"status"}, path...)...); r != "" {
			break
		}
	}
	if full {
		return orNone(r)
	}
	return orNone(shortRevision(r))
}

// shortRevision keeps eight digits of a revision's hash: main@sha1:0a1b2c3d.
func shortRevision(r string) string {
	i := strings.LastIndex(r, ":")
	if i < 0 || len(r) <= i+9 {
		return r
	}
	return r[:i+9]
}

// changes are the counts of the pending plan.
func changes(o object) string {
	if _, does := pendingPlan(o); does != "" {
		return countsOf(does)
	}
	if o.Kind.Name != terraform.Name || o.text("status", "plan", "pending") == "" {
		return none
	}
	tf, err := o.terraform()
	if err != nil || tf.Status.LastPlan == nil || tf.Status.LastPlan.ID != tf.Status.Plan.Pending {
		return none
	}
	return counts(tf.Status.LastPlan)
}

// counts are a plan's changes in short: a replaced resource is both added and destroyed.
func counts(p *infra.PlanRecord) string {
	return fmt.Sprintf("+%d ~%d -%d", p.Create+p.Replace, p.Update, p.Delete+p.Replace)
}

// sentenceOfCounts is what a plan does, as a message says it.
var sentenceOfCounts = regexp.MustCompile(`(\d+) to add, (\d+) to change, (\d+) to destroy`)

// countsOf puts what a message says of a plan's changes in short; it is none when
// the message counts nothing.
func countsOf(does string) string {
	m := sentenceOfCounts.FindStringSubmatch(does)
	if m == nil {
		return none
	}
	return fmt.Sprintf("+%s ~%s -%s", m[1], m[2], m[3])
}

// sourceOf names the source of a unit: "GitRepository/infra".
func sourceOf(o object) string {
	for _, path := range [][]string{{"spec", "sourceRef"}, {"spec", "chartRef"}, {"spec", "chart", "spec", "sourceRef"}} {
		if name := o.text(append(path, "name")...); name != "" {
			s := o.text(append(path, "kind")...) + "/" + name
			if ns := o.text(append(path, "namespace")...); ns != "" && ns != o.GetNamespace() {
				s += "." + ns
			}
			return s
		}
	}
	return none
}

// messageWidth is how much of a message the narrow layout shows: what stands
// beside the other columns on a wide screen.
const messageWidth = 100

// message is the first line of what the object last said.
func message(o object, text string, wide bool) string {
	text, _, cut := strings.Cut(strings.TrimSpace(text), "\n")
	if !wide {
		if r := []rune(text); len(r) > messageWidth {
			text, cut = strings.TrimSpace(string(r[:messageWidth])), true
		}
	}
	if cut {
		text = strings.TrimSuffix(text, ".") + " …"
	}
	if o.suspended() {
		text = strings.TrimSpace("suspended; " + text)
	}
	if o.deleted {
		return "deleted"
	}
	if o.GetDeletionTimestamp() != nil && !strings.HasPrefix(text, infra.MessageDeleting) {
		text = strings.TrimSuffix("being deleted; "+text, "; ")
	}
	return text
}
