"""What torchrun starts in test_gpu_ranks.py: rank_work.py WHAT DEVICE FILE; rank 0 writes what it finds."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.modules._functions import SyncBatchNorm

import particleaugment as pa
from particleaugment.recipes import recipe
from particleaugment.trainee.ranks import Ranks, fingerprint
from particleaugment.training import build as building
from particleaugment.training import network
from particleaugment.training.distributed import joined, on_own_device

STEPS, BATCH = 3, 64
SETTINGS = {"precision": "fp32", "batch_size": BATCH, "learning_rate": 0.02, "deterministic": True, "compile": False}
SMALL = {
    "paper": {"clone_size": 128, "measure_size": 64, "num_particles": 6},
    "difficulty": {"measure_size": 64, "start": 2.0, "speed": 2.0},
}


def silent(phase, done, total):
    pass


def on_cpu(tensors):
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def parts_of(ranks, device, kind="paper", say=print, **settings):
    config = recipe("digits", filter=kind, device=device, **SMALL[kind], **(SETTINGS | settings))
    parts = building.build(config, say, ops=config.ops, ranks=ranks)
    parts.model.train()
    return config, parts


def filter_steps(ranks, device):
    """The network after three steps, and two steps of each filter."""
    found = {}
    for kind in SMALL:
        config, parts = parts_of(ranks, device, kind)
        search = pa.ParticleAugment(
            parts.samples, epochs=5, filter=config.filter.at_every(1), seed=config.seed, ops=config.ops
        )
        ids = search.division.ids_in(1)[: STEPS * BATCH]
        loss = parts.trainee.train(search.policy, ids, 1, progress=silent)
        weights = on_cpu(parts.model.state_dict())
        records = [
            search.step_with(parts.trainee, epoch=epoch, progress=silent, training_loss=loss / len(ids))
            for epoch in (1, 2)
        ]
        state = [tensor.cpu() for tensor in search.state_tensors()]
        found[kind] = {
            "trainee": type(parts.trainee).__name__,
            "loss": loss,
            "weights": weights,
            "decisions": [(record.skip_reason, getattr(record, "resampled", None)) for record in records],
            "state": state,
            "ops_per_image": search.policy.ops_per_image,
            "prints": ranks.gather_texts(fingerprint([*state, *weights.values()])),
        }
        parts.trainee.close()
    return found


def synchronised(ranks, device):
    """The network after three steps, with synchronised batch norm where there is a group."""
    _, parts = parts_of(ranks, device, sync_batchnorm=True)
    norms = sum(isinstance(module, nn.SyncBatchNorm) for module in parts.model.modules())
    loss = parts.trainee.train(pa.RandAugment(n=2, m=5), torch.arange(STEPS * BATCH), 1, progress=silent)
    parts.trainee.close()
    return norms, loss, on_cpu(parts.model.state_dict())


def norm_in_a_graph(ranks, device):
    """Synchronised batch norm itself, forward and backward over NCCL, eagerly and captured, and the usual one."""
    torch.manual_seed(0)
    inputs = torch.randn(16, 8, 5, 5, device=device).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.rand(8, device=device), torch.rand(8, device=device)
    given = torch.randn_like(inputs)

    def run(synchronised):
        tensors = [tensor.clone().requires_grad_() for tensor in (inputs, weight, bias)]
        mean, variance = torch.zeros(8, device=device), torch.ones(8, device=device)
        if synchronised:
            output = SyncBatchNorm.apply(*tensors, mean, variance, 1e-5, 0.1, dist.group.WORLD, ranks.world)
        else:
            output = functional.batch_norm(tensors[0], mean, variance, *tensors[1:], True, 0.1, 1e-5)
        gradients = torch.autograd.grad(output, tensors, given)
        return [output.detach(), *gradients, mean, variance]

    expected = run(False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = run(True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        captured = run(True)
    graph.replay()
    torch.cuda.synchronize()
    found = [[tensor.cpu() for tensor in tensors] for tensors in (expected, eager, captured)]
    graph.reset()
    return found


class Branching(nn.Module):
    """A network whose way depends on its data, which no captured graph can follow."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3, 10)

    def forward(self, images):
        hidden = self.head(images.mean(dim=(2, 3)))
        return -hidden if float(images.mean()) > 0 else hidden


def fallback(ranks, device):
    """What is said of a network that cannot be captured, and how it trains."""
    said, built = [], network.build_model
    network.build_model = lambda *_: Branching()
    try:
        _, parts = parts_of(ranks, device, say=said.append)
        losses = [
            parts.trainee.train(pa.RandAugment(n=2, m=5), torch.arange(200), epoch, progress=silent) for epoch in (1, 2)
        ]
        state, graphs = on_cpu(parts.model.state_dict()), len(parts.trainee._graphs)
        parts.trainee.close()
    finally:
        network.build_model = built
    return said, losses, state, graphs


def captured(ranks, device):
    """Sizes that are captured, the last batch's among them, and that graphs can be let go of and made again."""
    said = []
    _, parts = parts_of(ranks, device, say=said.append)
    trainee = parts.trainee
    trainee.train(pa.RandAugment(n=2, m=5), torch.arange(3 * BATCH + 7), 1, progress=silent)
    sizes = sorted(trainee._graphs)
    trainee.close()
    emptied = len(trainee._graphs)
    trainee.train(pa.TrivialAugment(), torch.arange(2 * BATCH), 2, progress=silent)
    again = sorted(trainee._graphs)
    state = on_cpu(parts.model.state_dict())
    trainee.close()
    return said, type(trainee).__name__, sizes, emptied, again, state


def over_nccl(ranks, device):
    return {work.__name__: work(ranks, device) for work in (captured, fallback, norm_in_a_graph, synchronised)}


def alone(ranks, device):
    return {work.__name__: work(ranks, device) for work in (captured, fallback, synchronised)}


def over_gloo(ranks, device):
    found = {"filter_steps": filter_steps(ranks, device)}
    if device == "cuda":
        found["synchronised"] = synchronised(ranks, device)
    return found


def main(what, device, file):
    if what == "alone":
        torch.save(alone(Ranks(), device), file)
    elif what == "nccl":
        with joined() as all_ranks:
            ranks = on_own_device(all_ranks, device)
            found = over_nccl(ranks, device)
            if ranks.first:
                torch.save(found, file)
    else:
        if device == "cuda":
            torch.cuda.set_device(0)  # both ranks' GPU, which NCCL would refuse
        dist.init_process_group("gloo")
        ranks = Ranks.together(torch.device(device))
        found = over_gloo(ranks, device)
        if ranks.first:
            torch.save(found, file)
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
