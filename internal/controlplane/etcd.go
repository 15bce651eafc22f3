// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Sizes of the database. A segment of the log is allocated whole before it is
// used; a quarter of etcd's default is plenty for one node and leaves small
// disks usable. The quota bounds the database; at it etcd refuses writes until
// space has been regained (see storage.go).
const (
	segmentBytes = 16 << 20
	defaultQuota = 4 << 30
)

// maxSocketPath is the longest path that fits a socket address on every system
// we run on: 104 bytes with the final zero on darwin, 108 on linux.
const maxSocketPath = 103

// nowhere stands in the membership of a single etcd where the protocol wants
// an address of peers and clients. Nothing listens there and nobody dials it.
const nowhere = "http://127.0.0.1:1"

// etcd is the running database.
type etcd struct {
	server   *embed.Etcd
	endpoint string     // for clients: the unix socket
	failed   chan error // gets the first fatal error; see fatality
	shortcut string     // directory with a symbolic link, when the path was too long
}

// startEtcd opens the database below d and serves it on a unix socket inside
// the directory and nowhere else. It returns when requests are answered.
func startEtcd(ctx context.Context, d *directory, quota int64, log logr.Logger) (_ *etcd, err error) {
	if err := verifyDatabase(d); err != nil {
		return nil, err
	}
	e := &etcd{failed: make(chan error, 1)}
	socket, err := e.socketPath(d)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.removeShortcut()
		}
	}()
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, unusable(d.path, err)
	}
	e.endpoint = "unix://" + socket
	config := e.config(d, socket, quota, log)

	started := make(chan error, 1)
	go func() {
		defer recoverAs(started)
		server, err := embed.StartEtcd(config)
		e.server = server
		started <- err
	}()
	// etcd may end in three ways: an error, a panic in this goroutine, or a
	// fatal log line in another one, after which started stays silent.
	select {
	case err = <-started:
	case err = <-e.failed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, startFailure(d, err)
	}
	select {
	case <-e.server.Server.ReadyNotify():
		return e, nil
	case err = <-e.failed:
		return nil, startFailure(d, err)
	case err = <-e.server.Err():
		return nil, startFailure(d, err)
	case <-ctx.Done():
		e.server.Close()
		return nil, ctx.Err()
	}
}

func (e *etcd) config(d *directory, socket string, quota int64, log logr.Logger) *embed.Config {
	wal.SegmentSizeBytes = segmentBytes // etcd has no other place for it
	away, err := url.Parse(nowhere)
	if err != nil {
		panic(err)
	}
	c := embed.NewConfig()
	c.Name = "terrace"
	c.Dir = d.join(etcdDir)
	c.ListenPeerUrls = nil
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}}
	c.AdvertisePeerUrls = []url.URL{*away}
	c.AdvertiseClientUrls = []url.URL{*away}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.EnableGRPCGateway = false
	// A single member elects itself after one election timeout; half the default
	// starts sooner, and a shorter tick would only wake an idle process more often.
	c.TickMs, c.ElectionMs = 100, 500
	c.MaxWalFiles, c.MaxSnapFiles = 2, 2
	c.QuotaBackendBytes = quota
	// Compaction is the API server's: it knows how far back its clients may ask.
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&logCore{log: log},
		zap.WithFatalHook(fatality{e.failed}), zap.WithPanicHook(fatality{e.failed})))
	return c
}

// socketPath returns the path under which this process listens and dials. When
// that of the data directory is too long for a socket address, it leads through
// a symbolic link in a directory of ours; the socket itself is in the data
// directory either way.
func (e *etcd) socketPath(d *directory) (string, error) {
	if path := d.join(etcdSocket); len(path) <= maxSocketPath {
		return path, nil
	}
	short, err := os.MkdirTemp("", "terrace-") // mode 0700
	if err != nil {
		return "", unusable(d.path, err)
	}
	e.shortcut = short
	link := filepath.Join(short, "d")
	if err := os.Symlink(d.path, link); err != nil {
		e.removeShortcut()
		return "", unusable(d.path, err)
	}
	path := filepath.Join(link, etcdSocket)
	if len(path) > maxSocketPath {
		e.removeShortcut()
		return "", &StartError{
			What: fmt.Sprintf("make a socket for etcd: the paths of data directory %s and of temporary directory %s are both too long", d.path, os.TempDir()),
			Hint: "use a --data-dir with a shorter path",
		}
	}
	return path, nil
}

func (e *etcd) removeShortcut() {
	if e.shortcut != "" {
		os.RemoveAll(e.shortcut)
	}
}

// stop closes the database. After a fatal error etcd may hold its own locks for
// ever, so the wait is bounded by ctx; nothing acknowledged depends on it.
func (e *etcd) stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.server.Close()
	}()
	defer e.removeShortcut()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop etcd: %w", ctx.Err())
	}
}

// verifyDatabase looks at the database before etcd does. What is wrong with it
// would end the process from one of etcd's goroutines, as a panic or, for a file
// that is too short, as a bus error.
func verifyDatabase(d *directory) error {
	path := d.join(etcdDir, "member", "snap", "db")
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return verifyLog(d)
	}
	if err != nil {
		return unusable(d.path, err)
	}
	result := make(chan error, 1)
	go func() {
		defer recoverAs(result)
		debug.SetPanicOnFault(true)
		result <- readDatabase(path, info.Size())
	}()
	if err := <-result; err != nil {
		return corrupt(d.path, err)
	}
	return nil
}

// verifyLog refuses a log without its database: etcd would begin anew, quietly.
func verifyLog(d *directory) error {
	logs, err := filepath.Glob(d.join(etcdDir, "member", "wal", "*.wal"))
	if err != nil {
		return err
	}
	if len(logs) > 0 {
		return corrupt(d.path, "etcd/member/snap/db is missing")
	}
	return nil
}

func readDatabase(path string, size int64) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second, PreLoadFreelist: true})
	if err != nil {
		return fmt.Errorf("read etcd/member/snap/db: %w", err)
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("read etcd/member/snap/db: it has %d bytes of %d", size, tx.Size())
		}
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			b.Cursor().First()
			b.Cursor().Last()
			return nil
		})
	})
}

// startFailure names what a person can do about an error of etcd.
func startFailure(d *directory, err error) error {
	var known *StartError
	switch {
	case errors.As(err, &known):
		return err
	case noSpace(err):
		return &StartError{
			What: fmt.Sprintf("open the database of %s: no space left on its file system", d.path),
			Hint: "free space there and start again; nothing that was saved is lost",
			Err:  err,
		}
	case errors.Is(err, os.ErrPermission):
		return unusable(d.path, err)
	}
	return corrupt(d.path, err)
}

// runFailure names what a person can do about the error that ended a control plane.
func runFailure(d *directory, err error) error {
	if noSpace(err) {
		return &StartError{
			What: fmt.Sprintf("run the control plane: no space left on the file system of %s", d.path),
			Hint: "free space there and start again; nothing that was saved is lost",
			Err:  err,
		}
	}
	return fmt.Errorf("run the control plane: %w", err)
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error())
}

// recoverAs turns a panic of the calling goroutine into an error on c.
func recoverAs(c chan<- error) {
	if r := recover(); r != nil {
		c <- fmt.Errorf("panic: %v", r)
	}
}

// fatality takes the place of the end of the process that etcd asks for by a
// fatal or panicking log line: it reports the line and ends the goroutine.
type fatality struct{ failed chan<- error }

// OnWrite implements zapcore.CheckWriteHook.
func (f fatality) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	select {
	case f.failed <- err:
	default: // the first one tells the cause
	}
	runtime.Goexit()
}
