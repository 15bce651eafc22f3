// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"bytes"
	"cmp"
	"encoding/json"
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

const (
	cloudBlock = "cloud"
	// builtinProvider is part of the engine.
	builtinProvider = "terraform"
	// templateFile is rendered to renderedFile before tofu runs.
	templateFile = "main.tf.tpl"
	renderedFile = "main.tf"
)

// config is what one module directory says, as far as it matters here.
type config struct {
	locals   map[string]hclsyntax.Expression
	defaults map[string]hclsyntax.Expression
	calls    []call
	// uses are the expressions whose strings may be paths; definitions those
	// whose strings are only paths where they are used (locals, arguments of
	// modules, defaults). Functions that read files count in both.
	uses, definitions []located
	backend           *Declared
	providers         map[string]Provider
	core              []string
	size              int // bytes
}

// call is a module block.
type call struct {
	name            string
	source, version hclsyntax.Expression
	args            map[string]hclsyntax.Expression
	where           string
}

// located is an expression and the file it is in.
type located struct {
	expr hclsyntax.Expression
	file string
}

func (l located) at() string { return fmt.Sprintf("%s:%d", l.file, l.expr.Range().Start.Line) }

// load parses the configuration files of a directory once.
func (r *tracer) load(dir string) (*config, error) {
	if c := r.configs[dir]; c != nil {
		return c, nil
	}
	c := &config{
		locals:    map[string]hclsyntax.Expression{},
		defaults:  map[string]hclsyntax.Expression{},
		providers: map[string]Provider{},
	}
	r.configs[dir] = c
	names, err := r.configFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		src, ok, err := r.source(dir, name)
		if err != nil {
			return nil, err
		}
		if !ok {
			r.whole(path.Join(dir, name) + " is too long or too deep to be parsed here")
			continue
		}
		c.size += len(src)
		file := path.Join(dir, name)
		if strings.HasSuffix(name, ".json") {
			c.readJSON(dir, file, src)
		} else if !c.readNative(dir, file, src) {
			r.whole(file + " is too long or too deep to be parsed here")
		}
	}
	c.sort()
	return c, nil
}

// sort puts the expressions in the order of the text, whatever order the maps
// of the parser gave: the same files must give the same reach, also where a
// bound is met.
func (c *config) sort() {
	for _, list := range [][]located{c.uses, c.definitions} {
		slices.SortStableFunc(list, func(a, b located) int {
			return cmp.Or(strings.Compare(a.file, b.file), cmp.Compare(a.expr.Range().Start.Byte, b.expr.Range().Start.Byte))
		})
	}
}

// configFiles lists the files of a directory that the engine reads as
// configuration, generated ones included.
func (r *tracer) configFiles(dir string) ([]string, error) {
	entries, err := fs.ReadDir(r.tree.root.FS(), dir)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, e := range entries {
		if !e.IsDir() {
			names[e.Name()] = true
		}
	}
	if dir == r.unit {
		for name := range r.opts.Overlay {
			names[name] = true
		}
		if names[templateFile] && r.opts.Overlay[renderedFile] == nil {
			r.whole(templateFile + " is rendered to what is not known here")
		}
	}
	return configNames(names, r.opts.TofuFiles), nil
}

// configNames picks the configuration files of a directory: a .tofu file hides
// the .tf file of its name.
func configNames(names map[string]bool, tofuFiles bool) []string {
	var picked []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") ||
			strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#") {
			continue
		}
		stem, ext := splitExt(name)
		switch ext {
		case ".tf", ".tf.json":
			if tofuFiles && names[stem+strings.Replace(ext, ".tf", ".tofu", 1)] {
				continue
			}
		case ".tofu", ".tofu.json":
			if !tofuFiles {
				continue
			}
		default:
			continue
		}
		picked = append(picked, name)
	}
	return picked
}

func splitExt(name string) (stem, ext string) {
	for _, ext := range []string{".tf", ".tf.json", ".tofu", ".tofu.json"} {
		if stem, ok := strings.CutSuffix(name, ext); ok && stem != "" {
			return stem, ext
		}
	}
	return name, ""
}

// source reads a configuration file within the bounds; ok is false beyond them.
func (r *tracer) source(dir, name string) (src []byte, ok bool, err error) {
	if src, generated := r.opts.Overlay[name]; generated && dir == r.unit {
		return src, len(src) <= maxParsedFile, nil
	}
	at, links, err := r.tree.resolve(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil // a dangling link: the engine will say so
	}
	if err != nil {
		return nil, false, r.tree.pathError(path.Join(dir, name), "symbolic link", err)
	}
	r.addLinks(links)
	r.files[at] = true
	src, ok, err = r.tree.read(at, maxParsedFile)
	if r.parsed += len(src); r.parsed > maxParsedTotal {
		ok = false
	}
	return src, ok, err
}

// readNative reads HCL; false when it is too deep to be parsed. Of a file with
// errors it takes what can be read: the engine will tell of them.
func (c *config) readNative(dir, file string, src []byte) bool {
	if !shallow(src, false) {
		return false
	}
	parsed, _ := hclsyntax.ParseConfig(src, file, hcl.InitialPos)
	if parsed == nil {
		return true
	}
	body, ok := parsed.Body.(*hclsyntax.Body)
	if !ok {
		return true
	}
	for _, block := range body.Blocks {
		c.block(dir, file, block)
	}
	return true
}

func (c *config) block(dir, file string, b *hclsyntax.Block) {
	label := func(i int) string {
		if i < len(b.Labels) {
			return b.Labels[i]
		}
		return ""
	}
	switch b.Type {
	case "terraform":
		c.terraform(dir, file, b.Body)
		c.use(file, b.Body)
	case "locals":
		for name, attr := range b.Body.Attributes {
			c.locals[name] = attr.Expr
			c.define(file, attr.Expr)
		}
	case "variable":
		if attr := b.Body.Attributes["default"]; attr != nil {
			c.defaults[label(0)] = attr.Expr
			c.define(file, attr.Expr)
		}
		for _, inner := range b.Body.Blocks {
			c.use(file, inner.Body)
		}
	case "module":
		m := call{name: label(0), args: map[string]hclsyntax.Expression{}, where: fmt.Sprintf("%s:%d", file, b.TypeRange.Start.Line)}
		for name, attr := range b.Body.Attributes {
			switch name {
			case "source":
				m.source = attr.Expr
			case "version":
				m.version = attr.Expr
			default:
				m.args[name] = attr.Expr
				c.define(file, attr.Expr)
			}
		}
		if m.source != nil {
			c.calls = append(c.calls, m)
		}
	case "resource", "data", "ephemeral":
		c.provider(dir, typeProvider(label(0)), "", "")
		if attr := b.Body.Attributes["provider"]; attr != nil {
			c.provider(dir, rootName(attr.Expr), "", "")
		}
		c.use(file, b.Body)
	case "provider":
		c.provider(dir, label(0), "", "")
		c.use(file, b.Body)
	default:
		c.use(file, b.Body)
	}
}

func (c *config) terraform(dir, file string, body *hclsyntax.Body) {
	if attr := body.Attributes["required_version"]; attr != nil {
		c.core = append(c.core, literal(attr.Expr))
	}
	for _, b := range body.Blocks {
		switch b.Type {
		case "backend":
			if len(b.Labels) == 1 {
				c.backend = &Declared{Type: b.Labels[0], File: file, Line: b.TypeRange.Start.Line}
			}
		case cloudBlock:
			c.backend = &Declared{Type: cloudBlock, File: file, Line: b.TypeRange.Start.Line}
		case "required_providers":
			for name, attr := range b.Body.Attributes {
				source, version := requirement(attr.Expr)
				c.provider(dir, name, source, version)
			}
		}
	}
}

// requirement reads `"~> 1.0"` or `{source = "a/b", version = "~> 1.0"}`.
func requirement(e hclsyntax.Expression) (source, version string) {
	object, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return "", literal(e)
	}
	for _, item := range object.Items {
		switch hcl.ExprAsKeyword(item.KeyExpr) {
		case "source":
			source = literal(item.ValueExpr)
		case "version":
			version = literal(item.ValueExpr)
		}
	}
	return source, version
}

func (c *config) provider(dir, name, source, version string) {
	if name == "" || name == builtinProvider && source == "" {
		return // nothing to install
	}
	p := c.providers[name]
	p.In, p.Name = dir, name
	if source != "" {
		p.Source = source
	}
	if version != "" {
		p.Version = strings.TrimPrefix(p.Version+", "+version, ", ")
	}
	c.providers[name] = p
}

// typeProvider is the local name that a resource type implies.
func typeProvider(resourceType string) string {
	name, _, _ := strings.Cut(resourceType, "_")
	return name
}

// rootName is "aws" of aws.west.
func rootName(e hclsyntax.Expression) string {
	if t, ok := e.(*hclsyntax.ScopeTraversalExpr); ok {
		return t.Traversal.RootName()
	}
	return ""
}

// literal is the text of a constant string; "?" when it is not one.
func literal(e hclsyntax.Expression) string {
	if v := (&scope{}).eval(e); v.constant() {
		return v[0].text
	}
	return "?"
}

func (c *config) use(file string, body *hclsyntax.Body) {
	for _, attr := range body.Attributes {
		c.uses = append(c.uses, located{attr.Expr, file})
	}
	for _, b := range body.Blocks {
		c.use(file, b.Body)
	}
}

func (c *config) define(file string, e hclsyntax.Expression) {
	c.definitions = append(c.definitions, located{e, file})
}

// readJSON reads the JSON form. encoding/json bounds its depth; strings are
// templates.
func (c *config) readJSON(dir, file string, src []byte) {
	var top map[string]any
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	if d.Decode(&top) != nil {
		return
	}
	j := jsonReader{c: c, dir: dir, file: file}
	for _, kind := range sortedKeys(top) {
		for _, m := range objects(top[kind]) {
			j.block(kind, m)
		}
	}
}

// jsonReader reads the blocks of one JSON file.
type jsonReader struct {
	c         *config
	dir, file string
}

func (j jsonReader) block(kind string, m map[string]any) {
	c := j.c
	switch kind {
	case "terraform":
		j.terraform(m)
		j.uses(m)
	case "locals":
		for _, name := range sortedKeys(m) {
			if e := j.expr(m[name]); e != nil {
				c.locals[name] = e
			}
			j.definitions(m[name])
		}
	case "variable":
		for name, v := range m {
			for _, body := range objects(v) {
				if e := j.expr(body["default"]); e != nil {
					c.defaults[name] = e
				}
			}
		}
	case "module":
		for _, name := range sortedKeys(m) {
			for _, body := range objects(m[name]) {
				j.module(name, body)
			}
		}
	case "resource", "data", "ephemeral":
		for _, kind := range sortedKeys(m) {
			v := m[kind]
			c.provider(j.dir, typeProvider(kind), "", "")
			j.uses(v)
			for _, named := range objects(v) {
				for _, v := range named {
					for _, body := range objects(v) {
						if p, ok := body["provider"].(string); ok {
							name, _, _ := strings.Cut(p, ".")
							c.provider(j.dir, name, "", "")
						}
					}
				}
			}
		}
	case "provider":
		for name := range m {
			c.provider(j.dir, name, "", "")
		}
		j.uses(m)
	default:
		j.uses(m)
	}
}

func (j jsonReader) terraform(m map[string]any) {
	if v, ok := m["required_version"].(string); ok {
		j.c.core = append(j.c.core, v)
	}
	for _, b := range objects(m["backend"]) {
		for kind := range b {
			j.c.backend = &Declared{Type: kind, File: j.file, Line: 1}
		}
	}
	if _, ok := m[cloudBlock]; ok {
		j.c.backend = &Declared{Type: cloudBlock, File: j.file, Line: 1}
	}
	for _, providers := range objects(m["required_providers"]) {
		for name, v := range providers {
			switch v := v.(type) {
			case string:
				j.c.provider(j.dir, name, "", v)
			case map[string]any:
				source, _ := v["source"].(string)
				version, _ := v["version"].(string)
				j.c.provider(j.dir, name, source, version)
			}
		}
	}
}

func (j jsonReader) module(name string, body map[string]any) {
	m := call{name: name, args: map[string]hclsyntax.Expression{}, where: j.file}
	for _, key := range sortedKeys(body) {
		v := body[key]
		switch key {
		case "source":
			m.source = j.expr(v)
		case "version":
			m.version = j.expr(v)
		default:
			if e := j.expr(v); e != nil {
				m.args[key] = e
			}
			j.definitions(v)
		}
	}
	if m.source != nil {
		j.c.calls = append(j.c.calls, m)
	}
}

// expr parses a string as the template that it is; nil for anything else and
// for what is too deep.
func (j jsonReader) expr(v any) hclsyntax.Expression {
	s, ok := v.(string)
	if !ok || !shallow([]byte(s), true) {
		return nil
	}
	e, _ := hclsyntax.ParseTemplate([]byte(s), j.file, hcl.InitialPos)
	return e
}

func (j jsonReader) uses(v any)        { j.each(v, &j.c.uses) }
func (j jsonReader) definitions(v any) { j.each(v, &j.c.definitions) }

func (j jsonReader) each(v any, to *[]located) {
	switch v := v.(type) {
	case string:
		if e := j.expr(v); e != nil {
			*to = append(*to, located{e, j.file})
		}
	case []any:
		for _, item := range v {
			j.each(item, to)
		}
	case map[string]any:
		for _, key := range sortedKeys(v) {
			j.each(v[key], to)
		}
	}
}

// objects takes an object, or a list of them, as the JSON syntax allows.
func objects(v any) []map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return []map[string]any{v}
	case []any:
		var list []map[string]any
		for _, item := range v {
			list = append(list, objects(item)...)
		}
		return list
	}
	return nil
}

// maxDepth bounds how deep an expression may nest before it is handed to the
// parser, which calls itself for each level and cannot be stopped.
const maxDepth = 1000

// shallow scans the tokens, without recursion, for what makes the syntax tree
// deep: brackets, and within one item operators, indexes and conditionals.
func shallow(src []byte, template bool) bool {
	lex := hclsyntax.LexConfig
	if template {
		lex = hclsyntax.LexTemplate
	}
	tokens, _ := lex(src, "", hcl.InitialPos)
	// A level is an open bracket: how it was opened, and the depth that its
	// current item has made. depth is the sum, and one for each level.
	type level struct {
		open hclsyntax.TokenType
		made int
	}
	levels := []level{{open: hclsyntax.TokenOBrace}}
	depth := 0
	for _, t := range tokens {
		top := &levels[len(levels)-1]
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOParen, hclsyntax.TokenOBrack,
			hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			levels = append(levels, level{open: t.Type})
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCParen, hclsyntax.TokenCBrack,
			hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			if len(levels) == 1 {
				continue
			}
			depth -= top.made
			levels = levels[:len(levels)-1]
			if top.open == hclsyntax.TokenTemplateInterp {
				depth-- // the parts of a template stand side by side
			} else {
				levels[len(levels)-1].made++ // an index wraps what stands before it
			}
		case hclsyntax.TokenComma, hclsyntax.TokenNewline:
			if t.Type == hclsyntax.TokenComma || top.open == hclsyntax.TokenOBrace {
				depth -= top.made
				top.made = 0
			}
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenPlus, hclsyntax.TokenStar,
			hclsyntax.TokenSlash, hclsyntax.TokenPercent, hclsyntax.TokenQuestion, hclsyntax.TokenAnd,
			hclsyntax.TokenOr, hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan,
			hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq, hclsyntax.TokenColon:
			top.made++
			depth++
		}
		if depth > maxDepth {
			return false
		}
	}
	return true
}
