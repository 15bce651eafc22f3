// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/audit"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controller/kustomization"
	"github.com/terrace-dev/terrace/internal/controller/terraform"
	"github.com/terrace-dev/terrace/internal/install"
	"github.com/terrace-dev/terrace/internal/plan"
	"github.com/terrace-dev/terrace/internal/run"
)

// web is the process's one HTTP server: health, metrics and artifacts for whoever
// reaches it, plans and run logs for who shows the token.
type web struct {
	server *http.Server
	units  client.Reader
	plans  *blob.Store
	runs   *run.Executor
	glass  func(run.Unit) (dir string, env []string, ok bool)
	judged func(types.NamespacedName) []plan.PolicyResult
	token  string
}

// ServerFile is the file in the data directory that tells clients on the same
// machine where the HTTP server is and what token it wants. Mode 0600.
const ServerFile = "server.json"

// tokenHeader carries the token where Authorization cannot: the Kubernetes API
// server takes that one for itself when it forwards a request to a Service.
const tokenHeader = "X-Terrace-Token"

func newWeb(ctx context.Context, s *Server, units *terraform.Controller, apps *kustomization.Controller, m *metrics) (*web, error) {
	token, err := serverToken(ctx, s.config, s.manager.GetAPIReader(), s.manager.GetClient())
	if err != nil {
		return nil, err
	}
	// A person asks for the plan that the object has just told of; a cache may not know it yet.
	w := &web{units: s.manager.GetAPIReader(), plans: s.blobs, runs: s.runs, glass: units.Glass, judged: apps.Judged, token: token}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		select {
		case <-s.manager.Elected():
			fmt.Fprintln(rw, "ok")
		default:
			http.Error(rw, "waiting to become the leader", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /metrics", m.handler())
	mux.Handle("GET /api/v1/units/{kind}/{namespace}/{name}/log", w.authenticated(w.log))
	mux.Handle("GET /api/v1/units/{kind}/{namespace}/{name}/plan", w.authenticated(w.plan))
	mux.Handle("GET /api/v1/units/{kind}/{namespace}/{name}/policies", w.authenticated(w.policies))
	mux.Handle("GET /api/v1/units/{kind}/{namespace}/{name}/glass", w.authenticated(w.openGlass))
	ledger := w.authenticated(s.ledger.Handler().ServeHTTP)
	mux.Handle("GET "+audit.Path, ledger)
	mux.Handle("GET "+audit.Path+"/", ledger)
	mux.Handle("POST /api/v1/states/rotate-key", w.authenticated(s.rotateKey))
	mux.Handle("/", s.artifacts.Handler())
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	return w, writeServerFile(s.config.DataDir, map[string]string{
		"address": s.Address(), "token": token, "stateAddress": s.states.url, "stateCA": string(s.states.listener.CA()),
	})
}

// serverToken is a new token for each process of an embedded control plane. On a
// cluster it is kept in a Secret, from which people who may read it get it.
func serverToken(ctx context.Context, cfg config.Config, reader client.Reader, c client.Client) (string, error) {
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make server token: %w", err)
	}
	token := hex.EncodeToString(raw)
	if cfg.Mode == config.Up {
		return token, nil
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: install.TokenSecretName},
		Data:       map[string][]byte{"token": []byte(token)},
	}
	err := c.Create(ctx, secret)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		// Without the namespace of an installation (a process on a laptop, beside a
		// cluster) the token is in the data directory only.
		return token, nil
	case !apierrors.IsAlreadyExists(err):
		return "", fmt.Errorf("keep server token: %w", err)
	}
	if err := reader.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
		return "", fmt.Errorf("read server token: %w", err)
	}
	if kept := string(secret.Data["token"]); kept != "" {
		return kept, nil
	}
	secret.Data = map[string][]byte{"token": []byte(token)}
	if err := c.Update(ctx, secret); err != nil {
		return "", fmt.Errorf("keep server token: %w", err)
	}
	return token, nil
}

func writeServerFile(dir string, facts map[string]string) error {
	content, err := json.Marshal(facts)
	if err != nil {
		return fmt.Errorf("write %s: %w", ServerFile, err)
	}
	path := filepath.Join(dir, ServerFile)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", ServerFile, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", ServerFile, err)
	}
	return nil
}

func (w *web) serve(ctx context.Context, l net.Listener) error {
	go func() {
		<-ctx.Done()
		_ = w.server.Close()
	}()
	if err := w.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

func (w *web) authenticated(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		given := r.Header.Get(tokenHeader)
		if given == "" {
			given = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		}
		if subtle.ConstantTimeCompare([]byte(given), []byte(w.token)) != 1 {
			http.Error(rw, "the server's token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next(rw, r)
	})
}

func unitOf(r *http.Request) (run.Unit, bool) {
	return run.Unit{Kind: infra.TerraformKind, Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		strings.EqualFold(r.PathValue("kind"), infra.TerraformKind)
}

// log streams the log of a run: the latest one unless ?run= names another; from the
// line on that follows ?after=; with ?follow=true until the run ends. It is text, or
// with ?format=json an object of run, line, time, stream and text for each line.
func (w *web) log(rw http.ResponseWriter, r *http.Request) {
	u, ok := unitOf(r)
	if !ok {
		http.Error(rw, "no unit of this kind has runs", http.StatusNotFound)
		return
	}
	query := r.URL.Query()
	opts := run.LogOptions{Follow: query.Get("follow") == "true"}
	if after := query.Get("after"); after != "" {
		n, err := strconv.ParseInt(after, 10, 64)
		if err != nil || n < 0 {
			http.Error(rw, "after: a line number is wanted", http.StatusBadRequest)
			return
		}
		opts.After = n
	}
	in, err := w.runs.Log(u, query.Get("run"), opts)
	if errors.Is(err, run.ErrNoLog) {
		http.Error(rw, "no log is kept", http.StatusNotFound)
		return
	} else if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	defer in.Close()
	// A reader that follows waits for the run; it has to end with its client.
	stop := context.AfterFunc(r.Context(), func() { _ = in.Close() })
	defer stop()
	kind, write := "text/plain; charset=utf-8", func(out io.Writer, l run.Line) { fmt.Fprintln(out, l) }
	if query.Get("format") == "json" {
		kind = "application/x-ndjson"
		write = func(out io.Writer, l run.Line) {
			encoder := json.NewEncoder(out)
			encoder.SetEscapeHTML(false)
			_ = encoder.Encode(struct {
				Run string `json:"run"`
				run.Line
			}{in.Run(), l})
		}
	}
	rw.Header().Set("Content-Type", kind)
	flush := http.NewResponseController(rw)
	rw.WriteHeader(http.StatusOK)
	if opts.Follow {
		_ = flush.Flush()
	}
	var text bytes.Buffer
	for {
		lines, err := in.Next()
		text.Reset()
		for _, l := range lines {
			write(&text, l)
		}
		if _, werr := rw.Write(text.Bytes()); werr != nil {
			return
		}
		if err != nil && err != io.EOF {
			// Without its last chunk the answer is known to be cut.
			panic(http.ErrAbortHandler)
		}
		if err == io.EOF {
			return
		}
		if opts.Follow {
			_ = flush.Flush()
		}
	}
}

// plan answers with the unit's last plan, as text or with ?format=json.
func (w *web) plan(rw http.ResponseWriter, r *http.Request) {
	u, ok := unitOf(r)
	var tf infra.Terraform
	err := apierrors.NewNotFound(infra.GroupVersion.WithResource("terraforms").GroupResource(), u.Name)
	if ok {
		if gerr := w.units.Get(r.Context(), client.ObjectKey{Namespace: u.Namespace, Name: u.Name}, &tf); gerr == nil {
			err = nil
		}
	}
	if err != nil || tf.Status.LastPlan == nil {
		http.Error(rw, "no plan is kept", http.StatusNotFound)
		return
	}
	stored, perr := terraform.ReadPlan(r.Context(), w.plans, tf.Status.LastPlan.Blob)
	if errors.Is(perr, blob.ErrNotFound) {
		http.Error(rw, "the plan is not kept any more", http.StatusNotFound)
		return
	} else if perr != nil {
		http.Error(rw, perr.Error(), http.StatusInternalServerError)
		return
	}
	if r.URL.Query().Get("format") == "json" {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write(stored.JSON)
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(rw, stored.Text)
}

// policies answers with what policies say of the plan of a Kustomization, which is made anew
// at each look; that of a Terraform unit has it.
func (w *web) policies(rw http.ResponseWriter, r *http.Request) {
	var results []plan.PolicyResult
	if strings.EqualFold(r.PathValue("kind"), kustomizev1.KustomizationKind) {
		results = w.judged(types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")})
	}
	if len(results) == 0 {
		http.Error(rw, "no policy says anything", http.StatusNotFound)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(results)
}

// openGlass answers with the directory and environment of a unit that stands still
// for work by hand.
func (w *web) openGlass(rw http.ResponseWriter, r *http.Request) {
	u, ok := unitOf(r)
	if ok {
		if dir, env, open := w.glass(u); open {
			rw.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(rw).Encode(map[string]any{"dir": dir, "env": env})
			return
		}
	}
	http.Error(rw, "the glass is not broken", http.StatusNotFound)
}

// profile serves the profiler, on loopback only; the configuration was checked for that.
func (s *Server) profile(ctx context.Context) error {
	if s.config.Pprof == "" {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.config.Pprof)
	if err != nil {
		return fmt.Errorf("serve --pprof: %w", err)
	}
	s.log.Info("the profiler is served", "address", "http://"+l.Addr().String()+"/debug/pprof/")
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve --pprof: %w", err)
	}
	return nil
}
