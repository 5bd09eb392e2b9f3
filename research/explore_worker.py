"""Trains candidates one after the other; see ``benchmarks/proving_worker.py``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from candidates import CANDIDATES, FROZEN_FROM, Controller, task_ops  # noqa: E402
from particle_candidate import SLOTS, ParticleCandidate, ParticleController  # noqa: E402
from proving_worker import difficulty, serve  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from particleaugment.augment.pipeline import FusedPipeline  # noqa: E402
from particleaugment.core.op_table import TABLE, op_indices  # noqa: E402
from particleaugment.core.random import Stream, uniform  # noqa: E402
from particleaugment.data import epoch_permutation  # noqa: E402
from particleaugment.data.split import held_out_split  # noqa: E402
from particleaugment.trainee.graph import GraphTrainee  # noqa: E402
from particleaugment.training import build as building  # noqa: E402
from particleaugment.training.config import Config  # noqa: E402
from particleaugment.training.session import learning_rate  # noqa: E402
from particleaugment.training.shared import SharedParts  # noqa: E402
from particleaugment.util.stop import Stop  # noqa: E402


class CountingTrainee(GraphTrainee):
    """Also sums losses by op, over the samples that each was applied to, or by row of a policy that draws rows."""

    slots = 3
    rows = 0
    same_mode = False

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._op_numbers = torch.arange(len(TABLE) + 4, device=self.device)
        self.op_sums = torch.zeros(2, len(self._op_numbers), device=self.device)
        self.row_sums = torch.zeros(3, max(1, self.rows), device=self.device)
        self._held: tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor] | None = None

    def step(self, ids: Tensor, forward: Callable[[Tensor], Tensor]) -> None:
        """Take a step, and add its losses to the sums of the ops that were drawn."""
        drawn = torch.zeros(len(ids), self.slots, dtype=torch.int64, device=ids.device)
        training = self.pipelines.training
        assert isinstance(training, FusedPipeline)
        inputs = training(self.images, ids, ids, drawn=drawn)
        losses = self.learner.losses_through(forward, inputs, self.labels[ids])
        self.optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        detached = losses.detach()
        self._loss_sum += detached.double().sum()
        if self.rows:
            first = uniform(training.seed, Stream.OP, training.epoch, ids, 1)[:, 0]
            row = (first * self.rows).long().clamp(max=self.rows - 1)  # the row that the kernel drew
            self.row_sums.index_add_(1, row, torch.stack([detached, detached**2, torch.ones_like(detached)]))
            return
        applied = (drawn[:, :, None] == self._op_numbers).any(1).float()
        self.op_sums += torch.stack([detached, torch.ones_like(detached)]) @ applied

    @torch.no_grad()
    def held_out_loss(self, ids: Tensor) -> float:
        """Return the mean loss of some plain samples; always the same ones, so the pass is captured."""
        if self._held is None:
            ids = ids.to(self.device)
            self.model.train(self.same_mode)
            norms = [module for module in self.model.modules() if isinstance(module, nn.BatchNorm2d)]
            momenta = [norm.momentum for norm in norms]
            for norm in norms:
                norm.momentum = 0.0  # the statistics that evaluation uses stay as they are
            inputs, labels = self.pipelines.plain(self.images, ids, ids), self.labels[ids]
            for _ in range(2):
                self.learner.losses(inputs, labels)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = self.learner.losses(inputs, labels).double().mean()
            for norm, momentum in zip(norms, momenta):
                norm.momentum = momentum
            self._held = graph, loss, inputs, labels  # the graph reads the last two at every replay
        self._held[0].replay()
        value = float(self._held[1])
        self.model.train()
        return value


def run_candidate(
    job: dict[str, Any], config: Config, runs: Path, shared: SharedParts, stop: Stop
) -> dict[str, Any] | None:
    """Train one run; it is not resumed."""
    start = time.monotonic()
    settings, ops = CANDIDATES[job["arm"]], task_ops(config.ops, getattr(CANDIDATES[job["arm"]], "all_ops", False))
    if isinstance(settings, ParticleCandidate):
        CountingTrainee.slots, CountingTrainee.rows, CountingTrainee.same_mode = SLOTS, settings.rows, False
    else:
        CountingTrainee.slots, CountingTrainee.rows = settings.policy_slots, 0
        CountingTrainee.same_mode = settings.same_mode
    building.GraphTrainee = CountingTrainee  # type: ignore[misc]
    parts = building.build(config, print, True, ops, shared=shared)
    trainee, labels = parts.trainee, parts.samples.labels.cpu()
    assert isinstance(trainee, CountingTrainee)
    groups = getattr(parts.data, "train_groups", None)
    extra = () if groups is None else (groups.cpu(),)
    trained, held = held_out_split(labels, settings.held_out, config.seed, *extra)
    classes = parts.data.num_classes
    controller: Controller | ParticleController
    if isinstance(settings, ParticleCandidate):
        controller = ParticleController(settings, ops, config.training.epochs, classes, config.seed)
    else:
        controller = Controller(settings, ops, config.training.epochs, classes)
    indices = torch.tensor(op_indices(ops))
    ready, curve, traces, evaluating = time.monotonic(), [], [], 0.0
    for epoch in range(1, config.training.epochs + 1):
        stop.check()
        for group in parts.optimizer.param_groups:
            group["lr"].fill_(learning_rate(config, epoch))
        parts.model.train()
        measured = epoch <= FROZEN_FROM * config.training.epochs
        ids = trained if measured else torch.arange(len(labels))
        order = ids[epoch_permutation(len(ids), config.seed, epoch)]
        trainee.op_sums.zero_()
        trainee.row_sums.zero_()
        loss = trainee.train(controller.policy(), order, epoch, progress=lambda *_: None) / len(ids)
        if not math.isfinite(loss):
            raise ValueError("the training loss is not finite")
        held_loss = trainee.held_out_loss(held) if measured else None
        if isinstance(controller, ParticleController):
            controller.update(epoch, held_loss, trainee.row_sums.cpu().double())
        else:
            sums = trainee.op_sums.cpu().double()[:, indices]
            controller.update(epoch, loss, held_loss, sums[0], sums[1])
        if epoch % config.training.evaluate_every == 0 or epoch == config.training.epochs:
            before = time.monotonic()
            parts.model.eval()
            held_out_loss, accuracy = trainee.evaluate()
            curve.append([epoch, loss, held_out_loss, accuracy])
            traces.append([epoch, controller.trace()])
            evaluating += time.monotonic() - before
    end = time.monotonic()
    return {
        "accuracy": curve[-1][3],
        "loss": round(curve[-1][2], 5),
        "difficulty": difficulty(curve, config.training.epochs),
        "steps": config.training.epochs * -(-len(labels) // config.training.batch_size),
        "epochs": config.training.epochs,
        "images": len(labels),
        "curve": [[int(row[0]), *(round(value, 4) for value in row[1:])] for row in curve],
        "trace": traces,
        "seconds": {
            "total": end - start,
            "start": ready - start,
            "train": end - ready - evaluating,
            "evaluate": evaluating,
        },
    }


if __name__ == "__main__":
    serve(run_candidate, lambda arm, size: ("policy=none",))
