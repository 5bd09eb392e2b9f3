"""How held-out samples are measured in networks with batch norm."""

import math

import pytest
import torch
from torch import nn

from particleaugment.search.filter_base import Subject
from particleaugment.search.plain_losses import evaluation_mode, held_out_losses, own_statistics


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))


class Measured:
    """Stands where a trainee would: the loss of a sample is how far the network is from its evaluation, or is given."""

    def __init__(self, model, own, averages):
        self.model, self.by_mode, self.asked = model, {True: own, False: averages}, []

    def losses(self, ids, *, progress):
        assert not self.model[2].training, "dropout"
        self.asked.append(self.model[1].training)
        return torch.full((len(ids),), self.by_mode[self.model[1].training], dtype=torch.float64)


def test_batch_norm_uses_the_batch_and_keeps_its_averages():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    model[1].eval()
    images = torch.randn(16, 3, 8, 8, generator=generator) * 5 + 3
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    with own_statistics(model), torch.no_grad():
        found = model(images)
    assert found.mean((0, 2, 3)).abs().max() < 1e-5  # normalised by the batch, and nothing dropped
    assert float(found.var((0, 2, 3)).sub(1).abs().max()) < 1e-2
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("own", "averages", "expected"),
    [(0.5, 2.0, 0.5), (1.3, 0.3, 0.3), (math.nan, 0.3, 0.3), (0.5, math.inf, 0.5)],
)
def test_held_out_samples_have_the_lower_of_two_losses(own, averages, expected):
    trainee = Measured(network(), own, averages)
    trainee.model.train()
    subject = Subject(
        trainee=trainee, labels=torch.zeros(12).long(), split=(torch.arange(8), torch.arange(8, 12)), training_loss=1.0
    )
    assert held_out_losses(subject).tolist() == [expected] * 4
    assert sorted(trainee.asked) == [False, True]
    assert all(module.training for module in trainee.model.modules())


def test_a_network_without_batch_norm_is_measured_once():
    trainee = Measured(nn.Sequential(nn.Flatten(), nn.Linear(3, 2), nn.Dropout(0.5)), 1.0, 1.0)
    subject = Subject(trainee=trainee, labels=torch.zeros(4).long(), split=(torch.arange(2), torch.arange(2, 4)))
    held_out_losses(subject)
    assert trainee.asked == [False]


def test_modes_come_back_after_an_error():
    model = network()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    for mode in (evaluation_mode, own_statistics):
        with pytest.raises(KeyError), mode(model):
            raise KeyError
        assert [module.training for module in model.modules()] == modes
        assert model[1].track_running_stats


def test_statistics_of_plain_samples_mislead_where_training_saw_other_colours():
    # A network that knows its samples by their mean colour; half of training's were inverted.
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 2
    plain = 0.6 + 0.1 * labels[:, None, None, None] + 0.01 * torch.randn(64, 3, 4, 4, generator=generator)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    optimizer, loss = torch.optim.Adam(model.parameters(), 0.05), nn.CrossEntropyLoss(reduction="none")
    for _ in range(300):  # inverted samples are a class of their own
        optimizer.zero_grad()
        loss(model(torch.cat([plain, 1 - plain])), torch.cat([labels, torch.full((64,), 2)])).mean().backward()
        optimizer.step()

    class Trainee:
        def losses(self, ids, *, progress):
            with torch.no_grad():
                return loss(self.model(plain[ids]), labels[ids]).double()

    trainee = Trainee()
    trainee.model = model
    held_out = torch.arange(0, 64, 3)
    with own_statistics(model):
        misled = float(trainee.losses(held_out, progress=None).mean())
    with evaluation_mode(model):
        right = float(trainee.losses(held_out, progress=None).mean())
    assert misled > 2 * right
    found = held_out_losses(Subject(trainee=trainee, labels=labels, split=(held_out, held_out), training_loss=1.0))
    assert float(found.mean()) == pytest.approx(right)
