// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// reads are the functions whose first argument is the path of a file.
var reads = map[string]bool{
	"file": true, "filebase64": true, "fileexists": true, "templatefile": true,
	"filemd5": true, "filesha1": true, "filesha256": true, "filesha512": true,
	"filebase64sha256": true, "filebase64sha512": true,
}

// evaluated are the functions that scope.call knows.
var evaluated = map[string]bool{
	"abspath": true, "dirname": true, "basename": true, "join": true, "format": true,
	"try": true, "coalesce": true, "lower": true,
}

// visit reads a module as one caller sees it: args are what the caller passes,
// nil for the root module, whose variables come from elsewhere.
func (r *tracer) visit(dir string, args map[string]value, depth int) error {
	key := visitKey(dir, args)
	if r.visited[key] {
		return nil
	}
	r.visited[key] = true
	if r.visits++; r.visits > maxVisits || depth > maxModuleDepth {
		r.whole("there are too many module calls to follow")
		return nil
	}
	c, err := r.load(dir)
	if err != nil {
		return fmt.Errorf("read module %s: %w", dir, err)
	}
	if r.work += c.size; r.work > maxParsedTotal {
		r.whole("there is too much configuration to follow")
		return nil
	}
	r.declare(dir, c)
	s := r.scope(dir, c, args)
	for _, list := range [][]located{c.uses, c.definitions} {
		for _, l := range list {
			if err := r.functions(s, l); err != nil {
				return err
			}
		}
	}
	for _, l := range c.uses {
		if err := r.strings(s, l); err != nil {
			return err
		}
	}
	for _, m := range c.calls {
		if err := r.module(dir, s, m, depth); err != nil {
			return err
		}
	}
	return nil
}

func visitKey(dir string, args map[string]value) string {
	var b strings.Builder
	b.WriteString(dir)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		for _, a := range args[name] {
			fmt.Fprintf(&b, "\x00%s=%q%t", name, a.text, a.known)
		}
	}
	return b.String()
}

func (r *tracer) declare(dir string, c *config) {
	if dir == r.unit && c.backend != nil {
		r.out.Backend = c.backend
	}
	r.out.Core = append(r.out.Core, c.core...)
	for _, p := range c.providers {
		r.out.Providers = append(r.out.Providers, p)
	}
}

// scope makes what expressions of the module can know.
func (r *tracer) scope(dir string, c *config, args map[string]value) *scope {
	s := &scope{
		module: relative(r.unit, dir),
		vars:   map[string]value{},
		locals: c.locals,
		memo:   map[string]value{},
		open:   map[string]bool{},
	}
	if args == nil {
		return s // a default may be overridden by what is not seen here
	}
	for name, e := range c.defaults {
		s.vars[name] = s.eval(e)
	}
	for name, v := range args {
		s.vars[name] = v
	}
	return s
}

// relative is the way from one directory to another, as the engine writes it.
func relative(from, to string) string {
	if from == to {
		return "."
	}
	split := func(p string) []string {
		if p == "." {
			return nil
		}
		return strings.Split(p, "/")
	}
	f, t := split(from), split(to)
	for len(f) > 0 && len(t) > 0 && f[0] == t[0] {
		f, t = f[1:], t[1:]
	}
	return path.Join(strings.Repeat("../", len(f)), strings.Join(t, "/"))
}

// module follows a module call: into the directory when it is a local one.
func (r *tracer) module(dir string, s *scope, m call, depth int) error {
	source := s.eval(m.source)
	shown := ModuleCall{In: dir, Name: m.name, Source: "?"}
	if source.constant() {
		shown.Source = source[0].text
	}
	if m.version != nil {
		shown.Version = literal(m.version)
	}
	local := false
	for _, a := range source {
		if !a.known {
			if a.text == "" || isLocal(a.text) {
				r.whole(fmt.Sprintf("%s: the source of module %s is not a constant", m.where, m.name))
			}
			continue
		}
		if !isLocal(a.text) {
			continue
		}
		local = true
		if err := r.localModule(dir, a.text, s, m, depth); err != nil {
			return err
		}
	}
	if local {
		r.out.Local = append(r.out.Local, shown)
	} else {
		r.out.Remote = append(r.out.Remote, shown)
	}
	return nil
}

func isLocal(source string) bool {
	return strings.HasPrefix(source, "./") || strings.HasPrefix(source, "../") || source == "." || source == ".."
}

func (r *tracer) localModule(dir, source string, s *scope, m call, depth int) error {
	where := fmt.Sprintf("%s: module %q", m.where, m.name)
	at, links, err := r.tree.resolve(dir, source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the engine says so, better than we could
	}
	if err != nil {
		return r.tree.pathError(source, where, err)
	}
	info, err := r.tree.root.Stat(at)
	if err != nil {
		return r.tree.pathError(source, where, err)
	}
	if !info.IsDir() {
		return nil
	}
	r.addLinks(links)
	// A module above the unit holds the unit, and much else that it does not
	// read: of it, only its own files count.
	if at == "." || strings.HasPrefix(r.unit+"/", at+"/") {
		err = r.addFilesOf(at)
	} else {
		err = r.addTree(at, where)
	}
	if err != nil {
		return err
	}
	args := make(map[string]value, len(m.args))
	for name, e := range m.args {
		args[name] = s.eval(e)
	}
	return r.visit(at, args, depth+1)
}

// addFilesOf takes the files directly in a directory.
func (r *tracer) addFilesOf(dir string) error {
	entries, err := fs.ReadDir(r.tree.root.FS(), dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			r.files[path.Join(dir, e.Name())] = true
		}
	}
	return nil
}

// functions finds the calls that read files.
func (r *tracer) functions(s *scope, l located) error {
	var failed error
	_ = hclsyntax.VisitAll(l.expr, func(n hclsyntax.Node) hcl.Diagnostics {
		e, ok := n.(*hclsyntax.FunctionCallExpr)
		if !ok || failed != nil || len(e.Args) == 0 {
			return nil
		}
		name := functionName(e)
		where := fmt.Sprintf("%s:%d: %s()", l.file, e.NameRange.Start.Line, name)
		switch {
		case reads[name]:
			failed = r.readPaths(s.eval(e.Args[0]), where, name == "templatefile")
		case name == "fileset" && len(e.Args) == 2:
			failed = r.readPaths(s.eval(e.Args[0]).concat(known("/")).concat(beforeGlob(s.eval(e.Args[1]))), where, false)
		}
		return nil
	})
	return failed
}

// beforeGlob is the literal beginning of a pattern.
func beforeGlob(pattern value) value {
	var out value
	for _, a := range pattern {
		if i := strings.IndexAny(a.text, `*?[{\`); i >= 0 {
			a = alternative{text: a.text[:i]}
		}
		out = append(out, a)
	}
	return out
}

// readPaths takes what a function reads. Here a path that leads out is refused.
func (r *tracer) readPaths(v value, where string, template bool) error {
	for _, a := range v {
		name, ok := r.inArtifact(a.text)
		if !ok {
			continue // an absolute path: not of the artifact
		}
		if a.known {
			if err := r.readPath(name, where, template); err != nil {
				return err
			}
			continue
		}
		dir := name[:strings.LastIndex(name, "/")+1]
		if a.text == "" {
			r.whole(where + " of what is not known here")
			continue
		}
		if err := r.readPath("./"+dir, where, false); err != nil {
			return err
		}
	}
	return nil
}

// inArtifact makes a path relative to the working directory; false when it is
// absolute.
func (r *tracer) inArtifact(name string) (string, bool) {
	if rest, ok := strings.CutPrefix(name, cwdMark); ok {
		return "." + rest, true
	}
	return name, !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "~")
}

func (r *tracer) readPath(name, where string, template bool) error {
	at, links, err := r.tree.resolve(r.unit, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the engine says so
	}
	if err != nil {
		return r.tree.pathError(strings.Replace(name, cwdMark, "", 1), where, err)
	}
	r.addLinks(links)
	if err := r.add(at, where); err != nil {
		return err
	}
	if template {
		return r.template(at)
	}
	return nil
}

// template looks for the functions that a template calls itself.
func (r *tracer) template(at string) error {
	if r.templates[at] {
		return nil
	}
	r.templates[at] = true
	src, ok, err := r.tree.read(at, maxParsedFile)
	if err != nil {
		return fmt.Errorf("read template %s: %w", at, err)
	}
	r.parsed += len(src)
	if !ok || r.parsed > maxParsedTotal || !shallow(src, true) {
		r.whole(at + " is too long or too deep to be parsed here")
		return nil
	}
	e, _ := hclsyntax.ParseTemplate(src, at, hcl.InitialPos)
	if e == nil {
		return nil
	}
	return r.functions(&scope{}, located{e, at})
}

// strings takes other strings that name something of the artifact outside the
// unit: arguments of resources, mostly. Here nothing is refused: it may be no
// path at all.
func (r *tracer) strings(s *scope, l located) error {
	w := &mentions{tracer: r, scope: s, in: l}
	_ = hclsyntax.Walk(l.expr, w)
	return w.failed
}

// mentions walks an expression and looks at the outermost strings in it: what a
// path is put together from is no path yet.
type mentions struct {
	tracer *tracer
	scope  *scope
	in     located
	inside int
	failed error
}

// Enter looks at a string.
func (w *mentions) Enter(n hclsyntax.Node) hcl.Diagnostics {
	e, considered := w.outermost(n)
	if !considered {
		return nil
	}
	if w.inside++; w.inside == 1 && e != nil && w.failed == nil {
		w.failed = w.tracer.mention(w.scope.eval(e), w.in)
	}
	return nil
}

// Exit leaves it.
func (w *mentions) Exit(n hclsyntax.Node) hcl.Diagnostics {
	if _, considered := w.outermost(n); considered {
		w.inside--
	}
	return nil
}

// outermost says whether a node is a string as a whole. Of a function that reads
// files the argument has been looked at already.
func (w *mentions) outermost(n hclsyntax.Node) (e hclsyntax.Expression, considered bool) {
	switch n := n.(type) {
	case *hclsyntax.TemplateExpr:
		return n, true
	case *hclsyntax.TemplateWrapExpr:
		return n, true
	case *hclsyntax.ScopeTraversalExpr:
		return n, true
	case *hclsyntax.FunctionCallExpr:
		switch name := functionName(n); {
		case reads[name] || name == "fileset":
			return nil, true
		case evaluated[name]:
			return n, true
		}
	}
	return nil, false
}

func (r *tracer) mention(v value, l located) error {
	for _, a := range v {
		name, ok := r.inArtifact(a.text)
		if !ok || !strings.Contains(name, "..") || strings.ContainsAny(name, "\n\x00") {
			continue // below the working directory, or no path
		}
		if !a.known {
			name = name[:strings.LastIndex(name, "/")+1]
		}
		if name == "" {
			continue
		}
		at, links, err := r.tree.resolve(r.unit, name)
		if err != nil {
			continue
		}
		r.addLinks(links)
		if err := r.add(at, l.at()); err != nil {
			return err
		}
	}
	return nil
}
