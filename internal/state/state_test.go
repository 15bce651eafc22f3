// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		scope  Scope
		want   string
	}{
		"Good":      {reason: "a unit's default", scope: Scope{"ns", "net", "default"}},
		"NoSuffix":  {reason: "backendConfig without secretSuffix", scope: Scope{"ns", "", "default"}, want: "must not be empty"},
		"Upper":     {reason: "names of objects are lower case", scope: Scope{"ns", "Net", "default"}, want: "suffix \"Net\""},
		"Slash":     {reason: "no path tricks", scope: Scope{"ns", "../x", "default"}, want: "suffix"},
		"Namespace": {reason: "no path tricks", scope: Scope{"a/b", "x", "default"}, want: "namespace"},
		"Long":      {reason: "labels are shorter than names", scope: Scope{"ns", strings.Repeat("a", 64), "default"}, want: "no more than 63"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.scope.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestPart(t *testing.T) {
	s := Scope{"ns", "s", "default"}
	for name, want := range map[string]int{
		"tfstate-default-s": 0, "tfstate-default-s-part-1": 1, "tfstate-default-s-part-12": 12,
		"tfstate-default-s-part-0": -1, "tfstate-default-s-part-01": -1, "tfstate-default-s-part-": -1,
		"tfstate-default-s2": -1, "tfstate-default-s-part--1": -1, "tfstate-default-s-part-+1": -1, "tfstate-default": -1,
	} {
		got, ok := s.Part(name)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s: part %d, want %d", name, got, want)
		}
	}
}

func TestSummarize(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, in string
		want       Summary
		empty      bool
		err        bool
	}{
		"Init": {
			reason: "what init writes",
			in:     `{"version":4,"terraform_version":"1.12.6","serial":1,"lineage":"l","outputs":{},"resources":[],"check_results":null}`,
			want:   Summary{Serial: 1, Lineage: "l"},
			empty:  true,
		},
		"Full": {
			reason: "resources and outputs count",
			in:     `{"version":4,"serial":7,"lineage":"l","outputs":{"a":{"value":1}},"resources":[{},{}]}`,
			want:   Summary{Serial: 7, Lineage: "l", Resources: 2, Outputs: 1},
		},
		"OutputsOnly": {
			reason: "outputs alone are a state as well",
			in:     `{"version":4,"outputs":{"a":{}}}`,
			want:   Summary{Outputs: 1},
		},
		"Encrypted": {
			reason: "what is encrypted does not look empty",
			in:     `{"serial":1,"lineage":"l","meta":{},"encrypted_data":"eA==","encryption_version":"v0"}`,
			want:   Summary{Serial: 1, Lineage: "l", Encrypted: true},
		},
		"Old":     {reason: "version 3 keeps resources elsewhere: it only looks empty", in: `{"version":3,"modules":[{}]}`, err: true},
		"NoState": {reason: "anything else is refused", in: `[]`, err: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Summarize([]byte(tc.in))
			if (err != nil) != tc.err {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || err == nil && got.Empty() != tc.empty {
				t.Errorf("%s: empty %v\n%s", tc.reason, got.Empty(), diff)
			}
		})
	}
}

func TestWithSerial(t *testing.T) {
	got, err := WithSerial([]byte(`{"version":4,"serial":1,"outputs":{"o":{"value":12345678901234567890,"s":"<&>"}}}`), 7)
	want := `{"outputs":{"o":{"value":12345678901234567890,"s":"<&>"}},"serial":7,"version":4}`
	if compact := strings.NewReplacer(" ", "", "\n", "").Replace(string(got)); err != nil || compact != want {
		t.Errorf("%s, %v", got, err)
	}
	for _, in := range []string{"", "[]", "{"} {
		if _, err := WithSerial([]byte(in), 1); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}

func TestUncompress(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte("payload"))
	_ = z.Close()
	if got, err := Uncompress(b.Bytes()); err != nil || string(got) != "payload" {
		t.Errorf("%q, %v", got, err)
	}
	for _, in := range [][]byte{nil, []byte("payload"), b.Bytes()[:b.Len()-5]} {
		if _, err := Uncompress(in); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}

func TestLock(t *testing.T) {
	if l := ParseLock("", `{"ID":"1"}`); l != nil {
		t.Errorf("without a holder there is no lock: %+v", l)
	}
	if l := ParseLock("1", "{"); l == nil || l.ID != "1" {
		t.Errorf("the holder is known without its words: %+v", l)
	}
	l := ParseLock("1", `{"ID":"1","Operation":"OperationTypePlan","Who":"a@b","Created":"2026-11-30T12:00:00Z"}`)
	err := &LockedError{Lock: *l}
	if want := `state is locked by "1" of a@b (OperationTypePlan) since 2026-11-30T12:00:00Z`; err.Error() != want || !errors.Is(err, ErrLocked) {
		t.Errorf("%q, want %q", err, want)
	}
}
