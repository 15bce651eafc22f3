#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# hack/fuzz.sh [TIME] runs every fuzz target in the tree for TIME (10s), one after
# another: go test takes one target of one package at a time. Making an input that is
# interesting smaller is bounded, or it takes most of that time: a minute each by default.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
time=${1:-10s}

git grep -hoE --full-name -e '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' >/dev/null || {
	echo "fuzz: no fuzz target in the tree" >&2
	exit 1
}
git grep -oE -e '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | while IFS=: read -r file match; do
	echo "== ${match#func } in $(dirname "$file"), $time"
	"$go" test -run '^$' -fuzz "^${match#func }\$" -fuzztime "$time" -fuzzminimizetime 100x "./$(dirname "$file")"
done
