#!/usr/bin/env bash
# What needs an NVIDIA GPU, in order of worth. Needs the data of proving_ground.py in DATA. Any part can be run alone:
#
#   PYTHON=.venv/bin/python benchmarks/on_gpu.sh DATA [judge tests final speed targets threads ranks same]
#
# Each part ends with one line, "PART: passed" or "PART: failed", and its output is in runs/on_gpu/PART.log. Minutes on
# one H200 are in brackets. Parts that train resume where they stopped when the script is started again.
set -uo pipefail
cd "$(dirname "$0")/.."
data=${1:?"usage: benchmarks/on_gpu.sh DATA [part ...]"}
shift
python=${PYTHON:-python3}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p runs/on_gpu

part() {
  local name=$1
  shift
  if "$@" >"runs/on_gpu/$name.log" 2>&1; then echo "$name: passed"; else echo "$name: failed, see runs/on_gpu/$name.log"; fi
}

ground() { "$python" benchmarks/proving_ground.py --data "$data" --jobs 8 "$@"; }

judge() {  # [8] the default and its control on all core tasks, by the judge; fixed arms that are missing
  ground --arms difficulty,difficulty-frozen --seeds 0-1 && ground --arms none,trivialaugment,randaugment-2-6,randaugment-3-4 --seeds 0-1
}
tests() { "$python" -m pytest -q -m gpu tests/gpu; }  # [4]
final() {  # [150] test sets, 5 seeds, once, after the settings are frozen
  ground --final --seeds 0-4 --arms none,trivialaugment,randaugment-2-6,randaugment-3-4,difficulty,difficulty-frozen
}
speed() {  # [4] the filter's share of an epoch; 100 runs in 25 minutes are read off the judge and the final
  "$python" benchmarks/gpu_training.py --data "$data/cifar" --models wrn-28-2 --policies randaugment difficulty && "$python" benchmarks/first_step.py
}
targets() { "$python" benchmarks/targets.py --device cuda; }  # [1]
threads() { "$python" benchmarks/cpu_threads.py; }  # [1] wants a quiet machine with 16 cores
ranks() { "$python" benchmarks/ranks.py --gpus; }  # [4]
same() { "$python" benchmarks/same_results.py --gpu "${OLD:-HEAD~1}"; }  # [3]

# Processes that share a GPU run side by side only under MPS.
command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d 2>/dev/null
for name in "${@:-judge}"; do
  case $name in
    judge | tests | final | speed | targets | threads | ranks | same) part "$name" "$name" ;;
    *) echo "there is no part $name; there are judge tests final speed targets threads ranks same" && exit 2 ;;
  esac
done
