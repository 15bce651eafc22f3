// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// helperDir names the data directory of a test binary that runs as a control
// plane of its own, to be killed.
const helperDir = "TERRACE_TEST_CONTROLPLANE_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		os.Exit(helper(dir))
	}
	code := m.Run()
	if one.cp != nil {
		if err := stop(one.cp); err != nil {
			fmt.Fprintln(os.Stderr, "stop the shared control plane:", err)
			code = 1
		}
	}
	if one.dir != "" {
		os.RemoveAll(one.dir)
	}
	os.Exit(code)
}

// one is the control plane that tests share which do not stop it.
var one struct {
	sync.Once
	dir string
	cp  *ControlPlane
	err error
}

func shared(t *testing.T) *ControlPlane {
	t.Helper()
	one.Do(func() {
		if one.dir, one.err = os.MkdirTemp("", "terrace-test-"); one.err == nil {
			one.cp, one.err = startIn(filepath.Join(one.dir, "data"))
		}
	})
	if one.err != nil {
		t.Fatal(one.err)
	}
	return one.cp
}

func startIn(dir string) (*ControlPlane, error) {
	return startWith(Config{DataDir: dir})
}

func startWith(config Config) (*ControlPlane, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if config.APIAddress == "" {
		config.APIAddress = "127.0.0.1:0"
	}
	return Start(ctx, config)
}

func stop(cp *ControlPlane) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return cp.Stop(ctx)
}

func mustStart(t *testing.T, config Config) *ControlPlane {
	t.Helper()
	cp, err := startWith(config)
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func mustStop(t *testing.T, cp *ControlPlane) {
	t.Helper()
	if err := stop(cp); err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantStartError fails unless err is a StartError with both texts.
func wantStartError(t *testing.T, err error, what, hint string) {
	t.Helper()
	var start *StartError
	if !errors.As(err, &start) {
		t.Fatalf("got %v, want a StartError", err)
	}
	if !strings.Contains(start.Error(), what) {
		t.Errorf("error %q does not say %q", start.Error(), what)
	}
	if !strings.Contains(start.Hint, hint) {
		t.Errorf("hint %q does not say %q", start.Hint, hint)
	}
	if strings.Contains(start.Error(), "\n") {
		t.Errorf("error has several lines: %q", start.Error())
	}
}

func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	ctx := t.Context()
	cp := mustStart(t, Config{DataDir: dir})
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data directory has mode %v (%v), want 0700", info.Mode(), err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default"},
		StringData: map[string]string{"key": "canary-in-the-clear"},
	}
	if _, err := client(t, cp.RESTConfig()).CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token := mint(t, cp, "default", "default")
	mustStop(t, cp)
	if err := <-cp.Wait(); err != nil {
		t.Errorf("Wait after Stop: %v, want nil", err)
	}
	if err := stop(cp); err != nil {
		t.Errorf("second Stop: %v", err)
	}

	// What the API server wrote is on disk now, and must not be readable there.
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, want nothing for others", path, info.Mode())
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte("canary-in-the-clear")) {
			t.Errorf("%s has the Secret in the clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	cp = mustStart(t, Config{DataDir: dir})
	defer mustStop(t, cp)
	kept, err := client(t, cp.RESTConfig()).CoreV1().Secrets("default").Get(ctx, "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(kept.Data["key"]); got != "canary-in-the-clear" {
		t.Errorf("Secret has %q after a restart", got)
	}
	// Tokens of service accounts stay valid: the key is kept.
	if _, err := client(t, bearer(cp, token)).Discovery().ServerVersion(); err != nil {
		t.Errorf("token from before the restart: %v", err)
	}
	// The kubeconfig names the new port.
	admin, err := clientcmd.BuildConfigFromFlags("", cp.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, admin).CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("list with the kubeconfig: %v", err)
	}
}

func TestHeld(t *testing.T) {
	cp := shared(t)
	_, err := startIn(cp.DataDir())
	wantStartError(t, err, fmt.Sprintf("process %d on ", os.Getpid()), fmt.Sprintf("kill %d", os.Getpid()))
	if !errors.Is(err, ErrHeld) {
		t.Errorf("%v is not ErrHeld", err)
	}
}

func TestUnusable(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "in the way")
	foreign := t.TempDir()
	write(t, filepath.Join(foreign, "thesis.txt"), "not ours")

	cases := map[string]struct {
		reason     string
		config     Config
		what, hint string
	}{
		"no directory": {
			reason: "nothing has a default that could surprise",
			what:   "no path is given", hint: "--data-dir",
		},
		"port in use": {
			reason: "the most frequent mistake",
			config: Config{DataDir: filepath.Join(t.TempDir(), "d"), APIAddress: taken.Addr().String()},
			what:   "listen on " + taken.Addr().String() + ": address already in use", hint: "--api-address",
		},
		"no address": {
			reason: "a typing error",
			config: Config{DataDir: filepath.Join(t.TempDir(), "d"), APIAddress: "localhost"},
			what:   "listen on localhost", hint: "host:port",
		},
		"address of another machine": {
			reason: "TEST-NET-1 is nobody's",
			config: Config{DataDir: filepath.Join(t.TempDir(), "d"), APIAddress: "192.0.2.1:0"},
			what:   "listen on 192.0.2.1:0: cannot assign requested address", hint: "of this machine",
		},
		"file in the way": {
			reason: "a directory that cannot be made",
			config: Config{DataDir: filepath.Join(file, "data")},
			what:   "not a directory", hint: "that this user can write to",
		},
		"unwritable": {
			reason: "no user may make directories in proc, root neither",
			config: Config{DataDir: "/proc/terrace"},
			what:   "use data directory /proc/terrace", hint: "that this user can write to",
		},
		"foreign directory": {
			reason: "--data-dir $HOME must not change its mode nor fill it",
			config: Config{DataDir: foreign},
			what:   "such as thesis.txt", hint: "new or an empty directory",
		},
		"no space": {
			reason: "a first start needs the reserve",
			config: Config{DataDir: filepath.Join(t.TempDir(), "d"), reserve: 1 << 60},
			what:   "MiB are needed", hint: "free space there",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(c.config.DataDir, "/proc") && runtime.GOOS != "linux" {
				t.Skip("no /proc")
			}
			_, err := startWith(c.config)
			wantStartError(t, err, c.what, c.hint)
		})
	}
}

func TestCorrupt(t *testing.T) {
	// A directory that has been used is copied and damaged for each case, so
	// that one start serves all.
	used := filepath.Join(t.TempDir(), "data")
	mustStop(t, mustStart(t, Config{DataDir: used}))
	db := filepath.Join("etcd", "member", "snap", "db")

	cases := map[string]struct {
		reason string
		damage func(t *testing.T, dir string)
		what   string
	}{
		"database overwritten": {
			reason: "etcd panics on it",
			damage: func(t *testing.T, dir string) {
				write(t, filepath.Join(dir, db), strings.Repeat("not a database ", 10000))
			},
			what: "open the database of",
		},
		"database cut": {
			reason: "a read beyond the end of a mapped file is a bus error",
			damage: func(t *testing.T, dir string) {
				if err := os.Truncate(filepath.Join(dir, db), 3*4096); err != nil {
					t.Fatal(err)
				}
			},
			what: "open the database of",
		},
		"database empty": {
			reason: "bolt would make a new one in its place, and all would be gone",
			damage: func(t *testing.T, dir string) { write(t, filepath.Join(dir, db), "") },
			what:   "open the database of",
		},
		"database missing": {
			reason: "etcd would begin anew",
			damage: func(t *testing.T, dir string) { remove(t, filepath.Join(dir, db)) },
			what:   "etcd/member/snap/db is missing",
		},
		"log overwritten": {
			reason: "etcd ends the process by a fatal log line",
			damage: func(t *testing.T, dir string) {
				logs, err := filepath.Glob(filepath.Join(dir, "etcd", "member", "wal", "*.wal"))
				if err != nil || len(logs) == 0 {
					t.Fatalf("no log: %v", err)
				}
				f, err := os.OpenFile(logs[0], os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteAt(bytes.Repeat([]byte("x"), 4096), 512); err != nil {
					t.Fatal(err)
				}
			},
			what: "open the database of",
		},
		"key of Secrets missing": {
			reason: "a new key would make every Secret unreadable",
			damage: func(t *testing.T, dir string) { remove(t, filepath.Join(dir, encryptionFile)) },
			what:   "encryption.yaml: it is missing",
		},
		"key of Secrets overwritten": {
			reason: "the API server's own error would quote the file",
			damage: func(t *testing.T, dir string) { write(t, filepath.Join(dir, encryptionFile), "key: [") },
			what:   "encryption.yaml: it is not an EncryptionConfiguration",
		},
		"key of the authority overwritten": {
			reason: "a new one would lock out everybody, so a person decides",
			damage: func(t *testing.T, dir string) { write(t, filepath.Join(dir, "pki", "ca.key"), "nonsense") },
			what:   "pki/ca.key",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(used)); err != nil {
				t.Fatal(err)
			}
			c.damage(t, dir)
			cp, err := startIn(dir)
			if err == nil {
				mustStop(t, cp)
				t.Fatalf("started (%s)", c.reason)
			}
			wantStartError(t, err, c.what, "restore")
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v is not ErrCorrupt", err)
			}
		})
	}

	t.Run("what can be made anew", func(t *testing.T) {
		for _, name := range []string{"pki", "kubeconfig", "authentication.yaml"} {
			if err := os.RemoveAll(filepath.Join(used, name)); err != nil {
				t.Fatal(err)
			}
		}
		mustStop(t, mustStart(t, Config{DataDir: used}))
	})
}

// TestKill kills a control plane between acknowledged writes. What it had
// acknowledged is there after the next start.
func TestKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(executable, "-test.run=^$")
	victim.Env = append(os.Environ(), helperDir+"="+dir)
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer victim.Process.Kill() //nolint:errcheck // it has ended, when all went well
	var acknowledged []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		acknowledged = append(acknowledged, lines.Text())
		if len(acknowledged) == 40 {
			if err := victim.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := victim.Wait(); err == nil || len(acknowledged) < 40 {
		t.Fatalf("the control plane ended by itself after %d objects: %v", len(acknowledged), err)
	}

	cp := mustStart(t, Config{DataDir: dir})
	defer mustStop(t, cp)
	list, err := client(t, cp.RESTConfig()).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, cm := range list.Items {
		have[cm.Name] = true
	}
	for _, name := range acknowledged {
		if !have[name] {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
}

// helper runs a control plane and writes objects to it, and the name of each
// that was acknowledged to standard output, until it is killed.
func helper(dir string) int {
	cp, err := startIn(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c, err := kubernetes.NewForConfig(cp.RESTConfig())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := 0; ; i++ {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i)}}
		if _, err := c.CoreV1().ConfigMaps("default").Create(context.Background(), cm, metav1.CreateOptions{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(cm.Name)
	}
}

// TestInterruptedStart has the start end while the API server serves and is not
// ready: no part of it may take that for a fault.
func TestInterruptedStart(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	dir := filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			// A handshake is answered from the moment on at which the server serves.
			conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
			if err == nil {
				conn.Close()
				return
			}
		}
	}()
	cp, err := Start(ctx, Config{DataDir: dir, APIAddress: address})
	if err == nil {
		mustStop(t, cp)
		t.Skip("it was ready too soon")
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Start: %v, want %v", err, context.Canceled)
	}
	mustStop(t, mustStart(t, Config{DataDir: dir, APIAddress: address}))
}

func TestAnonymous(t *testing.T) {
	cp := shared(t)
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the server is ours
	cases := map[string]struct {
		reason string
		path   string
		want   int
	}{
		"ready":     {reason: "probes have no name", path: "/readyz", want: http.StatusOK},
		"live":      {reason: "probes have no name", path: "/livez", want: http.StatusOK},
		"health":    {reason: "probes have no name", path: "/healthz", want: http.StatusOK},
		"version":   {reason: "by default public in Kubernetes", path: "/version", want: http.StatusUnauthorized},
		"discovery": {reason: "kinds tell what is managed here", path: "/apis", want: http.StatusUnauthorized},
		"objects":   {reason: "of course", path: "/api/v1/namespaces", want: http.StatusUnauthorized},
		"metrics":   {reason: "names of resources are in there", path: "/metrics", want: http.StatusUnauthorized},
		"keys":      {reason: "by default public in Kubernetes", path: "/openid/v1/jwks", want: http.StatusUnauthorized},
		"below":     {reason: "only the exact path is open", path: "/readyz/etcd", want: http.StatusUnauthorized},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			response, err := anonymous.Get(cp.URL() + c.path)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != c.want {
				t.Errorf("GET %s: %s, want %d (%s)", c.path, response.Status, c.want, c.reason)
			}
		})
	}
	t.Run("unknown certificate", func(t *testing.T) {
		other := &authority{dir: &directory{path: t.TempDir()}, now: time.Now, life: time.Hour}
		if _, err := other.renew(); err != nil {
			t.Fatal(err)
		}
		p, err := other.pair(adminName)
		if err != nil {
			t.Fatal(err)
		}
		config := cp.RESTConfig()
		config.CertFile, config.KeyFile, config.CertData, config.KeyData = "", "", p.cert, p.key
		_, err = client(t, config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("an administrator of another authority: %v, want unauthorized", err)
		}
	})
}

// TestSockets looks at the sockets on which this process listens.
func TestSockets(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	cp := shared(t)
	own := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	var listening []string
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile("/proc/self/net/" + table)
		if err != nil {
			continue // a kernel without it
		}
		for _, line := range strings.Split(string(content), "\n")[1:] {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && own[f[9]] {
				listening = append(listening, f[1])
			}
		}
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(cp.URL(), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	var number int
	fmt.Sscan(port, &number)
	want := fmt.Sprintf("0100007F:%04X", number)
	if len(listening) != 1 || listening[0] != want {
		t.Errorf("listening on %v, want only the API server on %s", listening, want)
	}
	socket, err := os.Stat(filepath.Join(cp.DataDir(), etcdSocket))
	if err != nil || socket.Mode().Type() != os.ModeSocket {
		t.Errorf("etcd's socket: %v %v", socket, err)
	}
}

// TestLongPath starts below a path that does not fit a socket address.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 24), "data")
	cp := mustStart(t, Config{DataDir: dir})
	shortcut := cp.etcd.shortcut
	if shortcut == "" {
		t.Error("no shortcut was needed")
	}
	if _, err := os.Stat(filepath.Join(dir, etcdSocket)); err != nil {
		t.Errorf("the socket is not in the data directory: %v", err)
	}
	mustStop(t, cp)
	if _, err := os.Stat(shortcut); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left behind: %v", shortcut, err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
