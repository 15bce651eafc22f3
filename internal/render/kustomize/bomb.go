// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// maxNodes bounds the nodes of a file after its YAML aliases are replaced by
// what they stand for.
const maxNodes = 2_000_000

// alias finds what can be an alias. A false hit costs one parse.
var alias = regexp.MustCompile(`(?m)(?:^|[\s\[{,:-])\*[^\s*]`)

// refuseBomb returns an error for a YAML file whose aliases multiply it. The
// parser that kustomize uses replaces aliases without a limit.
func refuseBomb(name string, content []byte) error {
	if !bytes.ContainsRune(content, '&') || !alias.Match(content) {
		return nil
	}
	dec := kyaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc kyaml.Node
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			// Not YAML: whoever wants it as YAML says so better.
			return nil
		}
		if weigh(&doc, map[*kyaml.Node]int{}) > maxNodes {
			return fmt.Errorf("read %s: its YAML aliases expand to more than %d nodes", name, maxNodes)
		}
	}
}

// weigh counts the nodes below n with aliases expanded, up to a little more
// than maxNodes.
func weigh(n *kyaml.Node, known map[*kyaml.Node]int) int {
	if n == nil {
		return 0
	}
	if w, ok := known[n]; ok {
		return w
	}
	known[n] = maxNodes + 1 // an alias inside of what it stands for
	total := 1
	if n.Kind == kyaml.AliasNode {
		total += weigh(n.Alias, known)
	}
	for _, c := range n.Content {
		if total += weigh(c, known); total > maxNodes {
			break
		}
	}
	known[n] = min(total, maxNodes+1)
	return known[n]
}
