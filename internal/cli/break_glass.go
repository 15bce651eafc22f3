// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

func newBreakGlass(a *app) *cobra.Command {
	var timeout time.Duration
	var server serverFlags
	cmd := &cobra.Command{
		Use:     "break-glass UNIT",
		Aliases: []string{"break-the-glass"},
		Short:   "Work on a unit by hand, in its prepared directory",
		Long: `Stop reconciling a unit, prepare its working directory (sources, backend,
variables), and open a shell in it, with the environment that a run has. When the
shell ends, the unit is reconciled again.

It has to be allowed: "terrace up --allow-break-the-glass". The shell opens on
the machine of the Terrace server, so this verb works only there.`,
		Example: `  terrace break-glass tf/network
  $ tofu state list`,
		Args:              exactly("UNIT"),
		ValidArgsFunction: a.unitArg([]kind{terraform}),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, o, err := a.target(cmd, args[0], []kind{terraform})
			if err != nil {
				return err
			}
			s, err := a.server(cmd.Context(), c, server)
			if err != nil {
				return fmt.Errorf("break the glass of %s: %w", o, err)
			}
			if !s.local {
				return hintf(fmt.Errorf("break the glass of %s: its working directory is on another machine", o),
					"run it there, for example with \"kubectl exec\" in the pod of Terrace")
			}
			return a.breakGlass(cmd.Context(), c, s, o, timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", defaultTimeout, "longest time to wait for the directory")
	server.add(cmd.Flags())
	return cmd
}

// glass is what the server says about a unit whose glass is broken.
type glass struct {
	Dir string   `json:"dir"` // working directory of the unit
	Env []string `json:"env"` // environment of its runs, as NAME=value
}

// notAllowed is how the controller's refusal begins, as in the Terraform Controller.
const notAllowed = "Breaking the glass is not allowed"

// breakGlass requests it, waits until the unit stands still, runs a shell, and
// takes the request back, also when something on the way failed.
func (a *app) breakGlass(ctx context.Context, c *cluster, s *server, o object, timeout time.Duration) (err error) {
	now := a.env.Now().UTC().Format(time.RFC3339Nano)
	if _, err := c.patch(ctx, o, annotations(map[string]any{
		infra.BreakTheGlassAnnotation:    now,
		infra.ReconcileRequestAnnotation: now,
	}), false); err != nil {
		return err
	}
	defer func() {
		// The request must not outlive the shell, even when ctx ended it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, end := c.patch(ctx, o, annotations(map[string]any{
			infra.BreakTheGlassAnnotation:    nil,
			infra.ReconcileRequestAnnotation: a.env.Now().UTC().Format(time.RFC3339Nano),
		}), false)
		err = errors.Join(err, end)
	}()
	if err := c.awaitGlass(ctx, o, timeout); err != nil {
		return err
	}
	body, err := s.get(ctx, o, "glass", url.Values{})
	if err != nil {
		return err
	}
	defer body.Close()
	var g glass
	if err := json.NewDecoder(body).Decode(&g); err != nil {
		return fmt.Errorf("break the glass of %s: %w", o, err)
	}
	return a.shell(ctx, o, g)
}

func (c *cluster) awaitGlass(ctx context.Context, o object, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last, err := c.until(ctx, o, func(o object) (bool, error) {
		ready, _ := o.condition("Ready")
		switch {
		case ready.Message == infra.MessageBreakingTheGlass:
			return true, nil
		case strings.HasPrefix(ready.Message, notAllowed):
			return false, hintf(errors.New("it is not allowed"), "start Terrace with --allow-break-the-glass")
		}
		return false, nil
	})
	ready, _ := last.condition("Ready")
	if err != nil {
		return waitError("break the glass of "+o.String(), ready, timeout, err)
	}
	return nil
}

// shell runs the user's shell in the unit's directory until it ends. Its exit
// code is not the verb's: that of the last command typed says nothing.
func (a *app) shell(ctx context.Context, o object, g glass) error {
	program, _ := a.env.LookupEnv("SHELL")
	if program == "" {
		program = "/bin/sh"
	}
	fmt.Fprintf(a.env.Stderr, "%s stands still until this shell ends; it is in %s\n", o, g.Dir)
	sh := exec.CommandContext(ctx, program)
	sh.Dir = g.Dir
	// The unit's variables win over those of the terminal, which the shell needs.
	sh.Env = append(os.Environ(), g.Env...)
	sh.Stdin, sh.Stdout, sh.Stderr = a.env.Stdin, a.env.Stdout, a.env.Stderr
	var ended *exec.ExitError
	if err := sh.Run(); err != nil && !errors.As(err, &ended) {
		return fmt.Errorf("break the glass of %s: %w", o, err)
	}
	return nil
}
