// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	gitsource "github.com/terrace-dev/terrace/internal/source/git"
)

func newTrace(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace KIND/NAME",
		Short: "Find the unit, source and commit that an object comes from",
		Long: `Follow any object of the cluster back to where it is written: over the objects
that own it to the unit whose labels it carries, over the units that applied that
unit, to the source, its revision and the commit with its author.

The author is known when the source is a repository of this machine, or when its
artifact says so.`,
		Example: `  terrace trace deployment/web -n shop
  terrace trace pod/web-5d7b9c6f4-x2x1z -n shop
  terrace trace namespace/shop`,
		Args:              exactly("KIND/NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			word, name, ok := strings.Cut(args[0], "/")
			if !ok || word == "" || name == "" || strings.Contains(name, "/") {
				return usagef(cmd, "%q is not KIND/NAME", args[0])
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return a.trace(cmd.Context(), c, word, name)
		},
	}
	return cmd
}

func (a *app) trace(ctx context.Context, c *cluster, word, name string) error {
	m, err := c.mapper()
	if err != nil {
		return err
	}
	mapping, err := m.named(word)
	if err != nil {
		return err
	}
	o, err := c.resource(mapping, c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return c.explain("get "+word+"/"+name, err)
	}
	t := tracer{cluster: c, mapper: m}
	facts := []fact{{"Object", subject(o)}}
	o, owners, err := t.owner(ctx, o)
	if err != nil {
		return err
	}
	for _, owner := range owners {
		facts = append(facts, fact{"Owned by", owner})
	}
	manager, ok := managedBy(o)
	if !ok {
		k, known := kindOf(o.GetKind() + "." + o.GroupVersionKind().Group)
		if !known || k.Role != unit {
			printFacts(a.env.Stdout, facts)
			return hintf(fmt.Errorf("trace %s: no unit manages it: it has none of the labels that Kustomizations and HelmReleases put on objects", subject(o)),
				"what wrote it last stands in metadata.managedFields: \"terrace kubectl get %s/%s -o yaml --show-managed-fields\"", word, name)
		}
	}
	more, err := t.units(ctx, o, manager, ok)
	printFacts(a.env.Stdout, append(facts, more...))
	return err
}

// subject names an object of any kind: "Deployment shop/web".
func subject(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetKind() + " " + u.GetName()
	}
	return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
}

// tracer follows an object back.
type tracer struct {
	cluster *cluster
	mapper  *kindMapper
}

// deepest bounds how many owners, and how many units that apply units, are followed.
const deepest = 10

// owner follows ownerReferences up to the object that a unit manages, or to the
// last one, and names those on the way.
func (t *tracer) owner(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, []string, error) {
	var names []string
	for range deepest {
		if _, managed := managedBy(o); managed {
			break
		}
		refs := o.GetOwnerReferences()
		i := slices.IndexFunc(refs, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller })
		if len(refs) == 0 {
			break
		}
		ref := refs[max(i, 0)]
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, nil, fmt.Errorf("trace %s: ownerReferences: %w", subject(o), err)
		}
		mapping, err := t.mapper.RESTMapping(gv.WithKind(ref.Kind).GroupKind(), gv.Version)
		if meta.IsNoMatchError(err) {
			break
		}
		if err != nil {
			return nil, nil, t.cluster.explain("find kind "+ref.Kind, err)
		}
		owner, err := t.cluster.resource(mapping, o.GetNamespace()).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			break
		}
		if err != nil {
			return nil, nil, t.cluster.explain("get "+ref.Kind+"/"+ref.Name, err)
		}
		o = owner
		names = append(names, subject(o))
	}
	return o, names, nil
}

// managedBy reads the labels by which units mark what they apply.
func managedBy(o *unstructured.Unstructured) (ref, bool) {
	for _, k := range ofRole(unit) {
		l := o.GetLabels()
		name, namespace := l[k.Resource.Group+"/name"], l[k.Resource.Group+"/namespace"]
		if name != "" && namespace != "" {
			return ref{Kinds: []kind{k}, Name: namespace + "/" + name}, true
		}
	}
	return ref{}, false
}

// units describes the unit that manages an object, what applied that unit, and
// where its content comes from. The object can be a unit that nothing manages.
func (t *tracer) units(ctx context.Context, o *unstructured.Unstructured, r ref, managed bool) ([]fact, error) {
	if !managed {
		k, _ := kindOf(o.GetKind() + "." + o.GroupVersionKind().Group)
		unmanaged := object{Unstructured: o, Kind: k}
		more, err := t.origin(ctx, unmanaged)
		return append(state(unmanaged), more...), err
	}
	var facts []fact
	var first object
	seen := map[string]bool{}
	for range deepest {
		u, err := t.unit(ctx, r)
		if err != nil {
			return append(facts, fact{"Managed by", r.Kinds[0].Name + " " + r.Name}), err
		}
		if seen[u.String()] {
			break
		}
		seen[u.String()] = true
		if first.Unstructured == nil {
			first = u
			facts = append(facts, fact{"Managed by", u.Kind.Name + " " + r.Name})
			facts = append(facts, state(u)...)
		} else {
			facts = append(facts, fact{"Applied by", u.Kind.Name + " " + r.Name})
		}
		if r, managed = managedBy(u.Unstructured); !managed {
			break
		}
	}
	more, err := t.origin(ctx, first)
	return append(facts, more...), err
}

func (t *tracer) unit(ctx context.Context, r ref) (object, error) {
	namespace, name, _ := strings.Cut(r.Name, "/")
	in := *t.cluster
	in.namespace = namespace
	o, err := in.find(ctx, ref{r.Kinds, name})
	if err != nil {
		return object{}, hintf(fmt.Errorf("trace: the unit that the object's labels name: %w", err),
			"it was deleted without its objects, or it is on another cluster and applies to this one")
	}
	return o, nil
}

// state are the facts of a unit that a reader of a trace wants.
func state(o object) []fact {
	ready, _ := o.condition("Ready")
	text, _, _ := strings.Cut(ready.Message, "\n")
	return []fact{
		{"Path", o.text("spec", "path")},
		{"Applied", strings.TrimSuffix(revision(o, true), none)},
		{"Ready", strings.TrimSuffix(string(ready.Status)+": "+message(o, text, true), ": ")},
	}
}

// origin describes the source of a unit and the commit that the unit applied.
func (t *tracer) origin(ctx context.Context, o object) ([]fact, error) {
	kindWord, name := o.text("spec", "sourceRef", "kind"), o.text("spec", "sourceRef", "name")
	k, known := kindOf(kindWord)
	if !known || k.Role != source {
		return []fact{{"Source", strings.TrimSuffix(sourceOf(o), none)}}, nil
	}
	namespace := o.GetNamespace()
	if ns := o.text("spec", "sourceRef", "namespace"); ns != "" {
		namespace = ns
	}
	facts := []fact{{"Source", k.Name + " " + namespace + "/" + name}}
	in := *t.cluster
	in.namespace = namespace
	src, err := in.find(ctx, ref{[]kind{k}, name})
	if err != nil {
		return facts, fmt.Errorf("trace %s: its source: %w", o, err)
	}
	url := gitsource.Redact(src.text("spec", "url"))
	if url == "" && k.Name == "Bucket" {
		url = src.text("spec", "endpoint") + "/" + src.text("spec", "bucketName")
	}
	facts = append(facts, fact{"URL", url}, fact{"Reference", reference(src)}, fact{"Fetched", src.text("status", "artifact", "revision")})
	metadata, _, _ := unstructured.NestedStringMap(src.Object, "status", "artifact", "metadata")
	applied := o.text("status", "lastAppliedOriginRevision")
	if applied == "" {
		applied = o.text("status", "lastAppliedRevision")
	}
	if applied == "" {
		applied = src.text("status", "artifact", "revision")
	}
	return append(facts, commitFacts(src.text("spec", "url"), applied, metadata)...), nil
}

// reference is what a source follows, as its spec says it: "branch main".
func reference(src object) string {
	fields, _, _ := unstructured.NestedStringMap(src.Object, "spec", "ref")
	for _, name := range []string{"commit", "name", "digest", "semver", "tag", "branch"} {
		if v := fields[name]; v != "" {
			return name + " " + v
		}
	}
	return ""
}

// originAnnotations are what those who publish an OCI artifact say of its commit.
const originAnnotations = "org.opencontainers.image."

// commitHash finds the hash of a commit in a revision.
var commitHash = regexp.MustCompile(`(?:^|[:/])([0-9a-f]{40})$`)

// commitFacts describe a commit: from the repository where that is on this
// machine, else from what the artifact says.
func commitFacts(url, revision string, metadata map[string]string) []fact {
	if origin := metadata[originAnnotations+"revision"]; origin != "" && commitHash.FindString(revision) == "" {
		revision = origin
	}
	m := commitHash.FindStringSubmatch(revision)
	if m == nil {
		return nil
	}
	facts := []fact{{"Commit", m[1]}}
	if dir, local := gitsource.Local(url); local {
		if more, err := localCommit(dir, m[1]); err == nil {
			return append(facts, more...)
		}
	}
	return append(facts,
		fact{"Author", metadata[originAnnotations+"authors"]},
		fact{"Date", metadata[originAnnotations+"created"]},
		fact{"Repository", gitsource.Redact(metadata[originAnnotations+"source"])},
	)
}

// localCommit reads a commit of a repository of this machine.
func localCommit(dir, hash string) ([]fact, error) {
	repo, err := gogit.PlainOpenWithOptions(dir, &gogit.PlainOpenOptions{DetectDotGit: true})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	if c, ok := repo.Storer.(io.Closer); ok {
		defer c.Close()
	}
	commit, err := repo.CommitObject(plumbing.NewHash(hash))
	if err != nil {
		return nil, fmt.Errorf("read commit %s: %w", hash, err)
	}
	title, _, _ := strings.Cut(strings.TrimSpace(commit.Message), "\n")
	return []fact{
		{"Author", strings.TrimSpace(commit.Author.Name + " <" + commit.Author.Email + ">")},
		{"Date", commit.Author.When.Format(time.RFC3339)},
		{"Subject", title},
	}, nil
}
