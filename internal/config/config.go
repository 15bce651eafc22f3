// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

// Package config holds what a Terrace process is told when it starts: one
// Config, read from a file, the environment and flags, validated once, and
// handed on in parts. A setting has one name in all three places: the flag
// --data-dir is the variable TERRACE_DATA_DIR and the line "data-dir:" of the
// file. A flag wins over the environment, the environment over the file, the
// file over the default.
//
// The package opens nothing but the configuration file and keeps no state.
package config

import (
	"runtime"
	"time"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// Mode says which program reads a Config: it decides which flags exist and
// what their defaults are.
type Mode string

const (
	// Up is `terrace up`: the control plane and the controllers in one process.
	Up Mode = "up"
	// Controller is `terrace controller`: the controllers beside an existing API server.
	Controller Mode = "controller"
)

// DefaultDataDir is the data directory when none is given: a hidden directory
// in the current one, so that `terrace up` and a later `terrace get` in the
// same place find each other.
const DefaultDataDir = ".terrace"

// Config is everything a Terrace process is told. The zero value is not
// useful: start from Default. It is a value: the parts that receive it never
// change it.
type Config struct {
	// Mode is the program that this Config is for.
	Mode Mode

	// DataDir is the directory of everything that must survive a restart:
	// etcd, certificates, blobs, run journals. Created with mode 0700.
	DataDir string
	// APIAddress is the host:port on which the embedded API server listens;
	// port 0 picks a free one. Mode Up only.
	APIAddress string
	// WithoutControllers starts the control plane alone. Mode Up only.
	WithoutControllers bool
	// Files are manifests, or directories of them, applied once at start.
	Files []string
	// Git is the repository that `terrace up --git` registers as a source.
	Git GitOptions

	// Kubeconfig is the path of the kubeconfig of the cluster to work on; empty
	// means KUBECONFIG, then ~/.kube/config, then the account of the pod.
	// Mode Controller only.
	Kubeconfig string
	// KubeContext is the context of that kubeconfig; empty means its current one.
	KubeContext string
	// LeaderElection makes a process wait until it holds the leader lease.
	// Mode Controller only; an embedded control plane has one process by design.
	LeaderElection bool
	// LeaderElectionNamespace is the namespace of the leader lease; empty means
	// the namespace of the pod, and "terrace-system" outside one.
	LeaderElectionNamespace string

	// Tofu is the path of the tofu or terraform binary; empty means beside the
	// running binary, then tofu and terraform of PATH.
	Tofu string
	// TofuCLIConfig is the path of a CLI configuration (.tfrc) for every run
	// whose unit brings none: where an operator names provider mirrors.
	TofuCLIConfig string

	// WatchNamespaces limits the controllers to these namespaces; empty means all.
	WatchNamespaces []string
	// WatchLabelSelector limits the controllers to the objects that match; empty means all.
	WatchLabelSelector string
	// NoCrossNamespaceRefs refuses references of Flux kinds into another namespace.
	NoCrossNamespaceRefs bool
	// AllowCrossNamespaceRefs lets a Terraform refer to another namespace.
	AllowCrossNamespaceRefs bool
	// DefaultServiceAccount is the account used for units that name none; empty
	// means the process's own.
	DefaultServiceAccount string
	// AllowLocalSources accepts file:// URLs and local paths as Git sources:
	// whoever may create a source can then read those paths as this process.
	// On by default in mode Up, off in mode Controller.
	AllowLocalSources bool
	// AllowBreakTheGlass honours spec.breakTheGlass of units.
	AllowBreakTheGlass bool
	// PlanSecrets also writes plans to Secrets, with the Terraform Controller's names.
	PlanSecrets bool

	// AllowRemoteBases lets a kustomization file name bases that are fetched over
	// the network while it is built. Such a base has no revision that the source
	// pins, so what is applied can change without a commit.
	AllowRemoteBases bool
	// SOPSAgeSecret is the Secret of the age keys that decrypt for every
	// Kustomization and Terraform, beside those that it names itself: NAMESPACE/NAME once Load
	// is done, where a name alone is one in namespace terrace-system. Empty means none.
	SOPSAgeSecret string
	// CustomApplyStageKinds are kinds that are applied in a stage of their own, after CRDs,
	// namespaces and classes and before the rest, as "group/Kind" with commas between them.
	CustomApplyStageKinds string
	// OverrideManagers are field managers that may set no field of the objects of
	// Kustomizations, as Flux's flag of that name; a name stands for all that begin with it.
	OverrideManagers []string
	// PruneLimit is the share of a Kustomization's inventory, in percent, that one
	// revision may prune; beyond it somebody has to agree. 100 means no limit.
	PruneLimit int
	// PruneLimitMin is the number of objects up to which PruneLimit is not asked for.
	PruneLimitMin int

	// StateBackend is where the state of a unit goes that has none yet and whose spec does
	// not say: v1alpha1.StateInService or v1alpha1.StateInSecret.
	StateBackend string
	// StateAddress is the host:port of the state service, which is HTTPS; port 0 picks a
	// free one.
	StateAddress string
	// StateURL is how clients elsewhere reach the state service; empty means by its address.
	StateURL string
	// StateCertFile and StateKeyFile are the certificate of the state service and its key,
	// in PEM; without them it makes its own at each start.
	StateCertFile, StateKeyFile string
	// StateStorage is where the versions of states are kept, as a directory or a URL that a
	// driver of gocloud.dev/blob in this binary opens; empty means in DataDir.
	StateStorage string
	// KMSKeys are keys of a KMS, as URLs that a driver of gocloud.dev/secrets in this binary
	// opens. The first wraps the keys of states and plans, the others open what they wrapped
	// before; blob.Unwrapped as the first takes the wrapping off. Empty means none.
	KMSKeys []string

	// Concurrent is how many objects a controller reconciles at a time.
	Concurrent int
	// ConcurrentRuns is how many tofu runs execute at a time.
	ConcurrentRuns int
	// RunTimeout bounds one run, from its start to its exit.
	RunTimeout time.Duration
	// RunLogsKept is how many run logs are kept for each unit.
	RunLogsKept int
	// RunConfine confines the processes of runs to their own directory and the system's
	// programs, as far as the kernel can.
	RunConfine bool
	// RunAllowRead are files and directories that confined runs may read as well.
	RunAllowRead []string
	// RunAllowWrite are directories that confined runs may write to as well.
	RunAllowWrite []string
	// RunMemory bounds the writable memory of each process of a run, as a Kubernetes
	// quantity such as 2Gi; empty does not.
	RunMemory string
	// RunOpenFiles bounds the open files of each process of a run; 0 does not.
	RunOpenFiles int
	// AllowedProviders are patterns of the providers that runs may use, as
	// NAMESPACE/TYPE or HOST/NAMESPACE/TYPE with * for any text; empty means all.
	AllowedProviders []string
	// ShutdownGrace is how long a stopping process waits for running runs
	// between SIGINT and SIGKILL.
	ShutdownGrace time.Duration

	// ArtifactRetentionTTL is how long an artifact that is no longer current is kept.
	ArtifactRetentionTTL time.Duration
	// ArtifactRetentionRecords is how many artifacts of a source are kept in any case.
	ArtifactRetentionRecords int

	// ListenAddress is the host:port of the process's own HTTP server: metrics,
	// health, artifacts, plans and run logs. Port 0 picks a free one; the one
	// chosen is written to DataDir/server.json.
	ListenAddress string
	// StorageAdvAddress is the host:port of artifact URLs; empty means the
	// address that ListenAddress resolved to.
	StorageAdvAddress string
	// EventsAddr is the URL to which events are posted as well; empty means none.
	EventsAddr string

	// LogFormat is "text" or "json".
	LogFormat string
	// LogLevel is "debug", "info", "warn" or "error".
	LogLevel string
	// Pprof is the loopback host:port of the profiler; empty means none.
	Pprof string
}

// GitOptions is a Git repository that `terrace up --git` makes into a
// GitRepository object; it then shows which directories hold Terraform.
type GitOptions struct {
	// URL is a Git URL or the path of a local repository; empty means no repository.
	URL string
	// Branch is the branch to follow; empty means the one that HEAD names.
	Branch string
	// Path is the directory of the repository to look in; empty means its root.
	Path string
	// Namespace is where the objects are made.
	Namespace string
	// Name is the name of the GitRepository; empty means the last element of URL.
	Name string
}

// Default returns the configuration of a mode before anything has been read.
func Default(m Mode) Config {
	return Config{
		Mode:                     m,
		DataDir:                  DefaultDataDir,
		APIAddress:               "127.0.0.1:6443",
		Git:                      GitOptions{Namespace: "default"},
		LeaderElection:           m == Controller,
		AllowLocalSources:        m == Up,
		PruneLimit:               50,
		PruneLimitMin:            10,
		Concurrent:               4,
		ConcurrentRuns:           runtime.NumCPU(),
		RunTimeout:               30 * time.Minute,
		RunLogsKept:              10,
		RunConfine:               true,
		StateBackend:             v1alpha1.StateInService,
		StateAddress:             "127.0.0.1:0",
		ShutdownGrace:            5 * time.Minute,
		ArtifactRetentionTTL:     time.Minute,
		ArtifactRetentionRecords: 2,
		ListenAddress:            "127.0.0.1:0",
		LogFormat:                "text",
		LogLevel:                 "info",
	}
}
