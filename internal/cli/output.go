// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// printObjects writes objects as the API has them, without managedFields. Alone
// writes the one object itself, else a List of them.
func printObjects(out io.Writer, format string, objects []object, alone bool) error {
	items := make([]any, 0, len(objects))
	for _, o := range objects {
		u := o.DeepCopy()
		u.SetManagedFields(nil)
		items = append(items, u.Object)
	}
	var value any = map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if alone {
		value = items[0]
	}
	return printValue(out, format, value)
}

// printValue writes a value as indented JSON or as YAML.
func printValue(out io.Writer, format string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", format, err)
	}
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return fmt.Errorf("write yaml: %w", err)
		}
		_, err = out.Write(data)
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", data)
	return err
}
