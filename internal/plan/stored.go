// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"math"
	"path"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
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
	p := &unpacker{rest: b}
	v, err := p.value(0)
	if err != nil {
		return nil
	}
	return v
}

// maxDepth bounds how deep values lie in each other.
const maxDepth = 200

var errPacked = errors.New("no MessagePack")

type unpacker struct{ rest []byte }

func (p *unpacker) take(n uint64) ([]byte, error) {
	if n > uint64(len(p.rest)) {
		return nil, errPacked
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b, nil
}

// number takes an unsigned number of so many bytes.
func (p *unpacker) number(size uint64) (uint64, error) {
	b, err := p.take(size)
	if err != nil {
		return 0, err
	}
	var n uint64
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n, nil
}

// packedType stands for the bytes with the type of a dynamic value.
type packedType struct{}

func (p *unpacker) value(depth int) (any, error) {
	head, err := p.number(1)
	if err != nil || depth > maxDepth {
		return nil, errPacked
	}
	switch {
	case head <= 0x7f:
		return int64(head), nil
	case head >= 0xe0:
		return int64(int8(head)), nil
	case head&0xe0 == 0xa0:
		return p.text(head & 0x1f)
	case head&0xf0 == 0x90:
		return p.list(head&0x0f, depth)
	case head&0xf0 == 0x80:
		return p.object(head&0x0f, depth)
	}
	switch head {
	case 0xc0:
		return nil, nil
	case 0xc2, 0xc3:
		return head == 0xc3, nil
	case 0xc4, 0xc5, 0xc6: // bytes
		n, err := p.number(1 << (head - 0xc4))
		if err == nil {
			_, err = p.take(n)
		}
		return packedType{}, err
	case 0xc7, 0xc8, 0xc9: // an extension of any length
		n, err := p.number(1 << (head - 0xc7))
		if err == nil {
			_, err = p.take(n + 1)
		}
		return nil, err
	case 0xca:
		n, err := p.number(4)
		return float64(math.Float32frombits(uint32(n))), err
	case 0xcb:
		n, err := p.number(8)
		return math.Float64frombits(n), err
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, err := p.number(1 << (head - 0xcc))
		return int64(n), err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := uint64(1) << (head - 0xd0)
		n, err := p.number(size)
		shift := 64 - 8*size
		return int64(n<<shift) >> shift, err
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // an extension of 1 to 16 bytes
		_, err := p.take(1 + 1<<(head-0xd4))
		return nil, err
	case 0xd9, 0xda, 0xdb:
		n, err := p.number(1 << (head - 0xd9))
		if err != nil {
			return nil, err
		}
		return p.text(n)
	case 0xdc, 0xdd:
		n, err := p.number(2 << (head - 0xdc))
		if err != nil {
			return nil, err
		}
		return p.list(n, depth)
	case 0xde, 0xdf:
		n, err := p.number(2 << (head - 0xde))
		if err != nil {
			return nil, err
		}
		return p.object(n, depth)
	}
	return nil, errPacked
}

func (p *unpacker) text(n uint64) (any, error) {
	b, err := p.take(n)
	return string(b), err
}

func (p *unpacker) list(n uint64, depth int) (any, error) {
	out := []any{}
	for range n {
		v, err := p.value(depth + 1)
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

func (p *unpacker) object(n uint64, depth int) (any, error) {
	out := map[string]any{}
	for range n {
		k, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		name, _ := k.(string)
		out[name] = v
	}
	return out, nil
}
