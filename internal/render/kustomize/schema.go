// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"sync"

	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// schema guards the OpenAPI schema that kustomize keeps in a variable of the
// process. Builds that only read it hold it for reading; it is complete then,
// and nothing in such a build writes to it. A build of a tree with a schema of
// its own holds it for writing, and puts the original back.
var schema sync.RWMutex

// loadSchema parses the built-in schema, for which kustomize otherwise waits
// until the first use, in the middle of parallel builds.
var loadSchema = sync.OnceFunc(func() { openapi.Schema() })

// want is what the schema of a kind says about a field.
type want byte

const (
	anything want = iota // not known, or more than one type
	aString
	aWhole  // an integer
	aNumber // with or without fraction
	aBoolean
	aWholeOrString
)

// takes tells whether a value is of the type, which is not a string.
func (w want) takes(v any) bool {
	switch v.(type) {
	case int64:
		return w == aWhole || w == aNumber || w == aWholeOrString
	case float64:
		return w == aNumber
	case bool:
		return w == aBoolean
	}
	return false
}

// wanted returns what the built-in schema says about a place in an object.
func wanted(at scope, p *place) want {
	schema.RLock()
	defer schema.RUnlock()
	loadSchema()
	rs := openapi.SchemaForResourceType(kyaml.TypeMeta{APIVersion: at.apiVersion, Kind: at.kind})
	if rs == nil {
		return anything
	}
	rs = descend(rs, p)
	if rs == nil || rs.Schema == nil || len(rs.Schema.Type) != 1 {
		return anything
	}
	switch rs.Schema.Type[0] {
	case "string":
		if rs.Schema.Format == "int-or-string" {
			return aWholeOrString
		}
		return aString
	case "integer":
		return aWhole
	case "number":
		return aNumber
	case "boolean":
		return aBoolean
	}
	return anything
}

func descend(rs *openapi.ResourceSchema, p *place) *openapi.ResourceSchema {
	if p == nil {
		return rs
	}
	if rs = descend(rs, p.up); rs == nil || rs.Schema == nil {
		return nil
	}
	if p.item {
		return rs.Elements()
	}
	return rs.Field(p.key)
}
