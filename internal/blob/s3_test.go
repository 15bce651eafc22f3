// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"errors"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	_ "gocloud.dev/blob/s3blob"
)

// s3 starts a server with a bucket, and returns the URL of that.
func s3(t *testing.T) string {
	t.Helper()
	store := s3mem.New()
	if err := store.CreateBucket("blobs"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(store).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary-of-the-secret-key")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	return "s3://blobs?region=eu-central-1&use_path_style=true&endpoint=" + url.QueryEscape(server.URL)
}

// TestStoreInS3 does everything that a store does, in object storage.
func TestStoreInS3(t *testing.T) {
	ctx := t.Context()
	o := Options{URL: s3(t), KeyFile: filepath.Join(t.TempDir(), "k")}
	s := open(t, o).Part("states")
	d, n, err := s.Seal(ctx, strings.NewReader("old"))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Stat(ctx, d); err != nil || info.Size == 0 || n == 0 {
		t.Errorf("Stat = %+v, %v", info, err)
	}
	if _, err := s.Rotate(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Retire(ctx); !errors.Is(err, ErrKeyInUse) {
		t.Errorf("Retire while a blob needs the old identity: %v", err)
	}
	again, _, err := s.Reseal(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Delete(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Unseal(ctx, d); !errors.Is(err, ErrNotFound) {
		t.Errorf("Unseal of what was deleted: %v", err)
	}
	if n, err := s.Retire(ctx); n != 1 || err != nil {
		t.Errorf("Retire = %d, %v", n, err)
	}
	r, err := open(t, o).Part("states").Unseal(ctx, again)
	if got := content(t, r, err); got != "old" {
		t.Errorf("unsealed %q", got)
	}
	var listed []string
	for info, err := range s.List(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, info.Digest.String())
	}
	if len(listed) != 1 || listed[0] != again.String() {
		t.Errorf("listed %v", listed)
	}
}

// TestBucketHasOneOwner: another key file, or a new one after the old was lost, would
// take what is there for left over.
func TestBucketHasOneOwner(t *testing.T) {
	bucket := s3(t)
	mine := Options{URL: bucket, KeyFile: filepath.Join(t.TempDir(), "mine")}
	s := open(t, mine)
	if _, err := s.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine.KMSKeys = []string{keyA}
	open(t, mine) // rotated and wrapped it is the same file
	theirs := Options{URL: bucket, KeyFile: filepath.Join(t.TempDir(), "theirs")}
	_, err := Open(t.Context(), theirs)
	var refused *OpenError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "encrypted with another key file") {
		t.Errorf("a bucket of another key file: %v", err)
	}
	theirs.URL += "&prefix=theirs/"
	open(t, theirs)
	open(t, theirs)

	for reason, location := range map[string]string{
		"a bucket that is not there": strings.Replace(bucket, "//blobs", "//none", 1),
		"a parameter of no meaning":  bucket + "&secret=canary-of-a-parameter",
		"a scheme without a driver":  "gs://blobs?secret=canary-of-a-parameter",
		"no URL":                     "s3://bl obs?secret=canary-of-a-parameter",
	} {
		if _, err := Open(t.Context(), Options{URL: location, KeyFile: mine.KeyFile, KMSKeys: mine.KMSKeys}); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", reason, err)
		}
	}
}
