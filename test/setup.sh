#!/usr/bin/env bash
# Prepares a machine for gpuslice's demo and tests. It is idempotent: it does not change what is there. It removes no
# package.
#
#   1. Packages: Debian's and Ubuntu's by apt, Fedora's and RHEL's (of the names in fedora()) by dnf. Root installs the
#      missing ones, after a question if there is a terminal (--install: without a question). For other users they are
#      named, and the script fails:
#        gcc libc6-dev make  the C parts            runc            the container runtime
#        busybox-static      the test images        shellcheck cppcheck   lint of the scripts and of the C parts
#        python3-minimal ripgrep (in Rust)          programs that must not notice the limiter
#        tmux bash-completion zsh fish              a terminal, for what is drawn on one; shells that complete
#        docker.io podman            the other engines  containerd   an old one (1.6), beside the one of 2.
#      No service of theirs is started.
#   2. Tools from the module test/tools (containerd, ctr, the runc shim, staticcheck), built once into
#        ${GPUSLICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/tools}/<hash of that module>
#      systemd-nspawn, unpacked from Debian's package where the machine has none.
#      NVIDIA's container runtime, from the module test/tools-nvidia, in the same way (ten seconds), and dockerd 28, from
#      test/tools-docker (a minute and a half), beside Debian's 20.10.
#
#   3. With --monitoring, for test/monitoring: Debian's prometheus (for promtool; building it takes many times as long) and
#      chromium-headless-shell: 125 MB to fetch, half a minute.
#
#   4. With --kubernetes, only for `make e2e`: Debian's containernetworking-plugins, nftables and iproute2, and etcd, the programs of
#      Kubernetes from the module test/admission, built once into a directory beside that one (four minutes).
#      With --kubernetes-oldest, for `make e2e-oldest`: and the programs of the oldest supported Kubernetes, from
#      test/tools-kubernetes (ten minutes).
#
#   5. With --helm or --kubernetes: helm, from the module test/tools-helm (a minute).
#
#   6. With --runtimes, for `make test-runtimes`: containerd 1.7 and CRI-O, from test/tools-containerd and test/tools-crio (three
#      minutes).
#
#   7. With --kueue, only for `make test-kueue`: Kueue's controller, from test/tools-kueue (four minutes).
#
# Usage: test/setup.sh                      what `make test` needs
#        test/setup.sh --demo               only what `make demo` needs: runc and a static busybox are unpacked beside the tools
#                                           where the machine has none
#        test/setup.sh --install            installs the packages of all tests, as root
#        test/setup.sh --check              only what `make check` needs: compiler, linters, the tools of 2.
#        test/setup.sh --helm               and what the tests of the chart need
#        test/setup.sh --monitoring         and what the tests of dashboards and pages need
#        test/setup.sh --kubernetes         and what a real Kubernetes needs, and helm
#        test/setup.sh --kubernetes-oldest  and what the oldest supported Kubernetes needs
#        test/setup.sh --runtimes           and what the tests on other container runtimes need
#        test/setup.sh --kueue              only Kueue
#        test/setup.sh --where              only print the directory of the tools
#        test/setup.sh --where-nvidia       only print the directory of NVIDIA's container runtime
#        test/setup.sh --where-helm         only print the directory of helm
#        test/setup.sh --where-docker       only print the directory of dockerd 28
#        test/setup.sh --where-containerd   only print the directory of containerd 1.7
#        test/setup.sh --where-crio         only print the directory of CRI-O
#        test/setup.sh --where-kueue        only print the directory of Kueue
#        test/setup.sh --where-kubernetes   only print the directory of Kubernetes' programs
#        test/setup.sh --where-kubernetes-oldest   and of the oldest supported ones
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

# tools_dir MODULE prints the directory of the programs of that module.
tools_dir() {
  local base hash
  base=${GPUSLICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/tools}
  hash=$(cat "$here/$1/go.mod" "$here/$1/go.sum" | sha256sum | cut -c1-16)
  echo "$base/$hash"
}

log() { echo "setup: $*" >&2; }

# manager prints the machine's package manager.
manager() {
  if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    echo apt
  elif command -v rpm >/dev/null && command -v dnf >/dev/null; then
    echo dnf
  fi
}

# fedora PACKAGE prints Fedora's name of a Debian package.
fedora() {
  case "$1" in
    libc6-dev) echo glibc-devel ;;
    shellcheck) echo ShellCheck ;;
    busybox-static) echo busybox ;;
    musl-tools) echo musl-gcc ;;
    python3-minimal) echo python3 ;;
    docker.io) echo moby-engine ;;
    iproute2) echo iproute ;;
    prometheus) echo golang-github-prometheus ;;
    chromium-headless-shell) echo chromium-headless ;;
    *) echo "$1" ;;
  esac
}

# agreed asks for the installation of packages, where there is a terminal to answer on.
agreed() {
  [ -z "$install" ] && [ -t 0 ] || return 0
  local answer
  read -r -p "setup: these packages are missing: $*. Install them, without removing any? [y/N] " answer
  [[ $answer == [yY]* ]]
}

# need_packages PACKAGE... installs the packages that are missing, by their Debian names. It removes none.
need_packages() {
  local missing=() package by command
  by=$(manager)
  for package in "$@"; do
    case "$by" in
      apt) dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package") ;;
      dnf) rpm -q "$(fedora "$package")" >/dev/null 2>&1 || missing+=("$(fedora "$package")") ;;
      *) missing+=("$package") ;;
    esac
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  case "$by" in
    apt) command="apt-get install --no-remove --no-install-recommends ${missing[*]}" ;;
    dnf) command="dnf install --setopt=install_weak_deps=False --setopt=obsoletes=False ${missing[*]}" ;;
    *)
      log "there is neither apt nor dnf: install what these packages of Debian have: ${missing[*]}"
      return 1
      ;;
  esac
  if [ "$(id -u)" -ne 0 ] || ! agreed "${missing[*]}"; then
    log "these packages are missing: ${missing[*]}"
    log "make setup-tests installs them (as root), or: $command"
    return 1
  fi
  log "installing packages, as root, without removing any: ${missing[*]}"
  if [ "$by" = dnf ]; then # without --allowerasing and obsoletes it removes nothing, and it starts no service
    dnf install -y -q --setopt=install_weak_deps=False --setopt=obsoletes=False "${missing[@]}" >&2 || {
      log "nothing was installed or removed: RHEL has some of these packages only in EPEL, and none of $(fedora docker.io)"
      return 1
    }
    return 0
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  without_services apt-get install -y -q --no-remove --no-install-recommends "${missing[@]}" >&2 || {
    log "nothing was installed or removed: a package may conflict with one of this machine (docker.io and containerd with docker-ce's)"
    return 1
  }
}

# need_commands reports in one line which programs of each build are missing.
need_commands() {
  local missing=() name version
  for name in go gcc make; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    log "missing: ${missing[*]} (Go 1.26 from go.dev; gcc and make with: apt-get install gcc libc6-dev make, or dnf install gcc glibc-devel make)"
    return 1
  fi
  version=$(go env GOVERSION) # from 1.21 on, Go fetches the version that go.mod names
  case "$version" in
    go1.? | go1.?.* | go1.1? | go1.1?.* | go1.20 | go1.20.* | "")
      log "missing: Go 1.26 from go.dev (this machine has ${version:-an older one})"
      return 1
      ;;
  esac
}

# unpack_program NAME PACKAGE takes a program out of a Debian package, beside the tools. It installs nothing.
unpack_program() (
  to=$(tools_dir tools)
  [ ! -x "$to/$1" ] || return 0
  command -v apt-get >/dev/null || {
    log "missing: $1$([ "$(manager)" != dnf ] || echo " (dnf install $(fedora "$2"); RHEL has no busybox: put a static one on PATH)")"
    return 1
  }
  log "unpacking $1 of Debian's package $2 into $to; nothing is installed"
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary" "$to/$1.partial"' EXIT
  cd "$temporary"
  apt=(apt-get -q -o "APT::Sandbox::User=$(id -un)")
  if ! "${apt[@]}" download "$2" >/dev/null 2>&1; then
    log "apt's package lists don't have $2, or an old version: fetching lists that are only used now"
    mkdir -p lists/partial cache/archives/partial
    apt+=(-o "Dir::State::lists=$temporary/lists" -o "Dir::Cache=$temporary/cache")
    "${apt[@]}" update >/dev/null
    "${apt[@]}" download "$2" >/dev/null
  fi
  dpkg -x ./*.deb root
  # Completions and the packages' own settings can have the same name.
  for program in root/{usr/,}{bin,sbin}/"$1"; do
    if [ -f "$program" ] && [ ! -L "$program" ]; then
      cp "$program" "$to/$1.partial"
      mv "$to/$1.partial" "$to/$1"
    fi
  done
  [ -x "$to/$1" ] || {
    log "Debian's package $2 has no program $1"
    return 1
  }
)

# is_static FILE: it needs no loader.
is_static() { [ -x "$1" ] && ! LC_ALL=C ldd "$1" >/dev/null 2>&1; }

# without_services runs a command that installs packages, and starts none of their services: the
# tests bring up daemons of their own. Debian asks policy-rc.d whether a service may be started.
without_services() (
  policy=/usr/sbin/policy-rc.d
  mark="# Written by gpuslice's test/setup.sh while it installs packages, and removed afterwards."
  # The machine can have its own rule. Another set-up, and what it runs, has its rule locked.
  if { [ -s "$policy" ] && ! grep -qxF "$mark" "$policy"; } ||
    ! { : >>"$policy" && exec 9<"$policy" && flock --nonblock 9; }; then
    "$@"
    return
  fi
  new=()
  for unit in docker.socket docker.service containerd.service podman.socket podman.service prometheus.service; do
    systemctl cat "$unit" >/dev/null 2>&1 || new+=("$unit")
  done
  # Nor at the next boot; units that were there before are left as they are.
  trap 'rm -f "$policy"; [ ! -d /run/systemd/system ] || systemctl --quiet disable "${new[@]}" 2>/dev/null || true' EXIT
  # bash runs these after the command has ended. After that it dies of the signal, so that the caller does not go on.
  for signal in HUP INT TERM; do
    # shellcheck disable=SC2064 # the signal of now
    trap "trap - $signal; kill -$signal \$BASHPID" "$signal"
  done
  printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
  chmod 755 "$policy"
  "$@"
)

# build_tools MODULE WHAT [TAGS] builds the programs of that module.
build_tools() {
  local dir
  dir=$(tools_dir "$1")
  if [ -e "$dir/.complete" ]; then
    return 0
  fi
  log "building $2 into $dir"
  # Into a directory beside it first, so that an interrupted build is never taken for a whole one.
  local partial="$dir.partial.$$"
  rm -rf "$partial"
  mkdir -p "$partial"
  trap 'rm -rf "$partial"' EXIT
  # Flags and, in admission, versions are cmd/gpuslice-scheduler's: what both have of Kubernetes is compiled once.
  # Kubernetes' programs and dockerd don't know their version but from their linker; charts ask for it.
  local stamp
  stamp=$(sed -n -e 's/^\tk8s.io\/kubernetes \(v1\.[0-9]*\)\(\.[0-9]*\).*/-X k8s.io\/component-base\/version.gitVersion=\1\2/p' \
    -e 's/^\tgithub.com\/docker\/docker v\([0-9.]*\).*/-X github.com\/docker\/docker\/dockerversion.Version=\1/p' "$here/$1/go.mod")
  (cd "$here/$1" && GOBIN="$partial" GOFLAGS='-buildvcs=false -trimpath' \
    go install -tags "${3:-}" -ldflags "-s -w $stamp" tool)
  [ ! -e "$partial/crio" ] || build_pinns "$partial"
  [ ! -e "$partial/server" ] || mv "$partial/server" "$partial/etcd" # its package's name is its module's
  touch "$partial/.complete"
  rm -rf "$dir"
  mv "$partial" "$dir"
  trap - EXIT
}

# build_pinns TO builds CRI-O's program that pins namespaces. Its Makefile writes beside its directory.
build_pinns() (
  source=$(cd "$here/tools-crio" && go list -m -f '{{.Dir}}' github.com/cri-o/cri-o)
  mkdir "$1/source"
  cp -r --no-preserve=mode "$source/pinns" "$1/source/"
  make --silent -C "$1/source/pinns"
  mv "$1/source/bin/pinns" "$1/"
  rm -r "$1/source"
)

lint=(gcc libc6-dev make shellcheck cppcheck)
packages=("${lint[@]}" curl runc busybox-static musl-tools python3-minimal ripgrep tmux bash-completion zsh fish docker.io podman containerd)
monitoring=(prometheus chromium-headless-shell)
kubernetes=(containernetworking-plugins nftables iproute2)
tools="containerd, ctr, the runc shim and staticcheck once (about a minute)"

install=
case "${1:-}" in
  --where) tools_dir tools ;;
  --where-nvidia) tools_dir tools-nvidia ;;
  --where-helm) tools_dir tools-helm ;;
  --where-kubernetes) tools_dir admission ;;
  --where-kubernetes-oldest) tools_dir tools-kubernetes ;;
  --where-docker) tools_dir tools-docker ;;
  --where-containerd) tools_dir tools-containerd ;;
  --where-crio) tools_dir tools-crio ;;
  --where-kueue) tools_dir tools-kueue ;;
  --demo)
    need_commands
    build_tools tools "$tools"
    command -v runc >/dev/null || unpack_program runc runc
    is_static "$(command -v busybox)" || unpack_program busybox busybox-static
    ;;
  --install)
    [ "$(id -u)" -eq 0 ] || {
      log "packages are installed by root: run this as root"
      exit 1
    }
    install=yes
    need_packages "${packages[@]}" "${monitoring[@]}" "${kubernetes[@]}"
    ;;
  --check)
    need_packages "${lint[@]}"
    need_commands
    build_tools tools "$tools"
    ;;
  --kueue)
    need_commands
    build_tools tools-kueue "Kueue once (about four minutes)"
    ;;
  "" | --helm | --monitoring | --kubernetes | --kubernetes-oldest | --runtimes)
    [ "${1:-}" != --monitoring ] || packages+=("${monitoring[@]}")
    case "${1:-}" in --kubernetes*) packages+=("${kubernetes[@]}") ;; esac
    need_packages "${packages[@]}"
    need_commands
    build_tools tools "$tools"
    command -v systemd-nspawn >/dev/null || unpack_program systemd-nspawn systemd-container
    build_tools tools-nvidia "NVIDIA's container runtime once (ten seconds)"
    build_tools tools-docker "dockerd once (about a minute and a half)" exclude_graphdriver_btrfs,exclude_graphdriver_zfs
    if [ "${1:-}" = --runtimes ]; then
      build_tools tools-containerd "containerd 1.7 once (about a minute)"
      build_tools tools-crio "CRI-O once (about two minutes)" containers_image_ostree_stub,containers_image_openpgp,exclude_graphdriver_btrfs,btrfs_noversion
    fi
    case "${1:-}" in --helm | --kubernetes*) build_tools tools-helm "helm once (about a minute)" ;; esac
    case "${1:-}" in --kubernetes*) build_tools admission "etcd and Kubernetes once (about four minutes)" ;; esac
    [ "${1:-}" != --kubernetes-oldest ] || build_tools tools-kubernetes "the oldest supported Kubernetes once (about ten minutes)" providerless
    ;;
  *)
    log "unknown argument: $1 (there are --demo, --install, --check, --helm, --monitoring, --kubernetes, --kubernetes-oldest, --runtimes, and --where with -nvidia, -helm, -kubernetes, -kubernetes-oldest, -docker, -containerd and -crio)"
    exit 2
    ;;
esac
