#!/bin/bash
# Fetches programs of Debian 12 (main and contrib) into a directory and unpacks them there, unless it has them: fetch.sh DIR
set -euo pipefail

packages=(gpustat python3-pynvml python3-blessed python3-wcwidth python3-psutil nvtop boinc-client libboinc7
  hwloc libhwloc15 libhwloc-plugins libhwloc-contrib-plugins)
dir=$(realpath -m "$1")
stamp="$dir/$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c 1-16)"
[ ! -e "$stamp" ] || exit 0

mkdir -p "$dir"/{lists,cache,debs}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main contrib" >"$dir/sources.list"
apt() {
  apt-get -q -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" -o Dir::Etc::sourcelist="$dir/sources.list" \
    -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root "$@"
}
apt update
(cd "$dir/debs" && apt download "${packages[@]}")
for package in "$dir"/debs/*.deb; do
  dpkg -x "$package" "$dir/root"
done
touch "$stamp"
