// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
)

// Logger returns the process's logger, which writes to w in the format and from
// the level of c. V(1) and above are the level "debug". A Config that passed
// Validate always has one; any other logs as text from info.
func (c Config) Logger(w io.Writer) logr.Logger {
	level, err := logLevel(c.LogLevel)
	if err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, o))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, o))
}

func logLevel(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("read log level: %q: not one of debug, info, warn, error", name)
}
