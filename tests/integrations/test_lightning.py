"""The Lightning callback in real Trainers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from toy import IMAGES, LABELS, indexed, network, preprocess, search_by_training_loss, search_of

import particleaugment as pa

lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'particleaugment[lightning]'")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger  # noqa: E402
from lightning.pytorch.loggers.logger import DummyLogger  # noqa: E402
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy  # noqa: E402
from lightning.pytorch.strategies.xla import XLAStrategy  # noqa: E402

from particleaugment.integrations.lightning import AugmentCallback, ParticleAugmentCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):
    """Notes the batches it is given."""

    def __init__(self):
        super().__init__()
        self.network = network()
        self.seen, self.validated, self.rates = [], [], []

    def forward(self, images):
        return self.network(preprocess(images))

    def training_step(self, batch, number):
        images, labels, ids = (batch[key] for key in ("x", "y", "id")) if isinstance(batch, dict) else batch
        self.seen.append((self.current_epoch + 1, images.clone(), ids))
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch, number):
        self.validated.append(batch[0].clone())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def searching(**settings):
    """A search of three epochs, or of so many."""
    return search_of(**({"epochs": 3} | settings))


def trainer_of(folder, callback, epochs=None, **settings):
    if epochs is None:
        epochs = callback.search.num_epochs if isinstance(callback, ParticleAugmentCallback) else 3
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    quiet |= {"enable_checkpointing": False}
    callbacks = [callback, *settings.pop("callbacks", [])]
    return lightning.Trainer(max_epochs=epochs, callbacks=callbacks, default_root_dir=folder, **(quiet | settings))


def loader(search=None, **settings):
    return DataLoader(search.training_set() if search else indexed(), batch_size=12, **settings)


def test_training_batches_are_augmented_and_validation_batches_are_not(tmp_path):
    search, module = searching(start_value=0.9), Module()
    trainer_of(tmp_path, ParticleAugmentCallback(search)).fit(module, loader(search), loader())
    assert search.steps_taken == 2, "after the first epoch and after the second, not after the last"
    schedule = search.schedule(3)
    assert [step.from_epoch for step in schedule.steps] == [1, 2, 3]
    assert len(module.seen) == 12
    changed = 0
    for epoch, images, ids in module.seen:
        program = schedule.at(epoch).sample(ids, epoch, 7, (8, 8))
        assert torch.equal(images, pa.apply(IMAGES[ids], program))
        changed += not torch.equal(images, IMAGES[ids])
    assert changed == 12
    assert all(torch.equal(images, IMAGES[12 * (i % 4) :][:12]) for i, images in enumerate(module.validated[-4:]))


def test_a_search_that_holds_samples_out(tmp_path):
    search, module = (
        pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=pa.DifficultyFilter(measure_size=12)),
        Module(),
    )
    with pytest.raises(
        ValueError, match=r"sample \d+ is held out for measuring .* loader, .* from search.training_set"
    ):
        trainer_of(tmp_path, ParticleAugmentCallback(search)).fit(module, loader())
    assert search.steps_taken == 0
    search, module = (
        pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=pa.DifficultyFilter(measure_size=12)),
        Module(),
    )
    trainer_of(tmp_path, ParticleAugmentCallback(search)).fit(module, loader(search, shuffle=True))
    assert search.steps_taken == 4
    unseen = set(search.division.split[1].tolist())
    seen = {epoch: {int(i) for e, _, ids in module.seen if e == epoch for i in ids} for epoch in range(1, 6)}
    assert [len(unseen & seen[epoch]) for epoch in (1, 2, 3, 4)] == [0] * 4
    assert unseen & seen[5], "they join in the last fifth"
    assert len(module.seen) == 5 * 4, "as many steps as without a filter"


class WrongIds(torch.utils.data.Dataset):
    """All samples, under ids of those that may be trained on."""

    def __init__(self, search):
        self.ids = search.training_set().ids

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, index):
        return IMAGES[index], LABELS[index], self.ids[index % len(self.ids)]


def test_held_out_images_under_other_ids(tmp_path):
    search = pa.ParticleAugment((IMAGES, LABELS), epochs=3, filter=pa.DifficultyFilter(measure_size=12))
    with pytest.raises(ValueError, match="some of these images are held out for measuring"):
        trainer_of(tmp_path, ParticleAugmentCallback(search)).fit(Module(), DataLoader(WrongIds(search), batch_size=12))
    assert search.steps_taken == 0


@pytest.mark.parametrize("max_epochs", [2, 4])
def test_a_trainer_of_another_length_is_refused(tmp_path, max_epochs):
    callback, module = ParticleAugmentCallback(searching()), Module()
    message = f"the Trainer trains for {max_epochs} epochs, and the search was created for 3; give both the same number"
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, callback, max_epochs).fit(module, loader(callback.search))
    assert module.seen == [], "refused before anything is trained"


def test_a_trial_with_fast_dev_run(tmp_path):
    """It has one epoch, whatever max_epochs says, and the search can then be trained with."""
    search = searching()
    trainer_of(tmp_path, ParticleAugmentCallback(search), fast_dev_run=True).fit(Module(), loader(search), loader())
    assert (search.epoch, search.steps_taken) == (1, 0)
    trainer_of(tmp_path, ParticleAugmentCallback(search)).fit(Module(), loader(search))
    assert (search.epoch, search.steps_taken) == (3, 2)


def test_the_clone_trains_at_the_next_epochs_rate(tmp_path):
    class Spy(ParticleAugmentCallback):
        rates: list[float] = []  # noqa: RUF012

        def on_train_epoch_start(self, trainer, pl_module):
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
            super().on_train_epoch_start(trainer, pl_module)

    module = Module()
    trainer_of(tmp_path, Spy(searching())).fit(module, loader())
    assert Spy.rates == pytest.approx([0.05, 0.025, 0.0125])
    assert module.rates[::4] == pytest.approx(Spy.rates)


def test_a_resumed_run_is_the_straight_run(tmp_path):
    straight, module = searching(epochs=4), Module()
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    saving = {"callbacks": [keep], "enable_checkpointing": True}
    trainer_of(tmp_path, ParticleAugmentCallback(straight), **saving).fit(module, loader())

    resumed, other = searching(epochs=4), Module()
    trainer_of(tmp_path, ParticleAugmentCallback(resumed)).fit(
        other, loader(), ckpt_path=tmp_path / "epoch=1.ckpt", weights_only=True
    )
    assert resumed.steps_taken == straight.steps_taken == 3
    assert resumed.state == straight.state
    assert resumed.schedule(4) == straight.schedule(4)
    torch.testing.assert_close(other.network.state_dict(), module.network.state_dict(), rtol=0, atol=0)


def test_a_run_resumed_within_an_epoch_takes_each_step_once(tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=6)
    saving = {"callbacks": [keep], "enable_checkpointing": True, "max_steps": 6}
    first = searching(epochs=4)
    trainer_of(tmp_path, ParticleAugmentCallback(first), **saving).fit(Module(), loader())
    assert first.steps_taken == 1

    # Lightning starts the epoch's batches anew, so the networks differ from a straight run's; the steps do not repeat.
    resumed = searching(epochs=4)
    trainer = trainer_of(tmp_path, ParticleAugmentCallback(resumed))
    trainer.fit(Module(), loader(), ckpt_path=tmp_path / "kept.ckpt")
    assert resumed.steps_taken == 3
    assert [step.from_epoch for step in resumed.schedule(4).steps] == [1, 2, 3, 4]
    assert resumed.schedule(4).at(2) == first.policy


class Board(DummyLogger):
    """A logger with ``log_image``, as Lightning's WandbLogger has it."""

    def __init__(self):
        super().__init__()
        self.images = []

    def log_image(self, key, images, step=None):
        self.images.append((key, images[0].size, step))


def test_metrics_and_figures_are_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    search, board = searching(), Board()
    loggers = [TensorBoardLogger(tmp_path, "board"), CSVLogger(tmp_path, "csv"), board]
    trainer = trainer_of(tmp_path, ParticleAugmentCallback(search), logger=loggers, log_every_n_steps=1)
    trainer.fit(Module(), loader())
    assert trainer.logged_metrics["policy/ops_per_image"] == pytest.approx(search.policy.ops_per_image)
    assert trainer.logged_metrics["filter/d0"].isfinite()
    events = EventAccumulator(loggers[0].log_dir)
    events.Reload()
    assert "policy/heat_map" in events.Tags()["images"]
    assert len(events.Scalars("filter/effective_sample_size")) == 2
    assert "filter/d0" in (tmp_path / "csv" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    assert ("policy/heat_map", 4) in [(key, step) for key, _, step in board.images]


def test_precision_accumulation_and_clipping(tmp_path):
    search = searching()
    settings = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    module = Module()
    trainer_of(tmp_path, ParticleAugmentCallback(search), **settings).fit(module, loader())
    assert search.steps_taken == 2
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_dicts(tmp_path):
    def collate(items):
        images, labels, ids = zip(*items)
        return {"x": torch.stack(images), "y": torch.tensor(labels), "id": torch.tensor(ids)}

    search, module = searching(epochs=1, start_value=0.9), Module()
    callback = ParticleAugmentCallback(search, image_key="x", id_key="id")
    trainer_of(tmp_path, callback).fit(module, loader(search, collate_fn=collate))
    assert not torch.equal(module.seen[0][1], IMAGES[:12])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_augments_already(tmp_path, workers):
    search, module = searching(epochs=2, start_value=0.9), Module()
    train = search.training_set(transform=pa.ImageTransform(search))
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    data = DataLoader(train, batch_size=12, **options)
    trainer_of(tmp_path, ParticleAugmentCallback(search, image_key=None)).fit(module, data)
    for epoch, images, ids in module.seen:
        program = search.schedule().at(epoch).sample(ids, epoch, 7, (8, 8))
        assert torch.equal(images, pa.apply(IMAGES[ids], program))
    assert search.steps_taken == 1


def test_batches_that_nothing_augments_are_noticed(tmp_path):
    search = searching()
    trainer = trainer_of(tmp_path, ParticleAugmentCallback(search, image_key=None))
    with pytest.raises(ValueError, match="no image was augmented in epoch 1"):
        trainer.fit(Module(), loader(search))


class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("callback", "module", "data", "settings", "message"),
    [
        ({}, Manual, {}, {}, "the callback needs automatic optimization"),
        ({}, Module, {}, {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "clipped by norm only"),
        ({"id_key": 3}, Module, {}, {}, "no images under 0 or no ids under 3; load search.training_set"),
        ({"id_key": None}, Module, {}, {}, "a search needs sample ids"),
        ({}, Module, {"collate_fn": tuple}, {}, "a batch must be a list or a dict, because it is augmented in place"),
    ],
)
def test_what_does_not_suit_is_refused(tmp_path, callback, module, data, settings, message):
    trainer = trainer_of(tmp_path, ParticleAugmentCallback(searching(), **callback), **settings)
    with pytest.raises((ValueError, TypeError), match=message):
        trainer.fit(module(), loader(**data))


def test_several_loaders(tmp_path):
    class Several(Module):
        def training_step(self, batch, number):
            return super().training_step(batch["first"], number)

    search = searching()
    first = DataLoader(search.training_set(transform=pa.ImageTransform(search)), batch_size=12)
    loaders = {"first": first, "second": loader()}
    callback = ParticleAugmentCallback(search, image_key=None, batch_size=12)
    trainer_of(tmp_path, callback).fit(Several(), loaders)
    assert search.steps_taken == 2


@pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy, XLAStrategy])
def test_of_strategies_for_several_processes_ddp_alone_is_taken(strategy):
    sharded = SimpleNamespace(world_size=2, strategy=strategy.__new__(strategy))
    message = f"takes filter steps under strategy='ddp' only, got {strategy.__name__}; use that, or train with"
    with pytest.raises(ValueError, match=message):
        ParticleAugmentCallback(search_of()).setup(sharded, Module(), "fit")


def test_only_a_search_is_taken():
    with pytest.raises(TypeError, match="expected a ParticleAugment, got str"):
        ParticleAugmentCallback("trivial")


def test_a_checkpoint_of_another_search_is_refused():
    callback = ParticleAugmentCallback(search_of())
    with pytest.raises(ValueError, match="the saved search has a different seed"):
        callback.load_state_dict(ParticleAugmentCallback(search_of(seed=8)).state_dict())


def test_a_recorded_schedule_is_replayed(tmp_path):
    searched, module = searching(start_value=0.9), Module()
    trainer_of(tmp_path, ParticleAugmentCallback(searched)).fit(module, loader())
    replayed, other = pa.Augment(searched.schedule(3), seed=7), Module()
    trainer_of(tmp_path, AugmentCallback(replayed)).fit(other, loader())
    assert len(other.seen) == 12
    assert all(torch.equal(a[1], b[1]) for a, b in zip(module.seen, other.seen))
    torch.testing.assert_close(other.network.state_dict(), module.network.state_dict(), rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"expected a pa.Augment, got str"):
        AugmentCallback("trivial")


def test_the_counters_of_a_fixed_policy_are_kept(tmp_path):
    callback = AugmentCallback(pa.Augment("trivial"), id_key=None)
    trainer_of(tmp_path, callback, epochs=1).fit(Module(), loader())
    again = AugmentCallback(pa.Augment("trivial"), id_key=None)
    again.load_state_dict(callback.state_dict())
    assert (again.augment.epoch, again.augment.counter) == (1, 48)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_filter_that_needs_the_training_losses_gets_those_of_training_step(tmp_path, accumulate):
    seen = []

    class Noting(Module):
        def training_step(self, batch, number):
            loss = super().training_step(batch, number)
            seen.append((self.current_epoch, float(loss), len(batch[1])))
            return {"loss": loss}

    search, losses = search_by_training_loss(epochs=3)
    callback = ParticleAugmentCallback(search)
    trainer_of(tmp_path, callback, accumulate_grad_batches=accumulate).fit(Noting(), loader(search))
    for epoch in (0, 1):
        counted = [(loss * count, count) for at, loss, count in seen if at == epoch]
        expected = sum(total for total, _ in counted) / sum(count for _, count in counted)
        assert losses[epoch] == pytest.approx(expected, rel=1e-5)
    assert len(losses) == 2


def test_losses_observed_before_a_checkpoint_within_an_epoch_count(tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=6)
    saving = {"callbacks": [keep], "enable_checkpointing": True, "max_steps": 6}
    first, _ = search_by_training_loss(epochs=4)
    trainer_of(tmp_path, ParticleAugmentCallback(first), **saving).fit(Module(), loader(first))
    ((_, count),) = first.state_dict()["observed"]
    assert count == 24, "two batches of the second epoch"

    resumed, losses = search_by_training_loss(epochs=4)
    module = Module()
    trainer_of(tmp_path, ParticleAugmentCallback(resumed)).fit(
        module, loader(resumed), ckpt_path=tmp_path / "kept.ckpt", weights_only=True
    )
    assert resumed.steps_taken == 3
    assert len(losses) == 2, "after the second epoch and the third"
