// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/plan"
)

// Level is what a rule says of itself.
type Level string

const (
	// Deny is the level of rules deny and violation, and of CEL conditions. What becomes of
	// it is the policy's enforcement.
	Deny Level = "deny"
	// Warn is the level of rules warn: it is told and no more.
	Warn Level = "warn"
)

const (
	// maxMessage bounds the message of a Result, in bytes.
	maxMessage = 1024
	// maxResults bounds the results of one policy.
	maxResults = 100
)

// Result is one thing that a policy has to say of a plan.
type Result struct {
	// Policy is the name of the policy.
	Policy string `json:"policy"`
	// Rule is the name of the rule ("deny_public_acl", "cel[0]"), empty if the policy is broken.
	Rule string `json:"rule,omitempty"`
	// Level is what the rule says of itself.
	Level Level `json:"level"`
	// Enforcement is the policy's: deny, approve or warn.
	Enforcement string `json:"enforcement"`
	// Message is for people: at most 1,024 bytes, and without secrets.
	Message string `json:"message"`
	// Address is the resource or the object that it is about, empty if it is not known.
	Address string `json:"address,omitempty"`
	// Broken tells that the policy could not be evaluated.
	Broken bool `json:"broken,omitempty"`
}

// String gives "policy: rule: address: message", without what is not known.
func (r Result) String() string {
	parts := slices.DeleteFunc([]string{r.Policy, r.Rule, r.Address, r.Message}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Summary is what results amount to.
type Summary struct {
	// Denied are the violations that forbid to apply the plan.
	Denied []Result `json:"denied,omitempty"`
	// NeedsApproval are the violations that ask for an approval of the plan.
	NeedsApproval []Result `json:"needsApproval,omitempty"`
	// Warnings forbid nothing.
	Warnings []Result `json:"warnings,omitempty"`
}

// Verdict sorts results by what they lead to. A result that it cannot understand denies.
func Verdict(results []Result) Summary {
	var s Summary
	for _, r := range results {
		switch {
		case r.Level == Warn, r.Enforcement == v1alpha1.EnforceWarn:
			s.Warnings = append(s.Warnings, r)
		case r.Enforcement == v1alpha1.EnforceApprove:
			s.NeedsApproval = append(s.NeedsApproval, r)
		default:
			s.Denied = append(s.Denied, r)
		}
	}
	return s
}

// Results are what the summary has, for a plan to hold and to show.
func (s Summary) Results() []plan.PolicyResult {
	var out []plan.PolicyResult
	for _, of := range []struct {
		effect  plan.PolicyEffect
		results []Result
	}{{plan.PolicyDenies, s.Denied}, {plan.PolicyAsks, s.NeedsApproval}, {plan.PolicyWarns, s.Warnings}} {
		for _, r := range of.results {
			out = append(out, plan.PolicyResult{Policy: r.Policy, Rule: r.Rule, Address: r.Address, Message: r.Message, Effect: of.effect})
		}
	}
	return out
}

// Sentence writes results for a condition: the first of them, and how many more there
// are. It is empty if there is none.
func Sentence(results []Result) string {
	switch len(results) {
	case 0:
		return ""
	case 1:
		return results[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", results[0], len(results)-1)
}

// Failure is the Result that stands for a policy that could not be evaluated.
func (p *Policy) Failure(err error) Result {
	return Result{
		Policy: p.name, Level: Deny, Enforcement: p.enforcement, Broken: true,
		Message: cut("the policy cannot be evaluated: " + strings.ReplaceAll(err.Error(), "\n", "; ")),
	}
}

// Check evaluates policies over a plan. A policy that is broken, fails or takes too
// long violates itself, by the enforcement that it has. The only error is that of the
// context: the caller was interrupted, and nothing is known.
func Check(ctx context.Context, policies []*Policy, in Input) (Summary, error) {
	if len(policies) == 0 {
		return Summary{}, nil
	}
	doc, err := guard(func() (*document, error) { return read(in) })
	var all []Result
	for _, p := range policies {
		var results []Result
		errOne := err
		if errOne == nil {
			results, errOne = p.evaluate(ctx, doc)
		}
		if ctx.Err() != nil {
			return Summary{}, fmt.Errorf("evaluate policies: %w", context.Cause(ctx))
		}
		if errOne != nil {
			results = []Result{p.Failure(errOne)}
		}
		all = append(all, results...)
	}
	return Verdict(all), nil
}

// Evaluate gives what a policy has to say of a plan, in a stable order, with secrets
// masked. An error means that it could not be evaluated, and says where: it counts as
// a violation, see Failure.
func (p *Policy) Evaluate(ctx context.Context, in Input) ([]Result, error) {
	doc, err := guard(func() (*document, error) { return read(in) })
	if err != nil {
		return nil, err
	}
	return p.evaluate(ctx, doc)
}

func (p *Policy) evaluate(ctx context.Context, doc *document) ([]Result, error) {
	if p.err != nil {
		return nil, p.err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	results, err := guard(func() ([]Result, error) { return p.results(ctx, doc) })
	switch {
	case errors.Is(err, errInterrupted) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, errors.New("the rules did not end within the time that they have; look for loops over loops")
	case err != nil:
		return nil, errors.New(cut(doc.hide(err.Error())))
	}
	for i := range results {
		r := &results[i]
		r.Policy, r.Enforcement = p.name, p.enforcement
		r.Message, r.Address = cut(doc.hide(r.Message)), cut(doc.hide(r.Address))
	}
	slices.SortStableFunc(results, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Message, b.Message))
	})
	return p.bounded(slices.Compact(results)), nil
}

// bounded keeps the first results, denials before warnings, and says how many there were.
func (p *Policy) bounded(results []Result) []Result {
	more := len(results) - maxResults
	if more <= 0 {
		return results
	}
	rest := results[maxResults]
	rest.Address, rest.Message = "", fmt.Sprintf("%d more results are left out", more)
	return append(results[:maxResults:maxResults], rest)
}

// results evaluates everything that there is.
func (p *Policy) results(ctx context.Context, doc *document) ([]Result, error) {
	var out []Result
	if len(p.rules) > 0 {
		for _, in := range doc.inputs {
			res, err := p.evaluateRego(ctx, in.value, in.address)
			if err != nil {
				return nil, about(in.address, err)
			}
			out = append(out, res...)
		}
	}
	for i := range p.conditions {
		res, err := p.conditions[i].evaluate(ctx, doc)
		if err != nil {
			return nil, err
		}
		out = append(out, res...)
	}
	return out, nil
}

func about(address string, err error) error {
	if address == "" {
		return err
	}
	return fmt.Errorf("%s: %w", address, err)
}

// guard turns a panic into an error: the engines are given what anybody may write. What
// the panic says is left out, it may quote a value.
func guard[T any](do func() (T, error)) (v T, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the engine failed on these rules and this plan")
		}
	}()
	return do()
}

// cut bounds a text that goes into results.
func cut(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}
