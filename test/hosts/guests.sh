#!/usr/bin/env bash
# Builds what the tests' virtual machines consist of, from Debian's packages, once, into a directory of the tool cache.
# Nothing is installed on this machine, and no program of another architecture runs on it.
#
#   guests.sh where               prints the directory
#   guests.sh programs            programs/wrappers: QEMU, and a compiler for arm64
#   guests.sh emulator            emulator/qemu-aarch64-static: for arm64.sh
#   guests.sh compiler ARCH       prints the path of the C compiler for that architecture
#   guests.sh tools ARCH          prints the directory of containerd, ctr and the shim for it, which are built where needed
#   guests.sh root ARCH SUITE     root/ARCH-SUITE/disk: a file system with systemd, runc, docker and a compiler
#   guests.sh root ARCH SUITE selinux
#                                 root/ARCH-SUITE-selinux/disk: the same with Debian's policy for SELinux and labels; ARCH is
#                                 this machine's, because a program of the guest makes both
#   guests.sh kernel ARCH SUITE   kernel/ARCH-SUITE/{vmlinuz,initrd,modules}: that suite's kernel for clouds; a suite
#                                 can be SUITE-backports
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${GPUSLICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/tools}/hosts
export PATH=$PATH:/usr/sbin:/sbin # for an ordinary user: mkfs.ext4

log() { echo "hosts: $*" >&2; }
more=() finish=

# once NAME FUNCTION ARGUMENT... makes a directory of the cache by a function, unless the same function made it before.
once() {
  local to=$cache/$1 stamp partial
  shift
  local uses=()
  [ "$1" != make_selinux ] || uses=(make_root label)
  stamp=$( (declare -f "$1" "${uses[@]}" unpack wrap fetch mirror image && cat "$here"/guest/* ${uses:+"$here/guest-selinux.cil"}) | sha256sum | cut -c1-16)
  [ ! -e "$to/.$stamp" ] || return 0
  log "making $to"
  # Into a directory beside it first, so that an interrupted build is never taken for a whole one.
  partial=$to.partial.$$
  mkdir -p "$partial"
  # shellcheck disable=SC2064 # this directory, not what the variable is at the end
  trap "rm -rf '$partial'" EXIT
  "$@" "$partial"
  touch "$partial/.$stamp"
  rm -rf "$to"
  mv "$partial" "$to"
  trap - EXIT
}

# unpack DEBS DIR unpacks packages into a directory in which /bin, /lib, /lib64 and /sbin are in /usr.
unpack() {
  local debs=$1 to=$2 deb name
  for name in bin lib lib64 sbin; do
    mkdir -p "$to/usr/$name"
    ln -s "usr/$name" "$to/$name"
  done
  for deb in "$debs"/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$to" --keep-directory-symlink
  done
  rm -rf "$debs"
}

# make_programs takes them with all that they depend on, but for the C library: the programs run with this machine's loader.
# The wrappers need the files also of packages that are installed: apt gets an empty list of those.
make_programs() {
  local to=$1 name
  mkdir -p "$to/debs/partial" "$to/cache"
  : >"$to/status"
  apt-get -qq -o Dir::State::status="$to/status" -o Dir::Cache="$to/cache" -o Dir::Cache::archives="$to/debs" -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o APT::Install-Recommends=false \
    --download-only --no-remove -y install qemu-system-x86 qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross kmod >&2
  rm -rf "$to/debs"/libc6_* "$to/cache" "$to/status"
  unpack "$to/debs" "$to"
  ln -sf ../bin/kmod "$to/usr/sbin/depmod" # the package's link is absolute
  ln -sf ../bin/kmod "$to/usr/sbin/modprobe"
  mkdir "$to/wrappers"
  for name in "$to"/usr/bin/aarch64-linux-gnu-* "$to"/usr/bin/qemu-system-{x86_64,aarch64} "$to"/usr/sbin/{depmod,modprobe}; do
    wrap "$(basename "$name")" "${name#"$to"}" >"$to/wrappers/$(basename "$name")"
  done
  chmod 755 "$to"/wrappers/*
}

# make_emulator takes one of the emulators of a package.
make_emulator() {
  (cd "$1" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download qemu-user-static >&2)
  dpkg-deb --fsys-tarfile "$1"/*.deb | tar -x -C "$1" --strip-components 3 ./usr/bin/qemu-aarch64-static
  rm "$1"/*.deb
}

# wrap NAME FILE prints a script that runs a program with the libraries that were unpacked beside it.
wrap() {
  local arguments=
  case $1 in
    *-gcc | *-gcc-12) arguments=" --sysroot=\"\$dir\"" ;;
    qemu-*) arguments=" -L \"\$dir/usr/share/qemu\" -L \"\$dir/usr/share/seabios\"" ;;
  esac
  cat <<END
#!/bin/sh
dir=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
LD_LIBRARY_PATH=\$(printf %s: "\$dir"/usr/lib/*-linux-gnu) exec "\$dir$2"$arguments "\$@"
END
}

# compiler ARCH prints the machine's compiler, or the one that make_programs unpacked.
compiler() {
  local name
  case $1 in
    arm64) name=aarch64-linux-gnu-gcc ;;
    *) name=x86_64-linux-gnu-gcc ;;
  esac
  command -v "$name" || echo "$cache/programs/wrappers/$name"
}

# make_tools builds what a guest needs of the module test/tools.
make_tools() {
  local arch=$1 to=$2 packages
  packages=$(cd "$here/../tools" && go list tool | grep /containerd/)
  # shellcheck disable=SC2086 # several packages
  (cd "$here/../tools" && GOARCH=$arch CGO_ENABLED=0 GOFLAGS='-buildvcs=false -trimpath' go build -ldflags '-s -w' -o "$to/" $packages)
}

# tools ARCH prints their directory, which has the same name as on a machine of that architecture.
tools() {
  local own
  own=$("$here/../setup.sh" --where)
  if [ "$1" = "$(go env GOHOSTARCH)" ]; then
    echo "$own"
    return
  fi
  once "tools/$1/$(basename "$own")" make_tools "$1"
  echo "$cache/tools/$1/$(basename "$own")"
}

# fetch DIR ARCH SUITE PACKAGE... downloads packages and all that they depend on, for a machine that has none.
fetch() {
  local to=$1 arch=$2 suite=$3 lists=$cache/apt/$2-$3
  shift 3
  mkdir -p "$to/partial" "$lists/lists/partial" "$lists/cache"
  : >"$lists/status"
  mirror >"$lists/sources" "$suite"
  local options=(-qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State="$lists" -o Dir::State::lists="$lists/lists"
    -o Dir::State::status="$lists/status" -o Dir::Cache="$lists/cache" -o Dir::Cache::archives="$to" -o Dir::Etc::sourcelist="$lists/sources"
    -o Dir::Etc::sourceparts=/nonexistent -o Dir::Etc::preferencesparts=/nonexistent -o APT::Sandbox::User=root -o Acquire::Languages=none
    -o Dir::Etc::preferences=/nonexistent -o APT::Install-Recommends=false)
  apt-get "${options[@]}" update 2>&1 >&2 | sed '/nonexistent/d' >&2
  apt-get "${options[@]}" --download-only -y -t "$suite" install "$@" 2>&1 >&2 | sed '/nonexistent/d' >&2
}

# mirror SUITE prints apt's sources of a suite, from the archive of Debian that this machine uses.
mirror() {
  local uri suite
  uri=$(apt-get indextargets --format "\$(REPO_URI)" 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
  [ -n "$uri" ] || {
    log "apt knows no archive of Debian (run apt-get update): the guests consist of Debian's packages"
    return 1
  }
  for suite in "$1" "${1%-backports}"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${uri%/} $suite main"
  done | sort -u
}

# image DIR FILE SIZE makes a disk with the files of a directory.
image() {
  truncate -s "$3" "$2"
  mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=1 -d "$1" "$2"
  rm -rf "$1"
}

# make_root calls finish, if it is set, with the directory before it becomes a disk; more are further packages.
make_root() {
  local arch=$1 suite=$2 to=$3 root=$3/root name
  fetch "$to/debs" "$arch" "$suite" '?essential' systemd systemd-sysv dbus udev base-files base-passwd bash dash coreutils util-linux mount procps kmod iproute2 \
    iptables login passwd findutils tar gzip hostname diffutils grep sed mawk perl python3-minimal ripgrep git debianutils busybox-static \
    runc docker.io '?name(^docker-cli$)' containernetworking-plugins apparmor uidmap fuse-overlayfs gcc libc6-dev make musl-tools ca-certificates \
    "${more[@]}"
  mkdir "$root"
  unpack "$to/debs" "$root"
  # What the packages' scripts would have done.
  cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
  cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
  echo "docker:x:999:" >>"$root/etc/group"
  echo "dockremap:x:998:998::/:/usr/sbin/nologin" >>"$root/etc/passwd"
  echo "dockremap:x:998:" >>"$root/etc/group"
  echo "dockremap:100000:65536" | tee "$root/etc/subuid" >"$root/etc/subgid"
  cp /usr/share/zoneinfo/UTC "$root/etc/localtime" 2>/dev/null || true
  ln -sf dash "$root/usr/bin/sh"
  ln -sf mawk "$root/usr/bin/awk"
  ln -sf gcc "$root/usr/bin/cc"
  for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -sf xtables-nft-multi "$root/usr/sbin/$name"
  done
  for name in login su common-account common-auth common-password common-session; do
    [ -e "$root/etc/pam.d/$name" ] || printf '%s required pam_permit.so\n' auth account password session >"$root/etc/pam.d/$name"
  done
  echo guest >"$root/etc/hostname"
  echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id" # else systemd asks questions
  printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$root/etc/hosts"
  : >"$root/etc/resolv.conf"
  : >"$root/etc/fstab"
  cp "$here/guest/gpuslice-tests.service" "$root/etc/systemd/system/"
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/usr/lib/modules" "$root/srv"
  ln -s ../gpuslice-tests.service "$root/etc/systemd/system/multi-user.target.wants/"
  # Not needed, and slow in an emulated machine.
  for name in getty.target systemd-firstboot.service systemd-udev-trigger.service getty@tty1.service serial-getty@.service systemd-timesyncd.service systemd-update-utmp.service \
    systemd-hwdb-update.service systemd-journal-flush.service ldconfig.service e2scrub_reap.service systemd-networkd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$name"
  done
  "${finish:-true}" "$root"
  image "$root" "$to/disk" 6G
}

make_selinux() {
  local more=(selinux-policy-default policycoreutils selinux-utils) finish=label
  make_root "$@"
}

# label builds the policy of a directory's system, of all its modules, and labels its files. The domains of the host's own
# programs are permissive: the policy expects Debian's set-up, and what the guest is for are the containers' domains.
label() {
  local root=$1 policy=$1/etc/selinux/default
  printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' >"$root/etc/selinux/config"
  mkdir -p "$root/var/lib/selinux/default" "$policy/policy"
  cp "$here/guest-selinux.cil" "$root/gpuslice-guest.cil"
  # shellcheck disable=SC2016 # the guest's shell expands it
  chroot "$root" /usr/bin/sh -euc 'semodule -n -N -s default -X 100 -i /usr/share/selinux/default/*.pp.bz2; semodule -n -N -s default -X 200 -i /gpuslice-guest.cil
    setfiles -m -F -W -c /etc/selinux/default/policy/policy.* /etc/selinux/default/contexts/files/file_contexts
    setfiles -m -F /etc/selinux/default/contexts/files/file_contexts /' >&2
}

make_kernel() {
  local arch=$1 suite=$2 to=$3 root=$3/root initrd=$3/files version module path
  fetch "$to/debs" "$arch" "$suite" "linux-image-cloud-$arch" busybox-static
  mkdir "$root"
  unpack "$to/debs" "$root"
  version=$(basename "$(ls -d "$root"/usr/lib/modules/*)")
  # Debian's kernels from 7 on are beside their modules.
  mv "$root/boot/vmlinuz-$version" "$to/vmlinuz" 2>/dev/null || mv "$root/usr/lib/modules/$version/vmlinuz" "$to/vmlinuz"
  echo "$version" >"$to/version"
  "$cache/programs/wrappers/depmod" -b "$root" "$version"
  mkdir -p "$initrd/bin" "$initrd/modules"
  cp "$root/usr/bin/busybox" "$initrd/bin/"
  cp "$here/guest/init" "$initrd/init"
  chmod 755 "$initrd/init"
  # In the order of what they depend on; the kernel has the others built in.
  for module in virtio_pci virtio_blk virtio_console ext4; do
    "$cache/programs/wrappers/modprobe" -d "$root" -S "$version" --show-depends "$module"
  done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r path; do
    module=$(basename "$path" .xz)
    case $path in
      *.xz) xz -dc "$path" >"$initrd/modules/$module" ;;
      *) cp "$path" "$initrd/modules/$module" ;;
    esac
    echo "$module"
  done >"$to/order"
  mv "$to/order" "$initrd/modules/order"
  (cd "$initrd" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$to/initrd"
  image "$root/usr/lib/modules" "$to/modules" 1G
  rm -rf "$root" "$initrd"
}

case "${1:-} $#" in
  "where 1") echo "$cache" ;;
  "programs 1") once programs make_programs ;;
  "emulator 1") once emulator make_emulator ;;
  "compiler 2") compiler "$2" ;;
  "tools 2") tools "$2" ;;
  "root 3") once "root/$2-$3" make_root "$2" "$3" ;;
  "root 4") once "root/$2-$3-$4" "make_$4" "$2" "$3" ;;
  "kernel 3")
    once programs make_programs
    once "kernel/$2-$3" make_kernel "$2" "$3"
    ;;
  *)
      log "usage: guests.sh where | programs | emulator | compiler ARCH | tools ARCH | root ARCH SUITE [selinux] | kernel ARCH SUITE"
    exit 2
    ;;
esac
