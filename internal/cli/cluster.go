// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/homedir"

	"github.com/terrace-dev/terrace/internal/config"
)

// globalFlags say which cluster and namespace a verb is about.
type globalFlags struct {
	kubeconfig, context, namespace, dataDir string
}

func (f *globalFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster")
	fs.StringVar(&f.context, "context", "", "context of the kubeconfig")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace (default: the context's)")
	fs.StringVar(&f.dataDir, "data-dir", "", "data directory of the embedded control plane to use")
}

// cluster is the API server that a verb talks to.
type cluster struct {
	config    *rest.Config
	client    dynamic.Interface
	namespace string
	// dir is where the kubeconfig lies; a control plane that Terrace embeds
	// leaves the address of its own server beside it. Empty inside a pod.
	dir string
}

const noClusterHint = "start a control plane with \"terrace up\", or name one with --kubeconfig or --data-dir"

// connect finds the cluster. It sends no request.
func (a *app) connect() (*cluster, error) {
	loading, dir, err := a.loadingRules()
	if err != nil {
		return nil, err
	}
	var overrides clientcmd.ConfigOverrides
	overrides.CurrentContext = a.flags.context
	overrides.Context.Namespace = a.flags.namespace
	deferred := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loading, &overrides)
	cfg, err := deferred.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, hintf(errors.New("find the cluster: no kubeconfig that KUBECONFIG names exists, or they are empty"), noClusterHint)
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace, _, err := deferred.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: namespace: %w", err)
	}
	cfg.QPS = -1 // one verb sends a handful of requests: nothing to throttle
	cfg.UserAgent = "terrace/" + a.env.Build.Version
	// Deprecation warnings are for the authors of manifests, not for their readers.
	cfg.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return &cluster{config: cfg, client: client, namespace: namespace, dir: dir}, nil
}

// loadingRules chooses the kubeconfig, in the order that the root's help
// promises, and says in which directory it lies.
func (a *app) loadingRules() (*clientcmd.ClientConfigLoadingRules, string, error) {
	file, err := a.explicitKubeconfig()
	if err != nil {
		return nil, "", err
	}
	if file != "" {
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}, filepath.Dir(file), nil
	}
	if list, ok := a.env.LookupEnv("KUBECONFIG"); ok && list != "" {
		files := filepath.SplitList(list)
		return &clientcmd.ClientConfigLoadingRules{Precedence: files, WarnIfAllMissing: true}, filepath.Dir(files[0]), nil
	}
	home := filepath.Join(homedir.HomeDir(), ".kube", "config")
	if exists(home) {
		return &clientcmd.ClientConfigLoadingRules{Precedence: []string{home}}, filepath.Dir(home), nil
	}
	if _, err := rest.InClusterConfig(); err == nil {
		return &clientcmd.ClientConfigLoadingRules{}, "", nil
	}
	if file := filepath.Join(config.DefaultDataDir, "kubeconfig"); exists(file) {
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}, config.DefaultDataDir, nil
	}
	return nil, "", hintf(errors.New("find the cluster: there is no kubeconfig"), noClusterHint)
}

// explicitKubeconfig is the file that a flag or TERRACE_DATA_DIR names; empty
// when there is none.
func (a *app) explicitKubeconfig() (string, error) {
	dir := a.flags.dataDir
	if dir != "" && a.flags.kubeconfig != "" {
		return "", &usageError{err: errors.New("find the cluster: --kubeconfig and --data-dir exclude each other")}
	}
	if a.flags.kubeconfig != "" {
		return a.flags.kubeconfig, nil
	}
	if dir == "" {
		dir, _ = a.env.LookupEnv(config.Variable("data-dir"))
	}
	if dir == "" {
		return "", nil
	}
	file := filepath.Join(dir, "kubeconfig")
	if _, err := os.Stat(file); err != nil {
		return "", hintf(fmt.Errorf("find the cluster: %w", err), "start it with \"terrace up --data-dir %s\"", dir)
	}
	return file, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// explain makes of what client-go returned a sentence about the user's
// cluster: doing says what was attempted.
func (c *cluster) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	var request *url.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return hintf(fmt.Errorf("%s: connect to %s: connection refused", doing, c.config.Host),
			"is it running? \"terrace up\" starts an embedded control plane")
	case errors.As(err, &request):
		return fmt.Errorf("%s: connect to %s: %w", doing, c.config.Host, request.Err)
	case apierrors.IsUnauthorized(err):
		return hintf(fmt.Errorf("%s: %w", doing, err), "the credentials of the kubeconfig are not (or no longer) accepted by %s", c.config.Host)
	case errors.Is(err, fs.ErrPermission):
		return hintf(fmt.Errorf("%s: %w", doing, err), "the data directory belongs to the account that runs \"terrace up\"")
	}
	return fmt.Errorf("%s: %w", doing, err)
}
