// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrUnknownSource means that a sourceRef names a kind that is no source, or none that
// the unit may have.
var ErrUnknownSource = errors.New("unknown kind of source")

// source is an object that names content.
type source interface {
	client.Object
	GetArtifact() *meta.Artifact
}

var sources = map[string]func() source{
	sourcev1.GitRepositoryKind:    func() source { return &sourcev1.GitRepository{} },
	sourcev1.OCIRepositoryKind:    func() source { return &sourcev1.OCIRepository{} },
	sourcev1.BucketKind:           func() source { return &sourcev1.Bucket{} },
	sourcev1.ExternalArtifactKind: func() source { return &sourcev1.ExternalArtifact{} },
}

// Artifact returns the artifact of a source of one of the kinds that a unit may have, nil
// if it has none yet. Errors: ErrUnknownSource, and not found.
func Artifact(ctx context.Context, r client.Reader, kind string, key types.NamespacedName, kinds ...string) (*meta.Artifact, error) {
	made, known := sources[kind]
	if !known || !slices.Contains(kinds, kind) {
		last := len(kinds) - 1
		return nil, fmt.Errorf("%w %q: sourceRef.kind is %s or %s", ErrUnknownSource, kind, strings.Join(kinds[:last], ", "), kinds[last])
	}
	obj := made()
	if err := r.Get(ctx, key, obj); err != nil {
		return nil, err
	}
	return obj.GetArtifact(), nil
}
