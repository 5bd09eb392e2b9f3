#!/usr/bin/env bash
# A run on 4 nodes with 8 GPUs each:   sbatch examples/slurm.sh
# One torchrun per node starts a rank per GPU and restarts them if one dies. Two minutes before the time limit Slurm sends
# SIGTERM: the run saves, and the same command in the next job resumes it, as after any failure.
#SBATCH --job-name=particleaugment
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

RECIPE=${RECIPE:-imagenet-resnet50}
DATA=${DATA:?set DATA to the folder with train and val, readable on every node}
OUT=${OUT:-$SLURM_SUBMIT_DIR/runs/$RECIPE-0} # on storage that all nodes share: rank 0 may move when nodes change

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun \
  --nnodes="$SLURM_JOB_NUM_NODES" \
  --nproc-per-node="${SLURM_GPUS_ON_NODE:-8}" \
  --max-restarts=3 \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$head_node:29400" \
  --rdzv-id="$SLURM_JOB_ID" \
  -m particleaugment train "$RECIPE" --set data_dir="$DATA" --set sync_batchnorm=true --out "$OUT"
