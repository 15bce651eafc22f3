// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package address reads the addresses of resource instances as Terraform writes them:
// aws_vpc.main, module.net["a"].aws_subnet.s[0]. It looks at their form only: whether a
// module has such a resource is the tool's to say.
package address

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// MaxLength bounds an address, in bytes.
const MaxLength = 1 << 10

// Address names one instance of a managed resource. Addresses of the same instance have
// the same String, however they were written.
type Address struct {
	// Module is where the resource is, such as module.net["a"]; empty for the root module.
	Module string
	// Type and Name are the resource's.
	Type, Name string
	// Key is the instance's index as it is written: [0], ["a"]; empty where there is none.
	Key string
}

// String is the address as the tool prints it.
func (a Address) String() string {
	s := a.Type + "." + a.Name + a.Key
	if a.Module != "" {
		s = a.Module + "." + s
	}
	return s
}

// Parse reads the address of an instance of a managed resource. The error says what is
// wrong with its form.
func Parse(text string) (Address, error) {
	a, err := parse(text)
	if err != nil {
		return Address{}, fmt.Errorf("resource address %s: %w", quote(text), err)
	}
	return a, nil
}

// quote bounds what an error shows of a text.
func quote(text string) string {
	if len(text) > 100 {
		text = strings.ToValidUTF8(text[:100], "") + "…"
	}
	return strconv.Quote(text)
}

func parse(text string) (a Address, err error) {
	switch {
	case text == "":
		return a, errors.New("it is empty")
	case len(text) > MaxLength:
		return a, fmt.Errorf("it is longer than %d bytes", MaxLength)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return a, errors.New("it has characters that no address has")
	case strings.HasPrefix(text, "-"):
		return a, errors.New("it begins like a flag")
	}
	t, diags := hclsyntax.ParseTraversalAbs([]byte(text), "", hcl.InitialPos)
	if diags.HasErrors() {
		return a, fmt.Errorf("%s; write it as module.NAME.TYPE.NAME or TYPE.NAME[\"KEY\"]", strings.TrimSuffix(diags[0].Summary, "."))
	}
	r := reader{rest: t}
	for r.name() == "module" {
		name, key, err := r.step("module")
		if err != nil {
			return a, err
		}
		if a.Module != "" {
			a.Module += "."
		}
		a.Module += "module." + name + key
	}
	switch a.Type = r.name(); a.Type {
	case "":
		return a, errors.New("it names no resource; write TYPE.NAME")
	case "data", "ephemeral", "resource":
		return a, fmt.Errorf("it begins with %q; write TYPE.NAME of a managed resource", a.Type)
	}
	if a.Name, a.Key, err = r.step("resource type"); err != nil {
		return a, err
	}
	if len(r.rest) > 0 {
		return a, errors.New("it goes on after the resource")
	}
	return a, nil
}

// Of is the address of an instance as a state describes it: its module as the tool writes
// it, and its index as JSON, absent where there is none.
func Of(module, kind, name string, key json.RawMessage) (Address, error) {
	text := kind + "." + name
	if module != "" {
		text = module + "." + text
	}
	a, err := Parse(text)
	if err != nil || len(key) == 0 {
		return a, err
	}
	var k any
	if err := json.Unmarshal(key, &k); err != nil {
		return Address{}, fmt.Errorf("resource address %s: its index is no JSON", quote(text))
	}
	switch k := k.(type) {
	case string:
		a.Key, err = keyOf(cty.StringVal(k))
	case float64:
		a.Key, err = keyOf(cty.NumberFloatVal(k))
	}
	if err != nil {
		return Address{}, fmt.Errorf("resource address %s: %w", quote(text), err)
	}
	return a, nil
}

// reader takes an address apart, from its beginning.
type reader struct{ rest hcl.Traversal }

// name is the name that comes next, empty if that is none.
func (r *reader) name() string {
	if len(r.rest) == 0 {
		return ""
	}
	switch t := r.rest[0].(type) {
	case hcl.TraverseRoot:
		return t.Name
	case hcl.TraverseAttr:
		return t.Name
	}
	return ""
}

// step takes a word, the name after it, and the index after that if there is one.
func (r *reader) step(word string) (name, key string, err error) {
	r.rest = r.rest[1:]
	name = r.name()
	if name == "" {
		return "", "", fmt.Errorf("a name is missing after the %s", word)
	}
	r.rest = r.rest[1:]
	if len(r.rest) == 0 {
		return name, "", nil
	}
	index, ok := r.rest[0].(hcl.TraverseIndex)
	if !ok {
		return name, "", nil
	}
	r.rest = r.rest[1:]
	key, err = keyOf(index.Key)
	return name, key, err
}

// keyOf is an index as the tool writes it.
func keyOf(v cty.Value) (string, error) {
	switch v.Type() {
	case cty.String:
		return "[" + string(hclwrite.TokensForValue(v).Bytes()) + "]", nil
	case cty.Number:
		if i, exact := v.AsBigFloat().Int64(); exact == big.Exact && i >= 0 {
			return "[" + strconv.FormatInt(i, 10) + "]", nil
		}
	}
	return "", errors.New("an index is a text or a whole number from 0 on")
}
