// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// maxCost bounds the work of one evaluation of one condition, in CEL's own units: about a
// second. A condition over ten thousand changes costs less than a hundred thousand. The
// deadline alone would not do: loops in loops see an interruption late.
const maxCost = 400_000

// planValue, countsValue, changeValue and unitValue are the types of the variables plan,
// change and unit. They are types, not maps, so that a misspelled field is found when
// the condition is compiled.
type planValue struct {
	Counts  countsValue   `cel:"counts"`
	Changes []changeValue `cel:"changes"`
}

type countsValue struct {
	Add     int64 `cel:"add"`
	Change  int64 `cel:"change"`
	Destroy int64 `cel:"destroy"`
	Replace int64 `cel:"replace"`
}

type changeValue struct {
	Address string   `cel:"address"`
	Actions []string `cel:"actions"`
	Type    string   `cel:"type"`
}

type unitValue struct {
	Kind      string            `cel:"kind"`
	Namespace string            `cel:"namespace"`
	Name      string            `cel:"name"`
	Labels    map[string]string `cel:"labels"`
}

// variables of conditions. Those that are true stand for one change each, and the
// condition is evaluated for each change that creates or changes something.
var variables = map[string]bool{"plan": false, "unit": false, "change": true, "object": true}

// condition is a compiled CEL rule.
type condition struct {
	where   string
	message string
	each    bool // it looks at an object or its change
	program cel.Program
}

func compileCEL(rules []v1alpha1.CELRule) ([]condition, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	env, err := cel.NewEnv(
		cel.OptionalTypes(), // before the native types, which wrap what knows types
		ext.NativeTypes(reflect.TypeFor[planValue](), reflect.TypeFor[countsValue](), reflect.TypeFor[changeValue](), reflect.TypeFor[unitValue](), ext.ParseStructTags(true)),
		ext.Strings(), ext.Sets(), cel.CrossTypeNumericComparisons(true),
		cel.Variable("plan", cel.ObjectType("policy.planValue")),
		cel.Variable("unit", cel.ObjectType("policy.unitValue")),
		cel.Variable("change", cel.ObjectType("policy.changeValue")),
		cel.Variable("object", cel.DynType),
	)
	if err != nil {
		return nil, fmt.Errorf("compile: make the environment of conditions: %w", err)
	}
	var out []condition
	var errs []error
	for i, r := range rules {
		c, err := compileCondition(env, fmt.Sprintf("cel[%d]", i), r)
		errs = append(errs, err)
		out = append(out, c)
	}
	return out, errors.Join(errs...)
}

func compileCondition(env *cel.Env, where string, r v1alpha1.CELRule) (condition, error) {
	tree, issues := env.Compile(r.Expression)
	if issues.Err() != nil {
		var errs []error
		for _, e := range issues.Errors() {
			errs = append(errs, fmt.Errorf("%s:%d:%d: %s", where, e.Location.Line(), e.Location.Column()+1, e.Message))
		}
		return condition{}, errors.Join(errs...)
	}
	if t := tree.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return condition{}, fmt.Errorf("%s:1:1: the condition is a %s, and must be true or false", where, t)
	}
	c := condition{where: where, message: r.Message}
	if c.message == "" {
		c.message = "must be true: " + r.Expression
	}
	for _, ref := range tree.NativeRep().ReferenceMap() {
		c.each = c.each || variables[ref.Name]
	}
	if name := shadowed(tree.NativeRep().Expr()); name != "" {
		return condition{}, fmt.Errorf("%s:1:1: %s is the name of a variable that is given; choose another for the elements of a list", where, name)
	}
	program, err := env.Program(tree, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(100), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return condition{}, fmt.Errorf("%s:1:1: %w", where, err)
	}
	c.program = program
	return c, nil
}

// shadowed returns a variable whose name is used for the elements of a list as well. With
// it one could not tell whether the condition is about each object or about the plan.
func shadowed(e celast.Expr) (name string) {
	celast.PostOrderVisit(e, celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() != celast.ComprehensionKind {
			return
		}
		for _, v := range []string{e.AsComprehension().IterVar(), e.AsComprehension().IterVar2()} {
			if _, taken := variables[v]; taken {
				name = v
			}
		}
	}))
	return name
}

// evaluate gives a Result for each time that the condition does not hold.
func (c *condition) evaluate(ctx context.Context, doc *document) ([]Result, error) {
	if !c.each {
		return c.hold(ctx, doc, changeValue{}, nil)
	}
	var out []Result
	for _, o := range doc.changes {
		if !o.makes() {
			continue
		}
		res, err := c.hold(ctx, doc, o.changeValue, o.object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Address, err)
		}
		out = append(out, res...)
	}
	return out, nil
}

func (c *condition) hold(ctx context.Context, doc *document, change changeValue, object map[string]any) ([]Result, error) {
	v, _, err := c.program.ContextEval(ctx, map[string]any{"plan": doc.plan, "unit": doc.unit, "change": change, "object": object})
	switch {
	case ctx.Err() != nil:
		return nil, errInterrupted
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.where, err)
	}
	held, ok := v.Value().(bool)
	if !ok {
		return nil, fmt.Errorf("%s: the condition is a %s, and must be true or false", c.where, v.Type().TypeName())
	}
	if held {
		return nil, nil
	}
	return []Result{{Rule: c.where, Level: Deny, Message: c.message, Address: change.Address}}, nil
}
