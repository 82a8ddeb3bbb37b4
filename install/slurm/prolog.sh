#!/bin/sh
# Slurm's Prolog (slurm.conf): notes the share of each job, by its partition. slurmd runs it as root, before the job.
set -eu
jobs=/run/gpuslice-jobs

case "$SLURM_JOB_PARTITION" in
  small) share="--memory 8GiB --cores 20" ;;
  large) share="--memory 40GiB --cores 60" ;;
  *) exit 0 ;; # without a GPU
esac
mkdir -p "$jobs"
echo "$share" >"$jobs/$SLURM_JOB_ID"
