// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"errors"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestRecorderCompares(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, before, after string
		want                  []string
	}{
		"string":    {"what was encrypted", "{a: ENC, b: plain}", "{a: hunter2, b: plain}", []string{"hunter2"}},
		"nested":    {"at any depth", "{a: {b: [ENC, x]}}", "{a: {b: [deep, x]}}", []string{"deep"}},
		"number":    {"SOPS keeps the type", "{pin: ENC, port: 80}", "{pin: 471147, port: 80}", []string{"471147"}},
		"large":     {"as it is written", "{n: ENC}", "{n: 12345678901}", []string{"12345678901"}},
		"fraction":  {"as it is written", "{n: ENC}", "{n: 0.25}", []string{"0.25"}},
		"new field": {"a field that was not there", "{}", "{a: {b: new}}", []string{"new"}},
		"longer":    {"a list that was shorter", "{a: []}", "{a: [new]}", []string{"new"}},
		"nothing":   {"nothing was encrypted", "{a: b, n: 1}", "{a: b, n: 1}", nil},
		"blank":     {"nothing to hide", "{a: ENC}", "{a: \" \"}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after any
			if err := errors.Join(yaml.Unmarshal([]byte(tc.before), &before), yaml.Unmarshal([]byte(tc.after), &after)); err != nil {
				t.Fatal(err)
			}
			r := &Recorder{}
			r.compare(before, after)
			if !slices.Equal(r.secrets, tc.want) {
				t.Errorf("%s: %q, want %q", tc.reason, r.secrets, tc.want)
			}
		})
	}
	r := &Recorder{}
	r.compare(map[string]any{"n": "ENC", "m": int64(3)}, map[string]any{"n": int64(4711), "m": int64(3)})
	if !slices.Equal(r.secrets, []string{"4711"}) {
		t.Errorf("of an object: %q", r.secrets)
	}
}

// A file that is encrypted as a whole need not be a tree when it is decrypted.
func TestRecorderKeepsTheValuesOfABinaryFile(t *testing.T) {
	id, group := newAge(t)
	keys, err := NewKeys("ns/keys", map[string][]byte{"a.agekey": []byte(id.String())})
	if err != nil {
		t.Fatal(err)
	}
	r := &Recorder{Decryptor: New(keys)}
	content := seal(t, "binary", "password = \"correct horse\"\n", nil, group)
	if _, err := r.File(t.Context(), "prod.tfvars", content); err != nil {
		t.Fatal(err)
	}
	if got := r.Secrets(); !slices.Contains(got, "correct horse") {
		t.Errorf("the value is not kept: %q", got)
	}
}

func TestRecorderLines(t *testing.T) {
	r := &Recorder{}
	r.lines([]byte("A=ENC\nB=plain\n[ENC]"), []byte("A=\"hunter2\"\nB=plain\nwhole line"))
	for _, want := range []string{"hunter2", `A="hunter2"`, "whole line"} {
		if !slices.Contains(r.secrets, want) {
			t.Errorf("%q is not kept: %q", want, r.secrets)
		}
	}
	if slices.Contains(r.secrets, "plain") {
		t.Error("what was not encrypted is masked")
	}
}
