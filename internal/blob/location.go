// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package blob

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
)

// OpenBucket opens a directory (a plain path or file:///abs; created 0700), whose path it
// returns as dir, or any URL that gocloud.dev/blob has a driver for in this binary; dir is
// empty then. Errors hold nothing of what Redacted hides.
func OpenBucket(ctx context.Context, location string) (bucket *blob.Bucket, dir string, err error) {
	u, err := url.Parse(location)
	switch {
	case location == "":
		return nil, "", errors.New("the location is empty")
	case err != nil && strings.Contains(location, "://"):
		return nil, "", errors.New("it is no URL")
	case err == nil && u.Scheme == fileblob.Scheme:
		if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
			return nil, "", errors.New("a file URL must be absolute, such as file:///var/lib/terrace/blobs")
		}
		dir = filepath.FromSlash(u.Path)
	case err != nil || u.Scheme == "" || filepath.IsAbs(location):
		dir = location
	default:
		if bucket, err = blob.OpenBucket(ctx, location); err != nil {
			// gocloud repeats the URL, with the keys that it may hold.
			return nil, "", errors.New(hidden(err.Error()))
		}
		return bucket, "", nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", err
	}
	bucket, err = fileblob.OpenBucket(dir, &fileblob.Options{
		NoTempDir: true, DirFileMode: 0o700, Metadata: fileblob.MetadataDontWrite,
	})
	return bucket, dir, err
}

// Redacted is a location without the user part and the query of a URL, which may hold keys.
func Redacted(location string) string {
	u, err := url.Parse(location)
	if scheme, _, is := strings.Cut(location, "://"); err != nil && is {
		return scheme + "://…"
	}
	if err != nil || u.Scheme == "" {
		return location
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

var (
	userPart  = regexp.MustCompile(`://[^/\s"]*@`)
	queryPart = regexp.MustCompile(`\?[^\s"]+`)
)

// hidden is a text without the user parts and the queries of the URLs in it.
func hidden(text string) string {
	return queryPart.ReplaceAllString(userPart.ReplaceAllString(text, "://"), "?…")
}
