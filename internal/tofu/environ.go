// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

// Environ is the whole environment that the session's processes get, sorted, as
// "NAME=value": for a person who works in the
// directory by hand, init included.
func (s *Session) Environ() []string { return s.environ(initSub) }
