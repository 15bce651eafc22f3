// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func newLogs(a *app) *cobra.Command {
	var follow bool
	var run, output string
	var server serverFlags
	cmd := &cobra.Command{
		Use:   "logs UNIT | RUN",
		Short: "Show the output of a unit's run",
		Long: `Show what tofu printed in the latest run of a unit, or in one run of those that
"terrace get runs" lists. Sensitive values are masked, and of a very long log the
middle is left out. On a terminal that has colours, lines of tofu's standard error
are yellow.

With -f a connection that is lost is taken up again where it was, also when
Terrace is started again; what has not come back after ` + reconnectWithin.String() + ` is given up.

-o json prints an object for each line: run, line (its number), time, stream (stdout
or stderr of tofu, or terrace) and text; dropped, where lines are left out, counts them.`,
		Example: `  terrace logs tf/network -f
  terrace logs run/20261130t120405.000000000z-apply
  terrace logs tf/network -o json | jq -r 'select(.stream == "stderr").text'`,
		Args:              exactly("UNIT or RUN"),
		ValidArgsFunction: a.unitArg([]kind{terraform, runs}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return usagef(cmd, "-o %s: use json", output)
			}
			c, o, named, err := a.runTarget(cmd, args[0])
			if err != nil {
				return err
			}
			if named != "" {
				if run != "" {
					return usagef(cmd, "--run: %s names a run already", args[0])
				}
				run = named
			}
			l := &logPrinter{
				of: o, run: run, follow: follow, raw: output == "json", color: a.env.Color, out: a.env.Stdout, told: a.env.Stderr,
				now: a.env.Now, wait: wait,
				open: func(ctx context.Context, query url.Values) (io.ReadCloser, error) {
					s, err := a.server(ctx, c, server)
					if err != nil {
						return nil, fmt.Errorf("read log of %s: %w", o, err)
					}
					return s.get(ctx, o, "log", query)
				},
			}
			err = l.print(cmd.Context())
			if errors.Is(err, errNotKept) && run == "" {
				return hintf(fmt.Errorf("read log of %s: none is kept: it has had no run yet, or its last was long ago", o), "%q says what it waits for", "terrace show "+argument(o))
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is written, until the run ends")
	cmd.Flags().StringVar(&run, "run", "", "id of the run")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	server.add(cmd.Flags())
	return cmd
}

// reconnectWithin is how long a lost server is waited for, and reconnectEvery how often it
// is asked for: as long as a restart of Terrace may take.
const (
	reconnectWithin = 2 * time.Minute
	reconnectEvery  = time.Second
)

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// logPrinter prints the log of a run as the server has it.
type logPrinter struct {
	of     fmt.Stringer
	run    string // empty: the latest, until a line tells which that is
	last   int64  // number of the last line that was printed
	follow bool
	raw    bool // as it comes: JSON
	color  bool
	out    io.Writer
	told   io.Writer // gets what is not of the log

	now  func() time.Time
	wait func(context.Context, time.Duration)
	// open asks the server, wherever it is by now.
	open func(context.Context, url.Values) (io.ReadCloser, error)
}

// logLine is what the server says of a line.
type logLine struct {
	Run     string    `json:"run"`
	Line    int64     `json:"line"`
	Time    time.Time `json:"time"`
	Stream  string    `json:"stream"`
	Text    string    `json:"text"`
	Dropped int64     `json:"dropped"`
}

// errOutput is an error of where the log is printed to: asking again does not help.
var errOutput = errors.New("write log")

// print prints the log. One that is followed goes on where it was when the connection is
// lost and the server is there again. An interrupt is how following ends: it is no failure.
func (l *logPrinter) print(ctx context.Context) error {
	var until time.Time // zero while the server answers
	for connected := false; ; {
		body, err := l.open(ctx, l.query())
		cut := false // a connection that was of use
		if err == nil {
			connected = true
			last, since := l.last, l.now()
			err = l.copy(body)
			if cut = l.last > last || l.now().Sub(since) > reconnectWithin/4; cut {
				until = time.Time{}
			}
		}
		switch {
		case err == nil, connected && ctx.Err() != nil:
			return nil
		case !l.follow, !connected, errors.Is(err, errNotKept), errors.Is(err, errOutput):
			return err
		case cut:
			// Perhaps only the connection is gone: there is nothing to tell yet.
		case until.IsZero():
			until = l.now().Add(reconnectWithin)
			fmt.Fprintf(l.told, "terrace: %v; waiting %s at most for the server to come back\n", err, reconnectWithin)
		case l.now().After(until):
			return hintf(err, "once the server is there again, the same command shows the log from its beginning")
		}
		l.wait(ctx, reconnectEvery)
	}
}

func (l *logPrinter) query() url.Values {
	query := url.Values{"format": {"json"}}
	if l.run != "" {
		query.Set("run", l.run)
	}
	if l.follow {
		query.Set("follow", "true")
	}
	if l.last > 0 {
		query.Set("after", strconv.FormatInt(l.last, 10))
	}
	return query
}

// copy prints the lines of a body, until it ends as it should.
func (l *logPrinter) copy(body io.ReadCloser) error {
	defer body.Close()
	in := bufio.NewReader(body)
	for {
		text, err := in.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log of %s: %w", l.of, err)
		}
		var line logLine
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("read log of %s: the server sent no line: %w", l.of, err)
		}
		if !l.raw {
			text = []byte(l.text(line))
		}
		if _, err := l.out.Write(text); err != nil {
			return fmt.Errorf("%w of %s: %v", errOutput, l.of, err)
		}
		l.run, l.last = line.Run, line.Line
	}
}

// text is a line as people read it.
func (l *logPrinter) text(line logLine) string {
	text := line.Text
	if line.Dropped == 0 && !line.Time.IsZero() {
		text = line.Time.UTC().Format("2006-01-02T15:04:05.000Z") + " " + text
	}
	if l.color && line.Stream == "stderr" {
		text = yellow + text + plain
	}
	return text + "\n"
}
