// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package reference reads what specs refer to: the artifacts of sources, and the content
// of Secrets and ConfigMaps. A watch of their metadata tells that something changed; what
// is remembered of a Secret's content is a keyed digest by resourceVersion, and nothing
// else.
//
// It does not know what the content is for, and writes nothing.
package reference

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
	content  *lru.Cache // types.UID of a ConfigMap → versionContent
	digests  *lru.Cache // digestKey → versionDigest
}

// knownDigests is how many references have their digest remembered; of more than
// that, some are read again.
const knownDigests = 16384

// knownContents is how many small ConfigMaps are remembered: many units of a
// repository read the same. The content of Secrets never is.
const (
	knownContents = 128
	smallContent  = 32 << 10 // bytes
)

type versionContent struct {
	version string
	content map[string][]byte
}

// digestKey names a digest of an object, over some of its keys.
type digestKey struct {
	uid  types.UID
	keys string
}

func keyOf(uid types.UID, keys []string) digestKey { return digestKey{uid, fmt.Sprintf("%q", keys)} }

type versionDigest struct{ version, digest string }

// NewReader returns a Reader. cached serves PartialObjectMetadata from a watch,
// uncached reads from the API server, and key is that of the digests.
func NewReader(cached, uncached client.Reader, key []byte) *Reader {
	return &Reader{cached: cached, uncached: uncached, key: key, content: lru.New(knownContents), digests: lru.New(knownDigests)}
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

// Digest returns a keyed digest of a reference's content, "" if it does not exist;
// with keys, of the content of those alone. Content that had to be fetched for it is
// put into fetched, so that a run that follows does not ask again.
func (r *Reader) Digest(ctx context.Context, ref Reference, fetched Data, keys ...string) (string, error) {
	m, err := r.Metadata(ctx, ref)
	if err != nil || m == nil {
		return "", err
	}
	key := keyOf(m.UID, keys)
	if known, ok := r.digests.Get(key); ok && known.(versionDigest).version == m.ResourceVersion {
		return known.(versionDigest).digest, nil
	}
	content, version, uid, err := r.Fetch(ctx, ref)
	if err != nil || content == nil {
		return "", err
	}
	fetched[ref] = content
	d := r.sum(only(content, keys))
	r.digests.Add(digestKey{uid, key.keys}, versionDigest{version, d})
	return d, nil
}

// ErrChanged says that content is another than that of its digest. Who gets it looks again:
// the next Digest is of what is there then.
var ErrChanged = errors.New("it changes while it is read")

// Content returns that of which Digest gave a digest, of all or of some keys, from fetched or
// from the API server; nil for the digest "". The watch that digests are remembered by can be
// behind: content that is newer than its digest would be taken for that of the digest for as
// long as anything made of it is kept, so that is ErrChanged.
func (r *Reader) Content(ctx context.Context, ref Reference, digest string, fetched Data, keys ...string) (map[string][]byte, error) {
	if digest == "" {
		return nil, nil
	}
	content, ok := fetched[ref]
	if !ok {
		var err error
		if content, _, _, err = r.Fetch(ctx, ref); err != nil {
			return nil, err
		}
	}
	if content == nil || r.sum(only(content, keys)) != digest {
		m, err := r.Metadata(ctx, ref)
		if err != nil {
			return nil, err
		}
		if m != nil {
			r.digests.Remove(keyOf(m.UID, keys))
		}
		return nil, fmt.Errorf("read %s: %w", ref, ErrChanged)
	}
	fetched[ref] = content
	return content, nil
}

// only returns the part of the content that keys name, all of it for none.
func only(content map[string][]byte, keys []string) map[string][]byte {
	if len(keys) == 0 {
		return content
	}
	part := map[string][]byte{}
	for _, k := range keys {
		if v, ok := content[k]; ok {
			part[k] = v
		}
	}
	return part
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
		if known, uid, ok := r.known(ctx, ref); ok {
			return known.content, known.version, uid, nil
		}
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
	if ref.Kind == ConfigMap && sizeOf(content) <= smallContent {
		r.content.Add(meta.UID, versionContent{meta.ResourceVersion, content})
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

// known returns the content of a ConfigMap that has not changed since it was read.
func (r *Reader) known(ctx context.Context, ref Reference) (versionContent, types.UID, bool) {
	m, err := r.Metadata(ctx, ref)
	if err != nil || m == nil {
		return versionContent{}, "", false
	}
	v, ok := r.content.Get(m.UID)
	if !ok || v.(versionContent).version != m.ResourceVersion {
		return versionContent{}, "", false
	}
	return v.(versionContent), m.UID, true
}

func sizeOf(content map[string][]byte) (n int) {
	for k, v := range content {
		n += len(k) + len(v)
	}
	return n
}
