// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/terrace-dev/terrace/internal/state"
)

// object is a Secret or Lease. It is what is looked at and what is sent on, encoded
// anew: two parsers that take a doubled or differently spelled key each in its own
// way cannot be played off against each other.
type object struct{ unstructured.Unstructured }

// decoder reads what typed clients send since client-go 0.35.
var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // the types of these packages are fixed
		}
	}
	return protobuf.NewSerializer(scheme, scheme)
}()

// decodeObject reads a request's body.
func decodeObject(contentType string, body []byte) (*object, error) {
	kind, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, fmt.Errorf("the content type is malformed")
	}
	switch kind {
	case "application/json", "":
		return decodeJSON(body)
	case runtime.ContentTypeProtobuf:
		o, _, err := decoder.Decode(body, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("the body is not an object that is known here")
		}
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, fmt.Errorf("the body cannot be converted: %w", err)
		}
		return &object{unstructured.Unstructured{Object: m}}, nil
	}
	return nil, fmt.Errorf("the content type %q is not known here", kind)
}

func decodeJSON(body []byte) (*object, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("the body is no JSON object")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("the body is more than one JSON value")
	}
	if m == nil {
		return nil, fmt.Errorf("the body is no JSON object")
	}
	return &object{unstructured.Unstructured{Object: m}}, nil
}

func (o *object) encode() ([]byte, error) { return json.Marshal(o.Object) }

// text is a string member, "" when it is not there, and an error when it is something
// else: that would be read differently elsewhere.
func (o *object) text(path ...string) (string, error) {
	v, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if err != nil {
		return "", fmt.Errorf("the body is malformed")
	}
	if !found || v == nil {
		return "", nil
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s is not text", path[len(path)-1])
	}
	return s, nil
}

// texts is a map of strings, like text.
func (o *object) texts(path ...string) (map[string]string, error) {
	v, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if err != nil {
		return nil, fmt.Errorf("the body is malformed")
	}
	if !found || v == nil {
		return nil, nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a map", path[len(path)-1])
	}
	out := map[string]string{}
	for k, v := range m {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s of %s is not text", k, path[len(path)-1])
		}
		out[k] = s
	}
	return out, nil
}

// has reports whether there is anything at the path.
func (o *object) has(path ...string) bool {
	v, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if err != nil {
		return true
	}
	switch v := v.(type) {
	case nil:
		return false
	case []any:
		return len(v) > 0
	}
	return found
}

// checkIdentity refuses a body that would be another object, or more than a state.
func (o *object) checkIdentity(r request, t target) error {
	apiVersion, kind := "v1", "Secret"
	if r.resource == leases {
		apiVersion, kind = "coordination.k8s.io/v1", "Lease"
	}
	for _, c := range []struct {
		path []string
		want []string // "" means that it may be missing
	}{
		{[]string{"apiVersion"}, []string{"", apiVersion}},
		{[]string{"kind"}, []string{"", kind}},
		{[]string{"metadata", "namespace"}, []string{"", t.Namespace}},
		{[]string{"metadata", "generateName"}, []string{""}},
		// A Secret of another type makes the API server do things: one for a
		// service account gets its token.
		{[]string{"type"}, []string{"", string(corev1.SecretTypeOpaque)}},
	} {
		got, err := o.text(c.path...)
		if err != nil {
			return err
		}
		if !slices.Contains(c.want, got) {
			return fmt.Errorf("%s is %q", c.path[len(c.path)-1], got)
		}
	}
	labels, err := o.texts("metadata", "labels")
	if err != nil {
		return err
	}
	if !t.Owns(labels) {
		return fmt.Errorf("the labels are not those of the run's state")
	}
	if r.verb == create && (o.has("metadata", "ownerReferences") || o.has("metadata", "finalizers")) {
		return fmt.Errorf("a state has neither owners nor finalizers")
	}
	if o.has("stringData") {
		return fmt.Errorf("stringData is not what the backend writes")
	}
	return nil
}

// compressed is the payload, or this part of it, as the Secret has it; nil when it
// has none.
func (o *object) compressed() ([]byte, error) {
	data, err := o.texts("data")
	if err != nil || data[state.StateLabel] == "" {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(data[state.StateLabel])
	if err != nil {
		return nil, fmt.Errorf("the payload is not base64")
	}
	return b, nil
}

// summary is what the payload of the Secret says; nil when it has none.
func (o *object) summary() (*state.Summary, error) {
	b, err := o.compressed()
	if err != nil || b == nil {
		return nil, err
	}
	payload, err := state.Uncompress(b)
	if err != nil {
		return nil, err
	}
	s, err := state.Summarize(payload)
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// lock is the lock that the Lease says is held; nil when none is.
func (o *object) lock() (*state.Lock, error) {
	holder, err := o.text("spec", "holderIdentity")
	if err != nil {
		return nil, err
	}
	annotations, err := o.texts("metadata", "annotations")
	if err != nil {
		return nil, err
	}
	return state.ParseLock(holder, annotations[state.LockAnnotation]), nil
}
