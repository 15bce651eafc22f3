# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# `make help` lists the targets. Everything is built from Go modules: nothing
# prebuilt is fetched.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

GO ?= go

# One set of flags for build and test. Packages that are compiled with -trimpath
# are cached apart from those that are not, and compiling Kubernetes twice costs
# minutes: so tests use it too.
BUILDFLAGS ?= -trimpath
export CGO_ENABLED := 0
export GOFLAGS := -mod=readonly -buildvcs=false $(BUILDFLAGS)

# The stamp is the commit's own: the same commit gives the same bytes, whenever
# and wherever it is built.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
DATE    := $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)
# kubectl is linked in; it tells its version from where its own build would stamp it.
KUBE_VERSION := $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' go.mod)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE) \
	-X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) -X k8s.io/client-go/pkg/version.gitVersion=$(KUBE_VERSION)
# Without it OpenTofu calls itself a development build of the release after.
TOFU_LDFLAGS := -s -w -X github.com/opentofu/opentofu/version.dev=no
export VERSION LDFLAGS TOFU_LDFLAGS GO

# What the terrace binary is made of: Go files without the tests, and the files
# that are embedded.
SOURCES := go.mod go.sum $(shell find api cmd internal examples -type f ! -name '*_test.go' ! -path '*/testdata/*' 2>/dev/null)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: bin/terrace bin/tofu ## build bin/terrace (static, stamped) and bin/tofu

bin/terrace: $(SOURCES) bin/.stamp
	$(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/terrace
	@touch $@

# The stamp file changes only when the version does, so that a build of an
# unchanged tree does nothing.
bin/.stamp: FORCE
	@mkdir -p bin
	@echo '$(LDFLAGS) $(BUILDFLAGS)' | cmp -s - $@ || echo '$(LDFLAGS) $(BUILDFLAGS)' > $@
.PHONY: FORCE
FORCE:

# OpenTofu has a module of its own: its dependencies do not enter Terrace's.
bin/tofu: tools/tofu/go.mod tools/tofu/go.sum
	$(GO) -C tools/tofu build -ldflags '$(TOFU_LDFLAGS)' -o '$(CURDIR)/$@' github.com/opentofu/opentofu/cmd/tofu
	@touch $@

bin/staticcheck: tools/staticcheck/go.mod tools/staticcheck/go.sum
	$(GO) -C tools/staticcheck build -o '$(CURDIR)/$@' honnef.co/go/tools/cmd/staticcheck
	@touch $@

.PHONY: test
test: build ## run every test, against an API server of the built binary
	hack/test.sh $(PKG)

.PHONY: check
check: bin/staticcheck ## format, vet, staticcheck, generated files current, clean tree
	hack/check.sh

.PHONY: generate
generate: ## rewrite the generated files (deep copies, CRDs)
	hack/generate.sh

.PHONY: providers
providers: ## build the provider mirror that tests and demo use
	hack/providers.sh

.PHONY: bench
bench: build ## measure beside the raw CLI, a bare client and the raw disk (N=30 Terraform units, APPS=100 Kustomizations)
	$(GO) run ./bench/terraform -terrace bin/terrace -tofu bin/tofu -units $(or $(N),30)
	$(GO) run ./bench/kustomization -terrace bin/terrace -tofu bin/tofu -apps $(or $(APPS),100)
	$(GO) run ./bench/state -terrace bin/terrace

.PHONY: demo
demo: build providers ## show the whole story on this machine
	bin/terrace demo --mirror .cache/providers $(DEMOFLAGS)

.PHONY: fuzz
fuzz: ## run each fuzz target for a short time (FUZZTIME=10s)
	hack/fuzz.sh $(or $(FUZZTIME),10s)

.PHONY: release
release: ## build the archives and their checksums into dist/
	hack/release.sh

.PHONY: clean
clean: ## remove everything that was built
	rm -rf bin dist .cache
