// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// role is what an object is to Terrace.
type role string

const (
	unit   role = "unit"
	source role = "source"
	record role = "run"
)

// kind is one kind of object that the command line knows.
type kind struct {
	Name     string // as in manifests
	Resource schema.GroupVersionResource
	Aliases  []string // lower case, without Name and the plural
	Role     role
}

// kinds lists all of them in the order in which they are printed. A kind that
// the cluster does not serve is left out of every answer.
var kinds = []kind{
	{"Terraform", infra.GroupVersion.WithResource("terraforms"), []string{"tf"}, unit},
	{"Kustomization", schema.GroupVersionResource{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Resource: "kustomizations"}, []string{"ks"}, unit},
	{"HelmRelease", schema.GroupVersionResource{Group: "helm.toolkit.fluxcd.io", Version: "v2", Resource: "helmreleases"}, []string{"hr"}, unit},
	{"GitRepository", schema.GroupVersionResource{Group: "source.toolkit.fluxcd.io", Version: "v1", Resource: "gitrepositories"}, []string{"gitrepo", "git"}, source},
	{"OCIRepository", schema.GroupVersionResource{Group: "source.toolkit.fluxcd.io", Version: "v1", Resource: "ocirepositories"}, []string{"ocirepo", "oci"}, source},
	{"Bucket", schema.GroupVersionResource{Group: "source.toolkit.fluxcd.io", Version: "v1", Resource: "buckets"}, nil, source},
	{"ExternalArtifact", schema.GroupVersionResource{Group: "source.toolkit.fluxcd.io", Version: "v1", Resource: "externalartifacts"}, []string{"ea"}, source},
}

// terraform is the kind of which the verbs about runs and locks speak, kustomization the one
// of which those about objects do, and gitRepository the source that Terrace fetches itself.
var terraform, kustomization, gitRepository = kinds[0], kinds[1], kinds[3]

// recorded are the kinds of which Terrace records who suspends and resumes them.
var recorded = []kind{terraform, kustomization, gitRepository}

// runs is the kind of the records of runs, which no verb but those that look takes.
var runs = kind{v1alpha1.RunKind, v1alpha1.GroupVersion.WithResource("runs"), nil, record}

// planned are the kinds whose plans can be seen and approved.
var planned = []kind{terraform, kustomization}

func ofRole(r role) []kind {
	var out []kind
	for _, k := range kinds {
		if k.Role == r {
			out = append(out, k)
		}
	}
	return out
}

// is tells whether word names k: its name, plural or an alias, in any case,
// with or without the group.
func (k kind) is(word string) bool {
	word, group, qualified := strings.Cut(strings.ToLower(word), ".")
	if qualified && group != k.Resource.Group {
		return false
	}
	return word == strings.ToLower(k.Name) || word == k.Resource.Resource || slices.Contains(k.Aliases, word)
}

// apiName is how kubectl names the kind: "terraform.infra.contrib.fluxcd.io".
func (k kind) apiName() string {
	return strings.ToLower(k.Name) + "." + k.Resource.Group
}

func kindOf(word string) (kind, bool) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.is(word) })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// kindNames lists the kinds of the roles for a message.
func kindNames(of []kind) string {
	var names []string
	for _, k := range of {
		names = append(names, strings.ToLower(k.Name))
	}
	return strings.Join(names, ", ")
}

// ref is the object that a user named. Kinds are the ones that it may be of:
// one when the user said so, else every kind that the verb accepts.
type ref struct {
	Kinds []kind
	Name  string
}

// parseRef reads NAME, KIND/NAME or KIND.GROUP/NAME for a verb that accepts the given kinds.
func parseRef(word string, accepted []kind) (ref, error) {
	kindWord, name, qualified := strings.Cut(word, "/")
	if !qualified {
		kindWord, name = "", word
	}
	if name == "" || strings.Contains(name, "/") {
		return ref{}, fmt.Errorf("%q is not NAME or KIND/NAME", word)
	}
	if !qualified {
		return ref{Kinds: accepted, Name: name}, nil
	}
	for _, k := range accepted {
		if k.is(kindWord) {
			return ref{Kinds: []kind{k}, Name: name}, nil
		}
	}
	return ref{}, fmt.Errorf("%q: this verb takes %s", kindWord, kindNames(accepted))
}
