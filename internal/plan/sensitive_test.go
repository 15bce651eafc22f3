// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSensitive(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, plan string
		want         []string
	}{
		"none":      {"A plan without marks has none.", `{"format_version":"1.2","resource_changes":[{"change":{"after":{"a":"x"},"after_sensitive":{}}}]}`, nil},
		"whole":     {"A mark of a whole covers all in it.", `{"format_version":"1.2","resource_changes":[{"change":{"after":{"a":["x",{"b":"y"}],"n":4711,"t":true},"after_sensitive":true}}]}`, []string{"4711", "x", "y"}},
		"part":      {"A mark of a part covers the part.", `{"format_version":"1.2","resource_changes":[{"change":{"before":{"a":"old","b":"p"},"before_sensitive":{"a":true},"after":{"a":"new","b":"q","l":["k",{"z":"w"}]},"after_sensitive":{"a":true,"l":[false,{"z":true}]}}}]}`, []string{"new", "old", "w"}},
		"output":    {"Outputs have marks too.", `{"format_version":"1.2","output_changes":{"o":{"after":"x","after_sensitive":true},"p":{"after":"y","after_sensitive":false}}}`, []string{"x"}},
		"variable":  {"A variable is marked where it is declared.", `{"format_version":"1.2","variables":{"v":{"value":"x"},"w":{"value":"y"}},"configuration":{"root_module":{"variables":{"v":{"sensitive":true},"w":{}}}}}`, []string{"x"}},
		"drift":     {"What has changed outside can be sensitive.", `{"format_version":"1.2","resource_drift":[{"change":{"before":{"a":"was"},"before_sensitive":{"a":true},"after":null,"after_sensitive":false}}]}`, []string{"was"}},
		"misshaped": {"Marks that do not fit the values mark what they fit.", `{"format_version":"1.2","resource_changes":[{"change":{"after":{"a":"x"},"after_sensitive":{"a":[true],"b":true}}}]}`, nil},
		"no plan":   {"What is no plan has none.", `{`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, v := range Sensitive([]byte(tc.plan)) {
				got = append(got, string(v))
			}
			slices.Sort(got)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}
