// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import "context"

// StatePull reads the state of the selected workspace as the backend has it;
// empty when there is none. It holds secrets.
func (s *Session) StatePull(ctx context.Context) ([]byte, error) {
	res, err := s.run(ctx, command{sub: "state pull", args: []string{"state", "pull", "-no-color"}, capture: true})
	if err != nil {
		return nil, err
	}
	return res.stdout, nil
}

// StatePushOptions are the choices of state push.
type StatePushOptions struct {
	// Force also overwrites a newer serial or another lineage.
	Force bool
	// LockTimeout is a duration like "30s"; empty: do not wait.
	LockTimeout string
}

func (o StatePushOptions) args(file string) []string {
	a := args{"state", "push", "-no-color"}
	a.flag("-force", o.Force)
	a.text("-lock-timeout=", o.LockTimeout)
	a.add(file)
	return a
}

// StatePush makes the file the state of the selected workspace. The tool
// refuses one of another lineage or an older serial.
func (s *Session) StatePush(ctx context.Context, file string, o StatePushOptions) error {
	_, err := s.run(ctx, command{sub: "state push", args: o.args(file)})
	return err
}

// StateRmOptions are the choices of state rm.
type StateRmOptions struct {
	// LockTimeout is a duration like "30s"; empty: do not wait.
	LockTimeout string
}

func (o StateRmOptions) args(address string) []string {
	a := args{"state", "rm", "-no-color"}
	a.text("-lock-timeout=", o.LockTimeout)
	a.add(address)
	return a
}

// StateRm makes the state forget the resource at an address. Nothing in the world is
// changed.
func (s *Session) StateRm(ctx context.Context, address string, o StateRmOptions) error {
	_, err := s.run(ctx, command{sub: "state rm", args: o.args(address)})
	return err
}
