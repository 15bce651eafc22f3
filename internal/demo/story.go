// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/examples"
)

const (
	namespace = "stack"
	// unitTimeout bounds the wait for what units do: four of them take seconds, on a
	// busy machine more.
	unitTimeout = 3 * time.Minute
)

// all are the units of the example, each of which needs the one before.
var all = []string{"network", "cluster", "database", "handbook"}

// The source that the example's manifests name, in whose place the demonstration
// puts its own repository.
const exampleURL = "https://git.example.com/acme/stack.git"

// story is the whole demonstration, in order.
func (t *tale) story() []step {
	return []step{
		{"A Git repository with four Terraform units", t.makeRepository},
		{"A control plane in one process", t.startPlane},
		{"The units are applied, in order, up to the one that asks", t.applyStack},
		{"A person looks at the plan and approves it", t.approveDatabase},
		{"Outputs are in Secrets", t.showOutputs},
		{"A commit that touches no unit", t.commitNothing},
		{"A commit that touches one unit", t.commitOne},
		{"Drift is found and repaired", t.repairDrift},
		{"The power fails, and comes back", t.failPower},
		{"Deleting the units destroys what they made", t.deleteAll},
	}
}

func (t *tale) makeRepository(ctx context.Context) (string, error) {
	if err := t.repo.create(ctx, examples.TerraformStack()); err != nil {
		return "", err
	}
	// The manifests are the example's; only the addresses are this machine's.
	if err := t.repo.replace("clusters/production/source.yaml", exampleURL, "file://"+t.repo.dir); err != nil {
		return "", err
	}
	if err := t.repo.replace("clusters/production/handbook.yaml", "/tmp/terrace-stack", t.pages()); err != nil {
		return "", err
	}
	if host := mirrorHost(t.options.Mirror); host != "" {
		if err := t.repo.replace("terraform/handbook/main.tf", `"hashicorp/local"`, fmt.Sprintf("%q", host+"/hashicorp/local")); err != nil {
			return "", err
		}
	}
	commit, err := t.repo.commit(ctx, "Use this repository")
	if err != nil {
		return "", err
	}
	t.say.line("%s, main at %s", t.repo.dir, commit[:10])
	return "", fs.WalkDir(os.DirFS(t.repo.dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			return fs.SkipDir
		case !d.IsDir():
			t.say.line("  %s", name)
		}
		return nil
	})
}

// mirrorHost finds the host under which a mirror keeps hashicorp/local, which is
// part of the provider's address. It is empty when there is no mirror or when the
// host is the one that an address without a host means.
func mirrorHost(mirror string) string {
	if mirror == "" {
		return ""
	}
	const usual = "registry.opentofu.org"
	found, _ := filepath.Glob(filepath.Join(mirror, "*", "hashicorp", "local")) // fails for a malformed pattern only
	host := ""
	for _, dir := range found {
		if host = filepath.Base(filepath.Dir(filepath.Dir(dir))); host == usual {
			return ""
		}
	}
	return host
}

// pages is the directory into which the handbook is written.
func (t *tale) pages() string { return filepath.Join(t.dir, "pages") }

func (t *tale) startPlane(ctx context.Context) (string, error) {
	api, err := freeAddress()
	if err != nil {
		return "", err
	}
	p := &plane{binary: t.options.Terrace, dataDir: filepath.Join(t.dir, "data"), log: filepath.Join(t.dir, "terrace.log")}
	p.args = []string{"--api-address", api, "--listen-address", "127.0.0.1:0"}
	if t.options.Tofu != "" {
		p.args = append(p.args, "--tofu", t.options.Tofu)
	}
	if t.options.Mirror != "" {
		rc := filepath.Join(t.dir, "tofu.tfrc")
		if err := os.WriteFile(rc, fmt.Appendf(nil, "provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", t.options.Mirror), 0o600); err != nil {
			return "", err
		}
		p.args = append(p.args, "--tofu-cli-config", rc)
	}
	t.plane = p
	t.say.command("terrace up --data-dir", p.dataDir)
	begun := time.Now()
	if err := p.start(ctx); err != nil {
		return "", err
	}
	t.say.kept("the Kubernetes API, etcd and the controllers are one process, %d, ready after %.1f s", p.process.Process.Pid, time.Since(begun).Seconds())
	cfg, err := p.config()
	if err != nil {
		return "", err
	}
	t.units, err = watchUnits(ctx, cfg, namespace, t.say)
	return "", err
}

func (t *tale) applyStack(ctx context.Context) (string, error) {
	manifests := filepath.Join(t.repo.dir, "clusters", "production")
	// The namespace first: kubectl takes files by name, and its own resources need it.
	if err := t.show(ctx, "kubectl", "apply", "--server-side", "-f", filepath.Join(manifests, "namespace.yaml")); err != nil {
		return "", err
	}
	if err := t.show(ctx, "kubectl", "apply", "--server-side", "-f", manifests); err != nil {
		return "", err
	}
	err := t.units.until(ctx, "network and cluster to be applied and database to ask for an approval", unitTimeout, func(v view) bool {
		return v.ready("network") && v.ready("cluster") && v["database"] != nil && v["database"].Status.Plan.Pending != ""
	})
	if err != nil {
		return "", err
	}
	for _, name := range []string{"network", "cluster"} {
		if err := t.show(ctx, "show", "plan", name, "-n", namespace); err != nil {
			return "", err
		}
	}
	if h := t.units.snapshot()["handbook"]; h == nil || h.Status.LastPlanAt != nil {
		return "", errors.New("handbook needs database, and was planned before it")
	}
	t.say.kept("network and cluster are applied; database waits for a person; handbook waits for database")
	return "network, cluster; database planned", t.show(ctx, "tree", "-n", namespace)
}

func (t *tale) approveDatabase(ctx context.Context) (string, error) {
	pending := t.units.snapshot()["database"].Status.Plan.Pending
	plan, err := t.run(ctx, "show", "plan", "database", "-n", namespace)
	if err != nil {
		return "", err
	}
	if strings.Contains(plan, password) {
		return "", errors.New("the plan shows the password")
	}
	if err := t.show(ctx, "approve", "database", "-n", namespace, "--plan", pending); err != nil {
		return "", err
	}
	err = t.units.until(ctx, "database and handbook to be applied", unitTimeout, func(v view) bool {
		return v.ready("database") && v.ready("handbook") && v["handbook"].Status.LastAppliedRevision != ""
	})
	if err != nil {
		return "", err
	}
	if got := t.units.snapshot()["database"].Status.Plan.LastApplied; got != pending {
		return "", fmt.Errorf("approved %s and applied %q", pending, got)
	}
	page, err := os.ReadFile(t.page())
	if err != nil {
		return "", err
	}
	if err := t.show(ctx, "show", "plan", "handbook", "-n", namespace); err != nil {
		return "", err
	}
	t.say.line("%s:", t.page())
	t.say.quote(string(page))
	t.say.kept("what was applied is %s, the plan that was shown", pending)
	return "database, handbook", nil
}

// page is the file that the handbook's unit writes.
func (t *tale) page() string { return filepath.Join(t.pages(), "handbook.md") }

// password is the database's, in the example's manifests.
const password = "correct-horse-battery-staple"

func (t *tale) showOutputs(ctx context.Context) (string, error) {
	wanted := map[string][]string{
		"network-outputs":  {"cidr", "network_id", "subnets"},
		"cluster-outputs":  {"cluster_id", "endpoint"},
		"database-outputs": {"connection", "host"},
	}
	for _, name := range []string{"network-outputs", "cluster-outputs", "database-outputs"} {
		var secret corev1.Secret
		if err := t.units.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
			return "", err
		}
		for _, key := range wanted[name] {
			value, ok := secret.Data[key]
			if !ok {
				return "", fmt.Errorf("read Secret %s: key %s is not there", name, key)
			}
			shown := string(value)
			if key == "connection" {
				shown = "(sensitive)"
			}
			t.say.line("%-17s %-11s %s", name, key, cut(strings.Join(strings.Fields(shown), " "), 70))
		}
	}
	return "", nil
}

func (t *tale) commitNothing(ctx context.Context) (string, error) {
	return t.commitAndSee(ctx, commit{
		message: "Explain the stack",
		file:    "README.md",
		old:     "# A stack of Terraform units",
		new:     "# Our stack of Terraform units",
	})
}

func (t *tale) commitOne(ctx context.Context) (string, error) {
	said, err := t.commitAndSee(ctx, commit{
		message: "Two more nodes",
		file:    "terraform/cluster/main.tf",
		old:     "node_count = 3",
		new:     "node_count = 5",
		runs:    []string{"cluster"},
	})
	if err != nil {
		return "", err
	}
	return said, t.show(ctx, "show", "plan", "cluster", "-n", namespace)
}

// commit is a change to one file and the units that it must make run.
type commit struct {
	message, file, old, new string
	runs                    []string
}

func (t *tale) commitAndSee(ctx context.Context, c commit) (string, error) {
	before := t.units.snapshot()
	if err := t.repo.replace(c.file, c.old, c.new); err != nil {
		return "", err
	}
	hash, err := t.repo.commit(ctx, c.message)
	if err != nil {
		return "", err
	}
	t.say.command("git commit --all --message", fmt.Sprintf("%q", c.message))
	t.say.line("%s: %s → %s; main is at %s", c.file, c.old, c.new, hash[:10])
	// A webhook would tell of it; here a person does, instead of waiting for the interval.
	if err := t.show(ctx, "reconcile", "gitrepository/stack", "-n", namespace); err != nil {
		return "", err
	}
	err = t.units.until(ctx, "every unit to know commit "+hash[:10], unitTimeout, func(v view) bool { return v.settledAt(hash, all...) })
	if err != nil {
		return "", err
	}
	names := ran(before, t.units.snapshot())
	if !slices.Equal(names, c.runs) {
		return "", fmt.Errorf("ran %s, wanted %s", list(names), list(c.runs))
	}
	t.say.kept("all four units are at the new commit; ran: %s", list(names))
	return list(names), nil
}

func (t *tale) repairDrift(ctx context.Context) (string, error) {
	if err := os.Remove(t.page()); err != nil {
		return "", err
	}
	t.say.command("rm", t.page())
	before := t.units.snapshot()
	t.say.line("The next check is due within the unit's interval; so that nobody has to wait, it becomes 5 s:")
	if err := t.show(ctx, "kubectl", "-n", namespace, "patch", "terraform", "handbook", "--type=merge", "-p", `{"spec":{"interval":"5s"}}`); err != nil {
		return "", err
	}
	err := t.units.until(ctx, "the drift check of handbook to repair it", unitTimeout, func(v view) bool {
		h, was := v["handbook"], before["handbook"]
		return v.ready("handbook") && h.Status.LastAppliedByDriftDetectionAt != nil && !h.Status.LastAppliedByDriftDetectionAt.Equal(was.Status.LastAppliedByDriftDetectionAt)
	})
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(t.page()); err != nil {
		return "", fmt.Errorf("handbook says that it is repaired: %w", err)
	}
	if err := t.show(ctx, "kubectl", "-n", namespace, "patch", "terraform", "handbook", "--type=merge", "-p", `{"spec":{"interval":"10m"}}`); err != nil {
		return "", err
	}
	// One more check is due from the short interval; the next chapters count what runs.
	err = t.units.until(ctx, "the next drift check of handbook to be due in minutes", unitTimeout, func(v view) bool {
		next := v["handbook"].Status.NextDriftCheckAt
		return v.ready("handbook") && next != nil && time.Until(next.Time) > time.Minute
	})
	if err != nil {
		return "", err
	}
	t.say.kept("%s is there again", t.page())
	return "handbook", nil
}

func (t *tale) failPower(ctx context.Context) (string, error) {
	before := t.units.snapshot()
	t.say.command("kill -9", fmt.Sprint(t.plane.process.Process.Pid))
	if err := t.plane.kill(); err != nil {
		return "", err
	}
	t.say.command("terrace up --data-dir", t.plane.dataDir)
	if err := t.plane.start(ctx); err != nil {
		return "", err
	}
	// A commit that every unit must take note of shows that the controllers are at
	// work again, so that "nothing ran" is not said too early.
	said, err := t.commitAndSee(ctx, commit{
		message: "Write down the power cut",
		file:    "README.md",
		old:     "# Our stack of Terraform units",
		new:     "# Our stack of Terraform units, which has seen a power cut",
	})
	if err != nil {
		return "", err
	}
	if names := ran(before, t.units.snapshot()); len(names) > 0 {
		return "", fmt.Errorf("ran %s after the restart", list(names))
	}
	t.say.kept("every object is there, and no unit ran again")
	return said, nil
}

func (t *tale) deleteAll(ctx context.Context) (string, error) {
	if err := t.show(ctx, "kubectl", "-n", namespace, "delete", "terraform", "--all", "--wait=false"); err != nil {
		return "", err
	}
	if err := t.units.until(ctx, "all units to be destroyed and gone", unitTimeout, func(v view) bool { return len(v) == 0 }); err != nil {
		return "", err
	}
	if _, err := os.Stat(t.page()); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the units are gone and %s is still there", t.page())
	}
	for _, name := range []string{"network-outputs", "cluster-outputs", "database-outputs"} {
		var secret corev1.Secret
		if err := t.units.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("the units are gone and Secret %s is still there (%v)", name, err)
		}
	}
	t.say.kept("the file and the Secrets are gone with the units")
	return list(all), nil
}

// show runs a command of terrace and tells both the command and its answer.
func (t *tale) show(ctx context.Context, args ...string) error {
	_, err := t.run(ctx, args...)
	return err
}

func (t *tale) run(ctx context.Context, args ...string) (string, error) {
	shown := slices.Clone(args)
	for i, a := range shown {
		if strings.ContainsAny(a, `{}" `) {
			shown[i] = "'" + a + "'"
		}
	}
	t.say.command(append([]string{"terrace"}, shown...)...)
	out, err := t.plane.run(ctx, args...)
	if err == nil && strings.TrimSpace(out) != "" {
		t.say.quote(out)
	}
	return out, err
}

// list names units for a sentence.
func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
