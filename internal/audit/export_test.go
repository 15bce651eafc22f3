// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	_ "gocloud.dev/blob/memblob"
	_ "gocloud.dev/blob/s3blob"
)

func TestExport(t *testing.T) {
	o := history(t)
	key, err := ReadPublicKey(PublicKeyFile(o.KeyFile))
	must(t, err)
	bucket := filepath.Join(t.TempDir(), "bucket")
	closed := []string{segmentName(1), segmentName(2), segmentName(3)}

	// From the outside, and then again by URL: the same place, and nothing to do.
	r, err := Export(t.Context(), o.Dir, key, bucket)
	must(t, err)
	if d := cmp.Diff(ExportReport{Copied: closed}, r); d != "" {
		t.Errorf("first export: -want +got:\n%s", d)
	}
	r, err = Export(t.Context(), o.Dir, key, "file://"+bucket)
	must(t, err)
	if d := cmp.Diff(ExportReport{Present: closed}, r); d != "" {
		t.Errorf("second export: -want +got:\n%s", d)
	}
	names, err := os.ReadDir(bucket)
	must(t, err)
	if len(names) != 3 {
		t.Errorf("the bucket holds %v", names)
	}

	// The copy can be checked by itself, and does not pass for a whole ledger.
	copied, err := Verify(t.Context(), bucket, key, VerifyOptions{Exported: true})
	if err != nil || !copied.Holds() || copied.First != 1 || copied.Last != 12 {
		t.Errorf("the copy: %+v, %v", copied, err)
	}
	if r, err := Verify(t.Context(), bucket, key, VerifyOptions{}); err != nil || r.Holds() {
		t.Errorf("the copy as a ledger: %v, %v", r.Findings, err)
	}
	must(t, os.Remove(filepath.Join(bucket, segmentName(2))))
	if r, err := Verify(t.Context(), bucket, key, VerifyOptions{Exported: true}); err != nil || r.Holds() {
		t.Errorf("the copy with a hole: %v, %v", r.Findings, err)
	}
	r, err = Export(t.Context(), o.Dir, key, bucket)
	must(t, err)
	if d := cmp.Diff(ExportReport{Copied: closed[1:2], Present: []string{closed[0], closed[2]}}, r); d != "" {
		t.Errorf("what is missing is copied: -want +got:\n%s", d)
	}

	// What is there is never overwritten.
	tamper(t, filepath.Join(bucket, segmentName(1)), func(s string) string { return strings.Replace(s, "Alice", "Mallo", 1) })
	if _, err := Export(t.Context(), o.Dir, key, bucket); err == nil || !strings.Contains(err.Error(), "the bucket has another audit-000001.jsonl") {
		t.Errorf("export over another segment: %v", err)
	}
}

func TestExportRefuses(t *testing.T) {
	o := history(t)
	key, err := ReadPublicKey(PublicKeyFile(o.KeyFile))
	must(t, err)
	lines(t, o.Dir, 2, func(l []string) []string { l[1] = strings.Replace(l[1], "Alice", "Mallo", 1); return l })
	bucket := t.TempDir()
	if _, err := Export(t.Context(), o.Dir, key, bucket); err == nil || !strings.Contains(err.Error(), "audit-000002.jsonl line 2: edited") {
		t.Errorf("export of an edited segment: %v", err)
	}
	if _, err := os.Stat(filepath.Join(bucket, segmentName(2))); err == nil {
		t.Error("the edited segment was copied")
	}
	if _, err := Export(t.Context(), t.TempDir(), key, bucket); err == nil || !strings.Contains(err.Error(), "there is no ledger") {
		t.Errorf("export of nothing: %v", err)
	}
	for _, url := range []string{"", "file://./x", "nothing://user:hunter2@x?key=hunter3"} {
		if _, err := Export(t.Context(), o.Dir, key, url); err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("export to %q: %v", url, err)
		}
	}
	if r, err := Export(t.Context(), o.Dir, key, "mem://"); err == nil || len(r.Copied) != 1 {
		t.Errorf("export to object storage until the segment that does not hold: %+v, %v", r, err)
	}
}

func TestExportedSegmentsMayGo(t *testing.T) {
	o := history(t)
	o.KeepLocal = 1
	l := open(t, o)
	in, err := l.Begin(t.Context(), entry(1)) // in segment 4
	must(t, err)
	bucket := t.TempDir()
	r, err := l.Export(t.Context(), bucket)
	must(t, err)
	want := ExportReport{
		Copied:  []string{segmentName(1), segmentName(2), segmentName(3)},
		Removed: []string{segmentName(1), segmentName(2)},
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// The ledger says by itself why it begins later.
	if r := verify(t, o); r.First != 9 || r.Segments != 2 {
		t.Errorf("report: %+v", r)
	}
	told := all(t, o.Dir, Filter{Action: "ledger-export"})
	if len(told) != 1 || told[0].Pruned != 2 {
		t.Errorf("the export was told as %v", told)
	}
	// With nothing new nothing is told.
	before := l.Head()
	if r, err := l.Export(t.Context(), bucket); err != nil || len(r.Present) != 1 || l.Head() != before {
		t.Errorf("second export: %+v, %v", r, err)
	}
	// A segment whose intent is open is needed at the next start.
	appendN(t, l, 12)
	r, err = l.Export(t.Context(), bucket)
	if err != nil || len(r.Copied) < 2 {
		t.Fatalf("third export: %+v, %v", r, err)
	}
	if d := cmp.Diff([]string{segmentName(3)}, r.Removed); d != "" {
		t.Errorf("removed: -want +got:\n%s", d)
	}
	must(t, in.End(t.Context(), Outcome{Result: Succeeded}))
	if r, err = l.Export(t.Context(), bucket); err != nil || len(r.Removed) == 0 {
		t.Errorf("fourth export: %+v, %v", r, err)
	}
	must(t, l.Close())
	open(t, o)
	verify(t, o)
	// One more is gone than the ledger says.
	numbers, err := segments(o.Dir)
	must(t, err)
	must(t, os.Remove(filepath.Join(o.Dir, segmentName(numbers[0]))))
	if r, err := Verify(t.Context(), o.Dir, l.PublicKey(), VerifyOptions{}); err != nil || len(r.Findings) != 1 || r.Findings[0].Kind != Dropped {
		t.Errorf("a segment that was not exported is gone: %v, %v", r.Findings, err)
	}
}

// TestExportToS3: a bucket is written once, and told apart when it has something else.
func TestExportToS3(t *testing.T) {
	store := s3mem.New()
	must(t, store.CreateBucket("ledger"))
	server := httptest.NewServer(gofakes3.New(store).Server())
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	bucket := "s3://ledger?prefix=terrace/&region=eu-central-1&use_path_style=true&endpoint=" + url.QueryEscape(server.URL)
	o := history(t)
	key, err := ReadPublicKey(PublicKeyFile(o.KeyFile))
	must(t, err)
	closed := []string{segmentName(1), segmentName(2), segmentName(3)}
	for _, want := range []ExportReport{{Copied: closed}, {Present: closed}} {
		r, err := Export(t.Context(), o.Dir, key, bucket)
		must(t, err)
		if d := cmp.Diff(want, r); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
	content, err := os.ReadFile(filepath.Join(o.Dir, closed[0]))
	must(t, err)
	changed := strings.Replace(string(content), "Alice", "Mallo", 1)
	_, err = store.PutObject("ledger", "terrace/"+closed[0], map[string]string{}, strings.NewReader(changed), int64(len(changed)), nil)
	must(t, err)
	if _, err := Export(t.Context(), o.Dir, key, bucket); err == nil || !strings.Contains(err.Error(), "the bucket has another "+closed[0]) {
		t.Errorf("export over something else: %v", err)
	}
	if _, err := Export(t.Context(), o.Dir, key, bucket+"&secret=canary"); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("export to a bucket that is not understood: %v", err)
	}
}
