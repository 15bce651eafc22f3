// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	// maxFiles bounds the files of a policy.
	maxFiles = 1000
	// maxData bounds one data file, in bytes.
	maxData = 4 << 20
)

// Files are the Rego modules and the data documents of a directory.
type Files struct {
	// Modules are the .rego files, by their path from the directory.
	Modules map[string]string
	// Tests are those whose names end in _test.rego.
	Tests map[string]string
	// Data is what the .json, .yaml and .yml files hold, each one object. Those of the
	// directory itself are at the root of data, and those of a directory below it under its
	// name, as opa and conftest have it.
	Data map[string]any
}

// ReadFiles reads a directory and all below it, but what begins with a dot. The file
// system has to keep links from leading out of it, as that of an os.Root does. Errors
// begin with the name of the file.
func ReadFiles(fsys fs.FS) (Files, error) {
	out := Files{Modules: map[string]string{}, Tests: map[string]string{}, Data: map[string]any{}}
	total, count := 0, 0
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != "." && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		}
		ext := path.Ext(name)
		if !slices.Contains([]string{".rego", ".json", ".yaml", ".yml"}, ext) {
			return nil
		}
		if count++; count > maxFiles {
			return fmt.Errorf("there are more than %d files", maxFiles)
		}
		limit := maxData
		if ext == ".rego" {
			limit = maxRego - total
		}
		data, err := readFile(fsys, name, limit)
		if err != nil {
			return err
		}
		switch {
		case ext != ".rego":
			return addData(out.Data, name, data)
		case strings.HasSuffix(name, "_test.rego"):
			out.Tests[name] = string(data)
		default:
			out.Modules[name] = string(data)
		}
		total += len(data)
		return nil
	})
	if err != nil {
		return Files{}, err
	}
	return out, nil
}

func readFile(fsys fs.FS, name string, limit int) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("%s: too large: all .rego files together may have %d bytes, and each data file %d", name, maxRego, maxData)
	}
	return data, nil
}

// addData puts the object of a data file where its directory says.
func addData(data map[string]any, name string, text []byte) error {
	documents, err := Documents(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(documents) == 0 {
		return nil
	}
	at := data
	if dir := path.Dir(name); dir != "." {
		for step := range strings.SplitSeq(dir, "/") {
			below, ok := at[step].(map[string]any)
			if !ok && at[step] != nil {
				return fmt.Errorf("%s: the data has another value for %s already", name, step)
			}
			if !ok {
				below = map[string]any{}
				at[step] = below
			}
			at = below
		}
	}
	if len(documents) > 1 {
		return fmt.Errorf("%s: a data file is one object, and this has %d; keep what is not data of the policy elsewhere", name, len(documents))
	}
	return merge(at, documents[0], name)
}

func merge(into, from map[string]any, name string) error {
	for _, k := range slices.Sorted(maps.Keys(from)) {
		old, there := into[k]
		a, ok := old.(map[string]any)
		b, okB := from[k].(map[string]any)
		switch {
		case !there:
			into[k] = from[k]
		case ok && okB:
			if err := merge(a, b, name); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: another data file has a value for %s already", name, k)
		}
	}
	return nil
}

// Documents reads the objects of a JSON or YAML text with any number of documents; empty
// ones are left out.
func Documents(text []byte) ([]map[string]any, error) {
	var out []map[string]any
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var v any
		if err := yaml.Unmarshal(doc, &v); err != nil {
			return nil, err
		}
		switch v := v.(type) {
		case nil:
		case map[string]any:
			out = append(out, v)
		default:
			return nil, errors.New("the document is not an object")
		}
	}
}
