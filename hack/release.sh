#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# hack/release.sh builds dist/terrace_VERSION_OS_ARCH.tar.gz for each platform,
# and dist/SHA256SUMS. The same commit gives the same archives: the binaries are
# built with -trimpath, and every entry has the commit's time and no owner.
# An archive holds tofu as well, since Terrace looks for it beside itself.
#
# Run it through `make release`, which sets VERSION and the flags.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
: "${VERSION:?run it through make release}" "${LDFLAGS:?}" "${TOFU_LDFLAGS:?}"
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/arm64}
epoch=$(git log -1 --format=%ct)
export CGO_ENABLED=0

rm -rf dist
mkdir -p dist
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

tofu_module=$("$go" -C tools/tofu list -m -f '{{.Dir}}' github.com/opentofu/opentofu)

for platform in $platforms; do
	os=${platform%/*} arch=${platform#*/}
	name=terrace_${VERSION}_${os}_${arch}
	dir=$stage/$name
	mkdir -p "$dir"
	echo "building $name"
	GOOS=$os GOARCH=$arch "$go" build -trimpath -ldflags "$LDFLAGS" -o "$dir/terrace" ./cmd/terrace
	GOOS=$os GOARCH=$arch "$go" -C tools/tofu build -trimpath -ldflags "$TOFU_LDFLAGS" -o "$dir/tofu" github.com/opentofu/opentofu/cmd/tofu
	install -m 0644 LICENSE README.md CHANGELOG.md "$dir"
	install -m 0644 "$tofu_module/LICENSE" "$dir/LICENSE.opentofu"
	tar --create --directory "$stage" --sort=name --owner=0 --group=0 --numeric-owner \
		--mtime="@$epoch" --mode=u=rwX,go=rX "$name" | gzip -n -9 >"dist/$name.tar.gz"
	rm -rf "$dir"
done

(cd dist && sha256sum -- *.tar.gz >SHA256SUMS)
cat dist/SHA256SUMS
