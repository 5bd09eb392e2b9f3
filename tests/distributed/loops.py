"""Training loops of other people, on several ranks, for test_rank_loops.py; they write down what they find.

torchrun --nproc-per-node 2 tests/distributed/loops.py LOOP FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[1]))
from toy import IMAGES, LABELS, Convolutional, cross_entropy, network, preprocess, search_by, search_of, step

import particleaugment as pa
from particleaugment.search.clone import MEASUREMENTS
from particleaugment.search.filter_base import FilterRecord
from particleaugment.trainee import batches
from particleaugment.trainee.ranks import RankError, Ranks, fingerprint

PER_RANK = 6
HELD_OUT = {"measure_on": "heldout", "measure_size": 11}


def prints(*groups):
    return [fingerprint(group) for group in groups]


def of(search):
    return prints(search.state_tensors())[0]


def everything(model, optimizer):
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return fingerprint([*model.state_dict().values(), *momenta, *gradients])


def exact_network():
    """Without batch norm, in float64: a step on shares of a batch is the step on the batch."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 3)).double()


def filter_step(search, model, optimizer, world, **more):
    as_double = {"preprocess": lambda images: preprocess(images).to(next(model.parameters()).dtype)}
    return step(search, model, optimizer, batch_size=2 * PER_RANK // world, **as_double, **more)


class InPlace(pa.PaperFilter):
    """Measures its particles on held-out samples by the network as it is, without a clone."""

    kind, trains_clone = "test-in-place", False

    def step(self, state, subject, *, epoch, epochs):
        subject.trainee.model.eval()
        key = MEASUREMENTS + state.steps
        losses, plain = subject.trainee.measure(
            self.policy(state), subject.split[1], key, progress=subject.progress, phase="measure"
        )
        object.__setattr__(self, "found", (losses, plain))  # settings are frozen
        return self.moved(state), FilterRecord(step=state.steps + 1, ops_per_image=0.0)


def measured(world, rank=0, wrap=lambda model: model):
    """What filter steps find on a given network, shared out or not; ranks differ in their statistics of batch norm."""
    found = {}
    for name, search in {"clone": search_of(), "held out": search_of(**HELD_OUT)}.items():
        model = exact_network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        record = filter_step(search, wrap(model), optimizer, world)
        found[name] = (record.delta, search.state.particles.particles)
    model = network()
    model[1].running_mean += 0.3 * rank
    search = search_by(InPlace, num_particles=4, seed=7, **HELD_OUT)
    filter_step(search, wrap(model), None, world)
    found["statistics"] = (*search.filter.found, model[1].running_mean - 0.3 * rank)
    return found


def wrapped(model):
    # Without its broadcast at the start, ranks keep statistics of their own.
    return nn.parallel.DistributedDataParallel(model, init_sync=False)


def refusal(search, model, **more):
    """What is said of a step that cannot be taken together."""
    try:
        step(search, model, torch.optim.SGD(model.parameters(), lr=0.05), **({"batch_size": PER_RANK} | more))
    except (RankError, ValueError) as error:
        return str(error)


class AnotherHead(nn.Module):
    """Training uses a head that filter steps do not."""

    def __init__(self):
        super().__init__()
        self.network, self.head = network(), nn.Linear(192, 3)

    def forward(self, images, both=False):
        logits = self.network(images)
        return logits + self.head(images.flatten(1)) if both else logits


def another_head(rank):
    """Whether gradients that wait in DistributedDataParallel's buckets are kept, and training goes on."""
    model = AnotherHead()
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    kept = []
    for clone_size in (12, 24):
        optimizer.zero_grad()
        cross_entropy(parallel(preprocess(IMAGES[rank::2]), both=True), LABELS[rank::2]).mean().backward()
        before = [parameter.grad.clone() for parameter in model.parameters()]
        filter_step(search_of(clone_size=clone_size), parallel, optimizer, 2)
        kept += [torch.equal(parameter.grad, gradient) for parameter, gradient in zip(model.parameters(), before)]
        optimizer.step()
    return all(kept), fingerprint(model.parameters())


def shares_of_one():
    """Batch norm in one dimension refuses a single image."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return [filter_step(search_of(clone_size=15), model, optimizer, 2)]


def held_out_epochs(rank, world):
    """The samples of each epoch on this rank, of a search that holds some out, with a sampler that is made once."""
    search, found = search_by(pa.DifficultyFilter, measure_size=11, epochs=5, seed=7), {}
    train = search.training_set()
    sampler = DistributedSampler(train, world, rank, seed=3)
    model = network()
    for epoch in search.epochs():
        sampler.set_epoch(epoch)
        found[epoch] = [number for _, _, ids in DataLoader(train, PER_RANK, sampler=sampler) for number in ids.tolist()]
        step(search, model, None)
    return found, search.division.split[1].tolist(), of(search)


def observed(rank):
    """What a filter is told of the training loss, where each rank observes its own samples."""
    told = []

    class Listening(pa.DifficultyFilter):
        kind = "test-listening"

        def step(self, state, subject, *, epoch, epochs):
            told.append(subject.training_loss)
            return super().step(state, subject, epoch=epoch, epochs=epochs)

    search = search_by(Listening, measure_size=12, epochs=5)
    search.begin_epoch(1)
    mine = search.training_set().ids[rank::2]
    search.observe(mine, mine.double())
    step(search, network(), None)
    return told, float(search.training_set().ids.double().mean())


def steered(rank=0, world=1, wrap=lambda model: model, interrupted=False):
    """Strengths of the difficulty filter in a loop of one's own, straight or with a state saved within an epoch.

    The state is rank 0's, as from a file that it alone has written, and reaches a search that was made anew.
    """
    model = exact_network()
    trained = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def search_anew():
        return search_by(pa.DifficultyFilter, measure_size=12, epochs=5, seed=7, every=1, start=1.5, speed=2.0)

    search, found = search_anew(), []
    for epoch in range(1, 5):
        search.begin_epoch(epoch)
        for number in range(3):
            if interrupted and (epoch, number) == (3, 2):
                search.gather_losses()
                saved = [search.state_dict()]
                dist.broadcast_object_list(saved, src=0)
                search = search_anew()
                search.load_state_dict(saved[0])
                search.begin_epoch(epoch, resumed=True)
            ids = search.training_set().ids[12 * number : 12 * number + 12][rank::world]
            images = preprocess(search.augment(IMAGES[ids], ids)).double()
            losses = cross_entropy(trained(images), LABELS[ids])
            search.observe(ids, losses)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        record = filter_step(search, trained, optimizer, world)
        found.append((record.training_loss, record.held_out_loss, record.strength))
    return found, of(search)


def own_statistics(rank, world):
    """Losses of a network whose batch norm uses the batch, and of one that refuses a batch of one sample."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    found = []
    for model in (network(), nn.Sequential(*layers)):
        search = search_by(pa.DifficultyFilter, measure_size=3, epochs=5, seed=7, every=1)
        search.begin_epoch(1)
        ids = search.training_set().ids[rank::world]
        search.observe(ids, torch.ones(len(ids)))
        record = filter_step(search, model, None, world)
        found.append(record.held_out_loss)
    return found


def own(folder):
    """A loop of one's own with DistributedDataParallel."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = network()
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    search = search_of(epochs=4)
    train = search.training_set()
    sampler = DistributedSampler(train, world, rank)
    loader = DataLoader(train, PER_RANK, sampler=sampler)
    found = {"restored": [], "states": [], "networks": []}
    for epoch in range(1, 4):
        search.begin_epoch(epoch)
        sampler.set_epoch(epoch)
        for images, labels, ids in loader:
            optimizer.zero_grad()
            cross_entropy(parallel(preprocess(search.augment(images, ids))), labels).mean().backward()
            optimizer.step()
        before = everything(model, optimizer)
        # As it is wrapped, and as it is inside.
        filter_step(search, parallel if epoch % 2 else model, optimizer, world)
        found["restored"].append(before == everything(model, optimizer))
        found["states"].append(of(search))
        found["networks"].append(fingerprint(model.parameters()))
    found["held out"] = held_out_epochs(rank, world)
    found["observed"] = observed(rank)
    found["steered"] = steered(rank, world, nn.parallel.DistributedDataParallel)
    found["steered, interrupted"] = steered(rank, world, nn.parallel.DistributedDataParallel, interrupted=True)
    found["own statistics"] = own_statistics(rank, world)
    batches.VALUES_PER_BATCH = 5 * IMAGES[0].numel()  # so that a rank has more batches to measure than another
    found["measured"] = measured(world, rank)
    found["measured wrapped"] = measured(world, rank, wrapped)
    augment = pa.Augment("rand-m9-n3")
    found["without ids"] = augment(IMAGES[:1].repeat(12, 1, 1, 1)).flatten(1).double().mean(1).tolist()
    found["other seeds"] = refusal(search_of(seed=rank), model)
    found["other batches"] = refusal(search_of(), model, batch_size=6 - rank)
    found["other data"] = refusal(search_of(data=(IMAGES[: 48 - rank], LABELS[: 48 - rank])), model)
    found["shards"] = refusal(search_of(), fully_shard(network()))
    found["another head"] = another_head(rank)
    found["shares of one"] = [record.d0 for record in shares_of_one()]
    alone = search_of(seed=rank)
    filter_step(alone, model, optimizer, 2, ranks=Ranks())
    found["alone"] = of(alone)
    torch.save(found, folder / f"{rank}.pt")


def transformers(folder):
    """Hugging Face's Trainer under torchrun, straight and resumed: between epochs, and within one."""
    from transformers import Trainer, TrainingArguments, set_seed

    from particleaugment.integrations.transformers import AugmentCollator, ParticleAugmentCallback

    settings = {"save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": PER_RANK}
    settings |= {
        "learning_rate": 5e-3,
        "report_to": "none",
        "disable_tqdm": True,
        "num_train_epochs": 4,
        "logging_strategy": "no",
    }
    settings |= {"use_cpu": True, "ddp_backend": "gloo"}
    by_loss = {"measure_size": 12, "seed": 7, "every": 1}
    searches = {
        "paper": (lambda: search_of(epochs=4), "checkpoint-8"),
        "difficulty": (lambda: search_by(pa.DifficultyFilter, epochs=4, **by_loss), "checkpoint-5"),
    }
    found = {}
    for name, start in [(filter, start) for filter in searches for start in (False, True)]:
        set_seed(1)
        make, checkpoint = searches[name]
        search, out = make(), folder / name
        trainer = Trainer(
            model=Convolutional(),
            args=TrainingArguments(str(out), **settings),
            train_dataset=search.training_set(),
            data_collator=AugmentCollator(search, preprocess),
            callbacks=[ParticleAugmentCallback(search, preprocess)],
        )
        trainer.train(resume_from_checkpoint=str(out / checkpoint) if start else None)
        kept = {"steps": search.steps_taken, "state": of(search), "network": fingerprint(trainer.model.parameters())}
        found[name, "resumed" if start else "straight"] = kept
        found["world"] = trainer.args.world_size
    torch.save(found, folder / f"{dist.get_rank()}.pt")


if __name__ == "__main__":
    {loop.__name__: loop for loop in (own, transformers)}[sys.argv[1]](Path(sys.argv[2]))
    # Threads of gloo may outlive a group that nobody ends, and then abort the process as it exits.
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
