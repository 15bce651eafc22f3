// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

// TestCompilersAreBounded: those that are left behind count until they end.
func TestCompilersAreBounded(t *testing.T) {
	release, begun, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	for range cap(compilers) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-begun
			cancel()
		}()
		_, err := within(ctx, func(context.Context) (int, error) {
			begun <- struct{}{}
			<-release
			defer func() { ended <- struct{}{} }()
			return 1, nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("a compiler that does not end gives %v", err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := within(gone, func(context.Context) (int, error) { t.Error("one more compiler is begun"); return 1, nil }); !errors.Is(err, ErrBusy) {
		t.Errorf("with all of them at work: %v, want %v", err, ErrBusy)
	}
	close(release)
	for range cap(compilers) {
		<-ended
	}
	if n, err := within(t.Context(), func(context.Context) (int, error) { return 1, nil }); n != 1 || err != nil {
		t.Errorf("when they have ended: %d, %v", n, err)
	}
}

// TestCompilerStops: after the stage in which it is told to.
func TestCompilerStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newCompiler(ctx, nil, false)
	stages := 0
	for _, s := range []ast.StageID{ast.StageResolveRefs, ast.StageCheckTypes} {
		c.WithStageAfterID(s, ast.CompilerStageDefinition{Name: "look", MetricName: "look", Stage: func(*ast.Compiler) *ast.Error {
			stages++
			cancel()
			return nil
		}})
	}
	m, err := ast.ParseModule("m.rego", "package main\n\ndeny contains 1 if true\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Compile(map[string]*ast.Module{"m.rego": m}); stages != 1 {
		t.Errorf("%d stages are run after the end", stages-1)
	}
	_, _, err = (&Policy{}).build(ctx, map[string]string{"m.rego": "package main\n\ndeny contains 1 if true\n"}, nil, false)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("rules that are not compiled to their end give %v", err)
	}
}

// TestDigestOfBroken: what a network says differs from try to try.
func TestDigestOfBroken(t *testing.T) {
	digest := func(version, enforce string, err error) string {
		return Digest([]*Policy{Broken("a", version, enforce, err)})
	}
	one := digest("", "deny", errors.New("dial 10.0.0.1:443: refused"))
	for name, tc := range map[string]struct {
		reason string
		other  string
		same   bool
	}{
		"Text":        {"Another text of the error is not another policy.", digest("", "deny", errors.New("dial 10.0.0.2:443: timeout")), true},
		"Content":     {"Content that is broken is not content that cannot be had.", digest("v1", "deny", errors.New("x")), false},
		"Enforcement": {"It decides what the policy's failure leads to.", digest("", "warn", errors.New("dial 10.0.0.1:443: refused")), false},
		"Mended":      {"A policy that works is another one.", Digest([]*Policy{{name: "a", enforcement: "deny"}}), false},
	} {
		t.Run(name, func(t *testing.T) {
			if (tc.other == one) != tc.same {
				t.Errorf("%s: the same digest: %v", tc.reason, tc.other == one)
			}
		})
	}
}
