"""A toy problem for loops of every framework: 48 images whose class is their brightest channel."""

import inspect

import torch
from torch import nn

import particleaugment as pa

LABELS = torch.arange(48) % 3
IMAGES = torch.randint(0, 120, (48, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
IMAGES[torch.arange(48), LABELS] += 100

SEARCH_SETTINGS = set(inspect.signature(pa.ParticleAugment).parameters) - {"filter", "train_set"}

cross_entropy = nn.CrossEntropyLoss(reduction="none")


def preprocess(images):
    return images.float() / 255 - 0.5


def step(search, model, optimizer, **more):
    """Augment an image in the search's epoch, or in the next if that is over, and end it with a filter step.

    Where the loop has observed no loss in the epoch, the image's is 1.
    """
    if search.epoch == 0 or search.epoch_ended:
        search.begin_epoch(search.epoch + 1)
    augment_one(search)
    if not search.state_dict()["observed"]:
        search.observe(search.training_set().ids[:1], torch.ones(1, device="cpu"))
    given = {"loss": cross_entropy, "preprocess": preprocess, "optimizer": optimizer, "batch_size": 12}
    return search.step(model, **(given | more))


def augment_one(search, images=IMAGES):
    ids = search.training_set().ids[:1]
    search.augment(images[ids], ids)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(384, 3))


def search_of(**settings):
    """A search by the paper's filter; settings of the filter and of the search together."""
    defaults = {"num_particles": 4, "nonzero": 2, "m": 4, "seed": 7, "clone_size": 24, "measure_size": 12}
    return search_by(pa.PaperFilter, **(defaults | settings))


def search_by(kind, data=(IMAGES, LABELS), **settings):
    """A search by a filter of this class; settings of the filter and of the search together."""
    own = {name: settings.pop(name) for name in list(settings) if name in SEARCH_SETTINGS}
    return pa.ParticleAugment(data, filter=kind(**settings), **({"epochs": 10} | own))


def search_by_training_loss(**settings):
    """A search by a filter that needs the training losses, and the list of those that its steps were given."""
    losses = []

    class Noting(pa.DifficultyFilter):
        def updated(self, state, training_loss, *others, **named):
            losses.append(training_loss)
            return super().updated(state, training_loss, *others, **named)

    return search_by(Noting, **({"measure_size": 12} | settings)), losses


def indexed():
    return pa.IndexedDataset((IMAGES, LABELS))


class Convolutional(nn.Module):
    """A network of one's own that speaks the language of Hugging Face's Trainer."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, pixel_values, labels=None):
        from transformers.modeling_outputs import ImageClassifierOutput

        logits = self.network(pixel_values)
        loss = None if labels is None else cross_entropy(logits, labels).mean()
        return ImageClassifierOutput(loss=loss, logits=logits)
