// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		reason string
		text   string
		want   string // its String; empty: refused
		says   string // of a refusal
	}{
		"Plain":         {"The ordinary case.", "aws_vpc.main", "aws_vpc.main", ""},
		"Count":         {"An instance of a resource with count.", "aws_vpc.main[12]", "aws_vpc.main[12]", ""},
		"ForEach":       {"Keys may hold what addresses are made of.", `aws_vpc.main["a.b[0]"]`, `aws_vpc.main["a.b[0]"]`, ""},
		"Quotes":        {"A key with quotes in it.", `aws_vpc.main["a\"b"]`, `aws_vpc.main["a\"b"]`, ""},
		"Spaces":        {"Written with spaces it is the same.", `aws_vpc . main [ "a" ]`, `aws_vpc.main["a"]`, ""},
		"Modules":       {"Modules in modules, with keys.", `module.a["x"].module.b[0].module.c.aws_vpc.main[1]`, `module.a["x"].module.b[0].module.c.aws_vpc.main[1]`, ""},
		"Dashes":        {"Names may have dashes inside.", "aws_vpc.my-vpc", "aws_vpc.my-vpc", ""},
		"Empty":         {"", "", "", "it is empty"},
		"Flag":          {"It must not be taken for a flag.", "-config=/etc", "", "begins like a flag"},
		"TypeOnly":      {"", "aws_vpc", "", "a name is missing"},
		"ModuleOnly":    {"A module is imported by its resources.", "module.a", "", "names no resource"},
		"Data":          {"Data sources are read.", "data.aws_vpc.main", "", `begins with "data"`},
		"DataInModule":  {"", "module.a.data.aws_vpc.main", "", `begins with "data"`},
		"Attribute":     {"An attribute is no resource.", "aws_vpc.main.id", "", "goes on"},
		"AfterKey":      {"", `aws_vpc.main["a"].id`, "", "goes on"},
		"TwoKeys":       {"", "aws_vpc.main[0][1]", "", "goes on"},
		"Splat":         {"One instance, not all.", "aws_vpc.main[*]", "", "TYPE.NAME"},
		"Expression":    {"Nothing is evaluated.", "aws_vpc.main[1+1]", "", "TYPE.NAME"},
		"Template":      {"", `aws_vpc.main["${file("x")}"]`, "", "TYPE.NAME"},
		"Negative":      {"", "aws_vpc.main[-1]", "", ""},
		"Fraction":      {"", "aws_vpc.main[1.5]", "", "whole number"},
		"Huge":          {"", "aws_vpc.main[99999999999999999999]", "", "whole number"},
		"Line":          {"One line of a log.", "aws_vpc.main\nx", "", "characters"},
		"NUL":           {"No argument can hold it.", "aws_vpc.main\x00", "", "characters"},
		"Long":          {"Bounded.", "aws_vpc." + strings.Repeat("a", MaxLength), "", "longer than"},
		"UnclosedQuote": {"", `aws_vpc.main["a`, "", "TYPE.NAME"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, err := Parse(tc.text)
			switch {
			case tc.want == "" && err == nil:
				t.Errorf("%s Parse(%q) = %s, want an error", tc.reason, tc.text, a)
			case tc.want == "" && !strings.Contains(err.Error(), tc.says):
				t.Errorf("Parse(%q): %v, want %q in it", tc.text, err, tc.says)
			case tc.want != "" && (err != nil || a.String() != tc.want):
				t.Errorf("%s Parse(%q) = %s, %v, want %s", tc.reason, tc.text, a, err, tc.want)
			}
		})
	}
}

// An instance of a state and what a person writes are the same address.
func TestOf(t *testing.T) {
	tests := map[string]struct{ reason, module, key, want string }{
		"Plain":  {"No index.", "", "", "aws_vpc.main"},
		"Count":  {"A number.", "", "3", "aws_vpc.main[3]"},
		"Text":   {"A text with what has to be escaped.", "", `"a\"b${c}"`, `aws_vpc.main["a\"b$${c}"]`},
		"Module": {"As the tool writes it.", `module.m["x"].module.n`, `"k"`, `module.m["x"].module.n.aws_vpc.main["k"]`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var key json.RawMessage
			if tc.key != "" {
				key = json.RawMessage(tc.key)
			}
			a, err := Of(tc.module, "aws_vpc", "main", key)
			if err != nil {
				t.Fatal(err)
			}
			b, err := Parse(tc.want)
			if err != nil || a != b {
				t.Errorf("%s Of = %+v, Parse(%s) = %+v, %v", tc.reason, a, tc.want, b, err)
			}
		})
	}
	if _, err := Of("", "aws_vpc", "main", json.RawMessage("-1")); err == nil {
		t.Error("an index below 0 is taken")
	}
}

// Whatever somebody writes, an address that is taken is one argument, no flag, and means
// the same when it is read again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a.b", `module.m["k"].a.b[0]`, `a.b["$${x}"]`, "-a", "a.b[1e3]", "data.a.b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		if strings.HasPrefix(text, "-") || strings.ContainsAny(text, "\x00\n") {
			t.Errorf("Parse(%q) takes it", text)
		}
		again, err := Parse(a.String())
		if err != nil || again != a {
			t.Errorf("Parse(%q) = %+v; its String %q gives %+v, %v", text, a, a.String(), again, err)
		}
	})
}
