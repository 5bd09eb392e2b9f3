#!/usr/bin/env bash
# A comparison on 2 nodes with 4 GPUs each:   sbatch examples/slurm_ray.sh
# Slurm sends SIGTERM to this script two minutes before the time limit: all runs save, and the same job continues them.
#SBATCH --job-name=particleaugment-compare
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append

set -euo pipefail

RECIPE=${RECIPE:-cifar10-wrn28-2}
DATA=${DATA:?set DATA to the data, readable at this path on every node}
OUT=${OUT:-$SLURM_SUBMIT_DIR/runs/compare-$RECIPE} # on storage that all nodes share
SEEDS=${SEEDS:-0-4}

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs on one node use different ports
# Other users of the cluster can reach the port too, but cannot use it without the token.
RAY_AUTH_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN

start() { # start NODE OPTIONS...: Ray on one node, until the job ends
  local node=$1
  shift
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" ray start --block \
    --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" "$@" &
}

start "$head_node" --head --port="$port"
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n +2); do
  start "$node" --address="$head_node:$port"
done
for _ in $(seq 60); do # until all nodes have joined
  ray status --address="$head_node:$port" 2>/dev/null | grep -c '^ 1 node_' | grep -qx "$SLURM_JOB_NUM_NODES" && break
  sleep 2
done

particleaugment compare "$RECIPE" --seeds "$SEEDS" --set data_dir="$DATA" --out "$OUT" --on "$head_node:$port" &
comparison=$!
trap 'kill -TERM "$comparison" 2>/dev/null' TERM
status=0
wait "$comparison" || status=$?
if kill -0 "$comparison" 2>/dev/null; then # the signal ended the wait; the comparison is still saving
  status=0
  wait "$comparison" || status=$?
fi
exit "$status"
