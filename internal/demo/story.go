// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/examples"
)

const (
	// namespace is where the example's units live.
	namespace = "flux-system"
	// unitTimeout bounds the wait for what units do: all of them take seconds, on a
	// busy machine more.
	unitTimeout = 3 * time.Minute
)

// The units of the example.
var (
	root      = "flux-system"
	unasked   = []string{"network", "cluster", "nodes", "platform", "controllers", "policies", "shop-staging"}
	afterward = []string{"shop-production", "handbook"} // what needs the database
	all       = slices.Concat([]string{root}, unasked, []string{"database"}, afterward)
)

// What the example's manifests name, in whose place the demonstration puts its own.
const (
	exampleURL   = "https://git.example.com/acme/full-stack.git"
	examplePages = "/tmp/terrace-full-stack"
)

// rootFile is the one file of the repository that a person applies.
const rootFile = "clusters/production/flux-system/sync.yaml"

// story is the whole demonstration, in order.
func (t *tale) story() []step {
	return []step{
		{"A Git repository with a whole stack", t.makeRepository},
		{"A control plane in one process", t.startPlane},
		{"One root brings up the layers, up to the one that asks", t.applyRoot},
		{"A person looks at the plan and approves it", t.approveDatabase},
		{"The outputs of each layer are in the next", t.showOutputs},
		{"A commit that touches no unit", t.commitNothing},
		{"A commit whose effect goes on to the next layer", t.commitNodes},
		{"Drift is found and repaired", t.repairDrift},
		{"The power fails, and comes back", t.failPower},
		{"A unit that is deleted in Git is destroyed", t.deleteHandbook},
		{"A commit that changes one overlay", t.commitOverlay},
	}
}

func (t *tale) makeRepository(ctx context.Context) (string, error) {
	if err := t.repo.create(ctx, examples.FullStack()); err != nil {
		return "", err
	}
	// The manifests are the example's; only the addresses are this machine's.
	if err := t.repo.replace(rootFile, exampleURL, "file://"+t.repo.dir); err != nil {
		return "", err
	}
	if err := t.repo.replace("clusters/production/handbook.yaml", examplePages, t.pages()); err != nil {
		return "", err
	}
	if host := mirrorHost(t.options.Mirror); host != "" {
		if err := t.repo.replace("terraform/handbook/main.tf", `"hashicorp/local"`, fmt.Sprintf("%q", host+"/hashicorp/local")); err != nil {
			return "", err
		}
	}
	key, encrypted, err := ownKey(t.repo.dir, examples.ThrowAwayKey)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(t.ageKey(), []byte(key), 0o600); err != nil {
		return "", err
	}
	commit, err := t.repo.commit(ctx, "Use this repository, and a key of its own")
	if err != nil {
		return "", err
	}
	t.say.line("%s, main at %s", t.repo.dir, commit[:10])
	if err := t.listFiles(); err != nil {
		return "", err
	}
	t.say.line("Encrypted with SOPS, for an age key that was made just now: %s", list(encrypted))
	return "", nil
}

// ageKey is the file with the private key of the repository's Secrets, outside of it.
func (t *tale) ageKey() string { return filepath.Join(t.dir, "demo.agekey") }

// listFiles tells what is in the repository, a directory a line.
func (t *tale) listFiles() error {
	return fs.WalkDir(os.DirFS(t.repo.dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			return fs.SkipDir
		case !d.IsDir() || name == ".":
			return nil
		}
		entries, err := os.ReadDir(filepath.Join(t.repo.dir, name))
		if err != nil {
			return err
		}
		var files []string
		for _, e := range entries {
			if !e.IsDir() {
				files = append(files, e.Name())
			}
		}
		if len(files) > 0 {
			t.say.line("  %-37s %s", name+"/", strings.Join(files, " "))
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
	// The handbook is written beside the data directory: a run may do that where it is told.
	if err := os.MkdirAll(t.pages(), 0o755); err != nil {
		return "", err
	}
	p.args = append(p.args, "--run-allow-write", t.pages())
	t.plane = p
	t.say.command("terrace up --data-dir", p.dataDir, "--run-allow-write", t.pages())
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

func (t *tale) applyRoot(ctx context.Context) (string, error) {
	if err := t.show(ctx, "kubectl", "apply", "--server-side", "-f", filepath.Join(t.repo.dir, filepath.FromSlash(rootFile))); err != nil {
		return "", err
	}
	if err := t.show(ctx, "kubectl", "-n", namespace, "create", "secret", "generic", "sops-age", "--from-file="+t.ageKey()); err != nil {
		return "", err
	}
	t.say.line("Everything else the root finds in the repository:")
	err := t.until(ctx, "all that needs no approval to be applied, and database to ask for one", func(v view) bool {
		return v.ready(unasked...) && v.ready(root) && v.terraform("database").Status.Plan.Pending != ""
	})
	if err != nil {
		return "", err
	}
	now := t.units.snapshot()
	for _, name := range afterward {
		if one, there := now[name]; !there || one.work() != "" {
			return "", fmt.Errorf("%s needs database, and did not wait for it: %s", name, now)
		}
	}
	if err := t.show(ctx, "show", "plan", "network", "-n", namespace); err != nil {
		return "", err
	}
	if err := t.show(ctx, "tree", "-n", namespace); err != nil {
		return "", err
	}
	t.say.kept("network, cluster, platform and staging are there; database waits for a person, production for database")
	t.say.line("(No node belongs to this control plane: what a Deployment asks for is stored, and nothing runs it.)")
	return fmt.Sprintf("%d units; database planned", len(unasked)+1), nil
}

func (t *tale) approveDatabase(ctx context.Context) (string, error) {
	pending := t.units.snapshot().terraform("database").Status.Plan.Pending
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
	if err := t.until(ctx, "every unit to be ready", func(v view) bool { return v.ready(all...) }); err != nil {
		return "", err
	}
	if got := t.units.snapshot().terraform("database").Status.Plan.LastApplied; got != pending {
		return "", fmt.Errorf("approved %s and applied %q", pending, got)
	}
	page, err := os.ReadFile(t.page())
	if err != nil {
		return "", err
	}
	t.say.line("%s:", t.page())
	t.say.quote(string(page))
	if err := t.show(ctx, "tree", "ks/flux-system", "-n", namespace); err != nil {
		return "", err
	}
	t.say.kept("what was applied is %s, the plan that was shown", pending)
	return "database, " + list(afterward), nil
}

// page is the file that the handbook's unit writes.
func (t *tale) page() string { return filepath.Join(t.pages(), "handbook.md") }

// password is the database's, which the example's Secret has encrypted.
const password = "correct-horse-battery-staple"

func (t *tale) showOutputs(ctx context.Context) (string, error) {
	outputs := map[string]map[string][]byte{}
	for _, name := range []string{"network", "cluster", "nodes", "database"} {
		var secret corev1.Secret
		if err := t.units.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name + "-outputs"}, &secret); err != nil {
			return "", err
		}
		outputs[name] = secret.Data
	}
	var info, shop corev1.ConfigMap
	var policy networkingv1.NetworkPolicy
	var database, payment corev1.Secret
	for _, want := range []struct {
		namespace, name string
		into            client.Object
	}{
		{"platform-system", "cluster-info", &info}, {"shop-production", "inside", &policy}, {"shop-production", "web", &shop},
		{"shop-production", "database", &database}, {"shop-production", "payment", &payment},
	} {
		if err := t.units.Get(ctx, client.ObjectKey{Namespace: want.namespace, Name: want.name}, want.into); err != nil {
			return "", err
		}
	}
	cidr := ""
	for _, rule := range policy.Spec.Egress {
		for _, peer := range rule.To {
			if peer.IPBlock != nil {
				cidr = peer.IPBlock.CIDR
			}
		}
	}
	const masked = "(sensitive)"
	for _, flow := range []struct {
		unit, output, where, value string
		secret                     bool
	}{
		{"network", "cidr", "NetworkPolicy shop-production/inside", cidr, false},
		{"cluster", "endpoint", "ConfigMap platform-system/cluster-info", info.Data["endpoint"], false},
		{"nodes", "node_count", "ConfigMap platform-system/cluster-info", info.Data["node_count"], false},
		{"database", "host", "ConfigMap shop-production/web", shop.Data["DATABASE_HOST"], false},
		{"database", "connection", "Secret shop-production/database", string(database.Data["DATABASE_URL"]), true},
	} {
		given := string(outputs[flow.unit][flow.output])
		if given == "" || given != flow.value {
			return "", fmt.Errorf("output %s of %s is not in %s", flow.output, flow.unit, flow.where)
		}
		if flow.secret {
			given = masked
		}
		t.say.line("%-8s %-10s %-25s → %s", flow.unit, flow.output, given, flow.where)
	}
	sealed, err := os.ReadFile(filepath.Join(t.repo.dir, "apps", "shop", "production", "payment.yaml"))
	if err != nil {
		return "", err
	}
	token := payment.Data["PAYMENT_TOKEN"]
	if len(token) == 0 || bytes.HasPrefix(token, []byte("ENC[")) || bytes.Contains(sealed, token) {
		return "", errors.New("the Secret payment is not encrypted in Git and decrypted in the cluster")
	}
	t.say.line("%-8s %-10s %-25s → %s", "SOPS", "payment", masked, "Secret shop-production/payment")
	t.say.line("And back from an object to who wrote it:")
	return "", t.show(ctx, "trace", "deployment/web", "-n", "shop-production")
}

func (t *tale) commitNothing(ctx context.Context) (string, error) {
	return t.commitAndSee(ctx, commit{
		message: "Explain the stack",
		file:    "README.md",
		old:     "# A full stack",
		new:     "# Our full stack",
	})
}

// commitNodes changes an output, which another unit's manifests have in them.
func (t *tale) commitNodes(ctx context.Context) (string, error) {
	said, err := t.commitAndSee(ctx, commit{
		message: "Two more nodes",
		file:    "terraform/nodes/main.tf",
		old:     "node_count = 3",
		new:     "node_count = 5",
		runs:    []string{"nodes", "platform"},
	})
	if err != nil {
		return "", err
	}
	if err := t.show(ctx, "show", "plan", "nodes", "-n", namespace); err != nil {
		return "", err
	}
	return said, t.show(ctx, "kubectl", "-n", "platform-system", "get", "configmap", "cluster-info", "-o", "jsonpath={.data.node_count} nodes")
}

// commit is a change to one file and the units that it must make run, by name.
type commit struct {
	message, file, old, new string
	runs                    []string
}

func (t *tale) commitAndSee(ctx context.Context, c commit) (string, error) {
	if err := t.repo.replace(c.file, c.old, c.new); err != nil {
		return "", err
	}
	return t.pushAndSee(ctx, c.message, fmt.Sprintf("%s: %s → %s", c.file, c.old, c.new), c.runs)
}

// pushAndSee commits the work tree and waits until every unit knows what the commit
// means for it. Those that ran have to be those that are wanted.
func (t *tale) pushAndSee(ctx context.Context, message, change string, runs []string) (string, error) {
	before := t.units.snapshot()
	known := slices.Sorted(maps.Keys(before))
	hash, err := t.repo.commit(ctx, message)
	if err != nil {
		return "", err
	}
	t.say.command("git commit --all --message", fmt.Sprintf("%q", message))
	t.say.line("%s; main is at %s", change, hash[:10])
	// A webhook would tell of it; here a person does, instead of waiting for the interval.
	if err := t.show(ctx, "reconcile", "gitrepository/flux-system", "-n", namespace); err != nil {
		return "", err
	}
	wanted := func(v view) bool {
		ran := ran(before, v)
		return !slices.ContainsFunc(runs, func(name string) bool { return !slices.Contains(ran, name) })
	}
	err = t.until(ctx, fmt.Sprintf("every unit to know commit %s, and %s to run", hash[:10], list(runs)), func(v view) bool {
		return v.settledAt(hash, known...) && wanted(v)
	})
	if err != nil {
		return "", err
	}
	names := ran(before, t.units.snapshot())
	if !slices.Equal(names, runs) {
		return "", fmt.Errorf("ran %s, wanted %s", list(names), list(runs))
	}
	t.say.kept("all %d units are at the new commit; ran: %s", len(known), list(names))
	return list(names), nil
}

func (t *tale) repairDrift(ctx context.Context) (string, error) {
	if err := t.repairObject(ctx); err != nil {
		return "", err
	}
	return "shop-production, policies, handbook", t.repairFile(ctx)
}

// repairObject changes an object and deletes another by hand. They are watched: no
// interval has to pass.
func (t *tale) repairObject(ctx context.Context) error {
	key := client.ObjectKey{Namespace: "shop-production", Name: "web"}
	var web appsv1.Deployment
	if err := t.units.Get(ctx, key, &web); err != nil {
		return err
	}
	before := *web.Spec.Replicas
	if err := t.show(ctx, "kubectl", "-n", key.Namespace, "scale", "deployment", key.Name, "--replicas=0"); err != nil {
		return err
	}
	if err := t.await(ctx, "the Deployment to have its replicas again", func() (bool, error) {
		err := t.units.Get(ctx, key, &web)
		return err == nil && *web.Spec.Replicas == before, err
	}); err != nil {
		return err
	}
	if err := t.show(ctx, "kubectl", "-n", key.Namespace, "delete", "networkpolicy", "inside"); err != nil {
		return err
	}
	if err := t.await(ctx, "the NetworkPolicy to be there again", func() (bool, error) {
		err := t.units.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: "inside"}, &networkingv1.NetworkPolicy{})
		return err == nil, client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	if err := t.showCorrections(ctx, "shop-production", "policies"); err != nil {
		return err
	}
	t.say.kept("the Deployment has its %d replicas again, and the NetworkPolicy is back", before)
	return nil
}

// showCorrections tells what the events of the units say of drift; all of them have to
// say something.
func (t *tale) showCorrections(ctx context.Context, units ...string) error {
	const corrected = "drift corrected:"
	for _, name := range units {
		var said string
		if err := t.await(ctx, "an event of "+name+" that tells of the drift", func() (bool, error) {
			var events corev1.EventList
			if err := t.units.List(ctx, &events, client.InNamespace(namespace)); err != nil {
				return false, err
			}
			for _, e := range events.Items {
				if e.InvolvedObject.Name == name && strings.HasPrefix(e.Message, corrected) {
					said = e.Message
				}
			}
			return said != "", nil
		}); err != nil {
			return err
		}
		lines := strings.Split(said, "\n")
		t.say.line("event of %s: %s", name, strings.Join(lines[:min(2, len(lines))], " "))
	}
	return nil
}

// repairFile deletes what a Terraform unit has made. Only a plan can tell of it.
func (t *tale) repairFile(ctx context.Context) error {
	if err := os.Remove(t.page()); err != nil {
		return err
	}
	t.say.command("rm", t.page())
	before := t.units.snapshot().terraform("handbook")
	t.say.line("Terraform is asked within the unit's interval; so that nobody has to wait, it becomes 5 s.")
	// The root would put the interval back at once.
	if err := t.show(ctx, "suspend", "ks/flux-system", "-n", namespace); err != nil {
		return err
	}
	if err := t.patchInterval(ctx, "5s"); err != nil {
		return err
	}
	err := t.until(ctx, "the drift check of handbook to repair it", func(v view) bool {
		at := v.terraform("handbook").Status.LastAppliedByDriftDetectionAt
		return v.ready("handbook") && at != nil && !at.Equal(before.Status.LastAppliedByDriftDetectionAt)
	})
	if err != nil {
		return err
	}
	if _, err := os.Stat(t.page()); err != nil {
		return fmt.Errorf("handbook says that it is repaired: %w", err)
	}
	if err := t.show(ctx, "resume", "ks/flux-system", "-n", namespace); err != nil {
		return err
	}
	// The root puts the interval back. One more check is due from the short one; the next
	// chapters count what runs.
	err = t.until(ctx, "the next drift check of handbook to be due in minutes", func(v view) bool {
		next := v.terraform("handbook").Status.NextDriftCheckAt
		return v.ready(all...) && next != nil && time.Until(next.Time) > time.Minute
	})
	if err != nil {
		return err
	}
	t.say.kept("%s is there again, and so is the interval of Git", t.page())
	return nil
}

func (t *tale) patchInterval(ctx context.Context, interval string) error {
	return t.show(ctx, "kubectl", "-n", namespace, "patch", "terraform", "handbook", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"interval":%q}}`, interval))
}

// until waits for the units to be as done says.
func (t *tale) until(ctx context.Context, what string, done func(view) bool) error {
	ctx, stop := t.plane.whileUp(ctx)
	defer stop()
	return t.units.until(ctx, what, unitTimeout, done)
}

// await asks until done. What it asks for is no unit, so the watch does not tell.
func (t *tale) await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, stop := t.plane.whileUp(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
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
		old:     "# Our full stack",
		new:     "# Our full stack, which has seen a power cut",
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

// deleteHandbook deletes a unit where it was made: in Git.
func (t *tale) deleteHandbook(ctx context.Context) (string, error) {
	const file = "clusters/production/handbook.yaml"
	if err := os.Remove(filepath.Join(t.repo.dir, filepath.FromSlash(file))); err != nil {
		return "", err
	}
	hash, err := t.repo.commit(ctx, "Nobody reads the handbook")
	if err != nil {
		return "", err
	}
	t.say.command("git rm", file)
	t.say.command("git commit --message", `"Nobody reads the handbook"`)
	if err := t.show(ctx, "reconcile", "gitrepository/flux-system", "-n", namespace); err != nil {
		return "", err
	}
	left := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "handbook" })
	err = t.until(ctx, "handbook to be destroyed and gone", func(v view) bool {
		_, there := v["handbook"]
		return !there && v.settledAt(hash, left...)
	})
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(t.page()); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the unit is gone and %s is still there", t.page())
	}
	var secret corev1.Secret
	if err := t.units.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "handbook-outputs"}, &secret); !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("the unit is gone and Secret handbook-outputs is still there (%v)", err)
	}
	t.say.kept("the root pruned the unit, which destroyed what it had made: its file and its Secret are gone")
	return "flux-system, handbook", nil
}

// commitOverlay changes production and nothing else.
func (t *tale) commitOverlay(ctx context.Context) (string, error) {
	const overlay = "apps/shop/production/kustomization.yaml"
	before, err := t.shops(ctx)
	if err != nil {
		return "", err
	}
	if err := t.repo.replace(overlay, "newTag: 2.0.4", "newTag: 2.1.0"); err != nil {
		return "", err
	}
	t.say.line("%s: newTag: 2.0.4 → 2.1.0; what that would do, before it is committed:", overlay)
	if err := t.showDiff(ctx, "ks/shop-production", path.Dir(overlay)); err != nil {
		return "", err
	}
	said, err := t.pushAndSee(ctx, "Release 2.1.0", overlay, []string{"shop-production"})
	if err != nil {
		return "", err
	}
	after, err := t.shops(ctx)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"shop-staging", "shop-production"} {
		was, is := before[name], after[name]
		t.say.line("%-15s Deployment web: generation %d → %d, %s", name, was.Generation, is.Generation, is.Spec.Template.Spec.Containers[0].Image)
		if moved := was.Generation != is.Generation || was.ResourceVersion != is.ResourceVersion; moved != (name == "shop-production") {
			return "", fmt.Errorf("the Deployment of %s moved: %v", name, moved)
		}
	}
	t.say.kept("production moved, staging and everything else did not")
	return said, nil
}

// shops are the Deployments of both environments, by namespace.
func (t *tale) shops(ctx context.Context) (map[string]*appsv1.Deployment, error) {
	found := map[string]*appsv1.Deployment{}
	for _, name := range []string{"shop-staging", "shop-production"} {
		found[name] = &appsv1.Deployment{}
		if err := t.units.Get(ctx, client.ObjectKey{Namespace: name, Name: "web"}, found[name]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// showDiff shows what the work tree would change of a unit, which must be something.
func (t *tale) showDiff(ctx context.Context, unit, dir string) error {
	args := []string{"diff", unit, "-n", namespace, "--path", filepath.Join(t.repo.dir, filepath.FromSlash(dir))}
	out, err := t.run(ctx, args...)
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return fmt.Errorf("%s finds no change:\n%s", strings.Join(args, " "), out)
	case !ok || exit.ExitCode() != 1:
		return err
	}
	t.say.quote(out)
	return nil
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
