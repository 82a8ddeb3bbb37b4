#!/usr/bin/env bash
# Looks for known vulnerabilities in the Go code that the programs call, with govulncheck.
#
# Usage: test/vulncheck.sh
#   VULNDB   the database, https://vuln.go.dev by default; a mirror, or file:///directory
#
# Exit status: 0 none is known, or the database can't be reached, which is reported; 1 some are, or it could
# not be done.
set -euo pipefail
shopt -s inherit_errexit

cd "$(dirname "$0")/.."
database=${VULNDB:-https://vuln.go.dev}
# Run by its version: as one of test/tools it would have all of them built again.
tool=golang.org/x/vuln/cmd/govulncheck@v1.8.0
export CGO_CFLAGS="${CGO_CFLAGS--g -O2 -Wno-deprecated-declarations}"

log() { echo "vulncheck: $*" >&2; }

command -v curl >/dev/null || { log "curl is missing: run make setup"; exit 1; }
if ! why=$(curl --silent --show-error --fail --location --max-time 10 --output /dev/null "$database/index/db.json" 2>&1); then
  log "not done: the database of vulnerabilities can't be reached: $database: $why"
  exit 0
fi

failed=()
for module in . cmd/gpuslice-scheduler; do # what is shipped
  log "module $module"
  GOFLAGS="-tags=nri_no_wasm -buildvcs=false -trimpath" go -C "$module" run "$tool" -db "$database" ./... || failed+=("$module")
done
if [ ${#failed[@]} -gt 0 ]; then
  log "FAILED: ${failed[*]}: update what is named above, or stop calling it"
  exit 1
fi
