#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Terrace Authors
# SPDX-License-Identifier: Apache-2.0
#
# hack/test.sh [PACKAGE…] runs the tests of the packages (default: all) against
# one API server, started from bin/terrace for all of them: test binaries then
# need not each link kube-apiserver. TESTFLAGS is handed to go test.
#
# The server and its data go when the tests end, however they end; on a failure
# the log stays and its place is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
export CGO_ENABLED=0

for binary in bin/terrace bin/tofu; do
	if [ ! -x "$binary" ]; then
		echo "test: $binary is not there: run 'make build' first" >&2
		exit 1
	fi
done
if [ -x hack/providers.sh ]; then
	hack/providers.sh
fi

scratch=$(mktemp -d)
data=$scratch/data
log=$scratch/terrace.log
server=

stop() {
	status=$?
	trap - EXIT
	if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
		kill -TERM "$server" 2>/dev/null || true
		# A server that does not stop must not keep the tests from ending.
		for _ in $(seq 100); do
			kill -0 "$server" 2>/dev/null || break
			sleep 0.2
		done
		kill -KILL "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	if [ "$status" -eq 0 ]; then
		rm -rf "$scratch"
	else
		rm -rf "$data"
		if [ -s "$log" ]; then
			echo "test: failed; the API server's log is $log; its last lines:" >&2
			tail -n 20 "$log" >&2
		fi
	fi
	exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

bin/terrace up --without-controllers --data-dir "$data" --api-address 127.0.0.1:0 >"$log" 2>&1 </dev/null &
server=$!

deadline=$((SECONDS + 180))
until timeout 10 bin/terrace kubectl --kubeconfig "$data/kubeconfig" get terraforms,gitrepositories -A >/dev/null 2>&1; do
	if ! kill -0 "$server" 2>/dev/null; then
		echo "test: terrace up ended before it was ready" >&2
		exit 1
	fi
	if [ "$SECONDS" -ge "$deadline" ]; then
		echo "test: waited 180 s for terrace up to write $data/kubeconfig and to serve the kinds" >&2
		exit 1
	fi
	sleep 0.3
done

export TERRACE_TEST_KUBECONFIG=$data/kubeconfig
[ "$#" -gt 0 ] || set -- ./...

# Packages that start processes share two cores in CI: -p bounds how many test
# binaries run at once, -timeout each of them.
# shellcheck disable=SC2086
"$go" test -p "${TESTP:-2}" -timeout "${TESTTIMEOUT:-40m}" ${TESTFLAGS:-} "$@"
