// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

// rotateKeyPath is where the server takes requests to rotate the key of the states.
const rotateKeyPath = "/api/v1/states/rotate-key"

func newStateRotateKey(a *app) *cobra.Command {
	var yes bool
	var server serverFlags
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Encrypt all states with a new key",
		Long: `Make a new key for the states, encrypt every version with it, and drop the keys
before it. Runs and people go on meanwhile. It can be given again at any time: one
that was interrupted goes on where it was.

Keep a copy of keys/states.key of the data directory apart from it afterwards; the
copies from before open nothing any more. Where a KMS key wraps that file, the new
key is wrapped as well; "terrace up --kms-key" changes which one does.`,
		Example: `  terrace state rotate-key
  terrace state rotate-key --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				if err := a.confirm(cmd, "Encrypt all states with a new key?", "give --yes"); err != nil {
					return err
				}
			}
			const doing = "rotate the key of the states"
			s, err := a.findServer(cmd.Context(), server)
			if err != nil {
				return fmt.Errorf("%s: %w", doing, err)
			}
			body, err := s.request(cmd.Context(), http.MethodPost, doing, rotateKeyPath, nil)
			if err != nil {
				return err
			}
			defer body.Close()
			var done struct {
				Recipient        string
				States, Versions int
			}
			if err := json.NewDecoder(body).Decode(&done); err != nil {
				return fmt.Errorf("%s: read the answer: %w", doing, err)
			}
			fmt.Fprintf(a.env.Stdout, "rotated: %d versions of %d states are encrypted to %s\n", done.Versions, done.States, done.Recipient)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	server.add(cmd.Flags())
	return cmd
}
