// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"

	"github.com/terrace-dev/terrace/internal/status"
)

func TestHide(t *testing.T) {
	plain := errors.New("nothing here")
	for name, tc := range map[string]struct {
		reason  string
		secrets []string
		err     error
		has     string
		as      string
	}{
		"value":    {"the API server quotes what it refuses", []string{"hunter2"}, fmt.Errorf(`spec.x: Invalid value: "hunter2"`), "(sensitive value)", meta.ReconciliationFailedReason},
		"reason":   {"the reason stays", []string{"hunter2"}, status.Failf("BuildFailed", "bad: hunter2"), "(sensitive value)", "BuildFailed"},
		"number":   {"a number too", []string{"471147"}, errors.New("Invalid value: 471147: too large"), "(sensitive value)", meta.ReconciliationFailedReason},
		"base64":   {"in another form", []string{"hunter2hunter2"}, errors.New("bad: aHVudGVyMmh1bnRlcjI="), "(sensitive value)", meta.ReconciliationFailedReason},
		"no match": {"nothing to hide", []string{"hunter2"}, plain, "nothing here", "Other"},
		"none":     {"nothing is secret", nil, plain, "nothing here", "Other"},
	} {
		t.Run(name, func(t *testing.T) {
			got := hide(tc.secrets, tc.err)
			if !strings.Contains(got.Error(), tc.has) || status.ReasonOf(got, "Other") != tc.as {
				t.Errorf("%s: %v, reason %s", tc.reason, got, status.ReasonOf(got, "Other"))
			}
			// No way leads from the error to the text that it hides.
			for _, s := range tc.secrets {
				for err := got; err != nil; err = errors.Unwrap(err) {
					if strings.Contains(err.Error(), s) {
						t.Errorf("%s: %v", tc.reason, err)
					}
				}
			}
		})
	}
	if hide([]string{"x"}, nil) != nil {
		t.Error("no error became one")
	}
}
