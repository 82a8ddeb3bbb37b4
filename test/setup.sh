#!/usr/bin/env bash
# Prepares a Debian machine for gpuslice's demo and tests. It is idempotent: what is there is left alone.
#
#   1. Debian packages (as root; otherwise the missing one is named and the script fails):
#        gcc libc6-dev make  the C parts            runc            the container runtime
#        busybox-static      the test images        shellcheck      lint of the scripts
#        python3-minimal ripgrep (in Rust)          programs that must not notice the limiter
#        docker.io podman            the other engines  containerd   an old one (1.6), beside the one of 2.
#   2. Tools from the module test/tools (containerd, ctr, the runc shim, staticcheck), built once into
#        ${GPUSLICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/tools}/<hash of that module>
#
# Usage: test/setup.sh           set everything up
#        test/setup.sh --where   only print the folder of the tools
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

tools_dir() {
  local base hash
  base=${GPUSLICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/tools}
  hash=$(cat "$here/tools/go.mod" "$here/tools/go.sum" | sha256sum | cut -c1-16)
  echo "$base/$hash"
}

say() { echo "setup: $*" >&2; }

install_packages() {
  local missing=() package
  for package in gcc libc6-dev make runc busybox-static musl-tools shellcheck python3-minimal ripgrep docker.io podman containerd; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    say "not root, and these Debian packages are missing: ${missing[*]}"
    say "install them with: apt-get install --no-install-recommends ${missing[*]}"
    return 1
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
}

build_tools() {
  local dir
  dir=$(tools_dir)
  if [ -e "$dir/.complete" ]; then
    return 0
  fi
  say "building containerd, ctr, the runc shim and staticcheck once (about a minute) into $dir"
  # Into a folder beside it first, so that an interrupted build is never taken for a whole one.
  local partial="$dir.partial.$$"
  rm -rf "$partial"
  mkdir -p "$partial"
  trap 'rm -rf "$partial"' EXIT
  (cd "$here/tools" && GOBIN="$partial" GOFLAGS=-buildvcs=false go install -ldflags '-s -w' tool)
  touch "$partial/.complete"
  rm -rf "$dir"
  mv "$partial" "$dir"
  trap - EXIT
}

case "${1:-}" in
  --where) tools_dir ;;
  "")
    install_packages
    build_tools
    ;;
  *)
    say "unknown argument: $1 (there is only --where)"
    exit 2
    ;;
esac
