// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/terrace-dev/terrace/internal/mask"
)

// stateContent is what "show --resources" and "diff" understand of a state, format 4.
type stateContent struct {
	Serial    int64                       `json:"serial"`
	Lineage   string                      `json:"lineage"`
	Outputs   map[string]stateOutput      `json:"outputs"`
	Resources []stateResource             `json:"resources"`
	Encrypted json.RawMessage             `json:"encrypted_data"`
	instances map[string]resourceInstance // by address
}

type stateOutput struct {
	Value     json.RawMessage `json:"value"`
	Sensitive bool            `json:"sensitive"`
}

type stateResource struct {
	Module    string `json:"module"`
	Mode      string `json:"mode"`
	Type      string `json:"type"`
	Name      string `json:"name"`
	Instances []struct {
		Index      json.RawMessage `json:"index_key"`
		Deposed    string          `json:"deposed"`
		Status     string          `json:"status"`
		Attributes json.RawMessage `json:"attributes"`
		Sensitive  [][]struct {
			Type  string          `json:"type"`
			Value json.RawMessage `json:"value"`
		} `json:"sensitive_attributes"`
	} `json:"instances"`
}

// resourceInstance is an instance of a resource: its values by their path, as JSON, and
// which of the paths are sensitive.
type resourceInstance struct {
	values    map[string]string
	sensitive []string
}

// errStateEncrypted says that nobody but OpenTofu with its key can read a state.
var errStateEncrypted = errors.New("OpenTofu encrypts it, so that its content is not known")

func parseState(payload []byte) (*stateContent, error) {
	var s stateContent
	if err := json.Unmarshal(payload, &s); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if len(s.Encrypted) > 0 {
		return nil, fmt.Errorf("read state: %w", errStateEncrypted)
	}
	s.instances = map[string]resourceInstance{}
	for _, r := range s.Resources {
		address := r.Type + "." + r.Name
		if r.Mode == "data" {
			address = "data." + address
		}
		if r.Module != "" {
			address = r.Module + "." + address
		}
		for _, i := range r.Instances {
			at := address
			if len(i.Index) > 0 {
				at += "[" + string(i.Index) + "]"
			}
			if i.Deposed != "" {
				at += " (deposed " + i.Deposed + ")"
			}
			one := resourceInstance{values: map[string]string{}}
			if err := flatten("", i.Attributes, one.values); err != nil {
				return nil, fmt.Errorf("read state: %s: %w", at, err)
			}
			if i.Status != "" {
				one.values["(status)"] = i.Status
			}
			for _, steps := range i.Sensitive {
				p := ""
				for _, step := range steps {
					next, ok := sensitiveStep(step.Type, step.Value)
					if !ok {
						break // an element of a set has no path: what holds it is sensitive
					}
					p = join(p, next)
				}
				one.sensitive = append(one.sensitive, p)
			}
			s.instances[at] = one
		}
	}
	return &s, nil
}

// sensitiveStep is the name of a step of a path.
func sensitiveStep(kind string, value json.RawMessage) (string, bool) {
	var name string
	if kind == "get_attr" && json.Unmarshal(value, &name) == nil {
		return name, true
	}
	var index struct {
		Value any    `json:"value"`
		Type  string `json:"type"`
	}
	if kind != "index" || json.Unmarshal(value, &index) != nil {
		return "", false
	}
	switch v := index.Value.(type) {
	case string:
		return v, true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), true
	}
	return "", false
}

func join(path, step string) string {
	if path == "" {
		return step
	}
	return path + "." + step
}

// flatten puts each value that has no parts under its path.
func flatten(path string, raw json.RawMessage, into map[string]string) error {
	if len(raw) == 0 {
		return nil
	}
	switch raw[0] {
	case '{':
		var m map[string]json.RawMessage
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
		for k, v := range m {
			if err := flatten(join(path, k), v, into); err != nil {
				return err
			}
		}
		if len(m) > 0 {
			return nil
		}
	case '[':
		var l []json.RawMessage
		if err := json.Unmarshal(raw, &l); err != nil {
			return err
		}
		for i, v := range l {
			if err := flatten(join(path, strconv.Itoa(i)), v, into); err != nil {
				return err
			}
		}
		if len(l) > 0 {
			return nil
		}
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return err
	}
	into[path] = b.String()
	return nil
}

// secretName are names of values that are taken for secrets without a mark: the tools
// write down the marks of the configuration, and not always those of the provider.
var secretName = regexp.MustCompile(`(?i)passw|secret|token|private_?key|api_?key|access_?key|credential|connection_?string|kubeconfig|_pem$`)

// hides reports whether the value at a path is not to be shown.
func (r resourceInstance) hides(path string) bool {
	for _, s := range r.sensitive {
		if s == "" || path == s || strings.HasPrefix(path, s+".") {
			return true
		}
	}
	return secretName.MatchString(path)
}

// secrets are the values that are marked, to be masked wherever else they are.
func (s *stateContent) secrets() [][]byte {
	var out [][]byte
	add := func(value string) {
		var text string
		if json.Unmarshal([]byte(value), &text) == nil && text != "" {
			out = append(out, []byte(text))
		}
	}
	for _, r := range s.instances {
		for path, value := range r.values {
			if r.hides(path) {
				add(value)
			}
		}
	}
	for _, o := range s.Outputs {
		if !o.Sensitive {
			continue
		}
		values := map[string]string{}
		if flatten("", o.Value, values) == nil {
			for _, v := range values {
				add(v)
			}
		}
	}
	return out
}

// stateDiff is what differs between two versions of a state.
type stateDiff struct {
	Added, Changed, Removed []string // addresses
	Lines                   []string // as they are printed
}

func (d stateDiff) empty() bool { return len(d.Lines) == 0 }

// diffStates compares two versions. No sensitive value is in what it returns.
func diffStates(old, new *stateContent) stateDiff {
	var d stateDiff
	masker := mask.New(slices.Concat(old.secrets(), new.secrets())...)
	show := func(hidden bool, value string, there bool) string {
		switch {
		case !there:
			return "(none)"
		case hidden:
			return mask.Replacement
		}
		return masker.String(value)
	}
	if old.Lineage != new.Lineage {
		d.Lines = append(d.Lines, fmt.Sprintf("~ lineage: %s -> %s", old.Lineage, new.Lineage))
	}
	addresses := map[string]bool{}
	for a := range old.instances {
		addresses[a] = true
	}
	for a := range new.instances {
		addresses[a] = true
	}
	for _, at := range slices.Sorted(maps.Keys(addresses)) {
		was, before := old.instances[at]
		is, after := new.instances[at]
		switch {
		case !before:
			d.Added = append(d.Added, at)
			d.Lines = append(d.Lines, "+ "+at)
			continue
		case !after:
			d.Removed = append(d.Removed, at)
			d.Lines = append(d.Lines, "- "+at)
			continue
		}
		paths := maps.Clone(was.values)
		maps.Copy(paths, is.values)
		var lines []string
		for _, p := range slices.Sorted(maps.Keys(paths)) {
			a, hadIt := was.values[p]
			b, hasIt := is.values[p]
			if hadIt == hasIt && a == b {
				continue
			}
			hidden := was.hides(p) || is.hides(p)
			lines = append(lines, fmt.Sprintf("    %s: %s -> %s", p, show(hidden, a, hadIt), show(hidden, b, hasIt)))
		}
		if len(lines) > 0 {
			d.Changed = append(d.Changed, at)
			d.Lines = append(append(d.Lines, "~ "+at), lines...)
		}
	}
	names := map[string]bool{}
	for n := range old.Outputs {
		names[n] = true
	}
	for n := range new.Outputs {
		names[n] = true
	}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		was, before := old.Outputs[n]
		is, after := new.Outputs[n]
		a, b := compact(was.Value), compact(is.Value)
		if before == after && a == b {
			continue
		}
		mark := "~"
		switch {
		case !before:
			mark = "+"
		case !after:
			mark = "-"
		}
		hidden := was.Sensitive || is.Sensitive || secretName.MatchString(n)
		d.Lines = append(d.Lines, fmt.Sprintf("%s output %s: %s -> %s", mark, n, show(hidden, a, before), show(hidden, b, after)))
	}
	return d
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

func (d stateDiff) print(w io.Writer) {
	for _, line := range d.Lines {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "%d added, %d changed, %d removed\n", len(d.Added), len(d.Changed), len(d.Removed))
}
