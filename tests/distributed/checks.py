"""What the ranks of test_ranks.py run: small checks on every rank, whose findings rank 0 writes to a file."""

import hashlib
import os
import signal
import sys

import torch
from torch import nn

from particleaugment import Augment, PaperFilter, ParticleAugment, ParticlePolicy
from particleaugment.augment.transforms import PadCrop
from particleaugment.data import epoch_permutation
from particleaugment.data.digits import load_digits
from particleaugment.data.samples import Samples
from particleaugment.models import build_model
from particleaugment.recipes import recipe
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.trainee.ranks import RankError, ReportedByFirst, fingerprint
from particleaugment.trainee.snapshot import Snapshot
from particleaugment.training.build import build, resolve
from particleaugment.training.config import ConfigError
from particleaugment.training.distributed import StopTogether, joined, require_same
from particleaugment.training.run import RunError
from particleaugment.util.stop import Stopped

SEED, COUNT, BATCH = 5, 83, 16


def cross_entropy(logits, targets):
    return nn.functional.cross_entropy(logits, targets, reduction="none")


def scaled(dtype):
    return lambda images: images.to(dtype) / 255 - 0.5


def digits():
    data = load_digits()
    return Samples((data.train_images[:COUNT], data.train_labels[:COUNT]))


def trainee_of(ranks, model, dtype=torch.float32, batch=BATCH, augment=None, test=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    learner = Learner(model, optimizer, cross_entropy, scaled(dtype), ranks=ranks)
    return EagerTrainee(learner, digits(), augment or Augment("trivial", SEED, before=[PadCrop(4)]), batch, test)


def silent(phase, done, total):
    pass


def plain_network():
    torch.manual_seed(SEED)
    layers = nn.Conv2d(3, 4, 3, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(256, 10)
    return nn.Sequential(*layers).double()


def gradients(ranks):
    """Gradients of a network without batch norm on batches of 64, 7 and 1 images."""
    found = []
    for count in (64, 7, 1):
        model = plain_network()
        trainee = trainee_of(ranks, model, torch.float64, batch=64)
        loss = trainee.train(trainee.augment.policy, torch.arange(count), 0, progress=silent)
        found.append((loss, [parameter.grad for parameter in model.parameters()]))
    return found


class Recording(Augment):
    """Keeps a hash of the pixels of each sample that it is asked for."""

    seen: list

    def forward(self, images, ids=None):
        pictures = super().forward(images, ids)
        self.seen += [(int(i), hashlib.sha256(x.numpy().tobytes()).hexdigest()) for i, x in zip(ids, pictures)]
        return pictures


def pixels(ranks):
    """The samples of an epoch and their pixels, rank by rank; samples that stand in with weight 0 left out."""
    augment = Recording("trivial", SEED, before=[PadCrop(4)])
    augment.seen = []
    weights, train_batch = [], Learner.train_batch

    def weighed(self, images, targets, weight):
        weights.extend([weight] * len(images))
        return train_batch(self, images, targets, weight)

    Learner.train_batch = weighed
    trainee = trainee_of(ranks, plain_network(), torch.float64, augment=augment)
    trainee.train(augment.policy, epoch_permutation(COUNT, SEED, 3), 3, progress=silent)
    Learner.train_batch = train_batch
    lines = [f"{number} {digest}" for (number, digest), weight in zip(augment.seen, weights) if weight]
    return [text.splitlines() for text in ranks.gather_texts("\n".join(lines))]


def measurement(ranks):
    """Losses of a fixed network under particles and on plain images, of fewer samples than make even shares."""
    data = load_digits()
    test = data.test_images[:51], data.test_labels[:51]
    trainee = trainee_of(ranks, build_model("wrn-10-1", 10, SEED).eval(), test=test)
    particles = torch.rand(5, 15, generator=torch.Generator().manual_seed(1))
    policy = ParticlePolicy(particles, torch.ones(5), m=5)
    turns = []
    losses = trainee.measure(
        policy, torch.arange(30, 60), 1, progress=lambda *turn: turns.append(turn), phase="measure"
    )
    assert torch.equal(trainee.losses(torch.arange(30, 60)), losses[1])
    accuracy = trainee.evaluate(50)
    return losses, accuracy, ranks.gather_texts(fingerprint(losses)), ranks.gather_texts(repr(turns))


def statistics(ranks):
    """Whether batch norm's running statistics are those of rank 0 on every rank after training."""
    model = build_model("wrn-10-1", 10, SEED)
    trainee = trainee_of(ranks, model)
    first, equalise = [], type(ranks).equalise_buffers

    def noted(self, model):
        first.append(fingerprint(model.buffers()))
        equalise(self, model)

    type(ranks).equalise_buffers = noted
    trainee.train(trainee.augment.policy, torch.arange(40), 0, progress=silent)
    type(ranks).equalise_buffers = equalise
    return ranks.gather_texts(first[0]), ranks.gather_texts(fingerprint(model.buffers()))


def shares_of_one(ranks):
    """Training a network that refuses one image on batches that leave ranks one or none."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    trainee = trainee_of(ranks, model)
    losses = [trainee.train(trainee.augment.policy, torch.arange(count), 0, progress=silent) for count in (17, 18)]
    return losses, ranks.gather_texts(fingerprint(model.state_dict().values()))


def filter_steps(ranks):
    """Two steps of the filter: the network comes back bit for bit, and every rank holds the same particles."""
    model = build_model("wrn-10-1", 10, SEED)
    trainee = trainee_of(ranks, model, batch=20)
    paper = PaperFilter(num_particles=4, nonzero=2, clone_size=60, measure_size=20, clone_epochs=2, eta=4.0)
    search = ParticleAugment(trainee.samples, epochs=5, filter=paper, seed=SEED)
    trainee.optimizer.param_groups[0]["lr"] = 0.01
    trainee.train(search.policy, torch.arange(COUNT), 0, progress=silent)

    def everything():
        momenta = [state["momentum_buffer"] for state in trainee.optimizer.state.values()]
        return fingerprint([*model.state_dict().values(), *momenta])

    before = everything()
    records = [search.step_with(trainee, epoch=epoch) for epoch in (1, 2)]
    state = fingerprint(search.state_tensors())
    deltas = [record.delta for record in records]
    updates = sum(record.skip_reason is None for record in records)
    return updates, before == everything(), ranks.gather_texts(state), ranks.gather_texts(repr(deltas))


def errors(ranks):
    """What each rank raises when one fails."""
    found = []
    for method in (ranks.everywhere, ranks.on_first):
        for failing in range(ranks.world):

            def work(failing=failing):
                if ranks.rank == failing:
                    raise ValueError("no such data")
                return "fine"

            try:
                found.append(method(work))
            except (ValueError, RankError) as error:
                kind = "silent" if isinstance(error, ReportedByFirst) else type(error).__name__
                found.append(f"{kind}: {error}".partition(" on ")[0])
    return [text.split("|") for text in ranks.gather_texts("|".join(found))]


def stopping(ranks):
    """The check at which each rank stops when a signal reaches the last one after its third check."""
    checks = 0
    with StopTogether(ranks) as stop:
        try:
            while checks < 10:
                stop.check()
                checks += 1
                if checks == 3 and ranks.rank == ranks.world - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
        except Stopped:
            pass
        for _ in range(ranks.rank != ranks.world - 1):
            os.kill(os.getpid(), signal.SIGTERM)  # the launcher's own, late: a first one, not a second
        return ranks.gather_texts(f"{checks} checks, exit code {stop.exit_code}")


def no_number(ranks):
    """What each rank does when the last one's loss is not a number, and whether it can train afterwards."""
    trainee = trainee_of(ranks, plain_network(), torch.float64)
    before, poison = fingerprint(trainee.model.parameters()), [ranks.rank == ranks.world - 1]
    trainee.learner.loss = lambda logits, targets: cross_entropy(logits, targets) * (torch.nan if any(poison) else 1)
    said = []
    for _ in range(2):
        try:
            trainee.train(trainee.augment.policy, torch.arange(40), 0, progress=silent)
            said.append("trained" if fingerprint(trainee.model.parameters()) != before else "nothing happened")
        except NonFiniteLoss:
            said.append("refused" if fingerprint(trainee.model.parameters()) == before else "kept")
        poison.clear()
    return ranks.gather_texts(", ".join(said)), ranks.gather_texts(fingerprint(trainee.model.parameters()))


def too_small_a_batch(ranks):
    """What each rank says to a batch that cannot be shared out."""
    try:
        build(resolve(recipe("digits", filter="paper", batch_size=1, device="cpu")), print, ranks=ranks)
    except (ConfigError, RankError) as error:
        return ranks.gather_texts(f"{type(error).__name__}: {error}".partition(":")[0])
    return ranks.gather_texts("built")


def divergence(ranks):
    """What each rank says of tensors that are the same everywhere, and of some that differ in one bit on the last."""
    said = []
    for flipped in (False, ranks.world > 1):
        network = build_model("wrn-10-1", 10, SEED)
        if flipped and ranks.rank == ranks.world - 1:
            network.head.bias.data.view(torch.int32)[3] ^= 1
        try:
            require_same(ranks, "the weights", "here", network.state_dict().values())
            said.append("same")
        except (RunError, ReportedByFirst) as error:
            said.append(f"{type(error).__name__} {str(error).partition(':')[0]}")
    return [text.split("|") for text in ranks.gather_texts("|".join(said))]


def first_step(ranks):
    """A network after its first real step, taken at once and after others that were undone, as when a run goes on."""
    prints = []
    for late in (False, True):
        config = resolve(recipe("digits", filter="paper", device="cpu", precision="fp32", seed=SEED))
        trainee = build(config, print, ranks=ranks).trainee
        if late:
            with Snapshot().of(trainee.model, trainee.optimizer):
                trainee.train(trainee.augment.policy, torch.arange(2 * config.training.batch_size), 0, progress=silent)
        trainee.train(trainee.augment.policy, torch.arange(config.training.batch_size), 1, progress=silent)
        prints.append(fingerprint(trainee.model.parameters()))
    return prints


def mixing(ranks):
    """The places in the batch that each rank's Shake-Shake network mixes."""
    config = resolve(recipe("digits", filter="paper", model="shake-shake-8-2x2d", device="cpu"))
    model = build(config, print, ranks=ranks).model
    return ranks.gather_texts(f"{model._first_position} {model._position_stride}")


CHECKS = (
    gradients,
    pixels,
    measurement,
    statistics,
    shares_of_one,
    filter_steps,
    errors,
    stopping,
    no_number,
    too_small_a_batch,
    divergence,
    first_step,
    mixing,
)

if __name__ == "__main__":
    with joined() as ranks:
        findings = {check.__name__: check(ranks) for check in CHECKS}
        if ranks.first:
            torch.save(findings, sys.argv[1])
