// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import "context"

func forceUnlockArgs(id string) []string {
	return []string{"force-unlock", "-no-color", "-force", id}
}

// ForceUnlock removes the lock with this id from the state, whoever holds it.
func (s *Session) ForceUnlock(ctx context.Context, id string) error {
	_, err := s.run(ctx, command{sub: "force-unlock", args: forceUnlockArgs(id)})
	return err
}
