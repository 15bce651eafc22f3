// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

type getOptions struct {
	all, watch, noHeaders bool
	labels, output        string
}

func newGet(a *app) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get [units | sources | runs | all | KIND | UNIT]",
		Short: "List units, sources and runs with their state",
		Long: `List units (the default), sources, both ("all"), the runs that are kept, the
objects of one kind, or one object.

PLAN is the id of the plan that waits for an approval; "terrace show plan UNIT"
shows it. REVISION is what a unit last applied and a source last fetched. Rows
are ordered by namespace, kind and name.`,
		Example: `  terrace get                        # the units of the namespace
  terrace get sources -A             # every source
  terrace get runs -l terrace.dev/unit=Terraform.network
  terrace get tf/network -o yaml     # one unit, as the API has it
  terrace get -l terrace.dev/layer=network -w`,
		Args: atMost(1, "units, sources, runs, all, KIND or UNIT"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			names, d := a.completeNames(cmd, args, word, kinds)
			return append(names, "units", "sources", "runs", "all"), d
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.get(cmd, o, args)
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&o.all, "all-namespaces", "A", false, "in all namespaces")
	fs.BoolVarP(&o.watch, "watch", "w", false, "go on with what changes, until interrupted")
	fs.StringVarP(&o.labels, "selector", "l", "", "only what this label selector matches")
	fs.StringVarP(&o.output, "output", "o", "", "wide, json, yaml or name")
	fs.BoolVar(&o.noHeaders, "no-headers", false, "print no header line")
	return cmd
}

func (a *app) get(cmd *cobra.Command, o getOptions, args []string) error {
	if !slices.Contains([]string{"", "wide", "json", "yaml", "name"}, o.output) {
		return usagef(cmd, "-o %s: use wide, json, yaml or name", o.output)
	}
	groups, err := selectGroups(args)
	if err != nil {
		return usagef(cmd, "%v", err)
	}
	if o.watch && len(groups) > 1 {
		return usagef(cmd, "-w: watch units or sources, not both")
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	for i := range groups {
		groups[i].Labels = o.labels
		if !o.all {
			groups[i].Namespace = c.namespace
		}
	}
	ctx := cmd.Context()
	var found []object
	versions := map[string]string{}
	for _, g := range groups {
		objects, v, err := c.list(ctx, g)
		if err != nil {
			return err
		}
		found = append(found, objects...)
		for kind, version := range v {
			versions[kind] = version
		}
	}
	single := len(groups) == 1 && groups[0].Name != ""
	if single && len(found) == 0 && !o.watch {
		_, err := c.find(ctx, ref{groups[0].Kinds, groups[0].Name})
		return err
	}
	p := a.printer(o, groups)
	if err := p.list(found, single && len(found) == 1); err != nil {
		return err
	}
	if o.watch {
		return c.follow(ctx, groups[0], versions, p.one)
	}
	if len(found) == 0 && o.output != "json" && o.output != "yaml" {
		where := "in namespace " + c.namespace
		if o.all {
			where = "in any namespace"
		}
		fmt.Fprintf(a.env.Stderr, "no %s found %s\n", groups[0].Kinds[0].Role+"s", where)
	}
	return nil
}

// selectGroups turns the argument of get into what to list: units and sources
// are apart, because their columns differ.
func selectGroups(args []string) ([]selection, error) {
	if len(args) == 0 {
		return []selection{{Kinds: ofRole(unit)}}, nil
	}
	switch word := strings.ToLower(args[0]); word {
	case "unit", "units":
		return []selection{{Kinds: ofRole(unit)}}, nil
	case "source", "sources":
		return []selection{{Kinds: ofRole(source)}}, nil
	case "run", "runs":
		return []selection{{Kinds: []kind{runs}}}, nil
	case "all":
		return []selection{{Kinds: ofRole(source)}, {Kinds: ofRole(unit)}}, nil
	default:
		if k, ok := kindOf(word); ok {
			return []selection{{Kinds: []kind{k}}}, nil
		}
	}
	accepted := append(slices.Clone(kinds), runs)
	if !strings.Contains(args[0], "/") {
		accepted = ofRole(unit)
	}
	r, err := parseRef(args[0], accepted)
	if err != nil {
		return nil, err
	}
	return []selection{{Kinds: r.Kinds, Name: r.Name}}, nil
}

// printer prints objects in the form that the flags of get ask for.
type printer struct {
	app     *app
	options getOptions
	tables  map[role]*table
	layouts map[role]layout
	// shown is the row last printed for an object, so that a change which no
	// column shows prints nothing.
	shown map[string]string
}

func (a *app) printer(o getOptions, groups []selection) *printer {
	p := &printer{app: a, options: o, tables: map[role]*table{}, layouts: map[role]layout{}, shown: map[string]string{}}
	for _, g := range groups {
		r := g.Kinds[0].Role
		p.layouts[r] = layout{role: r, namespaces: o.all, wide: o.output == "wide"}
		p.tables[r] = newTable(a.env.Stdout, a.painter(), p.layouts[r].columns()...)
	}
	return p
}

// list prints the objects that were found; alone says that one was asked for
// by name, so that no list is put around it.
func (p *printer) list(found []object, alone bool) error {
	switch p.options.output {
	case "json", "yaml":
		if p.options.watch {
			return p.each(found)
		}
		return printObjects(p.app.env.Stdout, p.options.output, found, alone)
	case "name":
		return p.each(found)
	}
	blank := false
	for _, r := range []role{source, unit, record} {
		t := p.tables[r]
		if t == nil {
			continue
		}
		rows := p.rows(r, found)
		if len(rows) == 0 && !p.options.watch {
			continue
		}
		if blank {
			fmt.Fprintln(p.app.env.Stdout)
		}
		blank = true
		t.print(!p.options.noHeaders, rows...)
	}
	return nil
}

func (p *printer) rows(r role, found []object) [][]string {
	var rows [][]string
	for _, o := range found {
		if o.Kind.Role == r {
			row := p.layouts[r].row(o, p.app.env.Now())
			p.shown[o.String()] = strings.Join(row, "\x00")
			rows = append(rows, row)
		}
	}
	return rows
}

func (p *printer) each(found []object) error {
	for _, o := range found {
		if err := p.one(o); err != nil {
			return err
		}
	}
	return nil
}

// one prints an object that has changed.
func (p *printer) one(o object) error {
	switch p.options.output {
	case "json", "yaml":
		if p.options.output == "yaml" {
			fmt.Fprintln(p.app.env.Stdout, "---")
		}
		return printObjects(p.app.env.Stdout, p.options.output, []object{o}, true)
	case "name":
		_, err := fmt.Fprintf(p.app.env.Stdout, "%s/%s\n", o.Kind.apiName(), o.GetName())
		return err
	}
	row := p.layouts[o.Kind.Role].row(o, p.app.env.Now())
	if key := strings.Join(row, "\x00"); p.shown[o.String()] != key {
		p.shown[o.String()] = key
		p.tables[o.Kind.Role].print(false, row)
	}
	return nil
}
