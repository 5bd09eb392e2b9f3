"""What the ranks of test_rank_captures.py run: trainees of whole steps on every rank, on the CPU and over gloo."""

import sys

import torch
from checks import BATCH, COUNT, SEED, cross_entropy, digits, plain_network, silent
from torch import nn

from particleaugment import Augment, PadCrop, ParticlePolicy
from particleaugment.augment.transforms import Normalize
from particleaugment.data.digits import load_digits
from particleaugment.recipes import recipe
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.pipelines import Pipelines, make_pipelines, normalised
from particleaugment.trainee.ranks import fingerprint
from particleaugment.training.build import build, resolve
from particleaugment.training.distributed import joined

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
POLICY = ParticlePolicy(torch.full((3, 15), 0.4), torch.ones(3), m=5)


def normed_network():
    torch.manual_seed(SEED)
    layers = nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    return nn.Sequential(*layers)


def learner_of(ranks, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dtype = next(model.parameters()).dtype
    scaled = normalised(MEAN, STD)
    return Learner(model, optimizer, cross_entropy, lambda images: scaled(images).to(dtype), ranks=ranks)


def whole_steps(ranks, model, kind=GraphTrainee, pipelines=None, batch=BATCH, **options):
    """A trainee of whole steps; on the CPU nothing is captured, and each step is taken when it is due."""
    usual, _ = make_pipelines(
        torch.device("cpu"), (32, 32), Normalize(MEAN, STD), SEED, "native", before=[PadCrop(4)], after=[],
        resample="bilinear", fill=(128, 128, 128),
    )  # fmt: skip
    test = load_digits()
    trainee = kind(
        learner_of(ranks, model), pipelines or usual, digits().tensors, (test.test_images[:50], test.test_labels[:50]),
        batch, **options,
    )  # fmt: skip
    trainee.settle(COUNT)
    return trainee


def one_by_one(ranks, model, batch=BATCH):
    augment = Augment("none", SEED, before=[PadCrop(4)])
    trainee = EagerTrainee(learner_of(ranks, model), digits(), augment, batch)
    trainee.settle(COUNT)
    return trainee


def trained(trainee):
    """Train two epochs, of which the second starts in its middle; return the losses, and the network."""
    told = []
    first = trainee.train(POLICY, torch.arange(COUNT), 1, progress=lambda *now: told.append(now[1]))
    second = trainee.train(POLICY, torch.arange(COUNT).flip(0), 2, progress=silent, start=2, loss_sum=first)
    return first, second, told, {name: tensor.clone() for name, tensor in trainee.model.state_dict().items()}


def whole_and_one_by_one(ranks):
    """Both kinds of trainees on a network in float64, and on one with batch norm."""
    found = []
    for make in (plain_network, normed_network):
        for kind in (whole_steps, one_by_one):
            *losses, told, state = trained(kind(ranks, make()))
            prints = ranks.gather_texts(f"{losses} {told} {fingerprint(state.values())}")
            found.append((losses, told, state, prints))
    return found


def small_shares(ranks):
    """Batches that leave some rank one image, or none."""
    found = []
    for kind in (whole_steps, one_by_one):
        trainee = kind(ranks, plain_network())
        for count in (1, 2, 17):
            found.append(trainee.train(POLICY, torch.arange(count), 1, progress=silent))
        found.append({name: tensor.clone() for name, tensor in trainee.model.state_dict().items()})
    return found[:4], found[4:]


class Capturable:
    """A pipeline that says it can be captured, although there is no device to capture on."""

    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __getattr__(self, name):
        return getattr(self.pipeline, name)

    def __call__(self, *arguments, **options):
        return self.pipeline(*arguments, **options)

    def table_addresses(self):
        return (1,)


class Watched(GraphTrainee):
    """Notes what it tries, and fails on one rank where it is told to."""

    fails_at, tried = None, ()

    def _rehearse(self, size):
        self._try("rehearse", size)

    def _capture(self, size):
        self._try("capture", size)
        super()._capture(size)  # fails: there is no CUDA device

    def _try(self, what, size):
        self.tried = (*self.tried, f"{what} {size}")
        if self.fails_at == (what, self.ranks.rank):
            raise RuntimeError(f"no room to {what}\nand more")


def agreement(ranks):
    """What all ranks try and say where one cannot capture, and whether they train as if none had tried."""
    found = []
    last = ranks.world - 1
    for fails_at in (("rehearse", last), ("capture", last), None):
        said = []
        training = make_pipelines(
            torch.device("cpu"), (32, 32), Normalize(MEAN, STD), SEED, "native", before=[PadCrop(4)], after=[],
            resample="bilinear", fill=(128, 128, 128),
        )[0]  # fmt: skip
        pipelines = Pipelines(Capturable(training.training), training.measuring, training.plain)
        kind = type("WatchedHere", (Watched,), {"fails_at": fails_at})
        trainee = whole_steps(ranks, normed_network(), kind, pipelines, say=said.append)
        *_, state = trained(trainee)
        trainee.close()
        text = f"{trainee.tried} | {said} | {fingerprint(state.values())}"
        found.append([part.split(" | ") for part in ranks.gather_texts(text)])
    plain = whole_steps(ranks, normed_network())
    *_, state = trained(plain)
    return found, fingerprint(state.values())


def choices(ranks):
    """How a run on the CPU is trained, and whether a graph could hold these ranks' sums."""
    said = []
    config = resolve(recipe("digits", filter="paper", device="cpu", precision="fp32"))
    parts = build(config, said.append, ranks=ranks)
    return type(parts.trainee).__name__, parts.chosen, ranks.capturable, ranks.in_group


CHECKS = (whole_and_one_by_one, small_shares, agreement, choices)

if __name__ == "__main__":
    with joined() as ranks:
        findings = {check.__name__: check(ranks) for check in CHECKS}
        if ranks.first:
            torch.save(findings, sys.argv[1])
