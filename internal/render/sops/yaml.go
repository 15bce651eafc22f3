// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decodeYAML decrypts the documents of a YAML file in place, so that what is not
// encrypted keeps its form. SOPS writes the same metadata into each document that it
// encrypts at once, and one MAC covers them all; files put together by hand have
// documents with metadata of their own, or with none.
func (d *Decryptor) decodeYAML(ctx context.Context, content []byte) ([]byte, error) {
	var docs []*yaml.Node
	var order []string
	groups := map[string][]*yaml.Node{}
	exempt := map[string]bool{}
	for dec := yaml.NewDecoder(bytes.NewReader(content)); ; {
		doc := &yaml.Node{}
		err := dec.Decode(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			// The cause can quote the file.
			return nil, fmt.Errorf("document %d: the YAML is malformed", len(docs)+1)
		}
		docs = append(docs, doc)
		meta := yamlGet(doc, "sops")
		if meta == nil {
			continue
		}
		id := yamlText(yamlGet(meta, "mac")) + " " + yamlText(yamlGet(meta, "lastmodified"))
		if groups[id] == nil {
			order = append(order, id)
		}
		groups[id] = append(groups[id], doc)
		annotation := yamlText(yamlGet(yamlGet(yamlGet(doc, "metadata"), "annotations"), disabledAnnotation))
		exempt[id] = exempt[id] || disabled(map[string]string{disabledAnnotation: annotation})
	}
	changed := false
	for _, id := range order {
		if exempt[id] {
			continue
		}
		if err := d.yamlGroup(ctx, groups[id]); err != nil {
			return nil, err
		}
		changed = true
	}
	if !changed {
		return content, nil
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	for _, doc := range docs {
		if err := enc.Encode(doc); err != nil {
			return nil, fmt.Errorf("write YAML: the decrypted file is malformed")
		}
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write YAML: the decrypted file is malformed")
	}
	return out.Bytes(), nil
}

// yamlGroup decrypts documents that were encrypted together.
func (d *Decryptor) yamlGroup(ctx context.Context, docs []*yaml.Node) error {
	for _, doc := range docs {
		if err := noAliases(doc); err != nil {
			return err
		}
	}
	var meta map[string]any
	if err := yamlGet(docs[0], "sops").Decode(&meta); err != nil {
		return errMetadata
	}
	s, err := d.open(ctx, meta)
	if err != nil {
		return err
	}
	for _, doc := range docs {
		top := doc.Content[0]
		if last := removeKey(top, "sops"); last != "" {
			doc.FootComment = strings.TrimSuffix(last+"\n"+doc.FootComment, "\n")
		}
		comments := [][]string{nil}
		s.yamlComment(nil, comments, &doc.HeadComment)
		s.yamlComment(nil, comments, &doc.LineComment)
		if err := s.yamlMapping(nil, comments, top, false); err != nil {
			return err
		}
		s.yamlComment(nil, comments, &doc.FootComment)
	}
	return s.verify(d.skipMAC)
}

// noAliases refuses what SOPS never writes, since an alias has several places and a
// value is bound to one.
func noAliases(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("line %d: an encrypted file cannot have anchors and aliases; encrypt the file again", n.Line)
	}
	for _, c := range n.Content {
		if err := noAliases(c); err != nil {
			return err
		}
	}
	return nil
}

// yamlGet returns the value of a key of a mapping, nil if there is none.
func yamlGet(n *yaml.Node, key string) *yaml.Node {
	if n != nil && n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i].Kind == yaml.ScalarNode {
			return n.Content[i+1]
		}
	}
	return nil
}

func yamlText(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// removeKey takes a key out of a mapping and returns the comment above it, which can
// be one that ended the file.
func removeKey(n *yaml.Node, key string) (comment string) {
	out := n.Content[:0:0]
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			comment = n.Content[i].HeadComment
			continue
		}
		out = append(out, n.Content[i], n.Content[i+1])
	}
	n.Content = out
	return comment
}

// yamlComment decrypts a comment, line by line, and puts it on top of the comments.
func (s *session) yamlComment(path []string, comments [][]string, c *string) {
	if *c == "" {
		return
	}
	lines := strings.Split(*c, "\n")
	top := len(comments) - 1
	for i, l := range lines {
		if l == "" {
			continue
		}
		comments[top] = append(comments[top], l[1:])
		// A decrypted comment of several lines would end the comment.
		lines[i] = "#" + strings.ReplaceAll(s.comment(path, comments, l[1:]), "\n", "\n#")
	}
	*c = strings.Join(lines, "\n")
}

// yamlMapping decrypts the values of a mapping. The last of the comments are those
// of the mapping's own level. Where handled is set, the comments of the node were
// those of an element of a list, and have been seen.
func (s *session) yamlMapping(path []string, comments [][]string, n *yaml.Node, handled bool) error {
	top := len(comments) - 1
	if !handled {
		s.yamlComment(path, comments, &n.HeadComment)
		s.yamlComment(path, comments, &n.LineComment)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.ShortTag() != "!!str" {
			return fmt.Errorf("line %d: a key is not a string; encrypt the file again with the key in quotes", k.Line)
		}
		scalar := v.Kind == yaml.ScalarNode
		s.yamlComment(path, comments, &k.HeadComment)
		s.yamlComment(path, comments, &k.LineComment)
		if scalar {
			s.yamlComment(path, comments, &v.HeadComment)
			s.yamlComment(path, comments, &v.LineComment)
		}
		if err := s.yamlValue(append(path[:len(path):len(path)], k.Value), comments, v, scalar); err != nil {
			return err
		}
		comments[top] = nil
		if scalar {
			s.yamlComment(path, comments, &v.FootComment)
		}
		s.yamlComment(path, comments, &k.FootComment)
	}
	if !handled {
		s.yamlComment(path, comments, &n.FootComment)
	}
	return nil
}

func (s *session) yamlValue(path []string, comments [][]string, n *yaml.Node, handled bool) error {
	switch n.Kind {
	case yaml.MappingNode:
		return s.yamlMapping(path, append(comments[:len(comments):len(comments)], nil), n, handled)
	case yaml.SequenceNode:
		comments = append(comments[:len(comments):len(comments)], nil)
		if !handled {
			s.yamlComment(path, comments, &n.HeadComment)
			s.yamlComment(path, comments, &n.LineComment)
		}
		var head []string
		kept := n.Content[:0]
		for _, e := range n.Content {
			if text, ok := s.listComment(path, comments, yamlText(e)); ok {
				head = append(head, "#"+strings.ReplaceAll(text, "\n", "\n#"))
				continue
			}
			kept = append(kept, e)
			s.yamlComment(path, comments, &e.HeadComment)
			s.yamlComment(path, comments, &e.LineComment)
			if err := s.yamlValue(path, comments, e, true); err != nil {
				return err
			}
			comments[len(comments)-1] = nil
			s.yamlComment(path, comments, &e.FootComment)
			if head != nil {
				e.HeadComment = strings.TrimPrefix(e.HeadComment+"\n"+strings.Join(head, "\n"), "\n")
				head = nil
			}
		}
		n.Content = kept
		if !handled {
			s.yamlComment(path, comments, &n.FootComment)
		}
		return nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return fmt.Errorf("%s: the value does not have the type of its tag", strings.Join(path, "."))
	}
	plain, err := s.leaf(path, comments, v)
	if err != nil || !s.meta.covers(path, comments, false) || v == nil {
		return err
	}
	// Encode chooses the quotes that keep the type: a decrypted "004" stays a string.
	var enc yaml.Node
	if err := enc.Encode(plain); err != nil {
		return fmt.Errorf("%s: the decrypted value has no form in YAML", strings.Join(path, "."))
	}
	n.Tag, n.Value, n.Style = enc.Tag, enc.Value, enc.Style
	return nil
}
