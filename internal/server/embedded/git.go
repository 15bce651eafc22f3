// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infra "github.com/terrace-dev/terrace/api/infra/v1alpha2"
	"github.com/terrace-dev/terrace/internal/config"
	"github.com/terrace-dev/terrace/internal/controlplane"
	"github.com/terrace-dev/terrace/internal/server"
)

// gitInterval is how often the repository of --git is asked for news, beside
// webhooks and `terrace reconcile`.
const gitInterval = "1m0s"

// gitSource is the GitRepository that --git asks for.
func gitSource(git config.GitOptions) (manifest, error) {
	address, err := gitURL(git.URL)
	if err != nil {
		return manifest{}, err
	}
	name, err := gitName(git)
	if err != nil {
		return manifest{}, err
	}
	spec := map[string]any{"url": address, "interval": gitInterval}
	if git.Branch != "" {
		spec["ref"] = map[string]any{"branch": git.Branch}
	}
	return manifest{from: "--git", object: &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": sourcev1.GroupVersion.String(),
		"kind":       sourcev1.GitRepositoryKind,
		"metadata":   map[string]any{"name": name, "namespace": gitNamespace(git)},
		"spec":       spec,
	}}}, nil
}

func gitNamespace(git config.GitOptions) string {
	if git.Namespace == "" {
		return defaultNamespace
	}
	return git.Namespace
}

// scp is the form user@host:path, which git accepts beside URLs.
var scp = regexp.MustCompile(`^(?:([^/@:]+)@)?([^/:]+):([^/].*)$`)

// gitURL makes a URL of what --git takes: a URL, user@host:path, or the path of a
// local repository. A path that is there wins over the scp form.
func gitURL(given string) (string, error) {
	if strings.Contains(given, "://") {
		if _, err := url.Parse(given); err != nil {
			// The parser's error would quote a password in it.
			return "", errors.New("read --git: it is not a URL")
		}
		return given, nil
	}
	if !exists(given) {
		if m := scp.FindStringSubmatch(given); m != nil {
			user := m[1]
			if user == "" {
				user = "git"
			}
			return fmt.Sprintf("ssh://%s@%s/%s", user, m[2], m[3]), nil
		}
		return "", &controlplane.StartError{
			What: fmt.Sprintf("read --git: there is no repository at %s", given),
			Hint: "give a URL, or the path of a local repository",
		}
	}
	absolute, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("read --git: %w", err)
	}
	return (&url.URL{Scheme: "file", Path: absolute}).String(), nil
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// gitName is the name of the GitRepository: the given one, or the last element of
// the URL as a name that Kubernetes takes.
func gitName(git config.GitOptions) (string, error) {
	if git.Name != "" {
		return git.Name, nil
	}
	address, err := gitURL(git.URL)
	if err != nil {
		return "", err
	}
	// Only the path: before it may be a password.
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New("read --git: it is not a URL")
	}
	last := strings.TrimSuffix(path.Base(strings.TrimRight(u.Path, "/")), ".git")
	name := strings.Trim(unfit.ReplaceAllString(strings.ToLower(last), "-"), "-")
	if name == "" {
		return "", &controlplane.StartError{What: fmt.Sprintf("read --git: %s has no last element to name the source by", u.Redacted()), Hint: "give a name with --git-name"}
	}
	return name[:min(len(name), 63)], nil
}

// showSource waits for the source of --git and tells what is in it, or why it
// cannot be had; then again only when that changes from one to the other.
func showSource(ctx context.Context, api *rest.Config, git config.GitOptions, out io.Writer) error {
	c, err := client.NewWithWatch(api, client.Options{Scheme: server.Scheme()})
	if err != nil {
		return err
	}
	name, err := gitName(git)
	if err != nil {
		return err
	}
	shown := ""
	for ctx.Err() == nil {
		w, err := c.Watch(ctx, &sourcev1.GitRepositoryList{}, client.InNamespace(gitNamespace(git)), client.MatchingFields{"metadata.name": name})
		if err != nil {
			if ctx.Err() == nil {
				ctrl.Log.Error(err, "Watch the source of --git", "name", name)
			}
			return nil // only the telling ends
		}
		for event := range w.ResultChan() {
			source, ok := event.Object.(*sourcev1.GitRepository)
			if !ok {
				continue
			}
			text, settled := describeSource(ctx, c, source, git)
			if text != "" && text != shown {
				fmt.Fprint(out, text)
				shown = text
			}
			if settled {
				w.Stop()
				return nil
			}
		}
	}
	return nil
}

// describeSource returns what there is to say of the source, and whether that was
// all: a failure may be mended, so it is watched on.
func describeSource(ctx context.Context, c client.Client, source *sourcev1.GitRepository, git config.GitOptions) (text string, settled bool) {
	ready := meta.FindStatusCondition(source.Status.Conditions, fluxmeta.ReadyCondition)
	switch {
	case ready == nil || ready.ObservedGeneration != source.Generation || ready.Status == metav1.ConditionUnknown:
		return "", false
	case ready.Status == metav1.ConditionFalse:
		return fmt.Sprintf("Git source %s/%s is not ready: %s\n", source.Namespace, source.Name, trimmed(ready.Message)), false
	case source.Status.Artifact == nil:
		return "", false
	}
	head := fmt.Sprintf("Git source %s/%s is at %s", source.Namespace, source.Name, source.Status.Artifact.Revision)
	found, err := look(ctx, source.Status.Artifact.URL, git.Path)
	if err != nil {
		return fmt.Sprintf("%s; what is in it cannot be shown: %v\n", head, err), true
	}
	var units infra.TerraformList
	if err := c.List(ctx, &units); err != nil {
		return fmt.Sprintf("%s; its units cannot be listed: %v\n", head, err), true
	}
	return head + found.text(source, units.Items), true
}

// content is what --git finds in a repository.
type content struct {
	// modules are the directories that a unit can run, from the repository's root:
	// those with Terraform files that no other directory uses as a module.
	modules []string
	// manifests are the files that declare Terraform units.
	manifests []string
}

// text continues the line that names the source.
func (f content) text(source *sourcev1.GitRepository, units []infra.Terraform) string {
	if len(f.modules) == 0 && len(f.manifests) == 0 {
		return "; it has no Terraform in that path\n"
	}
	by := map[string]string{}
	for _, unit := range units {
		ref := unit.Spec.SourceRef
		namespace := ref.Namespace
		if namespace == "" {
			namespace = unit.Namespace
		}
		if ref.Kind == sourcev1.GitRepositoryKind && ref.Name == source.Name && namespace == source.Namespace {
			by[path.Clean("/" + unit.Spec.Path)[1:]] = unit.Namespace + "/" + unit.Name
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "; it has %s\n", plural(len(f.modules), "directory", "directories")+" with Terraform:")
	free := ""
	for _, module := range f.modules {
		name := "./" + module
		if unit := by[module]; unit != "" {
			fmt.Fprintf(&b, "  %-32s unit %s\n", name, unit)
			continue
		}
		fmt.Fprintf(&b, "  %-32s no unit yet\n", name)
		if free == "" {
			free = name
		}
	}
	for _, file := range f.manifests {
		fmt.Fprintf(&b, "  %-32s declares units: terrace kubectl apply -f %s\n", "./"+file, file)
	}
	if free != "" && len(f.manifests) == 0 {
		fmt.Fprintf(&b, "make one a unit by applying, for example:\n%s", example(source, free))
	}
	return b.String()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// example is a unit that shows its plan and waits.
func example(source *sourcev1.GitRepository, module string) string {
	name := strings.Trim(unfit.ReplaceAllString(strings.ToLower(path.Base(path.Join(source.Name, module))), "-"), "-")
	return fmt.Sprintf(`  apiVersion: %s
  kind: Terraform
  metadata: {name: %s, namespace: %s}
  spec:
    path: %s
    approvePlan: ""
    sourceRef: {kind: GitRepository, name: %s}
`, infra.GroupVersion, name, source.Namespace, module, source.Name)
}

// look reads the artifact at address.
func look(ctx context.Context, address, below string) (content, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return content{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return content{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return content{}, fmt.Errorf("%s answers %s", address, response.Status)
	}
	unzipped, err := gzip.NewReader(response.Body)
	if err != nil {
		return content{}, err
	}
	return find(tar.NewReader(unzipped), below)
}

// fileLimit bounds what is read of one file; what is longer declares nothing.
const fileLimit = 1 << 20

var (
	localModule = regexp.MustCompile(`\bsource\s*=\s*"(\.\.?/[^"]*)"`)
	declares    = regexp.MustCompile(`(?m)^apiVersion:\s*["']?` + regexp.QuoteMeta(infra.GroupVersion.Group) + `/`)
)

// find goes through the files at or below the path.
func find(files *tar.Reader, below string) (content, error) {
	root := path.Clean("/" + filepath.ToSlash(below))
	modules, used := map[string]bool{}, map[string]bool{}
	var found content
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return content{}, err
		}
		name := path.Clean("/" + header.Name)
		if header.Typeflag != tar.TypeReg || header.Size > fileLimit {
			continue
		}
		text, err := io.ReadAll(files)
		if err != nil {
			return content{}, err
		}
		inside := root == "/" || strings.HasPrefix(name, root+"/")
		switch path.Ext(name) {
		case ".tf", ".tofu":
			modules[path.Dir(name)] = modules[path.Dir(name)] || inside
			for _, m := range localModule.FindAllSubmatch(text, -1) {
				used[path.Join(path.Dir(name), string(m[1]))] = true
			}
		case ".yaml", ".yml":
			if inside && declares.Match(text) {
				found.manifests = append(found.manifests, name[1:])
			}
		}
	}
	for _, module := range slices.Sorted(maps.Keys(modules)) {
		if modules[module] && !used[module] {
			found.modules = append(found.modules, module[1:])
		}
	}
	slices.Sort(found.manifests)
	return found, nil
}
