// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/blob"
	tfstate "github.com/terrace-dev/terrace/internal/state"
	stateserver "github.com/terrace-dev/terrace/internal/state/server"
	"github.com/terrace-dev/terrace/internal/state/store"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// reviews says that the token "mine" is ann, who may everything but what is denied.
type reviews struct{ denied string }

func (r *reviews) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	switch o := o.(type) {
	case *authenticationv1.TokenReview:
		o.Status.Authenticated, o.Status.User.Username = o.Spec.Token == "mine", "ann"
	case *authorizationv1.SubjectAccessReview:
		o.Status.Allowed = o.Spec.ResourceAttributes.Verb != r.denied
	}
	return nil
}

// stateWorld is as much of a cluster with a state service as the verbs of "state" see.
type stateWorld struct {
	t       *testing.T
	store   *store.Store
	tokens  *stateserver.Tokens
	reviews *reviews
	api     *httptest.Server
	states  *httptest.Server
	dir     string
	asked   []string // of the state service, by way of the API server or not
}

func newStateWorld(t *testing.T) *stateWorld {
	t.Helper()
	w := &stateWorld{t: t, dir: t.TempDir(), reviews: &reviews{}}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.State{}).Build()
	blobs, err := blob.Open(t.Context(), blob.Options{URL: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "k")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	clock := testingclock.NewFakeClock(start)
	w.store = store.New(store.Options{Client: objects, Blobs: blobs.Part("states"), Clock: clock})
	if w.tokens, err = stateserver.NewTokens(make([]byte, 32), clock); err != nil {
		t.Fatal(err)
	}
	handler, err := stateserver.New(stateserver.Options{Store: w.store, Tokens: w.tokens, Clock: clock, Kubernetes: stateserver.NewKubernetes(w.reviews, nil, nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	w.states = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.asked = append(w.asked, r.Method+" "+r.URL.Path)
		handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.states.Close)
	w.api = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.serveAPI(rw, r, objects, handler) }))
	t.Cleanup(w.api.Close)
	w.kubeconfig(func(c *clientcmdapi.AuthInfo) { c.Token = "mine" })
	w.serverFile(map[string]string{"stateAddress": w.states.Listener.Addr().String(), "stateCA": string(certificate(w.states))})
	return w
}

func certificate(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func (w *stateWorld) kubeconfig(who func(*clientcmdapi.AuthInfo)) {
	w.t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: w.api.URL, CertificateAuthorityData: certificate(w.api)}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	who(c.AuthInfos["u"])
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "ns"}
	c.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*c, filepath.Join(w.dir, "kubeconfig")); err != nil {
		w.t.Fatal(err)
	}
}

func (w *stateWorld) serverFile(content map[string]string) {
	w.t.Helper()
	b, err := json.Marshal(content)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "server.json"), b, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// serveAPI serves State objects, and forwards to the state service without the
// credentials, as an API server does.
func (w *stateWorld) serveAPI(rw http.ResponseWriter, r *http.Request, objects client.Client, handler http.Handler) {
	const proxy = "/api/v1/namespaces/terrace-system/services/https:terrace-state:https/proxy"
	if rest, ok := strings.CutPrefix(r.URL.Path, proxy); ok {
		w.asked = append(w.asked, "proxied "+r.Method+" "+rest)
		r.Header.Del("Authorization")
		r.URL.Path = rest
		handler.ServeHTTP(rw, r)
		return
	}
	answer := func(o runtime.Object, err error) {
		rw.Header().Set("Content-Type", "application/json")
		if err != nil {
			status := apierrors.APIStatus(nil)
			if s, ok := err.(apierrors.APIStatus); ok {
				status = s
			}
			rw.WriteHeader(int(status.Status().Code))
			s := status.Status()
			s.Kind, s.APIVersion = "Status", "v1"
			_ = json.NewEncoder(rw).Encode(s)
			return
		}
		_ = json.NewEncoder(rw).Encode(o)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/apis/terrace.dev/v1alpha1/")
	namespace, name := "", ""
	if parts := strings.Split(rest, "/"); parts[0] == "namespaces" {
		namespace, name = parts[1], strings.Join(parts[3:], "/")
	}
	switch {
	case !ok:
		http.NotFound(rw, r)
	case name != "":
		o := &v1alpha1.State{}
		err := objects.Get(r.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
		o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("State"))
		answer(o, err)
	default:
		l := &v1alpha1.StateList{}
		err := objects.List(r.Context(), l, client.InNamespace(namespace))
		l.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("StateList"))
		for i := range l.Items {
			l.Items[i].SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("State"))
		}
		answer(l, err)
	}
}

// stateOutcome is what a command line did.
type stateOutcome struct {
	Code        int
	Out, Errors string
}

// run runs "terrace state ARGS" with what a person types.
func (w *stateWorld) run(typed string, args ...string) stateOutcome {
	w.t.Helper()
	var out, errs bytes.Buffer
	a := &app{env: Env{
		Stdin: strings.NewReader(typed), Stdout: &out, Stderr: &errs, Interactive: typed != "",
		LookupEnv: func(string) (string, bool) { return "", false },
		Now:       func() time.Time { return start.Add(time.Hour) },
		Build:     Build{Version: "v1"},
	}}
	root := newRoot(a)
	if found, _, err := root.Find([]string{"state"}); err != nil || found == root {
		verb := newState(a)
		a.flags.add(verb.PersistentFlags())
		root.AddCommand(verb)
	}
	root.SetArgs(append(append([]string{"state"}, args...), "--kubeconfig", filepath.Join(w.dir, "kubeconfig")))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	code := a.report(root.ExecuteContext(w.t.Context()))
	return stateOutcome{code, out.String(), errs.String()}
}

func (w *stateWorld) write(name, content string, by string) {
	w.t.Helper()
	o := store.WriteOptions{Force: true, By: by, Operation: "apply"}
	if _, err := w.store.Write(w.t.Context(), store.Key{Namespace: "ns", Name: name}, []byte(content), o); err != nil {
		w.t.Fatal(err)
	}
}

// newest is the content of the newest version.
func (w *stateWorld) newest(name string) string {
	w.t.Helper()
	b, _, err := w.store.Read(w.t.Context(), store.Key{Namespace: "ns", Name: name}, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

const stateOne = `{"version":4,"serial":1,"lineage":"l","outputs":{
 "url":{"value":"http://one","type":"string"},"login":{"value":"hunter2-of-old","type":"string","sensitive":true},"gone":{"value":1,"type":"number"}},"resources":[
 {"mode":"managed","type":"terraform_data","name":"a","instances":[{"attributes":{"input":"one","size":1,"note":"it is hunter2-of-old","tags":{"x":"1"}},"sensitive_attributes":[]}]},
 {"mode":"managed","type":"terraform_data","name":"b","instances":[{"index_key":0,"attributes":{"id":"b0"}},{"index_key":"k","attributes":{"id":"bk"}}]},
 {"module":"module.m[\"z\"]","mode":"managed","type":"aws_db_instance","name":"db","instances":[{"attributes":{"master":"first-secret","password":"unmarked-1","list":[{"v":"deep-1"}],"port":1},
  "sensitive_attributes":[[{"type":"get_attr","value":"master"}],[{"type":"get_attr","value":"list"},{"type":"index","value":{"value":0,"type":"number"}}]]}]},
 {"mode":"data","type":"http","name":"d","instances":[{"attributes":{"id":"same"}}]}]}`

const stateTwo = `{"version":4,"serial":2,"lineage":"l","outputs":{
 "url":{"value":"http://two","type":"string"},"login":{"value":"hunter2-of-new","type":"string","sensitive":true},"more":{"value":[1],"type":["list","number"]}},"resources":[
 {"mode":"managed","type":"terraform_data","name":"a","instances":[{"attributes":{"input":"two","size":1,"note":"it is hunter2-of-new","tags":{}},"sensitive_attributes":[]}]},
 {"mode":"managed","type":"terraform_data","name":"b","instances":[{"index_key":0,"attributes":{"id":"b0"}}]},
 {"mode":"managed","type":"terraform_data","name":"c","instances":[{"attributes":{"id":"c"}},{"deposed":"abcd","attributes":{"id":"old"}}]},
 {"module":"module.m[\"z\"]","mode":"managed","type":"aws_db_instance","name":"db","instances":[{"attributes":{"master":"second-secret","password":"unmarked-2","list":[{"v":"deep-2"}],"port":1},
  "sensitive_attributes":[[{"type":"get_attr","value":"master"}],[{"type":"get_attr","value":"list"},{"type":"index","value":{"value":0,"type":"number"}}]]}]},
 {"mode":"data","type":"http","name":"d","instances":[{"attributes":{"id":"same"}}]}]}`

func TestStateDiff(t *testing.T) {
	w := newStateWorld(t)
	w.write("net", stateOne, "ann")
	w.write("net", stateTwo, "ann")
	want := `~ module.m["z"].aws_db_instance.db
    list.0.v: (sensitive value) -> (sensitive value)
    master: (sensitive value) -> (sensitive value)
    password: (sensitive value) -> (sensitive value)
~ terraform_data.a
    input: "one" -> "two"
    note: "it is (sensitive value)" -> "it is (sensitive value)"
    tags: (none) -> {}
    tags.x: "1" -> (none)
- terraform_data.b["k"]
+ terraform_data.c
+ terraform_data.c (deposed abcd)
- output gone: 1 -> (none)
~ output login: (sensitive value) -> (sensitive value)
+ output more: (none) -> [1]
~ output url: "http://one" -> "http://two"
2 added, 2 changed, 1 removed
`
	got := w.run("", "diff", "net", "1", "2", "--exit-code")
	if diff := cmp.Diff(stateOutcome{ExitChanges, want, ""}, got); diff != "" {
		t.Error(diff)
	}
	for _, args := range [][]string{{"diff", "net", "1"}, {"diff", "net", "2", "1"}} {
		if got := w.run("", args...); got.Code != 0 || !strings.Contains(got.Out, "2 changed") || strings.Contains(got.Out, "secret-") || strings.Contains(got.Out, "hunter2") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := w.run("", "diff", "net", "2", "2", "--exit-code"); got.Code != 0 || got.Out != "0 added, 0 changed, 0 removed\n" {
		t.Errorf("with itself: %+v", got)
	}
	w.write("net", `{"serial":3,"lineage":"l","encrypted_data":"eA=="}`, "ann")
	if got := w.run("", "diff", "net", "2"); got.Code != 1 || !strings.Contains(got.Errors, "OpenTofu encrypts it") {
		t.Errorf("with an encrypted one: %+v", got)
	}
}

func TestStateLooks(t *testing.T) {
	w := newStateWorld(t)
	if got := w.run("", "list"); got.Code != 0 || got.Errors != "no states found\n" {
		t.Errorf("%+v", got)
	}
	w.write("net", stateOne, "ann")
	w.write("net", stateTwo, "run-7")
	w.write("sealed", `{"serial":3,"lineage":"l","encrypted_data":"eA=="}`, "")
	l := tfstate.Lock{ID: "id-1", Who: "bob@host", Operation: "OperationTypeApply"}
	if err := w.store.Lock(t.Context(), store.Key{Namespace: "ns", Name: "sealed"}, l, store.Holder{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, `NAME     SERIAL   RESOURCES   SIZE      VERSIONS   LOCKED BY   CHANGED
net      2        5           1.1 KiB   2          -           60m
sealed   3        ?           50 B      1          bob@host    60m
`},
		{[]string{"list", "-A"}, `NAMESPACE   NAME     SERIAL   RESOURCES   SIZE      VERSIONS   LOCKED BY   CHANGED
ns          net      2        5           1.1 KiB   2          -           60m
ns          sealed   3        ?           50 B      1          bob@host    60m
`},
		{[]string{"show", "sealed"}, `Name:      ns/sealed
Serial:    3
Lineage:   l
Resources: ?
Size:      50 B
Versions:  1, 1 to 1
Changed:   2026-01-01T12:00:00Z
Locked by: bob@host (OperationTypeApply) since 2026-01-01T12:00:00Z, id id-1
`},
		{[]string{"show", "net", "--resources", "--version", "1"}, `data.http.d
module.m["z"].aws_db_instance.db
terraform_data.a
terraform_data.b["k"]
terraform_data.b[0]
`},
		{[]string{"versions", "net"}, `VERSION   SERIAL   RESOURCES   SIZE      CREATED                OPERATION   BY      RUN
2         2        5           1.1 KiB   2026-01-01T12:00:00Z   apply       run-7   -
1         1        4           991 B     2026-01-01T12:00:00Z   apply       ann     -
`},
		{[]string{"pull", "net"}, stateTwo}, {[]string{"pull", "net", "--version", "1"}, stateOne},
	} {
		if diff := cmp.Diff(stateOutcome{0, tc.want, ""}, w.run("", tc.args...)); diff != "" {
			t.Errorf("%v:\n%s", tc.args, diff)
		}
	}
	for _, verb := range []string{"list", "show net", "versions net"} {
		if got := w.run("", append(strings.Fields(verb), "-o", "json")...); !json.Valid([]byte(got.Out)) || !strings.Contains(got.Out, `"lineage"`) {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	if len(w.asked) != 3 {
		t.Errorf("the service was asked %v: what is known of a state is in the API", w.asked)
	}
}

// TestStateMissing: what is not there is said, with a place to look.
func TestStateMissing(t *testing.T) {
	w := newStateWorld(t)
	w.write("net", stateOne, "")
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"show", "none"}, 1, "terrace: error: get state/ns/none: not found\nterrace: hint: \"terrace state list -A\" lists the states of all namespaces\n"},
		{[]string{"pull", "net", "--version", "7"}, 1, "no such version: 7"},
		{[]string{"show"}, 64, "needs STATE"}, {[]string{"diff", "net"}, 64, "needs A"}, {[]string{"diff", "net", "0"}, 64, "is no version"},
		{[]string{"rollback", "net"}, 64, "needs VERSION"}, {[]string{"push", "net"}, 64, "needs FILE"}, {[]string{"show", "tf/net"}, 64, "this verb takes state"},
		{[]string{"list", "-o", "xml"}, 64, "use json or yaml"}, {[]string{"show", "net", "--version", "1"}, 64, "--version: it is for --resources"},
		{[]string{"rm", "net"}, 64, "nobody can be asked"}, {[]string{"unlock", "net", "--yes"}, 1, "it is not locked"},
		{[]string{"push", "net", "-"}, 64, "give --yes"}, {[]string{"token", "net", "--for", "-1h"}, 64, "longer than nothing"},
		{[]string{"token", "net", "--for", "9999h"}, 1, "720h"},
	} {
		if got := w.run("", tc.args...); got.Code != tc.code || !strings.Contains(got.Errors, tc.want) {
			t.Errorf("%v: %+v, want %d %q", tc.args, got, tc.code, tc.want)
		}
	}
}

func TestStateChanges(t *testing.T) {
	w := newStateWorld(t)
	file := filepath.Join(t.TempDir(), "f.tfstate")
	put := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	done := func(want string, typed string, args ...string) {
		t.Helper()
		if got := w.run(typed, args...); got.Code != 0 || got.Out != want {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
		for _, name := range []string{"net", "core"} {
			if o, err := w.store.Get(t.Context(), store.Key{Namespace: "ns", Name: name}); err == nil && o.Status.Lock != nil {
				t.Errorf("%v left the lock", args)
			}
		}
	}
	refused := func(want string, typed string, args ...string) {
		t.Helper()
		if got := w.run(typed, args...); got.Code != 1 || !strings.Contains(got.Errors, want) {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
	put(stateOne)
	done("wrote version 1 of state/ns/net\n", "", "push", "net", file, "--yes")
	put(stateTwo)
	refused("nothing was done", "n\n", "push", "net", file)
	done("wrote version 2 of state/ns/net\n", "y\n", "push", "net", file)
	put(stateOne)
	refused("serial is not new", "", "push", "net", file, "--yes")
	done("wrote version 3 of state/ns/net\n", "", "push", "net", file, "--yes", "--force")
	if sum, err := tfstate.Summarize([]byte(w.newest("net"))); err != nil || sum.Serial != 3 {
		t.Errorf("by force it has serial %d: %v", sum.Serial, err)
	}
	put("x")
	refused("read state", "", "push", "net", file, "--yes")
	done("rolled state/ns/net back to version 2: it is version 4, serial 4\n", "yes\n", "rollback", "net", "2")
	if !strings.Contains(w.newest("net"), "http://two") {
		t.Error(w.newest("net"))
	}
	o, err := w.store.Get(t.Context(), store.Key{Namespace: "ns", Name: "net"})
	if err != nil || o.Status.Versions[0].By != "ann" || o.Status.Versions[0].Operation != "rollback" || o.Status.Versions[3].Operation != "push" {
		t.Errorf("%+v, %v", o.Status.Versions, err)
	}
	done("moved state/ns/net to core\n", "", "mv", "net", "core", "--yes")
	refused("not found", "", "pull", "net")

	l := tfstate.Lock{ID: "id-1", Who: "bob@host"}
	if err := w.store.Lock(t.Context(), store.Key{Namespace: "ns", Name: "core"}, l, store.Holder{}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"rollback", "core", "1"}, {"rm", "core", "--force"}, {"mv", "core", "x"}, {"push", "core", file}} {
		put(stateTwo)
		refused(`state is locked by "id-1" of bob@host`, "", append(args, "--yes")...)
	}
	refused("its lock is id-1, not id-2", "", "unlock", "core", "--lock-id", "id-2", "--yes")
	w.reviews.denied = "force-unlock"
	refused("cannot force-unlock", "", "unlock", "core", "--yes")
	w.reviews.denied = ""
	w.kubeconfig(func(c *clientcmdapi.AuthInfo) { c.Token = "other" })
	refused("the token is unknown", "", "unlock", "core", "--yes")
	w.kubeconfig(func(c *clientcmdapi.AuthInfo) { c.Token = "mine" })
}

func TestStateUnlockAndRemove(t *testing.T) {
	w := newStateWorld(t)
	w.write("net", stateOne, "")
	key := store.Key{Namespace: "ns", Name: "net"}
	if err := w.store.Lock(t.Context(), key, tfstate.Lock{ID: "id-1", Who: "bob@host"}, store.Holder{}); err != nil {
		t.Fatal(err)
	}
	if got := w.run("y\n", "unlock", "net"); got.Code != 0 || got.Out != "broke lock id-1 of state/ns/net\n" || !strings.Contains(got.Errors, "held by bob@host") {
		t.Errorf("%+v", got)
	}
	if got := w.run("", "rm", "net", "--yes"); got.Code != 1 || !strings.Contains(got.Errors, "the state has resources") {
		t.Errorf("%+v", got)
	}
	if got := w.run("y\n", "rm", "net", "--force"); got.Code != 0 || got.Out != "removed state/ns/net\n" {
		t.Errorf("%+v", got)
	}
	if _, err := w.store.Get(t.Context(), key); err == nil {
		t.Error("it is still there")
	}
}

func TestStateToken(t *testing.T) {
	w := newStateWorld(t)
	got := w.run("", "token", "net", "--read", "--for", "90m", "-o", "json")
	var made stateserver.TokenAnswer
	if err := json.Unmarshal([]byte(got.Out), &made); err != nil || !made.Expires.Equal(start.Add(90*time.Minute)) {
		t.Errorf("%+v: %v", got, err)
	}
	plain := w.run("", "token", "net")
	if plain.Code != 0 || strings.Count(plain.Out, "\n") != 1 || plain.Errors != "" {
		t.Errorf("%+v", plain)
	}
	for token, want := range map[string]error{made.Token: errDeclined, strings.TrimSpace(plain.Out): nil} {
		r := httptest.NewRequest("GET", "/", nil)
		r.SetBasicAuth("x", token)
		id, err := w.tokens.Authorize(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if err := id.Allow(t.Context(), stateserver.Update, store.Key{Namespace: "ns", Name: "net"}); (err == nil) != (want == nil) {
			t.Errorf("update: %v", err)
		}
	}
}

// TestStateServiceIsFound: by flags, beside the kubeconfig, or through the API server.
func TestStateServiceIsFound(t *testing.T) {
	w := newStateWorld(t)
	w.write("net", stateOne, "")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, certificate(w.states), 0o600); err != nil {
		t.Fatal(err)
	}
	pulls := func(how string, want string, args ...string) {
		t.Helper()
		w.asked = nil
		got := w.run("", append([]string{"pull", "net"}, args...)...)
		if got.Out != stateOne || fmt.Sprint(w.asked) != "["+want+"]" {
			t.Errorf("%s: %+v, asked %v", how, got, w.asked)
		}
	}
	pulls("server.json", "GET /state/ns/net")
	pulls("flags", "GET /state/ns/net", "--state-server", w.states.URL, "--state-ca", ca)
	for how, args := range map[string][]string{
		"not https": {"--state-server", "http://127.0.0.1:1"}, "no CA file": {"--state-server", w.states.URL, "--state-ca", "none"},
		"an unknown CA": {"--state-server", w.states.URL},
	} {
		if got := w.run("", append([]string{"pull", "net"}, args...)...); got.Code != 1 || got.Out != "" {
			t.Errorf("%s: %+v", how, got)
		}
	}
	w.serverFile(map[string]string{"address": "127.0.0.1:1"})
	if got := w.run("", "pull", "net"); got.Code != 1 || !strings.Contains(got.Errors, "does not tell of one") {
		t.Errorf("an older server: %+v", got)
	}
	if err := os.Remove(filepath.Join(w.dir, "server.json")); err != nil {
		t.Fatal(err)
	}
	pulls("the API server", "proxied GET /state/ns/net")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.kubeconfig(func(c *clientcmdapi.AuthInfo) { c.TokenFile = file })
	pulls("a token file", "proxied GET /state/ns/net")
	w.kubeconfig(func(c *clientcmdapi.AuthInfo) { c.Username, c.Password = "ann", "x" })
	if got := w.run("", "pull", "net"); got.Code != 1 || !strings.Contains(got.Errors, "port-forward") {
		t.Errorf("nothing to forward: %+v", got)
	}
	w.kubeconfig(func(c *clientcmdapi.AuthInfo) { c.Token, c.Impersonate = "mine", "root" })
	if got := w.run("", "pull", "net"); got.Code != 1 || !strings.Contains(got.Errors, "acts as another user") {
		t.Errorf("as another user: %+v", got)
	}
}
