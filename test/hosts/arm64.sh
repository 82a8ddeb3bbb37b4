#!/usr/bin/env bash
# Runs a program for arm64, and those that it starts, on another machine's Linux: QEMU emulates the processor and passes on
# the system calls. It is for `go test -exec`. The kernel starts QEMU by binfmt_misc of a user namespace, so that nothing of
# the machine changes; that needs Linux 6.7. Robust futexes don't exist in it: the limiter itself needs a virtual machine.
#
#   arm64.sh PROGRAM ARGUMENT...
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" != --inside ]; then
  cache=$("$here/guests.sh" where)
  "$here/guests.sh" emulator
  sysroot=$(dirname "$(dirname "$("$here/guests.sh" compiler arm64)")")/usr/aarch64-linux-gnu
  [ -d "$sysroot" ] || sysroot=/usr/aarch64-linux-gnu
  # As root of the namespace the tests have no capabilities: they see what a user sees.
  exec env QEMU_LD_PREFIX="$sysroot" unshare --user --map-root-user --mount "$0" --inside "$cache/emulator/qemu-aarch64-static" "$@"
fi

mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
# An ELF file of 64 bits, little endian, executable or shared, of machine 183. P keeps the name that a program is started
# by, and F opens QEMU now.
# shellcheck disable=SC2028 # the kernel reads the escapes
echo ':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$2:PF" >/proc/sys/fs/binfmt_misc/register
# The tests find what was built for them where they look for it.
mount --bind "$here/../../build/arm64" "$here/../../build"
shift 2
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
