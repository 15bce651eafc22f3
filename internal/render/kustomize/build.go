// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// maxObjects bounds the objects of one build.
const maxObjects = 20_000

// Decryptor decrypts what an artifact holds encrypted.
type Decryptor interface {
	// File returns the content of a file that kustomize reads, decrypted if it
	// is encrypted and as it is otherwise: a resource, a patch, a source of a
	// generator. The ending of name tells the format where the content does not.
	// Errors name the file.
	File(ctx context.Context, name string, content []byte) ([]byte, error)
	// Object decrypts an object in place and returns whether it did. Errors name
	// the object.
	Object(ctx context.Context, o *unstructured.Unstructured) (bool, error)
}

// Input is what a build depends on, besides the files that it reads.
type Input struct {
	// Dir is the directory of the unpacked artifact. It is only read.
	Dir string
	// Unit is the Kustomization. Its labels, annotations and status do not
	// matter; of its spec, everything that shapes objects does.
	Unit *kustomizev1.Kustomization
	// Revision of the artifact. Nothing that Flux makes has it, so it does not
	// change the output.
	Revision string
	// Variables are those of spec.postBuild, merged: a later source over an
	// earlier one, and spec.postBuild.substitute over all. Newlines in values are
	// removed. They are ignored unless the unit has spec.postBuild.
	Variables map[string]string
	// Strict makes a variable that is neither defined nor has a default an error;
	// otherwise it is empty.
	Strict bool
	// Decrypt is nil if the unit does not configure decryption. Encrypted objects
	// are then an error, encrypted files are used as they are.
	Decrypt Decryptor
	// RemoteBases allows bases and files outside of the artifact, which kustomize
	// fetches with git and HTTP during the build. Otherwise they are an error,
	// and nothing is fetched.
	RemoteBases bool
	// Key, if not empty, keys Output.Digest, so that it tells nothing about
	// decrypted values to those who do not know the key.
	Key []byte
}

// Output is what a build made.
type Output struct {
	// Objects in the order of kustomize, with spec.commonMetadata, without the
	// labels of the owner.
	Objects []*unstructured.Unstructured
	// Digest of Objects: "sha256:<hex>", over their JSON with sorted keys; an
	// HMAC if Input.Key is set.
	Digest string
	// Reads is everything that the build looked at.
	Reads *Reads
}

// Build returns the objects of a unit. With an error it still returns an Output,
// without objects, whose Reads cover what was looked at until then: the same
// build of a tree with the same Reads.Digest fails in the same way, unless the
// context or the machine was the reason.
//
// Errors: ErrPathNotFound, ErrOutside, *RemoteBaseError, *UndefinedVariableError
// and *EncryptedError can be told apart; others speak of what is wrong in the
// tree. No error has a value of a Secret or of a variable.
func Build(ctx context.Context, in Input) (*Output, error) {
	if in.Unit == nil {
		return &Output{Reads: &Reads{}}, errors.New("build: no Kustomization given")
	}
	d, err := openDisk(in.Dir)
	if err != nil {
		return &Output{Reads: &Reads{}}, err
	}
	defer d.close()
	t := newTree(d)
	objects, err := build(ctx, in, t)
	out := &Output{Reads: t.rec.reads()}
	if err != nil {
		return out, err
	}
	out.Objects = objects
	if out.Digest, err = digest(objects, in.Key); err != nil {
		return &Output{Reads: out.Reads}, err
	}
	return out, nil
}

func build(ctx context.Context, in Input, t *tree) ([]*unstructured.Unstructured, error) {
	vars, err := cleanVariables(in.Variables)
	if err != nil {
		return nil, err
	}
	if in.RemoteBases {
		if t.remote, err = newClones(); err != nil {
			return nil, err
		}
	}
	dir, err := t.directory(in.Unit.Spec.Path)
	if err != nil {
		return nil, err
	}
	gen, err := t.generate(dir, in.Unit)
	if err != nil {
		return nil, err
	}
	s, err := t.look(dir)
	if err != nil {
		return nil, err
	}
	if len(s.remote) > 0 && !in.RemoteBases {
		return nil, &RemoteBaseError{File: s.remote[0].file, Name: s.remote[0].name}
	}
	if in.Decrypt != nil {
		t.transform = func(name string, content []byte) ([]byte, error) {
			format, ok := s.sources[name]
			if !ok {
				return content, nil
			}
			out, err := in.Decrypt.File(ctx, format, content)
			if err != nil && format != name {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return out, err
		}
		// Kustomize takes a file that it cannot read for a directory and says so;
		// what decryption says is to the point.
		for _, name := range slices.Sorted(maps.Keys(s.sources)) {
			if _, err := t.ReadFile(at(name)); err != nil && t.contents[name].err == nil {
				return nil, err
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, err := run(t, dir, s.custom)
	if err != nil {
		return nil, fmt.Errorf("kustomize build failed: %w", t.explain(gen, err))
	}
	objects, err := finish(ctx, in, t, m, vars)
	if err != nil {
		return nil, err
	}
	if meta := in.Unit.Spec.CommonMetadata; meta != nil {
		utils.SetCommonMetadata(objects, meta.Labels, meta.Annotations)
	}
	return objects, nil
}

// run builds a directory with kustomize. Custom tells that its kustomization
// files change the schema.
func run(t *tree, dir string, custom bool) (resmap.ResMap, error) {
	if !custom {
		m, err := runShared(t, dir)
		if t.remote == nil || !t.remote.custom {
			return m, err
		}
		// A remote base turned out to change the schema, and was refused: once
		// more, alone.
	}
	return runAlone(t, dir)
}

func runShared(t *tree, dir string) (resmap.ResMap, error) {
	schema.RLock()
	defer schema.RUnlock()
	loadSchema()
	return kustomize(t, dir)
}

func runAlone(t *tree, dir string) (resmap.ResMap, error) {
	schema.Lock()
	defer schema.Unlock()
	loadSchema()
	reset := func() { openapi.ResetOpenAPI(); openapi.Schema() }
	reset()
	defer reset()
	if t.remote != nil {
		t.remote.alone = true
	}
	return kustomize(t, dir)
}

func kustomize(t *tree, dir string) (m resmap.ResMap, err error) {
	// Kustomize panics on some invalid objects.
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("recovered from a panic of kustomize: %v", r)
		}
	}()
	k := krusty.MakeKustomizer(&krusty.Options{
		LoadRestrictions: types.LoadRestrictionsNone,
		PluginConfig:     types.DisabledPluginConfig(),
	})
	m, err = k.Run(t, at(dir))
	if err != nil {
		return nil, &buildError{err}
	}
	return m, nil
}

// buildError is an error of kustomize with names as in the artifact.
type buildError struct{ err error }

func (e *buildError) Error() string {
	msg := strings.ReplaceAll(e.err.Error(), mount+"/", "")
	return strings.ReplaceAll(msg, "'"+mount+"'", "'.'")
}

func (e *buildError) Unwrap() error { return e.err }

// RemoteBaseError tells that a kustomization file refers to something outside
// of the artifact.
type RemoteBaseError struct {
	File string // that has the reference
	Name string // what it refers to
}

func (e *RemoteBaseError) Error() string {
	return fmt.Sprintf("%s refers to %q, which is outside of the artifact: remote bases are not allowed. Put a copy into the repository, include it with spec.include of the source, or start Terrace with --allow-remote-bases",
		e.File, e.Name)
}

// EncryptedError tells that an object is still encrypted after the build.
type EncryptedError struct {
	Object string // Kind/namespace/name
	Field  string // where, if it is a single value
}

func (e *EncryptedError) Error() string {
	where := e.Object
	if e.Field != "" {
		where += ", field " + e.Field + ","
	}
	return where + " is SOPS encrypted, configuring decryption is required for this secret to be reconciled: set spec.decryption with provider sops and a secretRef to the keys"
}
