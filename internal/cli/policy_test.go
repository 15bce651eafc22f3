// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const bucketRules = `package main

deny_public contains msg if {
	some rc in input.resource_changes
	rc.change.after.acl == "public-read"
	msg := sprintf("%s must not be public", [rc.address])
}

warn contains msg if {
	input.kind == "Deployment"
	some c in input.spec.template.spec.containers
	endswith(c.image, ":latest")
	msg := sprintf("runs %s", [c.image])
}
`

const bucketTests = `package main_test

import data.main

test_public if {
	main.deny_public["a must not be public"] with input as {"resource_changes": [{"address": "a", "change": {"after": {"acl": "public-read"}}}]}
}
`

const publicPlan = `{"format_version": "1.2", "resource_changes": [{"address": "aws_s3_bucket.logs", "type": "aws_s3_bucket", "change": {"actions": ["create"], "before": null, "after": {"acl": "public-read", "key": "hunter2-canary"}, "after_sensitive": {"key": true}}}]}`

const latestList = `apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web}
  spec: {template: {spec: {containers: [{name: web, image: "nginx:latest"}]}}}
---
# Nothing here.
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
`

func TestPolicyTest(t *testing.T) {
	cases := map[string]struct {
		reason string
		files  map[string]string
		args   string
		code   int
		stdout string
		stderr string
	}{
		"Pass": {
			reason: "all tests pass",
			files:  map[string]string{"policy/a.rego": bucketRules, "policy/a_test.rego": bucketTests},
			args:   "policy", code: 0,
			stdout: "tests: 1 passed, 0 failed, 0 with errors, 0 skipped\n",
		},
		"Fail": {
			reason: "a test that fails is shown with its place and what it printed",
			files:  map[string]string{"policy/a.rego": bucketRules, "policy/a_test.rego": "package main\n\ntest_none if {\n\tprint(\"got\", deny_public)\n\tcount(deny_public) == 1 with input as {}\n}\n\ntodo_test_later if false\n"},
			args:   "policy", code: 1,
			stdout: "fail  policy/a_test.rego:3:1: main.test_none\n      got set()\nskip  policy/a_test.rego:8:1: main.todo_test_later\ntests: 0 passed, 1 failed, 0 with errors, 1 skipped\n",
		},
		"TestError": {
			reason: "a test that cannot be carried out is an error",
			files:  map[string]string{"policy/a.rego": bucketRules, "policy/a_test.rego": "package main\nx := 1 if true\nx := 2 if 1 == 1\ntest_x if x == 1\n"},
			args:   "policy", code: 2,
			stdout: "error policy/a_test.rego:4:1: main.test_x: policy/a_test.rego:3:1: rule data.main.x produced conflicting values: 1 at policy/a_test.rego:2 2 at policy/a_test.rego:3\ntests: 0 passed, 0 failed, 1 with errors, 0 skipped\n",
			stderr: "terrace: error: policy/a_test.rego:4:1: main.test_x: policy/a_test.rego:3:1: rule data.main.x produced conflicting values: 1 at policy/a_test.rego:2 2 at policy/a_test.rego:3\n",
		},
		"Mistakes": {
			reason: "each mistake is one line with its place",
			files:  map[string]string{"policy/a.rego": "package main\n!", "policy/b_test.rego": bucketTests, "policy/c.rego": "package main\n\n?"},
			args:   "policy", code: 2,
			stderr: "terrace: error: policy/a.rego:2:1: illegal ! character\nterrace: error: policy/c.rego:3:1: illegal token\n",
		},
		"NotASet": {
			reason: "what conftest passes over is told",
			files:  map[string]string{"policy/c.rego": "package main\ndeny if input.x\n", "policy/b_test.rego": bucketTests},
			args:   "policy", code: 2,
			stderr: "terrace: error: policy/c.rego:2:1: rule deny is not a set: write `deny contains msg if { … }`\n",
		},
		"NoTests": {
			reason: "that nothing was tested is not success",
			files:  map[string]string{"policy/a.rego": bucketRules},
			args:   "policy", code: 2,
			stderr: "terrace: error: policy has no tests\nterrace: hint: tests are rules test_… in files that end in _test.rego; --input tries the rules on a plan or on manifests\n",
		},
		"Absent": {
			reason: "a directory that is not there",
			args:   "policy", code: 2,
			stderr: "terrace: error: read policies: open policy: no such file or directory\n",
		},
		"Plan": {
			reason: "a Terraform plan is denied",
			files:  map[string]string{"policy/a.rego": bucketRules, "plan.json": publicPlan},
			args:   "policy --input plan.json", code: 1,
			stdout: "deny  plan.json: deny_public: aws_s3_bucket.logs must not be public\ntests: 0 passed, 0 failed, 0 with errors, 0 skipped\ninputs: 1, 1 denied, 0 warnings\n",
		},
		"Sensitive": {
			reason: "what the plan marks is masked here as well",
			files:  map[string]string{"policy/a.rego": "package main\ndeny contains input.resource_changes[0].change.after.key\n", "plan.json": publicPlan},
			args:   "policy --input plan.json", code: 1,
			stdout: "deny  plan.json: deny: (sensitive value)\ntests: 0 passed, 0 failed, 0 with errors, 0 skipped\ninputs: 1, 1 denied, 0 warnings\n",
		},
		"Manifests": {
			reason: "objects of lists and documents are inputs of their own; a warning is no failure",
			files:  map[string]string{"policy/a.rego": bucketRules, "apps/web.yaml": latestList, "apps/README.md": "no", "apps/.git/x.json": "!"},
			args:   "policy --input apps", code: 0,
			stdout: "warn  apps/web.yaml: Deployment.apps/web: warn: runs nginx:latest\ntests: 0 passed, 0 failed, 0 with errors, 0 skipped\ninputs: 1, 0 denied, 1 warnings\n",
		},
		"EvaluationError": {
			reason: "rules that fail on an input are an error, and the other inputs are told of",
			files:  map[string]string{"policy/a.rego": "package main\ndeny contains \"big\" if to_number(input.x) > 1\n", "a.yaml": "x: one\nkind: A\nmetadata: {name: a}\n", "b.yaml": "x: '2'\nkind: A\nmetadata: {name: a}\n"},
			args:   "policy --input a.yaml --input b.yaml", code: 2,
			stdout: "deny  b.yaml: A/a: deny: big\ntests: 0 passed, 0 failed, 0 with errors, 0 skipped\ninputs: 2, 1 denied, 0 warnings\n",
			stderr: "terrace: error: a.yaml: A/a: policy/a.rego:2:24: to_number: strconv.ParseFloat: parsing \"one\": invalid syntax\n",
		},
		"Package": {
			reason: "rules of another package, in the old syntax",
			files:  map[string]string{"policy/a.rego": "package s3\n\ndeny[msg] {\n\tmsg := input.kind\n}\n", "a.yaml": "kind: A\nmetadata: {name: a}\n"},
			args:   "policy --package s3 --input a.yaml", code: 1,
			stdout: "deny  a.yaml: A/a: deny: A\ntests: 0 passed, 0 failed, 0 with errors, 0 skipped\ninputs: 1, 1 denied, 0 warnings\n",
			stderr: "note: policy/a.rego is in the syntax of Rego v0\n",
		},
		"BadInput": {
			reason: "an input that is neither",
			files:  map[string]string{"policy/a.rego": bucketRules, "a.yaml": "- 1\n"},
			args:   "policy --input a.yaml", code: 2,
			stdout: "tests: 0 passed, 0 failed, 0 with errors, 0 skipped\ninputs: 1, 0 denied, 0 warnings\n",
			stderr: "terrace: error: read input a.yaml: the document is not an object\nterrace: hint: an input is what \"tofu show -json\" prints, or manifests in YAML or JSON\n",
		},
		"EmptyInput": {
			reason: "a directory without inputs is not one whose inputs are fine",
			files:  map[string]string{"policy/a.rego": bucketRules, "apps/README.md": "no"},
			args:   "policy --input apps", code: 2,
			stderr: "terrace: error: read input: apps has no .json, .yaml or .yml files\n",
		},
		"Output": {
			reason: "a format that there is not",
			args:   "policy -o yaml", code: ExitUsage,
			stderr: "terrace: error: test: -o yaml: use text or json\nterrace: hint: see \"policy test --help\"\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := runPolicy(t, tc.files, tc.args)
			if code != tc.code {
				t.Errorf("%s: exit code %d, want %d", tc.reason, code, tc.code)
			}
			if diff := cmp.Diff(tc.stdout, stdout); diff != "" {
				t.Errorf("%s: stdout (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.stderr, stderr); diff != "" {
				t.Errorf("%s: stderr (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestPolicyTestJSON(t *testing.T) {
	code, stdout, _ := runPolicy(t, map[string]string{"policy/a.rego": bucketRules, "policy/a_test.rego": bucketTests, "plan.json": publicPlan}, "policy --input plan.json -o json")
	var got policyReport
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 1 {
		t.Fatalf("exit code %d, %v in\n%s", code, err, stdout)
	}
	if len(got.Tests) != 1 || got.Tests[0].Name != "main_test.test_public" || got.Tests[0].Outcome != "pass" {
		t.Errorf("tests %+v", got.Tests)
	}
	want := []policyResult{{Input: "plan.json", Level: "deny", Rule: "deny_public", Message: "aws_s3_bucket.logs must not be public"}}
	if diff := cmp.Diff(want, got.Results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if _, stdout, _ := runPolicy(t, map[string]string{"policy/a.rego": bucketRules, "policy/a_test.rego": bucketTests}, "policy -o json"); !strings.Contains(stdout, `"results": []`) {
		t.Errorf("no results are not an empty list:\n%s", stdout)
	}
}

// runPolicy runs policy test in a directory with the files.
func runPolicy(t *testing.T, files map[string]string, args string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var out, errs bytes.Buffer
	a := &app{env: Env{Stdout: &out, Stderr: &errs}}
	cmd := newPolicy(a)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"test"}, strings.Fields(args)...))
	code = a.report(cmd.ExecuteContext(t.Context()))
	return code, out.String(), errs.String()
}
