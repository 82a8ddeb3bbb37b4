#!/bin/sh
# Slurm's Prolog (slurm.conf): notes the owner and the share of each job, by its partition. slurmd runs it as root, before the job.
set -eu
jobs=/run/gpuslice-jobs

case "$SLURM_JOB_PARTITION" in
  small) share="--memory 8GiB --cores 20" ;;
  large) share="--memory 40GiB --cores 60" ;;
  *) exit 0 ;; # without a GPU
esac
if [ -n "${SLURM_JOB_GPUS:-}" ]; then
  # By UUID: in the job the driver counts only the GPUs that are permitted there.
  uuids=$(nvidia-smi --id="$SLURM_JOB_GPUS" --query-gpu=uuid --format=csv,noheader)
  share="$share --gpus $(echo "$uuids" | paste -s -d , -)"
fi
mkdir -p "$jobs"
printf '%s\n' "$SLURM_JOB_UID" "$share" >"$jobs/$SLURM_JOB_ID"
