#!/bin/sh
# Slurm's Epilog. The share itself is released when the job's processes have ended.
set -eu
rm -f "/run/gpuslice-jobs/$SLURM_JOB_ID"
