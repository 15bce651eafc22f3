// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package terraform

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/status"
)

const (
	webhookTimeout   = 30 * time.Second
	webhookBodyLimit = 4 << 20
	// webhookCerts is where a cluster's controller has client certificates mounted, one
	// directory a host, as the Terraform Controller looks for them.
	webhookCerts = "/etc/certs"
)

// needsWebhooks tells that a plan has to be shown to somebody's service.
func needsWebhooks(tf *infra.Terraform) bool {
	for _, w := range tf.Spec.Webhooks {
		if w.IsEnabled() && w.Stage == infra.WebhookPostPlanning {
			return true
		}
	}
	return false
}

// callWebhooks asks each post-planning webhook; the first that does not pass ends
// the plan. planJSON is what the tool's show -json printed.
func callWebhooks(ctx context.Context, tf *infra.Terraform, planJSON []byte) error {
	for _, w := range tf.Spec.Webhooks {
		if !w.IsEnabled() || w.Stage != infra.WebhookPostPlanning {
			continue
		}
		if err := callWebhook(ctx, tf, w, planJSON); err != nil {
			return status.Fail(infra.ReasonPostPlanningWebhookFailed, fmt.Errorf("webhook %s: %w", w.URL, err))
		}
	}
	return nil
}

func callWebhook(ctx context.Context, tf *infra.Terraform, w infra.Webhook, planJSON []byte) error {
	payload, err := webhookPayload(tf, w, planJSON)
	if err != nil {
		return err
	}
	client, err := webhookClient(w.URL)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(payload))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, webhookBodyLimit))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", resp.Status)
	}
	var answer map[string]any
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("answer is not a JSON object: %w", err)
	}
	verdict, err := renderText(w.TestExpression, answer)
	if err != nil {
		return fmt.Errorf("render testExpression: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(verdict)) {
	case "true", "yes":
		return nil
	case "false", "no":
		message, err := renderText(w.ErrorMessageTemplate, answer)
		if err != nil {
			return fmt.Errorf("render errorMessageTemplate: %w", err)
		}
		if message == "" {
			message = "testExpression is " + strings.TrimSpace(verdict)
		}
		return fmt.Errorf("refused the plan: %s", message)
	default:
		return fmt.Errorf("testExpression gives %q: it must give true, yes, false or no", verdict)
	}
}

// webhookPayload is the object, with the plan as status.tfplan, in parts as the
// payload type says.
func webhookPayload(tf *infra.Terraform, w infra.Webhook, planJSON []byte) ([]byte, error) {
	obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(tf)
	if err != nil {
		return nil, fmt.Errorf("encode object: %w", err)
	}
	delete(obj, "status")
	if meta, ok := obj["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
	obj["apiVersion"], obj["kind"] = infra.GroupVersion.String(), infra.TerraformKind
	var plan any
	if err := json.Unmarshal(planJSON, &plan); err != nil {
		return nil, fmt.Errorf("decode plan: %w", err)
	}
	switch w.PayloadType {
	case infra.WebhookPayloadSpecOnly:
	case infra.WebhookPayloadPlanOnly:
		delete(obj, "spec")
		obj["status"] = map[string]any{"tfplan": plan}
	case "", infra.WebhookPayloadSpecAndPlan:
		obj["status"] = map[string]any{"tfplan": plan}
	default:
		return nil, fmt.Errorf("unknown payloadType %q: SpecAndPlan, SpecOnly or PlanOnly", w.PayloadType)
	}
	return json.Marshal(obj)
}

// webhookClient verifies the server as usual; where a directory of certificates for
// the host is mounted, it also presents the client certificate in it.
func webhookClient(rawURL string) (*http.Client, error) {
	u, err := url.Parse(rawURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("url %q: it must be http or https", rawURL)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	dir := filepath.Join(webhookCerts, u.Hostname())
	if u.Scheme == "https" && filepath.IsLocal(u.Hostname()) {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		switch {
		case err == nil:
			transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
			if ca, err := os.ReadFile(filepath.Join(dir, "ca.crt")); err == nil {
				pool := x509.NewCertPool()
				pool.AppendCertsFromPEM(ca)
				transport.TLSClientConfig.RootCAs = pool
			}
		case !os.IsNotExist(err):
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
	}
	return &http.Client{Transport: transport}, nil
}
