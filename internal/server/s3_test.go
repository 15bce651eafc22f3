// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// A state in S3, with its lock beside it, goes on working through
// customConfiguration; the credentials come from a Secret.
func TestStateInS3(t *testing.T) {
	store := s3mem.New()
	must(t, store.CreateBucket("states"))
	s3 := httptest.NewServer(gofakes3.New(store).Server())
	defer s3.Close()

	w := newWorld(t, modA())
	w.putSecret("s3", map[string]string{"access_key": "AKIAEXAMPLE", "secret_key": "canary-of-the-secret-key"})
	w.unit("u", `
approvePlan: auto
vars: [{name: v, value: one}]
backendConfig:
  customConfiguration: |
    backend "s3" {
      bucket                      = "states"
      key                         = "u/terraform.tfstate"
      region                      = "eu-central-1"
      endpoints                   = { s3 = "`+s3.URL+`" }
      use_path_style              = true
      use_lockfile                = true
      skip_credentials_validation = true
      skip_region_validation      = true
      skip_requesting_account_id  = true
      skip_metadata_api_check     = true
      skip_s3_checksum            = true
    }
backendConfigsFrom: [{kind: Secret, name: s3}]
writeOutputsToSecret: {name: out}`)
	w.output("out", "o", "one")
	w.awaitReady("u")

	object, err := store.GetObject("states", "u/terraform.tfstate", nil)
	must(t, err)
	defer object.Contents.Close()
	state, err := io.ReadAll(object.Contents)
	must(t, err)
	if !strings.Contains(string(state), "terraform_data") {
		t.Errorf("the state is not in the bucket: %s", state)
	}
	locks, err := store.ListBucket("states", &gofakes3.Prefix{HasPrefix: true, Prefix: "u/terraform.tfstate.tflock"}, gofakes3.ListBucketPage{})
	must(t, err)
	if len(locks.Contents) != 0 {
		t.Errorf("%d locks are left", len(locks.Contents))
	}
	if log := w.runLog("u"); strings.Contains(log, "canary-of-the-secret-key") {
		t.Error("the secret key is in the log")
	}
}
