#!/bin/sh
# Runs a command of a Slurm job with the job's share: sudo gpuslice-job COMMAND. In sudoers:
#   %gpu ALL=(root) NOPASSWD: /usr/local/sbin/gpuslice-job
# The job is that of slurmstepd's control group, which only root enters. A user can make any other group, and set any variable but
# those of sudo.
set -eu
jobs=/run/gpuslice-jobs

fail() {
  echo "gpuslice-job: $1" >&2
  exit 125
}

uid=${SUDO_UID:-}
case "$uid" in
  '' | *[!0-9]*) fail "run it by sudo" ;;
esac
# Control groups of version 2, and of 1.
job=$(sed -n \
  -e 's|^0::/system\.slice/\([^/]*_\)\{0,1\}slurmstepd\.scope/job_\([0-9][0-9]*\)\(/.*\)\{0,1\}$|\2|p' \
  -e 's|^[1-9][0-9]*:[^:=]*:/slurm\(_[^/]*\)\{0,1\}/uid_'"$uid"'/job_\([0-9][0-9]*\)\(/.*\)\{0,1\}$|\2|p' \
  /proc/self/cgroup | head -n 1)
if [ -z "$job" ] || [ ! -f "$jobs/$job" ]; then
  fail "not in a job of a partition with GPUs"
fi
{
  read -r owner
  read -r share
} <"$jobs/$job"
if [ "$owner" != "$uid" ]; then
  fail "job $job is another user's"
fi
# The name is the job's, so that it has one share.
# shellcheck disable=SC2086 # the prolog's words
exec gpuslice run $share --user "$uid" --name "job-$job" -- "$@"
