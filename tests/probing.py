"""What the tests of the learner and of the probe share: pictures, a network that learns them, and a probe of it."""

import copy

import torch
from torch import nn
from torch.utils.data import Dataset
from toy import cross_entropy

from particleaugment import Augment, ParticlePolicy
from particleaugment.search.clone import probe
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.snapshot import Snapshot

SEED, STEP = 11, 4
OPS = ("Rotate", "Solarize", "ShearX", "Posterize")


def pictures(count=60, side=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 3


class Pictures(Dataset):
    """Items, and a record of which were asked for; whatever is given as ``known`` becomes an attribute."""

    def __init__(self, images, given, **known):
        self.images, self.given = images, given
        self.asked = []
        for name, value in known.items():
            setattr(self, name, value)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.images[index], self.given[index]


def network(side=8, dropout=0.2):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(4 * side * side, 3),
    )


def learner_of(model=None, **settings):
    model = network() if model is None else model
    optimizer = settings.pop("optimizer", None) or torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True
    )
    return Learner(model, optimizer, settings.pop("loss", cross_entropy), lambda x: x.float() / 255 - 0.5, **settings)


def policy_of(particles=None, weights=None):
    rows = [[0.9, 0.1, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0], [0.3, 1.0, 0.8, 0.2]] if particles is None else particles
    return ParticlePolicy(torch.tensor(rows), torch.ones(len(rows)) if weights is None else weights, m=5, ops=OPS)


def plain(images, ids, epoch_key):
    return images


class Through(Augment):
    """An augmentation whose pixels come from a plain function of (images, ids, epoch key)."""

    def __init__(self, function):
        super().__init__("none", SEED)
        self.function = function

    def forward(self, images, ids=None):
        return self.function(images, ids, self.epoch)


def run(learner, samples, policy=None, augment=plain, **changes):
    settings = {"clone_size": 30, "measure_size": 12, "clone_epochs": 1, "seed": SEED, "step": STEP} | changes
    trainee = EagerTrainee(learner, samples, Through(augment), settings.pop("batch_size", 8))
    return probe(policy or policy_of(), trainee, samples.labels, Snapshot(), **settings)


def everything(learner):
    model, optimizer = learner.model, learner.optimizer
    gradients = [parameter.grad for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), gradients, modes, torch.get_rng_state()))
