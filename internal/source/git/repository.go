// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	fluxgit "github.com/fluxcd/pkg/git"
	fluxknownhosts "github.com/fluxcd/pkg/ssh/knownhosts"
	"github.com/go-git/go-billy/v5/osfs"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage/filesystem"
	gossh "golang.org/x/crypto/ssh"
)

// repository is a place to read objects from: a local repository, or a remote
// one and the objects that were fetched of it.
type repository struct {
	objects storer.Storer
	// remote is nil for a local repository, which has its objects already.
	remote *gogit.Remote
	auth   transport.AuthMethod
	proxy  transport.ProxyOptions
	tls    tlsFiles
	dir    string // of fetched objects, removed by close
}

type tlsFiles struct{ cert, key, ca []byte }

// openLocal opens the repository at or in path: bare, with .git, or a worktree.
func openLocal(path string) (*repository, error) {
	if path == "" {
		return nil, errors.New("a file URL must be absolute, such as file:///srv/infra.git")
	}
	r, err := gogit.PlainOpenWithOptions(path, &gogit.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return nil, err
	}
	return &repository{objects: r.Storer}, nil
}

func openRemote(r Request, dir string) (*repository, error) {
	auth, err := authMethod(r.Auth)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := filesystem.NewStorage(osfs.New(dir, osfs.WithBoundOS()), cache.NewObjectLRUDefault())
	repo := &repository{
		objects: s, auth: auth, dir: dir,
		remote: gogit.NewRemote(s, &config.RemoteConfig{Name: gogit.DefaultRemoteName, URLs: []string{r.URL}}),
	}
	if r.Auth != nil {
		repo.tls = tlsFiles{cert: r.Auth.ClientCert, key: r.Auth.ClientKey, ca: r.Auth.CAFile}
	}
	if r.Proxy != nil {
		repo.proxy.URL = r.Proxy.String()
	}
	return repo, nil
}

func (r *repository) close() {
	if r.dir != "" {
		_ = os.RemoveAll(r.dir) // in the caller's scratch directory, which goes too
	}
}

// list returns the references; of a remote, in one request.
func (r *repository) list(ctx context.Context) (references, error) {
	if r.remote == nil {
		return r.listLocal()
	}
	var listed []*plumbing.Reference
	err := until(ctx, func() (err error) {
		listed, err = r.remote.ListContext(ctx, &gogit.ListOptions{
			Auth: r.auth, ClientCert: r.tls.cert, ClientKey: r.tls.key, CABundle: r.tls.ca,
			ProxyOptions: r.proxy, PeelingOption: gogit.AppendPeeled,
		})
		return err
	})
	if err != nil {
		return nil, r.transportError(err)
	}
	refs := references{}
	for _, ref := range listed {
		if ref.Type() == plumbing.HashReference {
			refs[ref.Name().String()] = ref.Hash()
		}
	}
	for _, ref := range listed {
		if h, ok := refs[ref.Target().String()]; ok && ref.Type() == plumbing.SymbolicReference {
			refs[ref.Name().String()] = h
		}
	}
	if len(refs) == 0 {
		return nil, ErrEmpty
	}
	return refs, nil
}

func (r *repository) listLocal() (references, error) {
	all, err := r.objects.IterReferences()
	if err != nil {
		return nil, err
	}
	refs := references{}
	err = all.ForEach(func(ref *plumbing.Reference) error {
		resolved, err := storer.ResolveReference(r.objects, ref.Name())
		if errors.Is(err, plumbing.ErrReferenceNotFound) {
			return nil // HEAD of a repository without a commit
		}
		if err != nil {
			return err
		}
		refs[ref.Name().String()] = resolved.Hash()
		if !ref.Name().IsTag() {
			return nil
		}
		if tag, err := object.GetTag(r.objects, resolved.Hash()); err == nil {
			if c, err := tag.Commit(); err == nil {
				refs[ref.Name().String()+peeled] = c.Hash
			}
		}
		return nil
	})
	if err == nil && len(refs) == 0 {
		return nil, ErrEmpty
	}
	return refs, err
}

// fetch brings the objects of the targets here.
func (r *repository) fetch(ctx context.Context, targets []target) error {
	if r.remote == nil {
		return nil
	}
	if targets[0].pinned {
		return r.fetchCommit(ctx, targets[0])
	}
	specs := make([]config.RefSpec, len(targets))
	for i, t := range targets {
		specs[i] = config.RefSpec(fmt.Sprintf("+%s:%[1]s", t.fetch))
	}
	return r.transportError(r.fetchSpecs(ctx, specs, 1))
}

// fetchCommit asks for one commit by its hash, which not every server allows;
// otherwise it takes the whole history of the branch, or of all branches and tags.
func (r *repository) fetchCommit(ctx context.Context, t target) error {
	err := r.fetchSpecs(ctx, []config.RefSpec{config.RefSpec(fmt.Sprintf("+%s:refs/terrace/commit", t.commit))}, 1)
	if err == nil || ctx.Err() != nil || !errors.Is(err, gogit.ErrExactSHA1NotSupported) {
		return r.transportError(err)
	}
	specs := []config.RefSpec{"+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"}
	if t.fetch != "" {
		specs = []config.RefSpec{config.RefSpec(fmt.Sprintf("+%s:%[1]s", t.fetch))}
	}
	if err := r.fetchSpecs(ctx, specs, 0); err != nil {
		return r.transportError(err)
	}
	if _, err := object.GetCommit(r.objects, t.commit); errors.Is(err, plumbing.ErrObjectNotFound) {
		where := "any branch or tag"
		if t.fetch != "" {
			where = fmt.Sprintf("branch '%s'", t.fetch.Short())
		}
		return fmt.Errorf("commit '%s' is not on %s: %w", t.commit, where, ErrReference)
	}
	return nil
}

func (r *repository) fetchSpecs(ctx context.Context, specs []config.RefSpec, depth int) error {
	return until(ctx, func() error {
		err := r.remote.FetchContext(ctx, &gogit.FetchOptions{
			RefSpecs: specs, Depth: depth, Tags: gogit.NoTags,
			Auth: r.auth, ClientCert: r.tls.cert, ClientKey: r.tls.key, CABundle: r.tls.ca, ProxyOptions: r.proxy,
		})
		if errors.Is(err, gogit.NoErrAlreadyUpToDate) {
			return nil
		}
		return err
	})
}

// until ends when do does or when the context is over: an SSH handshake with a
// server that falls silent does not look at the context by itself.
func until(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transportError recognises what a user can mend.
func (r *repository) transportError(err error) error {
	var missing gogit.NoMatchingRefSpecError
	var algorithm *gossh.AlgorithmNegotiationError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return ErrEmpty
	case errors.As(err, &missing):
		return fmt.Errorf("%w: %w", err, ErrReference)
	case errors.As(err, &algorithm) && strings.Contains(err.Error(), "host key"):
		return fmt.Errorf("%w: known_hosts lists the host, with no key of a kind that it shows (%v)", ErrHostKey, err)
	case errors.Is(err, transport.ErrAuthenticationRequired) && r.auth == nil:
		return fmt.Errorf("the server asks for credentials and there are none: %w", ErrNotAccepted)
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed):
		return ErrNotAccepted // there is nothing more in the cause
	case strings.Contains(err.Error(), "ssh: unable to authenticate"): // not a type of its own
		return fmt.Errorf("%w: %v", ErrNotAccepted, err)
	default:
		return err
	}
}

// authMethod is what the transport needs of the options.
func authMethod(o *fluxgit.AuthOptions) (transport.AuthMethod, error) {
	if o == nil {
		return nil, nil
	}
	switch o.Transport {
	case fluxgit.HTTP, fluxgit.HTTPS:
		switch basic := o.Username != "" || o.Password != ""; {
		case basic && o.BearerToken != "":
			return nil, errors.New("basic auth and bearer token cannot be set at the same time")
		case basic:
			return &http.BasicAuth{Username: o.Username, Password: o.Password}, nil
		case o.BearerToken != "":
			return &http.TokenAuth{Token: o.BearerToken}, nil
		default:
			return nil, nil // some servers refuse empty credentials for public repositories
		}
	case fluxgit.SSH:
		return newSSHAuth(o)
	default:
		return nil, fmt.Errorf("transport '%s' is not supported", o.Transport)
	}
}

// sshAuth is a key and the host keys to trust.
type sshAuth struct {
	*ssh.PublicKeys
	algorithms []string
}

// sshTimeout bounds the connection; the request's own deadline is usually sooner.
const sshTimeout = time.Minute

func newSSHAuth(o *fluxgit.AuthOptions) (transport.AuthMethod, error) {
	if len(o.Identity) == 0 || len(o.KnownHosts) == 0 {
		return nil, fmt.Errorf("SSH needs a key (identity) and known_hosts, and they are not given for host '%s': %w", o.Host, ErrNotAccepted)
	}
	keys, err := ssh.NewPublicKeys(o.Username, o.Identity, o.Password)
	if err != nil {
		return nil, fmt.Errorf("read SSH identity: %w", err)
	}
	check, algorithms, err := fluxknownhosts.New(o.KnownHosts)
	if err != nil {
		return nil, fmt.Errorf("read known_hosts: %w", err)
	}
	// With an old RSA entry, sign with SHA-2 where the server can.
	if len(algorithms) == 1 && algorithms[0] == gossh.KeyAlgoRSA {
		algorithms = []string{gossh.KeyAlgoRSASHA512, gossh.KeyAlgoRSASHA256, gossh.KeyAlgoRSA}
	}
	keys.HostKeyCallback = func(host string, remote net.Addr, key gossh.PublicKey) error {
		err := check(host, remote, key)
		if err == nil {
			return nil
		}
		return fmt.Errorf("%w: %s shows %s %s, which known_hosts does not list (%v)",
			ErrHostKey, host, key.Type(), gossh.FingerprintSHA256(key), err)
	}
	return &sshAuth{PublicKeys: keys, algorithms: algorithms}, nil
}

// ClientConfig adds the algorithms of the known host keys, so that a server with
// several keys shows one that is known.
func (a *sshAuth) ClientConfig() (*gossh.ClientConfig, error) {
	c, err := a.PublicKeys.ClientConfig()
	if err != nil {
		return nil, err
	}
	c.HostKeyAlgorithms = a.algorithms
	c.Timeout = sshTimeout
	return c, nil
}
