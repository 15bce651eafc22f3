// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	fluxgit "github.com/fluxcd/pkg/git"
	"github.com/fluxcd/pkg/version"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// peeled ends the name under which a remote lists the commit of an annotated tag.
const peeled = "^{}"

// references are what a repository has, by full name; those of annotated tags
// twice, also peeled.
type references map[string]plumbing.Hash

// commit returns the commit that name points to, directly or through a tag.
func (r references) commit(name string) (plumbing.Hash, bool) {
	if h, ok := r[name+peeled]; ok {
		return h, true
	}
	h, ok := r[name]
	return h, ok
}

// target is a commit and how to get it.
type target struct {
	// fetch is the reference that leads to the commit; of a pinned commit it may
	// be empty.
	fetch  plumbing.ReferenceName
	commit plumbing.Hash
	pinned bool // asked for by its hash
	// reference is what the commit is reported to be of.
	reference plumbing.ReferenceName
}

func (t target) partial() *fluxgit.Commit {
	return &fluxgit.Commit{Hash: fluxgit.Hash(t.commit.String()), Reference: t.reference.String()}
}

// resolve finds what ref means among refs. There is more than one result only
// for tags of the same version.
func resolve(refs references, ref Reference) ([]target, error) {
	switch {
	case ref.Name != "":
		return resolveName(refs, ref.Name)
	case ref.Tag != "":
		return resolveOne(refs, plumbing.NewTagReferenceName(ref.Tag), fmt.Sprintf("tag '%s'", ref.Tag))
	case ref.SemVer != "":
		return resolveSemVer(refs, ref.SemVer)
	case ref.Branch != "":
		return resolveOne(refs, plumbing.NewBranchReferenceName(ref.Branch), fmt.Sprintf("branch '%s'", ref.Branch))
	default:
		return resolveOne(refs, plumbing.NewBranchReferenceName(defaultBranch),
			fmt.Sprintf("branch '%s' (the default, as spec.ref names none)", defaultBranch))
	}
}

func resolveOne(refs references, name plumbing.ReferenceName, shown string) ([]target, error) {
	commit, ok := refs.commit(name.String())
	if !ok {
		return nil, fmt.Errorf("%s does not exist: %w", shown, ErrReference)
	}
	return []target{{fetch: name, commit: commit, reference: name}}, nil
}

func resolveName(refs references, name string) ([]target, error) {
	if strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") {
		return nil, fmt.Errorf("reference '%s' begins or ends with a slash: %w", name, ErrReference)
	}
	base := strings.TrimSuffix(name, peeled)
	found, err := resolveOne(refs, plumbing.ReferenceName(base), fmt.Sprintf("reference '%s'", name))
	if err != nil {
		return nil, err
	}
	found[0].reference = plumbing.ReferenceName(name)
	return found, nil
}

func resolveSemVer(refs references, expression string) ([]target, error) {
	constraint, err := semver.NewConstraint(expression)
	if err != nil {
		return nil, fmt.Errorf("version range '%s': %w: %w", expression, err, ErrReference)
	}
	var best *semver.Version
	var found []target
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		ref := plumbing.ReferenceName(name)
		if !ref.IsTag() || strings.HasSuffix(name, peeled) {
			continue
		}
		v, err := version.ParseVersion(ref.Short())
		if err != nil || !constraint.Check(v) {
			continue
		}
		if best == nil || v.GreaterThan(best) {
			best, found = v, nil
		}
		if v.Equal(best) {
			commit, _ := refs.commit(name)
			found = append(found, target{fetch: ref, commit: commit, reference: ref})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no tag matches the version range '%s': %w", expression, ErrReference)
	}
	return found, nil
}

// commitOf returns the commit with hash h, or that a tag with hash h points to.
func commitOf(objects storer.EncodedObjectStorer, h plumbing.Hash) (*object.Commit, error) {
	tag, err := object.GetTag(objects, h)
	switch {
	case err == nil:
		return tag.Commit()
	case errors.Is(err, plumbing.ErrObjectNotFound):
		return object.GetCommit(objects, h)
	default:
		return nil, err
	}
}

// describe turns a commit into what signatures are verified on.
func describe(objects storer.Storer, c *object.Commit, t target) (*fluxgit.Commit, error) {
	encoded, err := encode(c.EncodeWithoutSignature)
	if err != nil {
		return nil, fmt.Errorf("encode commit %s: %w", c.Hash, err)
	}
	out := &fluxgit.Commit{
		Hash: fluxgit.Hash(c.Hash.String()), Reference: t.reference.String(),
		Author: identity(c.Author), Committer: identity(c.Committer),
		Signature: c.PGPSignature, Encoded: encoded, Message: c.Message,
	}
	if !t.fetch.IsTag() {
		return out, nil
	}
	out.ReferencingTag, err = describeTag(objects, t.fetch)
	return out, err
}

func describeTag(objects storer.Storer, name plumbing.ReferenceName) (*fluxgit.Tag, error) {
	light := &fluxgit.Tag{Name: name.Short()}
	ref, err := objects.Reference(name)
	if err != nil {
		return nil, fmt.Errorf("read tag %s: %w", name.Short(), err)
	}
	tag, err := object.GetTag(objects, ref.Hash())
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return light, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read tag %s: %w", name.Short(), err)
	}
	encoded, err := encode(tag.EncodeWithoutSignature)
	if err != nil {
		return nil, fmt.Errorf("encode tag %s: %w", name.Short(), err)
	}
	return &fluxgit.Tag{
		Hash: fluxgit.Hash(tag.Hash.String()), Name: tag.Name, Author: identity(tag.Tagger),
		Signature: tag.PGPSignature, Encoded: encoded, Message: tag.Message,
	}, nil
}

func encode(into func(plumbing.EncodedObject) error) ([]byte, error) {
	var o plumbing.MemoryObject
	if err := into(&o); err != nil {
		return nil, err
	}
	r, err := o.Reader()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func identity(s object.Signature) fluxgit.Signature {
	return fluxgit.Signature{Name: s.Name, Email: s.Email, When: s.When}
}
