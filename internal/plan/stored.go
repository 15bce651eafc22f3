// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/json" // keeps integers apart from other numbers
)

// A plan file is a zip archive of what an apply needs: the state that the plan was made from,
// the changes, the configuration. Its format is OpenTofu's and Terraform's own (version 3 of
// internal/plans/planfile, the message Plan of planfile.proto), and has been this one since
// Terraform 0.14.

// maxEntry bounds what is read of one entry of a plan file, in bytes.
const maxEntry = 256 << 20

// SensitiveInFile returns the texts and numbers that a plan file marks as sensitive: in the
// changes, in the state that they start from, in outputs and in variables of the root
// module. It takes no process to know them. What it cannot read, such as a file that OpenTofu
// has encrypted, gives nothing.
func SensitiveInFile(file []byte) [][]byte {
	z, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil
	}
	var out [][]byte
	declared := map[string]any{} // sensitive variables and their defaults
	var changes []byte
	for _, f := range z.File {
		root := path.Dir(f.Name) == "tfconfig/m-"
		if !root && f.Name != "tfplan" && f.Name != "tfstate" && f.Name != "tfstate-prev" {
			continue
		}
		content, err := entry(f)
		switch {
		case err != nil:
		case root:
			sensitiveVariables(declared, f.Name, content)
		case f.Name == "tfplan":
			changes = content
		default:
			out = append(out, SensitiveInState(content)...)
		}
	}
	for _, fallback := range declared {
		out = Leaves(out, fallback)
	}
	eachField(changes, func(n protowire.Number, b []byte) {
		switch n {
		case 2: // variables
			if _, sensitive := declared[string(field(b, 1))]; sensitive {
				out = Leaves(out, unpack(field(field(b, 2), 1)))
			}
		case 3, 18: // resource_changes, resource_drift
			out = changeSecrets(out, field(b, 9), false)
		case 4: // output_changes
			out = changeSecrets(out, field(b, 2), isSet(b, 3))
		}
	})
	return out
}

func entry(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxEntry))
}

// changeSecrets adds what a Change marks: it has one value of an object that is made or goes,
// and two of one that stays, and the paths of sensitive parts of each.
func changeSecrets(out [][]byte, change []byte, whole bool) [][]byte {
	var values []any
	var paths [][]byte
	eachField(change, func(n protowire.Number, b []byte) {
		switch n {
		case 2:
			values = append(values, unpack(field(b, 1)))
		case 3, 4: // before_sensitive_paths, after_sensitive_paths
			paths = append(paths, b)
		}
	})
	for _, v := range values {
		if whole {
			out = Leaves(out, v)
			continue
		}
		for _, p := range paths {
			out = Leaves(out, follow(v, p))
		}
	}
	return out
}

// follow returns the part of v that a Path leads to, nil if it is not there.
func follow(v any, p []byte) any {
	eachField(p, func(n protowire.Number, step []byte) {
		if n != 1 {
			return
		}
		if key := field(step, 2); key != nil {
			v = element(v, unpack(field(key, 1)))
			return
		}
		v = element(v, string(field(step, 1)))
	})
	return v
}

// element is the element of v at a key, v itself if it is a set: its marks are of the whole.
func element(v, at any) any {
	switch v := v.(type) {
	case map[string]any:
		name, _ := at.(string)
		return v[name]
	case []any:
		i, ok := at.(int64)
		if n, isNumber := at.(interface{ Int64() (int64, error) }); isNumber {
			parsed, err := n.Int64()
			i, ok = parsed, err == nil
		}
		if ok && i >= 0 && i < int64(len(v)) {
			return v[i]
		}
		return v
	}
	return nil
}

// eachField calls f with the fields of a message that have a length. What is no message ends it.
func eachField(b []byte, f func(protowire.Number, []byte)) {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, kind, b); n < 0 {
				return
			}
			b = b[n:]
			continue
		}
		content, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return
		}
		f(num, content)
		b = b[n:]
	}
}

// field is the last field of that number in a message, nil if there is none.
func field(b []byte, want protowire.Number) (found []byte) {
	eachField(b, func(n protowire.Number, content []byte) {
		if n == want {
			found = content
		}
	})
	return found
}

// isSet tells whether a message has a field of that number that is true.
func isSet(b []byte, want protowire.Number) (set bool) {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return set
		}
		b = b[n:]
		if num == want && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			set = v != 0
		}
		if n = protowire.ConsumeFieldValue(num, kind, b); n < 0 {
			return set
		}
		b = b[n:]
	}
	return set
}

// sensitiveVariables adds the variables that a file of the root module declares as sensitive,
// with their defaults, nil where there is none.
func sensitiveVariables(out map[string]any, name string, content []byte) {
	var file *hcl.File
	switch {
	case strings.HasSuffix(name, ".json"):
		file, _ = hcljson.Parse(content, name)
	case strings.HasSuffix(name, ".tf"), strings.HasSuffix(name, ".tofu"):
		file, _ = hclsyntax.ParseConfig(content, name, hcl.InitialPos)
	}
	if file == nil || file.Body == nil {
		return
	}
	found, _, _ := file.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "variable", LabelNames: []string{"name"}}}})
	for _, block := range found.Blocks {
		attributes, _, _ := block.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "sensitive"}, {Name: "default"}}})
		if a := attributes.Attributes["sensitive"]; a == nil || !isTrue(a.Expr) {
			continue
		}
		out[block.Labels[0]] = nil
		if a := attributes.Attributes["default"]; a != nil {
			out[block.Labels[0]] = constant(a.Expr)
		}
	}
}

func isTrue(e hcl.Expression) bool {
	v, diags := e.Value(nil)
	return !diags.HasErrors() && v.Type() == cty.Bool && v.IsKnown() && !v.IsNull() && v.True()
}

// constant is the value of an expression that refers to nothing, as decoded JSON; nil for others.
func constant(e hcl.Expression) any {
	v, diags := e.Value(nil)
	if diags.HasErrors() || !v.IsWhollyKnown() {
		return nil
	}
	encoded, err := ctyjson.Marshal(v, v.Type())
	if err != nil {
		return nil
	}
	var out any
	_ = json.Unmarshal(encoded, &out)
	return out
}

// unpack decodes a value as cty writes it in MessagePack, into what Leaves takes. Of a value of
// a dynamic type, a pair of its type in bytes and itself, it is the value; what is unknown
// is nil.
func unpack(b []byte) any {
	v, err := unpacked(msgpack.NewDecoder(bytes.NewReader(b)), 0)
	if err != nil {
		return nil
	}
	return v
}

// maxDepth bounds how deep values lie in each other.
const maxDepth = 200

var errDepth = errors.New("values lie too deep in each other")

// packedType stands for the bytes with the type of a dynamic value.
type packedType struct{}

func unpacked(d *msgpack.Decoder, depth int) (any, error) {
	code, err := d.PeekCode()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, errDepth
	}
	switch {
	case msgpcode.IsExt(code): // what is unknown
		return nil, d.Skip()
	case msgpcode.IsBin(code):
		return packedType{}, d.Skip()
	case msgpcode.IsFixedArray(code), code == msgpcode.Array16, code == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		if err != nil {
			return nil, err
		}
		return unpackedList(d, n, depth+1)
	case msgpcode.IsFixedMap(code), code == msgpcode.Map16, code == msgpcode.Map32:
		n, err := d.DecodeMapLen()
		if err != nil {
			return nil, err
		}
		return unpackedObject(d, n, depth+1)
	}
	v, err := d.DecodeInterfaceLoose()
	if n, ok := v.(uint64); ok {
		return int64(n), err // cty writes larger numbers as texts
	}
	return v, err
}

func unpackedList(d *msgpack.Decoder, n, depth int) (any, error) {
	out := []any{}
	for range n {
		v, err := unpacked(d, depth)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if len(out) == 2 {
		if _, dynamic := out[0].(packedType); dynamic {
			return out[1], nil
		}
	}
	return out, nil
}

func unpackedObject(d *msgpack.Decoder, n, depth int) (any, error) {
	out := map[string]any{}
	for range n {
		k, err := unpacked(d, depth)
		if err != nil {
			return nil, err
		}
		v, err := unpacked(d, depth)
		if err != nil {
			return nil, err
		}
		name, _ := k.(string)
		out[name] = v
	}
	return out, nil
}
