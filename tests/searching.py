"""What the tests of the search share: a search and a network on the toy data, its steps and its epochs."""

import torch
import toy
from toy import IMAGES, LABELS, cross_entropy, network, preprocess

import particleaugment as pa


def pictures():
    return IMAGES, LABELS


def learning():
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def search_of(**settings):
    return toy.search_of(**({"num_particles": 5} | settings))


def difficulty_search(epochs=10, **settings):
    """A search by the difficulty filter, which holds samples out until the last fifth."""
    return toy.search_by(
        pa.DifficultyFilter, **({"seed": 7, "measure_size": 12, "start": 1.0, "epochs": epochs} | settings)
    )


def step(search, model, optimizer, **changes):
    return toy.step(search, model, optimizer, **({"batch_size": 8} | changes))


def train_epoch(search, model, optimizer, epoch):
    images, labels = pictures()
    search.begin_epoch(epoch)
    model.train()
    for ids in search.training_set().ids.split(16):
        x = search.augment(images[ids], ids)
        optimizer.zero_grad()
        losses = cross_entropy(model(preprocess(x)), labels[ids])
        search.observe(ids, losses)
        losses.mean().backward()
        optimizer.step()


def run_epochs(search, model, optimizer, epochs):
    records = []
    for epoch in epochs:
        train_epoch(search, model, optimizer, epoch)
        records.append(step(search, model, optimizer))
    return records
