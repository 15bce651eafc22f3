// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Recorder decrypts, and keeps the values that came out: they must not turn up in
// plans, events or conditions, whatever object they end in.
type Recorder struct {
	*Decryptor

	mu      sync.Mutex
	secrets []string
}

// File decrypts the content of a file.
func (r *Recorder) File(ctx context.Context, name string, content []byte) ([]byte, error) {
	plain, err := r.Decryptor.File(ctx, name, content)
	if err != nil || string(plain) == string(content) {
		return plain, err
	}
	var before, after any
	if yaml.Unmarshal(content, &before) == nil && yaml.Unmarshal(plain, &after) == nil && isTree(before) && isTree(after) {
		r.compare(before, after)
		return plain, nil
	}
	r.lines(content, plain)
	return plain, nil
}

// Object decrypts an object in place.
func (r *Recorder) Object(ctx context.Context, o *unstructured.Unstructured) (bool, error) {
	before := o.DeepCopy()
	did, err := r.Decryptor.Object(ctx, o)
	if err == nil && did {
		r.compare(before.Object, o.Object)
	}
	return did, err
}

// Secrets returns the values that have come out until now.
func (r *Recorder) Secrets() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.secrets)
}

func isTree(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// compare keeps the strings and numbers of a decrypted tree that were others in the encrypted one.
func (r *Recorder) compare(before, after any) {
	switch after := after.(type) {
	case string:
		if was, ok := before.(string); !ok || was != after {
			r.add(after)
		}
	case float64:
		if before != any(after) {
			r.add(strconv.FormatFloat(after, 'f', -1, 64))
		}
	case int64:
		if before != any(after) {
			r.add(strconv.FormatInt(after, 10))
		}
	case map[string]any:
		was, _ := before.(map[string]any)
		for k, v := range after {
			r.compare(was[k], v)
		}
	case []any:
		was, _ := before.([]any)
		for i, v := range after {
			if i < len(was) {
				r.compare(was[i], v)
			} else {
				r.compare(nil, v)
			}
		}
	}
}

// lines keeps the values of the lines that the encrypted text does not have, which
// serves the formats of settings; of a file that is no such thing it keeps the lines.
func (r *Recorder) lines(content, plain []byte) {
	had := map[string]bool{}
	for _, line := range strings.Split(string(content), "\n") {
		had[line] = true
	}
	for _, line := range strings.Split(string(plain), "\n") {
		if had[line] {
			continue
		}
		if _, value, ok := strings.Cut(line, "="); ok {
			r.add(strings.Trim(strings.TrimSpace(value), `"`))
		}
		r.add(line)
	}
}

func (r *Recorder) add(v string) {
	if v = strings.TrimSpace(v); v == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, v)
}
