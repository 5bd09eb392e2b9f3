"""The Hugging Face collator and callback in real Trainers; Accelerate's checkpoints."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from toy import (
    IMAGES,
    LABELS,
    Convolutional,
    cross_entropy,
    indexed,
    network,
    preprocess,
    search_by_training_loss,
    search_of,
    step,
)

import particleaugment as pa

pytest.importorskip("transformers", reason="needs transformers: pip install 'particleaugment[transformers]'")
from accelerate import Accelerator
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from particleaugment.integrations.transformers import (
    AugmentCollator,
    EpochCallback,
    ParticleAugmentCallback,
)
from particleaugment.report.loggers import SearchLogger

pytestmark = pytest.mark.filterwarnings("ignore")


def vit():
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
    )
    return ViTForImageClassification(config)


def searching(**settings):
    """A search of three epochs, or of so many."""
    return search_of(**({"epochs": 3} | settings))


def trainer_of(folder, search, callback=None, model=None, kind=Trainer, **settings):
    epochs = getattr(search, "num_epochs", 3)
    defaults = {"save_strategy": "epoch", "per_device_train_batch_size": 12, "learning_rate": 5e-3, "use_cpu": True}
    defaults |= {"report_to": "none", "disable_tqdm": True, "num_train_epochs": epochs, "logging_strategy": "no"}
    return kind(
        model=model or vit(),
        args=TrainingArguments(str(folder), **(defaults | settings)),
        train_dataset=search.training_set() if isinstance(search, pa.ParticleAugment) else indexed(),
        eval_dataset=list(zip(IMAGES, LABELS)),
        data_collator=AugmentCollator(search, preprocess),
        callbacks=[callback or ParticleAugmentCallback(search, preprocess)],
    )


# The collator.


def test_samples_with_ids_are_augmented_and_others_are_not():
    search = search_of(start_value=0.9)
    search.begin_epoch(1)
    collate = AugmentCollator(search, preprocess)
    ids = torch.tensor([5, 0, 40])
    batch = collate([indexed()[i] for i in ids.tolist()])
    assert batch.keys() == {"pixel_values", "labels"}
    assert torch.equal(batch["pixel_values"], preprocess(search.augment(IMAGES[ids], ids)))
    assert not torch.equal(batch["pixel_values"], preprocess(IMAGES[ids]))
    assert torch.equal(batch["labels"], LABELS[ids])
    plain = collate([(IMAGES[i], int(LABELS[i])) for i in ids.tolist()])
    assert torch.equal(plain["pixel_values"], preprocess(IMAGES[ids]))


def test_dicts_of_pillow_images():
    augment = pa.Augment("rand-m9-n2-p1", seed=1)
    collate = AugmentCollator(augment, preprocess)
    pictures = [Image.fromarray(np.ascontiguousarray(IMAGES[i].permute(1, 2, 0).numpy())) for i in range(3)]
    batch = collate([{"image": picture, "label": i, "id": 7 + i} for i, picture in enumerate(pictures)])
    assert torch.equal(batch["pixel_values"], preprocess(augment(IMAGES[:3], torch.tensor([7, 8, 9]))))
    plain = collate([{"image": picture, "label": i} for i, picture in enumerate(pictures)])
    assert torch.equal(plain["pixel_values"], preprocess(IMAGES[:3]))


def test_what_the_collator_refuses():
    with pytest.raises(TypeError, match="expected a ParticleAugment or an Augment, got str"):
        AugmentCollator("trivial", preprocess)
    with pytest.raises(ValueError, match="some samples of a batch have an id and some have none"):
        AugmentCollator(search_of(), preprocess)([(IMAGES[0], 0, 0), (IMAGES[1], 1)])


# The callback.


def test_a_vit_trains_and_the_policy_moves(tmp_path):
    search = searching(epochs=4)
    trainer = trainer_of(tmp_path, search, eval_strategy="epoch")
    start = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert search.steps_taken == 3
    assert [step.from_epoch for step in search.schedule(4).steps] == [1, 2, 3, 4]
    assert trainer.evaluate()["eval_loss"] < start
    history = [entry for entry in trainer.state.log_history if "filter/d0" in entry]
    assert [entry["step"] for entry in history] == [4, 8, 12]
    assert history[-1]["policy/ops_per_image"] == pytest.approx(search.policy.ops_per_image)


def test_a_resumed_run_is_the_straight_run(tmp_path):
    set_seed(1)
    straight = searching(epochs=4)
    trainer = trainer_of(tmp_path / "straight", straight, model=Convolutional())
    trainer.train()

    resumed = searching(epochs=4)
    again = trainer_of(tmp_path / "resumed", resumed, model=Convolutional())
    shutil.copytree(tmp_path / "straight" / "checkpoint-8", tmp_path / "resumed" / "checkpoint-8")
    again.train(resume_from_checkpoint=str(tmp_path / "resumed" / "checkpoint-8"))
    assert resumed.steps_taken == straight.steps_taken == 3
    assert resumed.state == straight.state
    torch.testing.assert_close(again.model.state_dict(), trainer.model.state_dict(), rtol=0, atol=0)

    # A checkpoint elsewhere is loaded by hand; one without our file is refused.
    elsewhere = searching(epochs=4)
    callback = ParticleAugmentCallback(elsewhere, preprocess)
    callback.load(tmp_path / "straight" / "checkpoint-12")
    assert elsewhere.steps_taken == 2
    (tmp_path / "resumed" / "checkpoint-8" / "particleaugment.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"the checkpoint has no .*particleaugment.pt; resume from one that"):
        trainer_of(tmp_path / "resumed", searching(epochs=4), model=Convolutional()).train(
            resume_from_checkpoint=str(tmp_path / "resumed" / "checkpoint-8")
        )


def test_precision_accumulation_workers_and_a_logger(tmp_path):
    logged = []

    class Target:
        def log(self, values, step):
            logged.append((step, values))

    search = searching()
    callback = ParticleAugmentCallback(search, preprocess, logger=SearchLogger(Target()), batch_size=8)
    settings = {"bf16": True, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    settings |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer_of(tmp_path, search, callback=callback, **settings).train()
    assert search.steps_taken == 2
    assert [step for step, _ in logged] == [2, 4]
    assert {"filter/d0", "policy/Rotate", "policy/heat_map"} <= logged[0][1].keys()


def test_the_clone_trains_with_the_loaders_batch(tmp_path, monkeypatch):
    search, batches, take = searching(), [], pa.ParticleAugment.step

    def step(model, **given):
        batches.append(given["batch_size"])
        return take(search, model, **given)

    monkeypatch.setattr(search, "step", step)
    trainer_of(tmp_path, search, save_strategy="no").train()
    assert batches == [12, 12]


@pytest.mark.parametrize("settings", [{"fsdp": "full_shard", "deepspeed": None}, {"deepspeed": "zero.json"}])
def test_networks_in_shards_are_refused(settings):
    with pytest.raises(ValueError, match="on one process or under DistributedDataParallel, not with FSDP or DeepSpeed"):
        ParticleAugmentCallback(search_of(), preprocess).on_train_begin(SimpleNamespace(**settings), None, None)


def test_a_run_resumed_within_an_epoch_knows_the_losses_before(tmp_path):
    found = []
    for folder in ("straight", "resumed"):
        search, losses = search_by_training_loss(epochs=3, seed=7)
        set_seed(1)
        saving = {"save_strategy": "steps", "save_steps": 1}
        trainer = trainer_of(tmp_path / folder, search, model=Convolutional(), **saving)
        start = tmp_path / folder / "checkpoint-5"  # after the second of three batches of the second epoch
        if folder == "resumed":
            shutil.copytree(tmp_path / "straight" / "checkpoint-5", start)
        trainer.train(resume_from_checkpoint=str(start) if folder == "resumed" else None)
        found.append((losses[-1], search.steps_taken, search.state))
    assert found[0] == found[1]


def test_a_search_that_holds_samples_out(tmp_path):
    search = pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=pa.DifficultyFilter(measure_size=12), seed=7)
    seen, collate = [], AugmentCollator(search, preprocess)

    def noting(items):
        seen.extend((search.epoch, item[2]) for item in items)
        return collate(items)

    trainer = trainer_of(tmp_path, search, save_strategy="no")
    trainer.data_collator = noting
    trainer.train()
    assert search.steps_taken == 4
    assert trainer.state.global_step == 5 * 4, "the length of an epoch, which the Trainer reads once, does not change"
    unseen = set(search.division.split[1].tolist())
    assert {epoch for epoch, number in seen if number in unseen} == {5}
    search = pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=pa.DifficultyFilter(measure_size=12), seed=7)
    trainer = trainer_of(tmp_path, search, save_strategy="no")
    trainer.train_dataset = indexed()
    with pytest.raises(
        ValueError, match=r"sample \d+ is held out for measuring .* loader, .* from search.training_set"
    ):
        trainer.train()


def test_a_trainer_of_another_length_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, searching(), num_train_epochs=2)
    with pytest.raises(ValueError, match="the Trainer trains for 2 epochs, and the search was created for 3"):
        trainer.train()


def test_a_recorded_schedule_is_replayed(tmp_path):
    searched = searching(start_value=0.9)
    set_seed(1)
    first = trainer_of(tmp_path, searched, model=Convolutional(), save_strategy="no")
    first.train()
    replayed = pa.Augment(searched.schedule(3), seed=7)
    set_seed(1)
    second = trainer_of(tmp_path, replayed, model=Convolutional(), save_strategy="no", callback=EpochCallback(replayed))
    second.train()
    assert replayed.epoch == 3
    torch.testing.assert_close(second.model.state_dict(), first.model.state_dict(), rtol=0, atol=0)


# Accelerate.


def test_accelerate_keeps_a_search_in_its_checkpoints(tmp_path):
    def run(search, last, accelerator, model, optimizer, loader):
        for epoch in search.epochs():
            for images, labels, ids in loader:
                loss = cross_entropy(model(preprocess(search.augment(images, ids))), labels).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step(search, model, optimizer)
            if epoch == last:
                return

    def parts(search):
        accelerator, model = Accelerator(cpu=True), network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loader = DataLoader(search.training_set(), batch_size=12)
        accelerator.register_for_checkpointing(search)
        return accelerator, *accelerator.prepare(model, optimizer, loader)

    straight = search_of()
    run(straight, 2, *(made := parts(straight)))
    made[0].save_state(tmp_path)
    run(straight, 3, *made)

    resumed = search_of()
    others = parts(resumed)
    others[0].load_state(tmp_path)
    assert resumed.steps_taken == 2
    run(resumed, 3, *others)
    assert resumed.state == straight.state
    torch.testing.assert_close(others[1].state_dict(), made[1].state_dict(), rtol=0, atol=0)


def test_a_filter_that_needs_the_training_losses_gets_those_of_the_model(tmp_path):
    seen = []

    class Noting(Trainer):
        def compute_loss(self, model, inputs, *arguments, **options):
            loss = super().compute_loss(model, inputs, *arguments, **options)
            if model.training:
                seen.append((float(loss if isinstance(loss, torch.Tensor) else loss[0]), len(inputs["labels"])))
            return loss

    search, losses = search_by_training_loss(epochs=3)
    trainer = trainer_of(tmp_path, search, kind=Noting, eval_strategy="epoch")
    trainer.train()
    assert len(losses) == 2
    batches = len(seen) // 3
    for epoch in (0, 1):
        part = seen[epoch * batches : (epoch + 1) * batches]
        expected = sum(loss * count for loss, count in part) / sum(count for _, count in part)
        assert losses[epoch] == pytest.approx(expected, rel=1e-5)
    assert not trainer.model._forward_hooks, "the model is left alone"
    with pytest.raises(ValueError, match="does not pass labels to the model"):
        trainer_of(tmp_path, search_by_training_loss(epochs=3)[0], label_smoothing_factor=0.1).train()
