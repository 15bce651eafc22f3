// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	_ "unsafe" // go:linkname

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory" // etcdClientLog
	"k8s.io/klog/v2"
)

// The libraries below are talkative at their usual levels, and tell in errors
// what their own retries mend. Their lines come one or two levels lower than
// ours, so that the log of a healthy control plane is empty.
const (
	errorsAt = 1
	infosAt  = 3
)

// lowered is a sink that writes what Kubernetes logs at lower levels.
type lowered struct{ to logr.LogSink }

func (l lowered) Init(info logr.RuntimeInfo) { l.to.Init(info) }
func (l lowered) Enabled(level int) bool     { return l.to.Enabled(level + infosAt) }
func (l lowered) Info(level int, msg string, kv ...any) {
	l.to.Info(level+infosAt, msg, kv...)
}

func (l lowered) Error(err error, msg string, kv ...any) {
	if !l.to.Enabled(errorsAt) {
		return
	}
	if err != nil {
		kv = append(kv, "error", err.Error())
	}
	l.to.Info(errorsAt, msg, kv...)
}

func (l lowered) WithValues(kv ...any) logr.LogSink { return lowered{l.to.WithValues(kv...)} }
func (l lowered) WithName(name string) logr.LogSink { return lowered{l.to.WithName(name)} }

func lower(log logr.Logger) logr.Logger {
	if log.GetSink() == nil {
		return log
	}
	return logr.New(lowered{log.GetSink()})
}

// kubernetesLog is where klog, which is one per process, goes. klog's logger can
// be set only while nothing logs, so it is set once, and the control plane that
// started last is asked for its logger with each line.
var kubernetesLog struct {
	once   sync.Once
	log    atomic.Pointer[logr.Logger]
	last   atomic.Int64 // the number of the control plane that started last
	failed sync.Map     // number → chan error, of those that run
}

// planeLabel marks the goroutines of a control plane with its number, in the labels
// that goroutines hand on to those that they start.
const planeLabel = "terrace-controlplane"

// captureKubernetesLog sends klog's lines to log, and the fatal ones of this control
// plane to failed instead of ending the process. It returns the number by which the
// control plane's goroutines have to be labelled.
func captureKubernetesLog(log logr.Logger, failed chan error) int64 {
	low := lower(log)
	number := kubernetesLog.last.Add(1)
	kubernetesLog.failed.Store(number, failed)
	kubernetesLog.log.Store(&low)
	kubernetesLog.once.Do(func() {
		klog.SetLogger(logr.New(current{}))
		etcdClientLog = zap.New(&logCore{log: logr.New(current{})})
		klog.OsExit = func(code int) {
			// A control plane that has stopped may still end itself: a hook of its start finds
			// its etcd gone, say. That is nobody's failure any more, and not the next one's.
			if failed, ok := kubernetesLog.failed.Load(planeOfGoroutine()); ok {
				select {
				case failed.(chan error) <- fmt.Errorf("the API server ended itself with code %d; its log says why", code):
				default:
				}
			}
			runtime.Goexit()
		}
	})
	return number
}

// releaseKubernetesLog ends the interest in what a control plane's goroutines say last.
func releaseKubernetesLog(number int64) { kubernetesLog.failed.Delete(number) }

// labelled calls f such that the goroutines that it starts are known as the control plane's.
func labelled(number int64, f func()) {
	pprof.Do(context.Background(), pprof.Labels(planeLabel, strconv.FormatInt(number, 10)), func(context.Context) { f() })
}

var labelLine = regexp.MustCompile(`"` + planeLabel + `":"(\d+)"`)

// planeOfGoroutine returns the number of the control plane that the calling goroutine
// belongs to, of the one that started last if it has no label. The labels of a
// goroutine can be read from a profile only, which is cheap enough for a fatal line.
func planeOfGoroutine() int64 {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1) // a buffer takes everything
	for entry := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(entry, "controlplane.planeOfGoroutine") {
			continue
		}
		if m := labelLine.FindStringSubmatch(entry); m != nil {
			if number, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				return number
			}
		}
	}
	return kubernetesLog.last.Load()
}

// current is a sink that looks up the sink of the control plane started last.
type current struct {
	name   string
	values []any
}

func (c current) Init(logr.RuntimeInfo) {}

func (c current) Enabled(level int) bool {
	return kubernetesLog.log.Load().GetSink() != nil && kubernetesLog.log.Load().GetSink().Enabled(level)
}

func (c current) Info(level int, msg string, kv ...any) {
	if sink := kubernetesLog.log.Load().GetSink(); sink != nil {
		sink.Info(level, msg, c.with(kv)...)
	}
}

func (c current) Error(err error, msg string, kv ...any) {
	if sink := kubernetesLog.log.Load().GetSink(); sink != nil {
		sink.Error(err, msg, c.with(kv)...)
	}
}

func (c current) with(kv []any) []any {
	all := append([]any{}, c.values...)
	if c.name != "" {
		all = append(all, "part", c.name)
	}
	return append(all, kv...)
}

func (c current) WithValues(kv ...any) logr.LogSink {
	c.values = c.with(kv)[:len(c.values)+len(kv)]
	return c
}
func (c current) WithName(name string) logr.LogSink { c.name = name; return c }

// etcdClientLog is the logger of the API server's etcd client. The API server
// makes it when the program is loaded, to standard error, and gives no way to
// change it; a client that goes away in the middle of a request, or a stop in
// order, puts a line of JSON there.
//
//go:linkname etcdClientLog k8s.io/apiserver/pkg/storage/storagebackend/factory.etcd3ClientLogger
var etcdClientLog *zap.Logger

// logCore is a zap core that writes etcd's warnings and errors to a logr.Logger.
type logCore struct {
	log    logr.Logger
	fields []zapcore.Field
}

// Enabled implements zapcore.LevelEnabler.
func (c *logCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (c *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{log: c.log, fields: append(append([]zapcore.Field{}, c.fields...), fields...)}
}

// Check implements zapcore.Core.
func (c *logCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range append(append([]zapcore.Field{}, c.fields...), fields...) {
		f.AddTo(values)
	}
	kv := make([]any, 0, 2*len(values.Fields))
	for k, v := range values.Fields {
		kv = append(kv, k, v)
	}
	c.log.V(errorsAt).Info(entry.Message, kv...)
	return nil
}

// Sync implements zapcore.Core.
func (c *logCore) Sync() error { return nil }
