"""timm's strings give timm's policies, and its Mixup comes after us."""

import pytest
import torch
from torch.utils.data import DataLoader
from toy import preprocess, search_of

import particleaugment as pa
from particleaugment.core import semantics

pytest.importorskip("timm", reason="needs timm: pip install 'particleaugment[timm]'")
from timm.data import Mixup
from timm.data.auto_augment import LEVEL_TO_ARG, auto_augment_transform, rand_augment_transform

SHORT = {"Rel": "", "Increasing": "", "Original": ""}


def plain_name(name):
    for part, text in SHORT.items():
        name = name.replace(part, text)
    return name


@pytest.mark.parametrize(
    "text", ["rand", "rand-m9-n3-mstd0.5-inc1", "rand-m9-mstd0.5-p0.3", "rand-m15-mmax20-inc1", "rand-m8-mstd101"]
)
def test_rand_strings(text):
    theirs, ours = rand_augment_transform(text, {}), pa.parse(text)
    assert tuple(plain_name(op.name) for op in theirs.ops) == ours.ops
    assert theirs.num_layers == ours.n
    assert {op.magnitude for op in theirs.ops} == {ours.m}
    assert {op.prob for op in theirs.ops} == {ours.p}
    assert {float(op.magnitude_std) for op in theirs.ops} == {float(ours.m_std)}


def test_weighted_rand_strings():
    theirs, ours = rand_augment_transform("rand-m9-mstd1-tweights", {}), pa.parse("rand-m9-mstd1-tweights")
    weights = dict(zip(ours.ops, torch.tensor(ours.op_weights) / sum(ours.op_weights)))
    for op, share in zip(theirs.ops, theirs.choice_weights):
        assert float(weights[plain_name(op.name)]) == pytest.approx(float(share))


@pytest.mark.parametrize("text", ["rand-m10", "rand-m10-inc1"])
def test_arguments_beyond_the_top_level(text):
    """As far as the ops' own ranges go: a translation by 2 sides is reached at level 44."""
    ours = pa.parse(text)
    table = semantics.get(ours.semantics)
    for op in rand_augment_transform(text, {}).ops:
        name = plain_name(op.name)
        for level in range(41) if op.level_fn is not None else ():
            (theirs,) = LEVEL_TO_ARG[op.name](level, op.hparams)
            if name == "Posterize":
                theirs = min(max(theirs, 0), 8)  # 0 bits or less are black, 8 or more change nothing
            expected = [pytest.approx(table.argument(name, level, sign)) for sign in (1, -1)]
            assert theirs in expected, (op.name, level)


@pytest.mark.parametrize("text", ["original", "originalr-mstd0.5", "v0", "v0r"])
def test_auto_strings(text):
    theirs, ours = auto_augment_transform(text, {}), pa.parse(text)
    assert len(theirs.policy) == len(ours.sub_policies)
    for their_steps, our_steps in zip(theirs.policy, ours.sub_policies):
        for op, (name, probability, level) in zip(their_steps, our_steps):
            assert (plain_name(op.name), op.prob) == (name, probability)
            assert op.level_fn is None or op.magnitude == level


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_mixup_comes_after_us(mode):
    search, mixup = search_of(), Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, mode=mode, num_classes=3)
    search.begin_epoch(1)
    for images, labels, ids in DataLoader(search.training_set(), batch_size=12):
        augmented = preprocess(search.augment(images, ids))
        mixed, soft = mixup(augmented.clone(), labels)
        assert mixed.shape == augmented.shape
        torch.testing.assert_close(soft.sum(1), torch.ones(12))
