// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"bytes"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/types"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// survey is what a look at all kustomization files that a build reaches tells
// before it starts.
type survey struct {
	tree *tree
	// custom: a file changes the OpenAPI schema of the process.
	custom bool
	// sources are the files of resources, generators and patches, which may be
	// encrypted, with a name whose ending tells their format.
	sources map[string]string
	remote  []reference
	visited map[visit]bool
}

// reference is a name outside of the artifact, and the file that has it.
type reference struct{ file, name string }

type visit struct {
	dir    string
	plugin bool
}

// look walks the kustomization files from dir on. Files that cannot be read or
// parsed are passed over: the build says what is wrong with them.
func (t *tree) look(dir string) (*survey, error) {
	s := &survey{tree: t, sources: map[string]string{}, visited: map[visit]bool{}}
	return s, s.directory(dir, false)
}

// remoteName matches every name for which kustomize would leave the artifact:
// it fetches those with a scheme, a user, or GitHub as their host.
var remoteName = regexp.MustCompile(`(?i)^(?:git::)*(?:ssh://|https?:|file://|github\.com[/:]|git::|gh:|[a-z][a-z0-9-]*@)`)

func isRemote(name string) bool { return remoteName.MatchString(name) }

// refer notes a name if it is remote, and tells whether it is.
func (s *survey) refer(file, name string) bool {
	if !isRemote(name) {
		return false
	}
	s.remote = append(s.remote, reference{file, name})
	s.tree.rec.remote[name] = true
	return true
}

// directory looks at a directory's kustomization file. In a directory of
// plugins, the objects that it makes tell kustomize to read files.
func (s *survey) directory(dir string, plugin bool) error {
	e, err := s.tree.kind(dir)
	if err != nil || !e.mode.IsDir() || s.visited[visit{e.name, plugin}] {
		return nil
	}
	dir = e.name
	s.visited[visit{dir, plugin}] = true
	for _, base := range konfig.RecognizedKustomizationFileNames() {
		file := path.Join(dir, base)
		content, err := s.tree.ReadFile(at(file))
		if err != nil {
			continue
		}
		var k types.Kustomization
		if err := k.Unmarshal(content); err != nil {
			continue
		}
		k.FixKustomization()
		if plugin {
			if err := onlyResources(k, file); err != nil && s.tree.remote == nil {
				return err
			}
		}
		if err := s.kustomization(dir, file, k, plugin); err != nil {
			return err
		}
	}
	return nil
}

// onlyResources refuses a directory of generators or transformers that computes
// them: what they would read is then not known before the build.
func onlyResources(k types.Kustomization, file string) error {
	bare := types.Kustomization{TypeMeta: k.TypeMeta, MetaData: k.MetaData, Resources: k.Resources}
	if reflect.DeepEqual(bare, k) {
		return nil
	}
	return fmt.Errorf("%s is used as a list of generators, transformers or validators: it may have resources only, unless remote bases are allowed", file)
}

func (s *survey) kustomization(dir, file string, k types.Kustomization, plugin bool) error {
	if len(k.OpenAPI) > 0 || len(k.Crds) > 0 {
		s.custom = true
	}
	names := append(append([]string{}, k.Crds...), k.Configurations...)
	names = append(names, k.OpenAPI["path"])
	for _, r := range k.Replacements {
		names = append(names, r.Path)
	}
	for _, n := range names {
		s.refer(file, n)
	}
	//lint:ignore SA1019 files in the field have the old fields, and kustomize still reads them
	for _, p := range append(append([]types.Patch{}, k.Patches...), k.PatchesJson6902...) {
		s.source(dir, file, p.Path, p.Path)
	}
	//lint:ignore SA1019 as above
	for _, p := range k.PatchesStrategicMerge {
		if !strings.Contains(string(p), "\n") {
			s.source(dir, file, string(p), string(p))
		}
	}
	for _, g := range k.ConfigMapGenerator {
		s.generator(dir, file, g.KvPairSources)
	}
	for _, g := range k.SecretGenerator {
		s.generator(dir, file, g.KvPairSources)
	}
	for _, list := range [][]string{k.Generators, k.Transformers, k.Validators} {
		for _, entry := range list {
			// An entry is a configuration or the name of one; both can be one line.
			s.plugin(dir, file, []byte(entry))
			if err := s.entry(dir, file, entry, true); err != nil {
				return err
			}
		}
	}
	for _, entry := range append(append([]string{}, k.Resources...), k.Components...) {
		if err := s.entry(dir, file, entry, plugin); err != nil {
			return err
		}
	}
	return nil
}

// entry looks at a file or directory that a kustomization file lists.
func (s *survey) entry(dir, file, name string, plugin bool) error {
	if s.refer(file, name) || path.IsAbs(name) {
		return nil
	}
	name, err := s.tree.name(path.Join(at(dir), name))
	if err != nil {
		return nil
	}
	e, err := s.tree.kind(name)
	switch {
	case err != nil:
		return nil
	case e.mode.IsDir():
		return s.directory(e.name, plugin)
	case plugin:
		if content, err := s.tree.ReadFile(at(name)); err == nil {
			s.plugin(dir, name, content)
		}
	default:
		s.sources[name] = name
	}
	return nil
}

// generator notes the sources of a ConfigMap or Secret generator.
func (s *survey) generator(dir, file string, g types.KvPairSources) {
	for _, f := range g.FileSources {
		key, name, ok := strings.Cut(f, "=")
		if !ok {
			name = key
		}
		// kustomize splits at another "=" as well, but then refuses the source.
		s.refer(file, f)
		s.source(dir, file, name, key)
	}
	for _, f := range append(append([]string{}, g.EnvSources...), g.EnvSource) {
		format := f
		switch path.Ext(f) {
		case ".env", ".yaml", ".yml", ".json", ".ini":
		default:
			format += ".env"
		}
		s.source(dir, file, f, format)
	}
}

// source notes a file that may be encrypted. The format is a name whose ending
// says how.
func (s *survey) source(dir, file, name, format string) {
	if name == "" || s.refer(file, name) {
		return
	}
	if !path.IsAbs(name) {
		name = path.Join(at(dir), name)
	}
	if name, err := s.tree.name(name); err == nil {
		if path.Ext(format) == path.Ext(name) {
			format = name
		}
		s.sources[name] = path.Join(path.Dir(name), path.Base(format))
	}
}

// plugin notes the names that the configuration of generators, transformers or
// validators has in the fields by which kustomize reads files.
func (s *survey) plugin(dir, file string, content []byte) {
	dec := kyaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc kyaml.Node
		if err := dec.Decode(&doc); err != nil {
			return
		}
		s.pluginNode(dir, file, "", &doc, 0)
	}
}

func (s *survey) pluginNode(dir, file, field string, n *kyaml.Node, depth int) {
	if n == nil || depth > 100 {
		return
	}
	switch n.Kind {
	case kyaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			s.pluginNode(dir, file, strings.ToLower(n.Content[i].Value), n.Content[i+1], depth+1)
		}
	case kyaml.AliasNode:
		s.pluginNode(dir, file, field, n.Alias, depth+1)
	case kyaml.ScalarNode:
		switch field {
		case "path", "paths", "files", "envs", "env", "valuesfile", "additionalvaluesfiles", "repo":
			_, name, ok := strings.Cut(n.Value, "=")
			if !ok || s.refer(file, n.Value) {
				name = n.Value
			}
			s.source(dir, file, name, name)
		}
	default:
		for _, c := range n.Content {
			s.pluginNode(dir, file, field, c, depth+1)
		}
	}
}

// mayChangeSchema is a look at the text of a kustomization file.
func mayChangeSchema(content []byte) bool {
	lower := bytes.ToLower(content)
	return bytes.Contains(lower, []byte("openapi")) || bytes.Contains(lower, []byte("crds"))
}
