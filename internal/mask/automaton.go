// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// keyLength bounds what of a form goes into the automaton. A match of so many
// bytes is extended by comparing with the form itself, so that a certificate of
// 4 KB costs as little memory as a password, and one that was cut short in
// the text is masked as far as it goes.
const keyLength = 48

// automaton finds many texts at once (Aho and Corasick, 1975), all of them also
// where they overlap: after "abc" is masked, the "cde" of "abcde" must not stay.
// That is why strings.Replacer does not do, nor libraries that report the first
// match only.
type automaton struct {
	next  map[uint64]int32 // state and byte → state
	first [256]int32       // next of the root, without the map
	fail  []int32
	ends  [][]form // forms whose key ends in a state
	depth []int
	exit  []int32 // nearest state along fail that ends a form, 0 if none
}

func newAutomaton(forms []form) *automaton {
	a := &automaton{next: map[uint64]int32{}, fail: []int32{0}, ends: [][]form{nil}, depth: []int{0}, exit: []int32{0}}
	for _, f := range forms {
		a.insert(f)
	}
	a.link()
	return a
}

func edge(state int32, c byte) uint64 { return uint64(uint32(state))<<8 | uint64(c) }

func (a *automaton) insert(f form) {
	state := int32(0)
	for i := range min(len(f.text), keyLength) {
		c := f.text[i]
		to, ok := a.next[edge(state, c)]
		if !ok {
			to = int32(len(a.fail))
			a.next[edge(state, c)] = to
			a.fail = append(a.fail, 0)
			a.ends = append(a.ends, nil)
			a.exit = append(a.exit, 0)
			a.depth = append(a.depth, a.depth[state]+1)
		}
		state = to
	}
	a.ends[state] = append(a.ends[state], f)
}

// link fills in where to go on after a mismatch, from shallow states to deep ones.
func (a *automaton) link() {
	edges := make([]uint64, 0, len(a.next))
	for e := range a.next {
		edges = append(edges, e)
	}
	slices.SortFunc(edges, func(x, y uint64) int {
		return a.depth[x>>8] - a.depth[y>>8]
	})
	for _, e := range edges {
		from, c, to := int32(e>>8), byte(e), a.next[e]
		if from == 0 {
			a.first[c] = to
			continue
		}
		a.fail[to] = a.step(a.fail[from], c)
		if f := a.fail[to]; len(a.ends[f]) > 0 {
			a.exit[to] = f
		} else {
			a.exit[to] = a.exit[f]
		}
	}
}

func (a *automaton) step(state int32, c byte) int32 {
	for state != 0 {
		if to, ok := a.next[edge(state, c)]; ok {
			return to
		}
		state = a.fail[state]
	}
	return a.first[c]
}

// find returns where s holds forms: sorted, overlapping and touching ones joined.
func (a *automaton) find(s string) []span {
	var spans []span
	state := int32(0)
	for i := range len(s) {
		state = a.step(state, s[i])
		for at := state; at != 0; at = a.exit[at] {
			for _, f := range a.ends[at] {
				if sp, ok := a.match(s, i+1-a.depth[at], f); ok {
					spans = append(spans, sp)
				}
			}
		}
	}
	return join(spans)
}

// match says how much of s from start on is f.
func (a *automaton) match(s string, start int, f form) (span, bool) {
	end := start
	for end < len(s) && end-start < len(f.text) && s[end] == f.text[end-start] {
		end++
	}
	if f.token && (within(utf8.DecodeLastRuneInString(s[:start])) || within(utf8.DecodeRuneInString(s[end:]))) {
		return span{}, false
	}
	return span{start, end}, true
}

// within reports whether a neighbour continues a token.
func within(r rune, size int) bool {
	return size > 0 && (r == '_' || r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r))
}

func join(spans []span) []span {
	slices.SortFunc(spans, func(x, y span) int { return x.start - y.start })
	out := spans[:0]
	for _, sp := range spans {
		if n := len(out); n > 0 && sp.start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, sp.end)
			continue
		}
		out = append(out, sp)
	}
	return out
}
