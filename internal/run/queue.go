// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package run

import "slices"

// queue orders waiting jobs: namespaces take turns, and within one the first come
// is the first served. A namespace that queues a thousand jobs therefore delays
// another's first by one job, not by a thousand. The zero value is empty; it is not
// safe for concurrent use.
type queue struct {
	turns   []string // namespaces with waiting jobs; the first is next
	waiting map[string][]*entry
}

func (q *queue) push(e *entry) {
	ns := e.job.Unit.Namespace
	if q.waiting == nil {
		q.waiting = map[string][]*entry{}
	}
	if len(q.waiting[ns]) == 0 {
		q.turns = append(q.turns, ns)
	}
	q.waiting[ns] = append(q.waiting[ns], e)
}

// pop takes out what is to start next, or nil.
func (q *queue) pop() *entry {
	if len(q.turns) == 0 {
		return nil
	}
	ns := q.turns[0]
	q.turns = q.turns[1:]
	e := q.waiting[ns][0]
	q.waiting[ns] = q.waiting[ns][1:]
	if len(q.waiting[ns]) == 0 {
		delete(q.waiting, ns)
	} else {
		q.turns = append(q.turns, ns)
	}
	return e
}

// remove takes e out, wherever it is.
func (q *queue) remove(e *entry) {
	ns := e.job.Unit.Namespace
	i := slices.Index(q.waiting[ns], e)
	if i < 0 {
		return
	}
	q.waiting[ns] = slices.Delete(q.waiting[ns], i, i+1)
	if len(q.waiting[ns]) == 0 {
		delete(q.waiting, ns)
		q.turns = slices.DeleteFunc(q.turns, func(s string) bool { return s == ns })
	}
}

// position is 1 for what pop would return, 2 for what it would return then; 0 for
// what is not there.
func (q *queue) position(e *entry) int {
	ns := e.job.Unit.Namespace
	depth := slices.Index(q.waiting[ns], e)
	if depth < 0 {
		return 0
	}
	position, before := 1, true
	for _, turn := range q.turns {
		if turn == ns {
			position += depth
			before = false
			continue
		}
		// Those whose turn is earlier have one more go.
		ahead := depth
		if before {
			ahead++
		}
		position += min(len(q.waiting[turn]), ahead)
	}
	return position
}
