// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import (
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RetryStrategy says how the time between attempts grows.
type RetryStrategy string

const (
	// RetryStrategyStaticInterval keeps the time between attempts.
	RetryStrategyStaticInterval RetryStrategy = "StaticInterval"
	// RetryStrategyExponentialBackoff doubles the time between attempts.
	RetryStrategyExponentialBackoff RetryStrategy = "ExponentialBackoff"
)

// ForceUnlock says whether a state lock may be removed by force.
type ForceUnlock string

const (
	// ForceUnlockNo leaves the lock alone.
	ForceUnlockNo ForceUnlock = "no"
	// ForceUnlockYes removes the lock that lockIdentifier names.
	ForceUnlockYes ForceUnlock = "yes"
	// ForceUnlockAuto removes any lock that is in the way.
	ForceUnlockAuto ForceUnlock = "auto"
)

// BackendConfigSpec sets where the state is kept.
type BackendConfigSpec struct {
	// Disable leaves the backend to the module.
	// +optional
	Disable bool `json:"disable,omitempty"`

	// SecretSuffix ends the name of the state Secret, tfstate-<workspace>-<secretSuffix>.
	// +optional
	SecretSuffix string `json:"secretSuffix,omitempty"`

	// InClusterConfig makes the kubernetes backend use the account of the run.
	// +optional
	InClusterConfig bool `json:"inClusterConfig,omitempty"`

	// CustomConfiguration is the body of a terraform block in HCL, such as
	// `backend "s3" { bucket = "b" }`. It wins over the other fields.
	// +optional
	CustomConfiguration string `json:"customConfiguration,omitempty"`

	// ConfigPath is the path of a kubeconfig for the kubernetes backend.
	// +optional
	ConfigPath string `json:"configPath,omitempty"`

	// Labels are put on the state Secret.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// BackendConfigsReference names a Secret or ConfigMap with backend settings.
type BackendConfigsReference struct {
	// Kind is Secret or ConfigMap.
	// +kubebuilder:validation:Enum=Secret;ConfigMap
	// +required
	Kind string `json:"kind"`

	// Name is the name of the Secret or ConfigMap, in the namespace of this object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// Keys are the entries to take; all of them by default.
	// +optional
	Keys []string `json:"keys,omitempty"`

	// Optional accepts that the Secret or ConfigMap does not exist.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// CloudSpec is the cloud block of a module.
type CloudSpec struct {
	// Organization is the organization that holds the workspaces.
	// +required
	Organization string `json:"organization"`

	// Workspaces selects the workspaces.
	// +required
	Workspaces *CloudWorkspacesSpec `json:"workspaces"`

	// Hostname is the host of the service, if it is not the tool's default.
	// +optional
	Hostname string `json:"hostname,omitempty"`

	// Token is the credential. It is readable by whoever can read this object; a CLI
	// configuration from a Secret (cliConfigSecretRef) keeps it out of sight.
	// +optional
	Token string `json:"token,omitempty"`
}

// CloudWorkspacesSpec selects cloud workspaces by name or by tags.
type CloudWorkspacesSpec struct {
	// Name is the name of one workspace.
	// +optional
	Name string `json:"name,omitempty"`

	// Tags select every workspace that carries them all.
	// +optional
	Tags []string `json:"tags,omitempty"`
}

// Variable is one input variable.
type Variable struct {
	// Name is the variable's name.
	// +required
	Name string `json:"name"`

	// Value is the variable's value, any JSON.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`

	// ValueFrom takes the value, as a string, from a key of a Secret or ConfigMap in the
	// namespace of this object.
	// +optional
	ValueFrom *corev1.EnvVarSource `json:"valueFrom,omitempty"`
}

// VarsReference names a Secret or ConfigMap whose entries become input variables.
type VarsReference struct {
	// Kind is Secret or ConfigMap.
	// +kubebuilder:validation:Enum=Secret;ConfigMap
	// +required
	Kind string `json:"kind"`

	// Name is the name of the Secret or ConfigMap, in the namespace of this object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// VarsKeys are the entries to take, "key" or "key:variable" to give it another name; all
	// of them by default.
	// +optional
	VarsKeys []string `json:"varsKeys,omitempty"`

	// Optional accepts that the Secret or ConfigMap, or a key of it, does not exist.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// FileMapping puts an entry of a Secret into a file.
type FileMapping struct {
	// SecretRef names the Secret and the key that holds the content.
	// +required
	SecretRef meta.SecretKeyReference `json:"secretRef"`

	// Location is the directory that path starts from: home or workspace.
	// +kubebuilder:validation:Enum=home;workspace
	// +required
	Location string `json:"location"`

	// Path is the file, relative to location.
	// +kubebuilder:validation:Pattern=`^(.?[/_a-zA-Z0-9]{1,})*$`
	// +required
	Path string `json:"path"`
}

// CrossNamespaceSourceReference names a source.
type CrossNamespaceSourceReference struct {
	// APIVersion is the source's API version.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind is the source's kind.
	// +kubebuilder:validation:Enum=GitRepository;Bucket;OCIRepository
	// +required
	Kind string `json:"kind"`

	// Name is the source's name.
	// +required
	Name string `json:"name"`

	// Namespace is the source's namespace; that of this object by default. Another one is
	// followed only if the controller allows it.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// String returns Kind/namespace/name, or Kind/name if there is no namespace.
func (r CrossNamespaceSourceReference) String() string {
	if r.Namespace == "" {
		return r.Kind + "/" + r.Name
	}
	return r.Kind + "/" + r.Namespace + "/" + r.Name
}

// ReadInputsFromSecretSpec makes a Secret readable to templates.
type ReadInputsFromSecretSpec struct {
	// Name is the Secret's name, in the namespace of this object.
	// +required
	Name string `json:"name"`

	// As is the name under which templates find it: ${{ .<as>.<key> }}.
	// +required
	As string `json:"as"`
}

// WriteOutputsToSecretSpec names the Secret that receives outputs.
type WriteOutputsToSecretSpec struct {
	// Name is the Secret's name, in the namespace of this object.
	// +required
	Name string `json:"name"`

	// Labels are put on the Secret.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations are put on the Secret.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Outputs are the outputs to write, "output" or "output:key" to give it another name; all
	// of them by default.
	// +optional
	Outputs []string `json:"outputs,omitempty"`
}

// HealthCheck is one check of what was applied.
type HealthCheck struct {
	// Name is the check's name in messages.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// Type is tcp, which needs an address, or http, which needs a URL.
	// +kubebuilder:validation:Enum=tcp;http
	// +required
	Type string `json:"type"`

	// URL is what an http check gets; a status from 200 to 399 passes. Text inside ${{ }} is
	// a Go template over the outputs.
	// +optional
	URL string `json:"url,omitempty"`

	// Address is the host:port that a tcp check dials. Text inside ${{ }} is a Go template
	// over the outputs.
	// +optional
	Address string `json:"address,omitempty"`

	// Timeout bounds the check.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	// +kubebuilder:default:="20s"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// GetTimeout returns the time that the check has, 20 seconds if none is set.
func (h HealthCheck) GetTimeout() time.Duration {
	if h.Timeout == nil || h.Timeout.Duration <= 0 {
		return 20 * time.Second
	}
	return h.Timeout.Duration
}

// TFStateSpec says how to treat the state lock.
type TFStateSpec struct {
	// ForceUnlock removes a state lock: "no" never, "yes" the one that lockIdentifier names,
	// "auto" any lock that is in the way. A lock removed while its holder still works can
	// cost the state; use "auto" only where nothing else uses this state.
	// +kubebuilder:validation:Enum=yes;no;auto
	// +kubebuilder:default:="no"
	// +optional
	ForceUnlock ForceUnlock `json:"forceUnlock,omitempty"`

	// LockIdentifier is the lock that "yes" removes, from status.lock.pending.
	// +optional
	LockIdentifier string `json:"lockIdentifier,omitempty"`

	// LockTimeout is the time for which a run waits for the lock. 0s does not wait.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	// +kubebuilder:default:="0s"
	// +optional
	LockTimeout metav1.Duration `json:"lockTimeout,omitempty"`
}

// PlanSpec sets options of the plan command.
type PlanSpec struct {
	// Lock takes the state lock while planning; true by default.
	// +optional
	Lock *bool `json:"lock,omitempty"`
}

// Webhook judges a plan.
type Webhook struct {
	// Stage is the moment of the call.
	// +kubebuilder:validation:Enum=post-planning
	// +kubebuilder:default:=post-planning
	// +required
	Stage string `json:"stage"`

	// Enabled turns the webhook on.
	// +kubebuilder:default:=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`

	// URL receives a POST of JSON and answers 200 with a JSON object.
	// +required
	URL string `json:"url"`

	// PayloadType is SpecAndPlan, SpecOnly or PlanOnly.
	// +kubebuilder:default:=SpecAndPlan
	// +optional
	PayloadType string `json:"payloadType,omitempty"`

	// ErrorMessageTemplate makes the message of a refusal from the answer, a Go template with ${{ }}.
	// +optional
	ErrorMessageTemplate string `json:"errorMessageTemplate,omitempty"`

	// TestExpression is a Go template with ${{ }} over the answer; the plan passes when it
	// prints "true" or "yes".
	// +required
	TestExpression string `json:"testExpression"`
}

// IsEnabled tells whether the webhook is called.
func (w Webhook) IsEnabled() bool { return w.Enabled == nil || *w.Enabled }

// BranchPlanner sets how pull requests are planned.
type BranchPlanner struct {
	// EnablePathScope plans only pull requests that touch spec.path.
	// +optional
	EnablePathScope bool `json:"enablePathScope,omitempty"`
}

// Remediation bounds the attempts after a failure.
type Remediation struct {
	// Retries is the number of further attempts after a first one that failed. Unset or
	// negative is without bound.
	// +optional
	Retries *int64 `json:"retries,omitempty"`
}

// ShouldRetry tells whether another attempt is allowed after the given number of
// failures in a row. The first attempt is always allowed. A nil Remediation has no bound.
func (r *Remediation) ShouldRetry(failures int64) bool {
	if r == nil || r.Retries == nil || *r.Retries < 0 {
		return true
	}
	return failures <= *r.Retries
}

// RunnerPodTemplate describes the pod of a run.
type RunnerPodTemplate struct {
	// Metadata is the pod's metadata.
	// +optional
	Metadata RunnerPodMetadata `json:"metadata,omitzero"`

	// Spec is the pod's spec.
	// +optional
	Spec RunnerPodSpec `json:"spec,omitzero"`
}

// RunnerPodMetadata is the metadata of the pod of a run.
type RunnerPodMetadata struct {
	// Labels are put on the pod.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations are put on the pod.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// RunnerPodSpec is the spec of the pod of a run. Only env and envFrom reach a
// run in a process.
type RunnerPodSpec struct {
	// Image is the pod's image.
	// +optional
	Image string `json:"image,omitempty"`

	// ImagePullPolicy is the pull policy of the image.
	// +optional
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`

	// EnvFrom are Secrets and ConfigMaps whose entries become environment variables. A later
	// one wins, and env wins over all of them.
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`

	// Env are environment variables of the run.
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// NodeSelector selects the pod's node.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Affinity is the pod's affinity.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// Tolerations are the pod's tolerations.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// VolumeMounts are mounted into the run's container.
	// +optional
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`

	// Volumes are the pod's volumes.
	// +optional
	Volumes []corev1.Volume `json:"volumes,omitempty"`

	// InitContainers run before the run's container.
	// +optional
	InitContainers []corev1.Container `json:"initContainers,omitempty"`

	// HostAliases are entries for the pod's hosts file.
	// +optional
	HostAliases []corev1.HostAlias `json:"hostAliases,omitempty"`

	// PriorityClassName is the pod's priority class.
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// SecurityContext is that of the run's container.
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`

	// Resources are those of the run's container.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}
