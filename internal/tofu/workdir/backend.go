// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// Backend is what goes into BackendFile: one of its forms. The zero value is none.
type Backend struct {
	// Custom is spec.backendConfig.customConfiguration: the body of a terraform
	// block.
	Custom     string
	Kubernetes *KubernetesBackend
	Cloud      *CloudBackend
	// HTTP is the state at an address that the environment names (TF_HTTP_ADDRESS and
	// its kin), which may change from run to run without an init.
	HTTP bool
}

// KubernetesBackend is the state in Secrets, tfstate-WORKSPACE-SUFFIX.
type KubernetesBackend struct {
	SecretSuffix, Namespace string
	// InCluster takes the account of the pod; else ConfigPath, and when that is
	// empty too the environment (KUBE_CONFIG_PATH), which may then change from
	// run to run without an init.
	InCluster  bool
	ConfigPath string
	Labels     map[string]string
}

// CloudBackend is spec.cloud.
type CloudBackend struct {
	Organization, Hostname, Token string
	Workspace                     string
	Tags                          []string
}

// HCL is the content of BackendFile; nil for none. The error says what is wrong
// with Custom.
func (b Backend) HCL() ([]byte, error) {
	switch {
	case b.Custom != "":
		return customBackend(b.Custom)
	case b.Cloud != nil:
		return b.Cloud.hcl(), nil
	case b.Kubernetes != nil:
		return b.Kubernetes.hcl(), nil
	case b.HTTP:
		f := hclwrite.NewEmptyFile()
		f.Body().AppendNewBlock("terraform", nil).Body().AppendNewBlock("backend", []string{"http"})
		return f.Bytes(), nil
	}
	return nil, nil
}

func (k *KubernetesBackend) hcl() []byte {
	f := hclwrite.NewEmptyFile()
	body := f.Body().AppendNewBlock("terraform", nil).Body().AppendNewBlock("backend", []string{"kubernetes"}).Body()
	body.SetAttributeValue("secret_suffix", cty.StringVal(k.SecretSuffix))
	body.SetAttributeValue("namespace", cty.StringVal(k.Namespace))
	body.SetAttributeValue("in_cluster_config", cty.BoolVal(k.InCluster))
	if k.ConfigPath != "" {
		body.SetAttributeValue("config_path", cty.StringVal(k.ConfigPath))
	}
	if len(k.Labels) > 0 {
		labels := map[string]cty.Value{}
		for name, v := range k.Labels {
			labels[name] = cty.StringVal(v)
		}
		body.SetAttributeValue("labels", cty.MapVal(labels))
	}
	return f.Bytes()
}

func (c *CloudBackend) hcl() []byte {
	f := hclwrite.NewEmptyFile()
	body := f.Body().AppendNewBlock("terraform", nil).Body().AppendNewBlock("cloud", nil).Body()
	body.SetAttributeValue("organization", cty.StringVal(c.Organization))
	if c.Hostname != "" {
		body.SetAttributeValue("hostname", cty.StringVal(c.Hostname))
	}
	if c.Token != "" {
		body.SetAttributeValue("token", cty.StringVal(c.Token))
	}
	w := body.AppendNewBlock("workspaces", nil).Body()
	if c.Workspace != "" {
		w.SetAttributeValue("name", cty.StringVal(c.Workspace))
	}
	if len(c.Tags) > 0 {
		var tags []cty.Value
		for _, t := range c.Tags {
			tags = append(tags, cty.StringVal(t))
		}
		w.SetAttributeValue("tags", cty.ListVal(tags))
	}
	return f.Bytes()
}

// customBackend puts the text into a terraform block, and checks that it stays
// in there.
func customBackend(text string) ([]byte, error) {
	src := []byte("terraform {\n" + text + "\n}\n")
	if !shallow(src, false) {
		return nil, fmt.Errorf("read customConfiguration: it is too long or too deep")
	}
	f, diags := hclsyntax.ParseConfig(src, "customConfiguration", hcl.Pos{Line: 0, Column: 1})
	if diags.HasErrors() {
		d := diags.Errs()[0]
		return nil, fmt.Errorf("read customConfiguration: %w", d)
	}
	body := f.Body.(*hclsyntax.Body)
	if len(body.Blocks) != 1 || len(body.Attributes) != 0 || body.Blocks[0].Type != "terraform" {
		return nil, fmt.Errorf("read customConfiguration: it is more than the body of a terraform block")
	}
	return src, nil
}

// BackendConfig is the content of BackendConfigFile from the data of
// spec.backendConfigsFrom: later wins, every value a string, as on a command
// line. Its path goes to tofu.InitOptions.BackendConfig; so no secret is seen
// among the arguments of a process. It is nil without any.
func BackendConfig(from []map[string][]byte) ([]byte, error) {
	all := map[string]string{}
	for _, data := range from {
		for key, value := range data {
			if !hclsyntax.ValidIdentifier(key) {
				return nil, fmt.Errorf("read backendConfigsFrom: %q is not the name of a setting", key)
			}
			all[key] = string(value)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	f := hclwrite.NewEmptyFile()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		f.Body().SetAttributeValue(key, cty.StringVal(all[key]))
	}
	return bytes.TrimLeft(f.Bytes(), "\n"), nil
}
