// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/internal/cli"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controlplane"
	"github.com/terrace-dev/terrace/internal/server"
	"github.com/terrace-dev/terrace/internal/server/embedded"
)

func up(ctx context.Context, c config.Config, out io.Writer) error {
	logTo(c)
	err := embedded.Up(ctx, c, out)
	var start *controlplane.StartError
	if errors.As(err, &start) && start.Hint != "" {
		return cli.WithHint(err, start.Hint)
	}
	return err
}

func controller(ctx context.Context, c config.Config) error {
	logTo(c)
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.KubeContext}
	cluster, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return cli.WithHint(fmt.Errorf("find the cluster: %w", err), "name one with --kubeconfig, or start an embedded one with \"terrace up\"")
	}
	// Asked here, because whatever asks first otherwise tells of it in its own terms.
	api, err := discovery.NewDiscoveryClientForConfig(cluster)
	if err == nil {
		_, err = api.ServerVersion()
	}
	if err != nil {
		return cli.WithHint(fmt.Errorf("reach the cluster at %s: %w", cluster.Host, err), "see whether it runs, and whether the kubeconfig is the one you mean")
	}
	return server.Run(ctx, c, cluster)
}

// logTo gives the libraries that log through a logger of the process the one
// that the configuration asks for.
func logTo(c config.Config) {
	log := c.Logger(os.Stderr)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
}
