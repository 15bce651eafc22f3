// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
)

// inputFormat is part of every input digest; raising it makes every unit plan once.
const inputFormat = 1

// inputDigest names all that a plan reads. Equal digests mean that a new plan
// could differ from the last one only by drift.
func (c *Controller) inputDigest(tf *infra.Terraform, tree string, references map[string]string) string {
	spec := plannedSpec(tf.Spec)
	in := struct {
		Format     int
		Tree       string
		Spec       infra.TerraformSpec
		References map[string]string
		Tool       string
		CLIConfig  string
	}{inputFormat, tree, spec, references, c.opts.Tool.Product + " " + c.opts.Tool.Version, c.cliConfigDigest}
	// Values in the spec can be secret too (cloud.token), so the digest is keyed.
	h := hmac.New(sha256.New, c.key)
	if err := json.NewEncoder(h).Encode(in); err != nil {
		// Every part was decoded from JSON; a part that cannot be encoded again is a
		// defect here, and an empty digest makes the unit plan.
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

// plannedSpec returns the part of a spec that a plan depends on. A change of the
// rest (an approval, an interval, where outputs go) does not make a plan stale.
func plannedSpec(s infra.TerraformSpec) infra.TerraformSpec {
	p := infra.TerraformSpec{
		BackendConfig:         s.BackendConfig,
		BackendConfigsFrom:    s.BackendConfigsFrom,
		Cloud:                 s.Cloud,
		Workspace:             s.Workspace,
		Vars:                  s.Vars,
		VarsFrom:              s.VarsFrom,
		Values:                s.Values,
		TFVarsFiles:           s.TFVarsFiles,
		FileMappings:          s.FileMappings,
		Path:                  s.Path,
		ReadInputsFromSecrets: s.ReadInputsFromSecrets,
		CliConfigSecretRef:    s.CliConfigSecretRef,
		Destroy:               s.Destroy,
		Targets:               s.Targets,
	}
	p.RunnerPodTemplate.Spec.Env = s.RunnerPodTemplate.Spec.Env
	p.RunnerPodTemplate.Spec.EnvFrom = s.RunnerPodTemplate.Spec.EnvFrom
	return p
}
