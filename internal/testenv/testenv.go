// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package testenv gives tests what is outside of the code that they test: a
// real Kubernetes API with Terrace's definitions, a Git server, a count of
// requests. Only tests import it.
//
// The API server is a process of the built binary, because a test binary that
// links kube-apiserver takes minutes to build. `make test` starts one for all
// packages and names its kubeconfig in TERRACE_TEST_KUBECONFIG; without that, each
// test process that needs one starts its own from bin/terrace, and it ends with
// the test process, however that ends. Tests share the server, so each works in
// a namespace of its own.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1alpha1 "github.com/terrace-dev/terrace/api/infra/v1alpha1"
	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/install"
)

// Kubeconfig is the variable that names the kubeconfig of the API server to
// use. Its user must be an administrator, and the definitions installed.
const Kubeconfig = "TERRACE_TEST_KUBECONFIG"

// readyTimeout bounds the start of an API server of our own; a machine that is
// busy with other tests takes its time.
const readyTimeout = 3 * time.Minute

// Env is a Kubernetes API to test against.
type Env struct {
	// Config is for any client; without a limit on the rate of requests. Tests
	// share it: copy it before a change.
	Config *rest.Config
	// Kubeconfig is the path of a file that says the same.
	Kubeconfig string
	// Client knows the kinds of Scheme and reads without a cache.
	Client client.WithWatch
}

// one is the environment of this test process.
var one struct {
	sync.Once
	env *Env
	err error
}

// Start returns the environment that all tests of the process share, and starts
// it at first. It fails the test when there is none to be had.
func Start(t testing.TB) *Env {
	t.Helper()
	one.Do(func() { one.env, one.err = open() })
	if one.err != nil {
		t.Fatal(one.err)
	}
	return one.env
}

func open() (*Env, error) {
	if path := os.Getenv(Kubeconfig); path != "" {
		return connect(path)
	}
	path, err := launch()
	if err != nil {
		return nil, err
	}
	return connect(path)
}

// Scheme returns a scheme with the built-in kinds, CustomResourceDefinitions, and
// the kinds that Terrace works with.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, infra.AddToScheme, infrav1alpha1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // two kinds of one name: the program is wrong
		}
	}
	return scheme
}

func connect(kubeconfig string) (*Env, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server for tests: %w", err)
	}
	config.QPS = -1
	c, err := client.NewWithWatch(config, client.Options{Scheme: Scheme()})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server for tests: %w", err)
	}
	return &Env{Config: config, Kubeconfig: kubeconfig, Client: c}, nil
}

// Root returns the root of the module, an absolute path.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// root looks upwards from the package that is tested, where go test runs it.
func root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the module of %s: no go.mod above it", start)
		}
	}
}

// launch starts an API server of the built binary and returns its kubeconfig
// when it is ready.
func launch() (string, error) {
	module, err := root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(module, "bin", "terrace")
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("start an API server for tests: %s is not there: run make build first", binary)
	}
	scratch, err := os.MkdirTemp("", "terrace-testenv-")
	if err != nil {
		return "", err
	}
	p := &process{scratch: scratch, ended: make(chan struct{})}
	if err := p.start(binary); err != nil {
		return "", fmt.Errorf("start an API server for tests: %w", err)
	}
	if err := p.awaitReady(); err != nil {
		return "", fmt.Errorf("start an API server for tests: %w; its log: %s", err, p.tail())
	}
	return p.kubeconfig(), nil
}

// process is a `terrace up` of this test process.
type process struct {
	scratch string
	ended   chan struct{}
}

func (p *process) kubeconfig() string { return filepath.Join(p.scratch, "data", "kubeconfig") }
func (p *process) log() string        { return filepath.Join(p.scratch, "log") }

// watchdog ends the server, and removes its files, when its standard input
// ends: that is when the test process does, whether it returns, panics, or is
// killed.
const watchdog = `cat >/dev/null
kill -TERM "$1" 2>/dev/null
while kill -0 "$1" 2>/dev/null; do sleep 0.1; done
rm -rf "$2"`

func (p *process) start(binary string) error {
	log, err := os.Create(p.log())
	if err != nil {
		return err
	}
	defer log.Close()
	server := exec.Command(binary, "up", "--without-controllers", "--data-dir", filepath.Join(p.scratch, "data"), "--api-address", "127.0.0.1:0")
	server.Stdout, server.Stderr = log, log
	// Out of the terminal's group: an interrupt is for the tests, and the
	// watchdog follows them.
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		return err
	}
	go func() {
		defer close(p.ended)
		server.Wait() //nolint:errcheck // its log says why it ended
	}()
	dog := exec.Command("sh", "-c", watchdog, "sh", fmt.Sprint(server.Process.Pid), p.scratch)
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// The write end stays open for as long as this process lives.
	if _, err := dog.StdinPipe(); err != nil {
		return err
	}
	if err := dog.Start(); err != nil {
		return errors.Join(err, server.Process.Kill())
	}
	leash = append(leash, dog)
	return nil
}

// leash keeps the watchdogs, and with them their pipes, from being collected.
var leash []*exec.Cmd

// awaitReady asks /readyz until it answers; there is nothing to watch before.
func (p *process) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return errors.New("it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", readyTimeout, err)
		case <-tick.C:
		}
	}
}

// ready answers nil when the API serves Terrace's kinds.
func (p *process) ready(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig())
	if err != nil {
		return err
	}
	return install.Answers(ctx, config, "/readyz", "/apis/"+infra.GroupVersion.String(), "/apis/"+sourcev1.GroupVersion.String())
}

func (p *process) tail() string {
	text, err := os.ReadFile(p.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// Namespace makes a namespace with a fresh name. It is deleted when the test
// ends, without waiting for that.
func (e *Env) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := e.Client.Create(context.Background(), ns); err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := e.Client.Delete(context.Background(), ns); client.IgnoreNotFound(err) != nil {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
		e.letGo(ns.Name)
	})
	return ns.Name
}

// letGo takes the finalizers off the objects of a namespace whose controllers have
// ended with the test: the API server would try to delete them for ever.
func (e *Env) letGo(namespace string) {
	ctx := context.Background()
	nothing := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	for _, list := range []client.ObjectList{&kustomizev1.KustomizationList{}, &infra.TerraformList{}, &sourcev1.GitRepositoryList{}} {
		if e.Client.List(ctx, list, client.InNamespace(namespace)) != nil {
			continue
		}
		_ = apimeta.EachListItem(list, func(o runtime.Object) error {
			_ = e.Client.Patch(ctx, o.(client.Object), nothing)
			return nil
		})
	}
}
