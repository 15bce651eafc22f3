// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/blob"
	"github.com/terrace-dev/terrace/internal/tofu/provider"
)

// SettingError is a setting whose value cannot be used.
type SettingError struct {
	// Setting is the flag, variable or line of the file, as its user wrote it.
	Setting string
	// Why says what is wrong with the value.
	Why string
	// Advice is what to do about it; it may be empty.
	Advice string
}

// Error implements error.
func (e *SettingError) Error() string {
	return "read configuration: " + e.Setting + ": " + e.Why
}

// Hint is the next step for the user; it may be empty.
func (e *SettingError) Hint() string { return e.Advice }

// Validate checks every value that can be judged without touching anything but
// the file system. The returned error joins one *SettingError for each finding.
func (c Config) Validate() error {
	var found []error
	bad := func(setting, advice, format string, args ...any) {
		found = append(found, &SettingError{Setting: "--" + setting, Why: fmt.Sprintf(format, args...), Advice: advice})
	}
	if c.Mode != Up && c.Mode != Controller {
		found = append(found, fmt.Errorf("read configuration: mode: %q is not known", c.Mode))
	}
	if c.DataDir == "" {
		bad("data-dir", "name a directory; it is made when it does not exist", "must not be empty")
	}
	c.validateAddresses(bad)
	c.validateScope(bad)
	c.validateApply(bad)
	c.validateFiles(bad)
	c.validateRuns(bad)
	c.validateStates(bad)
	for name, n := range map[string]int{
		"concurrent": c.Concurrent, "concurrent-runs": c.ConcurrentRuns,
		"run-logs-kept": c.RunLogsKept, "artifact-retention-records": c.ArtifactRetentionRecords,
	} {
		if n < 1 {
			bad(name, "", "%d: must be at least 1", n)
		}
	}
	if c.RunTimeout <= 0 {
		bad("run-timeout", "", "%s: must be longer than zero", c.RunTimeout)
	}
	if c.ShutdownGrace < 0 {
		bad("shutdown-grace", "", "%s: must not be negative", c.ShutdownGrace)
	}
	if c.ArtifactRetentionTTL < 0 {
		bad("artifact-retention-ttl", "", "%s: must not be negative", c.ArtifactRetentionTTL)
	}
	if !slices.Contains([]string{"text", "json"}, c.LogFormat) {
		bad("log-format", "use text or json", "%q is not known", c.LogFormat)
	}
	if _, err := logLevel(c.LogLevel); err != nil {
		bad("log-level", "use debug, info, warn or error", "%q is not known", c.LogLevel)
	}
	slices.SortStableFunc(found, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(found...)
}

type reporter func(setting, advice, format string, args ...any)

func (c Config) validateAddresses(bad reporter) {
	address := func(setting, value string) string {
		host, port, err := net.SplitHostPort(value)
		if err != nil {
			bad(setting, "write it as host:port, for example 127.0.0.1:0", "%q is not a host:port", value)
			return ""
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			bad(setting, "a port is a number from 0 to 65535", "%q has no valid port", value)
		}
		return host
	}
	if c.Mode == Up {
		address("api-address", c.APIAddress)
	}
	address("listen-address", c.ListenAddress)
	if c.StorageAdvAddress != "" {
		address("storage-adv-address", c.StorageAdvAddress)
	}
	if c.Pprof != "" {
		// Profiles show memory, and with it secrets: they never leave the machine.
		if host := address("pprof", c.Pprof); host != "localhost" && !net.ParseIP(host).IsLoopback() {
			bad("pprof", "use 127.0.0.1:6060 and reach it through a tunnel", "%q is not a loopback address", c.Pprof)
		}
	}
	if c.EventsAddr != "" {
		if u, err := url.Parse(c.EventsAddr); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			bad("events-addr", "write it as http://host/path", "%q is not an HTTP URL", c.EventsAddr)
		}
	}
}

func (c Config) validateScope(bad reporter) {
	for _, ns := range c.WatchNamespaces {
		if problems := validation.IsDNS1123Label(ns); len(problems) > 0 {
			bad("watch-namespace", "", "%q is not a namespace: %s", ns, problems[0])
		}
	}
	if _, err := labels.Parse(c.WatchLabelSelector); err != nil {
		bad("watch-label-selector", "for example sharding.fluxcd.io/key=shard1", "%q: %v", c.WatchLabelSelector, err)
	}
	if c.Git.URL == "" {
		for setting, value := range map[string]string{"branch": c.Git.Branch, "path": c.Git.Path, "git-name": c.Git.Name} {
			if value != "" {
				bad(setting, "add --git URL", "has no effect without --git")
			}
		}
		return
	}
	if problems := validation.IsDNS1123Label(c.Git.Namespace); len(problems) > 0 {
		bad("git-namespace", "", "%q is not a namespace: %s", c.Git.Namespace, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(c.Git.Name); c.Git.Name != "" && len(problems) > 0 {
		bad("git-name", "", "%q is not an object name: %s", c.Git.Name, problems[0])
	}
}

func (c Config) validateApply(bad reporter) {
	for kind := range strings.SplitSeq(c.CustomApplyStageKinds, ",") {
		if c.CustomApplyStageKinds != "" && !groupKind.MatchString(strings.TrimSpace(kind)) {
			bad("custom-apply-stage-kinds", "rbac.authorization.k8s.io/Role,ConfigMap applies these two before the others", "%q: must be a kind, or a group and a kind with / between them", kind)
		}
	}
	if c.PruneLimit < 0 || c.PruneLimit > 100 {
		bad("prune-limit", "50 asks when more than half of a unit's objects would go", "%d: must be a percentage from 0 to 100", c.PruneLimit)
	}
	if c.PruneLimitMin < 0 {
		bad("prune-limit-min", "", "%d: must not be negative", c.PruneLimitMin)
	}
	for _, manager := range c.OverrideManagers {
		if strings.TrimSpace(manager) == "" || strings.HasPrefix("kustomize-controller", manager) {
			bad("override-manager", "name the manager as managedFields of an object has it", "%q would take back what Terrace itself applies", manager)
		}
	}
	if c.SOPSAgeSecret == "" {
		return
	}
	namespace, name, qualified := strings.Cut(c.SOPSAgeSecret, "/")
	if !qualified {
		name = namespace
	} else if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		bad("sops-age-secret", "write it as NAME or NAMESPACE/NAME", "%q is not a namespace: %s", namespace, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		bad("sops-age-secret", "write it as NAME or NAMESPACE/NAME", "%q is not the name of a Secret: %s", name, problems[0])
	}
}

func (c Config) validateFiles(bad reporter) {
	for _, f := range c.Files {
		if f == "-" {
			continue
		}
		if _, err := os.Stat(f); err != nil {
			bad("filename", "", "%v", err)
		}
	}
	for setting, file := range map[string]string{"tofu": c.Tofu, "tofu-cli-config": c.TofuCLIConfig, "state-cert-file": c.StateCertFile, "state-key-file": c.StateKeyFile} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		switch {
		case err != nil:
			bad(setting, "", "%v", err)
		case info.IsDir():
			bad(setting, "name the file itself", "%s is a directory", file)
		}
	}
}

// leastMemory is what tofu alone needs to start, in bytes.
const leastMemory = 256 << 20

func (c Config) validateRuns(bad reporter) {
	for setting, paths := range map[string][]string{"run-allow-read": c.RunAllowRead, "run-allow-write": c.RunAllowWrite} {
		for _, path := range paths {
			info, err := os.Stat(path)
			switch {
			case err != nil:
				bad(setting, "", "%v", err)
			case !filepath.IsAbs(path):
				bad(setting, "write the whole path, from / on", "%s is not an absolute path", path)
			case setting == "run-allow-write" && !info.IsDir():
				bad(setting, "name the directory that it is in", "%s is not a directory", path)
			}
		}
		if len(paths) > 0 && !c.RunConfine {
			bad(setting, "leave it out, or take --run-confine=false back", "has no effect without --run-confine")
		}
	}
	if c.RunMemory != "" {
		if q, err := resource.ParseQuantity(c.RunMemory); err != nil {
			bad("run-memory", "write it as 2Gi or 512Mi", "%q is not a quantity", c.RunMemory)
		} else if q.Value() < leastMemory {
			bad("run-memory", "2Gi is enough for most providers", "%q is less than tofu needs to start, 256Mi", c.RunMemory)
		}
	}
	for _, p := range c.AllowedProviders {
		if _, err := provider.ParseList(provider.OpenTofuRegistry, []string{p}); err != nil {
			bad("allowed-providers", "for example hashicorp/aws or registry.opentofu.org/hashicorp/*", "%v", err)
		}
	}
	if c.RunOpenFiles != 0 && c.RunOpenFiles < 64 {
		bad("run-open-files", "1024 is what most systems give", "%d: must be 0 for no bound, or at least 64", c.RunOpenFiles)
	}
}

func (c Config) validateStates(bad reporter) {
	if !slices.Contains([]string{v1alpha1.StateInService, v1alpha1.StateInSecret}, c.StateBackend) {
		bad("state-backend", "use terrace or kubernetes", "%q is not known", c.StateBackend)
	}
	if _, _, err := net.SplitHostPort(c.StateAddress); err != nil {
		bad("state-address", "write it as host:port, for example 127.0.0.1:0", "%q is not a host:port", c.StateAddress)
	}
	if u, err := url.Parse(c.StateURL); c.StateURL != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
		bad("state-url", "write it as https://host:port", "%q is not an HTTPS URL", c.StateURL)
	}
	if (c.StateCertFile == "") != (c.StateKeyFile == "") {
		bad("state-cert-file", "", "needs --state-key-file, and the other way round")
	}
	for i, key := range c.KMSKeys {
		// What is wrong is not shown: it may be a key.
		u, err := url.Parse(key)
		switch {
		case key == blob.Unwrapped && i > 0:
			bad("kms-key", "write none,URL", "%s is not the first", key)
		case key != blob.Unwrapped && (err != nil || u.Scheme == ""):
			bad("kms-key", "for example awskms://alias/terrace?region=eu-central-1", "key %d is not a URL", i+1)
		}
	}
}

// RunMemoryBytes is RunMemory in bytes, 0 for no bound.
func (c Config) RunMemoryBytes() uint64 {
	q, err := resource.ParseQuantity(c.RunMemory)
	if err != nil || q.Value() < 0 {
		return 0
	}
	return uint64(q.Value())
}

// groupKind matches a kind with or without its API group.
var groupKind = regexp.MustCompile(`^([a-z0-9.-]+/)?[A-Z][A-Za-z0-9]*$`)
