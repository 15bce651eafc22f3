// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/policy"
)

// Exit codes of policy test.
const (
	exitPolicyFailed = 1
	exitPolicyError  = 2
)

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Test policies before they are in force",
		Long: `Test the rules of Policy objects. The objects themselves, and whether their rules can
be used, are shown by "terrace kubectl get policies".`,
		Example: `  terrace policy test ./policy
  terrace kubectl get policies -A`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyTest(a))
	return cmd
}

// policyTest are the flags of policy test.
type policyTest struct {
	inputs   []string
	packages []string
	output   string
}

func newPolicyTest(a *app) *cobra.Command {
	var f policyTest
	cmd := &cobra.Command{
		Use:   "test DIR",
		Short: "Run the tests of policies, and try them on plans and manifests",
		Long: `Compile the Rego rules of a directory as a Policy with that source would, and run its
tests: rules test_… in files that end in _test.rego. No cluster is needed.

With --input the rules are evaluated as well: over a Terraform plan as
"tofu show -json" prints it, over the objects of YAML or JSON manifests, or over every
such file of a directory.

The exit code is 0 when all tests passed and nothing was denied, 1 when a test failed
or something was denied, 2 when the rules could not be compiled or evaluated.`,
		Example: `  terrace policy test ./policy
  tofu show -json plan.bin > plan.json && terrace policy test ./policy --input plan.json
  terrace policy test ./policy --input ./apps/production -o json`,
		Args: exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.output != "text" && f.output != "json" {
				return usagef(cmd, "-o %s: use text or json", f.output)
			}
			kept, err := a.testPolicy(cmd, f, args[0])
			switch {
			case err != nil:
				return &codedError{err: err, code: exitPolicyError}
			case !kept:
				return exitCode(exitPolicyFailed)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&f.inputs, "input", nil, "plan, manifests or a directory to evaluate the rules over; may be repeated")
	cmd.Flags().StringSliceVar(&f.packages, "package", nil, "packages whose rules are evaluated, as in spec.packages (default main)")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	return cmd
}

// policyReport is what policy test prints with -o json.
type policyReport struct {
	Tests   []policy.TestResult `json:"tests"`
	Results []policyResult      `json:"results"`
}

// policyResult is what the rules say of one input file.
type policyResult struct {
	Input   string       `json:"input"`
	Level   policy.Level `json:"level"`
	Rule    string       `json:"rule"`
	Address string       `json:"address,omitempty"`
	Message string       `json:"message"`
}

// testPolicy tells whether all tests passed and nothing was denied.
func (a *app) testPolicy(cmd *cobra.Command, f policyTest, dir string) (bool, error) {
	files, err := readPolicy(dir)
	if err != nil {
		return false, err
	}
	if len(files.Tests) == 0 && len(f.inputs) == 0 {
		return false, WithHint(fmt.Errorf("%s has no tests", dir), "tests are rules test_… in files that end in _test.rego; --input tries the rules on a plan or on manifests")
	}
	p, err := policy.Compile(cmd.Context(), policy.Source{Name: dir, Packages: f.packages, Modules: files.Modules, Data: files.Data})
	if err != nil {
		return false, err
	}
	for _, n := range p.Notes() {
		fmt.Fprintf(a.env.Stderr, "note: %s\n", n)
	}
	report := policyReport{Tests: []policy.TestResult{}, Results: []policyResult{}}
	if len(files.Tests) > 0 {
		if report.Tests, err = policy.Test(cmd.Context(), files); err != nil {
			return false, err
		}
	}
	var broken []error
	inputs, err := inputFiles(f.inputs)
	if err != nil {
		return false, err
	}
	for _, name := range inputs {
		in, err := readInput(name)
		if err != nil {
			broken = append(broken, err)
			continue
		}
		results, err := p.Evaluate(cmd.Context(), in)
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", name, err))
		}
		for _, r := range results {
			report.Results = append(report.Results, policyResult{name, r.Level, r.Rule, r.Address, r.Message})
		}
	}
	if f.output == "json" {
		if err := printValue(a.env.Stdout, "json", report); err != nil {
			return false, err
		}
	} else {
		a.printPolicyReport(report, len(inputs))
	}
	for _, t := range report.Tests {
		if t.Outcome == policy.Errored {
			broken = append(broken, fmt.Errorf("%s: %s: %s", t.Location, t.Name, t.Message))
		}
	}
	return report.kept(), errors.Join(broken...)
}

// kept tells whether all is well.
func (r policyReport) kept() bool {
	failed := func(t policy.TestResult) bool { return t.Outcome == policy.Failed || t.Outcome == policy.Errored }
	denied := func(r policyResult) bool { return r.Level != policy.Warn }
	return !slices.ContainsFunc(r.Tests, failed) && !slices.ContainsFunc(r.Results, denied)
}

// printPolicyReport prints what is not as it should be, and the numbers.
func (a *app) printPolicyReport(r policyReport, inputs int) {
	outcomes := map[policy.Outcome]int{}
	for _, t := range r.Tests {
		outcomes[t.Outcome]++
		if t.Outcome == policy.Passed {
			continue
		}
		line := fmt.Sprintf("%-5s %s: %s", t.Outcome, t.Location, t.Name)
		if t.Message != "" {
			line += ": " + t.Message
		}
		fmt.Fprintln(a.env.Stdout, line)
		for text := range strings.SplitSeq(t.Output, "\n") {
			if text != "" {
				fmt.Fprintln(a.env.Stdout, "      "+text)
			}
		}
	}
	levels := map[policy.Level]int{}
	for _, res := range r.Results {
		levels[res.Level]++
		parts := []string{res.Input, res.Address, res.Rule, res.Message}
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		fmt.Fprintf(a.env.Stdout, "%-5s %s\n", res.Level, strings.Join(parts, ": "))
	}
	fmt.Fprintf(a.env.Stdout, "tests: %d passed, %d failed, %d with errors, %d skipped\n",
		outcomes[policy.Passed], outcomes[policy.Failed], outcomes[policy.Errored], outcomes[policy.Skipped])
	if inputs > 0 {
		fmt.Fprintf(a.env.Stdout, "inputs: %d, %d denied, %d warnings\n", inputs, levels[policy.Deny], levels[policy.Warn])
	}
}

// readPolicy reads the files of a directory; their names begin with its.
func readPolicy(dir string) (policy.Files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return policy.Files{}, fmt.Errorf("read policies: %w", err)
	}
	defer root.Close()
	files, err := policy.ReadFiles(root.FS())
	if err != nil {
		return policy.Files{}, fmt.Errorf("read policies of %s: %w", dir, err)
	}
	placed := func(modules map[string]string) map[string]string {
		out := map[string]string{}
		for name, text := range modules {
			out[filepath.Join(dir, filepath.FromSlash(name))] = text
		}
		return out
	}
	files.Modules, files.Tests = placed(files.Modules), placed(files.Tests)
	return files, nil
}

// inputFiles are the files that are named, and those of the directories that are.
func inputFiles(named []string) ([]string, error) {
	found := map[string]bool{}
	for _, name := range named {
		info, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("read input: %w", err)
		}
		if !info.IsDir() {
			found[name] = true
			continue
		}
		before := len(found)
		err = filepath.WalkDir(name, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && file != name && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			if !d.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(file)) {
				found[file] = true
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read input: %w", err)
		}
		if len(found) == before {
			return nil, fmt.Errorf("read input: %s has no .json, .yaml or .yml files", name)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// readInput reads a Terraform plan, or the objects of manifests.
func readInput(name string) (policy.Input, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return policy.Input{}, fmt.Errorf("read input: %w", err)
	}
	documents, err := policy.Documents(data)
	if err != nil {
		return policy.Input{}, WithHint(fmt.Errorf("read input %s: %w", name, err), `an input is what "tofu show -json" prints, or manifests in YAML or JSON`)
	}
	if len(documents) == 1 && isPlan(documents[0]) {
		return policy.Input{Unit: policy.Unit{Kind: terraform.Name}, Plan: data}, nil
	}
	in := policy.Input{Unit: policy.Unit{Kind: kustomization.Name}}
	for _, d := range documents {
		for _, o := range objectsIn(d) {
			in.Objects = append(in.Objects, plan.ObjectChange{Action: plan.ActionCreate, After: o})
		}
	}
	return in, nil
}

// isPlan tells a Terraform plan from an object of Kubernetes.
func isPlan(d map[string]any) bool {
	_, version := d["format_version"]
	_, changes := d["resource_changes"]
	return version || changes
}

// objectsIn are the objects of a List, or the object itself.
func objectsIn(d map[string]any) []map[string]any {
	items, ok := d["items"].([]any)
	kind, _ := d["kind"].(string)
	if !ok || !strings.HasSuffix(kind, "List") {
		return []map[string]any{d}
	}
	var out []map[string]any
	for _, i := range items {
		if o, ok := i.(map[string]any); ok {
			out = append(out, o)
		}
	}
	return out
}
