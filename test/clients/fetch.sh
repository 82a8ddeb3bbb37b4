#!/bin/bash
# Fetches programs of Debian 12 (main and contrib) and of NVIDIA (Go) into a directory and unpacks them there, unless it has
# them: fetch.sh DIR. With NONFREE set, also programs that are or need what is not free.
set -euo pipefail

packages=(gpustat python3-pynvml python3-blessed python3-wcwidth python3-psutil nvtop boinc-client libboinc7
  hwloc libhwloc15 libhwloc-plugins libhwloc-contrib-plugins python3-numba)
# With what they depend on and the machine lacks. (The others and numba need little of what they depend on.)
whole=(ffmpeg gcc-12-offload-nvptx python3-llvmlite python3-numpy)
components="main contrib"
if [ -n "${NONFREE:-}" ]; then
  components+=" non-free"
  packages+=(nvidia-smi hashcat hashcat-data libnvvm4 libnvrtc11.2 libnvrtc-builtins11.8 libcurand10 python3-pycuda python3-pytools
    python3-appdirs python3-decorator python3-platformdirs python3-typing-extensions python3-mako python3-markupsafe
    libboost-python1.74.0 libboost-thread1.74.0)
fi
here=$(dirname "$(realpath "$0")")
dir=$(realpath -m "$1")
stamp="$dir/root/$( (echo "$components" && cat "$0" "$here/../tools-clients/go.mod") | sha256sum | cut -c 1-16)"
[ ! -e "$stamp" ] || exit 0

# The archive of Debian that this machine uses.
archive=$(apt-get indextargets --format "\$(REPO_URI)" 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$archive" ] || {
  echo "apt knows no archive of Debian (run apt-get update)" >&2
  exit 1
}

rm -rf "$dir/root"
mkdir -p "$dir"/{lists,cache,debs}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${archive%/} bookworm $components" >"$dir/sources.list"
apt() {
  apt-get -q -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" -o Dir::Etc::sourcelist="$dir/sources.list" \
    -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root "$@"
}
apt update
missing=$(apt --simulate --no-install-recommends install "${whole[@]}" | awk '$1 == "Inst" { print $2 }')
mapfile -t packages < <(printf '%s\n' "${packages[@]}" "${whole[@]}" ${missing:+"$missing"} | sort -u)
# The directory has those of other runs, too. A line is 'URI' FILE SIZE SUM.
files=$(apt --print-uris download "${packages[@]}" | awk '/^\x27/ { print $2 }')
(cd "$dir/debs" && apt download "${packages[@]}")
for package in $files; do
  dpkg -x "$dir/debs/$package" "$dir/root"
done
(cd "$here/../tools-clients" && GOBIN="$dir/root/usr/bin" go install -ldflags '-s -w' tool)
touch "$stamp"
