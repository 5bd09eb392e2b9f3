"""Where a training step's time goes on a GPU: the kernels of one captured step, and its time.

python benchmarks/gpu_step.py --data DIR
python benchmarks/gpu_step.py --data DIR --inductor combo_kernels=True
"""

from __future__ import annotations

import argparse
import ast
import time
from dataclasses import replace

import torch
from common import write
from signal_trainee import BATCH, StudyTrainee, policy, quiet
from torch import _inductor
from torch.profiler import ProfilerActivity, profile

from particleaugment.data import load_data

STEPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary archive")
    parser.add_argument("--model", default="wrn-28-2")
    parser.add_argument("--inductor", action="append", default=[], help="a setting of the compiler, as key=value")
    options = parser.parse_args()
    for assignment in options.inductor:
        key, _, value = assignment.partition("=")
        setattr(_inductor.config, key, ast.literal_eval(value))
    torch.backends.cudnn.benchmark = True
    data = load_data("cifar10", options.data)
    images, labels = data.train_images.cuda(), data.train_labels.cuda()
    trainee = StudyTrainee(replace(data, train_images=images, train_labels=labels), options.model)
    ids, training = torch.arange(STEPS * BATCH), policy([0])
    trainee.model.train()
    start = time.perf_counter()
    trainee.train(training, ids[: 10 * BATCH], 1, progress=quiet)
    ready = time.perf_counter() - start
    times = []
    for epoch in range(2, 7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        trainee.train(training, ids, epoch, progress=quiet)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / STEPS)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        trainee.train(training, ids[: 20 * BATCH], 9, progress=quiet)
        torch.cuda.synchronize()
    kernels = sorted(recorded.key_averages(), key=lambda kernel: -kernel.device_time_total)
    rows = [
        {
            "kernel": kernel.key[:160],
            "count": kernel.count / 20,
            "microseconds": round(kernel.device_time_total / 20, 2),
        }
        for kernel in kernels
    ]
    results = {
        "model": options.model,
        "inductor": options.inductor,
        "seconds_to_the_first_steps": round(ready, 1),
        "milliseconds_per_step": round(1e3 * sorted(times)[2], 4),
        "kernels_per_step": sum(row["count"] for row in rows),
        "busy_milliseconds": round(sum(row["microseconds"] for row in rows) / 1e3, 4),
        "kernels": rows,
    }
    name = "-".join(["gpu_step", *(assignment.partition("=")[0] for assignment in options.inductor)])
    write(name, results, seed=0)
    print({key: value for key, value in results.items() if key != "kernels"})
    for row in rows[:40]:
        print(f"{row['microseconds']:8.1f} us {row['count']:6.1f}x {row['kernel'][:110]}")


if __name__ == "__main__":
    main()
