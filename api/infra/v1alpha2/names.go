// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import "github.com/fluxcd/pkg/apis/meta"

// TerraformKind is the kind of the objects of this package.
const TerraformKind = "Terraform"

// Values of spec.approvePlan that are not a plan id.
const (
	// ApprovePlanAuto approves every plan.
	ApprovePlanAuto = "auto"
	// ApprovePlanDisable stops planning and applying; drift is still looked for.
	ApprovePlanDisable = "disable"
	// ApprovePlanReplanPrefix begins a value that drops the pending plan and asks for a new one.
	ApprovePlanReplanPrefix = "replan"
)

// DefaultWorkspaceName is the workspace of an object that names none.
const DefaultWorkspaceName = "default"

// Values of spec.sourceRef.kind.
const (
	// SourceKindGitRepository refers to a GitRepository of source.toolkit.fluxcd.io.
	SourceKindGitRepository = "GitRepository"
	// SourceKindOCIRepository refers to an OCIRepository of source.toolkit.fluxcd.io.
	SourceKindOCIRepository = "OCIRepository"
	// SourceKindBucket refers to a Bucket of source.toolkit.fluxcd.io.
	SourceKindBucket = "Bucket"
)

// Values of spec.storeReadablePlan.
const (
	// ReadablePlanNone stores no readable plan.
	ReadablePlanNone = "none"
	// ReadablePlanJSON stores the plan as JSON in a Secret.
	ReadablePlanJSON = "json"
	// ReadablePlanHuman stores the plan as text in a ConfigMap.
	ReadablePlanHuman = "human"
)

// Values of spec.healthChecks[].type.
const (
	// HealthCheckTCP dials an address.
	HealthCheckTCP = "tcp"
	// HealthCheckHTTP gets a URL.
	HealthCheckHTTP = "http"
)

// Values of spec.fileMappings[].location.
const (
	// FileLocationHome is the home directory of the run.
	FileLocationHome = "home"
	// FileLocationWorkspace is the module's directory.
	FileLocationWorkspace = "workspace"
)

// Values of spec.webhooks[].
const (
	// WebhookPostPlanning is the stage after a plan and before its approval.
	WebhookPostPlanning = "post-planning"
	// WebhookPayloadSpecAndPlan sends the object and its plan.
	WebhookPayloadSpecAndPlan = "SpecAndPlan"
	// WebhookPayloadSpecOnly sends the object.
	WebhookPayloadSpecOnly = "SpecOnly"
	// WebhookPayloadPlanOnly sends the plan.
	WebhookPayloadPlanOnly = "PlanOnly"
)

// Finalizers.
const (
	// Finalizer keeps a deleted object until its resources, Secrets and records are dealt with.
	Finalizer = "finalizers.tf.contrib.fluxcd.io"
	// DependencyFinalizerPrefix begins the finalizer that the Terraform Controller puts on a
	// dependency; the dependant's name, without its namespace, follows. Terrace takes such
	// finalizers off and puts none on: what depends on what is read from the specs.
	DependencyFinalizerPrefix = "tf.dependency.of."
)

// Annotations that people and tools put on a Terraform.
const (
	// ReconcileRequestAnnotation asks for a reconcile when its value changes.
	ReconcileRequestAnnotation = meta.ReconcileRequestAnnotation
	// BreakTheGlassAnnotation asks, when its value changes, that the object stops for work by hand.
	BreakTheGlassAnnotation = "break-the-glass.tf-controller/requestedAt"
	// CancelAnnotation asks, when its value changes, that the run under way ends: SIGINT, a
	// grace period, SIGKILL. The value is a time or any other token.
	CancelAnnotation = "terrace.dev/cancelRequestedAt"
	// DependsOnAnnotation names objects of any kind that have to be ready first:
	// "Kind/namespace/name, Kind.group/namespace/name, Kind/name".
	DependsOnAnnotation = "terrace.dev/depends-on"
	// DecryptionAnnotation names the Secret, in the object's namespace, with the keys that
	// decrypt the unit's SOPS files; empty, they stay as they are.
	DecryptionAnnotation = "terrace.dev/decryption"
)

// AllowedProvidersAnnotation on a Namespace narrows the providers that the runs of its
// units may use: patterns as those of --allowed-providers, separated by commas or spaces.
const AllowedProvidersAnnotation = "terrace.dev/allowed-providers"

// Labels.
const (
	// LayerLabel puts a unit into a layer: network, cluster, platform, application or a name
	// of the user's. It groups; it does not order.
	LayerLabel = "terrace.dev/layer"
	// PlanNameLabel is on plan Secrets and ConfigMaps: the name of the Terraform, cut to a label's length.
	PlanNameLabel = "infra.contrib.fluxcd.io/plan-name"
	// PlanWorkspaceLabel is on plan Secrets and ConfigMaps: the workspace, cut to a label's length.
	PlanWorkspaceLabel = "infra.contrib.fluxcd.io/plan-workspace"
	// RunnerLabel is on what belongs to the runs of a namespace.
	RunnerLabel = "infra.contrib.fluxcd.io/terraform"
	// BranchPlannerLabel is on objects that were made to plan a pull request.
	BranchPlannerLabel = "infra.weave.works/branch-planner"
	// BranchPlannerPRIDLabel is the number of the pull request of such an object.
	BranchPlannerPRIDLabel = "infra.weave.works/pr-id"
	// BranchPlannerPrimaryLabel names the Terraform that such an object was copied from.
	BranchPlannerPrimaryLabel = "infra.weave.works/primary-resource"
)

// Annotations of plan Secrets and ConfigMaps.
const (
	// PlanEncodingAnnotation is "gzip" on a plan Secret.
	PlanEncodingAnnotation = "encoding"
	// PlanSavedAnnotation is the id of the stored plan.
	PlanSavedAnnotation = "savedPlan"
	// PlanFullNameAnnotation is the uncut name of the Terraform.
	PlanFullNameAnnotation = "infra.contrib.fluxcd.io/plan-full-name"
	// PlanFullWorkspaceAnnotation is the uncut workspace.
	PlanFullWorkspaceAnnotation = "infra.contrib.fluxcd.io/plan-full-workspace"
	// PlanChunkAnnotation is the number of a chunk of a plan that one Secret cannot hold.
	PlanChunkAnnotation = "infra.contrib.fluxcd.io/plan-chunk"
	// PlanHashAnnotation is the bare hexadecimal SHA-256 of the plan or of the chunk.
	PlanHashAnnotation = "infra.contrib.fluxcd.io/plan-hash"
)

// Names by which the Terraform Controller is known to the API server and in events.
const (
	// FieldManager is the manager of fields that the controller writes.
	FieldManager = "tf-controller"
	// EventSource is the reporting component of events.
	EventSource = "tf-controller"
	// LeaderElectionID is the name of the Lease that one controller of a cluster holds.
	LeaderElectionID = "1953de50.contrib.fluxcd.io"
)
