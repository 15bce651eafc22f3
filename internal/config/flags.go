// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/spf13/pflag"

// AddFlags declares on fs the flags of c's mode, with the values of c as their
// defaults, so that parsing fs changes c.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of everything that survives a restart; created with mode 0700")
	switch c.Mode {
	case Up:
		c.addUpFlags(fs)
	case Controller:
		c.addControllerFlags(fs)
	}
	c.addScopeFlags(fs)
	c.addApplyFlags(fs)
	c.addRunFlags(fs)
	c.addStateFlags(fs)
	c.addServingFlags(fs)
}

func (c *Config) addUpFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.APIAddress, "api-address", c.APIAddress, "host:port of the Kubernetes API; port 0 picks a free one")
	fs.StringArrayVarP(&c.Files, "filename", "f", c.Files, "manifest, or directory of manifests, to apply once at start (repeatable)")
	fs.StringVar(&c.Git.URL, "git", c.Git.URL, "Git repository, as a URL or a path, to register as a source")
	fs.StringVar(&c.Git.Branch, "branch", c.Git.Branch, "branch of --git (default: the one that HEAD names)")
	fs.StringVar(&c.Git.Path, "path", c.Git.Path, "directory of --git to look in (default: its root)")
	fs.StringVar(&c.Git.Namespace, "git-namespace", c.Git.Namespace, "namespace of the objects that --git makes")
	fs.StringVar(&c.Git.Name, "git-name", c.Git.Name, "name of the GitRepository that --git makes (default: the last element of its URL)")
	fs.BoolVar(&c.WithoutControllers, "without-controllers", c.WithoutControllers, "start the Kubernetes API alone")
}

func (c *Config) addControllerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig of the cluster (default: KUBECONFIG, ~/.kube/config, the pod's account)")
	fs.StringVar(&c.KubeContext, "context", c.KubeContext, "context of the kubeconfig (default: its current one)")
	fs.BoolVar(&c.LeaderElection, "leader-election", c.LeaderElection, "wait for the leader lease, so that one of several processes works")
	fs.StringVar(&c.LeaderElectionNamespace, "leader-election-namespace", c.LeaderElectionNamespace, "namespace of the leader lease (default: the pod's, or terrace-system)")
}

// The names of the multi-tenancy flags are those of the Flux controllers and
// of the Terraform Controller.
func (c *Config) addScopeFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.WatchNamespaces, "watch-namespace", c.WatchNamespaces, "reconcile only these namespaces (default: all)")
	fs.StringVar(&c.WatchLabelSelector, "watch-label-selector", c.WatchLabelSelector, "reconcile only the objects that this label selector matches (default: all)")
	fs.BoolVar(&c.NoCrossNamespaceRefs, "no-cross-namespace-refs", c.NoCrossNamespaceRefs, "refuse references of Flux kinds into another namespace")
	fs.BoolVar(&c.AllowCrossNamespaceRefs, "allow-cross-namespace-refs", c.AllowCrossNamespaceRefs, "let a Terraform refer to another namespace")
	fs.StringVar(&c.DefaultServiceAccount, "default-service-account", c.DefaultServiceAccount, "service account of units that name none (default: the process's own)")
	fs.BoolVar(&c.AllowLocalSources, "allow-local-sources", c.AllowLocalSources, "accept file:// URLs and paths as Git sources")
	fs.BoolVar(&c.AllowBreakTheGlass, "allow-break-the-glass", c.AllowBreakTheGlass, "honour spec.breakTheGlass")
}

func (c *Config) addApplyFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.AllowRemoteBases, "allow-remote-bases", c.AllowRemoteBases, "let kustomization files name bases that are fetched over the network")
	fs.StringVar(&c.SOPSAgeSecret, "sops-age-secret", c.SOPSAgeSecret, "Secret of age keys for every Kustomization and Terraform, as NAME in terrace-system or NAMESPACE/NAME (default: none)")
	fs.StringVar(&c.CustomApplyStageKinds, "custom-apply-stage-kinds", c.CustomApplyStageKinds, "kinds to apply before the others of a Kustomization, as group/Kind,… (default: none)")
	fs.StringSliceVar(&c.OverrideManagers, "override-manager", c.OverrideManagers, "field manager whose fields on objects of Kustomizations are taken back (repeatable)")
	fs.IntVar(&c.PruneLimit, "prune-limit", c.PruneLimit, "percent of a Kustomization's objects that one revision may prune without being asked about; 100 for no limit")
	fs.IntVar(&c.PruneLimitMin, "prune-limit-min", c.PruneLimitMin, "objects that a revision may prune whatever the percentage")
}

func (c *Config) addRunFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Tofu, "tofu", c.Tofu, "path of tofu or terraform (default: beside terrace, then PATH)")
	fs.StringVar(&c.TofuCLIConfig, "tofu-cli-config", c.TofuCLIConfig, "CLI configuration (.tfrc) of runs whose unit brings none")
	fs.BoolVar(&c.PlanSecrets, "plan-secrets", c.PlanSecrets, "also write plans to Secrets, with the Terraform Controller's names")
	fs.IntVar(&c.Concurrent, "concurrent", c.Concurrent, "objects that a controller reconciles at a time")
	fs.IntVar(&c.ConcurrentRuns, "concurrent-runs", c.ConcurrentRuns, "tofu runs at a time")
	fs.DurationVar(&c.RunTimeout, "run-timeout", c.RunTimeout, "longest time of one run")
	fs.IntVar(&c.RunLogsKept, "run-logs-kept", c.RunLogsKept, "run logs kept for each unit")
	fs.BoolVar(&c.RunConfine, "run-confine", c.RunConfine, "confine runs to their own directory and the system's programs, as far as the kernel can")
	fs.StringArrayVar(&c.RunAllowRead, "run-allow-read", c.RunAllowRead, "file or directory that confined runs may read as well (repeatable)")
	fs.StringArrayVar(&c.RunAllowWrite, "run-allow-write", c.RunAllowWrite, "directory that confined runs may write to as well (repeatable)")
	fs.StringVar(&c.RunMemory, "run-memory", c.RunMemory, "bound of the writable memory of each process of a run, such as 2Gi (default: none)")
	fs.IntVar(&c.RunOpenFiles, "run-open-files", c.RunOpenFiles, "bound of the open files of each process of a run (default: none)")
	fs.StringSliceVar(&c.AllowedProviders, "allowed-providers", c.AllowedProviders, "providers that runs may use, as NAMESPACE/TYPE or HOST/NAMESPACE/TYPE with * for any text (default: all)")
	fs.DurationVar(&c.ShutdownGrace, "shutdown-grace", c.ShutdownGrace, "how long to wait for runs when stopping")
}

func (c *Config) addStateFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.StateBackend, "state-backend", c.StateBackend, "where new states go whose unit does not say: terrace (versions, encrypted) or kubernetes (Secrets)")
	fs.StringVar(&c.StateAddress, "state-address", c.StateAddress, "host:port of the state service (HTTPS); port 0 picks a free one")
	fs.StringVar(&c.StateURL, "state-url", c.StateURL, "URL by which clients elsewhere reach the state service (default: its address)")
	fs.StringVar(&c.StateCertFile, "state-cert-file", c.StateCertFile, "certificate of the state service, in PEM (default: its own, made at each start)")
	fs.StringVar(&c.StateKeyFile, "state-key-file", c.StateKeyFile, "key of --state-cert-file, in PEM")
	fs.StringVar(&c.StateStorage, "state-storage", c.StateStorage, "directory, or URL of a bucket (s3://, azblob://), for the versions of states (default: in the data directory)")
	fs.StringArrayVar(&c.KMSKeys, "kms-key", c.KMSKeys, "KMS key that wraps the keys of states and plans: awskms://, gcpkms://, azurekeyvault://, hashivault:// or base64key://; NEW,OLD changes it, none,OLD takes it off")
}

func (c *Config) addServingFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.ArtifactRetentionTTL, "artifact-retention-ttl", c.ArtifactRetentionTTL, "how long an artifact that is no longer current is kept")
	fs.IntVar(&c.ArtifactRetentionRecords, "artifact-retention-records", c.ArtifactRetentionRecords, "artifacts of a source that are kept in any case")
	fs.StringVar(&c.ListenAddress, "listen-address", c.ListenAddress, "host:port of metrics, health, artifacts, plans and run logs; port 0 picks a free one")
	fs.StringVar(&c.StorageAdvAddress, "storage-adv-address", c.StorageAdvAddress, "host:port of artifact URLs (default: the listen address)")
	fs.StringVar(&c.EventsAddr, "events-addr", c.EventsAddr, "URL to which events are posted as well (default: none)")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.StringVar(&c.Pprof, "pprof", c.Pprof, "loopback host:port of the profiler (default: none)")
	fs.Lookup("pprof").NoOptDefVal = "127.0.0.1:6060"
}
