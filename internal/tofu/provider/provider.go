// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package provider says which providers a run may use: addresses of providers, and lists
// of patterns that allow some of them. It is pure: it installs nothing, asks no registry
// and reads no file.
//
// A list says whose providers may be used. It does not say where their files come from:
// that is the CLI configuration's affair.
package provider

import (
	"fmt"
	"path"
	"strings"
	"unicode"
)

// The registries that are meant where a source names none.
const (
	OpenTofuRegistry  = "registry.opentofu.org"
	TerraformRegistry = "registry.terraform.io"
)

// builtin is part of the tool: nothing is installed for it.
var builtin = Address{"terraform.io", "builtin", "terraform"}

// Address is a provider's address, in lower case.
type Address struct {
	// Host is the registry's name, with a port if it has one.
	Host string
	// Namespace is the organisation's name in the registry, Type the provider's.
	Namespace, Type string
}

// String is "registry.opentofu.org/hashicorp/aws".
func (a Address) String() string { return a.Host + "/" + a.Namespace + "/" + a.Type }

// Parse reads a source as a module writes it: "host/namespace/type", "namespace/type" in
// the registry host, or "type", which is hashicorp's.
func Parse(host, source string) (Address, error) {
	parts := strings.Split(source, "/")
	if len(parts) > 3 {
		return Address{}, fmt.Errorf("read provider source %q: it has more than three parts", source)
	}
	for _, p := range parts {
		if !isPart(p) || strings.Contains(p, "*") {
			return Address{}, fmt.Errorf("read provider source %q: it is not HOST/NAMESPACE/TYPE, NAMESPACE/TYPE or TYPE", source)
		}
	}
	if len(parts) == 1 {
		parts = append([]string{"hashicorp"}, parts...)
	}
	return address(host, parts), nil
}

// address is that of two or three parts.
func address(host string, parts []string) Address {
	if len(parts) == 2 {
		parts = append([]string{host}, parts...)
	}
	return Address{strings.ToLower(parts[0]), strings.ToLower(parts[1]), strings.ToLower(parts[2])}
}

// isPart tells that a text can stand between the slashes of an address or a pattern. What
// path.Match reads as more than a letter is in no name of a provider.
func isPart(s string) bool {
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.:*", r) {
			return false
		}
	}
	return s != ""
}

// List allows the providers that one of its patterns matches. The zero List allows all.
type List struct {
	patterns []Address
	written  []string
}

// ParseList reads patterns: "host/namespace/type", or "namespace/type" in the registry
// host. A * in a part stands for any text without a slash. No pattern at all makes the
// List that allows every provider.
func ParseList(host string, patterns []string) (List, error) {
	var l List
	for _, p := range patterns {
		parts := strings.Split(p, "/")
		if len(parts) < 2 || len(parts) > 3 {
			return List{}, fmt.Errorf("read provider pattern %q: it is neither NAMESPACE/TYPE nor HOST/NAMESPACE/TYPE", p)
		}
		for _, part := range parts {
			if !isPart(part) {
				return List{}, fmt.Errorf("read provider pattern %q: between the slashes stand letters, digits and - _ . : *", p)
			}
		}
		l.patterns = append(l.patterns, address(host, parts))
		l.written = append(l.written, p)
	}
	return l, nil
}

// Fields splits patterns that stand in one text, as in an annotation: between commas,
// spaces and line breaks.
func Fields(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// Allows tells whether a provider may be used. The one that is part of the tool always may.
func (l List) Allows(a Address) bool {
	if len(l.patterns) == 0 || a == builtin {
		return true
	}
	for _, p := range l.patterns {
		if match(p.Host, a.Host) && match(p.Namespace, a.Namespace) && match(p.Type, a.Type) {
			return true
		}
	}
	return false
}

// match tells whether a part of a pattern stands for a part of an address.
func match(pattern, part string) bool {
	ok, err := path.Match(pattern, part)
	return err == nil && ok
}

// All tells that the list allows every provider because it has no pattern.
func (l List) All() bool { return len(l.patterns) == 0 }

// String lists the patterns as they were written.
func (l List) String() string { return strings.Join(l.written, ", ") }
