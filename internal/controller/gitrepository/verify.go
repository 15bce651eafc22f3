// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	fluxgit "github.com/fluxcd/pkg/git"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/terrace-dev/terrace/internal/status"
)

// Suffixes of the keys of a verification Secret.
const (
	pgpSuffix = ".asc"
	sshSuffix = ".sshpub"
)

// Reasons of the SourceVerified condition, as Flux gives them.
const (
	verificationError       = "VerificationError"
	invalidVerificationMode = "InvalidVerificationMode"
	invalidGitObject        = "InvalidGitObject"
	invalidTagSignature     = "InvalidTagSignature"
	invalidCommitSignature  = "InvalidCommitSignature"
)

// verify checks the signatures that spec.verify asks for. Nothing that fails it
// becomes an artifact.
func (c *Controller) verify(ctx context.Context, cy *cycle) (status.Result, error) {
	const condition = sourcev1.SourceVerifiedCondition
	v := cy.obj.Spec.Verification
	if v == nil || v.Mode == "" {
		cy.obj.Status.SourceVerificationMode = nil
		conditions.Delete(cy.obj, condition)
		return status.Next, nil
	}
	if cy.checkout.Unchanged {
		return status.Next, nil // it was verified when it was stored
	}
	secret, err := c.secret(ctx, cy.obj, v.SecretRef.Name)
	if err != nil {
		return status.Next, cy.fail(condition, verificationError, fmt.Errorf("public keys: %w", err))
	}
	keys := keysOf(secret)
	commit := &cy.checkout.Commit
	var verified []string
	if v.VerifyTag() {
		tag := commit.ReferencingTag
		switch {
		case tag == nil:
			return cy.stall(condition, invalidVerificationMode,
				"cannot verify tag object's signature if a tag reference is not specified"), nil
		case !fluxgit.IsSignedTag(*tag):
			// The tag can be signed later, so this is no dead end.
			return status.Next, cy.fail(condition, invalidGitObject,
				fmt.Errorf("cannot verify signature of tag '%s' since it is not signed", tag))
		}
		signer, err := keys.verify(tag)
		if err != nil {
			return status.Next, cy.fail(condition, invalidTagSignature,
				fmt.Errorf("signature verification of tag '%s' failed: %w", tag, err))
		}
		verified = append(verified, fmt.Sprintf("tag '%s' with key '%s'", tag, signer))
	}
	if v.VerifyHEAD() {
		signer, err := keys.verify(commit)
		if err != nil {
			return status.Next, cy.fail(condition, invalidCommitSignature,
				fmt.Errorf("signature verification of commit '%s' failed: %w", commit.Hash, err))
		}
		verified = append(verified, fmt.Sprintf("commit '%s' with key '%s'", commit.Hash, signer))
	}
	mode := v.GetMode()
	cy.obj.Status.SourceVerificationMode = &mode
	conditions.MarkTrue(cy.obj, condition, meta.SucceededReason, "verified signature of\n\t- %s", strings.Join(verified, "\n\t- "))
	return status.Next, nil
}

// publicKeys are whom an object trusts.
type publicKeys struct{ pgp, ssh []string }

// keysOf sorts a Secret's keys; what has neither suffix is taken as PGP, as it
// was before there were suffixes.
func keysOf(s *corev1.Secret) publicKeys {
	var k publicKeys
	for name, v := range s.Data {
		if strings.HasSuffix(name, sshSuffix) {
			k.ssh = append(k.ssh, string(v))
		} else {
			k.pgp = append(k.pgp, string(v))
		}
	}
	return k
}

// signed is a commit or a tag.
type signed interface {
	SignatureType() string
	VerifyPGP(keyRings ...string) (string, error)
	VerifySSH(authorizedKeys ...string) (string, error)
}

// verify returns who signed o: the id of a PGP key or the fingerprint of an SSH key.
func (k publicKeys) verify(o signed) (string, error) {
	switch t := o.SignatureType(); t {
	case "openpgp":
		if len(k.pgp) == 0 {
			return "", fmt.Errorf("PGP signature detected but no PGP public keys found in secret (keys with %s suffix)", pgpSuffix)
		}
		return o.VerifyPGP(k.pgp...)
	case "ssh":
		if len(k.ssh) == 0 {
			return "", fmt.Errorf("SSH signature detected but no SSH public keys found in secret (keys with %s suffix)", sshSuffix)
		}
		return o.VerifySSH(k.ssh...)
	default:
		return "", fmt.Errorf("unsupported signature type: %s", t)
	}
}
