// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/terrace-dev/terrace/internal/config"
)

// load parses args, a file and an environment the way the command line does.
func load(t *testing.T, m config.Mode, args []string, file string, env map[string]string) (config.Config, error) {
	t.Helper()
	c := config.Default(m)
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	name := ""
	if file != "" {
		name = filepath.Join(t.TempDir(), "terrace.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := c.Load(fs, name, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	if name != "" && err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), name, "FILE"))
	}
	return c, err
}

func TestLoad(t *testing.T) {
	type want struct {
		dir        string
		grace      time.Duration
		namespaces []string
		name       string
		age        string
	}
	cases := map[string]struct {
		reason string
		args   []string
		file   string
		env    map[string]string
		want   want
	}{
		"Defaults": {
			reason: "nothing given: the documented defaults hold",
			want:   want{dir: ".terrace", grace: 5 * time.Minute},
		},
		"FlagWins": {
			reason: "a flag wins over the environment, the environment over the file",
			args:   []string{"--data-dir=flag"},
			env:    map[string]string{"TERRACE_DATA_DIR": "env", "TERRACE_SHUTDOWN_GRACE": "2s"},
			file:   "data-dir: file\nshutdown-grace: 1s\n",
			want:   want{dir: "flag", grace: 2 * time.Second},
		},
		"FileOnly": {
			reason: "a list of the file becomes a repeated flag; the result is sorted and unique",
			file:   "data-dir: file\nwatch-namespace: [b, a, b]\n",
			want:   want{dir: "file", grace: 5 * time.Minute, namespaces: []string{"a", "b"}},
		},
		"ListInVariable": {
			reason: "a list in the environment is separated by commas, as on the command line",
			env:    map[string]string{"TERRACE_WATCH_NAMESPACE": "b,a"},
			want:   want{dir: ".terrace", grace: 5 * time.Minute, namespaces: []string{"a", "b"}},
		},
		"RepositoryName": {
			reason: "the source is called after its repository",
			args:   []string{"--git=git@example.org:team/Infra_Live.git"},
			want:   want{dir: ".terrace", grace: 5 * time.Minute, name: "infra-live"},
		},
		"KeysOfASystem": {
			reason: "a Secret that is named without a namespace is one of Terrace's own",
			args:   []string{"--sops-age-secret=keys"},
			want:   want{dir: ".terrace", grace: 5 * time.Minute, age: "terrace-system/keys"},
		},
		"KeysOfANamespace": {
			reason: "any other namespace is named",
			args:   []string{"--sops-age-secret=flux-system/keys"},
			want:   want{dir: ".terrace", grace: 5 * time.Minute, age: "flux-system/keys"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, config.Up, tc.args, tc.file, tc.env)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			got := want{dir: c.DataDir, grace: c.ShutdownGrace, namespaces: c.WatchNamespaces, name: c.Git.Name, age: c.SOPSAgeSecret}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(want{})); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

// TestKMSKeys holds that a change of keys can be written in each place.
func TestKMSKeys(t *testing.T) {
	want := []string{"awskms://alias/new", "hashivault://old"}
	for reason, tc := range map[string]struct {
		args []string
		file string
		env  map[string]string
	}{
		"one flag":      {args: []string{"--kms-key=awskms://alias/new,hashivault://old"}},
		"two flags":     {args: []string{"--kms-key=awskms://alias/new", "--kms-key=hashivault://old"}},
		"a variable":    {env: map[string]string{"TERRACE_KMS_KEY": "awskms://alias/new,hashivault://old"}},
		"a list":        {file: "kms-key: [\"awskms://alias/new\", \"hashivault://old\"]\n"},
		"a line of two": {file: "kms-key: awskms://alias/new,hashivault://old\n"},
	} {
		c, err := load(t, config.Up, tc.args, tc.file, tc.env)
		if d := cmp.Diff(want, c.KMSKeys); err != nil || d != "" {
			t.Errorf("%s: %v, -want, +got:\n%s", reason, err, d)
		}
	}
}

func TestModes(t *testing.T) {
	if c := config.Default(config.Up); !c.AllowLocalSources || c.LeaderElection {
		t.Errorf("Default(Up): local sources %v, leader election %v; want true, false", c.AllowLocalSources, c.LeaderElection)
	}
	if c := config.Default(config.Controller); c.AllowLocalSources || !c.LeaderElection {
		t.Errorf("Default(Controller): local sources %v, leader election %v; want false, true", c.AllowLocalSources, c.LeaderElection)
	}
}

// TestPruneLimit holds the defaults, which a unit's safety rests on.
func TestPruneLimit(t *testing.T) {
	for _, m := range []config.Mode{config.Up, config.Controller} {
		if c := config.Default(m); c.PruneLimit != 50 || c.PruneLimitMin != 10 || c.AllowRemoteBases {
			t.Errorf("Default(%s): prune limit %d %% and %d objects, remote bases %v; want 50, 10, false", m, c.PruneLimit, c.PruneLimitMin, c.AllowRemoteBases)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		file   string
		env    map[string]string
		want   string
	}{
		"MisspeltSetting": {
			reason: "a setting that does not exist is found, not ignored",
			file:   "data-dri: x\n",
			want:   `read configuration: FILE: data-dri: no such setting`,
		},
		"BadVariable": {
			reason: "the user is shown the variable that they wrote",
			env:    map[string]string{"TERRACE_SHUTDOWN_GRACE": "soon"},
			want:   `read configuration: TERRACE_SHUTDOWN_GRACE: "soon": must be a duration like "30s" or "5m"`,
		},
		"BadLine": {
			reason: "and the line of the file",
			file:   "concurrent-runs: many\n",
			want:   `read configuration: FILE: concurrent-runs: "many": must be an integer`,
		},
		"Nested": {
			reason: "settings have no structure",
			file:   "git: {url: x}\n",
			want:   `read configuration: FILE: git: wants a value or a list of values`,
		},
		"RemoteProfiler": {
			reason: "profiles show secrets",
			args:   []string{"--pprof=0.0.0.0:6060"},
			want:   `read configuration: --pprof: "0.0.0.0:6060" is not a loopback address`,
		},
		"Several": {
			reason: "every finding is reported at once, in a fixed order",
			args:   []string{"--log-format=xml", "--api-address=6443", "--concurrent-runs=0", "--path=infra"},
			want: `read configuration: --api-address: "6443" is not a host:port
read configuration: --concurrent-runs: 0: must be at least 1
read configuration: --log-format: "xml" is not known
read configuration: --path: has no effect without --git`,
		},
		"PruneLimit": {
			reason: "a percentage is a percentage, and a number of objects is not negative",
			args:   []string{"--prune-limit=101", "--prune-limit-min=-1"},
			want: `read configuration: --prune-limit-min: -1: must not be negative
read configuration: --prune-limit: 101: must be a percentage from 0 to 100`,
		},
		"StageOfNoKind": {
			reason: "a kind is written as in a manifest, with its group before it",
			args:   []string{"--custom-apply-stage-kinds=rbac.authorization.k8s.io/Role,roles"},
			want:   `read configuration: --custom-apply-stage-kinds: "roles": must be a kind, or a group and a kind with / between them`,
		},
		"KeysNowhere": {
			reason: "a Secret of no valid name is never found: say so at the start",
			args:   []string{"--sops-age-secret=a/b/c"},
			want: `read configuration: --sops-age-secret: "b/c" is not the name of a Secret: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, ` +
				`'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		},
		"ProviderWithoutNamespace": {
			reason: "a name alone could be a namespace or a provider",
			args:   []string{"--allowed-providers=hashicorp/*,aws"},
			want:   `read configuration: --allowed-providers: read provider pattern "aws": it is neither NAMESPACE/TYPE nor HOST/NAMESPACE/TYPE`,
		},
		"KMSKeys": {
			reason: "a key that was written where its URL belongs is not shown",
			args:   []string{"--kms-key=\"canary\",awskms://alias/a,none"},
			want: `read configuration: --kms-key: key 1 is not a URL
read configuration: --kms-key: none is not the first`,
		},
		"MissingTofu": {
			reason: "a tool that was named has to exist",
			args:   []string{"--tofu=/nowhere/tofu"},
			want:   `read configuration: --tofu: stat /nowhere/tofu: no such file or directory`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, config.Up, tc.args, tc.file, tc.env)
			if err == nil {
				t.Fatalf("%s: no error", tc.reason)
			}
			if d := cmp.Diff(tc.want, err.Error()); d != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, d)
			}
		})
	}
}

func TestHint(t *testing.T) {
	_, err := load(t, config.Up, []string{"--log-level=loud"}, "", nil)
	var h interface{ Hint() string }
	if !errors.As(err, &h) || h.Hint() != "use debug, info, warn or error" {
		t.Errorf("hint of %v: not found", err)
	}
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	c := config.Default(config.Up)
	c.LogFormat, c.LogLevel = "json", "info"
	log := c.Logger(&b)
	log.V(1).Info("hidden")
	log.Info("shown", "unit", "default/network")
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("log line %q: %v", b.String(), err)
	}
	if line["msg"] != "shown" || line["unit"] != "default/network" {
		t.Errorf("log line: %v", line)
	}
	b.Reset()
	c.LogLevel = "debug"
	c.Logger(&b).V(1).Info("shown at debug")
	if b.Len() == 0 {
		t.Error("V(1) at level debug: nothing logged")
	}
}
