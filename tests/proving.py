"""A small stand-in for the proving ground's tables, and runs made up for the tests of its page."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Task:
    name: str
    title: str
    trap: bool = False
    final_only: bool = False
    version: int = 1
    size: int = 1000
    epochs: int = 100


@dataclass(frozen=True)
class Arm:
    name: str
    meaning: str
    fixed: bool = True


def by_name(*things):
    return {thing.name: thing for thing in things}


TASKS = by_name(
    Task("cifar10-1280", "CIFAR-10, 1,280 images"),
    Task("cifar10-4000", "CIFAR-10, 4,000 images"),
    Task("cifar10-12800", "CIFAR-10, 12,800 images"),
    Task("cifar100-10000", "CIFAR-100, 10,000 images"),
    Task("fashion-1000", "Fashion-MNIST, 1,000 images"),
    Task("signs-6700", "Traffic signs, 6,700 images"),
    Task("imagenette-2000", "Imagenette 64x64, 2,000 images"),
    Task("mnist-flips-1000", "MNIST with flips, 1,000 images", trap=True),
    Task("mnist-tints-2000", "MNIST in three tints, 2,000 images", trap=True),
    Task("digits-300", "Digits, 300 images", final_only=True),
)
ARMS = by_name(
    Arm("none", "crop, mirror and erasing only"),
    Arm("trivialaugment", "TrivialAugment, wide space"),
    Arm("trivialaugment-2", "two TrivialAugment ops per image"),
    Arm("randaugment-1-3", "RandAugment, one op at level 3"),
    Arm("randaugment-2-6", "RandAugment, two ops at level 6"),
    Arm("randaugment-3-4", "RandAugment, three ops at level 4"),
    Arm("autoaugment", "AutoAugment as published for CIFAR-10"),
    Arm("difficulty", "steers strength by the difficulty of training", fixed=False),
    Arm("difficulty-frozen", "control: its first strength, nothing measured", fixed=False),
    Arm("paper", "the paper's filter, to the letter", fixed=False),
)


def make_run(task="cifar10-4000", arm="none", seed=0, accuracy=80.0, **fields):
    return {
        "task": task,
        "task_version": 1,
        "arm": arm,
        "seed": seed,
        "measured_on": "judge",
        "accuracy": accuracy,
        "loss": 0.61,
        "difficulty": 0.67,
        "steps": 8000,
        "epochs": 250,
        "curve": [[125, 0.8, 0.7, 70.0], [250, 0.4, 0.61, accuracy]],
        "seconds": {"total": 20.0, "train": 18.0, "evaluate": 1.5},
        "shared_gpu": 5,
        "machine": {"gpu": "NVIDIA H200", "cpu": "a CPU", "cores": 16},
        "command": "python benchmarks/proving_ground.py --data DIR",
        "settings": {"policy": "none"},
    } | fields


def runs_of(accuracies, **fields):
    """Runs from accuracies by task, arm and seed; a list has the seeds 0, 1, …"""
    return [
        make_run(task, arm, seed, value, **fields)
        for task, arms in accuracies.items()
        for arm, values in arms.items()
        for seed, value in (values.items() if isinstance(values, dict) else enumerate(values))
    ]


def plausible_runs(seeds=2, tasks=tuple(TASKS)[:9], arms=tuple(ARMS)):
    """Runs with the sizes of effects and noise that such runs have; the figures mean nothing."""
    level = dict(zip(TASKS, (65.6, 81.8, 89.4, 62.0, 84.5, 95.8, 78.0, 97.0, 96.0, 97.0)))
    gain = dict(zip(TASKS, (9.0, 3.0, 1.0, 2.0, 0.5, 1.5, 4.0, -2.5, -0.4, -1.0)))
    share = dict(zip(ARMS, (0.0, 1.0, 1.1, 0.4, 1.1, 1.05, 0.8, 0.65, 0.85, 0.3)))
    ratio = dict(zip(ARMS, (0.04, 0.67, 1.4, 0.1, 0.47, 0.35, 0.31, 0.5, 0.45, 0.9)))
    time = {"difficulty": 1.15, "paper": 1.9}
    generator = np.random.default_rng(0)
    found = []
    for task in tasks:
        for seed in range(seeds):
            common = generator.normal(0, 0.2)
            for arm in arms:
                value = level[task] + gain[task] * share.get(arm, 0.9) + common + generator.normal(0, 0.3)
                run = make_run(task, arm, seed, round(float(min(value, 99.9)), 2))
                run["difficulty"] = round(float(ratio.get(arm, 0.8) * np.exp(generator.normal(0, 0.15))), 3)
                run["seconds"]["total"] = round(20 * time.get(arm, 1.0) * float(np.exp(generator.normal(0, 0.02))), 2)
                found.append(run)
    return found
