// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import "strconv"

// args collects arguments; what is not set adds nothing.
type args []string

func (a *args) add(s ...string) { *a = append(*a, s...) }

func (a *args) flag(name string, on bool) {
	if on {
		a.add(name)
	}
}

func (a *args) bool(name string, b *bool) {
	if b != nil {
		a.add(name + strconv.FormatBool(*b))
	}
}

func (a *args) text(name, value string) {
	if value != "" {
		a.add(name + value)
	}
}

func (a *args) each(name string, values []string) {
	for _, v := range values {
		a.add(name + v)
	}
}

func (a *args) number(name string, n int) {
	if n > 0 {
		a.add(name + strconv.Itoa(n))
	}
}
