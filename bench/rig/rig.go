// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package rig is what the benchmarks share: the control plane and the controllers
// as two processes (terrace up --without-controllers, terrace controller), so that
// their CPU and memory are known apart, a proxy between the two that counts each
// request, a Git repository, and a watch to wait by. It needs Linux's /proc.
//
// It knows no kind of unit, and judges nothing: the benchmarks do.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/install"
)

// PhaseTimeout bounds each phase; what it waited for is in the error.
const PhaseTimeout = 10 * time.Minute

// Options say what a Rig is made of.
type Options struct {
	// Terrace is the path of the binary.
	Terrace string
	// Served are API paths that answer once the kinds of the benchmark are there.
	Served []string
	// AddToScheme adds the kinds of the benchmark; sources and built-in kinds are known.
	AddToScheme func(*kruntime.Scheme) error
	// Aside tells which of the controllers' requests are counted apart; nil for none.
	Aside func(*http.Request) bool
}

// Rig is a control plane that is measured from outside.
type Rig struct {
	// Client is the benchmark's own: what it asks does not pass the proxy, and is
	// counted as Own.
	client.WithWatch
	// Dir holds everything, and is gone after Stop unless it is to be kept.
	Dir        string
	API        *Process // API server and etcd
	Controller *Process // nil before StartController
	Proxy      *Proxy

	terrace string
	config  *rest.Config // the administrator's
	own     *tally
}

// Start starts the API server and the proxy, in a directory of its own. The
// controllers start by StartController, so as not to be in the way before. Stop
// ends what was started, also after an error, and then the Rig is not nil.
func Start(ctx context.Context, o Options) (*Rig, error) {
	r := &Rig{own: &tally{}}
	if runtime.GOOS != "linux" {
		return r, fmt.Errorf("CPU and memory are read from /proc, which %s does not have", runtime.GOOS)
	}
	var err error
	if r.terrace, err = filepath.Abs(o.Terrace); err != nil {
		return r, err
	}
	if r.Dir, err = os.MkdirTemp("", "terrace-bench-"); err != nil {
		return r, err
	}
	Progress("directory %s", r.Dir)
	data := filepath.Join(r.Dir, "api")
	if r.API, err = startProcess(r.Dir, "api", r.terrace, "up", "--without-controllers", "--data-dir", data, "--api-address", "127.0.0.1:0"); err != nil {
		return r, err
	}
	err = r.API.await(ctx, "the API server", func(ctx context.Context) error {
		if r.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig")); err != nil {
			return err
		}
		return install.Answers(ctx, r.config, append([]string{"/readyz", "/apis/source.toolkit.fluxcd.io/v1/gitrepositories"}, o.Served...)...)
	})
	if err != nil {
		return r, err
	}
	r.config.QPS = -1
	if r.Proxy, err = startProxy(r.config, o.Aside); err != nil {
		return r, err
	}
	if err := writeKubeconfig(r.Kubeconfig(), r.Proxy.URL); err != nil {
		return r, err
	}
	types := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{scheme.AddToScheme, sourcev1.AddToScheme, o.AddToScheme} {
		if err := add(types); err != nil {
			return r, err
		}
	}
	r.WithWatch, err = client.NewWithWatch(r.Counted(), client.Options{Scheme: types})
	return r, err
}

// Counted is a configuration of clients whose requests are the benchmark's own.
func (r *Rig) Counted() *rest.Config {
	c := rest.CopyConfig(r.config)
	c.Wrap(r.own.wrap)
	return c
}

// Kubeconfig is the path of the file that leads through the proxy.
func (r *Rig) Kubeconfig() string { return filepath.Join(r.Dir, "proxy.kubeconfig") }

func writeKubeconfig(path, server string) error {
	k := clientcmdapi.NewConfig()
	k.Clusters["bench"] = &clientcmdapi.Cluster{Server: server}
	k.AuthInfos["bench"] = &clientcmdapi.AuthInfo{}
	k.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	k.CurrentContext = "bench"
	return clientcmd.WriteToFile(*k, path)
}

// Stop ends the processes. The directory is removed unless keep is true.
func (r *Rig) Stop(keep bool) error {
	err := errors.Join(r.Controller.Stop(), r.API.Stop())
	if r.Proxy != nil {
		err = errors.Join(err, r.Proxy.server.Close())
	}
	if r.Dir == "" {
		return err
	}
	if keep || err != nil {
		Progress("kept %s", r.Dir)
		return err
	}
	return os.RemoveAll(r.Dir)
}

// StartController starts the controllers, with further arguments.
func (r *Rig) StartController(args ...string) error {
	data := filepath.Join(r.Dir, "controller")
	// What a process before it wrote would lead to nobody.
	if err := os.RemoveAll(filepath.Join(data, serverFile)); err != nil {
		return err
	}
	var err error
	r.Controller, err = startProcess(r.Dir, "controller", r.terrace, append([]string{
		"controller", "--kubeconfig", r.Kubeconfig(), "--data-dir", data,
		"--listen-address", "127.0.0.1:0", "--leader-election=false", "--allow-local-sources",
	}, args...)...)
	return err
}

// StopController stops the controllers, so that they can be started again.
func (r *Rig) StopController() error {
	err := r.Controller.Stop()
	r.Controller = nil
	return err
}

// serverFile, in the data directory, tells where the controllers listen.
const serverFile = "server.json"

// serving tells that the controllers have started.
func (r *Rig) serving(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.Dir, "controller", serverFile))
	if err != nil {
		return err
	}
	var server struct{ Address string }
	if err := json.Unmarshal(text, &server); err != nil {
		return fmt.Errorf("read %s: %w", serverFile, err)
	}
	return install.Answers(ctx, &rest.Config{Host: "http://" + server.Address}, "/readyz")
}

// Settle waits until the controllers have started, and then made no request for a
// second and a half: they have found that there is nothing to do.
func (r *Rig) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, PhaseTimeout)
	defer cancel()
	if err := r.Controller.await(ctx, "the controllers", r.serving); err != nil {
		return err
	}
	last := r.Proxy.total()
	for quiet := 0; quiet < 3; {
		if err := Pause(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the controllers to settle; see %s: %w", r.Controller.log, err)
		}
		select {
		case <-r.Controller.exited:
			return fmt.Errorf("the controllers ended: %v; see %s", r.Controller.err, r.Controller.log)
		default:
		}
		quiet++
		if n := r.Proxy.total(); n != last {
			last, quiet = n, 0
		}
	}
	return nil
}

// revision is the API's resource version, which is etcd's revision.
func (r *Rig) revision(ctx context.Context) (int64, error) {
	var list corev1.NamespaceList
	if err := r.List(ctx, &list, client.Limit(1)); err != nil {
		return 0, err
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}

// Cost is what a phase took, for all units together.
type Cost struct {
	Wall     time.Duration
	Terrace  time.Duration // CPU of the controllers
	Children time.Duration // CPU of what the controllers started, and that ended
	API      time.Duration // CPU of the API server and etcd, for whoever asked them
	// Requests are those of the controllers.
	Requests Requests
	// Own and OwnWrites are the benchmark's requests, and those of them that wrote.
	Own, OwnWrites int
	// Revisions is by how much etcd's revision rose: each is one write, by whomever.
	Revisions int64
}

// Measure runs do, which ends when all that the phase asks for has happened, and then
// after, which waits for what is late: events, and the reconcile that finds nothing to
// do. It returns what both cost; the wall clock is do's alone. What the controllers
// used before is left out, unless they are started within.
func (r *Rig) Measure(ctx context.Context, name string, after, do func(context.Context) error) (c Cost, err error) {
	Progress("%s", name)
	revision, err := r.revision(ctx)
	if err != nil {
		return c, err
	}
	apiBefore, err := r.API.cpu()
	if err != nil {
		return c, err
	}
	var before cpu
	same := r.Controller
	if same != nil {
		if before, err = same.cpu(); err != nil {
			return c, err
		}
	}
	r.Proxy.Take()
	r.own.take()
	begun := time.Now()

	if err := do(ctx); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}

	c.Wall = time.Since(begun)
	if err := after(ctx); err != nil {
		return c, err
	}
	c.Requests = r.Proxy.Take()
	c.Own, c.OwnWrites = r.own.take()
	if r.Controller != nil {
		spent, err := r.Controller.cpu()
		if err != nil {
			return c, err
		}
		if r.Controller != same {
			before = cpu{}
		}
		used := spent.minus(before)
		c.Terrace, c.Children = used.own, used.children
	}
	apiAfter, err := r.API.cpu()
	if err != nil {
		return c, err
	}
	c.API = apiAfter.minus(apiBefore).own
	now, err := r.revision(ctx)
	c.Revisions = now - revision
	return c, err
}

// Binaries makes the paths of programs absolute, and fails on one that is not there.
func Binaries(paths ...*string) error {
	for _, p := range paths {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// Progress tells on standard error what is being done.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: %s\n", fmt.Sprintf(format, args...))
}

// Nothing waits for nothing.
func Nothing(context.Context) error { return nil }

// Pause waits, or returns why it may not.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
