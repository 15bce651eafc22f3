// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// The namespace of Terrace's units, and that of the raw CLI's states.
const (
	fleetNamespace = "bench"
	rawNamespace   = "bench-raw"
)

// module is what every unit is: one resource and one output, no provider.
func module(name string, revision int) string {
	return fmt.Sprintf(`resource "terraform_data" "x" {
  input = "%s-%d"
}

output "o" {
  value = terraform_data.x.output
}
`, name, revision)
}

// fleet is the repository, the objects, and what is seen of them.
type fleet struct {
	client.WithWatch
	repo  string
	names []string
	stop  context.CancelFunc

	mu      sync.Mutex
	seen    map[string]*infra.Terraform
	changed chan struct{}
}

// newFleet makes the repository, with a directory for each unit.
func newFleet(ctx context.Context, cfg *rest.Config, dir string, units int) (*fleet, error) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, infra.AddToScheme, sourcev1.AddToScheme} {
		if err := add(types); err != nil {
			return nil, err
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: types})
	if err != nil {
		return nil, err
	}
	f := &fleet{WithWatch: c, repo: filepath.Join(dir, "repo"), seen: map[string]*infra.Terraform{}, changed: make(chan struct{})}
	for i := range units {
		name := fmt.Sprintf("u%04d", i)
		f.names = append(f.names, name)
		if err := f.write(filepath.Join(name, "main.tf"), module(name, 0)); err != nil {
			return nil, err
		}
	}
	if err := f.write("README.md", "# Bench\n"); err != nil {
		return nil, err
	}
	if _, err := f.git(ctx, "init", "--quiet", "--initial-branch=main"); err != nil {
		return nil, err
	}
	if _, err := f.commit(ctx); err != nil {
		return nil, err
	}
	for _, name := range []string{fleetNamespace, rawNamespace} {
		if err := f.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return nil, fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	return f, nil
}

func (f *fleet) write(name, text string) error {
	path := filepath.Join(f.repo, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

func (f *fleet) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = f.repo
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + f.repo, "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Bench", "GIT_AUTHOR_EMAIL=bench@example.com",
		"GIT_COMMITTER_NAME=Bench", "GIT_COMMITTER_EMAIL=bench@example.com",
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// commit commits all that was written and returns the hash.
func (f *fleet) commit(ctx context.Context) (string, error) {
	if _, err := f.git(ctx, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := f.git(ctx, "commit", "--quiet", "--message", "Change"); err != nil {
		return "", err
	}
	return f.git(ctx, "rev-parse", "HEAD")
}

// createObjects makes the source and the units.
func (f *fleet) createObjects(ctx context.Context) error {
	source := &sourcev1.GitRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "repo"},
		Spec: sourcev1.GitRepositorySpec{
			URL:       "file://" + f.repo,
			Interval:  metav1.Duration{Duration: time.Hour},
			Reference: &sourcev1.GitRepositoryRef{Branch: "main"},
		},
	}
	if err := f.Create(ctx, source); err != nil {
		return fmt.Errorf("create GitRepository: %w", err)
	}
	for _, name := range f.names {
		tf := &infra.Terraform{
			ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: name},
			Spec: infra.TerraformSpec{
				Interval:             metav1.Duration{Duration: 10 * time.Hour},
				Path:                 "./" + name,
				SourceRef:            infra.CrossNamespaceSourceReference{Kind: infra.SourceKindGitRepository, Name: "repo"},
				ApprovePlan:          infra.ApprovePlanAuto,
				WriteOutputsToSecret: &infra.WriteOutputsToSecretSpec{Name: name + "-outputs"},
			},
		}
		if err := f.Create(ctx, tf); err != nil {
			return fmt.Errorf("create Terraform %s: %w", name, err)
		}
	}
	return nil
}

// setInterval changes the interval of every unit.
func (f *fleet) setInterval(ctx context.Context, interval string) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"interval":%q}}`, interval))
	for _, name := range f.names {
		if err := f.Patch(ctx, &infra.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: name}}, patch); err != nil {
			return fmt.Errorf("set the interval of %s: %w", name, err)
		}
	}
	return nil
}

// wakeSource asks for a reconcile of the source, as a webhook would.
func (f *fleet) wakeSource(ctx context.Context) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano)))
	return f.Patch(ctx, &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "repo"}}, patch)
}

// follow watches the units until the fleet is stopped.
func (f *fleet) follow(ctx context.Context) error {
	ctx, f.stop = context.WithCancel(ctx)
	w, err := f.Watch(ctx, &infra.TerraformList{}, client.InNamespace(fleetNamespace))
	if err != nil {
		return err
	}
	go func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			tf, ok := event.Object.(*infra.Terraform)
			if !ok {
				continue
			}
			f.mu.Lock()
			f.seen[tf.Name] = tf
			close(f.changed)
			f.changed = make(chan struct{})
			f.mu.Unlock()
		}
	}()
	return nil
}

// until waits for every unit to be as done says.
func (f *fleet) until(ctx context.Context, what string, done func(*infra.Terraform) bool) error {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	for {
		f.mu.Lock()
		missing, example := 0, ""
		for _, name := range f.names {
			tf := f.seen[name]
			if tf == nil || !done(tf) {
				missing++
				example = name
				if tf != nil {
					if c := apimeta.FindStatusCondition(tf.Status.Conditions, meta.ReadyCondition); c != nil {
						example += ": " + c.Message
					}
				}
			}
		}
		changed := f.changed
		f.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %d of %d units are not, such as %s: %w", what, missing, len(f.names), example, ctx.Err())
		}
	}
}

// planTimes are the times of every unit's last plan.
func (f *fleet) planTimes() map[string]*metav1.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	times := map[string]*metav1.Time{}
	for name, tf := range f.seen {
		times[name] = tf.Status.LastPlanAt
	}
	return times
}

// ready tells that the unit's spec was reconciled with success.
func ready(tf *infra.Terraform) bool {
	return tf.Status.ObservedGeneration == tf.Generation && apimeta.IsStatusConditionTrue(tf.Status.Conditions, meta.ReadyCondition)
}
