// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// Addresses of Services. Nothing routes them; they only have to be consistent.
const (
	serviceRange = "10.96.0.0/16"
	serviceIP    = "10.96.0.1"
)

// issuer names this API server in the tokens of service accounts, as clusters
// made by kubeadm do.
const issuer = "https://kubernetes.default.svc.cluster.local"

// serviceAccountKey signs the tokens of service accounts; in pki/.
const serviceAccountKey = "sa.key"

// pluginsOff are the admission plugins that are off; doc.go says why.
var pluginsOff = []string{
	"DefaultIngressClass",
	"DefaultStorageClass",
	"DefaultTolerationSeconds",
	"JobValidation",
	"LimitRanger",
	"MutatingAdmissionPolicy",
	"NodeDeclaredFeatureValidator",
	"PersistentVolumeClaimResize",
	"PodGroupProtection",
	"PodGroupWorkloadExists",
	"PodResizeValidator",
	"PodSecurity",
	"PodTopologyLabels",
	"Priority",
	"ResourceQuota",
	"RuntimeClass",
	"ServiceAccount",
	"StorageObjectInUseProtection",
	"TaintNodesByCondition",
}

// groupsOff are the API groups that describe nodes and their devices, and the
// one of the feature that is off. Each resource less is a watch of etcd and one
// of the garbage collector less.
var groupsOff = map[string]string{
	"flowcontrol.apiserver.k8s.io/v1": "false",
	"node.k8s.io/v1":                  "false",
	"resource.k8s.io/v1":              "false",
}

// featuresOff are for API servers that have peers: nobody else serves this
// data, so nobody needs to be told that this one lives.
var featuresOff = map[string]bool{
	string(genericfeatures.APIServerIdentity):                   false,
	string(genericfeatures.UnknownVersionInteroperabilityProxy): false,
}

// apiServer is the running kube-apiserver.
type apiServer struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	err    error         // why, after done
}

// serving is what the API server is made from.
type serving struct {
	dir      *directory
	listener net.Listener
	etcd     string // endpoint
	gate     *writeGate
}

// startAPIServer builds the API server and runs it until stop. It returns
// before the server is ready.
func startAPIServer(s serving) (*apiServer, error) {
	ctx, cancel := context.WithCancel(context.Background())
	run, err := s.build(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	a := &apiServer{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.err = errors.New("the API server ended") // when a fatal line ends the goroutine
		a.err = run(ctx)
	}()
	return a, nil
}

func (s serving) build(ctx context.Context) (func(context.Context) error, error) {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(featuresOff); err != nil {
		return nil, fmt.Errorf("configure the API server: %w", err)
	}
	completed, err := s.options().Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("configure the API server: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("configure the API server: %w", utilerrors.NewAggregate(errs))
	}
	config, err := app.NewConfig(completed)
	if err != nil {
		return nil, fmt.Errorf("configure the API server: %w", err)
	}
	s.gate.attach(&config.Aggregator.GenericConfig.Config)
	// The "kubernetes" Service has no endpoints to be kept; once a day is enough
	// to mend it.
	config.KubeAPIs.Extra.EndpointReconcilerConfig.Interval = 24 * time.Hour
	built, err := config.Complete()
	if err != nil {
		return nil, fmt.Errorf("configure the API server: %w", err)
	}
	chain, err := app.CreateServerChain(built)
	if err != nil {
		return nil, fmt.Errorf("build the API server: %w", err)
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return nil, fmt.Errorf("prepare the API server: %w", err)
	}
	return prepared.Run, nil
}

func (s serving) options() *options.ServerRunOptions {
	at := s.listener.Addr().(*net.TCPAddr)
	o := options.NewServerRunOptions()

	o.SecureServing.Listener = s.listener
	o.SecureServing.BindAddress, o.SecureServing.BindPort = at.IP, at.Port
	o.SecureServing.ServerCert.CertKey.CertFile = s.dir.join(pkiDir, servingName+".crt")
	o.SecureServing.ServerCert.CertKey.KeyFile = s.dir.join(pkiDir, servingName+".key")
	// Without it the server looks for a default route, and a machine without a
	// network has none.
	o.GenericServerRunOptions.AdvertiseAddress = clientIP(at.IP)
	o.GenericServerRunOptions.ExternalHost = clientIP(at.IP).String()
	// Stop does not wait for somebody's slow request longer than this.
	o.GenericServerRunOptions.RequestTimeout = 30 * time.Second

	o.Etcd.StorageConfig.Transport.ServerList = []string{s.etcd}
	o.Etcd.EncryptionProviderConfigFilepath = s.dir.join(encryptionFile)

	o.Authentication.ClientCert.ClientCA = s.dir.join(pkiDir, authorityName+".crt")
	o.Authentication.AuthenticationConfigFile = s.dir.join(authenticationFile)
	o.Authentication.BootstrapToken = nil
	o.Authentication.OIDC = nil
	o.Authentication.WebHook = nil
	o.Authentication.TokenFile = nil
	o.Authentication.ServiceAccounts.Issuers = []string{issuer}
	o.Authentication.ServiceAccounts.KeyFiles = []string{s.dir.join(pkiDir, serviceAccountKey)}
	o.ServiceAccountSigningKeyFile = s.dir.join(pkiDir, serviceAccountKey)
	o.Authorization.Modes = []string{"RBAC"}

	o.Admission.GenericAdmission.DisablePlugins = pluginsOff
	o.APIEnablement.RuntimeConfig = groupsOff
	o.Features.EnablePriorityAndFairness = false
	o.Features.EnableProfiling = false
	o.ServiceClusterIPRanges = serviceRange
	o.EndpointReconcilerType = string(reconcilers.NoneEndpointReconcilerType)
	o.SystemNamespaces = []string{"kube-system", "kube-public", "default"}
	return o
}

// stop ends the server: requests in flight are answered, watches are closed.
func (a *apiServer) stop(ctx context.Context) error {
	a.cancel()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("stop the API server: %w", ctx.Err())
	}
}

// clientIP is where a client on this machine reaches a server that is bound to
// ip. A wildcard of IPv6 takes IPv4 as well.
func clientIP(ip net.IP) net.IP {
	if ip.IsUnspecified() {
		return net.IPv4(127, 0, 0, 1)
	}
	return ip
}

// waitReady returns when GET path, asked with config, answers 200. There is no
// event for it, so it asks every few milliseconds.
func waitReady(ctx context.Context, config *rest.Config, path string, failed ...<-chan error) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last string
	for {
		if last = probe(ctx, client, config.Host+path); last == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until the API server is ready: %w (last answer: %s)", ctx.Err(), last)
		}
		for _, c := range failed {
			select {
			case err := <-c:
				return err
			default:
			}
		}
	}
}

// probe returns "" when url answers 200.
func probe(ctx context.Context, client *http.Client, url string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.Status
	}
	return ""
}

// attach puts the gate between authorization and the handlers, and a check by the
// name of storage-space into /readyz. It is not in /livez: a restart mends nothing.
func (g *writeGate) attach(c *genericapiserver.Config) {
	c.AddReadyzChecks(healthz.NamedCheck("storage-space", func(*http.Request) error { return g.health() }))
	chain := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return chain(g.handler(handler), c)
	}
}
