// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/internal/render/sops"
)

// masked stands for a value that SOPS encrypted, as with the flux command.
const masked = "**SOPS**"

// encryptedValue is a value as SOPS writes it.
var encryptedValue = regexp.MustCompile(`ENC\[AES256_GCM,[^\]]*\]`)

// masking takes the place of a decryptor where no keys are at hand, or where no
// secret may be shown: it puts masked for each encrypted value, and takes the
// metadata of SOPS away. It needs no key and reads none.
type masking struct{}

// File implements kustomize.Decryptor.
func (masking) File(_ context.Context, name string, content []byte) ([]byte, error) {
	if !sops.IsEncryptedFile(name, content) {
		return content, nil
	}
	trimmed := bytes.TrimSpace(content)
	var err error
	switch {
	case bytes.HasPrefix(trimmed, []byte("{")):
		content, err = withoutMetadataJSON(trimmed)
	case dotenvMetadata.Match(content):
		content = dotenvMetadata.ReplaceAll(content, nil)
	case iniMetadata.Match(content):
		content = content[:iniMetadata.FindIndex(content)[0]]
	default:
		content, err = withoutMetadataYAML(content)
	}
	if err != nil {
		return nil, fmt.Errorf("mask %s: %w", name, err)
	}
	// Of YAML and JSON the values are masked already, with the quotes that they need.
	return encryptedValue.ReplaceAll(content, []byte(masked)), nil
}

// The metadata of SOPS in files that have no structure for them.
var (
	dotenvMetadata = regexp.MustCompile(`(?m)^sops_[a-z0-9_]+=[^\n]*\n?`)
	iniMetadata    = regexp.MustCompile(`(?m)^\[sops\][ \t\r]*$`)
)

// withoutMetadataJSON removes the metadata from a JSON file; one that holds a
// binary file becomes that file.
func withoutMetadataJSON(content []byte) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(content, &fields); err != nil {
		return nil, err
	}
	delete(fields, "sops")
	maskValues(fields)
	if data, ok := fields["data"].(string); ok && len(fields) == 1 {
		return []byte(data), nil
	}
	return json.Marshal(fields)
}

func withoutMetadataYAML(content []byte) ([]byte, error) {
	reader := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	defer reader.Close()
	var out bytes.Buffer
	// A document is handed out whole when the buffer has room for it.
	buffer := make([]byte, len(content)+1)
	for {
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		var document any
		if err := sigsyaml.Unmarshal(buffer[:n], &document); err != nil {
			return nil, err
		}
		if fields, ok := document.(map[string]any); ok {
			delete(fields, "sops")
		}
		text, err := sigsyaml.Marshal(maskValues(document))
		if err != nil {
			return nil, err
		}
		if out.Len() > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
}

// Object implements kustomize.Decryptor. Of a Secret the SOPS files within its data
// are masked as well.
func (masking) Object(_ context.Context, o *unstructured.Unstructured) (bool, error) {
	did := sops.IsEncrypted(o)
	delete(o.Object, "sops")
	if o.GetKind() == "Secret" && o.GetAPIVersion() == "v1" {
		data, _ := o.Object["data"].(map[string]any)
		for key, value := range data {
			text, _ := value.(string)
			plain, err := base64.StdEncoding.DecodeString(text)
			if encryptedValue.MatchString(text) || err == nil && encryptedValue.Match(plain) {
				data[key] = base64.StdEncoding.EncodeToString([]byte(masked))
				did = true
			}
		}
	}
	for key, value := range o.Object {
		o.Object[key] = maskValues(value)
	}
	return did, nil
}

// maskValues replaces encrypted values wherever they are.
func maskValues(v any) any {
	switch v := v.(type) {
	case string:
		return encryptedValue.ReplaceAllString(v, masked)
	case map[string]any:
		for key, value := range v {
			v[key] = maskValues(value)
		}
	case []any:
		for i, value := range v {
			v[i] = maskValues(value)
		}
	}
	return v
}

// hasMasked tells whether a value of the object was masked: it is not what would be applied.
func hasMasked(o *unstructured.Unstructured) bool {
	inBase64 := o.GetKind() == "Secret" && o.GetAPIVersion() == "v1"
	var look func(v any) bool
	look = func(v any) bool {
		switch v := v.(type) {
		case string:
			if strings.Contains(v, masked) {
				return true
			}
			plain, err := base64.StdEncoding.DecodeString(v)
			return inBase64 && err == nil && bytes.Contains(plain, []byte(masked))
		case map[string]any:
			for _, value := range v {
				if look(value) {
					return true
				}
			}
		case []any:
			for _, value := range v {
				if look(value) {
					return true
				}
			}
		}
		return false
	}
	return look(o.Object)
}
