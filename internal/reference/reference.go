// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package reference reads the Secrets and ConfigMaps that specs refer to. It caches
// no content: a watch of their metadata tells that something changed, and what is
// remembered of the content is a keyed digest by resourceVersion.
//
// It does not know what the content is for, and writes nothing.
package reference

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kinds that can be referred to.
const (
	Secret    = "Secret"
	ConfigMap = "ConfigMap"
)

// Reference names a Secret or ConfigMap that a spec reads.
type Reference struct {
	Kind, Namespace, Name string
}

// String gives "Kind namespace/name".
func (r Reference) String() string { return r.Kind + " " + r.Namespace + "/" + r.Name }

// Key is the name by which a client finds it.
func (r Reference) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// Data is the content of references; one that does not exist is absent.
type Data map[Reference]map[string][]byte

// Reader reads references for one controller. It is safe for concurrent use.
type Reader struct {
	cached   client.Reader
	uncached client.Reader
	key      []byte
	digests  *lru.Cache // types.UID → versionDigest
}

// knownDigests is how many references have their digest remembered; of more than
// that, some are read again.
const knownDigests = 16384

type versionDigest struct{ version, digest string }

// NewReader returns a Reader. cached serves PartialObjectMetadata from a watch,
// uncached reads from the API server, and key is that of the digests.
func NewReader(cached, uncached client.Reader, key []byte) *Reader {
	return &Reader{cached: cached, uncached: uncached, key: key, digests: lru.New(knownDigests)}
}

// Metadata returns the metadata of a reference from the watch, nil if it does not exist.
func (r *Reader) Metadata(ctx context.Context, ref Reference) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: ref.Kind})
	if err := r.cached.Get(ctx, ref.Key(), m); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look up %s: %w", ref, err)
	}
	return m, nil
}

// Digest returns a keyed digest of a reference's content, "" if it does not exist.
// Content that had to be fetched for it is put into fetched, so that a run that
// follows does not ask again.
func (r *Reader) Digest(ctx context.Context, ref Reference, fetched Data) (string, error) {
	m, err := r.Metadata(ctx, ref)
	if err != nil || m == nil {
		return "", err
	}
	if known, ok := r.digests.Get(m.UID); ok && known.(versionDigest).version == m.ResourceVersion {
		return known.(versionDigest).digest, nil
	}
	content, version, uid, err := r.Fetch(ctx, ref)
	if err != nil || content == nil {
		return "", err
	}
	fetched[ref] = content
	d := r.sum(content)
	r.digests.Add(uid, versionDigest{version, d})
	return d, nil
}

// Fetch reads a reference from the API server; content is nil if it does not exist.
func (r *Reader) Fetch(ctx context.Context, ref Reference) (content map[string][]byte, version string, uid types.UID, err error) {
	content = map[string][]byte{}
	var meta *metav1.ObjectMeta
	switch ref.Kind {
	case Secret:
		var s corev1.Secret
		err = r.uncached.Get(ctx, ref.Key(), &s)
		maps.Copy(content, s.Data)
		meta = &s.ObjectMeta
	case ConfigMap:
		var m corev1.ConfigMap
		err = r.uncached.Get(ctx, ref.Key(), &m)
		for k, v := range m.Data {
			content[k] = []byte(v)
		}
		maps.Copy(content, m.BinaryData)
		meta = &m.ObjectMeta
	default:
		return nil, "", "", fmt.Errorf("read %s: the kind is neither Secret nor ConfigMap", ref)
	}
	if apierrors.IsNotFound(err) {
		return nil, "", "", nil
	} else if err != nil {
		return nil, "", "", fmt.Errorf("read %s: %w", ref, err)
	}
	return content, meta.ResourceVersion, meta.UID, nil
}

// sum is keyed: what depends on it is written to a status that more people may
// read than the Secret, and short values could be guessed from a plain hash.
func (r *Reader) sum(content map[string][]byte) string {
	h := hmac.New(sha256.New, r.key)
	for _, k := range slices.Sorted(maps.Keys(content)) {
		fmt.Fprintf(h, "%d:%s%d:", len(k), k, len(content[k]))
		h.Write(content[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}
