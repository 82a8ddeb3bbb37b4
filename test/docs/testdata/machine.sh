#!/bin/bash
# Makes, in the namespaces that it is started in, a machine as a reader of the documents has one: /etc, /usr and /var of this
# one that can be changed and are gone afterwards, a GPU (simulated) with its driver at the usual places, docker and podman.
# Then runs a script of a page's commands.
#
# Usage: machine.sh DIR BUILD SCRIPT
set -euo pipefail
dir=$1 build=$2 script=$3
sim="$build/sim"

for path in etc usr var; do
  mkdir -p "$dir/$path" "$dir/$path.work"
  mount -t overlay -o "lowerdir=/$path,upperdir=$dir/$path,workdir=$dir/$path.work" overlay "/$path"
done
mount -t tmpfs -o mode=755 run /run
mount -t proc proc /proc
for path in /var/lib/docker /var/lib/containers; do # layers can't be kept on an overlay
  mkdir -p "$path"
  mount -t tmpfs storage "$path"
done
rm -rf /etc/gpuslice /etc/docker /etc/cdi /var/lib/gpuslice /usr/bin/gpuslice*

# The GPU, and its driver.
"$sim/simctl" --state "$dir/state" init --gpu H200
mkdir -p /run/simgpu "$dir/dev" && mount --bind "$dir" /run/simgpu
mount -t tmpfs -o mode=755 dev "$dir/dev"
for entry in /dev/*; do
  if [ -d "$entry" ] && ! [ -L "$entry" ]; then
    mkdir "$dir$entry"
    mount --rbind "$entry" "$dir$entry"
  else
    cp -a "$entry" "$dir$entry"
  fi
done
"$sim/simctl" --state "$dir/state" devnodes --dev-dir "$dir/dev"
[ -e "$dir/dev/nvidia-uvm" ] || mknod -m 666 "$dir/dev/nvidia-uvm" c 1 3 # the simulated driver has no use for it
mount --move "$dir/dev" /dev
for name in libcuda.so libnvidia-ml.so; do
  cp "$sim/$name.1" "/usr/lib/$(uname -m)-linux-gnu/$name.570.172.08"
  ln -sf "$name.570.172.08" "/usr/lib/$(uname -m)-linux-gnu/$name.1"
done
mount -t tmpfs modules /sys/module && mkdir /sys/module/nvidia /sys/module/nvidia_uvm
cp "$build/workloads/meminfo" /usr/bin/nvidia-smi # what a container sees of the GPU
ldconfig

# There is no systemd here, and its only job would be a signal. The next command finds the daemon with its new configuration.
cat >/usr/local/bin/systemctl <<END
#!/bin/sh
[ "\$1 \$2" = "reload docker" ] || exit
reloads() { grep -c "Reloaded configuration" $dir/dockerd.log; }
before=\$(reloads)
kill -HUP "\$(cat /run/docker.pid)"
for i in \$(seq 600); do
  [ "\$(reloads)" -gt "\$before" ] && exit
  sleep 0.1
done
cat $dir/dockerd.log
exit 1
END
# The containers of the pages have no use for a network, and this machine may have none to give. The simulated driver keeps
# its state in a file, which a real one's has not.
cat >/usr/local/bin/docker <<'END'
#!/bin/sh
[ "$1" != run ] || { shift; set -- run --network none --volume /run/simgpu:/run/simgpu "$@"; }
exec /usr/bin/docker "$@"
END
chmod 755 /usr/local/bin/systemctl /usr/local/bin/docker
mkdir -p /etc/containers /etc/docker
cat >/etc/containers/containers.conf <<'END'
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
volumes = ["/run/simgpu:/run/simgpu"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "/usr/sbin/runc"
END
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers"\ngraphroot = "/var/lib/containers"\n' >/etc/containers/storage.conf

printf '{"bridge": "none", "iptables": false, "ip6tables": false, "cgroup-parent": "/%s"}\n' "$(basename "$dir")" >/etc/docker/daemon.json

export PATH=/usr/local/bin:/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck disable=SC1090
. "$script"
