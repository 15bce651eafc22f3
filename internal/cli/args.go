// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// exactly accepts one argument, named in the message when it is missing.
func exactly(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 1:
			return nil
		case 0:
			return usagef(cmd, "needs %s", what)
		}
		return usagef(cmd, "takes one %s, not %d", what, len(args))
	}
}

func atMost(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef(cmd, "%q is too much: it takes %s", args[n], what)
		}
		return nil
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd, "takes no argument, and %q is one", args[0])
	}
	return nil
}

// target connects and finds the one object that a verb is about.
func (a *app) target(cmd *cobra.Command, word string, accepted []kind) (*cluster, object, error) {
	r, err := parseRef(word, accepted)
	if err != nil {
		return nil, object{}, usagef(cmd, "%v", err)
	}
	c, err := a.connect()
	if err != nil {
		return nil, object{}, err
	}
	o, err := c.find(cmd.Context(), r)
	return c, o, err
}

// runTarget finds the unit that word is about, and the id of the run if word names one:
// a Run, by RUN or run/RUN.
func (a *app) runTarget(cmd *cobra.Command, word string) (*cluster, object, string, error) {
	_, name, qualified := strings.Cut(word, "/")
	if !qualified {
		name = word
	}
	if !runName.MatchString(name) {
		c, o, err := a.target(cmd, word, []kind{terraform})
		return c, o, "", err
	}
	c, r, err := a.target(cmd, word, []kind{runs})
	if err != nil {
		return nil, object{}, "", err
	}
	k, ok := kindOf(r.text("spec", "unit", "kind"))
	if !ok {
		return nil, object{}, "", fmt.Errorf("%s: %s: it is of a %q, which has no runs", verbName(cmd), r, r.text("spec", "unit", "kind"))
	}
	o := object{Unstructured: &unstructured.Unstructured{}, Kind: k}
	o.SetNamespace(r.GetNamespace())
	o.SetName(r.text("spec", "unit", "name"))
	return c, o, r.GetName(), nil
}

// runName is the form of a run's id: the time of its begin and what it did.
var runName = regexp.MustCompile(`^[0-9]{8}t[0-9]{6}\.[0-9]{9}z-[a-z]+$`)

// unitArg is the completion of verbs whose one argument is an object of these kinds.
func (a *app) unitArg(accepted []kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeNames(cmd, args, word, accepted)
	}
}

// completionTimeout bounds what a shell waits for after the tab key.
const completionTimeout = 2 * time.Second

// completeNames lists the names of the objects of these kinds in the namespace,
// as KIND/NAME when the word has a kind or when there is more than one. A
// cluster that does not answer completes nothing: a shell is no place for errors.
func (a *app) completeNames(cmd *cobra.Command, _ []string, word string, accepted []kind) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	c, err := a.connect()
	if err != nil {
		return nil, directive
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	prefix, _, qualified := strings.Cut(word, "/")
	if qualified {
		k, ok := kindOf(prefix)
		if !ok {
			return nil, directive
		}
		accepted = []kind{k}
	}
	found, _, err := c.list(ctx, selection{Kinds: accepted, Namespace: c.namespace})
	if err != nil {
		return nil, directive
	}
	var names []string
	for _, o := range found {
		switch {
		case qualified:
			names = append(names, prefix+"/"+o.GetName())
		case o.Kind.Role == unit:
			names = append(names, o.GetName())
		default:
			names = append(names, strings.ToLower(o.Kind.Name)+"/"+o.GetName())
		}
	}
	return names, directive
}

// confirm asks the person at the terminal; doing completes "… : not confirmed".
// Where nobody can be asked it says which flag to give instead.
func (a *app) confirm(cmd *cobra.Command, question, instead string) error {
	if !a.env.Interactive {
		return &usageError{
			err:  fmt.Errorf("%s: nobody can be asked: the input is not a terminal", verbName(cmd)),
			hint: instead,
		}
	}
	fmt.Fprintf(a.env.Stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
	if err != nil && line == "" {
		return fmt.Errorf("%s: read answer: %w", verbName(cmd), err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return fmt.Errorf("%s: %w", verbName(cmd), errDeclined)
}

var errDeclined = errors.New("nothing was done: the answer was no")
