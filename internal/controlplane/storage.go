// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"
)

// Space. Writes are refused while less than the reserve is free on the file
// system of the data directory: etcd ends when its log cannot grow, and with
// the reserve it still has room for what it writes by itself. They are
// accepted again when a quarter more than the reserve is free.
const (
	defaultReserve = 128 << 20
	// leastFree is what a start needs to open an existing database.
	leastFree = 24 << 20
	// A defragmentation rewrites the database and holds up all requests; it is
	// worth that when it frees this much and at least half of the file.
	worthFreeing = 32 << 20
)

// spacePeriod is how often space is looked at. There is no event for it; the
// look is one system call.
const spacePeriod = time.Second

// reasonStorageFull is the reason in the Status of a refused write.
const reasonStorageFull metav1.StatusReason = "StorageFull"

// writeGate refuses requests that would write while there is no space for it.
type writeGate struct {
	// closed is why writes are refused, nil while they are not.
	closed atomic.Pointer[storageFull]
}

// storageFull is why writes are refused, one sentence.
type storageFull struct{ why string }

// Error returns the sentence.
func (s *storageFull) Error() string { return s.why }

// Unwrap makes errors.Is(err, ErrStorageFull) true.
func (s *storageFull) Unwrap() error { return ErrStorageFull }

// health returns why writes are refused, nil while they are not.
func (g *writeGate) health() error {
	if full := g.closed.Load(); full != nil {
		return full
	}
	return nil
}

// handler answers 507 for writes while the gate is closed. Deletions pass, for
// they are the way out, and so do requests that only look like writes.
func (g *writeGate) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		full := g.closed.Load()
		if full == nil || !writes(r) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInsufficientStorage)
		json.NewEncoder(w).Encode(&metav1.Status{ //nolint:errcheck // the client is gone
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure,
			Code:     http.StatusInsufficientStorage,
			Reason:   reasonStorageFull,
			Message:  full.why,
		})
	})
}

func writes(r *http.Request) bool {
	info, ok := genericrequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || r.URL.Query().Get("dryRun") != "" {
		return false
	}
	switch info.APIGroup {
	case "authentication.k8s.io", "authorization.k8s.io": // questions, sent by POST
		return false
	}
	switch info.Verb {
	case "create":
		return info.Subresource != "token"
	case "update", "patch":
		return true
	}
	return false
}

// storage keeps the database in shape while it runs.
type storage struct {
	path    string // of the data directory
	reserve uint64
	server  *etcdserver.EtcdServer
	client  *clientv3.Client // in process, no socket
	gate    *writeGate
	clock   clock.WithTicker
	log     logr.Logger
	free    func(path string) (uint64, error) // freeSpace, or a test's

	revision  int64 // at the last look
	allocated int64 // size of the database file when its blocks were last allocated
}

func newStorage(path string, reserve uint64, e *etcd, gate *writeGate, c clock.WithTicker, log logr.Logger) *storage {
	return &storage{
		path: path, reserve: reserve, server: e.server.Server, client: v3client.New(e.server.Server),
		gate: gate, clock: c, log: log, free: freeSpace,
	}
}

// run looks at space until ctx is done.
func (s *storage) run(ctx context.Context) {
	tick := s.clock.NewTicker(spacePeriod)
	defer tick.Stop()
	for {
		s.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}

// look sets the gate, mends a full database, and gives unused space back when
// nobody is writing.
func (s *storage) look(ctx context.Context) {
	free, err := s.free(s.path)
	if err != nil {
		s.log.Error(err, "Look at free space")
		return
	}
	s.allocate()
	idle := s.idle()
	var full *storageFull
	switch {
	case s.tight(free):
		full = &storageFull{fmt.Sprintf("writes are refused: the file system of %s has %d MiB free, %d MiB are kept in reserve; reading and deleting go on",
			s.path, free>>20, s.reserve>>20)}
	case len(s.server.Alarms()) > 0:
		full = s.regain(ctx, free)
	case idle && s.worthwhile() && free > s.reserve+uint64(s.server.Backend().SizeInUse()):
		s.defragment()
	}
	s.set(full)
}

// allocate makes sure of the blocks of the database file after it has grown.
func (s *storage) allocate() {
	size := s.server.Backend().Size()
	if size == s.allocated {
		return
	}
	if err := allocate(s.server.Cfg.BackendPath()); err != nil {
		s.log.V(1).Info("Allocate the database's blocks", "error", err.Error())
		return
	}
	s.allocated = size
}

func (s *storage) set(full *storageFull) {
	before := s.gate.closed.Swap(full)
	switch {
	case before == nil && full != nil:
		s.log.Info(full.why)
	case before != nil && full == nil:
		s.log.Info("Writes are accepted again", "dir", s.path)
	}
}

// tight says whether free space is below the reserve, with some slack on the
// way back so that the gate does not flap.
func (s *storage) tight(free uint64) bool {
	if s.gate.closed.Load() != nil {
		return free < s.reserve+s.reserve/4
	}
	return free < s.reserve
}

// idle says whether nothing was written since the last look.
func (s *storage) idle() bool {
	revision := s.server.KV().Rev()
	idle := revision == s.revision
	s.revision = revision
	return idle
}

func (s *storage) worthwhile() bool {
	size, used := s.server.Backend().Size(), s.server.Backend().SizeInUse()
	return size-used > worthFreeing && size-used > size/2
}

func (s *storage) defragment() {
	before := s.server.Backend().Size()
	if err := s.server.Backend().Defrag(); err != nil {
		s.log.Error(err, "Defragment the database")
		return
	}
	s.log.V(1).Info("Defragmented the database", "before", before, "after", s.server.Backend().Size())
}

// regain mends a database at its quota: it drops old revisions, gives their
// space back, and tells etcd to accept writes when a tenth of the quota is free.
func (s *storage) regain(ctx context.Context, free uint64) *storageFull {
	quota := s.server.Cfg.QuotaBackendBytes
	if _, err := s.client.Compact(ctx, s.server.KV().Rev(), clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, mvcc.ErrCompacted) {
		s.log.Error(err, "Compact the database")
	}
	if free > uint64(s.server.Backend().SizeInUse()) {
		s.defragment()
	}
	if size := s.server.Backend().Size(); size > quota-quota/10 {
		return &storageFull{fmt.Sprintf("writes are refused: the database of %s has %d MiB, its quota is %d MiB; reading and deleting go on",
			s.path, size>>20, quota>>20)}
	}
	for _, alarm := range s.server.Alarms() {
		if alarm.Alarm != pb.AlarmType_NOSPACE {
			return &storageFull{fmt.Sprintf("writes are refused: etcd found the database of %s damaged (%s)", s.path, alarm.Alarm)}
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return &storageFull{fmt.Sprintf("writes are refused until etcd's alarm is off: %v", err)}
		}
	}
	return nil
}

// freeSpace returns how many bytes this user may still write to the file system of path.
func freeSpace(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("ask for free space of %s: %w", path, err)
	}
	return uint64(fs.Bavail) * uint64(fs.Bsize), nil //nolint:unconvert // types differ between systems
}

// checkSpace refuses a start that could not even open the database.
func checkSpace(d *directory, free uint64, reserve uint64, existing bool) error {
	need := uint64(leastFree)
	if !existing {
		need = reserve
	}
	if free >= need {
		return nil
	}
	return &StartError{
		What: fmt.Sprintf("use data directory %s: its file system has %d MiB free, %d MiB are needed", d.path, free>>20, need>>20),
		Hint: "free space there, or give another --data-dir; nothing that was saved is lost",
		Err:  ErrStorageFull,
	}
}
