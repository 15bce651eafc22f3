// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"net/http"
	"sync/atomic"
)

// tally counts the requests of the benchmark itself, which are no work of Terrace.
type tally struct{ requests, writes atomic.Int64 }

func (t *tally) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		t.requests.Add(1)
		if err == nil && r.Method != http.MethodGet && resp.StatusCode < 300 {
			t.writes.Add(1)
		}
		return resp, err
	})
}

// take returns the counts since the last call.
func (t *tally) take() (requests, writes int) {
	return int(t.requests.Swap(0)), int(t.writes.Swap(0))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
