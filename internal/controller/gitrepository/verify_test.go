// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/fluxcd/pkg/git/signature"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	gossh "golang.org/x/crypto/ssh"
)

// pgpKey makes a key and its public form as a Secret holds it.
func pgpKey(t *testing.T) (*openpgp.Entity, string) {
	t.Helper()
	e, err := openpgp.NewEntity("A", "", "a@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	var public bytes.Buffer
	w, err := armor.Encode(&public, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Serialize(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return e, public.String()
}

func sshKey(t *testing.T) (signature.Signer, string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.NewSSHSigner(pem.EncodeToMemory(block), nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := gossh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return signer, string(gossh.MarshalAuthorizedKey(key))
}

func TestSignatures(t *testing.T) {
	pgp, pgpPublic := pgpKey(t)
	_, otherPGP := pgpKey(t)
	ssh, sshPublic := sshKey(t)
	_, otherSSH := sshKey(t)

	b := newBench(t,
		secret("pgp", map[string]string{"a.asc": pgpPublic}),
		secret("old", map[string]string{"author": pgpPublic}),
		secret("ssh", map[string]string{"a.sshpub": sshPublic}),
		secret("both", map[string]string{"a.asc": pgpPublic, "a.sshpub": sshPublic}),
		secret("other", map[string]string{"a.asc": otherPGP, "a.sshpub": otherSSH}),
	)
	r := b.repo("infra.git")
	byPGP := r.commit("by pgp", map[string]string{"f": "1"}, func(o *gogit.CommitOptions) { o.SignKey = pgp })
	r.ref("refs/heads/pgp", byPGP)
	bySSH := r.commit("by ssh", map[string]string{"f": "2"}, func(o *gogit.CommitOptions) { o.Signer = ssh })
	r.ref("refs/heads/ssh", bySSH)
	if _, err := r.repo.CreateTag("signed", plumbing.NewHash(byPGP), &gogit.CreateTagOptions{Tagger: r.author(), Message: "m", SignKey: pgp}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.repo.CreateTag("annotated", plumbing.NewHash(byPGP), &gogit.CreateTagOptions{Tagger: r.author(), Message: "m"}); err != nil {
		t.Fatal(err)
	}
	unsigned := r.commit("unsigned", map[string]string{"f": "3"})
	if _, err := r.repo.CreateTag("on-unsigned", plumbing.NewHash(unsigned), &gogit.CreateTagOptions{Tagger: r.author(), Message: "m", SignKey: pgp}); err != nil {
		t.Fatal(err)
	}
	b.create(gitRepository(r.url, func(g *sourcev1.GitRepository) { g.Spec.Reference.Branch = "main" }))
	before := b.ready().Status.Artifact.Revision

	branch := func(name string) sourcev1.GitRepositoryRef { return sourcev1.GitRepositoryRef{Branch: name} }
	tag := func(name string) sourcev1.GitRepositoryRef { return sourcev1.GitRepositoryRef{Tag: name} }
	for name, c := range map[string]struct {
		reason string
		ref    sourcev1.GitRepositoryRef
		mode   sourcev1.GitVerificationMode
		secret string
		want   string // reason of SourceVerified
		text   string
	}{
		"pgp":                  {"the usual case", branch("pgp"), "HEAD", "pgp", "Succeeded", "commit '" + byPGP + "' with key '"},
		"pgp, old mode":        {"head is HEAD", branch("pgp"), "head", "pgp", "Succeeded", "commit '" + byPGP},
		"pgp, no suffix":       {"as before there were suffixes", branch("pgp"), "HEAD", "old", "Succeeded", "commit '" + byPGP},
		"ssh":                  {"shows the fingerprint", branch("ssh"), "HEAD", "ssh", "Succeeded", "with key 'SHA256:"},
		"either":               {"the signature decides", branch("ssh"), "HEAD", "both", "Succeeded", "with key 'SHA256:"},
		"other pgp":            {"a stranger's key", branch("pgp"), "HEAD", "other", "InvalidCommitSignature", "signature verification of commit '" + byPGP + "' failed"},
		"other ssh":            {"a stranger's key", branch("ssh"), "HEAD", "other", "InvalidCommitSignature", "signature verification of commit '" + bySSH + "' failed"},
		"no ssh key":           {"there is none of that kind", branch("ssh"), "HEAD", "pgp", "InvalidCommitSignature", "no SSH public keys found in secret"},
		"no pgp key":           {"there is none of that kind", branch("pgp"), "HEAD", "ssh", "InvalidCommitSignature", "no PGP public keys found in secret"},
		"tag":                  {"the tag alone", tag("on-unsigned"), "Tag", "pgp", "Succeeded", "tag 'on-unsigned@"},
		"tag and head":         {"both", tag("signed"), "TagAndHEAD", "pgp", "Succeeded", "\n\t- commit '" + byPGP},
		"tag, head not":        {"both must be", tag("on-unsigned"), "TagAndHEAD", "pgp", "InvalidCommitSignature", "unsupported signature type: empty"},
		"annotated, unsigned":  {"it can still be signed", tag("annotated"), "Tag", "pgp", "InvalidGitObject", "since it is not signed"},
		"tag of a stranger":    {"a stranger's key", tag("signed"), "Tag", "other", "InvalidTagSignature", "signature verification of tag 'signed@"},
		"tag mode on a branch": {"there is no tag to verify", branch("pgp"), "Tag", "pgp", "InvalidVerificationMode", "tag reference is not specified"},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.edit(func(g *sourcev1.GitRepository) {
				g.Spec.Reference = &c.ref
				g.Spec.Verification = &sourcev1.GitRepositoryVerification{Mode: c.mode}
				g.Spec.Verification.SecretRef.Name = c.secret
			})
			g, _, _ := b.run()
			got := conditions.Get(g, sourcev1.SourceVerifiedCondition)
			if got == nil || got.Reason != c.want || !strings.Contains(got.Message, c.text) {
				t.Fatalf("SourceVerified = %+v; want %s with %q: %s", got, c.want, c.text, c.reason)
			}
			good := c.want == "Succeeded"
			if conditions.IsReady(g) != good || g.Status.Artifact.HasRevision(before) == good {
				t.Errorf("ready %v with %s: %v", conditions.IsReady(g), g.Status.Artifact.Revision, describe(g))
			}
			if good {
				if b.ready(); b.requests.Load() != 1 || b.writes.Load() != 0 {
					t.Errorf("unchanged cost %d requests, %d writes", b.requests.Load(), b.writes.Load())
				}
			}
			b.edit(func(g *sourcev1.GitRepository) {
				g.Spec.Reference = &sourcev1.GitRepositoryRef{Branch: "main"}
				g.Spec.Verification = nil
			})
			if g := b.ready(); conditions.Has(g, sourcev1.SourceVerifiedCondition) || g.Status.SourceVerificationMode != nil {
				t.Errorf("without verification: %v", describe(g))
			}
		})
	}
	b.t = t

	// Who asks for more than was verified gets it, for the same commit.
	b.edit(func(g *sourcev1.GitRepository) {
		g.Spec.Reference = &sourcev1.GitRepositoryRef{Tag: "on-unsigned"}
		verifyMode("Tag", "pgp")(g)
	})
	b.ready()
	b.edit(verifyMode("TagAndHEAD", "pgp"))
	if g, _, err := b.run(); err == nil || conditions.GetReason(g, sourcev1.SourceVerifiedCondition) != "InvalidCommitSignature" {
		t.Errorf("a stricter mode: %v, %v", err, describe(g))
	}
}
