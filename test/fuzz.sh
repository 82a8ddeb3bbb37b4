#!/usr/bin/env bash
# Fuzzes each decoder of foreign data, one after the other.
#
# Usage: test/fuzz.sh DURATION      such as 30s or 5m, for each Fuzz function of the module
#
# Exit status: 0 none found anything; 1 one did (the input is in its package's testdata/fuzz: commit it); 2 a wrong call.
set -euo pipefail
shopt -s inherit_errexit

cd "$(dirname "$0")/.."
export GOFLAGS="${GOFLAGS--tags=nri_no_wasm,root -buildvcs=false -trimpath}"
export CGO_CFLAGS="${CGO_CFLAGS--g -O2 -Wno-deprecated-declarations}"
# Targets that need a file write it at each run: keep it in memory.
if [ -d /dev/shm ]; then export TMPDIR=/dev/shm; fi

log() { echo "fuzz: $*" >&2; }

if [ $# -ne 1 ] || ! [[ $1 =~ ^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$ ]]; then
  log "usage: test/fuzz.sh DURATION, such as 30s or 5m"
  exit 2
fi
duration=$1

# One "package function" a line. Only packages with tests that mention one are listed: to list tests is to
# build them.
targets() {
  local dir
  grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u | while read -r dir; do
    go test -list '^Fuzz' "$dir" | awk -v package="$dir" '/^Fuzz/ {print package, $1}'
  done
}

log "looking for Fuzz functions"
list=$(targets)
if [ -z "$list" ]; then
  log "there are none"
  exit 1
fi
mapfile -t all <<<"$list"

failed=()
for i in "${!all[@]}"; do
  read -r package target <<<"${all[$i]}"
  log "$((i + 1)) of ${#all[@]}: $package $target for $duration"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 10x "$package" || failed+=("$package $target")
done

if [ ${#failed[@]} -gt 0 ]; then
  for f in "${failed[@]}"; do log "FAILED: $f"; done
  exit 1
fi
log "${#all[@]} of ${#all[@]} found nothing"
