#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# hack/check.sh looks at what a reviewer should not have to: format, vet,
# staticcheck, generated files that are current, and a tree with nothing left
# uncommitted. It runs all of them before it fails.
set -uo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
failed=0

check() {
	local name=$1 out
	shift
	if out=$("$@" 2>&1) && [ -z "$out" ]; then
		echo "ok    $name"
	else
		echo "FAIL  $name"
		printf '%s\n' "$out" | sed 's/^/      /'
		failed=1
	fi
}

unformatted() { git ls-files -z '*.go' | xargs -0 gofmt -l -s; }
generated() { hack/generate.sh >/dev/null && git diff --stat --exit-code -- api; }

check "gofmt" unformatted
check "go vet" "$go" vet ./...
check "staticcheck" bin/staticcheck ./...
check "generated files are current" generated

check "the tree is clean" git status --porcelain

exit "$failed"
