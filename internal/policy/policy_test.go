// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/mask"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/policy"
)

// s3 is a plan of three buckets, by the shape that tofu gives it.
const s3 = `{
 "format_version": "1.2",
 "resource_changes": [
  {"address": "aws_s3_bucket.logs", "mode": "managed", "type": "aws_s3_bucket", "name": "logs",
   "change": {"actions": ["create"], "before": null, "after": {"bucket": "logs", "acl": "public-read", "size": 3}}},
  {"address": "aws_s3_bucket.assets", "mode": "managed", "type": "aws_s3_bucket", "name": "assets",
   "change": {"actions": ["update"], "before": {"acl": "public-read"}, "after": {"bucket": "assets", "acl": "private", "size": 70}}},
  {"address": "aws_s3_bucket.old", "mode": "managed", "type": "aws_s3_bucket", "name": "old",
   "change": {"actions": ["delete", "create"], "before": {"acl": "private"}, "after": {"bucket": null, "acl": "private", "size": 1}}},
  {"address": "aws_s3_bucket.same", "mode": "managed", "type": "aws_s3_bucket", "name": "same",
   "change": {"actions": ["no-op"], "before": {"acl": "public-read"}, "after": {"acl": "public-read"}}},
  {"address": "aws_s3_bucket.gone", "mode": "managed", "type": "aws_s3_bucket", "name": "gone",
   "change": {"actions": ["delete"], "before": {"acl": "private"}, "after": null}}
 ]}`

// noPublicACL is the policy that everybody begins with.
const noPublicACL = `package main

deny_public_acl contains msg if {
	some rc in input.resource_changes
	rc.type == "aws_s3_bucket"
	some action in rc.change.actions
	action in ["create", "update"]
	rc.change.after.acl in ["public-read", "public-read-write"]
	msg := sprintf("%s must not be public", [rc.address])
}
`

func object(text string) map[string]any {
	docs, err := policy.Documents([]byte(text))
	if err != nil || len(docs) != 1 {
		panic(fmt.Sprintf("%d documents, %v", len(docs), err))
	}
	return docs[0]
}

func deployment(name, labels, image string) plan.ObjectChange {
	return plan.ObjectChange{Action: plan.ActionCreate, After: object(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, namespace: shop, labels: {%s}}
spec:
  replicas: 3
  template: {spec: {containers: [{name: web, image: %q}]}}`, name, labels, image))}
}

const labelled = `package main

import rego.v1

required := {"app", "team"}

deny_labels contains {"msg": msg, "severity": "high"} if {
	input.kind == "Deployment"
	missing := required - {l | some l, _ in input.metadata.labels}
	count(missing) > 0
	msg := sprintf("%s lacks the labels %s", [input.metadata.name, concat(", ", sort([l | some l in missing]))])
}

exception contains rules if {
	input.metadata.name == "legacy"
	rules := ["labels"]
}
`

const noLatest = `package main

warn[msg] {
	input.kind == "Deployment"
	c := input.spec.template.spec.containers[_]
	endswith(c.image, ":latest")
	msg := sprintf("container %s runs %s", [c.name, c.image])
}

violation[{"msg": msg}] {
	c := input.spec.template.spec.containers[_]
	not contains(c.image, ":")
	msg := sprintf("container %s has no tag", [c.name])
}
`

func TestEvaluate(t *testing.T) {
	objects := func(o ...plan.ObjectChange) policy.Input { return policy.Input{Objects: o} }
	tofu := func(text string) policy.Input { return policy.Input{Plan: []byte(text)} }
	rego := func(text string) policy.Source { return policy.Source{Modules: map[string]string{"policy.rego": text}} }
	cel := func(expression, message string) policy.Source {
		return policy.Source{CEL: []v1alpha1.CELRule{{Expression: expression, Message: message}}}
	}
	named := func(s policy.Source, enforce string) policy.Source { s.Enforcement = enforce; return s }

	cases := map[string]struct {
		reason string
		source policy.Source
		input  policy.Input
		want   []string // level, rule, address, message
		err    string   // begins so
	}{
		"PublicACL": {"Rego over a Terraform plan: only what is created or changed is looked at, as the rule says.",
			rego(noPublicACL), tofu(s3), []string{"deny deny_public_acl  aws_s3_bucket.logs must not be public"}, ""},
		"Labels": {"An object is an input of its own; a result can be an object with msg.",
			rego(labelled), objects(deployment("web", "app: web", "nginx:1")),
			[]string{"deny deny_labels Deployment.apps/shop/web web lacks the labels team"}, ""},
		"LabelsKept":    {"A rule that is kept says nothing.", rego(labelled), objects(deployment("web", "app: web, team: a", "nginx:1")), nil, ""},
		"Exception":     {"exception names the suffix of a rule.", rego(labelled), objects(deployment("legacy", "", "nginx:1")), nil, ""},
		"ExceptionOnce": {"An exception is for the object that it matches, and no other.", rego(labelled), objects(deployment("legacy", "", "a:1"), deployment("web", "app: a", "a:1")), []string{"deny deny_labels Deployment.apps/shop/web web lacks the labels team"}, ""},
		"ExceptionAll": {"The empty name is that of rules without a suffix.",
			rego("package main\ndeny contains \"a\"\ndeny_b contains \"b\"\nexception contains [\"\"]\n"), tofu(s3), []string{"deny deny_b  b"}, ""},
		"ExceptionText": {"As in conftest an exception is a list of names: a bare name exempts nothing.",
			rego("package main\ndeny_b contains \"b\"\nexception contains \"b\"\n"), tofu(s3), []string{"deny deny_b  b"}, ""},
		"ExceptionOther": {"What exempts in one package exempts in no other.",
			policy.Source{Packages: []string{"one", "two"}, Modules: map[string]string{"1": "package one\ndeny_a contains \"1\"\nexception contains [\"a\"]\n", "2": "package two\ndeny_a contains \"2\"\n"}},
			tofu(s3), []string{"deny deny_a  2"}, ""},
		"Latest": {"Rego v0; warn is told, violation is as deny.",
			rego(noLatest), objects(deployment("web", "", "nginx:latest"), deployment("api", "", "api")),
			[]string{"deny violation Deployment.apps/shop/api container web has no tag", "warn warn Deployment.apps/shop/web container web runs nginx:latest"}, ""},
		"Replaced": {"A replaced object is one that will be there.", rego(noLatest),
			objects(plan.ObjectChange{Action: plan.ActionReplace, Before: deployment("api", "", "a:1").After, After: deployment("api", "", "api").After}),
			[]string{"deny violation Deployment.apps/shop/api container web has no tag"}, ""},
		"Unchanged": {"An object that stays violates a rule as well: nothing is applied while it does.", rego(noLatest),
			objects(plan.ObjectChange{Action: plan.ActionNoop, Before: deployment("api", "", "api").After}),
			[]string{"deny violation Deployment.apps/shop/api container web has no tag"}, ""},
		"Deleted": {"What goes is no input of Rego.", rego("package main\ndeny contains \"a\"\n"),
			objects(plan.ObjectChange{Action: plan.ActionDelete, Before: deployment("api", "", "api").After}), nil, ""},
		"Address": {"A result that says what it is about is believed.",
			rego("package main\ndeny contains {\"msg\": \"m\", \"resource\": \"aws_x.y\"}\n"), tofu(s3), []string{"deny deny aws_x.y m"}, ""},
		"Data": {"Documents are under data.",
			policy.Source{Modules: map[string]string{"a": "package main\ndeny contains msg if {\n\tsome t in data.forbidden.types\n\tsome rc in input.resource_changes\n\trc.type == t\n\tmsg := t\n}\n"}, Data: map[string]any{"forbidden": map[string]any{"types": []any{"aws_s3_bucket"}}}},
			tofu(s3), []string{"deny deny  aws_s3_bucket"}, ""},
		"Library": {"Other packages are there to be imported, and their rules say nothing.",
			policy.Source{Modules: map[string]string{"lib": "package lib\ndeny contains \"no\"\nbad(x) if x == \"public-read\"\n", "main": "package main\nimport data.lib\ndeny contains rc.address if {\n\tsome rc in input.resource_changes\n\tlib.bad(rc.change.after.acl)\n}\n"}},
			tofu(s3), []string{"deny deny  aws_s3_bucket.logs", "deny deny  aws_s3_bucket.same"}, ""},
		"Twice": {"The same message is told once.", rego("package main\ndeny contains \"a\" if true\ndeny contains \"a\" if 1 == 1\n"), tofu(s3), []string{"deny deny  a"}, ""},
		"NullOperand": {"A value of another type makes an expression undefined, as conftest has it: plans are full of null.",
			rego("package main\ndeny contains rc.address if {\n\tsome rc in input.resource_changes\n\tstartswith(rc.change.after.bucket, \"lo\")\n}\n"), tofu(s3), []string{"deny deny  aws_s3_bucket.logs"}, ""},
		"BuiltinFails": {"A function that fails on a value that it takes: the rule would have been passed over.",
			rego("package main\ndeny contains \"big\" if to_number(input.resource_changes[0].change.after.bucket) > 1\n"), tofu(s3), nil, "policy.rego:2:24: to_number: "},
		"Conflict": {"Two values of one rule at run time.",
			rego("package main\nx := 1 if input.format_version\nx := 2 if input.format_version\ndeny contains \"a\" if x == 3\n"), tofu(s3), nil, "policy.rego:3:1: rule data.main.x produced conflicting values: 1 at policy.rego:2"},
		"NumberResult":   {"A result that nobody can read does not pass for none.", rego("package main\ndeny contains 5\n"), tofu(s3), nil, "rule deny: a result is neither"},
		"NoMsg":          {"Nor does an object without a message.", rego("package main\ndeny contains {\"message\": \"x\"}\n"), tofu(s3), nil, "rule deny: a result is an object without a text msg"},
		"BadPlan":        {"A plan that is none.", rego(noPublicACL), tofu(`[1]`), nil, "the plan is not a JSON object"},
		"BadChange":      {"A change without its values cannot be judged.", rego(noPublicACL), tofu(`{"resource_changes": [{"address": "a"}]}`), nil, "the plan is not a JSON object"},
		"NoPlan":         {"A Terraform unit without a plan is a mistake of the caller, not a plan without changes.", rego(noPublicACL), policy.Input{Unit: policy.Unit{Kind: "Terraform"}}, nil, "the plan is not a JSON object"},
		"Both":           {"Nor can one tell which of two plans is meant.", rego(noPublicACL), policy.Input{Plan: []byte(s3), Objects: []plan.ObjectChange{deployment("web", "", "a:1")}}, nil, "there are a Terraform plan and objects"},
		"NoInput":        {"A plan without objects has nothing for Rego to see.", rego(noLatest), objects(), nil, ""},
		"PlanWithoutAny": {"A Terraform plan is seen even if it changes nothing.", rego("package main\ndeny contains \"a\" if count(input.resource_changes) == 0\n"), tofu(`{"resource_changes": []}`), []string{"deny deny  a"}, ""},

		"CELPlan":    {"A condition over the plan as a whole.", cel("plan.counts.destroy == 0", "nothing may be destroyed"), tofu(s3), []string{"deny cel[0]  nothing may be destroyed"}, ""},
		"CELCounts":  {"A replacement is one of add and one of destroy.", cel("plan.counts.add == 2 && plan.counts.change == 1 && plan.counts.destroy == 2 && plan.counts.replace == 1", ""), tofu(s3), nil, ""},
		"CELChanges": {"What stays as it is is no change.", cel("plan.changes.all(c, c.type == 'aws_s3_bucket') && size(plan.changes) == 4", ""), tofu(s3), nil, ""},
		"CELObject": {"A condition on object is evaluated for each that is created or changed.",
			cel("object.acl != 'public-read'", "is public"), tofu(s3), []string{"deny cel[0] aws_s3_bucket.logs is public"}, ""},
		"CELNumber":   {"Numbers are integers where they can be.", cel("object.size + 1 < 70", ""), tofu(s3), []string{"deny cel[0] aws_s3_bucket.assets must be true: object.size + 1 < 70"}, ""},
		"CELChange":   {"change says what happens to the object.", cel("change.type != 'aws_s3_bucket' || 'create' in change.actions", "no updates"), tofu(s3), []string{"deny cel[0] aws_s3_bucket.assets no updates"}, ""},
		"CELKube":     {"The same of Kubernetes objects.", cel("object.kind != 'Deployment' || object.spec.replicas >= 5", "too few"), objects(deployment("web", "", "a:1")), []string{"deny cel[0] Deployment.apps/shop/web too few"}, ""},
		"CELDeleted":  {"What is deleted is in plan.changes.", cel("plan.changes.all(c, !('delete' in c.actions))", "no deletes"), objects(plan.ObjectChange{Action: plan.ActionDelete, Before: deployment("api", "", "api").After}), []string{"deny cel[0]  no deletes"}, ""},
		"CELUnit":     {"The unit is known.", cel("unit.kind == 'Terraform' && !('env' in unit.labels)", ""), policy.Input{Unit: policy.Unit{Kind: "Terraform"}, Plan: []byte(s3)}, nil, ""},
		"CELOptional": {"A label that may be missing, as the documentation has it.", cel("plan.counts.destroy == 0 || unit.labels[?'env'].orValue('') != 'production'", ""), policy.Input{Plan: []byte(s3), Unit: policy.Unit{Kind: "Terraform", Labels: map[string]string{"env": "production"}}}, []string{"deny cel[0]  must be true: plan.counts.destroy == 0 || unit.labels[?'env'].orValue('') != 'production'"}, ""},
		"CELNoLabel":  {"Without it the condition holds.", cel("plan.counts.destroy == 0 || unit.labels[?'env'].orValue('') != 'production'", ""), policy.Input{Plan: []byte(s3), Unit: policy.Unit{Kind: "Terraform"}}, nil, ""},
		"CELMissing":  {"A field that is not there is an error, not consent.", cel("object.encrypted", ""), tofu(s3), nil, "aws_s3_bucket.logs: cel[0]: no such key: encrypted"},
		"CELNotBool":  {"Nor is a value that is no truth.", cel("object.acl", ""), tofu(s3), nil, "aws_s3_bucket.logs: cel[0]: the condition is a string"},
		"CELCost":     {"A condition that would take for ever is stopped.", cel("plan.changes.all(a, plan.changes.all(b, plan.changes.all(c, plan.changes.all(d, plan.changes.all(e, plan.changes.all(f, plan.changes.all(g, plan.changes.all(h, plan.changes.all(i, plan.changes.all(j, plan.changes.all(k, plan.changes.all(l, true))))))))))))", ""), tofu(s3), nil, "cel[0]: operation cancelled: actual cost limit exceeded"},
		"Warn":        {"Enforcement is the policy's and does not change the level.", named(rego("package main\ndeny contains \"a\"\n"), "warn"), tofu(s3), []string{"deny deny  a"}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Compile(t.Context(), tc.source)
			if err != nil {
				t.Fatal(err)
			}
			results, err := p.Evaluate(t.Context(), tc.input)
			if tc.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.err) {
					t.Fatalf("%s: error %v, want one that begins with %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			var got []string
			for _, r := range results {
				got = append(got, fmt.Sprintf("%s %s %s %s", r.Level, r.Rule, r.Address, r.Message))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestCompile(t *testing.T) {
	one := func(text string) policy.Source { return policy.Source{Modules: map[string]string{"p.rego": text}} }
	cel := func(expression string) policy.Source {
		return policy.Source{CEL: []v1alpha1.CELRule{{Expression: "true"}, {Expression: expression}}}
	}
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	cases := map[string]struct {
		reason string
		source policy.Source
		err    string // contained in it; "" compiles
		note   string
	}{
		"V1":         {"The syntax of conftest's default.", one(noPublicACL), "", ""},
		"V1Import":   {"With its import.", one(labelled), "", ""},
		"V0":         {"The old one, and the author is told.", one(noLatest), "", "p.rego is in the syntax of Rego v0"},
		"Future":     {"v0 with the keywords of v1.", one("package main\nimport future.keywords\ndeny contains msg if { msg := \"a\" }\n"), "", ""},
		"Nothing":    {"No rules at all.", policy.Source{}, "there are no rules", ""},
		"Empty":      {"An empty file.", one(""), "p.rego", ""},
		"Syntax":     {"A mistake has its place.", one("package main\n\ndeny contains msg if {\n\tmsg := }\n"), "p.rego:4:9: ", ""},
		"SyntaxV0":   {"A mistake in v0 is told as that.", one("package main\n\ndeny[msg] {\n\tmsg = }\n"), "p.rego:4:8: ", ""},
		"TwoErrors":  {"Every mistake is told.", policy.Source{Modules: map[string]string{"a.rego": "package main\n!", "b.rego": "package main\n?"}}, "b.rego:2:1", ""},
		"Unsafe":     {"So are those that only the compiler sees.", one("package main\ndeny contains msg if x == 1\n"), "p.rego:2:", ""},
		"NoRule":     {"A package without rules checks nothing.", one("package main\nallow := true\n"), "no rule deny, violation or warn in package main", ""},
		"NotMain":    {"Nor does one that is not evaluated: the rules of conftest are in main.", one("package terraform\ndeny contains \"a\"\n"), "the files are of package terraform", ""},
		"Package":    {"Unless it is named.", policy.Source{Packages: []string{"terraform.s3"}, Modules: map[string]string{"a": "package terraform.s3\ndeny contains \"a\"\n"}}, "", ""},
		"Complete":   {"conftest passes over a rule that is no set; that would be a hole.", one("package main\ndeny := \"no\" if input.x\n"), "p.rego:2:1: rule deny is not a set: write `deny contains msg if { … }`", ""},
		"Boolean":    {"The most common of these mistakes.", one("package main\ndeny if input.x\n"), "rule deny is not a set", ""},
		"Mapped":     {"`deny[msg] if` is a map in v0 with keywords.", one("package main\nimport future.keywords.if\ndeny[msg] if { msg := \"a\" }\n"), "rule deny is not a set", ""},
		"Function":   {"A function is called by nobody.", one("package main\ndeny(x) contains x if true\n"), "p.rego:2", ""},
		"Exception":  {"An exception that is no set exempts nothing.", one("package main\ndeny contains \"a\"\nexception := [\"a\"]\n"), "rule exception is not a set: write `exception contains rules", ""},
		"Similar":    {"A word that begins alike is no rule.", one("package main\ndenylist := [1]\ndeny contains \"a\"\n"), "", ""},
		"HTTP":       {"Rules see secrets.", one("package main\ndeny contains \"a\" if http.send({\"method\": \"get\", \"url\": \"http://example.org\"})\n"), "p.rego:2:22: function http.send is not available: a rule sees plans", ""},
		"Runtime":    {"The environment is the control plane's.", one("package main\ndeny contains x if x := opa.runtime().env.HOME\n"), "function opa.runtime is not available", ""},
		"Resolver":   {"A host name can carry a secret away.", one("package main\ndeny contains \"a\" if net.lookup_ip_addr(\"example.org\")\n"), "function net.lookup_ip_addr is not available", ""},
		"Schema":     {"A schema can refer to a file.", one("package main\ndeny contains \"a\" if json.match_schema({}, {\"$ref\": \"file:///etc/hostname\"})\n"), "function json.match_schema is not available", ""},
		"CIDR":       {"What computes with addresses reaches nothing.", one("package main\ndeny contains \"a\" if net.cidr_contains(\"10.0.0.0/8\", input.x)\n"), "", ""},
		"Deep":       {"A tower of brackets would overflow the stack.", one("package main\ndeny contains \"a\"\nx := " + deep + "\n"), "p.rego:3: brackets are nested more than 500 deep", ""},
		"DeepText":   {"In a text, brackets are letters.", one("package main\ndeny contains \"a\"\n# " + deep + "\nx := `" + deep + "`\ny := \"\\\"" + deep + "\"\n"), "", ""},
		"Large":      {"Nobody writes 4 MiB of rules.", one("package main\ndeny contains \"a\"\n#" + strings.Repeat("x", 5<<20)), "at most 4194304 are taken", ""},
		"DataHidden": {"Data under the name of a rule would be hidden.", policy.Source{Modules: map[string]string{"p.rego": "package main\ndeny contains \"a\"\n"}, Data: map[string]any{"main": map[string]any{"deny": "x"}}}, "p.rego:2:1: ", ""},

		"CEL":          {"A condition.", cel("plan.counts.destroy == 0"), "", ""},
		"CELSyntax":    {"A mistake has its place.", cel("plan.counts.destroy =="), "cel[1]:1:23: Syntax error", ""},
		"CELField":     {"A misspelled field is found before it is needed.", cel("plan.counts.destory == 0"), "cel[1]:1:12: undefined field 'destory'", ""},
		"CELVariable":  {"A variable that is not given.", cel("user.name == 'a'"), "cel[1]:1:1: undeclared reference to 'user'", ""},
		"CELType":      {"A condition is true or false.", cel("plan.counts.destroy"), "cel[1]:1:1: the condition is a int", ""},
		"CELShadow":    {"The name of a variable for something else.", cel("plan.changes.all(object, size(object.actions) > 0)"), "object is the name of a variable", ""},
		"CELLongNames": {"Names of one's own are free.", cel("plan.changes.all(o, size(o.actions) > 0)"), "", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Compile(t.Context(), tc.source)
			if tc.err == "" {
				if err != nil {
					t.Fatalf("%s: %v", tc.reason, err)
				}
				if got := strings.Join(p.Notes(), "\n"); got != tc.note {
					t.Errorf("%s: note %q, want %q", tc.reason, got, tc.note)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want one with %q", tc.reason, err, tc.err)
			}
		})
	}
}

func compile(t testing.TB, src policy.Source) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCheck(t *testing.T) {
	rule := func(name, enforce, text string) *policy.Policy {
		return compile(t, policy.Source{Name: name, Enforcement: enforce, Modules: map[string]string{"p.rego": "package main\n" + text}})
	}
	failing := "deny contains \"a\" if to_number(\"x\") > 1\n"
	cases := map[string]struct {
		reason                      string
		policies                    []*policy.Policy
		denied, approvals, warnings []string
	}{
		"None": {"Without policies nothing is said.", nil, nil, nil, nil},
		"Sorted": {"Each by its enforcement.", []*policy.Policy{rule("a", "deny", "deny contains \"x\"\n"), rule("b", "approve", "deny contains \"y\"\n"), rule("c", "warn", "deny contains \"z\"\n")},
			[]string{"a: deny: x"}, []string{"b: deny: y"}, []string{"c: deny: z"}},
		"WarnRule": {"What a rule warns of is only told, whatever is enforced.", []*policy.Policy{rule("a", "deny", "warn contains \"x\"\n")}, nil, nil, []string{"a: warn: x"}},
		"Default":  {"No enforcement is deny, and so is one that nobody knows.", []*policy.Policy{rule("a", "", "deny contains \"x\"\n"), rule("b", "Warn", "deny contains \"x\"\n")}, []string{"a: deny: x", "b: deny: x"}, nil, nil},
		"Fails":    {"A rule that fails denies, and says where.", []*policy.Policy{rule("a", "deny", failing)}, []string{"a: the policy cannot be evaluated: p.rego:2:22: to_number: strconv.ParseFloat: parsing \"x\": invalid syntax"}, nil, nil},
		"FailsAsk": {"By its own enforcement: it could not have done more.", []*policy.Policy{rule("a", "approve", failing), rule("b", "warn", failing)}, nil,
			[]string{"a: the policy cannot be evaluated: p.rego:2:22: to_number: strconv.ParseFloat: parsing \"x\": invalid syntax"},
			[]string{"b: the policy cannot be evaluated: p.rego:2:22: to_number: strconv.ParseFloat: parsing \"x\": invalid syntax"}},
		"Broken": {"A policy that does not compile denies.", []*policy.Policy{policy.Broken("a", "", "deny", fmt.Errorf("p.rego:1:1: no\np.rego:2:1: nor")), rule("b", "deny", "deny contains \"x\"\n")},
			[]string{"a: the policy cannot be evaluated: p.rego:1:1: no; p.rego:2:1: nor", "b: deny: x"}, nil, nil},
	}
	text := func(results []policy.Result) (out []string) {
		for _, r := range results {
			out = append(out, r.String())
		}
		return out
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := policy.Check(t.Context(), tc.policies, policy.Input{Plan: []byte(s3)})
			if err != nil {
				t.Fatal(err)
			}
			want := [][]string{tc.denied, tc.approvals, tc.warnings}
			if diff := cmp.Diff(want, [][]string{text(s.Denied), text(s.NeedsApproval), text(s.Warnings)}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	t.Run("UnreadablePlan", func(t *testing.T) {
		s, err := policy.Check(t.Context(), []*policy.Policy{rule("a", "deny", "warn contains \"x\"\n")}, policy.Input{Plan: []byte("{")})
		if err != nil || len(s.Denied) != 1 || !s.Denied[0].Broken {
			t.Errorf("a plan that cannot be read gives %+v, %v, want a denial", s, err)
		}
	})
	t.Run("Interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := policy.Check(ctx, []*policy.Policy{rule("a", "deny", "warn contains \"x\"\n")}, policy.Input{Plan: []byte(s3)}); err == nil {
			t.Errorf("an interrupted evaluation gives a verdict: %+v", s)
		}
	})
}

// TestEndless lets the deadline of the context pass: the rule would take hours.
func TestEndless(t *testing.T) {
	p := compile(t, policy.Source{Modules: map[string]string{"p.rego": `package main
deny contains "a" if {
	n := numbers.range(1, 3000)
	some a in n
	some b in n
	some c in n
	a + b + c == -1
}`}})
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	_, err := p.Evaluate(ctx, policy.Input{Plan: []byte(s3)})
	if err == nil || !strings.Contains(err.Error(), "did not end within the time") {
		t.Errorf("the evaluation ended with %v", err)
	}
}

func TestBounds(t *testing.T) {
	p := compile(t, policy.Source{Name: "p", Data: map[string]any{"long": strings.Repeat("é", 2000)}, Modules: map[string]string{"p.rego": `package main
deny contains msg if { some i in numbers.range(1, 500); msg := sprintf("%03d %s", [i, data.long]) }
warn contains msg if { some i in numbers.range(1, 50); msg := sprintf("w%d", [i]) }`}})
	results, err := p.Evaluate(t.Context(), policy.Input{Plan: []byte(s3)})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 101 || results[100].Message != "450 more results are left out" || results[100].Level != policy.Deny {
		t.Errorf("%d results, the last is %q", len(results), results[len(results)-1])
	}
	for _, r := range results {
		if len(r.Message) > 1024 {
			t.Errorf("a message has %d bytes", len(r.Message))
		}
	}
}

// TestSecrets feeds a canary through everything that marks a value as sensitive.
func TestSecrets(t *testing.T) {
	const canary = "hunter2-canary-\"quoted\""
	quoted, err := json.Marshal(canary)
	if err != nil {
		t.Fatal(err)
	}
	tofu := func(text string) policy.Input {
		return policy.Input{Plan: []byte(strings.ReplaceAll(text, "CANARY", string(quoted)))}
	}
	everything := policy.Source{Modules: map[string]string{"p.rego": `package main
deny_plain contains msg if { walk(input, [_, v]); is_string(v); msg := sprintf("value %s", [v]) }
deny_json contains msg if { msg := json.marshal(input) }
deny_base64 contains msg if { walk(input, [_, v]); is_string(v); msg := base64.encode(v) }
deny_address contains {"msg": "m", "address": v} if { walk(input, [_, v]); is_string(v) }
`}}
	failing := policy.Source{Modules: map[string]string{"p.rego": `package main
deny contains "a" if { walk(input, [_, v]); is_string(v); to_number(v) > 1 }
`}}
	secret := object("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {token: " + base64.StdEncoding.EncodeToString([]byte(canary)) + "}\nstringData: {other: " + string(quoted) + "}\n")
	config := object("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {token: " + string(quoted) + "}\n")
	cases := map[string]struct {
		reason string
		input  policy.Input
	}{
		"After":     {"A marked argument.", tofu(`{"resource_changes": [{"address": "a", "change": {"actions": ["create"], "after": {"password": CANARY}, "after_sensitive": {"password": true}}}]}`)},
		"Before":    {"What it was.", tofu(`{"resource_changes": [{"address": "a", "change": {"actions": ["delete"], "before": {"l": [{"p": CANARY}]}, "before_sensitive": {"l": [{"p": true}]}}}]}`)},
		"Whole":     {"A block that is sensitive as a whole.", tofu(`{"resource_changes": [{"address": "a", "change": {"actions": ["create"], "after": {"x": {"y": [CANARY]}}, "after_sensitive": true}}]}`)},
		"Drift":     {"Drift has marks too.", tofu(`{"resource_drift": [{"address": "a", "change": {"actions": ["update"], "after": {"p": CANARY}, "after_sensitive": {"p": true}}}]}`)},
		"Output":    {"An output.", tofu(`{"output_changes": {"o": {"actions": ["create"], "after": CANARY, "after_sensitive": true}}}`)},
		"Planned":   {"The planned state.", tofu(`{"planned_values": {"root_module": {"resources": [{"address": "a", "values": {"p": CANARY}, "sensitive_values": {"p": true}}]}}}`)},
		"StateOut":  {"An output of the prior state.", tofu(`{"prior_state": {"values": {"outputs": {"o": {"sensitive": true, "value": CANARY}}}}}`)},
		"Variable":  {"A variable that is declared sensitive.", tofu(`{"variables": {"v": {"value": CANARY}}, "configuration": {"root_module": {"variables": {"v": {"sensitive": true}}}}}`)},
		"Masker":    {"A value of the run that nothing marks.", policy.Input{Plan: tofu(`{"x": CANARY}`).Plan, Mask: mask.New([]byte(canary))}},
		"Secret":    {"A Secret's content, encoded and plain.", policy.Input{Objects: []plan.ObjectChange{{Action: plan.ActionCreate, After: secret}}}},
		"Encrypted": {"An object that was encrypted.", policy.Input{Objects: []plan.ObjectChange{{Action: plan.ActionCreate, After: config, Sensitive: true}}}},
		"Unchanged": {"A Secret that stays, in a plan that copies it elsewhere.", policy.Input{Objects: []plan.ObjectChange{{Action: plan.ActionNoop, Before: secret}, {Action: plan.ActionCreate, After: config}}}},
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(canary))
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			results, err := compile(t, everything).Evaluate(t.Context(), tc.input)
			if err != nil {
				t.Fatal(err)
			}
			if len(results) < 4 {
				t.Fatalf("the rules found nothing to tell: %v", results)
			}
			said := fmt.Sprint(results)
			_, err = compile(t, failing).Evaluate(t.Context(), tc.input)
			if err == nil {
				t.Fatal("the failing rule did not fail")
			}
			said += err.Error()
			for _, s := range []string{"hunter2", encoded[:16]} {
				if strings.Contains(said, s) {
					t.Errorf("%s: %q is in\n%s", tc.reason, s, said)
				}
			}
			if !strings.Contains(said, mask.Replacement) {
				t.Errorf("%s: nothing was masked in\n%s", tc.reason, said)
			}
		})
	}
}

func TestReadFiles(t *testing.T) {
	fsys := fstest.MapFS{
		"a.rego":            {Data: []byte("package main\n")},
		"a_test.rego":       {Data: []byte("package main_test\n")},
		"lib/b.rego":        {Data: []byte("package lib\n")},
		"config.yaml":       {Data: []byte("---\nregions: [eu]\n")},
		"more.json":         {Data: []byte(`{"limits": {"a": 1}}`)},
		"limits.yml":        {Data: []byte("limits: {b: 2}\n")},
		"teams/shop/x.yaml": {Data: []byte("owner: ann\n")},
		".git/x.rego":       {Data: []byte("!")},
		"README.md":         {Data: []byte("# no")},
		"empty.yaml":        {Data: []byte("# nothing\n")},
	}
	got, err := policy.ReadFiles(fsys)
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Files{
		Modules: map[string]string{"a.rego": "package main\n", "lib/b.rego": "package lib\n"},
		Tests:   map[string]string{"a_test.rego": "package main_test\n"},
		Data: map[string]any{
			"regions": []any{"eu"}, "limits": map[string]any{"a": 1.0, "b": 2.0},
			"teams": map[string]any{"shop": map[string]any{"owner": "ann"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		reason string
		fsys   fstest.MapFS
		err    string
	}{
		"Twice":     {"Two values under one name.", fstest.MapFS{"a.yaml": {Data: []byte("x: 1")}, "b.yaml": {Data: []byte("x: 2")}}, "b.yaml: another data file has a value for x already"},
		"Directory": {"A value where a directory says that there is an object.", fstest.MapFS{"a.yaml": {Data: []byte("b: 1")}, "b/c.yaml": {Data: []byte("x: 2")}}, "b/c.yaml: the data has another value for b already"},
		"Documents": {"Manifests are not data.", fstest.MapFS{"a.yaml": {Data: []byte("x: 1\n---\ny: 1\n")}}, "a.yaml: a data file is one object, and this has 2"},
		"List":      {"Nor is a list.", fstest.MapFS{"a.json": {Data: []byte("[1]")}}, "a.json: the document is not an object"},
		"Syntax":    {"What cannot be read is named.", fstest.MapFS{"a.yaml": {Data: []byte("x: {")}}, "a.yaml: "},
		"Large":     {"Rules are bounded.", fstest.MapFS{"a.rego": {Data: make([]byte, 5<<20)}}, "a.rego: too large"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := policy.ReadFiles(tc.fsys); err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want one with %q", tc.reason, err, tc.err)
			}
		})
	}
}

// TestReadFilesInRoot: what is outside of a directory is not read, by no link.
func TestReadFilesInRoot(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "secret.rego")
	if err := os.WriteFile(outside, []byte("package main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(dir, "policies")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../secret.rego", filepath.Join(inside, "a.rego")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if files, err := policy.ReadFiles(root.FS()); err == nil {
		t.Errorf("a link led out of the directory: %v", files.Modules)
	}
}

func TestTest(t *testing.T) {
	modules := map[string]string{"a.rego": "package main\ndeny contains \"a\" if input.x == 1\n"}
	cases := map[string]struct {
		reason string
		tests  string
		want   []policy.TestResult
		err    string
	}{
		"Pass": {"A test is true.", "test_ok if { count(deny) == 1 with input as {\"x\": 1} }\n",
			[]policy.TestResult{{Name: "main.test_ok", Outcome: policy.Passed, Location: "a_test.rego:2:1"}}, ""},
		"Fail": {"Undefined is not.", "test_no if { print(\"got\", deny) with input as {}; count(deny) == 1 with input as {} }\n",
			[]policy.TestResult{{Name: "main.test_no", Outcome: policy.Failed, Location: "a_test.rego:2:1", Output: "got set()"}}, ""},
		"Todo": {"A test to come.", "todo_test_later if false\n",
			[]policy.TestResult{{Name: "main.todo_test_later", Outcome: policy.Skipped, Location: "a_test.rego:2:1"}}, ""},
		"Error": {"A test that cannot be carried out.", "x := 1 if 1 == 1\nx := 2 if 1 == 1\ntest_x if x == 1\n",
			[]policy.TestResult{{Name: "main.test_x", Outcome: policy.Errored, Location: "a_test.rego:4:1", Message: "a_test.rego:3:1: rule data.main.x produced conflicting values: 1 at a_test.rego:2 2 at a_test.rego:3"}}, ""},
		"Cases": {"A test of several cases names those that failed.", "test_c[name] if {\n\tsome name, x in {\"one\": 1, \"two\": 2}\n\tcount(deny) == 1 with input as {\"x\": x}\n}\n",
			[]policy.TestResult{{Name: "main.test_c", Outcome: policy.Failed, Location: "a_test.rego:2:1", Message: "cases two"}}, ""},
		"Compile":  {"What does not compile is told with its place.", "test_x if unknown(1)\n", nil, "a_test.rego:2:11: "},
		"Withheld": {"A test has no more than the rules have.", "test_x if http.send({})\n", nil, "function http.send is not available"},
		"None":     {"Without tests there are no results.", "", nil, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := policy.Test(t.Context(), policy.Files{Modules: modules, Tests: map[string]string{"a_test.rego": "package main\n" + tc.tests}})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("%s: error %v, want one with %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSentence(t *testing.T) {
	r := policy.Result{Policy: "prod/acl", Rule: "deny", Address: "a.b", Message: "no"}
	if got := policy.Sentence(nil); got != "" {
		t.Errorf("nothing is %q", got)
	}
	if got, want := policy.Sentence([]policy.Result{r}), "prod/acl: deny: a.b: no"; got != want {
		t.Errorf("one is %q, want %q", got, want)
	}
	if got, want := policy.Sentence([]policy.Result{r, r, r}), "prod/acl: deny: a.b: no (and 2 more)"; got != want {
		t.Errorf("three are %q, want %q", got, want)
	}
}

// FuzzPolicy gives the compilers and the engines any text: they may refuse it, and must
// not end the process.
func FuzzPolicy(f *testing.F) {
	for _, text := range []string{noPublicACL, labelled, noLatest, "package main\ndeny[x] { x := input }\n", "plan.counts.destroy == 0", "object.spec.replicas > 1"} {
		f.Add(text, s3)
		f.Add(text, "kind: Deployment\nmetadata: {name: x}\n")
	}
	f.Fuzz(func(t *testing.T, rules, input string) {
		var objects policy.Input
		if docs, err := policy.Documents([]byte(input)); err == nil {
			for _, d := range docs {
				objects.Objects = append(objects.Objects, plan.ObjectChange{Action: plan.ActionCreate, After: d})
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1e9)
		defer cancel()
		for _, src := range []policy.Source{
			{Modules: map[string]string{"f.rego": rules}},
			{CEL: []v1alpha1.CELRule{{Expression: rules}}},
		} {
			p, err := policy.Compile(ctx, src)
			if err != nil {
				continue
			}
			for _, one := range []policy.Input{{Plan: []byte(input)}, objects} {
				results, err := p.Evaluate(ctx, one)
				if err != nil && len(results) > 0 {
					t.Errorf("results beside an error: %v, %v", results, err)
				}
			}
		}
	})
}
