// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terrace-dev/terrace/internal/install"
)

// plane is a `terrace up` process and the commands that are sent to it.
type plane struct {
	binary  string
	dataDir string
	log     string // file that receives what the process prints
	args    []string
	process *exec.Cmd
	exited  chan struct{} // closed when the process has ended
	err     error         // how it ended; read after exited is closed
}

// How long the demonstration waits for the control plane.
const (
	readyTimeout = 2 * time.Minute
	stopTimeout  = time.Minute
)

// freeAddress picks a loopback port that is free now, so that a control plane that
// is started again has the same address.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start starts the process and returns when its API is ready.
func (p *plane) start(ctx context.Context) error {
	logFile, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := exec.Command(p.binary, append([]string{"up", "--data-dir", p.dataDir}, p.args...)...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// A group of its own: ctrl-C reaches the demonstration alone, which then stops
	// the control plane in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start terrace up: %w", err)
	}
	p.process, p.exited = cmd, make(chan struct{})
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p.awaitReady(ctx)
}

// awaitReady asks until the API is ready. The process may not even have written
// its kubeconfig yet, so there is nothing that could be watched.
func (p *plane) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = p.ready(ctx); last == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("terrace up ended before it was ready: %v", p.err)
		case <-ctx.Done():
			return fmt.Errorf("wait %s for terrace up to be ready: %w", readyTimeout, last)
		case <-tick.C:
		}
	}
}

// ready asks for what a user needs: a healthy server that serves the kinds.
func (p *plane) ready(ctx context.Context) error {
	cfg, err := p.config()
	if err != nil {
		return err
	}
	return install.Answers(ctx, cfg, "/readyz", "/apis/infra.contrib.fluxcd.io/v1alpha2/terraforms",
		"/apis/kustomize.toolkit.fluxcd.io/v1/kustomizations", "/apis/source.toolkit.fluxcd.io/v1/gitrepositories")
}

// config reads the kubeconfig that the process has written.
func (p *plane) config() (*rest.Config, error) {
	return clientcmd.BuildConfigFromFlags("", filepath.Join(p.dataDir, "kubeconfig"))
}

// run runs one command of terrace against the control plane and returns what it
// printed on standard output. An exit code other than 0 is an *exec.ExitError below
// the error that names the command.
func (p *plane) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// The kubeconfig is named by the environment, so that the commands which are shown
	// are short, and kubectl's too.
	cmd := exec.CommandContext(ctx, p.binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(p.dataDir, "kubeconfig"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("terrace %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// errEnded is why a wait ends when the control plane does before it is told to.
var errEnded = errors.New("terrace up ended")

// whileUp returns a context that ends with the process, for waits that are in vain
// without it. Call stop when the wait is over.
func (p *plane) whileUp(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	exited := p.exited
	go func() {
		select {
		case <-exited:
			cancel(errEnded)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// kill ends the process as a power cut would.
func (p *plane) kill() error {
	if err := p.process.Process.Kill(); err != nil {
		return fmt.Errorf("kill terrace up: %w", err)
	}
	<-p.exited
	return nil
}

// stop ends the process in order, and is content when there is none.
func (p *plane) stop() error {
	if p == nil || p.process == nil {
		return nil
	}
	select {
	case <-p.exited:
		return nil // ended before, which the story has told
	default:
	}
	if err := p.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop terrace up: %w", err)
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.exited:
		if p.err != nil {
			return fmt.Errorf("stop terrace up: %w", p.err)
		}
		return nil
	case <-timeout.C:
		return errors.Join(fmt.Errorf("stop terrace up: it still runs after %s", stopTimeout), p.kill())
	}
}

// tail writes the last lines of the process's log, for a story that ended badly.
func (p *plane) tail(out io.Writer) {
	if p == nil {
		return
	}
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	fmt.Fprintf(out, "\nThe last lines of terrace up:\n%s\n", strings.Join(lines[max(0, len(lines)-25):], "\n"))
}
