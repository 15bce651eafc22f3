// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	cases := map[string]struct {
		reason string
		text   string
		want   cpu
		fails  bool
	}{
		"plain": {
			reason: "utime 7, stime 3, cutime 20, cstime 5, in hundredths of a second",
			text:   "42 (terrace) S 1 42 42 0 -1 4194560 9 9 0 0 7 3 20 5 20 0 8 0 100 1 1",
			want:   cpu{own: 100 * time.Millisecond, children: 250 * time.Millisecond},
		},
		"command with a parenthesis and spaces": {
			reason: "a process may call itself anything",
			text:   "42 (a) b (c) S 1 42 42 0 -1 4194560 9 9 0 0 1 0 0 2 20 0 8 0 100 1 1",
			want:   cpu{own: 10 * time.Millisecond, children: 20 * time.Millisecond},
		},
		"too short": {reason: "a file that ends early is not zero", text: "42 (terrace) S 1", fails: true},
		"not a number": {
			reason: "a format that we do not know is not zero",
			text:   "42 (terrace) S 1 42 42 0 -1 4194560 9 9 0 0 x 3 20 5 20 0 8 0 100 1 1",
			fails:  true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat([]byte(tc.text))
			if (err != nil) != tc.fails {
				t.Fatalf("%s: error %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(cpu{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	cases := map[string]struct {
		reason string
		text   string
		want   Memory
		fails  bool
	}{
		"plain": {
			reason: "the kernel gives KiB",
			text:   "Name:\tterrace\nVmPeak:\t 999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1536 kB\nThreads:\t9\n",
			want:   Memory{Now: 1.5, Peak: 2},
		},
		"a name that looks like a field": {
			reason: "fields begin lines",
			text:   "Name:\tVmRSS: 1 kB\nVmHWM:\t 2048 kB\nVmRSS:\t 1024 kB\n",
			want:   Memory{Now: 1, Peak: 2},
		},
		"missing":      {reason: "a kernel thread has no memory of its own, which is not zero", text: "Name:\tkthreadd\nThreads:\t1\n", fails: true},
		"another unit": {reason: "a format that we do not know is not KiB", text: "Name:\tx\nVmHWM:\t 2 MB\nVmRSS:\t 1 MB\n", fails: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseStatus([]byte(tc.text))
			if (err != nil) != tc.fails {
				t.Fatalf("%s: error %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
