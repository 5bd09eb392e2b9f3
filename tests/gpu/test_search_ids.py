"""A search whose ids come from the GPU: held-out samples are noticed, and losses are summed without waiting."""

import pytest
import torch
from toy import IMAGES, cross_entropy, network, preprocess, search_by

import particleaugment as pa

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def test_held_out_samples_are_noticed_at_the_step():
    search, model = search_by(pa.DifficultyFilter, measure_size=12), network().cuda()
    images = IMAGES.cuda()
    search.begin_epoch(1)
    ids = search.training_set().ids.cuda()
    search.augment(images[ids], ids)
    losses = torch.ones(len(ids), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        search.observe(ids, losses)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert search.state_dict()["observed"] == ((48.0, 48),)
    assert search.step(model, loss=cross_entropy, preprocess=preprocess).step == 1
    search.begin_epoch(2)
    search.augment(images, torch.arange(48, device="cuda"))
    with pytest.raises(ValueError, match="12 samples that were augmented are held out for measuring"):
        search.step(model, loss=cross_entropy, preprocess=preprocess)
