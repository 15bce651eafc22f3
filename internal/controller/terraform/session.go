// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/run"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// Bounds of the steps of a run; the run as a whole is bounded by Options.RunTimeout.
const (
	prepareTimeout = 10 * time.Minute
	initTimeout    = 20 * time.Minute
	pushTimeout    = 2 * time.Minute
)

// session is a run's own working directory with the tool in it, its door to the
// state, and what has to be cleared away afterwards.
type session struct {
	*tofu.Session
	c        *Controller
	job      *job
	run      *run.Run
	dir      *workdir.Dir
	prepared *workdir.Prepared
	door     door   // nil when the state is not kept by Terrace
	unlocked string // the lock that was removed by force
	capture  *capture
	// note tells a person what was decided about the backend.
	note string
	// made is what killed applies have made and the state does not know.
	made []made
	// cloud tells that a cloud block takes the place of a backend.
	cloud bool
	// learnt is the digest of the state whose secrets were learnt last.
	learnt atomic.Pointer[[sha256.Size]byte]
}

// learnState makes the log and the errors of the run hide what a state marks as sensitive. The
// doors call it before the tool has the state, and so before it can print anything of it; and
// with what the tool writes, before the tool tells how the apply ended.
func (s *session) learnState(payload []byte) {
	sum := sha256.Sum256(payload)
	if last := s.learnt.Swap(&sum); last != nil && *last == sum {
		return
	}
	s.job.mask.Learn(plan.SensitiveInState(payload)...)
}

// openSession prepares a session: the unit's directory in the state that the tool needs,
// init done if anything that it depends on has changed.
func (c *Controller) openSession(ctx context.Context, r *run.Run, j *job, write bool) (_ *session, err error) {
	r.Step("prepare", prepareTimeout)
	s := &session{c: c, job: j, run: r}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	tree, release, err := c.opts.Artifacts.Tree(ctx, j.artifact)
	if err != nil {
		return nil, status.Failf(infra.ReasonArtifactFailed, "fetch artifact %s: %w", j.revision, err)
	}
	defer release()
	if s.dir, err = workdir.OpenDir(c.unitDir(j.unit)); err != nil {
		return nil, status.Fail(infra.ReasonNewFailed, err)
	}
	// Before anything is cleared; a run before may have had no room for it.
	if err := c.keepMade(j.unit, s.dir); err != nil {
		return nil, s.notRecovered(err)
	}
	s.showBackend()
	if err := s.checkProviders(ctx, tree); err != nil {
		return nil, err
	}
	files, err := s.files(tree)
	if err != nil {
		return nil, err
	}
	if err := s.keepErroredState(); err != nil {
		return nil, err
	}
	// A plan may read only; but a state that is still to be written comes first.
	_, unwritten := os.Stat(s.erroredState())
	backend, err := s.backend(ctx, write || unwritten == nil || c.hasMade(j.unit))
	if err != nil {
		return nil, err
	}
	maps.Copy(files, backend)

	cli := j.inputs.CLIConfig
	if cli == nil && c.opts.CLIConfig != "" {
		if cli, err = os.ReadFile(c.opts.CLIConfig); err != nil {
			return nil, status.Failf(infra.ReasonNewFailed, "read CLI configuration: %w", err)
		}
	}
	s.prepared, err = s.dir.Prepare(workdir.Request{
		Source: tree, Reach: j.reach, Hasher: c.hasher, Files: files, Decrypted: j.inputs.Decrypted, Mappings: j.inputs.Files, CLIConfig: cli,
		Init: workdir.Init{Tool: c.opts.Tool.Digest, PluginCache: c.opts.PluginCache, Upgrade: upgrades(j.tf)},
	})
	if err != nil {
		return nil, status.Fail(infra.ReasonNewFailed, err)
	}
	s.capture = &capture{}
	env := maps.Clone(j.inputs.Env)
	if env == nil {
		env = map[string]string{}
	}
	name, value := r.Mark()
	env[name] = value
	if s.door != nil {
		maps.Copy(env, s.door.env())
		if err := s.door.open(); err != nil {
			return nil, status.Failf(infra.ReasonInitFailed, "give the run its state: %w", err)
		}
	}
	s.Session = &tofu.Session{
		Tool: c.opts.Tool, Dir: s.prepared.Module, DataDir: s.prepared.DataDir, Home: s.prepared.Home, Tmp: s.prepared.Tmp,
		Env: env, CLIConfig: s.prepared.CLIConfig, PluginCache: c.opts.PluginCache,
		Isolation: c.opts.Isolation.With(nil, []string{s.dir.Path()}),
		Output:    s.capture.passing(r.Output(run.Stdout)), Errors: s.capture.passing(r.Output(run.Stderr)),
		Grace: j.grace(c.opts.Grace), Mask: func(text string) string { return j.mask.String(text) },
		Started: func(p tofu.Process) error { return r.Started(p.PID, p.StartTime, p.Subcommand) },
	}
	if err := s.unlockBeforeInit(ctx); err != nil {
		return nil, err
	}
	if err := s.init(ctx); err != nil {
		return nil, err
	}
	return s, s.pushErroredState(ctx)
}

// close takes the run's door to the state away and removes what may hold secrets.
func (s *session) close() {
	if s.door != nil {
		s.door.Revoke()
		s.releaseLeftLock()
		s.door.close()
	}
	if s.dir != nil {
		s.hideBackend()
		if err := s.c.clear(s.job.unit, s.dir); err != nil {
			fmt.Fprintf(s.run.Output(run.Own), "terrace: the run's directory is left as it is for the next run: %v\n", err)
		}
		_ = s.dir.Close()
	}
}

func upgrades(tf *infra.Terraform) bool {
	return tf.Spec.UpgradeOnInit == nil || *tf.Spec.UpgradeOnInit
}

// files are the generated files of the module directory.
func (s *session) files(tree string) (map[string][]byte, error) {
	j := s.job
	files := map[string][]byte{}
	data, err := workdir.Inputs(j.inputs.Templates)
	if err != nil {
		return nil, status.Fail(infra.ReasonVarsGenerationFailed, err)
	}
	var values json.RawMessage
	if j.inputs.Values != nil {
		if values, err = workdir.Values(j.inputs.Values, data); err != nil {
			return nil, status.Fail(infra.ReasonVarsGenerationFailed, err)
		}
	}
	vars := workdir.Variables{Values: values}
	for _, name := range slices.Sorted(maps.Keys(j.inputs.Vars)) {
		vars.Vars = append(vars.Vars, workdir.Variable{Name: name, Value: j.inputs.Vars[name]})
	}
	content, err := vars.JSON()
	if err != nil {
		return nil, status.Fail(infra.ReasonVarsGenerationFailed, err)
	}
	if content != nil {
		files[workdir.VarsFile] = content
	}
	config, err := workdir.BackendConfig(j.inputs.BackendConfig)
	if err != nil {
		return nil, status.Fail(infra.ReasonInitFailed, err)
	}
	if config != nil {
		files[workdir.BackendConfigFile] = config
	}
	template, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(j.reach.Path), workdir.TemplateFile))
	if err == nil {
		rendered, err := workdir.Render(template, values)
		if err != nil {
			return nil, status.Fail(infra.ReasonTemplateGenerationFailed, err)
		}
		files[workdir.RenderedFile] = rendered
	}
	return files, nil
}

func (s *session) kubeconfig() string {
	return filepath.Join(s.dir.Path(), "state.kubeconfig")
}

// backend decides where the state is. One that Terrace keeps is reached through a door,
// which lets this run see this state and nothing else.
func (s *session) backend(ctx context.Context, write bool) (map[string][]byte, error) {
	tf := s.job.tf
	var b workdir.Backend
	switch cfg := tf.Spec.BackendConfig; {
	case tf.Spec.Cloud != nil:
		s.cloud = true
		b.Cloud = &workdir.CloudBackend{Organization: tf.Spec.Cloud.Organization, Hostname: tf.Spec.Cloud.Hostname, Token: tf.Spec.Cloud.Token}
		if w := tf.Spec.Cloud.Workspaces; w != nil {
			b.Cloud.Workspace, b.Cloud.Tags = w.Name, w.Tags
		}
	case cfg == nil && s.job.reach.Backend != nil:
		s.cloud = s.job.reach.Backend.Type == cloudType
		s.note = "the state is where the module says: " + s.job.reach.Backend.String()
	case cfg != nil && cfg.Disable:
		s.cloud = s.job.reach.Backend != nil && s.job.reach.Backend.Type == cloudType
		s.note = "the backend is disabled: the state is a file on the machine that runs Terrace, unless the module declares a backend"
	case cfg != nil && cfg.CustomConfiguration != "":
		s.cloud = cloudBlock.MatchString(cfg.CustomConfiguration)
		b.Custom = cfg.CustomConfiguration
	case cfg != nil && cfg.ConfigPath != "":
		b.Kubernetes = &workdir.KubernetesBackend{
			SecretSuffix: cfg.SecretSuffix, Namespace: tf.Namespace, ConfigPath: cfg.ConfigPath, Labels: cfg.Labels,
		}
	default:
		var err error
		if s.door, err = s.openDoor(ctx, write); err != nil {
			return nil, err
		}
		b = s.door.backend()
	}
	hcl, err := b.HCL()
	if err != nil {
		return nil, status.Fail(infra.ReasonInitFailed, err)
	}
	if hcl == nil {
		return nil, nil
	}
	return map[string][]byte{workdir.BackendFile: hcl}, nil
}

// cloudType is the Type of a workdir.BackendBlock that is a cloud block.
const cloudType = "cloud"

// cloudBlock finds a cloud block in the body of a terraform block.
var cloudBlock = regexp.MustCompile(`(?m)^\s*cloud\s*\{`)

// init runs init if what it depends on has changed since it last succeeded, and
// selects the workspace.
func (s *session) init(ctx context.Context) error {
	if s.prepared.InitNeeded {
		s.run.Step("init", initTimeout)
		opts := tofu.InitOptions{Upgrade: upgrades(s.job.tf), Reconfigure: !s.cloud, LockTimeout: lockTimeout(s.job.tf)}
		if s.cloud {
			// With a cloud block the tool refuses -reconfigure, and would want to move the
			// state of the backend before; without init's record it knows of none.
			if err := os.Remove(filepath.Join(s.prepared.DataDir, "terraform.tfstate")); err != nil && !os.IsNotExist(err) {
				return status.Failf(infra.ReasonInitFailed, "forget the backend before: %w", err)
			}
		}
		if len(s.job.inputs.BackendConfig) > 0 {
			opts.BackendConfig = []string{filepath.Join(s.prepared.Module, workdir.BackendConfigFile)}
		}
		if err := s.Session.Init(ctx, opts); err != nil {
			return status.Fail(infra.ReasonInitFailed, err)
		}
		if err := s.dir.InitDone(s.prepared); err != nil {
			return status.Fail(infra.ReasonInitFailed, err)
		}
	}
	if err := s.checkLocked(ctx); err != nil {
		return err
	}
	if !s.cloud { // a cloud block names its workspaces itself
		if err := s.SelectWorkspace(ctx, s.job.tf.WorkspaceName()); err != nil {
			return status.Fail(infra.ReasonWorkspaceSelectFailed, err)
		}
	}
	return nil
}

// again runs do, and once more after an init when the tool says that what init
// made is missing: somebody cleared a cache.
func (s *session) again(ctx context.Context, step string, do func() error) error {
	s.run.Step(step, 0)
	err := do()
	var exit *tofu.ExitError
	if !errors.As(err, &exit) || !exit.NeedsInit || exit.Cause != nil {
		return err
	}
	if ferr := s.dir.ForgetInit(); ferr != nil {
		return ferr
	}
	s.prepared.InitNeeded = true
	if ierr := s.init(ctx); ierr != nil {
		return ierr
	}
	s.run.Step(step, 0)
	return do()
}

func lockTimeout(tf *infra.Terraform) string {
	if tf.Spec.TFState == nil || tf.Spec.TFState.LockTimeout.Duration <= 0 {
		return ""
	}
	return tf.Spec.TFState.LockTimeout.Duration.String()
}

// keepErroredState moves a state that could not be written out of the way of the
// next preparation. It is the only record of what a provider made.
func (s *session) keepErroredState() error {
	var found string
	// Looked for everywhere: spec.path may be another one by now.
	err := filepath.WalkDir(s.dir.Path(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == s.dir.DataDir() || path == s.dir.Home() || path == s.dir.Tmp()):
			return fs.SkipDir
		case d.Name() == workdir.ErroredState && path != s.erroredState() && !s.ofArtifact(path):
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && found != "" {
		err = os.Rename(found, s.erroredState())
	}
	if err != nil {
		return status.Failf(infra.ReasonInitFailed, "keep %s: %w", workdir.ErroredState, err)
	}
	return nil
}

// ofArtifact tells that a file came with the artifact, where somebody committed it:
// it is not what a run of this unit left.
func (s *session) ofArtifact(path string) bool {
	return slices.ContainsFunc(s.job.reach.Files, func(f string) bool {
		return strings.HasSuffix(filepath.ToSlash(path), "/"+f)
	})
}

func (s *session) erroredState() string {
	return filepath.Join(s.dir.Path(), workdir.ErroredState)
}

// pushErroredState writes a state that an earlier run could not write. Until that
// has worked nothing else is done: planning without it would create again what is there.
func (s *session) pushErroredState(ctx context.Context) error {
	if _, err := os.Stat(s.erroredState()); err != nil {
		return nil
	}
	s.run.Step("push state", pushTimeout)
	if err := s.StatePush(ctx, s.erroredState(), tofu.StatePushOptions{LockTimeout: lockTimeout(s.job.tf)}); err != nil {
		return status.Failf(infra.ReasonInitFailed, "write the state that the last apply could not write (kept on disk): %w", err)
	}
	return os.Remove(s.erroredState())
}

// renderText renders ${{ }} in a text of the spec over data.
func renderText(text string, data map[string]any) (string, error) {
	encoded, err := json.Marshal(text)
	if err != nil {
		return "", err
	}
	out, err := workdir.Values(encoded, data)
	if err != nil {
		return "", err
	}
	var s string
	if json.Unmarshal(out, &s) != nil {
		s = string(out)
	}
	return s, nil
}

// captureLimit bounds the text of a plan that is kept, in bytes.
const captureLimit = 8 << 20

// capture keeps a copy of output, of both streams, while it is asked to. One process at
// a time writes, from one goroutine.
type capture struct {
	buf     bytes.Buffer
	keeping bool
}

// passing is a writer whose text is passed on.
func (c *capture) passing(to io.Writer) io.Writer { return io.MultiWriter(c, to) }

func (c *capture) Write(p []byte) (int, error) {
	if c.keeping && c.buf.Len() < captureLimit {
		c.buf.Write(p[:min(len(p), captureLimit-c.buf.Len())])
	}
	return len(p), nil
}

// during returns what was printed while do ran.
func (c *capture) during(do func() error) (string, error) {
	c.buf.Reset()
	c.keeping = true
	err := do()
	c.keeping = false
	return strings.ToValidUTF8(c.buf.String(), "\uFFFD"), err
}
