// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package kustomization

import (
	"context"
	"fmt"
	"sync"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/auth/aws"
	"github.com/fluxcd/pkg/auth/azure"
	"github.com/fluxcd/pkg/auth/gcp"
	"github.com/fluxcd/pkg/cache"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/reference"
	"github.com/terrace-dev/terrace/internal/render/sops"
)

// cachedTokens bounds the tokens of one cache: one for each region of a cloud, at most.
const cachedTokens = 16

// allowAccounts lets the library fetch tokens for the ServiceAccounts that units name.
// Flux has a feature gate for it. Here a unit may act as an account of its namespace in
// any case.
var allowAccounts = sync.OnceFunc(auth.EnableObjectLevelWorkloadIdentity)

// tokenOptions are how tokens are fetched: kept for as long as they hold, or each
// request would fetch one. A cache is locked while one is fetched, so that no two
// clusters, and no two units, may have the same.
func (c *Controller) tokenOptions(tokens *cache.TokenCache, namespace, name string) []auth.Option {
	return []auth.Option{
		auth.WithClient(c.opts.Client),
		auth.WithCache(*tokens, cache.InvolvedObject{
			Kind: kustomizev1.KustomizationKind, Namespace: namespace, Name: name, Operation: cache.OperationReconcile,
		}),
	}
}

// givenConfig is a client that has read the ConfigMap of a spec.kubeConfig already.
type givenConfig struct {
	client.Client
	key  client.ObjectKey
	data map[string]string
}

// given reads a ConfigMap that names no account as if it named the default one. Who can
// write a ConfigMap also says which server is sent the token, and where there is a default
// account it must not be Terrace's own.
func (c *Controller) given(ref reference.Reference, content map[string][]byte) client.Client {
	data := map[string]string{}
	for k, v := range content {
		data[k] = string(v)
	}
	if account := c.opts.DefaultServiceAccount; account != "" && data[meta.KubeConfigKeyServiceAccountName] == "" {
		data[meta.KubeConfigKeyServiceAccountName] = account
	}
	return givenConfig{c.opts.Client, ref.Key(), data}
}

func (c givenConfig) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	cm, ok := o.(*corev1.ConfigMap)
	if !ok || key != c.key {
		return c.Client.Get(ctx, key, o, opts...)
	}
	cm.Namespace, cm.Name, cm.Data = key.Namespace, key.Name, c.data
	return nil
}

// cloudIdentity is the account that a unit decrypts as where a cloud keeps the key, nil
// if it names none. The account's annotations say who it is there; they are Flux's.
func (c *Controller) cloudIdentity(ctx context.Context, cy *cycle) (*sops.Identity, error) {
	ks, m := cy.ks, cy.mem
	name := ks.Spec.Decryption.ServiceAccountName
	if name == "" {
		return nil, nil
	}
	if m.tokens == nil {
		var err error
		if m.tokens, err = cache.NewTokenCache(cachedTokens); err != nil {
			return nil, fmt.Errorf("keep tokens: %w", err)
		}
	}
	opts := append(c.tokenOptions(m.tokens, ks.Namespace, ks.Name), auth.WithServiceAccountNamespace(ks.Namespace), auth.WithServiceAccountName(name))
	return &sops.Identity{
		Name: fmt.Sprintf("ServiceAccount %s/%s", ks.Namespace, name),
		AWS: func(region string) awssdk.CredentialsProvider {
			return aws.NewCredentialsProvider(ctx, append(opts[:len(opts):len(opts)], auth.WithSTSRegion(region))...)
		},
		GCP:   gcp.NewTokenSource(ctx, opts...),
		Azure: azure.NewTokenCredential(ctx, opts...),
	}, nil
}
