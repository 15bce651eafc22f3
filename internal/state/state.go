// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package state knows how a Terraform state is kept: the names, labels, payload and
// lock of OpenTofu's and Terraform's "kubernetes" backend (read in OpenTofu 1.12.6
// and watched in Terraform 1.11.4). Package gate below it is the way by which a
// run reaches its state. Nothing here talks to a cluster.
package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultWorkspace is the workspace that every backend has. init reads its state, and
// creates an empty one, before another workspace can be selected.
const DefaultWorkspace = "default"

// What the backend writes on its Secrets and Leases.
const (
	StateLabel     = "tfstate" // "true"; also the key of the payload in a Secret
	SuffixLabel    = "tfstateSecretSuffix"
	WorkspaceLabel = "tfstateWorkspace"
	LockAnnotation = "app.terraform.io/lock-info"
)

// Scope names one state.
type Scope struct {
	Namespace string // of the Secrets and the Lease
	Suffix    string // backend attribute secret_suffix
	Workspace string
}

// Validate says what is wrong with the names of the scope's objects, before the
// backend does in its own words.
func (s Scope) Validate() error {
	if s.Namespace == "" || s.Suffix == "" || s.Workspace == "" {
		return fmt.Errorf("name the state: namespace %q, suffix %q and workspace %q must not be empty", s.Namespace, s.Suffix, s.Workspace)
	}
	if problems := validation.IsDNS1123Label(s.Namespace); len(problems) > 0 {
		return fmt.Errorf("name the state: namespace %q: %s", s.Namespace, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(s.LeaseName()); len(problems) > 0 {
		return fmt.Errorf("name the state: suffix %q with workspace %q: %s", s.Suffix, s.Workspace, problems[0])
	}
	// They are label values as well, which are shorter than names.
	for _, v := range []string{s.Suffix, s.Workspace} {
		if problems := validation.IsValidLabelValue(v); len(problems) > 0 {
			return fmt.Errorf("name the state: %q: %s", v, problems[0])
		}
	}
	return nil
}

// SecretName is the name of the Secret with the payload, or with its first part.
func (s Scope) SecretName() string { return "tfstate-" + s.Workspace + "-" + s.Suffix }

// LeaseName is the name of the Lease that is the lock.
func (s Scope) LeaseName() string { return "lock-" + s.SecretName() }

// Part returns which part of the payload the Secret of that name holds: Terraform
// cuts payloads that are too large for one Secret, OpenTofu does not. It returns
// false for a name that is not of this state.
func (s Scope) Part(secret string) (int, bool) {
	rest, ok := strings.CutPrefix(secret, s.SecretName())
	if !ok || rest == "" {
		return 0, ok
	}
	digits, ok := strings.CutPrefix(rest, "-part-")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || strconv.Itoa(n) != digits {
		return 0, false
	}
	return n, true
}

// Owns reports whether labels are those of an object of this state. Names do not
// tell: tfstate-default-a-b is the workspace "default" of "a-b" and the workspace
// "default-a" of "b".
func (s Scope) Owns(labels map[string]string) bool {
	return labels[SuffixLabel] == s.Suffix && labels[WorkspaceLabel] == s.Workspace
}

// Workspaces returns the scope, and that of the default workspace, which init needs
// as well, if it is another.
func (s Scope) Workspaces() []Scope {
	def := Scope{Namespace: s.Namespace, Suffix: s.Suffix, Workspace: DefaultWorkspace}
	return slices.Compact([]Scope{s, def})
}
