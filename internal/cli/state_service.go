// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/terrace-dev/terrace/internal/install"
	tfstate "github.com/terrace-dev/terrace/internal/state"
)

// stateFlags name the state service when it cannot be found.
type stateFlags struct{ url, ca string }

func (f *stateFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.url, "state-server", "", "https URL of the state service (default: found through the cluster)")
	fs.StringVar(&f.ca, "state-ca", "", "file with the CA of the state service (default: those of the system)")
}

// stateService is where the content of states is. Requests carry the identity of the
// kubeconfig, and nothing else: its token, or its client certificate.
//
// The service asks the API server whose token it is, and knows client certificates by
// the cluster's CA. So who reads and writes states is who uses kubectl, under "terrace
// up" (an administrator's certificate) as on a cluster, and no ServiceAccount has to
// exist whose rights would be everybody's.
type stateService struct {
	base *url.URL
	http *http.Client
	// token goes beside Authorization, which the API server keeps for itself when it
	// forwards a request to a Service; empty when the service is reached directly.
	token string
}

// stateService finds the state service: the one that the flags name, else the one whose
// address an embedded control plane left beside its kubeconfig, else the Service on the
// cluster, through the API server.
func (a *app) stateService(c *cluster, f stateFlags) (*stateService, error) {
	if c.config.Impersonate.UserName != "" {
		return nil, hintf(errors.New("find the state service: the kubeconfig acts as another user, which the service cannot check"), "use a context without \"as\"")
	}
	if f.url != "" {
		var ca []byte
		if f.ca != "" {
			var err error
			if ca, err = os.ReadFile(f.ca); err != nil {
				return nil, fmt.Errorf("find the state service: %w", err)
			}
		}
		return c.directStates(f.url, ca)
	}
	if c.dir != "" {
		file := filepath.Join(c.dir, "server.json")
		data, err := os.ReadFile(file)
		if err == nil {
			var found struct{ StateAddress, StateCA string }
			if err := json.Unmarshal(data, &found); err != nil {
				return nil, fmt.Errorf("find the state service: %s: %w", file, err)
			}
			if found.StateAddress == "" {
				return nil, fmt.Errorf("find the state service: %s does not tell of one", file)
			}
			if !strings.Contains(found.StateAddress, "://") {
				found.StateAddress = "https://" + found.StateAddress
			}
			return c.directStates(found.StateAddress, []byte(found.StateCA))
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("find the state service: %w", err)
		}
	}
	return c.proxiedStates()
}

// directStates reaches the service by an address of its own.
func (c *cluster) directStates(address string, ca []byte) (*stateService, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("find the state service: %q is not an https URL", address)
	}
	// All that the kubeconfig says of who we are stays; what it says of the API server's
	// own certificate and way goes.
	cfg := rest.CopyConfig(c.config)
	cfg.Host, cfg.Insecure, cfg.ServerName = address, false, ""
	cfg.CAFile, cfg.CAData = "", ca
	cfg.Proxy = nil
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("find the state service: %w", err)
	}
	return &stateService{base: base, http: client}, nil
}

// proxiedStates reaches the service through the API server.
func (c *cluster) proxiedStates() (*stateService, error) {
	token, err := c.bearer()
	if err != nil {
		return nil, fmt.Errorf("find the state service: %w", err)
	}
	if token == "" {
		return nil, hintf(errors.New("find the state service: the API server does not forward client certificates, and the kubeconfig has no token"),
			"\"kubectl -n %s port-forward service/%s 8443:https\", then --state-server https://localhost:8443 --state-ca FILE", install.Namespace, install.StateServiceName)
	}
	client, base, err := c.proxied("https:" + install.StateServiceName + ":https")
	if err != nil {
		return nil, err
	}
	return &stateService{base: base, http: client, token: token}, nil
}

// bearer is the token that client-go would send: of the kubeconfig, of a file that it
// names, or of a program that it runs. Empty when it sends none.
func (c *cluster) bearer() (string, error) {
	caught := errors.New("caught")
	var header string
	wrapped, err := rest.HTTPWrappersForConfig(c.config, catch(func(r *http.Request) error {
		header = r.Header.Get("Authorization")
		return caught
	}))
	if err != nil {
		return "", err
	}
	r, err := http.NewRequest(http.MethodGet, c.config.Host, nil)
	if err != nil {
		return "", err
	}
	if _, err := wrapped.RoundTrip(r); !errors.Is(err, caught) {
		return "", err
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", nil
	}
	return token, nil
}

// catch is the end of a chain of transports that sends nothing.
type catch func(*http.Request) error

func (f catch) RoundTrip(r *http.Request) (*http.Response, error) { return nil, f(r) }

// errStateMissing says that the service has no such state or version.
var errStateMissing = errors.New("not found")

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = tfstate.MaxPayload + 1

// do asks for something about a state. Its path begins after the state's name. A lock
// that somebody else holds is *tfstate.LockedError.
func (s *stateService) do(ctx context.Context, doing, method, namespace, name, rest string, query url.Values, body []byte) ([]byte, http.Header, error) {
	u := *s.base
	u.Path = path.Join(u.Path, "/state", namespace, name, rest)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", doing, err)
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		req.Header.Set(tokenHeader, s.token)
	}
	res, err := s.http.Do(req)
	if err != nil {
		var request *url.Error
		if errors.As(err, &request) {
			err = request.Err
		}
		return nil, nil, hintf(fmt.Errorf("%s: connect to %s: %w", doing, s.base.Host, err), "is Terrace running? --state-server names another address")
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", doing, err)
	}
	if res.StatusCode/100 == 2 {
		return answer, res.Header, nil
	}
	return nil, nil, s.refused(doing, name, res, answer)
}

// refused makes an error of an answer that is no success.
func (s *stateService) refused(doing, name string, res *http.Response, answer []byte) error {
	if res.StatusCode == http.StatusLocked {
		var l tfstate.Lock
		if json.Unmarshal(answer, &l) == nil && l.ID != "" {
			return hintf(fmt.Errorf("%s: %w", doing, &tfstate.LockedError{Lock: l}), "wait for it to end; if it is not at work any more, \"terrace state unlock %s\"", name)
		}
	}
	why, _, _ := strings.Cut(strings.TrimSpace(string(answer[:min(len(answer), 4096)])), "\n")
	if why == "" {
		why = res.Status
	}
	err := fmt.Errorf("%s: %s", doing, why)
	switch res.StatusCode {
	case http.StatusNotFound:
		return hintf(fmt.Errorf("%w: %w", err, errStateMissing), "\"terrace state list -A\" lists the states of all namespaces")
	case http.StatusUnauthorized:
		return hintf(err, "the state service does not know the kubeconfig's user")
	case http.StatusForbidden:
		return hintf(err, "the verbs of states.terrace.dev are get, update, lock, unlock, force-unlock, rollback and delete")
	}
	return err
}

// locked runs f while a state is locked for an operation, and tells f the lock's ID.
func (a *app) locked(cmd *cobra.Command, s *stateService, namespace, name, operation string, f func(id string) error) error {
	id, err := uuid()
	if err != nil {
		return err
	}
	l := tfstate.Lock{ID: id, Operation: operation, Who: whoami(), Version: "terrace " + a.env.Build.Version, Created: a.env.Now().UTC()}
	body, err := json.Marshal(l)
	if err != nil {
		return err
	}
	doing := fmt.Sprintf("lock state %s/%s", namespace, name)
	if _, _, err := s.do(cmd.Context(), doing, http.MethodPost, namespace, name, "lock", nil, body); err != nil {
		return err
	}
	done := f(id)
	// Also after an interrupt: nobody else knows that the lock is of no use any more.
	_, _, err = s.do(context.WithoutCancel(cmd.Context()), "un"+doing, http.MethodDelete, namespace, name, "lock", nil, body)
	return errors.Join(done, err)
}

// whoami is what Terraform says of who holds a lock.
func whoami() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// uuid makes a random UUID (RFC 9562, version 4).
func uuid() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make an ID: %w", err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}
