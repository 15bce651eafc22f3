// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	lineOne   = `{"run":"r","line":1,"time":"2026-01-02T03:04:05Z","stream":"stdout","text":"one"}` + "\n"
	lineTwo   = `{"run":"r","line":2,"time":"2026-01-02T03:04:06Z","stream":"stderr","text":"two"}` + "\n"
	lineThree = `{"run":"r","line":3,"time":"2026-01-02T03:04:07Z","stream":"terrace","text":"three"}` + "\n"
)

// answers is a server that answers each request with the next of the steps; the last one
// goes on. A step ends with "cut" when the connection does; "down" is no answer at all.
type answers struct {
	steps []string
	asked []string
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked = append(a.asked, r.URL.RawQuery)
	step := a.steps[0]
	if len(a.steps) > 1 {
		a.steps = a.steps[1:]
	}
	text, cut := strings.CutSuffix(step, "cut")
	switch {
	case text == "down":
		http.Error(w, "it starts", http.StatusServiceUnavailable)
	case text == "gone":
		http.Error(w, "no log is kept", http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}

func TestLogIsFollowedOverARestart(t *testing.T) {
	const all = "2026-01-02T03:04:05.000Z one\n2026-01-02T03:04:06.000Z two\n2026-01-02T03:04:07.000Z three\n"
	told := "terrace: read log of terraform/infra/network: the Terrace server is not reachable: it starts; waiting 2m0s at most for the server to come back\n"
	cases := map[string]struct {
		reason string
		steps  []string
		once   bool
		asked  []string
		out    string
		told   string
		err    string
		is     error
	}{
		"Whole": {
			reason: "a log that ends is not asked for again",
			steps:  []string{lineOne + lineTwo + lineThree},
			asked:  []string{"follow=true&format=json"},
			out:    all,
		},
		"Cut": {
			reason: "what was printed is not printed again, and the run stays the same",
			steps:  []string{lineOne + lineTwo + "cut", lineThree},
			asked:  []string{"follow=true&format=json", "after=2&follow=true&format=json&run=r"},
			out:    all,
		},
		"CutInALine": {
			reason: "half a line is no line",
			steps:  []string{lineOne + lineTwo[:20] + "cut", lineTwo + lineThree},
			asked:  []string{"follow=true&format=json", "after=1&follow=true&format=json&run=r"},
			out:    all,
		},
		"Restart": {
			reason: "a server that is started again is waited for, and a person is told",
			steps:  []string{lineOne + "cut", "down", "down", lineTwo + "cut", "down", lineThree},
			out:    all,
			told:   told + told,
		},
		"Away": {
			reason: "it is not waited for ever",
			steps:  []string{lineOne + "cut", "down"},
			out:    "2026-01-02T03:04:05.000Z one\n",
			told:   told,
			err:    "read log of terraform/infra/network: the Terrace server is not reachable: it starts",
			is:     errNoServer,
		},
		"OfNoUse": {
			reason: "an answer that never has a line is as good as none",
			steps:  []string{lineOne + "cut", "cut"},
			out:    "2026-01-02T03:04:05.000Z one\n",
			told:   "terrace: read log of terraform/infra/network: unexpected EOF; waiting 2m0s at most for the server to come back\n",
			err:    "read log of terraform/infra/network: unexpected EOF",
		},
		"Gone": {
			reason: "a log that is not kept any more does not come back",
			steps:  []string{lineOne + "cut", "gone"},
			out:    "2026-01-02T03:04:05.000Z one\n",
			err:    "read log of terraform/infra/network: not kept: no log is kept",
			is:     errNotKept,
		},
		"NeverThere": {
			reason: "what was not reached once is a mistake, not a restart",
			steps:  []string{"down"},
			err:    "read log of terraform/infra/network: the Terrace server is not reachable: it starts",
			is:     errNoServer,
		},
		"NotFollowed": {
			reason: "without -f the failure is told",
			steps:  []string{lineOne + "cut"},
			once:   true,
			asked:  []string{"format=json"},
			out:    "2026-01-02T03:04:05.000Z one\n",
			err:    "read log of terraform/infra/network: unexpected EOF",
		},
		"Strange": {
			reason: "an answer of something else",
			steps:  []string{"<html>\n"},
			once:   true,
			err:    "read log of terraform/infra/network: the server sent no line: invalid character '<' looking for beginning of value",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			from := &answers{steps: tc.steps}
			web := httptest.NewServer(from)
			defer web.Close()
			var out, told bytes.Buffer
			l, waited := follower(t, web.URL, &out, &told)
			l.follow = !tc.once
			err := l.print(context.Background())
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || err.Error() != tc.err || tc.is != nil && !errors.Is(err, tc.is)) {
				t.Errorf("%s: error %v, want %q", tc.reason, err, tc.err)
			}
			if diff := cmp.Diff(tc.out, out.String()); diff != "" {
				t.Errorf("%s: output:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.told, told.String()); diff != "" {
				t.Errorf("%s: told:\n%s", tc.reason, diff)
			}
			if tc.asked != nil && !cmp.Equal(tc.asked, from.asked) {
				t.Errorf("%s: asked %q", tc.reason, from.asked)
			}
			if *waited > reconnectWithin+2*reconnectEvery {
				t.Errorf("%s: waited %s", tc.reason, *waited)
			}
		})
	}
}

// follower prints the log of a unit that a server has. Its clock goes on when it waits.
func follower(t *testing.T, base string, out, told io.Writer) (*logPrinter, *time.Duration) {
	waited := new(time.Duration)
	o := fixture(t, "network")
	return &logPrinter{
		of: o, follow: true, out: out, told: told,
		now:  func() time.Time { return now.Add(*waited) },
		wait: func(_ context.Context, d time.Duration) { *waited += d },
		open: func(ctx context.Context, query url.Values) (io.ReadCloser, error) {
			return (&server{base: base, http: http.DefaultClient}).get(ctx, o, "log", query)
		},
	}, waited
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestLogIsNotAskedForAgainWhenItCannotBePrinted(t *testing.T) {
	a := &answers{steps: []string{lineOne}}
	web := httptest.NewServer(a)
	defer web.Close()
	l, _ := follower(t, web.URL, full{}, io.Discard)
	if err := l.print(context.Background()); err == nil || err.Error() != "write log of terraform/infra/network: no space left" {
		t.Errorf("error %v", err)
	}
	if len(a.asked) != 1 {
		t.Errorf("asked %q", a.asked)
	}
}

// writes is a writer that tells of each write.
type writes func()

func (w writes) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestInterruptEndsFollowing(t *testing.T) {
	ctx, interrupt := context.WithCancel(context.Background())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, lineOne)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer web.Close()
	l, _ := follower(t, web.URL, writes(interrupt), io.Discard)
	if err := l.print(ctx); err != nil {
		t.Errorf("error %v", err)
	}
}

func TestStandardErrorIsColouredOnTerminals(t *testing.T) {
	web := httptest.NewServer(&answers{steps: []string{lineOne + lineTwo}})
	defer web.Close()
	var out bytes.Buffer
	l, _ := follower(t, web.URL, &out, io.Discard)
	l.color = true
	if err := l.print(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := "2026-01-02T03:04:05.000Z one\n" + yellow + "2026-01-02T03:04:06.000Z two" + plain + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
