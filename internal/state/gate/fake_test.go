// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// apiServer is as much of the Kubernetes API as the backends use: objects by path, with
// UIDs, resource versions, label selectors and preconditions. It wants Terrace's own
// token.
type apiServer struct {
	*httptest.Server
	mu       sync.Mutex
	objects  map[string]map[string]any
	count    int
	requests []string // METHOD path
	fail     func(r *http.Request) (int, bool)
}

const ownToken = "terraces-own-token"

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) config() *rest.Config {
	c := &rest.Config{Host: s.URL + "/behind/a/proxy", BearerToken: ownToken}
	c.TLSClientConfig.Insecure = true
	return c
}

// put makes an object behind the gate's back.
func (s *apiServer) put(path string, o map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, o)
}

func (s *apiServer) store(path string, o map[string]any) map[string]any {
	s.count++
	md := o["metadata"].(map[string]any)
	if md["uid"] == nil {
		md["uid"] = fmt.Sprint("uid-", s.count)
	}
	md["resourceVersion"] = fmt.Sprint(s.count)
	s.objects[path] = o
	return o
}

func (s *apiServer) object(path string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

// seen returns the requests since it was called last.
func (s *apiServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.requests
	s.requests = nil
	return out
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.Path, "/behind/a/proxy")
	s.requests = append(s.requests, r.Method+" "+path)
	if s.fail != nil {
		if code, fail := s.fail(r); fail {
			answerStatus(w, code)
			return
		}
	}
	if !ok || r.Header.Get("Authorization") != "Bearer "+ownToken || len(r.Header["Authorization"]) != 1 {
		answerStatus(w, http.StatusUnauthorized)
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate") {
			answerStatus(w, http.StatusTeapot)
			return
		}
	}
	body, _ := io.ReadAll(r.Body)
	switch r.Method {
	case http.MethodGet:
		s.get(w, path, r)
	case http.MethodDelete:
		s.remove(w, path, body)
	default:
		s.write(w, path, r.Method, body)
	}
}

func (s *apiServer) get(w http.ResponseWriter, path string, r *http.Request) {
	if strings.HasSuffix(path, "/secrets") {
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			answerStatus(w, http.StatusBadRequest)
			return
		}
		items := []any{}
		for _, p := range slices.Sorted(maps.Keys(s.objects)) {
			set := labels.Set{}
			ls, _ := s.objects[p]["metadata"].(map[string]any)["labels"].(map[string]any)
			for k, v := range ls {
				set[k] = v.(string)
			}
			if strings.HasPrefix(p, path+"/") && selector.Matches(set) {
				items = append(items, s.objects[p])
			}
		}
		answer200(w, map[string]any{"kind": "SecretList", "apiVersion": "v1", "metadata": map[string]any{}, "items": items})
		return
	}
	if o, ok := s.objects[path]; ok {
		answer200(w, o)
		return
	}
	answerStatus(w, http.StatusNotFound)
}

func (s *apiServer) write(w http.ResponseWriter, path, method string, body []byte) {
	var o map[string]any
	if err := json.Unmarshal(body, &o); err != nil {
		answerStatus(w, http.StatusBadRequest)
		return
	}
	md := o["metadata"].(map[string]any)
	if method == http.MethodPost {
		path += "/" + md["name"].(string)
	}
	old, exists := s.objects[path]
	if method == http.MethodPost && exists {
		answerStatus(w, http.StatusConflict)
		return
	}
	if method == http.MethodPut {
		if !exists {
			answerStatus(w, http.StatusNotFound)
			return
		}
		was := old["metadata"].(map[string]any)
		if md["uid"] != nil && md["uid"] != was["uid"] || md["resourceVersion"] != nil && md["resourceVersion"] != was["resourceVersion"] {
			answerStatus(w, http.StatusConflict)
			return
		}
		md["uid"] = was["uid"]
	}
	o["kind"], o["apiVersion"] = "Secret", "v1"
	if strings.Contains(path, "/leases/") {
		o["kind"], o["apiVersion"] = "Lease", "coordination.k8s.io/v1"
	}
	answer200(w, s.store(path, o))
}

func (s *apiServer) remove(w http.ResponseWriter, path string, body []byte) {
	var opts struct{ Preconditions struct{ UID string } }
	_ = json.Unmarshal(body, &opts)
	o, ok := s.objects[path]
	switch {
	case !ok:
		answerStatus(w, http.StatusNotFound)
	case opts.Preconditions.UID != o["metadata"].(map[string]any)["uid"]:
		answerStatus(w, http.StatusConflict)
	default:
		delete(s.objects, path)
		answer200(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	}
}

func answer200(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o)
}

func answerStatus(w http.ResponseWriter, code int) {
	reasons := map[int]string{404: "NotFound", 409: "Conflict", 401: "Unauthorized"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reasons[code], "message": fmt.Sprint("fake says ", code),
	})
}
