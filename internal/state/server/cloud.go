// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/state"
	"github.com/terrace-dev/terrace/internal/state/store"
)

// The protocol of the "remote" and "cloud" backends, as much as local execution needs.
// An organization is a namespace and a workspace is a State: every name is a workspace
// that exists, and its State is made when something is kept in it. Locks of this
// protocol have no ID on the wire: they belong to the identity that took them.

const (
	apiPath    = "/api/v2/"
	jsonAPI    = "application/vnd.api+json"
	cloudLock  = "cloud-" // begins the IDs of locks that this protocol takes
	uploadLife = 5 * time.Minute
	// apiVersion is the version of the protocol that clients are told (measured: both
	// tools take 2.6).
	apiVersion = "2.6"
)

func (s *Server) cloudRoutes() {
	s.mux.HandleFunc("GET /.well-known/terraform.json", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"tfe.v2": apiPath, "tfe.v2.1": apiPath, "tfe.v2.2": apiPath})
	})
	s.mux.HandleFunc("GET "+apiPath+"ping", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("TFP-API-Version", apiVersion)
		w.WriteHeader(http.StatusNoContent)
	})
	s.mux.HandleFunc("PUT "+apiPath+"uploads/{token}", s.upload)
	s.mux.HandleFunc("PUT "+apiPath+"uploads/{token}/json", s.uploadJSON)
	s.mux.HandleFunc("GET "+apiPath+"account/details", s.known(s.account))

	const organization = apiPath + "organizations/{namespace}"
	s.mux.HandleFunc("GET "+organization, s.known(s.organization))
	s.mux.HandleFunc("GET "+organization+"/entitlement-set", s.known(s.entitlements))
	s.mux.HandleFunc("GET "+organization+"/workspaces", s.known(s.listWorkspaces))
	s.mux.HandleFunc("POST "+organization+"/workspaces", s.known(s.createWorkspace))
	s.mux.HandleFunc("GET "+organization+"/workspaces/{name}", s.known(s.findWorkspace))

	const workspace = apiPath + "workspaces/{id}"
	s.mux.HandleFunc("GET "+workspace, s.workspace(s.readWorkspace))
	s.mux.HandleFunc("PATCH "+workspace, s.workspace(s.readWorkspace)) // nothing of it can be changed
	s.mux.HandleFunc("POST "+workspace+"/actions/lock", s.workspace(s.cloudLock))
	s.mux.HandleFunc("POST "+workspace+"/actions/unlock", s.workspace(s.cloudUnlock))
	s.mux.HandleFunc("POST "+workspace+"/actions/force-unlock", s.workspace(s.cloudForceUnlock))
	s.mux.HandleFunc("GET "+workspace+"/current-state-version", s.workspace(s.currentVersion))
	s.mux.HandleFunc("GET "+workspace+"/current-state-version-outputs", s.workspace(s.currentOutputs))
	s.mux.HandleFunc("POST "+workspace+"/state-versions", s.workspace(s.createVersion))
	s.mux.HandleFunc("GET "+apiPath+"state-versions/{id}", s.stateVersion(s.readVersion))
	s.mux.HandleFunc("GET "+apiPath+"state-versions/{id}/download", s.stateVersion(func(w http.ResponseWriter, r *http.Request, c call, v v1alpha1.StateVersion) error {
		return s.get(w, r, c, v.Version)
	}))
}

// resource is an object of JSON:API.
type resource struct {
	ID            string         `json:"id"`
	Type          string         `json:"type"`
	Attributes    map[string]any `json:"attributes,omitempty"`
	Relationships map[string]any `json:"relationships,omitempty"`
}

func writeResource(w http.ResponseWriter, code int, data any) {
	writeDocument(w, code, map[string]any{"data": data})
}

func writeDocument(w http.ResponseWriter, code int, document any) {
	w.Header().Set("Content-Type", jsonAPI)
	w.Header().Set("TFP-API-Version", apiVersion)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(document) // the client is gone: nobody to tell
}

// writeCloudError answers as JSON:API wants it. A lock that is held is a conflict.
func writeCloudError(w http.ResponseWriter, err error) {
	code := codeOf(err)
	if code == http.StatusLocked {
		code = http.StatusConflict
	}
	writeDocument(w, code, map[string]any{"errors": []map[string]string{{
		"status": strconv.Itoa(code), "title": strings.ToLower(http.StatusText(code)), "detail": err.Error(),
	}}})
}

// known finds out who asks.
func (s *Server) known(next func(http.ResponseWriter, *http.Request, Identity) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := s.authorizer.Authorize(r.Context(), r)
		if err == nil {
			defer id.release()
			err = next(w, r, id)
		}
		if err != nil {
			writeCloudError(w, err)
		}
	}
}

// workspace finds out who asks, and about which State.
func (s *Server) workspace(next func(http.ResponseWriter, *http.Request, call) error) http.HandlerFunc {
	return s.known(func(w http.ResponseWriter, r *http.Request, id Identity) error {
		parts, err := decodeID("ws-", r.PathValue("id"), 2)
		if err != nil {
			return err
		}
		key, err := keyOf(parts[0], parts[1])
		if err != nil {
			return err
		}
		return next(w, r, call{id: id, key: key})
	})
}

// stateVersion finds out who asks, and about which version.
func (s *Server) stateVersion(next func(http.ResponseWriter, *http.Request, call, v1alpha1.StateVersion) error) http.HandlerFunc {
	return s.known(func(w http.ResponseWriter, r *http.Request, id Identity) error {
		parts, err := decodeID("sv-", r.PathValue("id"), 4)
		if err != nil {
			return err
		}
		key, err := keyOf(parts[0], parts[1])
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(parts[3], 10, 64)
		if err != nil {
			return badRequest("there is no such id")
		}
		if err := id.Allow(r.Context(), Get, key); err != nil {
			return err
		}
		v := v1alpha1.StateVersion{Serial: n}
		o, err := s.store.Get(r.Context(), key)
		if err != nil && !errors.Is(err, store.ErrNoState) {
			return err
		}
		found := false
		if err == nil {
			versions, err := o.Status.All()
			if err != nil {
				return fmt.Errorf("read state %s: %w", key, err)
			}
			for _, kept := range versions {
				if parts[2] == "version" && kept.Version == n || parts[2] == "serial" && kept.Serial == n {
					v, found = kept, true
					break
				}
			}
		}
		// A version that is known by its serial is one that a client was told to upload.
		if !found && parts[2] != "serial" {
			return fmt.Errorf("read state %s: %w: %d", key, store.ErrNoVersion, n)
		}
		return next(w, r, call{id: id, key: key}, v)
	})
}

func encodeID(prefix string, parts ...string) string {
	return prefix + base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "/")))
}

func decodeID(prefix, id string, n int) ([]string, error) {
	text, ok := strings.CutPrefix(id, prefix)
	b, err := base64.RawURLEncoding.DecodeString(text)
	parts := strings.Split(string(b), "/")
	if !ok || err != nil || len(parts) != n {
		return nil, &httpError{http.StatusNotFound, "there is no such id"}
	}
	return parts, nil
}

func (s *Server) account(w http.ResponseWriter, _ *http.Request, id Identity) error {
	writeResource(w, http.StatusOK, resource{ID: encodeID("user-", id.Name), Type: "users", Attributes: map[string]any{"username": id.Name}})
	return nil
}

func (s *Server) organization(w http.ResponseWriter, r *http.Request, _ Identity) error {
	name := r.PathValue("namespace")
	writeResource(w, http.StatusOK, resource{ID: name, Type: "organizations", Attributes: map[string]any{"name": name}})
	return nil
}

// entitlements say that states are kept and that nothing is run: clients then run
// everything themselves.
func (s *Server) entitlements(w http.ResponseWriter, r *http.Request, _ Identity) error {
	writeResource(w, http.StatusOK, resource{ID: r.PathValue("namespace"), Type: "entitlement-sets", Attributes: map[string]any{
		"state-storage": true, "operations": false, "private-module-registry": false, "sentinel": false,
		"teams": false, "vcs-integrations": false, "cost-estimation": false, "policy-enforcement": false,
	}})
	return nil
}

func (s *Server) listWorkspaces(w http.ResponseWriter, r *http.Request, id Identity) error {
	namespace := r.PathValue("namespace")
	if _, err := keyOf(namespace, "any"); err != nil {
		return err
	}
	items := []resource{}
	// No workspace of ours has tags, so that none has those that are asked for.
	if query := r.URL.Query(); query.Get("search[tags]") == "" {
		states, err := s.store.List(r.Context(), namespace)
		if err != nil {
			return err
		}
		for i := range states {
			c := call{id: id, key: store.Key{Namespace: namespace, Name: states[i].Name}}
			if !strings.Contains(states[i].Name, query.Get("search[name]")) {
				continue
			}
			var denied *DeniedError
			if err := id.Allow(r.Context(), Get, c.key); errors.As(err, &denied) {
				continue
			} else if err != nil {
				return err
			}
			items = append(items, s.workspaceOf(r.Context(), c, &states[i]))
		}
	}
	writeDocument(w, http.StatusOK, map[string]any{"data": items, "meta": map[string]any{"pagination": map[string]any{
		"current-page": 1, "prev-page": nil, "next-page": nil, "total-pages": 1, "total-count": len(items),
	}}})
	return nil
}

func (s *Server) createWorkspace(w http.ResponseWriter, r *http.Request, id Identity) error {
	body, err := s.read(w, r, maxQuestion)
	if err != nil {
		return err
	}
	var asked struct {
		Data struct {
			Attributes struct {
				Name string `json:"name"`
			} `json:"attributes"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return badRequest("the body is not understood")
	}
	key, err := keyOf(r.PathValue("namespace"), asked.Data.Attributes.Name)
	if err != nil {
		return err
	}
	return s.answerWorkspace(w, r, call{id: id, key: key}, http.StatusCreated)
}

func (s *Server) findWorkspace(w http.ResponseWriter, r *http.Request, id Identity) error {
	key, err := keyOf(r.PathValue("namespace"), r.PathValue("name"))
	if err != nil {
		return err
	}
	return s.answerWorkspace(w, r, call{id: id, key: key}, http.StatusOK)
}

func (s *Server) readWorkspace(w http.ResponseWriter, r *http.Request, c call) error {
	return s.answerWorkspace(w, r, c, http.StatusOK)
}

func (s *Server) answerWorkspace(w http.ResponseWriter, r *http.Request, c call, code int) error {
	if err := c.id.Allow(r.Context(), Get, c.key); err != nil {
		return err
	}
	o, err := s.store.Get(r.Context(), c.key)
	if errors.Is(err, store.ErrNoState) {
		o, err = &v1alpha1.State{}, nil
	}
	if err != nil {
		return err
	}
	writeResource(w, code, s.workspaceOf(r.Context(), c, o))
	return nil
}

func (s *Server) workspaceOf(ctx context.Context, c call, o *v1alpha1.State) resource {
	may := func(v Verb) bool { return c.id.Allow(ctx, v, c.key) == nil }
	return resource{
		ID: encodeID("ws-", c.key.Namespace, c.key.Name), Type: "workspaces",
		Attributes: map[string]any{
			"name": c.key.Name, "locked": o.Status.Lock != nil, "execution-mode": "local", "operations": false,
			// Nothing is run here, so that every version of the tool is right.
			"terraform-version": "latest", "resource-count": o.Status.Resources,
			"permissions": map[string]bool{
				"can-read-settings": true, "can-update": may(Update), "can-lock": may(Lock), "can-unlock": may(Unlock),
				"can-force-unlock": may(ForceUnlock), "can-read-state-versions": true, "can-create-state-versions": may(Update),
				"can-read-state-outputs": true, "can-destroy": may(Delete),
			},
		},
		Relationships: map[string]any{"organization": map[string]any{"data": map[string]string{"id": c.key.Namespace, "type": "organizations"}}},
	}
}

// cloudLock takes the lock. Of a run that asks again it is its own already; people who
// are the same user on two machines are two.
func (s *Server) cloudLock(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Lock, c.key); err != nil {
		return err
	}
	body, err := s.read(w, r, maxLock)
	if err != nil {
		return err
	}
	var asked struct {
		Reason string `json:"reason"`
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &asked); err != nil {
			return badRequest("the body is not understood")
		}
	}
	random := make([]byte, 12)
	if _, err := rand.Read(random); err != nil {
		return fmt.Errorf("lock state %s: make an ID: %w", c.key, err)
	}
	ctx, cancel := arrived(r)
	defer cancel()
	if c.id.Run != "" {
		if o, err := s.store.Get(ctx, c.key); err == nil && mine(o, c.id) {
			return s.answerWorkspace(w, r, c, http.StatusOK)
		}
	}
	err = s.take(ctx, c, state.Lock{
		ID: cloudLock + hex.EncodeToString(random), Operation: "cloud", Info: asked.Reason, Who: c.id.Name, Created: s.clock.Now().UTC(),
	})
	if err != nil {
		return err
	}
	return s.answerWorkspace(w, r, c, http.StatusOK)
}

// mine reports whether the identity holds the lock of a State by this protocol.
func mine(o *v1alpha1.State, id Identity) bool {
	l := o.Status.Lock
	return l != nil && strings.HasPrefix(l.ID, cloudLock) && l.Holder == id.Name && l.Run == id.Run
}

func (s *Server) cloudUnlock(w http.ResponseWriter, r *http.Request, c call) error {
	ctx, cancel := arrived(r)
	defer cancel()
	if err := c.id.Allow(ctx, Unlock, c.key); err != nil {
		return err
	}
	o, err := s.store.Get(ctx, c.key)
	if err != nil {
		return err
	}
	switch l := o.Status.Lock; {
	case l == nil && strings.HasPrefix(o.Status.LastLock, cloudLock):
		// The client asks again: the answer was lost.
	case l == nil:
		return fmt.Errorf("unlock state %s: %w", c.key, store.ErrNotLocked)
	case !mine(o, c.id):
		return &httpError{http.StatusConflict, fmt.Sprintf("state %s is locked by User %s", c.key, l.Holder)}
	default:
		if err := s.store.Unlock(ctx, c.key, l.ID); err != nil {
			return err
		}
	}
	return s.answerWorkspace(w, r, c, http.StatusOK)
}

func (s *Server) cloudForceUnlock(w http.ResponseWriter, r *http.Request, c call) error {
	ctx, cancel := arrived(r)
	defer cancel()
	if err := s.forceUnlock(ctx, c, ""); err != nil {
		return err
	}
	return s.answerWorkspace(w, r, c, http.StatusOK)
}

func (s *Server) currentVersion(w http.ResponseWriter, r *http.Request, c call) error {
	v, err := s.newest(r, c)
	if err != nil {
		return err
	}
	writeResource(w, http.StatusOK, s.describeVersion(r, c, v))
	return nil
}

func (s *Server) newest(r *http.Request, c call) (v1alpha1.StateVersion, error) {
	if err := c.id.Allow(r.Context(), Get, c.key); err != nil {
		return v1alpha1.StateVersion{}, err
	}
	o, err := s.store.Get(r.Context(), c.key)
	if err == nil && len(o.Status.Versions) == 0 {
		err = fmt.Errorf("read state %s: %w", c.key, store.ErrNoState)
	}
	if err != nil {
		return v1alpha1.StateVersion{}, err
	}
	return o.Status.Versions[0], nil
}

// currentOutputs names the outputs. Without their types, clients read the state itself
// for the values, which they may; so no value is handed out on another way.
func (s *Server) currentOutputs(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Get, c.key); err != nil {
		return err
	}
	payload, v, err := s.store.Read(r.Context(), c.key, 0)
	if err != nil {
		return err
	}
	var p struct {
		Outputs map[string]json.RawMessage `json:"outputs"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return fmt.Errorf("read outputs of state %s: %w", c.key, store.ErrFormat)
	}
	items := []resource{}
	for name := range p.Outputs {
		items = append(items, resource{
			ID: encodeID("wsout-", c.key.Namespace, c.key.Name, strconv.FormatInt(v.Version, 10), name), Type: "state-version-outputs",
			Attributes: map[string]any{"name": name, "sensitive": true, "value": nil},
		})
	}
	writeDocument(w, http.StatusOK, map[string]any{"data": items, "meta": map[string]any{"pagination": map[string]any{
		"current-page": 1, "prev-page": nil, "next-page": nil, "total-pages": 1, "total-count": len(items),
	}}})
	return nil
}

// describeVersion describes a version; one without a number is still to be uploaded.
func (s *Server) describeVersion(r *http.Request, c call, v v1alpha1.StateVersion) resource {
	out := resource{Type: "state-versions", ID: encodeID("sv-", c.key.Namespace, c.key.Name, "version", strconv.FormatInt(v.Version, 10))}
	out.Attributes = map[string]any{
		"serial": v.Serial, "status": "finalized", "created-at": v.Created.UTC().Format(time.RFC3339), "size": v.Size,
		"resources-processed": true, "state-version": 4,
		"hosted-state-download-url": s.address(r) + apiPath + "state-versions/" + out.ID + "/download",
	}
	if v.Version == 0 {
		out.ID = encodeID("sv-", c.key.Namespace, c.key.Name, "serial", strconv.FormatInt(v.Serial, 10))
		out.Attributes = map[string]any{"serial": v.Serial, "status": "pending"}
	}
	return out
}

// address is where the client reaches the server.
func (s *Server) address(r *http.Request) string {
	switch {
	case s.url != "":
		return s.url
	case r.TLS != nil:
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func (s *Server) readVersion(w http.ResponseWriter, r *http.Request, c call, v v1alpha1.StateVersion) error {
	writeResource(w, http.StatusOK, s.describeVersion(r, c, v))
	return nil
}

// upload is what an address for an upload carries.
type upload struct {
	Namespace string `json:"ns"`
	Name      string `json:"n"`
	Serial    int64  `json:"s"`
	MD5       string `json:"md5"`
	Force     bool   `json:"f,omitempty"`
	Lock      string `json:"l,omitempty"`
	By        string `json:"by"`
	Run       string `json:"run,omitempty"`
	Grant     string `json:"g,omitempty"` // which must still be good
	Expires   int64  `json:"exp"`         // Unix seconds
}

// createVersion begins a version: it answers with an address that the content is put to
// without further credentials, or takes the content that older clients send at once.
func (s *Server) createVersion(w http.ResponseWriter, r *http.Request, c call) error {
	if err := c.id.Allow(r.Context(), Update, c.key); err != nil {
		return err
	}
	body, err := s.read(w, r, 2*s.max)
	if err != nil {
		return err
	}
	var asked struct {
		Data struct {
			Attributes struct {
				Serial int64  `json:"serial"`
				MD5    string `json:"md5"`
				Force  bool   `json:"force"`
				State  string `json:"state"`
			} `json:"attributes"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return badRequest("the body is not understood")
	}
	a := asked.Data.Attributes
	if b, err := hex.DecodeString(a.MD5); err != nil || len(b) != md5.Size {
		return badRequest("the md5 %q is none", a.MD5)
	}
	if a.Force {
		if err := c.id.Allow(r.Context(), Rollback, c.key); err != nil {
			return err
		}
	}
	ctx, cancel := arrived(r)
	defer cancel()
	o, err := s.store.Get(ctx, c.key)
	if err != nil && !errors.Is(err, store.ErrNoState) {
		return err
	}
	u := upload{
		Namespace: c.key.Namespace, Name: c.key.Name, Serial: a.Serial, MD5: a.MD5, Force: a.Force,
		By: c.id.Name, Run: c.id.Run, Expires: s.clock.Now().Add(uploadLife).Unix(),
	}
	if c.id.grant != nil {
		u.Grant = c.id.grant.ref
	}
	if err == nil && o.Status.Lock != nil {
		if !mine(o, c.id) {
			return fmt.Errorf("write state %s: %w", c.key, &state.LockedError{Lock: *store.Held(o)})
		}
		u.Lock = o.Status.Lock.ID
	}
	if a.State != "" {
		payload, err := base64.StdEncoding.DecodeString(a.State)
		if err != nil {
			return badRequest("the state is not encoded as base64")
		}
		v, err := s.uploaded(ctx, c, u, payload)
		if err != nil {
			return err
		}
		writeResource(w, http.StatusCreated, s.describeVersion(r, c, v))
		return nil
	}
	token, err := s.urls.sign("upload", u)
	if err != nil {
		return fmt.Errorf("write state %s: sign an address: %w", c.key, err)
	}
	out := s.describeVersion(r, c, v1alpha1.StateVersion{Serial: a.Serial})
	out.Attributes["hosted-state-upload-url"] = s.address(r) + apiPath + "uploads/" + token
	out.Attributes["hosted-json-state-upload-url"] = s.address(r) + apiPath + "uploads/" + token + "/json"
	writeResource(w, http.StatusCreated, out)
	return nil
}

// uploaded writes a content that has arrived.
func (s *Server) uploaded(ctx context.Context, c call, u upload, payload []byte) (v1alpha1.StateVersion, error) {
	sum := md5.Sum(payload)
	if want, err := hex.DecodeString(u.MD5); err != nil || !bytes.Equal(sum[:], want) {
		return v1alpha1.StateVersion{}, badRequest("the state is not that of its md5: it was damaged on the way")
	}
	got, err := state.Summarize(payload)
	if err != nil {
		return v1alpha1.StateVersion{}, fmt.Errorf("write state %s: %w: %v", c.key, store.ErrFormat, err)
	}
	if got.Serial != uint64(u.Serial) {
		return v1alpha1.StateVersion{}, badRequest("the state has serial %d, and %d was said", got.Serial, u.Serial)
	}
	return s.write(ctx, c, payload, store.WriteOptions{LockID: u.Lock, Force: u.Force})
}

// opened returns what an address for an upload says, while it is good.
func (s *Server) opened(r *http.Request) (upload, call, error) {
	var u upload
	if err := s.urls.verify("upload", r.PathValue("token"), &u); err != nil {
		return u, call{}, &TokenError{"the address is not one that this server made"}
	}
	if !s.clock.Now().Before(time.Unix(u.Expires, 0)) {
		return u, call{}, &TokenError{"the address was good for some minutes only, and they are over"}
	}
	id := Identity{Name: u.By, Run: u.Run}
	if u.Grant != "" {
		if s.grants == nil {
			return u, call{}, &TokenError{"the run has ended"}
		}
		var err error
		if id, err = s.grants.byRef(u.Grant); err != nil {
			return u, call{}, err
		}
	}
	return u, call{id: id, key: store.Key{Namespace: u.Namespace, Name: u.Name}}, nil
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	u, c, err := s.opened(r)
	if err == nil {
		defer c.id.release()
		var payload []byte
		if payload, err = s.read(w, r, s.max); err == nil {
			ctx, cancel := arrived(r)
			defer cancel()
			_, err = s.uploaded(ctx, c, u, payload)
		}
	}
	if err != nil {
		writeCloudError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// uploadJSON takes the state in the form for readers, which nobody reads here.
func (s *Server) uploadJSON(w http.ResponseWriter, r *http.Request) {
	_, c, err := s.opened(r)
	if err == nil {
		defer c.id.release()
		_, err = s.drop(w, r)
	}
	if err != nil {
		writeCloudError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}
