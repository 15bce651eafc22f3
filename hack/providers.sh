#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# hack/providers.sh builds the real providers that tests and the demo use, from
# their Go modules, into .cache/providers: a filesystem mirror whose providers
# have the addresses terrace.test/hashicorp/{time,local}, so that nothing is ever
# asked of a registry. A CLI configuration uses it with
#
#	provider_installation {
#	  filesystem_mirror { path = "…/.cache/providers" }
#	}
#
# What is built already, from the same module files, is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
export CGO_ENABLED=0
platform=$($go env GOOS)_$($go env GOARCH)
mirror=$PWD/.cache/providers

# build NAME MODULE builds tools/providers/NAME into the mirror, under the
# version of MODULE that the go.mod there pins.
build() {
	local name=$1 module=$2 version dir binary
	version=$(awk -v module="$module" '{ for (i = 1; i < NF; i++) if ($i == module && $(i + 1) ~ /^v[0-9]/) { print substr($(i + 1), 2); exit } }' "tools/providers/$name/go.mod")
	if [ -z "$version" ]; then
		echo "providers: tools/providers/$name/go.mod does not require $module" >&2
		exit 1
	fi
	dir=$mirror/terrace.test/hashicorp/$name/$version/$platform
	binary=$dir/terraform-provider-${name}_v$version
	if [ -x "$binary" ] && [ "$binary" -nt "tools/providers/$name/go.mod" ] && [ "$binary" -nt "tools/providers/$name/go.sum" ]; then
		return
	fi
	echo "providers: building $name $version" >&2
	mkdir -p "$dir"
	# To a name that is no provider's first: a build that is stopped leaves no
	# torn provider behind.
	$go -C "tools/providers/$name" build -ldflags '-s -w' -o "$mirror/.building-$name" "$module"
	mv -f "$mirror/.building-$name" "$binary"
	touch "$binary"
}

build time github.com/hashicorp/terraform-provider-time
build local github.com/terraform-providers/terraform-provider-local
