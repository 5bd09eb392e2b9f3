"""Three trainees on the same samples: wherever images come from and however a step is taken, the result is the same."""

import copy
import math

import pytest
import torch
from PIL import Image
from torch import nn
from toy import IMAGES, LABELS, cross_entropy, network

import particleaugment as pa
from particleaugment.augment.transforms import Normalize
from particleaugment.data.samples import Samples
from particleaugment.data.streamed import open_folder
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.trainee.pipelines import make_pipelines, step_pipelines
from particleaugment.trainee.protocol import silent
from particleaugment.trainee.stream import StreamTrainee

SEED, BATCH = 5, 9
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
TEST = IMAGES.flip(0)[:20], LABELS.flip(0)[:20]
POLICY = pa.ParticlePolicy(torch.tensor([[0.5] * 15, [0.0] * 15, [0.9] * 15]), torch.tensor([1.0, 2.0, 3.0]), m=5)
TRANSFORMS = {"before": [pa.PadCrop(2), pa.HorizontalFlip()], "after": [pa.RandomErasing()]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The toy images as files, in the order of their ids: the files' order is that of their classes and names."""
    root = tmp_path_factory.mktemp("files")
    order = LABELS.argsort(stable=True)
    for part, images, labels in (("train", IMAGES[order], LABELS[order]), ("test", *TEST)):
        for number, (image, label) in enumerate(zip(images, labels.tolist())):
            path = root / part / f"class{label}" / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return root


def learner_of(preprocess):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Learner(model, optimizer, cross_entropy, preprocess)


def trainee_of(kind, folder, batch=BATCH):
    pipelines, preprocess = make_pipelines(
        torch.device("cpu"), (8, 8), Normalize(MEAN, STD), SEED, "native", **TRANSFORMS, resample="bilinear",
        fill=(1, 2, 3),
    )  # fmt: skip
    learner, order = learner_of(preprocess), LABELS.argsort(stable=True)
    images, labels = IMAGES[order], LABELS[order]
    if kind == "eager":
        augment = pa.Augment("none", SEED, **TRANSFORMS, fill=(1, 2, 3))
        return EagerTrainee(learner, Samples((images, labels)), augment, batch, sorted_test())
    if kind == "graph":  # on the CPU nothing is captured, and each step is taken when it is due
        return GraphTrainee(learner, pipelines, (images, labels), sorted_test(), batch)
    return StreamTrainee(learner, pipelines, open_folder(folder, 8, normalization="imagenet"), batch, workers=0)


def sorted_test():
    order = TEST[1].argsort(stable=True)
    return TEST[0][order], TEST[1][order]


def findings(trainee):
    """Everything that a trainee tells, and what training leaves of the network."""
    told = []
    trainee.model.train()
    ids = torch.randperm(48, generator=torch.Generator().manual_seed(1))[:37]  # four batches of 9, the last of 10
    trained = trainee.train(POLICY, ids, 3, progress=lambda *now: told.append(now))
    assert (trainee.batches_done, trained) == (4, trainee.loss_sum)
    resumed = trainee.train(POLICY, ids, 4, progress=silent, start=2, loss_sum=trained)
    assert trainee.batches_done == 4
    trainee.model.eval()
    plain = trainee.losses(torch.tensor([40, 3, 7]))
    measured = trainee.measure(POLICY, torch.arange(30, 41), 9, progress=lambda *now: told.append(now), phase="look")
    evaluated = trainee.evaluate(progress=lambda *now: told.append(now)), trainee.evaluate(7)
    trainee.close()
    return trained, resumed, plain, measured, evaluated, told, copy.deepcopy(trainee.model.state_dict())


@pytest.mark.parametrize("kind", ["graph", "stream"])
def test_all_trainees_find_the_same(kind, folder):
    expected, found = findings(trainee_of("eager", folder)), findings(trainee_of(kind, folder))
    assert found[:2] == expected[:2]
    assert found[1] > found[0] > 0
    torch.testing.assert_close(found[2:4], expected[2:4], rtol=0, atol=0)
    for (loss, accuracy), (other_loss, other_accuracy) in zip(found[4], expected[4]):
        assert accuracy == other_accuracy
        assert loss == pytest.approx(other_loss, rel=1e-6)
    assert found[5] == expected[5]
    assert [now[:2] for now in found[5]] == [("train", n) for n in (1, 2, 3, 4)] + [("look", 1), ("evaluate", 1)]
    torch.testing.assert_close(found[6], expected[6], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["eager", "graph", "stream"])
def test_losses_are_those_of_the_plain_images(kind, folder):
    trainee = trainee_of(kind, folder)
    trainee.model.eval()
    ids = torch.tensor([40, 3, 7, 3])
    order = LABELS.argsort(stable=True)
    inputs = Normalize(MEAN, STD).run(IMAGES[order][ids])
    with torch.no_grad():
        expected = cross_entropy(trainee.model(inputs), LABELS[order][ids]).double()
    torch.testing.assert_close(trainee.losses(ids), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(trainee.measure(POLICY, ids, 9, progress=silent, phase="")[1], trainee.losses(ids))
    assert not any(parameter.grad is not None for parameter in trainee.model.parameters())
    trainee.close()


@pytest.mark.parametrize("kind", ["eager", "graph", "stream"])
def test_an_epoch_that_resumes_ends_as_one_that_was_never_stopped(kind, folder):
    ids = torch.arange(48).flip(0)
    whole, stopped = trainee_of(kind, folder), trainee_of(kind, folder)
    total = whole.train(POLICY, ids, 2, progress=silent)

    def stop(phase, done, batches):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.train(POLICY, ids, 2, progress=stop)
    done, so_far = stopped.batches_done, stopped.loss_sum
    assert (done, 0 < so_far < total) == (3, True)
    assert stopped.train(POLICY, ids, 2, progress=silent, start=done, loss_sum=so_far) == total
    torch.testing.assert_close(stopped.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    for trainee in (whole, stopped):
        trainee.close()


@pytest.mark.parametrize("kind", ["eager", "graph", "stream"])
def test_a_loss_that_is_not_finite_is_an_error(kind, folder):
    trainee = trainee_of(kind, folder)
    with torch.no_grad():
        trainee.model[4].bias.fill_(math.inf)
    with pytest.raises(NonFiniteLoss, match="the training loss is nan"):
        trainee.train(POLICY, torch.arange(48), 1, progress=silent)
    trainee.close()


def test_images_that_are_measured_again_are_read_once(folder):
    trainee = trainee_of("stream", folder)
    trainee.model.eval()
    first = trainee.losses(torch.tensor([1, 2]))
    read = trainee.reader.batches
    trainee.reader.batches = None
    assert torch.equal(trainee.losses(torch.tensor([1, 2])), first)
    trainee.reader.batches = read
    assert not torch.equal(trainee.losses(torch.tensor([1, 3])), first)


@pytest.mark.parametrize("side", [729, 1024])
def test_batch_norm_is_never_given_one_of_several_large_images(side):
    images = torch.randint(0, 256, (3, 3, 1, 1), dtype=torch.uint8).expand(3, 3, side, side)
    sizes = []
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3))  # refuses one image
    model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = Learner(model, optimizer, cross_entropy, lambda images: images.float())
    trainee = EagerTrainee(learner, Samples((images, torch.arange(3))), pa.Augment("none"), 8)
    assert trainee.losses(torch.arange(3)).isfinite().all()
    assert sizes == [3]


def test_a_trainee_without_test_images_says_so():
    trainee = EagerTrainee(learner_of(lambda x: x.float()), Samples((IMAGES, LABELS)), pa.Augment("none"), 8)
    with pytest.raises(ValueError, match="has no test images"):
        trainee.evaluate()


def test_pipelines_draw_by_id_whatever_is_asked_for_with_it():
    augment = pa.Augment("rand-m9-n3", SEED, **TRANSFORMS)
    pipelines, ids = step_pipelines(augment), torch.arange(100, 148)
    pipelines.training.set_epoch(4)
    whole = pipelines.training(IMAGES, ids)
    rows = torch.tensor([7, 30, 2])
    assert torch.equal(pipelines.training(IMAGES, ids[rows], rows), whole[rows])
    assert not torch.equal(whole, IMAGES)
    pipelines.measuring.set_policy(POLICY)
    pipelines.measuring.set_epoch(1 << 31)
    particle = torch.tensor([0, 1, 2])
    program = POLICY.sample_particle(particle, ids[rows], 1 << 31, SEED, (8, 8))
    expected = pa.apply(IMAGES[rows], program)
    assert torch.equal(pipelines.measuring(IMAGES, ids[rows], rows, particle=particle), expected)
    assert torch.equal(expected[1], IMAGES[30]), "a particle that applies nothing"
