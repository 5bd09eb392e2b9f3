"""Does the default filter also suit fine-tuning? A network pretrained on CIFAR-100 learns few images of other data.

    python research/fine_tuning.py --data DIR

DIR holds cifar/ and fashion-mnist/. WRN-10-1 trains on all of CIFAR-100 first; its body is kept. Accuracy is measured
on training images that no run trains on. Runs that the result file has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from common import table, write  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import particleaugment as pa  # noqa: E402
from particleaugment.compare.arms import parse_seeds  # noqa: E402
from particleaugment.compare.statistics import mean  # noqa: E402
from particleaugment.data import epoch_permutation, load_data  # noqa: E402
from particleaugment.data.split import disjoint_stratified_subsets  # noqa: E402
from particleaugment.models import WideResNet  # noqa: E402

NAME = "fine_tuning"
RESULTS = HERE / "results"
JUDGE = 4000
TASKS = {  # data set, folder, training images, epochs
    "cifar10-300-20": ("cifar10", "cifar", 300, 20),
    "cifar10-300-100": ("cifar10", "cifar", 300, 100),
    "cifar10-1200-20": ("cifar10", "cifar", 1200, 20),
    "cifar10-1200-60": ("cifar10", "cifar", 1200, 60),
    "fashion-300-20": ("fashion-mnist", "fashion-mnist", 300, 20),
    "fashion-300-100": ("fashion-mnist", "fashion-mnist", 300, 100),
}
ARMS: dict[str, Callable[[], pa.Policy] | None] = {
    "none": pa.Identity,
    "trivialaugment": pa.TrivialAugment,
    "randaugment-2-6": lambda: pa.RandAugment(n=2, m=6),
    "difficulty": None,
}
BEFORE = (pa.PadCrop(4), pa.HorizontalFlip())


def normalised(images: Tensor) -> Tensor:
    """Return uint8 images as the network reads them."""
    return (images.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def network(classes: int, seed: int) -> nn.Module:
    """Return a network whose weights are drawn from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return WideResNet(depth=10, width=1, num_classes=classes).to(memory_format=torch.channels_last)


def batches(
    images: Tensor, labels: Tensor, size: int, seed: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Iterate over one epoch."""
    for ids in epoch_permutation(len(labels), seed, epoch).split(size):
        yield images[ids], labels[ids], ids


def trained(
    model: nn.Module, images: Tensor, labels: Tensor, policy: pa.Policy | None, *, epochs: int, rate: float, seed: int
) -> list[float]:
    """Train a network in place, under a policy or, without one, a learned one; return its strength by epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = nn.CrossEntropyLoss(reduction="none")
    search = None if policy else pa.ParticleAugment((images, labels), epochs=epochs, seed=seed, before=BEFORE)
    fixed = pa.Augment(policy, seed=seed, before=BEFORE) if policy else None
    strength = []
    for epoch in range(1, epochs + 1) if search is None else search.epochs():
        model.train()
        if search is None:
            assert fixed is not None
            fixed.set_epoch(epoch)
            loader: Any = batches(images, labels, 64, seed, epoch)
        else:
            strength.append(search.policy.ops_per_image)
            drawn = torch.Generator().manual_seed(1000 * seed + epoch)
            loader = DataLoader(search.training_set(), batch_size=64, shuffle=True, generator=drawn)
        for batch, targets, ids in loader:
            augmented = (search.augment if search else fixed)(batch, ids)  # type: ignore[misc]
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(normalised(augmented))
            losses = loss(logits.float(), targets)
            if search is not None:
                search.observe(ids, losses)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        scheduler.step()
        if search is not None:
            search.step(model, loss=loss, preprocess=normalised)
    return strength


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent."""
    model.eval()
    right = [(model(normalised(x)).argmax(1) == y).sum() for x, y in zip(images.split(1000), labels.split(1000))]
    return 100 * float(sum(right)) / len(labels)


def pretrained(data: Path, work: Path) -> dict[str, Tensor]:
    """Return the weights of a network trained on CIFAR-100, without its classifier."""
    file = work / "pretrained.pt"
    if not file.exists():
        source, model = load_data("cifar100", data / "cifar"), network(100, seed=0)
        trained(model, source.train_images, source.train_labels, pa.Identity(), epochs=8, rate=0.1, seed=0)
        print(f"pretrained: {accuracy(model, source.test_images, source.test_labels):.2f} % on CIFAR-100's test images")
        work.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), file)
    state = torch.load(file, weights_only=True)
    last = {name for name, value in state.items() if value.shape[:1] == (100,)}
    return {name: value for name, value in state.items() if name not in last}


def measured(task: str, arm: str, seed: int, data: Path, body: dict[str, Tensor]) -> dict[str, Any]:
    """Fine-tune once. The images and the judge's are drawn anew by every seed."""
    name, folder, size, epochs = TASKS[task]
    source = load_data(name, data / folder)
    ids, judge = disjoint_stratified_subsets(source.train_labels, [size, JUDGE], seed=seed, step=0)
    model = network(10, seed)
    model.load_state_dict(body, strict=False)
    policy = ARMS[arm]
    strength = trained(
        model,
        source.train_images[ids],
        source.train_labels[ids],
        policy() if policy else None,
        epochs=epochs,
        rate=0.02,
        seed=seed,
    )
    found = accuracy(model, source.train_images[judge], source.train_labels[judge])
    return {"task": task, "arm": arm, "seed": seed, "accuracy": found, "strength": [round(s, 2) for s in strength]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--work", type=Path, default=Path("runs/fine-tuning"), help="folder of the pretrained network")
    arguments = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []
    body = pretrained(arguments.data, arguments.work)
    for seed in parse_seeds(arguments.seeds):
        for task in arguments.tasks.split(","):
            for arm in ARMS:
                if any((row["task"], row["arm"], row["seed"]) == (task, arm, seed) for row in rows):
                    continue
                rows.append(measured(task, arm, seed, arguments.data, body))
                print({name: rows[-1][name] for name in ("task", "arm", "seed", "accuracy")}, flush=True)
                write(NAME, rows, seed=0, folder=RESULTS)
    cells = [
        [arm, *(f"{mean([r['accuracy'] for r in rows if (r['task'], r['arm']) == (task, arm)]):.2f}" for task in TASKS)]
        for arm in ARMS
    ]
    print(table(["accuracy, %", *TASKS], cells))


if __name__ == "__main__":
    main()
