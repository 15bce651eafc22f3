// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
)

// Outcome is how a test ended.
type Outcome string

// Outcomes of tests. An Errored test could not be carried out; a Skipped one has a name
// that begins with todo_.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Errored Outcome = "error"
	Skipped Outcome = "skip"
)

// TestResult is one test of a policy.
type TestResult struct {
	// Name is package.rule, without "data.".
	Name string `json:"name"`
	// Outcome is how it ended.
	Outcome Outcome `json:"outcome"`
	// Location is file:line:column of the rule.
	Location string `json:"location"`
	// Message says what was wrong, or which of its cases failed.
	Message string `json:"message,omitempty"`
	// Output is what the test printed.
	Output string `json:"output,omitempty"`
}

// Test runs the tests of a directory: rules whose names begin with test_, as opa and
// conftest run them, with the functions that policies have here. Results are ordered by
// place. The error is that of rules that do not compile; it says where.
func Test(ctx context.Context, f Files) ([]TestResult, error) {
	all := map[string]string{}
	maps.Copy(all, f.Modules)
	maps.Copy(all, f.Tests)
	// Compiled once for its errors, which the runner would not place.
	modules, err := within(ctx, func(ctx context.Context) (map[string]*ast.Module, error) {
		_, modules, err := (&Policy{}).build(ctx, all, f.Data, true)
		return modules, err
	})
	if err != nil {
		return nil, err
	}
	compiler := newCompiler(ctx, f.Data, true)
	store := inmem.NewFromObject(emptyIfNil(f.Data))
	txn, err := store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		return nil, fmt.Errorf("open the data: %w", err)
	}
	defer store.Abort(ctx, txn)
	found, err := tester.NewRunner().
		SetCompiler(compiler).SetStore(store).SetModules(modules).
		SetTimeout(Timeout).SetParallel(1).CapturePrintOutput(true).
		RunTests(ctx, txn)
	if err != nil {
		return nil, located(err)
	}
	var results []TestResult
	for r := range found {
		results = append(results, testResult(r))
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("run tests: %w", context.Cause(ctx))
	}
	slices.SortFunc(results, func(a, b TestResult) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), cmp.Compare(a.Name, b.Name))
	})
	return results, nil
}

func testResult(r *tester.Result) TestResult {
	out := TestResult{
		Name:     strings.TrimPrefix(r.Package, "data.") + "." + r.Name,
		Outcome:  Passed,
		Location: at(r.Location),
		Output:   string(bytes.TrimSpace(r.Output)),
	}
	switch {
	case r.Skip:
		out.Outcome = Skipped
	case r.Error != nil:
		out.Outcome = Errored
		out.Message = runtimeError(r.Error).Error()
		if errors.Is(runtimeError(r.Error), errInterrupted) {
			out.Message = "the test did not end in time"
		}
	case r.Fail:
		out.Outcome = Failed
		var cases []string
		for names, sub := range r.SubResults.Iter {
			if sub.Fail && len(sub.SubResults) == 0 {
				cases = append(cases, strings.Join(names, "/"))
			}
		}
		if slices.Sort(cases); len(cases) > 0 {
			out.Message = "cases " + strings.Join(cases, ", ")
		}
	}
	return out
}
