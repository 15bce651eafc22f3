// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"context"
	"fmt"
)

const initSub = "init"

// InitOptions are the choices of init; the zero value is a plain init.
type InitOptions struct {
	// Upgrade looks for newer modules and providers within their constraints.
	Upgrade bool
	// ForceCopy answers yes to the copying of state between backends.
	ForceCopy bool
	// Reconfigure forgets the backend that was used before; it excludes
	// ForceCopy, which is then not passed.
	Reconfigure bool
	// NoBackend leaves the backend alone.
	NoBackend bool
	// BackendConfig are "key=value" or paths of files with such lines. Values
	// that are secret belong in a file: arguments can be seen by others.
	BackendConfig []string
	// Lock is nil for the tool's default.
	Lock *bool
	// LockTimeout is a duration like "30s"; empty: do not wait.
	LockTimeout string
}

func (o InitOptions) args() []string {
	a := args{"init", "-no-color", "-input=false"}
	a.flag("-upgrade", o.Upgrade)
	a.flag("-force-copy", o.ForceCopy && !o.Reconfigure)
	a.flag("-reconfigure", o.Reconfigure)
	a.flag("-backend=false", o.NoBackend)
	a.each("-backend-config=", o.BackendConfig)
	a.bool("-lock=", o.Lock)
	a.text("-lock-timeout=", o.LockTimeout)
	return a
}

// Init prepares the module: backend, modules, providers. With a PluginCache it
// shares it safely with inits that run at the same time, in this process or
// another, and mends it after one that was killed.
func (s *Session) Init(ctx context.Context, o InitOptions) error {
	use, err := s.enterCache(ctx)
	if err != nil {
		return fmt.Errorf("open the plugin cache for init: %w", err)
	}
	_, err = s.run(ctx, command{sub: initSub, args: o.args(), files: use.files()})
	return use.leave(err)
}
