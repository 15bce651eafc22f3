// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

func TestWriteGate(t *testing.T) {
	cases := map[string]struct {
		reason       string
		method, path string
		want         int
	}{
		"read":           {reason: "reading needs no space", method: "GET", path: "/api/v1/namespaces/a/configmaps", want: 200},
		"create":         {reason: "a write", method: "POST", path: "/api/v1/namespaces/a/configmaps", want: 507},
		"update":         {reason: "a write", method: "PUT", path: "/api/v1/namespaces/a/configmaps/b", want: 507},
		"patch":          {reason: "a write", method: "PATCH", path: "/apis/apps/v1/namespaces/a/deployments/b/status", want: 507},
		"delete":         {reason: "the way out", method: "DELETE", path: "/api/v1/namespaces/a/configmaps/b", want: 200},
		"delete all":     {reason: "the way out", method: "DELETE", path: "/api/v1/namespaces/a/configmaps", want: 200},
		"dry run":        {reason: "nothing is written", method: "POST", path: "/api/v1/namespaces/a/configmaps?dryRun=All", want: 200},
		"access review":  {reason: "a question", method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", want: 200},
		"token review":   {reason: "a question", method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", want: 200},
		"token":          {reason: "signed, not stored", method: "POST", path: "/api/v1/namespaces/a/serviceaccounts/b/token", want: 200},
		"not a resource": {reason: "health probes", method: "GET", path: "/readyz", want: 200},
	}
	resolver := &genericrequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			gate := &writeGate{}
			handler := gate.handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }))
			for closed, want := range map[bool]int{false: 200, true: c.want} {
				gate.closed.Store(nil)
				if closed {
					gate.closed.Store(&storageFull{why: "no space"})
				}
				request := httptest.NewRequest(c.method, c.path, nil)
				info, err := resolver.NewRequestInfo(request)
				if err != nil {
					t.Fatal(err)
				}
				answer := httptest.NewRecorder()
				handler.ServeHTTP(answer, request.WithContext(genericrequest.WithRequestInfo(request.Context(), info)))
				if answer.Code != want {
					t.Errorf("closed %v: %d, want %d (%s)", closed, answer.Code, want, c.reason)
				}
			}
		})
	}
}

// TestSpace lets a control plane see less and less free space, and more again.
func TestSpace(t *testing.T) {
	cp := mustStart(t, Config{DataDir: filepath.Join(t.TempDir(), "data")})
	defer mustStop(t, cp)
	// A second look-out with a hand on the number; the first sees plenty, and
	// looks too rarely to interfere.
	cp.cancelBackground()
	cp.background.Wait()
	free := uint64(1 << 40)
	s := newStorage(cp.dir.path, 100<<20, cp.etcd, cp.gate, clock.RealClock{}, logr.Discard())
	s.free = func(string) (uint64, error) { return free, nil }
	c := client(t, cp.RESTConfig())

	steps := []struct {
		reason string
		free   uint64
		full   bool
	}{
		{reason: "plenty", free: 1 << 40},
		{reason: "the reserve is just there", free: 100 << 20},
		{reason: "below the reserve", free: 99 << 20, full: true},
		{reason: "not enough to open again", free: 120 << 20, full: true},
		{reason: "a quarter more than the reserve", free: 125 << 20},
	}
	for _, step := range steps {
		free = step.free
		s.look(t.Context())
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "cm-"}}
		_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
		if full := apierrors.ReasonForError(err) == reasonStorageFull; full != step.full {
			t.Errorf("%s: create: %v", step.reason, err)
		}
		if step.full && !strings.Contains(err.Error(), "MiB free") {
			t.Errorf("%s: the error does not say how much is free: %v", step.reason, err)
		}
		if full := errors.Is(cp.Health(), ErrStorageFull); full != step.full {
			t.Errorf("%s: health: %v", step.reason, cp.Health())
		}
		if _, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("%s: list: %v", step.reason, err)
		}
		if _, err := c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); (err != nil) != step.full {
			t.Errorf("%s: /readyz: %v", step.reason, err)
		}
		if _, err := c.Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(t.Context()); err != nil {
			t.Errorf("%s: /livez: %v", step.reason, err)
		}
	}
	if _, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("token: %v", err)
	}
}

// TestQuota fills the database up to its quota. Writes are refused, deletions are
// not, and after them it accepts writes again by itself.
func TestQuota(t *testing.T) {
	cp := mustStart(t, Config{DataDir: filepath.Join(t.TempDir(), "data"), Quota: 48 << 20})
	defer mustStop(t, cp)
	cp.cancelBackground()
	cp.background.Wait()
	s := newStorage(cp.dir.path, 1, cp.etcd, cp.gate, clock.RealClock{}, logr.Discard())
	c := client(t, cp.RESTConfig())
	// It finds space a few times, in old revisions and unused pages.
	for range 20 {
		err := fill(t.Context(), c, 200)
		if err == nil {
			t.Fatal("the quota was never met")
		}
		if full := apierrors.ReasonForError(err) == reasonStorageFull; !full && !strings.Contains(err.Error(), "database space exceeded") {
			t.Fatalf("fill: %v", err)
		}
		s.look(t.Context())
		if cp.Health() != nil {
			break
		}
	}
	if !errors.Is(cp.Health(), ErrStorageFull) || !strings.Contains(cp.Health().Error(), "its quota is 48 MiB") {
		t.Errorf("health: %v", cp.Health())
	}
	if err := c.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "filling"}); err != nil {
		t.Fatal(err)
	}
	s.look(t.Context())
	if err := cp.Health(); err != nil {
		t.Errorf("health after deletion: %v", err)
	}
	if err := fill(t.Context(), c, 1); err != nil {
		t.Errorf("write after deletion: %v", err)
	}
	if size := s.server.Backend().Size(); size > 24<<20 {
		t.Errorf("the database still has %d bytes", size)
	}
}

// fill writes up to n ConfigMaps of 512 KiB that do not compress.
func fill(ctx context.Context, c kubernetes.Interface, n int) error {
	noise := make([]byte, 384<<10)
	rand.New(rand.NewSource(1)).Read(noise) //nolint:gosec,staticcheck // filling
	for i := range n {
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "filling-", Labels: map[string]string{"filling": ""}},
			Data:       map[string]string{"noise": base64.StdEncoding.EncodeToString(noise)},
		}
		if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("object %d: %w", i, err)
		}
	}
	return nil
}

// TestFullDisk runs on a file system of its own that another file fills. The
// control plane refuses writes, goes on living, and recovers.
func TestFullDisk(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("mounts a small file system, which only root on Linux may")
	}
	mount := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=200m", "terrace-test", mount).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	dir := filepath.Join(mount, "data")
	config := Config{DataDir: dir, reserve: 64 << 20}
	cp := mustStart(t, config)
	c := client(t, cp.RESTConfig())
	ballast := filepath.Join(mount, "ballast")
	hog(t, ballast)
	refused := awaitWrite(t, c, false)
	if !strings.Contains(refused.Error(), "writes are refused") {
		t.Errorf("refused by: %v", refused)
	}
	if _, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("list on a full disk: %v", err)
	}
	mustStop(t, cp)
	_, err := startWith(config)
	wantStartError(t, err, "MiB free", "free space there")

	remove(t, ballast)
	cp = mustStart(t, config)
	defer mustStop(t, cp)
	awaitWrite(t, client(t, cp.RESTConfig()), true)
}

// hog writes until nothing is free.
func hog(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = f.Write(block)
	}
}

// awaitWrite writes until that works, or until it is refused, and returns the refusal.
func awaitWrite(t *testing.T, c kubernetes.Interface, want bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "cm-"}}
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		if ctx.Err() != nil {
			t.Fatalf("waited %v; last answer: %v", patience, err)
		}
		if (err == nil) == want {
			return err
		}
	}
}
