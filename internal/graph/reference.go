// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxReferences bounds the references of one value.
const maxReferences = 256

// ParseDependsOn reads a value of the annotation terrace.dev/depends-on: references with commas or
// line breaks between them, each of them
//
//	Kind/name                   in the namespace of the unit
//	Kind/namespace/name
//	Kind.group/namespace/name   where the kind alone could mean two
//
// in any of the combinations. Empty entries are passed over; a reference given
// twice is taken once, at its first place. The error names every entry that is wrong,
// and leaves it to the caller to say of which object.
func ParseDependsOn(value, namespace string) ([]Node, error) {
	var nodes []Node
	var wrong []string
	for _, entry := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == '\n' }) {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		n, problem := parseReference(entry, namespace)
		if problem != "" {
			wrong = append(wrong, fmt.Sprintf("%q: %s", entry, problem))
			continue
		}
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
		if len(nodes) > maxReferences {
			return nil, fmt.Errorf("more than %d references", maxReferences)
		}
	}
	if len(wrong) > 0 {
		return nil, errors.New(strings.Join(wrong, "; "))
	}
	return nodes, nil
}

// parseReference returns the node, or what is wrong with the reference.
func parseReference(s, namespace string) (Node, string) {
	parts := strings.Split(s, "/")
	n := Node{Namespace: namespace}
	switch len(parts) {
	case 2:
		n.Name = parts[1]
	case 3:
		n.Namespace, n.Name = parts[1], parts[2]
	default:
		return Node{}, "want Kind/name or Kind/namespace/name"
	}
	n.Kind, n.Group, _ = strings.Cut(parts[0], ".")
	switch {
	case !isKind(n.Kind):
		return Node{}, "the kind has to be a word that begins with a capital letter, such as Terraform"
	case strings.Contains(parts[0], ".") && !isSubdomain(n.Group):
		return Node{}, "what follows the kind's dot has to be an API group, such as apps"
	case !isLabel(n.Namespace):
		return Node{}, "the namespace is not a valid name"
	case !isSubdomain(n.Name):
		return Node{}, "the name is not a valid name"
	}
	return n, ""
}

func isKind(s string) bool {
	if s == "" || len(s) > 63 || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}

// isSubdomain tells whether s is a name as RFC 1123 has them, up to 253 characters.
func isSubdomain(s string) bool {
	if len(s) > 253 {
		return false
	}
	for _, part := range strings.Split(s, ".") {
		if !isPart(part) {
			return false
		}
	}
	return true
}

// isLabel tells whether s is a name without dots, up to 63 characters.
func isLabel(s string) bool { return len(s) <= 63 && isPart(s) }

func isPart(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}
