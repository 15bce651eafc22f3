#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# hack/generate.sh writes the deep copies of our kinds and the CRDs of our kinds,
# of Flux's sources and of its Kustomization. controller-gen has a module of its
# own: its dependencies do not enter Terrace's.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
export CGO_ENABLED=0

gen=$PWD/bin/controller-gen
"$go" -C tools/controller-gen build -o "$gen" sigs.k8s.io/controller-tools/cmd/controller-gen

"$gen" object:headerFile=hack/header.go.txt paths=./api/infra/... paths=./api/v1alpha1

crds=$(mktemp -d)
trap 'rm -rf "$crds"' EXIT
"$gen" crd paths=./api/infra/... paths=./api/v1alpha1 output:crd:dir="$crds"
"$gen" crd paths=github.com/fluxcd/source-controller/api/v1 output:crd:dir="$crds"
"$gen" crd paths=github.com/fluxcd/kustomize-controller/api/v1 output:crd:dir="$crds"

# The kinds that Terrace has a controller for, or reads artifacts of.
for crd in \
	infra.contrib.fluxcd.io_terraforms \
	kustomize.toolkit.fluxcd.io_kustomizations \
	terrace.dev_policies \
	terrace.dev_runs \
	terrace.dev_states \
	source.toolkit.fluxcd.io_gitrepositories \
	source.toolkit.fluxcd.io_ocirepositories \
	source.toolkit.fluxcd.io_buckets \
	source.toolkit.fluxcd.io_externalartifacts; do
	"$go" run ./hack/trimcrd <"$crds/$crd.yaml" >"$crds/trimmed"
	cp "$crds/trimmed" "api/crds/$crd.yaml"
done
