// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"
)

// DefaultAPIAddress is where the API server listens when Config names no address.
const DefaultAPIAddress = "127.0.0.1:6443"

// settleTime is how long after the start the work that it caused goes on.
const settleTime = 20 * time.Second

// renewalPeriod is how often a running control plane looks at its certificates.
const renewalPeriod = 12 * time.Hour

// Config describes a control plane.
type Config struct {
	// DataDir is the directory that holds everything; made if missing. Required.
	DataDir string
	// APIAddress is the host:port of the API server; a name is resolved, an
	// empty host means all interfaces, port 0 picks a free one. Empty means
	// DefaultAPIAddress.
	APIAddress string
	// Log gets what an operator should know; what the parts below log comes at
	// higher levels. The zero value discards all.
	Log logr.Logger
	// Quota bounds etcd's database, in bytes; zero means 4 GiB.
	Quota int64

	reserve  uint64           // free bytes below which writes are refused; zero: defaultReserve
	clock    clock.WithTicker // for renewal and space; nil: the real one
	leafLife time.Duration    // of certificates; zero: leafLife
}

// ControlPlane is a running control plane. Its methods may be called from any
// goroutine.
type ControlPlane struct {
	dir         *directory
	log         logr.Logger
	clock       clock.WithTicker
	pki         *authority
	url         string
	etcd        *etcd
	server      *apiServer
	controllers *controllers
	gate        *writeGate

	background       sync.WaitGroup
	cancelBackground context.CancelFunc

	number   int64      // marks its goroutines; see captureKubernetesLog
	failed   chan error // fatal errors of the parts
	result   chan error // for Wait
	stopOnce sync.Once
	stopErr  error
	stopping chan struct{}
}

// Start opens the data directory, holds it, and starts etcd, the API server and
// the controllers. It returns when /readyz answers, or a *StartError where a
// person can do something about it. The control plane runs until Stop; ctx only
// bounds the start.
func Start(ctx context.Context, config Config) (_ *ControlPlane, err error) {
	config.setDefaults()
	cp := &ControlPlane{
		log: config.Log, clock: config.clock, gate: &writeGate{},
		failed: make(chan error, 1), result: make(chan error, 1), stopping: make(chan struct{}),
	}
	cp.number = captureKubernetesLog(config.Log, cp.failed)
	if cp.dir, err = openDirectory(config.DataDir, config.clock.Now()); err != nil {
		return nil, err
	}
	var listener net.Listener
	defer func() {
		if err == nil {
			return
		}
		cp.abandon()
		// From its start on, the API server closes the listener, and it panics when
		// somebody else does while it serves.
		if listener != nil && cp.server == nil {
			listener.Close()
		}
	}()
	if listener, err = listen(config.APIAddress); err != nil {
		return nil, err
	}
	if err := cp.start(ctx, config, listener); err != nil {
		return nil, err
	}
	cp.runBackground(config)
	return cp, nil
}

func (c *Config) setDefaults() {
	if c.APIAddress == "" {
		c.APIAddress = DefaultAPIAddress
	}
	if c.Quota == 0 {
		c.Quota = defaultQuota
	}
	if c.reserve == 0 {
		c.reserve = defaultReserve
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	if c.leafLife == 0 {
		c.leafLife = leafLife
	}
	if c.Log.GetSink() == nil {
		c.Log = logr.Discard()
	}
}

func (cp *ControlPlane) start(ctx context.Context, config Config, listener net.Listener) error {
	ip := listener.Addr().(*net.TCPAddr).IP
	port := listener.Addr().(*net.TCPAddr).Port
	cp.url = "https://" + net.JoinHostPort(clientIP(ip).String(), strconv.Itoa(port))
	if err := cp.checkSpace(config.reserve); err != nil {
		return err
	}
	cp.pki = &authority{dir: cp.dir, now: config.clock.Now, life: config.leafLife, hosts: servingHosts(ip)}
	tokens, err := cp.prepareFiles()
	if err != nil {
		return err
	}
	if cp.etcd, err = startEtcd(ctx, cp.dir, config.Quota, config.Log.WithName("etcd")); err != nil {
		return err
	}
	labelled(cp.number, func() {
		cp.server, err = startAPIServer(serving{dir: cp.dir, listener: listener, etcd: cp.etcd.endpoint, gate: cp.gate})
	})
	if err != nil {
		return err
	}
	if err := waitReady(ctx, cp.RESTConfig(), "/readyz", cp.failed, cp.etcd.failed); err != nil {
		if ctx.Err() != nil {
			return err // nothing is wrong with the directory
		}
		return startFailure(cp.dir, err)
	}
	labelled(cp.number, func() {
		cp.controllers, err = startControllers(cp.RESTConfig(), tokens, cp.CA(), config.Log.WithName("kubernetes"))
	})
	return err
}

// prepareFiles makes what the API server reads: certificates, keys, settings;
// and the kubeconfig, which names this start's port.
func (cp *ControlPlane) prepareFiles() (serviceaccount.TokenGenerator, error) {
	if err := ensureEncryption(cp.dir); err != nil {
		return nil, err
	}
	if err := writeAuthentication(cp.dir); err != nil {
		return nil, err
	}
	if _, err := cp.pki.renew(); err != nil {
		return nil, err
	}
	key, _, err := cp.pki.key(cp.pki.file("sa", ".key"))
	if err != nil {
		return nil, err
	}
	if err := cp.writeKubeconfig(); err != nil {
		return nil, err
	}
	// For the tokens that are kept in Secrets, which name an issuer of their own.
	return serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
}

func (cp *ControlPlane) checkSpace(reserve uint64) error {
	free, err := freeSpace(cp.dir.path)
	if err != nil {
		return err
	}
	_, err = os.Stat(cp.dir.join(etcdDir, "member"))
	return checkSpace(cp.dir, free, reserve, err == nil)
}

// listen opens the port before anything else, so that a taken one is known at once.
func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err == nil {
		return listener, nil
	}
	known := &StartError{What: fmt.Sprintf("listen on %s: %v", address, err), Hint: "give an address of this machine as host:port to --api-address", Err: err}
	var call *net.OpError
	if errors.As(err, &call) {
		known.What = fmt.Sprintf("listen on %s: %v", address, call.Err)
	}
	var sys syscall.Errno
	if errors.As(err, &sys) {
		known.What = fmt.Sprintf("listen on %s: %v", address, sys)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		known.Hint = "another program, perhaps another control plane, has this port; give a free one to --api-address, or port 0 to have one picked"
	case errors.Is(err, syscall.EACCES):
		known.Hint = "this user may not use the port; give one above 1023 to --api-address"
	}
	return nil, known
}

// runBackground starts what goes on beside the API: certificates are renewed,
// the database is kept in shape, and the end of a part is noticed.
func (cp *ControlPlane) runBackground(config Config) {
	ctx, cancel := context.WithCancel(context.Background())
	cp.cancelBackground = cancel
	store := newStorage(cp.dir.path, config.reserve, cp.etcd, cp.gate, cp.clock, cp.log)
	cp.background.Go(func() { store.run(ctx) })
	// Made here, so that the clock has it when Start returns.
	renewal := cp.clock.NewTicker(renewalPeriod)
	cp.background.Go(func() { cp.renewCertificates(ctx, renewal) })
	cp.background.Go(func() { cp.freeMemory(ctx) })
	go cp.watch()
}

// freeMemory gives back what the start needed once, after the schemas of the
// definitions have been merged as well. The runtime would take many minutes.
func (cp *ControlPlane) freeMemory(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-cp.clock.After(settleTime):
		debug.FreeOSMemory()
	}
}

func (cp *ControlPlane) renewCertificates(ctx context.Context, tick clock.Ticker) {
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		// The API server and our clients watch the files.
		changed, err := cp.pki.renew()
		if err == nil && changed {
			cp.log.Info("Renewed certificates", "dir", cp.dir.path)
			err = cp.writeKubeconfig()
		}
		if err != nil {
			cp.log.Error(err, "Renew certificates")
		}
	}
}

// watch reports the end of a part that nobody asked to end.
func (cp *ControlPlane) watch() {
	var err error
	select {
	case <-cp.stopping:
		return
	case err = <-cp.failed:
	case err = <-cp.etcd.failed:
		err = fmt.Errorf("etcd in %s: %w", cp.dir.path, err)
	case <-cp.etcd.server.Server.StopNotify():
		err = fmt.Errorf("etcd in %s: it ended", cp.dir.path)
	case <-cp.server.done:
		err = cp.server.err
	}
	select {
	case <-cp.stopping:
	case cp.result <- runFailure(cp.dir, err):
	}
}

// Wait returns a channel that gets one value: the error that ended the control
// plane, or nil after Stop.
func (cp *ControlPlane) Wait() <-chan error { return cp.result }

// Health returns nil, or why the control plane works less than fully; then
// errors.Is(err, ErrStorageFull) says that writes are refused until there is
// space again. It recovers by itself.
func (cp *ControlPlane) Health() error { return cp.gate.health() }

// Stop ends the controllers, then the API server, then etcd, and gives the data
// directory back. When ctx is done first, what is left is abandoned and an error
// says what; nothing that was acknowledged is lost by it. Later calls return
// what the first returned.
func (cp *ControlPlane) Stop(ctx context.Context) error {
	cp.stopOnce.Do(func() {
		close(cp.stopping)
		cp.cancelBackground()
		cp.stopErr = errors.Join(
			cp.controllers.stop(ctx),
			cp.server.stop(ctx),
		)
		cp.background.Wait()
		releaseKubernetesLog(cp.number)
		cp.stopErr = errors.Join(cp.stopErr, cp.etcd.stop(ctx), cp.dir.release())
		select {
		case cp.result <- nil:
		default: // an error is waiting there to be read
		}
	})
	return cp.stopErr
}

// abandon undoes a start that failed half-way.
func (cp *ControlPlane) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if cp.server != nil {
		errs = append(errs, cp.server.stop(ctx))
	}
	releaseKubernetesLog(cp.number)
	if cp.etcd != nil {
		errs = append(errs, cp.etcd.stop(ctx))
	}
	errs = append(errs, cp.dir.release())
	if err := errors.Join(errs...); err != nil {
		cp.log.V(1).Info("Abandon the start", "error", err.Error())
	}
}

// URL returns the base URL of the API server, https://host:port, as clients on
// this machine reach it.
func (cp *ControlPlane) URL() string { return cp.url }

// DataDir returns the absolute path of the data directory.
func (cp *ControlPlane) DataDir() string { return cp.dir.path }

// KubeconfigPath returns the path of the administrator's kubeconfig. The file is
// written at each start and when a certificate is renewed.
func (cp *ControlPlane) KubeconfigPath() string { return cp.dir.join(kubeconfigFile) }

// CA returns the certificates by which the API server is known, PEM.
func (cp *ControlPlane) CA() []byte {
	text, err := cp.dir.read(cp.pki.file(authorityName, ".crt"))
	if err != nil {
		cp.log.Error(err, "Read the certificate of the authority")
	}
	return text
}

// RESTConfig returns a configuration for clients in this process: a member of
// system:masters named system:terrace, without a limit on the rate of requests,
// whose certificate is read from its file again when it is renewed. The caller
// may change it.
func (cp *ControlPlane) RESTConfig() *rest.Config {
	return &rest.Config{
		Host: cp.url,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile:   cp.dir.join(pkiDir, authorityName+".crt"),
			CertFile: cp.dir.join(pkiDir, terraceName+".crt"),
			KeyFile:  cp.dir.join(pkiDir, terraceName+".key"),
		},
		QPS: -1,
	}
}

// writeKubeconfig writes the administrator's kubeconfig with certificates
// inline, so that the file can be carried elsewhere.
func (cp *ControlPlane) writeKubeconfig() error {
	admin, err := cp.pki.pair(adminName)
	if err != nil {
		return err
	}
	const name = "terrace"
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: cp.url, CertificateAuthorityData: cp.CA()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: admin.cert, ClientKeyData: admin.key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name, Namespace: "default"}},
		CurrentContext: name,
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", cp.KubeconfigPath(), err)
	}
	return cp.dir.write(kubeconfigFile, text)
}
