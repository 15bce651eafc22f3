// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// eventKind lets events be listed and watched like the other kinds.
var eventKind = kind{Name: "Event", Resource: schema.GroupVersionResource{Version: "v1", Resource: "events"}}

type eventOptions struct {
	all, watch, wide bool
	types            []string
}

func newEvents(a *app) *cobra.Command {
	var o eventOptions
	cmd := &cobra.Command{
		Use:   "events [UNIT]",
		Short: "Show what happened to units and sources",
		Long: `Show the events of units and sources, the oldest first. The API server forgets
events after an hour.`,
		Example: `  terrace events
  terrace events tf/network -w
  terrace events -A --types Warning`,
		Args:              atMost(1, "UNIT"),
		ValidArgsFunction: a.unitArg(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.events(cmd, o, args)
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&o.all, "all-namespaces", "A", false, "in all namespaces")
	fs.BoolVarP(&o.watch, "watch", "w", false, "go on with what happens, until interrupted")
	fs.BoolVar(&o.wide, "wide", false, "whole messages, over several lines")
	fs.StringSliceVar(&o.types, "types", nil, "only these types: Normal, Warning")
	return cmd
}

func (a *app) events(cmd *cobra.Command, opts eventOptions, args []string) error {
	for _, t := range opts.types {
		if t != corev1.EventTypeNormal && t != corev1.EventTypeWarning {
			return usagef(cmd, "--types %s: use Normal or Warning", t)
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	s := selection{Kinds: []kind{eventKind}, Namespace: c.namespace}
	if opts.all {
		s.Namespace = ""
	}
	about := ref{Kinds: kinds}
	if len(args) > 0 {
		if about, err = parseRef(args[0], kinds); err != nil {
			return usagef(cmd, "%v", err)
		}
		s.Fields = fields.OneTermEqualSelector("involvedObject.name", about.Name).String()
	}
	return a.printEvents(cmd.Context(), c, s, about, opts)
}

func (a *app) printEvents(ctx context.Context, c *cluster, s selection, about ref, opts eventOptions) error {
	found, versions, err := c.list(ctx, s)
	if err != nil {
		return err
	}
	header := []string{"LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"}
	if opts.all {
		header = slices.Insert(header, 1, "NAMESPACE")
	}
	t := newTable(a.env.Stdout, a.painter(), header...)
	var listed []corev1.Event
	for _, o := range found {
		if e, ok := selected(o, about, opts); ok {
			listed = append(listed, e)
		}
	}
	slices.SortStableFunc(listed, func(a, b corev1.Event) int {
		return cmp.Or(lastSeen(a).Compare(lastSeen(b)), cmp.Compare(a.Name, b.Name))
	})
	var rows [][]string
	for _, e := range listed {
		rows = append(rows, eventRow(e, opts, a.env.Now()))
	}
	if len(rows) == 0 && !opts.watch {
		fmt.Fprintln(a.env.Stderr, "no events found")
		return nil
	}
	t.print(true, rows...)
	if !opts.watch {
		return nil
	}
	return c.follow(ctx, s, versions, func(o object) error {
		if e, ok := selected(o, about, opts); ok && !o.deleted {
			t.print(false, eventRow(e, opts, a.env.Now()))
		}
		return nil
	})
}

// selected converts an event and tells whether it is one to print.
func selected(o object, about ref, opts eventOptions) (corev1.Event, bool) {
	var e corev1.Event
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &e); err != nil {
		return e, false
	}
	if len(opts.types) > 0 && !slices.Contains(opts.types, e.Type) {
		return e, false
	}
	return e, slices.ContainsFunc(about.Kinds, func(k kind) bool {
		return k.Name == e.InvolvedObject.Kind && strings.HasPrefix(e.InvolvedObject.APIVersion, k.Resource.Group+"/")
	})
}

// lastSeen is when an event happened last; events of the older and of the newer
// API keep it in different fields.
func lastSeen(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func eventRow(e corev1.Event, opts eventOptions, now time.Time) []string {
	text := strings.TrimSpace(e.Message)
	if !opts.wide {
		var cut bool
		if text, _, cut = strings.Cut(text, "\n"); cut {
			text += " …"
		}
	}
	row := []string{age(lastSeen(e), now), e.Type, e.Reason, e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, text}
	if opts.all {
		row = slices.Insert(row, 1, e.Namespace)
	}
	return row
}
