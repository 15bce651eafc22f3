// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package tofu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

// What the arguments are, apart from running them.
func TestArgs(t *testing.T) {
	tests := map[string]struct {
		reason string
		got    []string
		want   []string
	}{
		"init": {
			reason: "The zero value asks for nothing, and never for input.",
			got:    InitOptions{}.args(),
			want:   []string{"init", "-no-color", "-input=false"},
		},
		"init, all": {
			got: InitOptions{
				Upgrade: true, ForceCopy: true, NoBackend: true,
				BackendConfig: []string{"a=b", "/tmp/x.tfbackend"}, Lock: ptr(false), LockTimeout: "30s",
			}.args(),
			want: []string{
				"init", "-no-color", "-input=false", "-upgrade", "-force-copy", "-backend=false",
				"-backend-config=a=b", "-backend-config=/tmp/x.tfbackend", "-lock=false", "-lock-timeout=30s",
			},
		},
		"init, reconfigure": {
			reason: "The tools refuse both at once.",
			got:    InitOptions{ForceCopy: true, Reconfigure: true}.args(),
			want:   []string{"init", "-no-color", "-input=false", "-reconfigure"},
		},
		"plan": {
			reason: "The exit code tells changes from none.",
			got:    PlanOptions{}.args(),
			want:   []string{"plan", "-no-color", "-input=false", "-detailed-exitcode"},
		},
		"plan, all": {
			got: PlanOptions{
				Out: "p", JSONInto: "j", Destroy: true, RefreshOnly: true, Refresh: ptr(false),
				Targets: []string{"a.b", "module.c"}, Replace: []string{"d.e"}, VarFiles: []string{"x.tfvars"},
				Lock: ptr(false), LockTimeout: "1m", Parallelism: 3,
			}.args(),
			want: []string{
				"plan", "-no-color", "-input=false", "-detailed-exitcode", "-out=p", "-json-into=j",
				"-destroy", "-refresh-only", "-refresh=false", "-target=a.b", "-target=module.c", "-replace=d.e",
				"-var-file=x.tfvars", "-lock=false", "-lock-timeout=1m", "-parallelism=3",
			},
		},
		"import": {
			reason: "What people give is behind the flags, and is none.",
			got:    ImportOptions{Address: "a.b", ID: "-x"}.args(),
			want:   []string{"import", "-no-color", "-input=false", "--", "a.b", "-x"},
		},
		"import, all": {
			got:  ImportOptions{Address: `module.m["k"].a.b[0]`, ID: "i d", VarFiles: []string{"x.tfvars"}, LockTimeout: "1m"}.args(),
			want: []string{"import", "-no-color", "-input=false", "-var-file=x.tfvars", "-lock-timeout=1m", "--", `module.m["k"].a.b[0]`, "i d"},
		},
		"apply": {
			reason: "Nothing asks for confirmation.",
			got:    ApplyOptions{Plan: "p"}.args(),
			want:   []string{"apply", "-no-color", "-input=false", "-auto-approve", "p"},
		},
		"apply, all": {
			got: ApplyOptions{
				JSONInto: "j", Destroy: true, Refresh: ptr(true), Targets: []string{"a.b"},
				VarFiles: []string{"x"}, Lock: ptr(true), LockTimeout: "1s", Parallelism: 1,
			}.args(),
			want: []string{
				"apply", "-no-color", "-input=false", "-auto-approve", "-json-into=j", "-destroy", "-refresh=true",
				"-target=a.b", "-var-file=x", "-lock=true", "-lock-timeout=1s", "-parallelism=1",
			},
		},
		"show a plan":  {got: showArgs("p", true), want: []string{"show", "-no-color", "-json", "p"}},
		"show text":    {got: showArgs("p", false), want: []string{"show", "-no-color", "p"}},
		"show state":   {got: showArgs("", true), want: []string{"show", "-no-color", "-json"}},
		"output":       {got: outputArgs(), want: []string{"output", "-no-color", "-json"}},
		"workspace":    {got: workspaceArgs("prod"), want: []string{"workspace", "select", "-no-color", "-or-create=true", "prod"}},
		"force-unlock": {got: forceUnlockArgs("id"), want: []string{"force-unlock", "-no-color", "-force", "id"}},
		"state push": {
			got:  StatePushOptions{Force: true, LockTimeout: "2s"}.args("f"),
			want: []string{"state", "push", "-no-color", "-force", "-lock-timeout=2s", "f"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestToolVersions(t *testing.T) {
	tests := map[string]struct {
		reason                         string
		tool                           Tool
		jsonInto, locksCache, dotTofus bool
	}{
		"newest":      {tool: Tool{Product: OpenTofu, Version: "1.12.6"}, jsonInto: true, locksCache: true, dotTofus: true},
		"development": {reason: "a suffix is no part of the minor", tool: Tool{Product: OpenTofu, Version: "1.13.0-dev"}, jsonInto: true, locksCache: true, dotTofus: true},
		"before -json-into": {
			tool: Tool{Product: OpenTofu, Version: "1.11.0"}, locksCache: true, dotTofus: true,
		},
		"before the cache lock": {tool: Tool{Product: OpenTofu, Version: "1.9.1"}, dotTofus: true},
		"before .tofu files":    {tool: Tool{Product: OpenTofu, Version: "1.7.0"}},
		"terraform":             {reason: "it has none of them", tool: Tool{Product: Terraform, Version: "1.14.0"}},
		"unknown":               {tool: Tool{Product: OpenTofu, Version: "x"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := []bool{tc.tool.JSONInto(), tc.tool.LocksCache(), tc.tool.ReadsTofuFiles()}
			if diff := cmp.Diff([]bool{tc.jsonInto, tc.locksCache, tc.dotTofus}, got); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestEnviron(t *testing.T) {
	s := Session{
		Home: "/h", Tmp: "/t", DataDir: "/d", CLIConfig: "/c", PluginCache: "/p",
		Env: map[string]string{
			"TF_VAR_v": "b", "TF_LOG": "info", "TF_CLI_ARGS_plan": "-compact-warnings", "TF_WORKSPACE": "w",
			"PATH": "/mine", "TF_DATA_DIR": "/evil", "TF_INPUT": "1",
		},
	}
	want := []string{
		"CHECKPOINT_DISABLE=1", "HOME=/h", "PATH=/mine", "TF_CLI_ARGS_plan=-compact-warnings",
		"TF_CLI_CONFIG_FILE=/c", "TF_DATA_DIR=/d", "TF_INPUT=0", "TF_IN_AUTOMATION=1", "TF_LOG=info",
		"TF_PLUGIN_CACHE_DIR=/p", "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE=1",
		"TF_VAR_v=b", "TF_WORKSPACE=w", "TMPDIR=/t",
	}
	if diff := cmp.Diff(want, s.environ("init")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, v := range s.environ("plan") {
		if strings.HasPrefix(v, "TF_PLUGIN_CACHE") {
			t.Errorf("plan gets %s: it would fail when the cache is not there", v)
		}
	}
}
