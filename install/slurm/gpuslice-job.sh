#!/bin/sh
# Runs a command of a Slurm job with the job's share: sudo gpuslice-job COMMAND. In sudoers:
#   %gpu ALL=(root) NOPASSWD: /usr/local/sbin/gpuslice-job
# The job is that of the control group, which a user can't leave; variables can be anything.
set -eu
jobs=/run/gpuslice-jobs

job=$(sed -n 's|.*/job_\([0-9][0-9]*\).*|\1|p' /proc/self/cgroup | head -n 1)
if [ -z "$job" ] || [ ! -f "$jobs/$job" ]; then
  echo "gpuslice-job: not in a job of a partition with GPUs" >&2
  exit 125
fi
# shellcheck disable=SC2046 # the prolog's words
exec gpuslice run $(cat "$jobs/$job") --user "${SUDO_USER:?run it by sudo}" --name "job-$job-$$" -- "$@"
