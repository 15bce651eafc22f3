// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/terrace-dev/terrace/internal/state"
)

const (
	secretsPath = "/api/v1/namespaces/ns/secrets"
	leasesPath  = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
)

var unitScope = Scope{Namespace: "ns", Suffix: "s", Workspace: "default", Write: true, Run: "r1"}

func open(t *testing.T, s *apiServer) *Gate {
	t.Helper()
	g, err := New(Options{Config: s.config()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- g.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return g
}

func grant(t *testing.T, g *Gate, s Scope) (*Access, *rest.Config) {
	t.Helper()
	a, err := g.Grant(s)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(a.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Revoke)
	return a, c
}

// ask sends a request with the run's token.
func ask(t *testing.T, c *rest.Config, method, path, contentType, body string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, c.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Impersonate-User", "system:admin")
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func pack(payload string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(payload))
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

const (
	emptyState = `{"version":4,"serial":1,"lineage":"l","outputs":{},"resources":[]}`
	fullState  = `{"version":4,"serial":2,"lineage":"l","outputs":{"o":{"value":1}},"resources":[{}]}`
	encrypted  = `{"serial":1,"lineage":"l","encrypted_data":"eA=="}`
)

// secret is a state Secret; with no payload if it is empty.
func secret(name, suffix, workspace, payload string) map[string]any {
	o := map[string]any{
		"metadata": map[string]any{
			"name": name, "namespace": "ns",
			"labels": map[string]any{"tfstate": "true", "tfstateSecretSuffix": suffix, "tfstateWorkspace": workspace},
		},
	}
	if payload != "" {
		o["data"] = map[string]any{"tfstate": pack(payload)}
	}
	return o
}

func lease(name, suffix, workspace, holder string) map[string]any {
	o := secret(name, suffix, workspace, "")
	o["spec"] = map[string]any{}
	if holder != "" {
		o["spec"] = map[string]any{"holderIdentity": holder}
		o["metadata"].(map[string]any)["annotations"] = map[string]any{
			state.LockAnnotation: `{"ID":"` + holder + `","Who":"a@b","Operation":"OperationTypeApply"}`,
		}
	}
	return o
}

func text(o any) string {
	b, _ := json.Marshal(o)
	return string(b)
}

// with returns o with a member of its metadata or, for other names, of itself.
func with(o map[string]any, name string, v any) map[string]any {
	switch name {
	case "labels", "name", "namespace", "generateName", "ownerReferences", "finalizers", "resourceVersion", "uid":
		o["metadata"].(map[string]any)[name] = v
	default:
		o[name] = v
	}
	return o
}

func TestRequests(t *testing.T) {
	own := "tfstate-default-s"
	write := unitScope
	read := unitScope
	read.Write = false
	other := unitScope
	other.Workspace = "w"
	cases := map[string]struct {
		reason string
		scope  Scope
		method string
		path   string
		body   any
		kind   string // content type, JSON if empty
		there  map[string]any
		want   int
		says   string
	}{
		"Read":             {reason: "its own state", scope: read, method: "GET", path: secretsPath + "/" + own, there: secret(own, "s", "default", fullState), want: 200},
		"ReadMissing":      {reason: "not found is told as it is", scope: read, method: "GET", path: secretsPath + "/" + own, want: 404},
		"ReadOther":        {reason: "another unit's state", scope: write, method: "GET", path: secretsPath + "/tfstate-default-t", want: 403, says: "not of the run's state"},
		"ReadAnything":     {reason: "any other Secret", scope: write, method: "GET", path: secretsPath + "/db-password", want: 403},
		"ReadNamespace":    {reason: "the same name in another namespace", scope: write, method: "GET", path: "/api/v1/namespaces/other/secrets/" + own, want: 403, says: "namespace"},
		"ReadAmbiguous":    {reason: "the name is its own, the labels are another's", scope: write, method: "GET", path: secretsPath + "/" + own, there: secret(own, "default-s", "x", ""), want: 403, says: "labels of another state"},
		"ReadWorkspace":    {reason: "another workspace's", scope: write, method: "GET", path: secretsPath + "/tfstate-w-s", want: 403},
		"ReadDefault":      {reason: "init reads the default workspace first", scope: other, method: "GET", path: secretsPath + "/" + own, there: secret(own, "s", "default", emptyState), want: 200},
		"ReadPart":         {reason: "Terraform's further parts", scope: read, method: "GET", path: secretsPath + "/" + own + "-part-1", there: secret(own+"-part-1", "s", "default", ""), want: 200},
		"ReadPartOther":    {reason: "what looks like a part is another unit's state", scope: write, method: "GET", path: secretsPath + "/" + own + "-part-1", there: secret(own+"-part-1", "s-part-1", "default", ""), want: 403},
		"Dots":             {reason: "path tricks", scope: write, method: "GET", path: secretsPath + "/" + own + "/../db-password", want: 403},
		"EncodedSlash":     {reason: "path tricks", scope: write, method: "GET", path: secretsPath + "/" + own + "%2f..%2fdb-password", want: 403, says: "encoded"},
		"EncodedName":      {reason: "path tricks", scope: write, method: "GET", path: secretsPath + "/%74fstate-default-s", want: 403},
		"DoubleSlash":      {reason: "path tricks", scope: write, method: "GET", path: "/api/v1/namespaces//ns/secrets/" + own, want: 403},
		"TrailingSlash":    {reason: "path tricks", scope: write, method: "GET", path: secretsPath + "/", want: 403},
		"Subresource":      {reason: "none is needed", scope: write, method: "GET", path: secretsPath + "/" + own + "/status", want: 403},
		"Watch":            {reason: "a list that watches", scope: write, method: "GET", path: secretsPath + "?watch=true", want: 403, says: "watch"},
		"WatchPath":        {reason: "the old way to watch", scope: write, method: "GET", path: "/api/v1/watch/namespaces/ns/secrets", want: 403},
		"AllNamespaces":    {reason: "all Secrets", scope: write, method: "GET", path: "/api/v1/secrets", want: 403},
		"Discovery":        {reason: "the backends need none", scope: write, method: "GET", path: "/api", want: 403},
		"TokenRequest":     {reason: "other resources", scope: write, method: "POST", path: "/api/v1/namespaces/ns/serviceaccounts/x/token", body: map[string]any{}, want: 403},
		"ListLeases":       {reason: "the backends do not list locks", scope: write, method: "GET", path: leasesPath, want: 403},
		"ListOther":        {reason: "another namespace's states", scope: write, method: "GET", path: "/api/v1/namespaces/other/secrets", want: 403},
		"FieldSelector":    {reason: "options nobody needs", scope: write, method: "GET", path: secretsPath + "?fieldSelector=a", want: 403},
		"SelectorInject":   {reason: "a selector must not hide ours", scope: write, method: "GET", path: secretsPath + "?labelSelector=a%20in%20(b", want: 403},
		"DoubledOption":    {reason: "which of the two counts?", scope: write, method: "GET", path: secretsPath + "?labelSelector=a&labelSelector=b", want: 403},
		"DeleteAll":        {reason: "deletecollection", scope: write, method: "DELETE", path: secretsPath, want: 403},
		"Delete":           {reason: "workspace delete", scope: write, method: "DELETE", path: secretsPath + "/" + own, there: secret(own, "s", "default", ""), want: 200},
		"DeleteMissing":    {reason: "not found is told as it is", scope: write, method: "DELETE", path: secretsPath + "/" + own, want: 404},
		"DeleteAmbiguous":  {reason: "another's object by its own name", scope: write, method: "DELETE", path: secretsPath + "/" + own, there: secret(own, "default-s", "x", ""), want: 403},
		"DeleteReadOnly":   {reason: "a plan deletes nothing", scope: read, method: "DELETE", path: secretsPath + "/" + own, there: secret(own, "s", "default", ""), want: 403, says: "may only read"},
		"DeleteDefault":    {reason: "nor does a run in another workspace", scope: other, method: "DELETE", path: secretsPath + "/" + own, there: secret(own, "s", "default", ""), want: 403},
		"DeleteLeaseRead":  {reason: "a plan's lock is released, not deleted", scope: read, method: "DELETE", path: leasesPath + "/lock-" + own, want: 403},
		"Patch":            {reason: "the backends do not patch", scope: write, method: "PATCH", path: secretsPath + "/" + own, body: map[string]any{}, want: 403},
		"Connect":          {reason: "other methods", scope: write, method: "OPTIONS", path: secretsPath + "/" + own, want: 403},
		"Create":           {reason: "a first state", scope: write, method: "POST", path: secretsPath, body: secret(own, "s", "default", ""), want: 200},
		"CreateExists":     {reason: "a conflict is told as it is", scope: write, method: "POST", path: secretsPath, body: secret(own, "s", "default", ""), there: secret(own, "s", "default", ""), want: 409},
		"CreateOther":      {reason: "the name in the body counts", scope: write, method: "POST", path: secretsPath, body: secret("x", "s", "default", ""), want: 403},
		"CreateLabels":     {reason: "labels of another state", scope: write, method: "POST", path: secretsPath, body: secret(own, "t", "default", ""), want: 403, says: "labels"},
		"CreateNamespace":  {reason: "a namespace in the body", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "namespace", "other"), want: 403},
		"CreateToken":      {reason: "such a Secret gets the token of an account", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "type", "kubernetes.io/service-account-token"), want: 403, says: "type"},
		"CreateKind":       {reason: "another kind", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "kind", "ConfigMap"), want: 403},
		"CreateGenerate":   {reason: "a name made by the server", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "generateName", "x-"), want: 403},
		"CreateOwner":      {reason: "an owner can have it deleted", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "ownerReferences", []any{map[string]any{}}), want: 403},
		"CreateStringData": {reason: "payload by another way", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "stringData", map[string]any{"tfstate": "x"}), want: 403},
		"CreateStrange":    {reason: "labels that are no text", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "labels", map[string]any{"tfstateSecretSuffix": 1}), want: 403},
		"CreateYAML":       {reason: "what cannot be checked", scope: write, method: "POST", path: secretsPath, body: secret(own, "s", "default", ""), kind: "application/yaml", want: 400, says: "content type"},
		"CreateNoObject":   {reason: "what cannot be checked", scope: write, method: "POST", path: secretsPath, body: []any{}, want: 400},
		"CreateNull":       {reason: "what cannot be checked", scope: write, method: "POST", path: secretsPath, body: nil, want: 400},
		"CreateBadData":    {reason: "what cannot be checked", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "data", map[string]any{"tfstate": "%"}), want: 400},
		"CreateLarge":      {reason: "more than an object may have", scope: write, method: "POST", path: secretsPath, body: with(secret(own, "s", "default", ""), "data", map[string]any{"tfstate": strings.Repeat("A", maxRequest)}), want: 413},
		"InitCreate":       {reason: "init makes the Secret before it fills it", scope: read, method: "POST", path: secretsPath, body: secret(own, "s", "default", ""), want: 200},
		"InitCreateFull":   {reason: "a plan makes no state with something in it", scope: read, method: "POST", path: secretsPath, body: secret(own, "s", "default", fullState), want: 403},
		"InitDefault":      {reason: "init in another workspace makes that of the default", scope: other, method: "POST", path: secretsPath, body: secret(own, "s", "default", emptyState), want: 200},
		"InitPart":         {reason: "an empty state has no parts", scope: read, method: "POST", path: secretsPath, body: secret(own+"-part-1", "s", "default", ""), want: 403},
		"Lock":             {reason: "a plan locks", scope: read, method: "POST", path: leasesPath, body: lease("lock-"+own, "s", "default", "id"), want: 200},
		"LockOther":        {reason: "another unit's lock", scope: read, method: "POST", path: leasesPath, body: lease("lock-tfstate-default-t", "t", "default", "id"), want: 403},
		"LockLabels":       {reason: "labels of another state", scope: read, method: "POST", path: leasesPath, body: lease("lock-"+own, "t", "default", "id"), want: 403},
		"SecretAsLease":    {reason: "the names of one kind are not those of the other", scope: write, method: "GET", path: leasesPath + "/" + own, want: 403},
		"LeaseAsSecret":    {reason: "and the other way round", scope: write, method: "GET", path: secretsPath + "/lock-" + own, want: 403},
		"UpdateMissing":    {reason: "not found is told as it is", scope: write, method: "PUT", path: secretsPath + "/" + own, body: secret(own, "s", "default", fullState), want: 404},
		"Update":           {reason: "an apply writes", scope: write, method: "PUT", path: secretsPath + "/" + own, body: secret(own, "s", "default", fullState), there: secret(own, "s", "default", emptyState), want: 200},
		"UpdateMismatch":   {reason: "body and path differ", scope: write, method: "PUT", path: secretsPath + "/" + own, body: secret(own+"-part-1", "s", "default", fullState), want: 403},
		"UpdateAmbiguous":  {reason: "another's object by its own name", scope: write, method: "PUT", path: secretsPath + "/" + own, body: secret(own, "s", "default", fullState), there: secret(own, "default-s", "x", ""), want: 403},
		"UpdateReadOnly":   {reason: "a plan writes nothing", scope: read, method: "PUT", path: secretsPath + "/" + own, body: with(secret(own, "s", "default", fullState), "resourceVersion", "1"), there: secret(own, "s", "default", emptyState), want: 403, says: "run r1: the run may only read"},
		"UpdateInit":       {reason: "init fills the Secret that it made", scope: read, method: "PUT", path: secretsPath + "/" + own, body: with(secret(own, "s", "default", emptyState), "resourceVersion", "1"), there: secret(own, "s", "default", ""), want: 200},
		"UpdateInitSealed": {reason: "OpenTofu may encrypt it", scope: read, method: "PUT", path: secretsPath + "/" + own, body: with(secret(own, "s", "default", encrypted), "resourceVersion", "1"), there: secret(own, "s", "default", ""), want: 200},
		"UpdateSealed":     {reason: "but then it is not replaced", scope: read, method: "PUT", path: secretsPath + "/" + own, body: with(secret(own, "s", "default", encrypted), "resourceVersion", "1"), there: secret(own, "s", "default", encrypted), want: 403},
		"UpdateEmptied":    {reason: "a plan does not empty a state", scope: read, method: "PUT", path: secretsPath + "/" + own, body: with(secret(own, "s", "default", emptyState), "resourceVersion", "1"), there: secret(own, "s", "default", fullState), want: 403},
		"UpdateInitRace":   {reason: "nor one that came meanwhile", scope: read, method: "PUT", path: secretsPath + "/" + own, body: with(secret(own, "s", "default", emptyState), "resourceVersion", "0"), there: secret(own, "s", "default", ""), want: 409},
		"UpdateInitBlind":  {reason: "nor without having looked", scope: read, method: "PUT", path: secretsPath + "/" + own, body: secret(own, "s", "default", emptyState), there: secret(own, "s", "default", ""), want: 409},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			if tc.there != nil {
				s.put(secretsPath+"/"+tc.there["metadata"].(map[string]any)["name"].(string), tc.there)
			}
			a, c := grant(t, open(t, s), tc.scope)
			kind := tc.kind
			if kind == "" {
				kind = "application/json"
			}
			body := ""
			if tc.method == "POST" || tc.method == "PUT" || tc.method == "PATCH" {
				body = text(tc.body)
			}
			code, said := ask(t, c, tc.method, tc.path, kind, body)
			if code != tc.want || !strings.Contains(said, tc.says) {
				t.Errorf("%s: %d %s, want %d %q", tc.reason, code, said, tc.want, tc.says)
			}
			if strings.Contains(said, a.Token) || strings.Contains(said, ownToken) {
				t.Error("a token is told")
			}
			if n := len(s.seen()); uint64(n) != a.Forwarded() {
				t.Errorf("%d requests arrived, %d were counted", n, a.Forwarded())
			}
		})
	}
}

func TestDoubledKeysDoNotPass(t *testing.T) {
	s := newAPIServer(t)
	_, c := grant(t, open(t, s), unitScope)
	good := text(secret("tfstate-default-s", "s", "default", "")["metadata"])
	evil := `{"name":"evil","namespace":"ns"}`
	for reason, body := range map[string]string{
		"the last of two keys is what both sides read": `{"metadata":` + evil + `,"metadata":` + good + `}`,
		"a key in another case is another key":         `{"metadata":` + good + `,"Metadata":` + evil + `}`,
	} {
		code, said := ask(t, c, "POST", secretsPath, "application/json", body)
		if code/100 == 2 && s.object(secretsPath+"/tfstate-default-s") == nil || s.object(secretsPath+"/evil") != nil {
			t.Errorf("%s: %d %s", reason, code, said)
		}
	}
	code, _ := ask(t, c, "POST", secretsPath, "application/json", `{"metadata":`+good+`}{"metadata":`+evil+`}`)
	if code != http.StatusBadRequest {
		t.Errorf("two values: %d", code)
	}
}

func TestListTellsNamesOnly(t *testing.T) {
	s := newAPIServer(t)
	for _, o := range []map[string]any{
		secret("tfstate-default-s", "s", "default", emptyState),
		secret("tfstate-w-s", "s", "w", fullState),
		secret("tfstate-x-s", "s", "x", fullState),
		secret("tfstate-default-t", "t", "default", fullState),
		secret("tfstate-w-s-part-1", "s-part-1", "w", fullState),
	} {
		s.put(secretsPath+"/"+o["metadata"].(map[string]any)["name"].(string), o)
	}
	sc := unitScope
	sc.Workspace = "w"
	_, c := grant(t, open(t, s), sc)
	code, said := ask(t, c, "GET", secretsPath+"?labelSelector=tfstate%3Dtrue", "", "")
	var got struct {
		Items []struct {
			Metadata struct{ Name string }
			Data     map[string]string
		}
	}
	if err := json.Unmarshal([]byte(said), &got); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, said, err)
	}
	seen := map[string]bool{}
	for _, i := range got.Items {
		seen[i.Metadata.Name] = len(i.Data) > 0
	}
	want := map[string]bool{"tfstate-default-s": true, "tfstate-w-s": true, "tfstate-x-s": false}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("names, and whether the state is told:\n%s", diff)
	}
}

func TestTokens(t *testing.T) {
	s := newAPIServer(t)
	g := open(t, s)
	a, c := grant(t, g, unitScope)
	b, _ := grant(t, g, unitScope)
	if a.Token == b.Token || len(a.Token) < 40 {
		t.Errorf("tokens: %d bytes, the same %v", len(a.Token), a.Token == b.Token)
	}
	path := secretsPath + "/tfstate-default-s"
	if code, _ := ask(t, c, "GET", path, "", ""); code != 404 {
		t.Errorf("with its token: %d", code)
	}
	for reason, token := range map[string]string{"none": "", "another": "x", "longer": a.Token + "x", "shorter": a.Token[1:]} {
		wrong := rest.CopyConfig(c)
		wrong.BearerToken = token
		if code, said := ask(t, wrong, "GET", path, "", ""); code != 401 {
			t.Errorf("%s: %d %s", reason, code, said)
		}
	}
	a.Revoke()
	if code, said := ask(t, c, "GET", path, "", ""); code != 401 || !strings.Contains(said, "its run has ended") {
		t.Errorf("after the run: %d %s", code, said)
	}
	if g.Forwarded() != 1 {
		t.Errorf("%d requests were forwarded", g.Forwarded())
	}
	for _, sc := range []Scope{{}, {Namespace: "ns", Suffix: "../x", Workspace: "default"}} {
		if _, err := g.Grant(sc); err == nil {
			t.Errorf("%+v: no error", sc)
		}
	}
}

// TestBackend does with client-go what OpenTofu's backend does, Leases in protobuf.
func TestBackend(t *testing.T) {
	s := newAPIServer(t)
	g := open(t, s)
	var journal []string
	sc := unitScope
	sc.OnLock = func(id string) error {
		journal = append(journal, id)
		if id == "unlucky" {
			return errors.New("disk is full")
		}
		return nil
	}
	a, c := grant(t, g, sc)
	client := kubernetes.NewForConfigOrDie(c)
	ls := client.CoordinationV1().Leases("ns")
	ctx := t.Context()
	locked := func(id string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name:        "lock-tfstate-default-s",
				Labels:      map[string]string{"tfstate": "true", "tfstateSecretSuffix": "s", "tfstateWorkspace": "default"},
				Annotations: map[string]string{state.LockAnnotation: `{"ID":"` + id + `"}`},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(id)},
		}
	}
	if _, err := ls.Create(ctx, locked("unlucky"), metav1.CreateOptions{}); err == nil || s.object(leasesPath+"/lock-tfstate-default-s") != nil {
		t.Errorf("a lock that could not be noted was taken: %v", err)
	}
	l, err := ls.Create(ctx, locked("id-1"), metav1.CreateOptions{FieldManager: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if a.LockID() != "id-1" || *l.Spec.HolderIdentity != "id-1" {
		t.Errorf("lock %q, lease %v", a.LockID(), l)
	}
	if _, err := ls.Create(ctx, locked("id-2"), metav1.CreateOptions{}); !apierrors.IsConflict(err) || a.LockID() != "id-1" {
		t.Errorf("a second lock: %v, held %q", err, a.LockID())
	}
	if held, err := g.Lock(ctx, sc); err != nil || held.ID != "id-1" {
		t.Errorf("who holds it: %+v, %v", held, err)
	}
	l.Spec.HolderIdentity, l.Annotations = nil, nil
	if _, err := ls.Update(ctx, l, metav1.UpdateOptions{}); err != nil || a.LockID() != "" {
		t.Errorf("unlock: %v, held %q", err, a.LockID())
	}
	if diff := cmp.Diff([]string{"unlucky", "id-1", "id-2"}, journal); diff != "" {
		t.Error(diff)
	}
	if err := ls.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete all: %v", err)
	}
	if _, err := client.CoreV1().Secrets("ns").Watch(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("watch: %v", err)
	}
	if held, err := g.Lock(ctx, sc); err != nil || held != nil {
		t.Errorf("who holds it now: %+v, %v", held, err)
	}
}

func TestLastState(t *testing.T) {
	s := newAPIServer(t)
	name := "tfstate-default-s"
	s.put(secretsPath+"/"+name, secret(name, "s", "default", emptyState))
	g := open(t, s)
	sc := unitScope
	var told []string
	sc.OnState = func(payload []byte) { told = append(told, string(payload)) }
	a, c := grant(t, g, sc)
	if _, ok := a.CurrentState(); ok {
		t.Error("a state before anything was read")
	}
	ask(t, c, "GET", secretsPath+"/"+name, "", "")
	if _, ok := a.LastState(); ok {
		t.Error("a state is written that was only read")
	}
	if got, ok := a.CurrentState(); !ok || string(got) != emptyState {
		t.Errorf("read: %q", got)
	}
	put := func(name string, data []byte, method string) {
		t.Helper()
		o := secret(name, "s", "default", "")
		o["data"] = map[string]any{"tfstate": base64.StdEncoding.EncodeToString(data)}
		path := secretsPath
		if method == "PUT" {
			path += "/" + name
		}
		if code, said := ask(t, c, method, path, "application/json", text(o)); code != 200 {
			t.Fatalf("%d %s", code, said)
		}
	}
	whole, _ := base64.StdEncoding.DecodeString(pack(fullState))
	put(name, whole[:20], "PUT")
	put(name+"-part-1", whole[20:40], "POST")
	put(name+"-part-2", whole[40:], "POST")
	if len(told) < 2 || told[0] != emptyState || told[len(told)-1] != fullState {
		t.Errorf("told of the states %q; want the one that was read first, and the whole that was written last", told)
	}
	if got, ok := a.LastState(); !ok || string(got) != fullState {
		t.Errorf("in three parts: %q", got)
	}
	put(name, whole, "PUT")
	if code, _ := ask(t, c, "DELETE", secretsPath+"/"+name+"-part-1", "", ""); code != 200 {
		t.Errorf("remove a part: %d", code)
	}
	if got, ok := a.LastState(); !ok || string(got) != fullState {
		t.Errorf("in one part again: %q", got)
	}
	s.mu.Lock()
	s.fail = func(r *http.Request) (int, bool) { return 500, r.Method == "PUT" }
	s.mu.Unlock()
	o := secret(name, "s", "default", emptyState)
	if code, _ := ask(t, c, "PUT", secretsPath+"/"+name, "application/json", text(o)); code != 500 {
		t.Errorf("an error is told as it is: %d", code)
	}
	a.Revoke()
	if got, ok := a.LastState(); !ok || string(got) != fullState {
		t.Errorf("a write that failed is no state: %q", got)
	}
}

func TestReleaseLock(t *testing.T) {
	path := leasesPath + "/lock-tfstate-w-s"
	defaultPath := leasesPath + "/lock-tfstate-default-s"
	sc := Scope{Namespace: "ns", Suffix: "s", Workspace: "w"}
	cases := map[string]struct {
		reason string
		there  map[string]map[string]any
		id     string
		fail   func(*http.Request) (int, bool)
		err    string
		locked []string // paths still locked
	}{
		"Ours":    {reason: "what the interrupted run held", there: map[string]map[string]any{path: lease("lock-tfstate-w-s", "s", "w", "id")}, id: "id"},
		"Foreign": {reason: "a stranger's lock is never broken", there: map[string]map[string]any{path: lease("lock-tfstate-w-s", "s", "w", "other")}, id: "id", err: `locked by "other" of a@b`, locked: []string{path}},
		"Free":    {reason: "nothing is held", there: map[string]map[string]any{path: lease("lock-tfstate-w-s", "s", "w", "")}, id: "id"},
		"Missing": {reason: "nothing was ever locked", id: "id"},
		"Init":    {reason: "init had locked the default workspace", there: map[string]map[string]any{defaultPath: lease("lock-tfstate-default-s", "s", "default", "id")}, id: "id"},
		"InitOther": {reason: "and somebody else our own", there: map[string]map[string]any{
			path:        lease("lock-tfstate-w-s", "s", "w", "other"),
			defaultPath: lease("lock-tfstate-default-s", "s", "default", "id"),
		}, id: "id", locked: []string{path}},
		"NoID":     {reason: "an empty id must not match a free lock", there: map[string]map[string]any{path: lease("lock-tfstate-w-s", "s", "w", "other")}, err: "no lock is named", locked: []string{path}},
		"Down":     {reason: "the cause is told", there: map[string]map[string]any{path: lease("lock-tfstate-w-s", "s", "w", "id")}, id: "id", fail: func(*http.Request) (int, bool) { return 503, true }, err: "fake says 503", locked: []string{path}},
		"Restless": {reason: "it does not try for ever", there: map[string]map[string]any{path: lease("lock-tfstate-w-s", "s", "w", "id")}, id: "id", fail: func(r *http.Request) (int, bool) { return 409, r.Method == "PUT" }, err: "keeps changing", locked: []string{path}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			for p, o := range tc.there {
				s.put(p, o)
			}
			s.fail = tc.fail
			g, err := New(Options{Config: s.config()})
			if err != nil {
				t.Fatal(err)
			}
			defer g.listener.Close()
			err = g.ReleaseLock(t.Context(), sc, tc.id)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.err)
			}
			if errors.Is(err, state.ErrLocked) != (name == "Foreign") {
				t.Errorf("%s: %v", tc.reason, err)
			}
			var locked []string
			for _, p := range []string{path, defaultPath} {
				if o := s.object(p); o != nil && strings.Contains(text(o), "holderIdentity") {
					locked = append(locked, p)
				}
			}
			if diff := cmp.Diff(tc.locked, locked); diff != "" {
				t.Errorf("%s\n%s", tc.reason, diff)
			}
		})
	}
}

// TestWriteOutlivesItsClient: a run that is killed while its state is on the way does
// not tear it, and Revoke waits for it.
func TestWriteOutlivesItsClient(t *testing.T) {
	s := newAPIServer(t)
	name := "tfstate-default-s"
	s.put(secretsPath+"/"+name, secret(name, "s", "default", emptyState))
	arrived, proceed := make(chan struct{}), make(chan struct{})
	s.fail = func(r *http.Request) (int, bool) {
		if r.Method == "PUT" {
			close(arrived)
			<-proceed
		}
		return 0, false
	}
	a, c := grant(t, open(t, s), unitScope)
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "PUT", c.Host+secretsPath+"/"+name, strings.NewReader(text(secret(name, "s", "default", fullState))))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error)
	go func() {
		_, err := client.Do(r)
		gone <- err
	}()
	<-arrived
	kill()
	if err := <-gone; err == nil {
		t.Error("the client was answered before the API server did")
	}
	go close(proceed)
	a.Revoke()
	if got, ok := a.LastState(); !ok || string(got) != fullState {
		t.Errorf("state: %q", got)
	}
}

func TestLoopbackOnly(t *testing.T) {
	if _, err := New(Options{Config: &rest.Config{Host: "https://127.0.0.1:1"}, Address: "0.0.0.0:0"}); err == nil {
		t.Error("the gate listens to the world")
	}
}

// FuzzAuthorize: whatever the request, what goes out is about the scope's own state.
func FuzzAuthorize(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/ns/secrets/tfstate-default-s", "", "")
	f.Add("POST", "/api/v1/namespaces/ns/secrets", "fieldManager=x", `{"metadata":{"name":"tfstate-default-s","labels":{"tfstateSecretSuffix":"s","tfstateWorkspace":"default"}}}`)
	f.Add("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lock-tfstate-default-s", "", `{"metadata":{"name":"lock-tfstate-default-s"},"spec":{"holderIdentity":1}}`)
	f.Add("GET", "/api/v1/namespaces/ns/secrets/../../x", "watch=1", "")
	f.Add("DELETE", "/api/v1/namespaces/ns/secrets/tfstate-default-s%2f", "", "{")
	own := map[string]bool{
		"": true, "tfstate-default-s": true, "lock-tfstate-default-s": true, "tfstate-w-s": true, "lock-tfstate-w-s": true,
	}
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		r, err := http.NewRequest("GET", "https://127.0.0.1/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		u, err := r.URL.Parse(path)
		if err != nil {
			return
		}
		r.Method, r.URL = method, u
		r.URL.RawQuery = query
		sent := func(out *http.Request) (*http.Response, error) {
			rest, ok := strings.CutPrefix(out.URL.EscapedPath(), secretsPath)
			if !ok {
				rest, ok = strings.CutPrefix(out.URL.EscapedPath(), leasesPath)
			}
			name := strings.TrimPrefix(rest, "/")
			if part, is := strings.CutPrefix(name, "tfstate-w-s-part-"); is {
				name = "tfstate-w-s" + strings.Trim(part, "0123456789")
			}
			if part, is := strings.CutPrefix(name, "tfstate-default-s-part-"); is {
				name = "tfstate-default-s" + strings.Trim(part, "0123456789")
			}
			if !ok || !own[name] || out.URL.Query().Has("watch") || out.Method == "DELETE" && name == "" {
				t.Errorf("%s %s?%s went out as %s %s", method, path, query, out.Method, out.URL)
			}
			return &http.Response{StatusCode: 404, Body: io.NopCloser(strings.NewReader("{}")), Header: http.Header{}}, nil
		}
		g := &Gate{base: &url.URL{Scheme: "https", Host: "127.0.0.1"}, client: &http.Client{Transport: roundTripper(sent)}}
		for _, write := range []bool{true, false} {
			a := &Access{
				gate: g, uids: map[string]string{}, written: map[int][]byte{},
				scope: Scope{Namespace: "ns", Suffix: "s", Workspace: "w", Write: write},
			}
			_, _ = a.serve(t.Context(), r)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
