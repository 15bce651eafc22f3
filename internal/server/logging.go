// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"

	"github.com/go-logr/logr"
)

// quiet is a log without what controller-runtime says of every watch and worker that
// it starts: twenty lines at each start that tell an operator nothing. They are still
// there at level debug.
type quiet struct{ logr.LogSink }

func quietLogger(l logr.Logger) logr.Logger { return l.WithSink(quiet{l.GetSink()}) }

// Info implements logr.LogSink.
func (q quiet) Info(level int, msg string, keysAndValues ...any) {
	if strings.HasPrefix(msg, "Starting ") || strings.HasPrefix(msg, "Stopping and waiting for") || strings.HasPrefix(msg, "Shutdown signal received") {
		level = max(level, 1)
		if !q.Enabled(level) {
			return
		}
	}
	q.LogSink.Info(level, msg, keysAndValues...)
}

// WithValues implements logr.LogSink.
func (q quiet) WithValues(keysAndValues ...any) logr.LogSink {
	return quiet{q.LogSink.WithValues(keysAndValues...)}
}

// WithName implements logr.LogSink.
func (q quiet) WithName(name string) logr.LogSink { return quiet{q.LogSink.WithName(name)} }
