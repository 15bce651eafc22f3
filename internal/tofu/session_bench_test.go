// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/terrace-dev/terrace/internal/tofu"
)

// cpu is the user and system time of this process and of its children, in
// milliseconds.
func cpu(b *testing.B) (self, children float64) {
	b.Helper()
	of := func(who int) float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		ms := func(t syscall.Timeval) float64 { return float64(t.Sec)*1e3 + float64(t.Usec)/1e3 }
		return ms(u.Utime) + ms(u.Stime)
	}
	return of(syscall.RUSAGE_SELF), of(syscall.RUSAGE_CHILDREN)
}

// BenchmarkCycle is init, plan and apply of one terraform_data: by a Session, and
// the commands by themselves. ms-self is what the Session costs in this process.
func BenchmarkCycle(b *testing.B) {
	path, err := filepath.Abs("../../bin/tofu")
	if err != nil {
		b.Fatal(err)
	}
	found, err := tofu.Find(b.Context(), path)
	if err != nil {
		b.Fatal(err)
	}
	fresh := func() *tofu.Session {
		base := b.TempDir()
		s := &tofu.Session{
			Tool: found, Dir: base + "/module", DataDir: base + "/data", Home: base + "/home", Tmp: base + "/tmp", Output: &log{},
		}
		for _, dir := range []string{s.Dir, s.DataDir, s.Home, s.Tmp} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(s.Dir+"/main.tf", []byte(moduleA), 0o600); err != nil {
			b.Fatal(err)
		}
		return s
	}
	measure := func(name string, cycle func(*tofu.Session) error) {
		b.Run(name, func(b *testing.B) {
			self, children := cpu(b)
			for b.Loop() {
				if err := cycle(fresh()); err != nil {
					b.Fatal(err)
				}
			}
			selfNow, childrenNow := cpu(b)
			b.ReportMetric((selfNow-self)/float64(b.N), "ms-self/op")
			b.ReportMetric((childrenNow-children)/float64(b.N), "ms-tofu/op")
		})
	}
	measure("session", func(s *tofu.Session) error {
		if err := s.Init(b.Context(), tofu.InitOptions{}); err != nil {
			return err
		}
		plan := s.Tmp + "/plan"
		if _, err := s.Plan(b.Context(), tofu.PlanOptions{Out: plan, JSONInto: s.Tmp + "/stream"}); err != nil {
			return err
		}
		return s.Apply(b.Context(), tofu.ApplyOptions{Plan: plan})
	})
	measure("cli", func(s *tofu.Session) error {
		for _, args := range [][]string{{"init", "-input=false"}, {"plan", "-out=plan"}, {"apply", "plan"}} {
			cmd := exec.Command(path, args...)
			cmd.Dir = s.Dir
			cmd.Env = []string{"HOME=" + s.Home, "TMPDIR=" + s.Tmp, "PATH=/usr/bin:/bin", "CHECKPOINT_DISABLE=1"}
			if err := cmd.Run(); err != nil {
				return err
			}
		}
		return nil
	})
}
