// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy evaluates rules over plans: Rego by the conventions of conftest, and
// CEL conditions.
//
// It reaches no cluster, no network and no file: rules, data and plans are handed in as
// values, and what comes out are results and a verdict. Rules are written by people
// whom the owner of the namespace trusts, over plans that hold secrets. So a rule
// cannot send anything anywhere, is stopped after a time, and what it says is masked.
//
// Everything fails closed. A policy that cannot be compiled, that has no rule to
// evaluate, that errs or that takes too long counts as a violation of itself.
package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// Timeout bounds one evaluation of one policy, over all objects of a plan, unless the
// context ends sooner.
const Timeout = 10 * time.Second

// Main is the Rego package that is evaluated if a Source names none, as in conftest.
const Main = "main"

// Source is what a Policy is made of.
type Source struct {
	// Name is the policy's name in results and errors, "namespace/name" for an object.
	Name string
	// Version tells one content of the policy from another; see Digest. It may be empty.
	Version string
	// Enforcement says what a violation leads to: v1alpha1.EnforceDeny, EnforceApprove or
	// EnforceWarn. Empty, and every other value, means deny.
	Enforcement string
	// Packages are the Rego packages whose rules are evaluated, such as "terraform.s3". Empty
	// means Main. The others are there to be imported.
	Packages []string
	// Modules are Rego modules by the name of their file, which errors repeat.
	Modules map[string]string
	// Data are the documents that rules see as data.
	Data map[string]any
	// CEL are conditions that must hold.
	CEL []v1alpha1.CELRule
}

// Policy is a compiled set of rules, or one that is broken. It is immutable and safe for
// concurrent use.
type Policy struct {
	name        string
	version     string
	enforcement string
	err         error    // why it is broken
	notes       []string // what its author should know

	rules []rule // with a Rego query
	query rego.PreparedEvalQuery

	conditions []condition // in CEL
}

// compileTimeout bounds the compilation of one policy. Rules are compiled in less than a
// second, but for those that are made to take long.
const compileTimeout = 30 * time.Second

// Compile makes a Policy of its source. The error says the file, the line and the column
// of every mistake, one a line. It is an error if there is no rule: a policy that says
// nothing would be taken for one that is kept.
func Compile(ctx context.Context, src Source) (*Policy, error) {
	if len(src.Modules) == 0 && len(src.CEL) == 0 {
		return nil, errors.New("compile: there are no rules")
	}
	return within(ctx, func(ctx context.Context) (*Policy, error) {
		p := &Policy{name: src.Name, version: src.Version, enforcement: enforcement(src.Enforcement)}
		if len(src.Modules) > 0 {
			if err := p.compileRego(ctx, src); err != nil {
				return nil, err
			}
		}
		var err error
		if p.conditions, err = compileCEL(src.CEL); err != nil {
			return nil, err
		}
		return p, nil
	})
}

// ErrBusy says that rules were not compiled because too many compilers still work on others
// that take too long. It says nothing about the rules: they can be tried again.
var ErrBusy = errors.New("rules of other policies take too long to compile, and the compilers still work on them")

// compilers bounds how many compilers are at work, those that were left behind included: what
// a person can make run for long, by writing policies, is no more than that.
var compilers = make(chan struct{}, 4)

// within runs a compiler, which is given what anybody may write. It is asked to stop between
// its stages; one that does not come to their end in time is left behind, and counts until it
// ends. A mistake of its own must not end the control plane, nor pass for a policy.
func within[T any](ctx context.Context, compile func(context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, compileTimeout, errors.New("the rules take too long to compile; make them fewer or simpler"))
	defer cancel()
	select {
	case compilers <- struct{}{}:
	case <-ctx.Done():
		return v, fmt.Errorf("compile: %w", ErrBusy)
	}
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if r := recover(); r != nil {
				o.err = fmt.Errorf("compile: the compiler failed on these rules: %v", r)
			}
			<-compilers
			done <- o
		}()
		o.v, o.err = compile(ctx)
	}()
	select {
	case o := <-done:
		return o.v, o.err
	case <-ctx.Done():
		return v, fmt.Errorf("compile: %w", context.Cause(ctx))
	}
}

// Broken returns a Policy that cannot be evaluated because of err. It stands for one that
// should be there, so that its absence is not taken for consent. The version is that of the
// content which is broken, empty if it is not the content but that it cannot be had.
func Broken(name, version, enforce string, err error) *Policy {
	return &Policy{name: name, version: version, enforcement: enforcement(enforce), err: err}
}

// Digest tells one set of policies from another: by names, versions, enforcement, and which
// are broken. Why one is broken is not in it: an error of the network has another text at
// each try. What was evaluated with a set of the same digest need not be evaluated again,
// unless a rule asks for the time.
func Digest(policies []*Policy) string {
	h := sha256.New()
	for _, p := range policies {
		broken := ""
		if p.err != nil {
			broken = "broken"
		}
		fmt.Fprintf(h, "%q %q %q %q\n", p.name, p.version, p.enforcement, broken)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Name is the name that the Source gave.
func (p *Policy) Name() string { return p.name }

// Enforcement is what a violation leads to.
func (p *Policy) Enforcement() string { return p.enforcement }

// Err says why the policy is broken, nil if it is not.
func (p *Policy) Err() error { return p.err }

// Notes say what the author should know of rules that work: that a file is in the
// syntax of Rego v0, for one.
func (p *Policy) Notes() []string { return slices.Clone(p.notes) }

// enforcement reads what a violation leads to; what cannot be understood denies.
func enforcement(word string) string {
	switch word {
	case v1alpha1.EnforceApprove, v1alpha1.EnforceWarn:
		return word
	}
	return v1alpha1.EnforceDeny
}

// Unit is what policies are selected by, and what they may look at beside the plan.
type Unit struct {
	// Kind is Terraform or Kustomization.
	Kind            string
	Namespace, Name string
	Labels          map[string]string
}

// Set has the policies that there are.
type Set interface {
	// For returns the policies that a unit has to keep, ordered by name. Those that cannot
	// be used are among them, as broken ones. An error means that it is not known which
	// policies there are: nothing may be applied.
	For(ctx context.Context, unit Unit) ([]*Policy, error)
}
