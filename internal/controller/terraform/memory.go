// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/terrace-dev/terrace/internal/run"
)

// memory is what the controller remembers of units between reconciles. All of it
// may be lost: it saves requests and repeats, it decides nothing.
type memory struct {
	mu    sync.Mutex
	units map[run.Unit]*unitMemory
}

type unitMemory struct {
	cancel string // value of the cancel annotation when the run began
	// outputs names the version of the output Secret that was last seen right; see seenRight.
	outputs string
	health  healthState
	glass   *session // open while a person works on the unit by hand
}

type healthState struct {
	running bool
	last    *healthResult
}

type healthResult struct {
	what string // digest of what was checked
	err  error
	at   time.Time
}

func newMemory() *memory {
	return &memory{units: map[run.Unit]*unitMemory{}}
}

// with calls f on what is remembered of u.
func (m *memory) with(u run.Unit, f func(*unitMemory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.units[u] == nil {
		m.units[u] = &unitMemory{}
	}
	f(m.units[u])
}

func (m *memory) cancelToken(u run.Unit) (token string) {
	m.with(u, func(x *unitMemory) { token = x.cancel })
	return token
}

func (m *memory) setCancelToken(u run.Unit, token string) {
	m.with(u, func(x *unitMemory) { x.cancel = token })
}

func (m *memory) forget(u run.Unit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.units, u)
}

// cache is a bounded map that forgets what was used longest ago.
type cache[K comparable, V any] struct{ lru *lru.Cache }

func newCache[K comparable, V any](size int) *cache[K, V] {
	return &cache[K, V]{lru.New(size)}
}

func (c *cache[K, V]) Get(k K) (v V, ok bool) {
	x, ok := c.lru.Get(k)
	if !ok {
		return v, false
	}
	return x.(V), true
}

func (c *cache[K, V]) Add(k K, v V) { c.lru.Add(k, v) }
