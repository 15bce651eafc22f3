// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"gopkg.in/ini.v1"
)

type format int

const (
	formatNone format = iota
	formatYAML
	formatJSON
	formatDotenv
	formatINI
)

var (
	// A SOPS document inside of another one (a block of text in a ConfigMap) is indented, so
	// these match only what is at the top.
	topYAML   = regexp.MustCompile(`(?m)^["']?sops["']?:(\s|$)`)
	topDotenv = regexp.MustCompile(`(?m)^sops_mac=ENC\[AES256_GCM,`)
	topINI    = regexp.MustCompile(`(?m)^\[sops\][ \t]*\r?$`)
	macINI    = regexp.MustCompile(`(?m)^mac[ \t]*=[ \t]*ENC\[AES256_GCM,`)
	macYAML   = regexp.MustCompile(`["']?mac["']?:[ \t]+["']?ENC\[AES256_GCM,`)
)

// detect returns the format of a SOPS file. It looks at the content alone: in a
// tree, names say little about it (config=secret.enc in a generator, a data key).
// Binary files have the form of JSON.
func detect(content []byte) format {
	// Nearly all files end here.
	if !bytes.Contains(content, []byte("ENC[AES256_GCM,")) || !bytes.Contains(content, []byte("sops")) {
		return formatNone
	}
	if first := bytes.TrimLeft(content, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		var top struct {
			Sops struct {
				MAC *string `json:"mac"`
			} `json:"sops"`
		}
		if err := json.Unmarshal(content, &top); err == nil && top.Sops.MAC != nil {
			return formatJSON
		}
	}
	switch {
	case topDotenv.Match(content):
		return formatDotenv
	case topINI.Match(content) && macINI.Match(content):
		return formatINI
	case topYAML.Match(content) && macYAML.Match(content):
		return formatYAML
	}
	return formatNone
}

// maxDepth bounds the nesting of JSON.
const maxDepth = 500

// object is a JSON object with its keys in order.
type object struct {
	keys   []string
	values []any
}

func (o *object) get(key string) any {
	for i, k := range o.keys {
		if k == key {
			return o.values[i]
		}
	}
	return nil
}

// decodeJSON decrypts a JSON file. One that is only an envelope (data beside sops)
// holds a binary file, unless its name says that it is JSON.
func (d *Decryptor) decodeJSON(ctx context.Context, name string, content []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.UseNumber()
	v, err := readJSON(dec, 0)
	if err != nil {
		return nil, err
	}
	top, ok := v.(*object)
	if !ok {
		return nil, fmt.Errorf("the file is not a JSON object")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("the file has more than one JSON value")
	}
	if m, ok := top.get("metadata").(*object); ok {
		if a, ok := m.get("annotations").(*object); ok {
			if s, _ := a.get(disabledAnnotation).(string); disabled(map[string]string{disabledAnnotation: s}) {
				return content, nil
			}
		}
	}
	var raw struct {
		Sops map[string]any `json:"sops"`
	}
	if err := json.Unmarshal(content, &raw); err != nil {
		return nil, errMetadata
	}
	s, err := d.open(ctx, raw.Sops)
	if err != nil {
		return nil, err
	}
	plain := &object{}
	for i, k := range top.keys {
		if k == "sops" {
			continue
		}
		v, err := s.jsonValue([]string{k}, top.values[i])
		if err != nil {
			return nil, err
		}
		plain.keys, plain.values = append(plain.keys, k), append(plain.values, v)
	}
	if err := s.verify(d.skipMAC); err != nil {
		return nil, err
	}
	if data, ok := plain.get("data").(string); ok && len(plain.keys) == 1 && !namesJSON(name) {
		return []byte(data), nil
	}
	var b, out bytes.Buffer
	if err := writeJSON(&b, plain); err != nil {
		return nil, err
	}
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("write JSON: the decrypted file is malformed")
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func namesJSON(name string) bool {
	for _, suffix := range []string{".json", ".yaml", ".yml", ".dockerconfigjson"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

func readJSON(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("the JSON is nested deeper than %d", maxDepth)
	}
	t, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("the JSON is malformed")
	}
	switch t {
	case json.Delim('{'):
		o := &object{}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return nil, fmt.Errorf("the JSON is malformed")
			}
			key, _ := k.(string)
			v, err := readJSON(dec, depth+1)
			if err != nil {
				return nil, err
			}
			o.keys, o.values = append(o.keys, key), append(o.values, v)
		}
		_, err := dec.Token()
		return o, err
	case json.Delim('['):
		l := []any{}
		for dec.More() {
			v, err := readJSON(dec, depth+1)
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		_, err := dec.Token()
		return l, err
	}
	return t, nil
}

func (s *session) jsonValue(path []string, v any) (any, error) {
	switch v := v.(type) {
	case *object:
		for i, k := range v.keys {
			e, err := s.jsonValue(append(path[:len(path):len(path)], k), v.values[i])
			if err != nil {
				return nil, err
			}
			v.values[i] = e
		}
		return v, nil
	case []any:
		out := v[:0]
		for i := range v {
			if _, ok := s.listComment(path, nil, v[i]); ok {
				continue
			}
			e, err := s.jsonValue(path, v[i])
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	}
	return s.leaf(path, nil, v)
}

func writeJSON(b *bytes.Buffer, v any) error {
	switch v := v.(type) {
	case *object:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, k); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := writeJSON(b, v.values[i]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
		return nil
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, e); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	}
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: a decrypted value has no form in JSON")
	}
	b.Truncate(b.Len() - 1) // the line feed
	return nil
}

// decodeDotenv decrypts lines of KEY=value. The metadata is in keys that begin with sops_.
func (d *Decryptor) decodeDotenv(ctx context.Context, content []byte) ([]byte, error) {
	flat := map[string]string{}
	var lines []string
	for _, line := range strings.Split(string(content), "\n") {
		key, value, ok := strings.Cut(line, "=")
		switch {
		case line == "":
		case line[0] == '#':
			lines = append(lines, line)
		case !ok:
			return nil, fmt.Errorf("line %d of those that are not empty is neither KEY=value nor a comment", len(lines)+len(flat)+1)
		case strings.HasPrefix(key, "sops_"):
			flat[key[len("sops_"):]] = strings.ReplaceAll(value, `\n`, "\n")
		default:
			lines = append(lines, line)
		}
	}
	meta, err := unflatten(flat)
	if err != nil {
		return nil, err
	}
	s, err := d.open(ctx, meta)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	comments := [][]string{nil}
	for _, line := range lines {
		if line[0] == '#' {
			comments[0] = append(comments[0], line[1:])
			out.WriteString("#" + s.comment(nil, comments, line[1:]) + "\n")
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		v, err := s.leaf([]string{key}, comments, strings.ReplaceAll(value, `\n`, "\n"))
		if err != nil {
			return nil, err
		}
		comments[0] = nil
		out.WriteString(key + "=" + strings.ReplaceAll(asText(v), "\n", `\n`) + "\n")
	}
	if err := s.verify(d.skipMAC); err != nil {
		return nil, err
	}
	return []byte(out.String()), nil
}

// asText writes a value where there is only text.
func asText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case time.Time:
		return v.Format(time.RFC3339)
	}
	return fmt.Sprint(v)
}

// decodeINI decrypts sections of key = value. The metadata is in the section sops.
func (d *Decryptor) decodeINI(ctx context.Context, content []byte) ([]byte, error) {
	file, err := ini.LoadSources(ini.LoadOptions{AllowNonUniqueSections: true}, content)
	if err != nil {
		// The cause quotes a line.
		return nil, fmt.Errorf("the INI is malformed")
	}
	flat := map[string]string{}
	for _, k := range file.Section("sops").Keys() {
		flat[k.Name()] = strings.ReplaceAll(k.Value(), `\n`, "\n")
	}
	meta, err := unflatten(flat)
	if err != nil {
		return nil, err
	}
	s, err := d.open(ctx, meta)
	if err != nil {
		return nil, err
	}
	comments := [][]string{nil, nil}
	for _, section := range file.Sections() {
		if section.Name() == "sops" {
			continue
		}
		path := []string{section.Name()}
		comments[1] = nil
		section.Comment = s.iniComment(path, comments, section.Comment)
		for _, k := range section.Keys() {
			v, err := s.leaf([]string{section.Name(), k.Name()}, comments, k.Value())
			if err != nil {
				return nil, err
			}
			k.SetValue(asText(v))
			comments[1] = nil
			k.Comment = s.iniComment(path, comments, k.Comment)
		}
	}
	if err := s.verify(d.skipMAC); err != nil {
		return nil, err
	}
	file.DeleteSection("sops")
	var out bytes.Buffer
	if _, err := file.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("write INI: the decrypted file is malformed")
	}
	return out.Bytes(), nil
}

func (s *session) iniComment(path []string, comments [][]string, text string) string {
	if text == "" {
		return ""
	}
	sign := text[:1]
	switch {
	case strings.HasPrefix(text, ";"):
		text = strings.TrimLeft(text, "; ")
	case strings.HasPrefix(text, "#"):
		text = strings.TrimLeft(text, "# ")
	default:
		sign = ";"
	}
	comments[1] = append(comments[1], text)
	return sign + " " + s.comment(path, comments, text)
}
