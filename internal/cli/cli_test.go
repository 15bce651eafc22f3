// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/terrace-dev/terrace/internal/config"
)

// run runs a command line without a cluster.
func run(t *testing.T, edit func(*Env), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		LookupEnv:  func(string) (string, bool) { return "", false },
		Up:         func(context.Context, config.Config, io.Writer) error { return nil },
		Controller: func(context.Context, config.Config) error { return nil },
		Kubectl:    func(context.Context, string, []string) int { return 0 },
		Build:      Build{Version: "v1.2.3", Commit: "0a1b2c3", Date: "2026-01-01T00:00:00Z", GoVersion: "go1.26", Platform: "linux/amd64"},
	}
	if edit != nil {
		edit(&env)
	}
	code = Main(context.Background(), args, env)
	return code, out.String(), errs.String()
}

func TestUsageErrors(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   string
		want   string
	}{
		"UnknownVerb": {
			reason: "a verb that is nearly right is suggested",
			args:   "aprove tf/network",
			want:   "terrace: error: read command line: \"aprove\" is not a verb\nterrace: hint: did you mean approve?\n",
		},
		"UnknownFlag": {
			reason: "the hint is the verb's help",
			args:   "get --colour",
			want:   "terrace: error: get: unknown flag: --colour\nterrace: hint: see \"terrace get --help\"\n",
		},
		"MissingUnit": {
			reason: "what is missing is named",
			args:   "show plan",
			want:   "terrace: error: show plan: needs UNIT\nterrace: hint: see \"terrace show plan --help\"\n",
		},
		"WrongKind": {
			reason: "a source has no plan",
			args:   "approve gitrepository/stack",
			want:   "terrace: error: approve: \"gitrepository\": this verb takes terraform, kustomization\nterrace: hint: see \"terrace approve --help\"\n",
		},
		"NotAName": {
			reason: "three parts are namespace/…, which -n is for",
			args:   "show tf/infra/network",
			want:   "terrace: error: show: \"tf/infra/network\" is not NAME or KIND/NAME\nterrace: hint: see \"terrace show --help\"\n",
		},
		"Output": {
			reason: "an output format that a verb has not",
			args:   "get -o xml",
			want:   "terrace: error: get: -o xml: use wide, json, yaml or name\nterrace: hint: see \"terrace get --help\"\n",
		},
		"Setting": {
			reason: "a wrong setting is a wrong command line too, with its own hint",
			args:   "up --log-format xml",
			want:   "terrace: error: read configuration: --log-format: \"xml\" is not known\nterrace: hint: use text or json\n",
		},
		"SuspendNothing": {
			reason: "--all has to be said",
			args:   "suspend",
			want:   "terrace: error: suspend: needs UNIT or --all, and not both\nterrace: hint: see \"terrace suspend --help\"\n",
		},
		"TwoClusters": {
			reason: "two ways to name the cluster",
			args:   "get --kubeconfig a --data-dir b",
			want:   "terrace: error: find the cluster: --kubeconfig and --data-dir exclude each other\n",
		},
		"Shell": {
			reason: "a shell that has no completion",
			args:   "completion tcsh",
			want:   "terrace: error: completion: \"tcsh\" is not bash, zsh, fish or powershell\nterrace: hint: see \"terrace completion --help\"\n",
		},
		"KubectlDataDir": {
			reason: "the one flag of kubectl that is ours",
			args:   "kubectl get pods --data-dir",
			want:   "terrace: error: kubectl: flag needs an argument: --data-dir\nterrace: hint: see \"terrace kubectl --help\"\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, out, errs := run(t, nil, strings.Fields(tc.args)...)
			if code != ExitUsage || out != "" {
				t.Errorf("%s: exit code %d, want %d; stdout %q", tc.reason, code, ExitUsage, out)
			}
			if d := cmp.Diff(tc.want, errs); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

// TestHelp goes over all verbs, as a reader of --help does.
func TestHelp(t *testing.T) {
	root := newRoot(&app{env: Env{
		Up:         func(context.Context, config.Config, io.Writer) error { return nil },
		Controller: func(context.Context, config.Config) error { return nil },
		Kubectl:    func(context.Context, string, []string) int { return 0 },
	}})
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		if c.Hidden {
			return
		}
		if c.Short == "" || c.Long == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: wants a one-line description without a full stop, and a long one", c.CommandPath())
		}
		if !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: its example does not show it", c.CommandPath())
		}
		if c.Flags().Lookup("namespace") != nil && c.Flags().Lookup("data-dir") == nil {
			t.Errorf("%s: has a namespace and no way to name the control plane", c.CommandPath())
		}
	}
	visit(root)
}

func TestReport(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		code   int
		want   string
	}{
		"Done":    {reason: "nothing to say", err: nil, code: ExitDone},
		"Changes": {reason: "a code alone says nothing", err: exitCode(ExitChanges), code: ExitChanges},
		"Wrapped": {
			reason: "a hint is found below what was added to its error",
			err:    fmt.Errorf("apply: %w", WithHint(errors.New("locked"), "wait")),
			code:   ExitFailed,
			want:   "terrace: error: apply: locked\nterrace: hint: wait\n",
		},
		"Joined": {
			reason: "one line an error; the same hint once",
			err:    errors.Join(WithHint(errors.New("a"), "wait"), WithHint(errors.New("b"), "wait")),
			code:   ExitFailed,
			want:   "terrace: error: a\nterrace: error: b\nterrace: hint: wait\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var errs bytes.Buffer
			code := (&app{env: Env{Stderr: &errs}}).report(tc.err)
			if code != tc.code {
				t.Errorf("%s: exit code %d, want %d", tc.reason, code, tc.code)
			}
			if d := cmp.Diff(tc.want, errs.String()); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestUpGetsItsConfig(t *testing.T) {
	var got config.Config
	code, _, errs := run(t, func(e *Env) {
		e.Up = func(_ context.Context, c config.Config, _ io.Writer) error { got = c; return nil }
		e.LookupEnv = func(k string) (string, bool) { return "2", k == "TERRACE_CONCURRENT_RUNS" }
	}, "up", "--data-dir", "x", "--git", "https://example.org/a/infra.git", "--path", "live")
	if code != ExitDone {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	want := config.Default(config.Up)
	want.DataDir, want.ConcurrentRuns = "x", 2
	want.Git.URL, want.Git.Path, want.Git.Name = "https://example.org/a/infra.git", "live", "infra"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want, +got:\n%s", d)
	}
}

func TestKubectlArguments(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/kubeconfig", "{}")
	cases := map[string]struct {
		reason string
		args   []string
		file   string
		rest   []string
		code   int
	}{
		"DataDir": {
			reason: "--data-dir becomes the kubeconfig in it, wherever it stands",
			args:   []string{"kubectl", "get", "pods", "--data-dir", dir, "-A"},
			file:   dir + "/kubeconfig",
			rest:   []string{"get", "pods", "-A"},
		},
		"BeforeTheVerb": {
			reason: "also before the verb, as with the other verbs",
			args:   []string{"--data-dir=" + dir, "kubectl", "get", "pods"},
			file:   dir + "/kubeconfig",
			rest:   []string{"get", "pods"},
		},
		"AfterDashes": {
			reason: "what follows -- is for the command in a pod",
			args:   []string{"kubectl", "exec", "x", "--", "terrace", "--data-dir", "y"},
			rest:   []string{"exec", "x", "--", "terrace", "--data-dir", "y"},
		},
		"OwnKubeconfig": {
			reason: "kubectl's own flag is left to kubectl, and its exit code is ours",
			args:   []string{"kubectl", "--kubeconfig", "z", "get", "pods"},
			rest:   []string{"--kubeconfig", "z", "get", "pods"},
			code:   3,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var file string
			var rest []string
			code, _, errs := run(t, func(e *Env) {
				e.LookupEnv = func(k string) (string, bool) { return "", false }
				e.Kubectl = func(_ context.Context, f string, args []string) int { file, rest = f, args; return tc.code }
			}, tc.args...)
			if code != tc.code {
				t.Fatalf("%s: exit code %d: %s", tc.reason, code, errs)
			}
			if d := cmp.Diff([]any{tc.file, tc.rest}, []any{file, rest}); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	_, out, _ := run(t, nil, "version")
	if want := "terrace v1.2.3 (commit 0a1b2c3 of 2026-01-01T00:00:00Z, go1.26, linux/amd64)\n"; out != want {
		t.Errorf("version: %q, want %q", out, want)
	}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
