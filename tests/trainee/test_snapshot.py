import copy

import pytest
import torch
from torch import nn

from particleaugment.trainee.snapshot import Snapshot


def network(dropout=0.3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 3),
    ).to(memory_format=torch.channels_last)


def train(model, optimizer, steps=3, scaler=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(6, 3, 8, 8, generator=generator)
        y = torch.randint(3, (6,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def tree_equal(a, b):
    """Equality of nested containers; tensors must agree bit for bit, nan included."""
    if isinstance(a, torch.Tensor):
        same = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        as_bytes = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)] if same else None
        return same and torch.equal(*as_bytes)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(tree_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(tree_equal, a, b))
    return type(a) is type(b) and a == b


def state_of(model, optimizer, scaler=None):
    """Everything that a snapshot promises to put back, copied."""
    return copy.deepcopy(
        {
            "parameters": [parameter.detach() for parameter in model.parameters()],
            "buffers": list(model.buffers()),
            "gradients": [parameter.grad for parameter in model.parameters()],
            "modes": [module.training for module in model.modules()],
            "optimizer": optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "generator": torch.get_rng_state(),
        }
    )


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
    "tensor-lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
}


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_restores_every_bit(name, steps_before):
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, steps_before)
    before = state_of(model, optimizer)
    if steps_before == 0:
        assert not optimizer.state
    with Snapshot().of(model, optimizer):
        train(model, optimizer, 4)
        model.eval()
        inside = state_of(model, optimizer)
        assert not tree_equal(inside["parameters"], before["parameters"])
        assert not tree_equal(inside["buffers"], before["buffers"])
        assert not tree_equal(inside["generator"], before["generator"])
    assert tree_equal(state_of(model, optimizer), before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_happened(name):
    results = []
    for disturbed in (False, True):
        model = network()
        optimizer = OPTIMIZERS[name](model.parameters())
        snapshot = Snapshot()
        for step in range(3):
            train(model, optimizer, 1, seed=step)
            if disturbed:
                with snapshot.of(model, optimizer):
                    train(model, optimizer, 2, seed=50 + step)
        results.append(state_of(model, optimizer))
    assert tree_equal(*results)


def test_weights_that_are_not_numbers_are_put_back_too():
    model = network()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    train(model, optimizer)
    with torch.no_grad():
        model[5].weight[0, 0] = torch.nan
        model[5].weight[0, 1] = -torch.inf
        model[5].weight[0, 2] = -0.0
    before = state_of(model, optimizer)
    with Snapshot().of(model, optimizer):
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    assert tree_equal(state_of(model, optimizer), before)


def test_tensors_stay_the_same_objects():
    model = network()
    optimizer = OPTIMIZERS["tensor-lr"](model.parameters())
    train(model, optimizer)

    def objects():
        tensors = [*model.parameters(), *model.buffers(), optimizer.param_groups[0]["lr"]]
        states = [value for state in optimizer.state.values() for value in state.values()]
        return [(id(tensor), tensor.data_ptr()) for tensor in [*tensors, *states]]

    before = objects()
    with Snapshot().of(model, optimizer):
        train(model, optimizer)
        optimizer.param_groups[0]["lr"] = torch.tensor(7.0)
    assert objects() == before
    assert optimizer.param_groups[0]["lr"] == torch.tensor(1e-2)


def test_memory_is_reused():
    model = network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer)
    snapshot = Snapshot()
    places = []
    for _ in range(3):
        with snapshot.of(model, optimizer):
            train(model, optimizer)
        places.append({key: tensor.data_ptr() for key, tensor in snapshot._memory.items()})
    assert places[0] == places[1] == places[2]
    held = sum(tensor.nbytes for tensor in snapshot._memory.values())
    live = [*model.parameters(), *model.buffers()]
    live += [value for state in optimizer.state.values() for value in state.values()]
    assert held == sum(tensor.nbytes for tensor in live), "one copy of model and optimizer state, and no more"


def test_one_snapshot_serves_models_of_any_shape():
    snapshot = Snapshot()
    for width in (2, 5, 2):
        model = nn.Linear(width, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = state_of(model, optimizer)
        with snapshot.of(model, optimizer):
            model(torch.ones(1, width)).sum().backward()
            optimizer.step()
        assert tree_equal(state_of(model, optimizer), before)


@pytest.mark.parametrize("uses_before", [0, 2])
def test_grad_scaler(uses_before):
    model = network()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    train(model, optimizer, uses_before, scaler)
    before = state_of(model, optimizer, scaler)
    with Snapshot().of(model, optimizer, scaler):
        train(model, optimizer, 5, scaler)
        assert scaler.get_scale() == 2.0**11
    assert tree_equal(state_of(model, optimizer, scaler), before)
    train(model, optimizer, 1, scaler)
    assert scaler.state_dict()["_growth_tracker"] == uses_before + 1


def test_disabled_grad_scaler():
    model = network()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    before = state_of(model, optimizer, scaler)
    with Snapshot().of(model, optimizer, scaler):
        train(model, optimizer, 1, scaler)
    assert tree_equal(state_of(model, optimizer, scaler), before)


def test_gradients_being_accumulated_are_kept():
    model = network(dropout=0.0)
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    model[5].bias.grad = None
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [None if gradient is None else gradient.clone() for gradient in gradients]
    with Snapshot().of(model, optimizer):
        assert all(parameter.grad is None for parameter in model.parameters())
        train(model, optimizer)
    for parameter, gradient, value in zip(model.parameters(), gradients, values):
        assert parameter.grad is gradient
        assert (value is None and gradient is None) or torch.equal(gradient, value)


def test_learning_rate_and_other_group_values_come_back():
    model = network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[5].parameters()}], lr=0.1, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    train(model, optimizer)
    scheduler.step()
    before, scheduled = state_of(model, optimizer), copy.deepcopy(scheduler.state_dict())
    with Snapshot().of(model, optimizer):
        for group in optimizer.param_groups:
            group["lr"], group["momentum"], group["extra"] = 9.0, 0.0, "new"
        train(model, optimizer)
    assert tree_equal(state_of(model, optimizer), before)
    assert scheduler.state_dict() == scheduled
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]


def test_modes_are_restored_module_by_module():
    model = network()
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    with Snapshot().of(model, OPTIMIZERS["sgd"](model.parameters())):
        model.eval()
        model[3].train()
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_exception_restores_and_passes_through(kind):
    model = network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer)
    before = state_of(model, optimizer)

    def stopped():
        train(model, optimizer)
        raise kind("stop here")

    with pytest.raises(kind, match="stop here"), Snapshot().of(model, optimizer):
        stopped()
    assert tree_equal(state_of(model, optimizer), before)


class Counting(nn.Module):
    """Assigns new tensors to its buffers instead of writing into them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", None)
        self.register_buffer("hidden", torch.ones(2), persistent=False)

    def forward(self, x):
        self.calls = self.calls + 1
        self.mean = x.mean(0)
        self.hidden.mul_(2)
        return self.linear(x)


def test_buffers_that_are_assigned_anew():
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4))
    model.mean = None
    with Snapshot().of(model, optimizer):
        for _ in range(3):
            model(torch.ones(1, 4))
        assert model.calls == 4
        assert model.mean is not None
    assert model.calls == 1
    assert model.mean is None
    assert torch.equal(model.hidden, torch.full((2,), 2.0))


def test_parameters_outside_the_model_that_the_optimizer_moves():
    model, temperature = nn.Linear(4, 2), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    with Snapshot().of(model, optimizer):
        (model(torch.ones(1, 4)).sum() * temperature).backward()
        optimizer.step()
        assert temperature != 1
    assert temperature == 1
    assert temperature.grad is None


class Nested(torch.optim.Optimizer):
    """Keeps lists and dicts of tensors, as second-order optimizers do."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "history": []})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["history"].append(len(group["history"]))
            for parameter in group["params"]:
                state = self.state[parameter]
                factors = state.setdefault("factors", [torch.zeros(2), {"inner": torch.zeros(3)}])
                factors[0].add_(1)
                factors[1]["inner"].add_(1)
                factors.append(torch.ones(1))
                state["pair"] = (torch.ones(1), len(factors))
                parameter.sub_(group["lr"])


def test_nested_optimizer_state():
    model = nn.Linear(3, 1)
    optimizer = Nested(model.parameters())
    optimizer.step()
    before = state_of(model, optimizer)
    factors = optimizer.state[model.weight]["factors"]
    with Snapshot().of(model, optimizer):
        optimizer.step()
        optimizer.step()
        assert not tree_equal(state_of(model, optimizer)["optimizer"], before["optimizer"])
    assert tree_equal(state_of(model, optimizer), before)
    assert optimizer.state[model.weight]["factors"] is factors


def test_a_compiled_model():
    model = network(dropout=0.0)
    compiled = torch.compile(model, backend="eager")
    optimizer = OPTIMIZERS["momentum"](compiled.parameters())
    train(compiled, optimizer)
    before = state_of(model, optimizer)
    output = compiled(torch.ones(2, 3, 8, 8)).detach()
    after_output = state_of(model, optimizer)
    with Snapshot().of(compiled, optimizer):
        train(compiled, optimizer)
    assert tree_equal(state_of(model, optimizer), after_output)
    assert not tree_equal(before["buffers"], after_output["buffers"])
    assert torch.equal(compiled(torch.ones(2, 3, 8, 8)), output)
