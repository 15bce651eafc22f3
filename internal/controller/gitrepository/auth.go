// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gitrepository

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/auth/aws"
	"github.com/fluxcd/pkg/auth/azure"
	"github.com/fluxcd/pkg/auth/githubapp"
	"github.com/fluxcd/pkg/cache"
	fluxgit "github.com/fluxcd/pkg/git"
	fluxsecrets "github.com/fluxcd/pkg/runtime/secrets"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	gossh "golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"

	"github.com/terrace-dev/terrace/internal/source/git"
	"github.com/terrace-dev/terrace/internal/status"
)

func timeout(obj *sourcev1.GitRepository) time.Duration {
	if t := obj.Spec.Timeout; t != nil && t.Duration > 0 {
		return t.Duration
	}
	return defaultTimeout
}

// authenticate adds to request what the object's Secrets and provider give.
func (c *Controller) authenticate(ctx context.Context, cy *cycle, u url.URL, request *git.Request) (status.Result, error) {
	failed := func(reason string, err error) (status.Result, error) {
		return status.Next, cy.fail(sourcev1.FetchFailedCondition, reason, err)
	}
	if ref := cy.obj.Spec.ProxySecretRef; ref != nil {
		s, err := c.secret(ctx, cy.obj, ref.Name)
		if err == nil {
			request.Proxy, err = fluxsecrets.ProxyURLFromSecret(ctx, s)
		}
		if err != nil {
			return failed(sourcev1.AuthenticationFailedReason, fmt.Errorf("configure proxy: %w", err))
		}
	}
	secret := &corev1.Secret{}
	if ref := cy.obj.Spec.SecretRef; ref != nil {
		var err error
		if secret, err = c.secret(ctx, cy.obj, ref.Name); err != nil {
			return failed(sourcev1.AuthenticationFailedReason, err)
		}
	}
	options, err := fluxgit.NewAuthOptions(u, secret.Data)
	if err != nil {
		return failed(sourcev1.AuthenticationFailedReason, fmt.Errorf("configure authentication%s: %w", from(secret), err))
	}
	if needsPassphrase(options) {
		return failed(sourcev1.AuthenticationFailedReason,
			fmt.Errorf("configure authentication%s: the SSH identity is encrypted and there is no 'password'", from(secret)))
	}
	request.Auth = options
	return c.provide(ctx, cy, u, secret, request)
}

func from(s *corev1.Secret) string {
	if s.Name == "" {
		return ""
	}
	return fmt.Sprintf(" from secret '%s/%s'", s.Namespace, s.Name)
}

func needsPassphrase(o *fluxgit.AuthOptions) bool {
	if o.Transport != fluxgit.SSH || len(o.Identity) == 0 || o.Password != "" {
		return false
	}
	_, err := gossh.ParseRawPrivateKey(o.Identity)
	var missing *gossh.PassphraseMissingError
	return errors.As(err, &missing)
}

// provide asks spec.provider for credentials.
func (c *Controller) provide(ctx context.Context, cy *cycle, u url.URL, secret *corev1.Secret, request *git.Request) (status.Result, error) {
	var creds *auth.GitCredentials
	var err error
	switch provider := cy.obj.Spec.Provider; provider {
	case sourcev1.GitProviderAzure, sourcev1.GitProviderAWS:
		account := cy.obj.Spec.ServiceAccountName
		if account == "" {
			account = c.o.DefaultServiceAccount
		}
		if account != "" && !auth.IsObjectLevelWorkloadIdentityEnabled() {
			return cy.stall(sourcev1.FetchFailedCondition, meta.FeatureGateDisabledReason, fmt.Sprintf(
				"service account '%s' cannot be used for provider '%s': the feature gate %s is not enabled",
				account, provider, auth.FeatureGateObjectLevelWorkloadIdentity)), nil
		}
		creds, err = c.cloudCredentials(ctx, cy.obj, u, account, request.Proxy)
	case sourcev1.GitProviderGitHub:
		if secret.Name == "" {
			return cy.stall(sourcev1.FetchFailedCondition, sourcev1.InvalidProviderConfigurationReason,
				"secretRef with github app data must be specified when provider is set to github"), nil
		}
		creds, err = c.githubCredentials(ctx, cy.obj, secret, request.Proxy)
	default:
		if len(secret.Data[githubapp.KeyAppID]) > 0 {
			return status.Next, cy.fail(sourcev1.FetchFailedCondition, sourcev1.InvalidProviderConfigurationReason, fmt.Errorf(
				"secretRef '%s/%s' has github app data but provider is not set to github", secret.Namespace, secret.Name))
		}
	}
	if err != nil {
		reason := status.ReasonOf(err, sourcev1.AuthenticationFailedReason)
		return status.Next, cy.fail(sourcev1.FetchFailedCondition, reason, fmt.Errorf("configure authentication: %w", err))
	}
	if creds != nil {
		request.Auth.Username, request.Auth.Password, request.Auth.BearerToken = creds.Username, creds.Password, creds.BearerToken
	}
	return status.Next, nil
}

func (c *Controller) cloudCredentials(ctx context.Context, obj *sourcev1.GitRepository, u url.URL, account string, proxy *url.URL) (*auth.GitCredentials, error) {
	options := []auth.Option{
		auth.WithClient(c.o.Client), auth.WithServiceAccountNamespace(obj.Namespace), auth.WithGitURL(u),
		auth.WithCache(*c.tokens, cache.InvolvedObject{
			Kind: sourcev1.GitRepositoryKind, Name: obj.Name, Namespace: obj.Namespace, Operation: cache.OperationReconcile,
		}),
	}
	if account != "" {
		options = append(options, auth.WithServiceAccountName(account))
	}
	if proxy != nil {
		options = append(options, auth.WithProxyURL(*proxy))
	}
	if obj.Spec.Provider == sourcev1.GitProviderAzure {
		return auth.GetGitCredentials(ctx, azure.Provider{}, options...)
	}
	return auth.GetGitCredentials(ctx, aws.Provider{}, options...)
}

func (c *Controller) githubCredentials(ctx context.Context, obj *sourcev1.GitRepository, secret *corev1.Secret, proxy *url.URL) (*auth.GitCredentials, error) {
	methods, err := fluxsecrets.AuthMethodsFromSecret(ctx, secret, fluxsecrets.WithTLSSystemCertPool())
	if err != nil {
		return nil, err
	}
	if !methods.HasGitHubAppData() {
		return nil, status.Failf(sourcev1.InvalidProviderConfigurationReason,
			"secretRef with github app data must be specified when provider is set to github")
	}
	options := []githubapp.OptFunc{
		githubapp.WithAppData(methods.GitHubAppData),
		githubapp.WithCache(c.tokens, sourcev1.GitRepositoryKind, obj.Name, obj.Namespace, cache.OperationReconcile),
	}
	if proxy != nil {
		options = append(options, githubapp.WithProxyURL(proxy))
	}
	if methods.HasTLS() {
		options = append(options, githubapp.WithTLSConfig(methods.TLS))
	}
	user, password, err := githubapp.GetCredentials(ctx, options...)
	if err != nil {
		return nil, err
	}
	return &auth.GitCredentials{Username: user, Password: password}, nil
}
