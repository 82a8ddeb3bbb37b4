#!/usr/bin/env bash
# Builds what gpu-test.sh runs into DIR: bin/ with its programs, the limiter, its fronts and the simulated driver. Go is used
# where it is, for the agent's loop, and nothing is fetched: build.sh DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1/bin"
to=$(cd "$1/bin" && pwd)
make -s -C limiter/src OUT="$to"
# shellcheck disable=SC2016
make -s -C limiter/front OUT="$to/fronts" DIR='\$$ORIGIN/..' # beside the limiter, wherever that is
make -s -C testdata/simdriver OUT="$to" "$to/sim/libcuda.so.1" "$to/sim/libnvidia-ml.so.1" "$to/sim/simctl"
make -s -C testdata/workloads OUT="$to" "$to"/workloads/{alloc,hold,meminfo,churn}
make -s -C test/gpu OUT="$to/.."
if command -v go >/dev/null; then
	GOPROXY=off go build -o "$to/loop" ./test/gpu/loop || echo 'the agent'\''s loop does not build: Go modules are missing'
fi
