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


def gap_search(epochs=10, **settings):
    """A search by the gap filter that has said which samples to train on."""
    defaults = {"num_particles": 5, "seed": 7, "measure_size": 12, "epochs": epochs}
    search = toy.search_by(pa.GapFilter, **(defaults | settings))
    search.training_ids(LABELS)
    return search


def step(search, model, optimizer, **changes):
    arguments = {"dataset": pictures(), "loss": cross_entropy, "preprocess": preprocess, "batch_size": 8}
    return search.step(model=model, optimizer=optimizer, **(arguments | changes))


def train_epoch(search, model, optimizer, epoch, with_ids=True):
    images, labels = pictures()
    search.set_epoch(epoch)
    model.train()
    for ids in torch.arange(len(images)).split(16):
        x = search.augment(images[ids], ids if with_ids else None)
        optimizer.zero_grad()
        cross_entropy(model(preprocess(x)), labels[ids]).mean().backward()
        optimizer.step()


def run_epochs(search, model, optimizer, epochs, with_ids=True):
    records = []
    for epoch in epochs:
        train_epoch(search, model, optimizer, epoch, with_ids)
        records.append(step(search, model, optimizer))
    return records
