// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package attribution_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	fluxgit "github.com/fluxcd/pkg/git"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/approval"
	"github.com/terrace-dev/terrace/internal/attribution"
	"github.com/terrace-dev/terrace/internal/audit"
)

var (
	alice = fluxgit.Signature{Name: "Alice", Email: "alice@example.com"}
	bob   = fluxgit.Signature{Name: "Bob", Email: "bob@example.com"}
)

func TestCommit(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		commit fluxgit.Commit
		want   audit.Actor
		none   bool
	}{
		"Author": {"Most people commit what they write.", fluxgit.Commit{Author: alice, Committer: alice},
			audit.Actor{Kind: "git", Name: "Alice", Email: "alice@example.com"}, false},
		"Committer": {"Who merges is another.", fluxgit.Commit{Author: alice, Committer: bob},
			audit.Actor{Kind: "git", Name: "Alice", Email: "alice@example.com", Committer: "Bob", CommitterEmail: "bob@example.com"}, false},
		"EmailOnly": {"Git takes an empty name.", fluxgit.Commit{Author: fluxgit.Signature{Email: "a@b"}, Committer: fluxgit.Signature{Email: "a@b"}},
			audit.Actor{Kind: "git", Name: "a@b", Email: "a@b"}, false},
		"Nobody": {"A commit that names nobody is nobody's.", fluxgit.Commit{}, audit.Actor{}, true},
		"Hostile": {"Strangers write commits: nothing steers a terminal, fakes a line or turns the text.",
			fluxgit.Commit{Author: fluxgit.Signature{Name: "Al\x1b[31mice\nkubernetes:admin\u202e\u200b\xff", Email: "\x00"}, Committer: fluxgit.Signature{}},
			audit.Actor{Kind: "git", Name: "Al[31mice kubernetes:admin\uFFFD"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := attribution.Commit(&meta.Artifact{Metadata: attribution.Metadata(tc.commit)})
			if tc.none {
				if ok {
					t.Errorf("%s: %+v", tc.reason, got)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || !ok {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	if _, ok := attribution.Commit(nil); ok {
		t.Error("no artifact has an author")
	}
}

// FuzzMetadata takes any names: what is kept is one printable line, and bounded.
func FuzzMetadata(f *testing.F) {
	f.Add("Alice", "alice@example.com")
	f.Add(strings.Repeat("é", 300), "\x1b]0;x\x07")
	f.Fuzz(func(t *testing.T, name, email string) {
		for key, v := range attribution.Metadata(fluxgit.Commit{Author: fluxgit.Signature{Name: name, Email: email}, Committer: bob}) {
			if v == "" || len(v) > 256 || strings.IndexFunc(v, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
				t.Errorf("%s is %q", key, v)
			}
		}
	})
}

// api is what Terrace reads of the API server: objects by kind and name.
type api map[string]client.Object

func (a api) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	var kind string
	switch o := into.(type) {
	case *kustomizev1.Kustomization:
		kind = "Kustomization"
		if have, ok := a[kind+"/"+key.String()]; ok {
			have.(*kustomizev1.Kustomization).DeepCopyInto(o)
			return nil
		}
	case *sourcev1.GitRepository:
		kind = "GitRepository"
		if have, ok := a[kind+"/"+key.String()]; ok {
			have.(*sourcev1.GitRepository).DeepCopyInto(o)
			return nil
		}
	case *metav1.PartialObjectMetadata:
		kind = o.Kind
		if have, ok := a[kind+"/"+key.String()]; ok {
			o.ManagedFields = have.GetManagedFields()
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
}

func (a api) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// at is a time, in seconds of one hour.
func at(second int) *metav1.Time {
	return &metav1.Time{Time: time.Date(2026, 1, 2, 3, 0, second, 0, time.UTC)}
}

func managed(manager, fields string, second int) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Time: at(second), FieldsV1: metav1.NewFieldsV1(fields)}
}

const (
	ownsApproval = `{"f:spec":{"f:approvePlan":{},"f:path":{}}}`
	ownsSuspend  = `{"f:spec":{"f:suspend":{}}}`
	ownsPath     = `{"f:spec":{"f:path":{}}}`
)

// fleet is a Kustomization and its source, whose revision was stored at second 10.
func fleet() api {
	ks := &kustomizev1.Kustomization{}
	ks.Namespace, ks.Name = "flux-system", "fleet"
	ks.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}
	ks.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "infra_network_infra.contrib.fluxcd.io_Terraform", Version: "v1alpha2"}}}
	repo := &sourcev1.GitRepository{}
	repo.Namespace, repo.Name = "flux-system", "fleet"
	repo.Status.Artifact = &meta.Artifact{
		Revision: "main@sha1:b2", LastUpdateTime: *at(10), Metadata: attribution.Metadata(fluxgit.Commit{Author: alice, Committer: bob}),
	}
	return api{"Kustomization/flux-system/fleet": ks, "GitRepository/flux-system/fleet": repo}
}

// unit is a unit that the Kustomization applies.
func unit(managers ...metav1.ManagedFieldsEntry) *infra.Terraform {
	tf := &infra.Terraform{}
	tf.Namespace, tf.Name, tf.Generation = "infra", "network", 7
	tf.CreationTimestamp = *at(0)
	tf.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "fleet", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
	tf.ManagedFields = managers
	return tf
}

var kind = infra.GroupVersion.WithKind(infra.TerraformKind)

func TestApprover(t *testing.T) {
	author := audit.Actor{Kind: "git", Name: "Alice", Email: "alice@example.com", Committer: "Bob", CommitterEmail: "bob@example.com"}
	commit := audit.Actor{Kind: "git", Name: "Carol"}
	itself := func(by string) audit.Actor { return audit.Actor{Kind: "terrace", Name: by} }
	const byFleet = "approvePlan is as Kustomization/flux-system/fleet applies it at main@sha1:b2"
	for name, tc := range map[string]struct {
		reason string
		by     string
		unit   *infra.Terraform
		change func(api, *infra.Terraform)
		want   audit.Actor
		detail string
	}{
		"Commit":    {"The Kustomization set the field while its source had that revision.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 12)), nil, author, byFleet},
		"SameTime":  {"Times are in seconds.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 10)), nil, author, byFleet},
		"Earlier":   {"It was set at an earlier revision, whose author is not known any more.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 9)), nil, itself(approval.BySpec), ""},
		"ByHand":    {"Somebody else set the field after it.", approval.BySpec, unit(managed("kustomize-controller", ownsPath, 12), managed("kubectl-edit", ownsApproval, 13)), nil, itself(approval.BySpec), ""},
		"ByBoth":    {"Who set the field last counts.", approval.BySpec, unit(managed("kubectl-edit", ownsApproval, 13), managed("kustomize-controller", ownsApproval, 12)), nil, itself(approval.BySpec), ""},
		"NoParent":  {"A unit that no Kustomization applies is not asked about.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 12)), func(_ api, tf *infra.Terraform) { tf.Labels = nil }, itself(approval.BySpec), ""},
		"GoneFleet": {"The Kustomization is gone.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 12)), func(a api, _ *infra.Terraform) { delete(a, "Kustomization/flux-system/fleet") }, itself(approval.BySpec), ""},
		"NotListed": {"Whoever writes the unit writes its labels; the Kustomization does not know it.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 12)), func(a api, _ *infra.Terraform) {
			a["Kustomization/flux-system/fleet"].(*kustomizev1.Kustomization).Status.Inventory.Entries[0].ID = "infra_other_infra.contrib.fluxcd.io_Terraform"
		}, itself(approval.BySpec), ""},
		"NoAuthor": {"Another source controller keeps no author.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 12)), func(a api, _ *infra.Terraform) {
			a["GitRepository/flux-system/fleet"].(*sourcev1.GitRepository).Status.Artifact.Metadata = nil
		}, itself(approval.BySpec), ""},
		"Annotation": {"The annotation can be in Git as well.", approval.ByAnnotation, unit(managed("kustomize-controller", `{"f:metadata":{"f:annotations":{"f:terrace.dev/approved-plan":{}}}}`, 12)), nil,
			author, "terrace.dev/approved-plan is as Kustomization/flux-system/fleet applies it at main@sha1:b2"},
		"Vouched": {"What admission vouches for comes before what a commit says.", approval.BySpec, unit(managed("kustomize-controller", ownsApproval, 12)), func(_ api, tf *infra.Terraform) {
			tf.Annotations = map[string]string{v1alpha1.ApprovedByAnnotation: v1alpha1.FormatApproval("plan-1", "", "jane")}
		}, audit.Actor{Kind: "kubernetes", Name: "jane"}, ""},
		"Rule":      {"A rule applies a commit: its author let it happen.", approval.ByAuto, unit(), nil, commit, ""},
		"NoDestroy": {"So does the rule that nothing is destroyed.", approval.ByNoDestroy, unit(), nil, commit, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := fleet()
			if tc.change != nil {
				tc.change(a, tc.unit)
			}
			a["Terraform/infra/network"] = tc.unit
			who, detail, err := attribution.Finder{Reader: a}.Approver(t.Context(), attribution.Plan{Object: tc.unit, Kind: kind, ID: "plan-1", By: tc.by, Commit: commit})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, who); diff != "" || detail != tc.detail {
				t.Errorf("%s (-want +got):\n%s%q, want %q", tc.reason, diff, detail, tc.detail)
			}
		})
	}
	who, _, err := attribution.Finder{Reader: api{}}.Approver(t.Context(), attribution.Plan{Object: unit(), Kind: kind, ID: "plan-1", By: approval.ByAuto})
	if err != nil || who != itself(approval.ByAuto) {
		t.Errorf("a rule that no commit brought to bear: %v, %v", who, err)
	}
}

// book is a ledger with what reads and writes it, as a process has them.
type book struct {
	t      *testing.T
	dir    string
	api    api
	ledger *audit.Ledger
	*attribution.Suspensions
}

func open(t *testing.T, dir string, a api) *book {
	t.Helper()
	l, err := audit.Open(audit.Options{Dir: filepath.Join(dir, "audit"), KeyFile: filepath.Join(dir, "audit.key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &book{t, dir, a, l, attribution.NewSuspensions(l, attribution.Finder{Reader: a})}
}

// restart is another process with the same ledger.
func (b *book) restart() *book {
	if err := b.ledger.Close(); err != nil {
		b.t.Fatal(err)
	}
	return open(b.t, b.dir, b.api)
}

func (b *book) settle(tf *infra.Terraform) {
	b.t.Helper()
	b.api["Terraform/"+client.ObjectKeyFromObject(tf).String()] = tf
	err := b.Settle(b.t.Context(), attribution.Suspendable{
		Object: tf, Kind: kind, Suspended: tf.Spec.Suspend, Conditions: &tf.Status.Conditions, ObservedGeneration: tf.Status.ObservedGeneration,
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// entries are "ACTION by ACTOR: DETAIL" of all that was recorded about units.
func (b *book) entries() []string {
	b.t.Helper()
	var out []string
	for e, err := range b.ledger.Query(b.t.Context(), audit.Filter{Unit: "Terraform/infra/network"}) {
		if err != nil {
			b.t.Fatal(err)
		}
		s := fmt.Sprintf("%s by %s", e.Action, e.Actor)
		if e.Detail != "" {
			s += ": " + e.Detail
		}
		out = append(out, s)
	}
	return out
}

func (b *book) want(what string, want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.entries()); diff != "" {
		b.t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// TestOneEntryForEachChange: whatever becomes of the write of the status.
func TestOneEntryForEachChange(t *testing.T) {
	b := open(t, t.TempDir(), api{})
	tf := unit()
	tf.Labels = nil
	b.settle(tf)
	b.want("a unit that is not suspended")

	const suspend, resume = "suspend by kubernetes:jane as admin", "resume by kubernetes:jane as admin"
	change := func(suspended bool) {
		tf.Spec.Suspend = suspended
		tf.Generation++
		tf.Annotations = map[string]string{v1alpha1.SuspensionByAnnotation: v1alpha1.FormatSuspension(suspended, tf.Generation, "jane", "admin")}
	}
	change(true)
	b.settle(tf.DeepCopy())
	b.settle(tf.DeepCopy()) // the status was not written
	b = b.restart()
	b.settle(tf.DeepCopy()) // nor before the process ended
	b.settle(tf)
	b.want("suspended", suspend)
	if c := tf.Status.Conditions; len(c) != 1 || c[0].Type != "Suspended" || c[0].Status != "True" || c[0].Message != "Suspended by kubernetes:jane as admin" {
		t.Errorf("conditions %+v", c)
	}
	tf.Generation++
	b.settle(tf)
	b = b.restart()
	b.settle(tf)
	b.want("suspended still", suspend)

	change(false)
	b.settle(tf.DeepCopy())
	b = b.restart()
	b.settle(tf)
	b.settle(tf)
	b.want("resumed", suspend, resume)
	if len(tf.Status.Conditions) != 0 {
		t.Errorf("conditions %+v", tf.Status.Conditions)
	}

	change(true)
	b.settle(tf.DeepCopy())
	b.want("suspended again", suspend, resume, suspend)
	b = b.restart()
	tf.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
	b.settle(tf.DeepCopy())
	b.settle(tf)
	b.want("another object of that name", suspend, resume, suspend, suspend)
}

func TestWhoSuspended(t *testing.T) {
	const nothing = "nothing says who changed spec.suspend"
	by := func(generation int64, suspend bool) map[string]string {
		return map[string]string{v1alpha1.SuspensionByAnnotation: v1alpha1.FormatSuspension(suspend, generation, "", "jane")}
	}
	suspended := []metav1.Condition{{Type: "Suspended", Status: "True", ObservedGeneration: 5, LastTransitionTime: *at(20)}}
	for name, tc := range map[string]struct {
		reason      string
		suspend     bool
		annotations map[string]string
		managers    []metav1.ManagedFieldsEntry
		want        string
	}{
		"Vouched":      {"terrace suspend says who, and admission vouches for it.", true, by(7, true), []metav1.ManagedFieldsEntry{managed("terrace-cli", ownsSuspend, 12)}, "suspend by kubernetes:jane"},
		"Later":        {"Another edit came before Terrace looked.", true, by(6, true), nil, "suspend by kubernetes:jane"},
		"Old":          {"The annotation is of an earlier change, and this one is by another hand.", true, by(3, true), []metav1.ManagedFieldsEntry{managed("kubectl-edit", ownsSuspend, 12)}, `suspend by kubernetes:unknown: spec.suspend was changed by field manager "kubectl-edit", which says a program and no user`},
		"Future":       {"Nobody changes for later.", true, by(8, true), nil, "suspend by kubernetes:unknown: " + nothing},
		"OtherWay":     {"It is of the opposite change.", true, by(7, false), nil, "suspend by kubernetes:unknown: " + nothing},
		"Git":          {"The Kustomization set the field.", true, nil, []metav1.ManagedFieldsEntry{managed("kustomize-controller", ownsSuspend, 12)}, "suspend by git:Alice: spec.suspend is as Kustomization/flux-system/fleet applies it at main@sha1:b2"},
		"GitBefore":    {"It set it at a revision that is not known any more.", true, nil, []metav1.ManagedFieldsEntry{managed("kustomize-controller", ownsSuspend, 9)}, "suspend by terrace:Kustomization/flux-system/fleet: spec.suspend is as Kustomization/flux-system/fleet applies it"},
		"Resumed":      {"terrace resume says who.", false, by(6, false), nil, "resume by kubernetes:jane"},
		"ResumedOld":   {"What was said before the suspension was recorded is of another change.", false, by(5, false), nil, "resume by kubernetes:unknown: " + nothing},
		"ResumedByGit": {"A commit took the field away: what its Kustomization owns has changed since.", false, nil, []metav1.ManagedFieldsEntry{managed("kustomize-controller", ownsPath, 21)}, "resume by git:Alice: spec.suspend is as Kustomization/flux-system/fleet applies it at main@sha1:b2"},
		"ResumedByHand": {"Nothing is left of who took the field away.", false, nil, []metav1.ManagedFieldsEntry{managed("kustomize-controller", ownsPath, 12)},
			"resume by kubernetes:unknown: " + nothing},
		"Status": {"Who writes the status has not suspended it.", true, nil, []metav1.ManagedFieldsEntry{{Manager: "x", Subresource: "status", Time: at(12), FieldsV1: metav1.NewFieldsV1(ownsSuspend)}},
			"suspend by kubernetes:unknown: " + nothing},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, t.TempDir(), fleet())
			tf := unit(tc.managers...)
			tf.Annotations, tf.Spec.Suspend, tf.Status.ObservedGeneration = tc.annotations, tc.suspend, 5
			if !tc.suspend {
				tf.Status.Conditions = suspended
			}
			b.settle(tf)
			b.want(tc.reason, tc.want)
		})
	}
}
