// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkSync is the floor of BenchmarkAppend/alone: one write of an entry's size
// and one sync.
func BenchmarkSync(b *testing.B) {
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "f"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(b, err)
	defer f.Close()
	text := make([]byte, 700)
	for b.Loop() {
		if _, err := f.Write(text); err != nil {
			b.Fatal(err)
		}
		must(b, f.Sync())
	}
}

func BenchmarkAppend(b *testing.B) {
	b.Run("alone", func(b *testing.B) {
		l := open(b, place(b))
		for b.Loop() {
			_, err := l.Append(b.Context(), entry(1))
			must(b, err)
		}
	})
	b.Run("32 at once", func(b *testing.B) {
		l := open(b, place(b))
		b.SetParallelism(16) // times GOMAXPROCS, which is 2 where we measure
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				if _, err := l.Append(b.Context(), entry(1)); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkVerify(b *testing.B) {
	o := place(b)
	o.wrap = func(f *os.File) file { return unsynced{f} }
	l := open(b, o)
	const n = 1000
	for i := range n {
		_, err := l.Append(b.Context(), entry(i))
		must(b, err)
	}
	b.SetBytes(l.size)
	for b.Loop() {
		r, err := Verify(b.Context(), o.Dir, l.PublicKey(), VerifyOptions{})
		if err != nil || !r.Holds() {
			b.Fatal(err, r.Findings)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/entry")
}
