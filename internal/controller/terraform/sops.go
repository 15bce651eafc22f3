// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/render/sops"
	"github.com/terrace-dev/terrace/internal/status"
	"github.com/terrace-dev/terrace/internal/tofu/workdir"
)

// sopsSuffixes end the names of the files that are decrypted wherever the unit reads them.
// Variable files are decrypted whatever their names.
var sopsSuffixes = []string{".sops.yaml", ".sops.yml", ".sops.json", ".sops.env", ".sops.tfvars.json"}

// encryptedFiles are the SOPS files among what a unit reads, by their names in the
// artifact, sorted. Of an artifact that is read as a whole only the unit's own part
// counts: the rest are other units' secrets, for other keys.
func encryptedFiles(dir string, reach *workdir.Reach) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var out []string
	for _, name := range reach.Files {
		if !slices.Contains(reach.VarFiles, name) && (!isSOPSName(name) || reach.Whole && !below(reach.Path, name)) {
			continue
		}
		info, err := root.Stat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue // a link that leads nowhere stays one
		}
		content, err := root.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if sops.IsEncryptedFile(name, content) {
			out = append(out, name)
		}
	}
	return out, nil
}

func isSOPSName(name string) bool {
	return slices.ContainsFunc(sopsSuffixes, func(s string) bool { return strings.HasSuffix(path.Base(name), s) })
}

func below(dir, name string) bool {
	return dir == "." || strings.HasPrefix(name, dir+"/")
}

// globalAge names the Secret whose keys decrypt for every unit, if there is one.
func (c *Controller) globalAge() (reference, bool) {
	namespace, name, ok := strings.Cut(c.opts.SOPSAgeSecret, "/")
	return reference{Kind: kindSecret, Namespace: namespace, Name: name}, ok
}

// mayDecrypt tells that something of the unit may be a SOPS document.
func mayDecrypt(cy *cycle) bool {
	return len(cy.reach.encrypted) > 0 || len(cy.tf.Spec.FileMappings) > 0
}

// decryptsItself tells that the module reads SOPS files by a provider, which wants them
// as they are.
func decryptsItself(reach *workdir.Reach) bool {
	return slices.ContainsFunc(reach.Required(), func(p workdir.Provider) bool { return path.Base(p.Source) == "sops" })
}

// globalDigest is the keyed digest of the keys for every unit, as far as they count for
// this one. They can be in a namespace that is not watched, so they are read.
func (c *Controller) globalDigest(ctx context.Context, cy *cycle) (string, error) {
	ref, ok := c.globalAge()
	if !ok || !mayDecrypt(cy) {
		return "", nil
	}
	content, err := c.fetchOnce(ctx, cy, ref)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, c.key)
	if err := json.NewEncoder(h).Encode(content); err != nil {
		return "", fmt.Errorf("digest %s: %w", ref, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// decrypt puts the content of SOPS files into the inputs: of files of the artifact, which
// themselves stay as they are, and of file mappings. What came out is masked everywhere.
func (c *Controller) decrypt(ctx context.Context, cy *cycle, in *inputs) error {
	if !mayDecrypt(cy) {
		return nil
	}
	keys, err := c.decryptionKeys(ctx, cy)
	if err != nil {
		return err
	}
	_, named := cy.tf.Annotations[infra.DecryptionAnnotation]
	d := &sops.Recorder{Decryptor: sops.New(keys, sops.WithSetting(decryptionField))}
	for _, name := range cy.reach.encrypted {
		// A variable file has no other reader than the tool, which would take the encrypted
		// values for the true ones.
		if !slices.Contains(cy.reach.VarFiles, name) && (keys == nil || !named && decryptsItself(cy.reach.Reach)) {
			continue
		}
		content, err := os.ReadFile(path.Join(cy.dir, name))
		if err != nil {
			return fmt.Errorf("read %s of the artifact: %w", name, err)
		}
		plain, err := d.File(ctx, name, content)
		if err != nil {
			return undecrypted(keys, err)
		}
		if in.Decrypted == nil {
			in.Decrypted = map[string][]byte{}
		}
		in.Decrypted[name] = plain
	}
	for i, m := range in.Files {
		if keys == nil || !sops.IsEncryptedFile(m.Path, m.Content) {
			continue // for a program of the module's own
		}
		if in.Files[i].Content, err = d.File(ctx, m.Path, m.Content); err != nil {
			return undecrypted(keys, fmt.Errorf("fileMappings[%d]: %w", i, err))
		}
	}
	for _, v := range d.Secrets() {
		in.Secrets = append(in.Secrets, []byte(v))
	}
	return nil
}

// undecrypted is the error of a file that cannot be decrypted. A service for keys may be
// away for a moment, so those are asked again; nothing else helps itself.
func undecrypted(keys *sops.Keys, err error) error {
	if keys.Remote() && !errors.Is(err, sops.ErrIntegrity) {
		return err
	}
	return status.Fail(infra.ReasonNewFailed, err)
}

// decryptionKeys are the keys of a unit, whose Secrets load has fetched: those of the Secret that its annotation names, and
// those for every unit. nil when there are none, or the annotation is empty.
func (c *Controller) decryptionKeys(ctx context.Context, cy *cycle) (*sops.Keys, error) {
	tf := cy.tf
	name, named := tf.Annotations[infra.DecryptionAnnotation]
	if named && name == "" {
		return nil, nil
	}
	var keys *sops.Keys
	if named {
		ref := decryptionSecret(tf)
		var err error
		if keys, err = sops.NewKeys(ref.Key().String(), cy.fetched[ref]); err != nil {
			return nil, status.Fail(infra.ReasonNewFailed, err)
		}
	}
	ref, ok := c.globalAge()
	if !ok {
		return keys, nil
	}
	content, err := c.fetchOnce(ctx, cy, ref)
	if err != nil {
		return nil, err
	}
	if content == nil && keys != nil {
		return keys, nil
	}
	if content == nil {
		return nil, status.Failf(infra.ReasonNewFailed, "read %s for --sops-age-secret: it does not exist", ref)
	}
	if keys, err = keys.WithGlobalAge(ref.Key().String(), content); err != nil {
		return nil, status.Fail(infra.ReasonNewFailed, err)
	}
	return keys, nil
}

// decryptionField is the place that names a unit's keys.
const decryptionField = "annotation " + infra.DecryptionAnnotation

// decryptionSecret is the Secret that a unit's annotation names; its name is empty for none.
func decryptionSecret(tf *infra.Terraform) reference {
	return reference{Kind: kindSecret, Namespace: tf.Namespace, Name: tf.Annotations[infra.DecryptionAnnotation]}
}
