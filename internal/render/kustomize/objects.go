// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/resmap"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// maxObjectSize bounds the JSON of one object, in bytes. The API server takes
// requests of up to 3 MiB.
const maxObjectSize = 3 << 20

// finish makes objects of what kustomize built: decrypted first, then with the
// variables substituted.
func finish(ctx context.Context, in Input, t *tree, m resmap.ResMap, vars map[string]string) ([]*unstructured.Unstructured, error) {
	if m.Size() > maxObjects {
		return nil, fmt.Errorf("the build has %d objects, more than the limit of %d; split the unit", m.Size(), maxObjects)
	}
	var sub *substitution
	if p := in.Unit.Spec.PostBuild; p != nil && (len(vars) > 0 || in.Unit.GetSubstituteStrategy() == kustomizev1.SubstituteStrategyAlways) {
		sub = &substitution{vars: vars, strict: in.Strict, tree: t, unit: in.Unit}
	}
	objects := make([]*unstructured.Unstructured, 0, m.Size())
	for _, res := range m.Resources() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		o, err := object(ctx, in, res.YNode(), sub)
		if err != nil {
			return nil, err
		}
		if o.IsList() {
			err := o.EachListItem(func(item runtime.Object) error {
				objects = append(objects, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("%s: read the items of the list: %w", describe(o), err)
			}
			continue
		}
		if !utils.IsKustomization(o) {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// object makes an object of a node of kustomize.
func object(ctx context.Context, in Input, n *kyaml.Node, sub *substitution) (*unstructured.Unstructured, error) {
	plain, err := toObject(n, nil)
	if err != nil {
		return nil, err
	}
	if plain.GetKind() == "" || plain.GetAPIVersion() == "" || plain.GetName() == "" {
		return nil, fmt.Errorf("an object of the build has no apiVersion, kind or name: %s", describe(plain))
	}
	decrypted := false
	if !decryptDisabled(plain) {
		if in.Decrypt != nil {
			if decrypted, err = in.Decrypt.Object(ctx, plain); err != nil {
				return nil, err
			}
		}
		if field, ok := encrypted(plain); ok {
			return nil, &EncryptedError{Object: describe(plain), Field: field}
		}
	}
	if sub == nil || substituteDisabled(plain) {
		return plain, nil
	}
	at := scope{object: describe(plain), secret: plain.GetKind() == "Secret", apiVersion: plain.GetAPIVersion(), kind: plain.GetKind()}
	if decrypted {
		// What SOPS keeps has types of its own, which are right already.
		value, err := sub.value(at, nil, plain.Object)
		if err != nil {
			return nil, err
		}
		plain.Object = value.(map[string]any)
		return plain, nil
	}
	out, err := toObject(n, &converter{sub: sub, scope: at})
	if err != nil {
		return nil, err
	}
	if out.GetKind() == "" || out.GetAPIVersion() == "" || out.GetName() == "" {
		return nil, fmt.Errorf("%s has no apiVersion, kind or name after the substitution of variables", at.object)
	}
	return out, nil
}

// decryptDisabled tells whether an object wants to stay encrypted.
func decryptDisabled(o *unstructured.Unstructured) bool {
	return strings.EqualFold(o.GetAnnotations()[kustomizev1.GroupVersion.Group+"/decrypt"], kustomizev1.DisabledValue)
}

// substituteDisabled tells whether an object wants to keep its text. Unlike the
// other values of this kind, Flux compares this one with regard to case.
func substituteDisabled(o *unstructured.Unstructured) bool {
	const name = "substitute"
	key := kustomizev1.GroupVersion.Group + "/" + name
	return o.GetLabels()[key] == kustomizev1.DisabledValue || o.GetAnnotations()[key] == kustomizev1.DisabledValue
}

// encrypted tells whether an object is a SOPS document, or a Secret that has a
// value of one.
func encrypted(o *unstructured.Unstructured) (field string, ok bool) {
	if meta, is := o.Object["sops"].(map[string]any); is && (o.GetKind() == "Secret" || meta["mac"] != nil) {
		return "", true
	}
	if o.GetKind() != "Secret" || o.GetAPIVersion() != "v1" {
		return "", false
	}
	if _, is := o.Object["sops"]; is {
		return "", true
	}
	for _, name := range []string{"data", "stringData"} {
		values, _ := o.Object[name].(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(values)) {
			if v, _ := values[k].(string); strings.HasPrefix(v, "ENC[AES256_GCM,data:") {
				return (&place{key: name}).field(k).String(), true
			}
		}
	}
	return "", false
}

// describe names an object as Kind/namespace/name.
func describe(o *unstructured.Unstructured) string { return utils.FmtUnstructured(o) }

// converter turns nodes into values; with a substitution, variables are
// replaced on the way.
type converter struct {
	sub   *substitution
	scope scope
}

// toObject returns the object that a node of kustomize is.
func toObject(n *kyaml.Node, c *converter) (*unstructured.Unstructured, error) {
	if c == nil {
		c = &converter{}
	}
	if n != nil && n.Kind == kyaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	v, err := c.convert(n, nil, 0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("an object of the build is not a mapping")
	}
	return &unstructured.Unstructured{Object: m}, nil
}

// place is where a node is in its object; nil is the object itself. Paths are
// put together only for messages and for nodes with variables.
type place struct {
	up   *place
	key  string // of a mapping
	item bool   // an item of a list, at index
	at   int
}

func (p *place) field(key string) *place { return &place{up: p, key: key} }

func (p *place) index(i int) *place { return &place{up: p, item: true, at: i} }

// String returns the place as a path: spec.ports[0].port, data["a.b"].
func (p *place) String() string {
	switch {
	case p == nil:
		return ""
	case p.item:
		return fmt.Sprintf("%s[%d]", p.up, p.at)
	case p.key == "" || strings.ContainsAny(p.key, "\".[]/ \n"):
		return fmt.Sprintf("%s[%q]", p.up, p.key)
	case p.up == nil:
		return p.key
	}
	return p.up.String() + "." + p.key
}

// style returns what styles knows a scalar by, besides its text: the nearest
// key, with "[]" for each list below it.
func (p *place) style() string {
	suffix := ""
	for ; p != nil && p.item; p = p.up {
		suffix += "[]"
	}
	if p == nil {
		return suffix
	}
	return p.key + suffix
}

// maxDepth bounds the nesting of an object.
const maxDepth = 1000

func (c *converter) convert(n *kyaml.Node, p *place, depth int) (any, error) {
	if n == nil {
		return nil, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: field %s is nested more than %d deep", c.scope.object, p, maxDepth)
	}
	switch n.Kind {
	case kyaml.MappingNode:
		return c.mapping(n, p, depth)
	case kyaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			v, err := c.convert(item, p.index(i), depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = v
		}
		return out, nil
	case kyaml.AliasNode:
		return c.convert(n.Alias, p, depth+1)
	case kyaml.ScalarNode:
		return c.scalar(n, p)
	}
	return nil, fmt.Errorf("%s: field %s has a YAML node of an unknown kind", c.scope.object, p)
}

func (c *converter) mapping(n *kyaml.Node, p *place, depth int) (any, error) {
	out := make(map[string]any, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind == kyaml.AliasNode {
			k = k.Alias
		}
		if k.Kind != kyaml.ScalarNode {
			return nil, fmt.Errorf("%s: field %s has a key that is not a string", c.scope.object, p)
		}
		if k.ShortTag() == "!!merge" {
			return nil, fmt.Errorf("%s: field %s has a YAML merge key (<<), which kustomize did not resolve", c.scope.object, p)
		}
		key := k.Value
		if c.sub != nil && mayHaveVariable(key) {
			var err error
			if key, err = c.sub.eval(c.scope, p.field(key), key, nil); err != nil {
				return nil, err
			}
		}
		at := p.field(key)
		if _, ok := out[key]; ok {
			return nil, fmt.Errorf("%s: field %s is there twice", c.scope.object, at)
		}
		v, err := c.convert(n.Content[i+1], at, depth+1)
		if err != nil {
			return nil, err
		}
		out[key] = v
	}
	return out, nil
}

func (c *converter) scalar(n *kyaml.Node, p *place) (any, error) {
	if n.ShortTag() == kyaml.NodeTagString {
		if c.sub != nil && mayHaveVariable(n.Value) {
			return c.sub.scalar(c.scope, p, n)
		}
		return n.Value, nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, fmt.Errorf("%s: field %s is not a valid YAML value", c.scope.object, p)
	}
	out, err := normal(v)
	if err != nil {
		return nil, fmt.Errorf("%s: field %s: %w", c.scope.object, p, err)
	}
	return out, nil
}

// normal turns a value of a YAML parser into what the JSON of an API server has:
// numbers are int64 or float64, and whole numbers are int64.
func normal(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, string, int64:
		return v, nil
	case time.Time:
		// What kustomize makes of a plain timestamp, and so Flux.
		return v.Format(time.RFC3339Nano), nil
	case int:
		return int64(v), nil
	case uint64:
		if v > math.MaxInt64 {
			return float64(v), nil
		}
		return int64(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, errors.New("is not a finite number")
		}
		// JSON writes whole numbers below 1e21 without a point.
		if v == math.Trunc(v) && v >= math.MinInt64 && v < math.MaxInt64 {
			return int64(v), nil
		}
		return v, nil
	case []any:
		for i := range v {
			var err error
			if v[i], err = normal(v[i]); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[string]any:
		for k := range v {
			var err error
			if v[k], err = normal(v[k]); err != nil {
				return nil, err
			}
		}
		return v, nil
	}
	return nil, fmt.Errorf("has a value of an unknown kind, %T", v)
}

// digest returns the digest of objects. JSON, because encoding/json orders keys
// and is many times faster than YAML.
func digest(objects []*unstructured.Unstructured, key []byte) (string, error) {
	var sum hash.Hash = sha256.New()
	if len(key) > 0 {
		sum = hmac.New(sha256.New, key)
	}
	for _, o := range objects {
		data, err := json.Marshal(o.Object)
		if err != nil {
			return "", fmt.Errorf("%s: encode it as JSON: %w", describe(o), err)
		}
		if len(data) > maxObjectSize {
			return "", fmt.Errorf("%s has %d bytes, more than the %d that the API server takes", describe(o), len(data), maxObjectSize)
		}
		sum.Write(data)
		sum.Write([]byte{'\n'})
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}
