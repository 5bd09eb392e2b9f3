"""Noticing held-out samples among those that are trained on, whatever ids they come with."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from particleaugment.data.samples import Samples, to_uint8
from particleaugment.search.held_out import Division

__all__ = ["HeldOutCheck", "image_hashes"]

_WORDS = 1024
_MANY = 0.1  # of the held-out images; a few that the data set has twice do no harm


def image_hashes(images: Tensor) -> Tensor:
    """Return a hash of each image, int64 ``[B]``, on the images' device and without waiting for it.

    Of images above 4 KiB, words of four bytes at even distances count, so that large batches cost next to nothing.

    Args:
        images: Images, uint8 ``[B, C, H, W]``.

    >>> images = torch.arange(96, dtype=torch.uint8).reshape(2, 3, 4, 4)
    >>> hashes = image_hashes(images)
    >>> bool(hashes[0] == image_hashes(images[:1])), bool(hashes[0] == hashes[1])
    (True, False)
    """
    pixels = images.reshape(len(images), -1)
    if pixels.shape[1] % 4:
        pixels = functional.pad(pixels, (0, -pixels.shape[1] % 4))
    pixels = pixels.contiguous()
    if pixels.storage_offset() % 4:  # torch reads words at whole multiples of their size only
        pixels = pixels.clone()
    words = pixels.view(torch.int32)
    words = words[:, :: -(-words.shape[1] // _WORDS) or 1].to(torch.int64)
    # A sum of 32-bit words times random 64-bit factors, modulo 2**64. Words of 64 bits would not do: a difference in
    # their highest bits alone would leave only a few bits of the product.
    return (words * _factors(words.shape[1], words.device)).sum(1)


@lru_cache(maxsize=4)
def _factors(count: int, device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(count)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator, device="cpu").to(device)


class HeldOutCheck:
    """Finds held-out samples in the batches that an epoch trains on, by their ids and by their pixels.

    Ids say which samples are trained on, and a loop may make them up: an image that is a held-out one, pixel by pixel,
    is one all the same.

    Args:
        samples: All training samples.
        division: Says which are held out.
        say: Takes a sentence, once, where many held-out images are trained on as other samples.
    """

    def __init__(self, samples: Samples, division: Division, say: Callable[[str], None]):
        self._samples, self._division, self._say = samples, division, say
        self._held_out: Tensor | None = None
        self._hashes: Tensor | None = None
        self._wrong = torch.zeros((), dtype=torch.int64, device="cpu")
        self._suspects = torch.zeros(0, dtype=torch.bool, device="cpu")
        self._copies: dict[int, int] = {}  # samples that have the image of a held-out one, and its hash
        self._by_pixels = True

    def look(self, images: Tensor, ids: Tensor, epoch: int) -> None:
        """Look at a batch, or at one image, on its device and without waiting for it.

        Args:
            images: Images, uint8 ``[B, C, H, W]`` or ``[C, H, W]``.
            ids: The samples that they are said to be.
            epoch: The epoch that trains on them.
        """
        images, ids = images.reshape(-1, *images.shape[-3:]), ids.reshape(-1)
        if ids.device.type != "cpu":  # others are checked at once, where they are used
            if self._held_out is None or self._held_out.device != ids.device:
                self._held_out, self._wrong = self._division.held_out.to(ids.device), ids.new_zeros(())
            self._wrong += self._division.wrong(ids, epoch, self._held_out).sum()
        if self._division.split is None or not self._division.holds_out_in(epoch) or not self._by_pixels:
            return
        if self._hashes is None:
            hashes = torch.cat([self._hash_of(number) for number in self._division.split[1].tolist()])
            self._hashes = hashes.sort().values
        if self._hashes.device != images.device or not len(self._suspects):
            self._hashes = self._hashes.to(images.device)
            self._suspects = torch.zeros(len(self._samples), dtype=torch.bool, device=images.device)
        hashes = image_hashes(images)
        nearest = torch.searchsorted(self._hashes, hashes).clamp(max=len(self._hashes) - 1)
        same = self._hashes[nearest] == hashes  # torch.isin would wait for the device
        places = ids.to(images.device).clamp(0, len(self._samples) - 1)
        # A sample may come twice in a batch, so its marks are added up.
        marks = torch.zeros_like(self._suspects, dtype=torch.int32).index_add_(0, places, same.int())
        self._suspects |= marks > 0

    def refuse(self, epoch: int) -> None:
        """Raise a ValueError if a batch of an epoch had held-out samples; waits for the device.

        A data set may hold an image twice, so samples whose own image is the same as a held-out one are fine; where
        these are many, that is said. A data set that gives another image at each reading cannot be told by pixels.
        """
        wrong = int(self._wrong)
        if wrong:
            self._wrong.zero_()
            raise ValueError(self._division.complaint(f"{wrong} samples that were augmented are", epoch))
        if self._hashes is None:
            return
        suspects, known = self._suspects.nonzero()[:, 0].tolist(), set(self._hashes.tolist())
        self._suspects.zero_()
        hashes = {number: int(self._hash_of(number)) for number in suspects if number not in self._copies}
        others = [number for number, found in hashes.items() if found not in known]
        if others and self._reads_differ(known):
            self._by_pixels = False
        elif others:
            what = f"images were augmented with the ids of {len(others)} other samples, and some of these images are"
            raise ValueError(self._division.complaint(what, epoch))
        self._note_copies({number: found for number, found in hashes.items() if found in known}, len(known))

    def _reads_differ(self, known: set[int]) -> bool:
        """Whether held-out samples, read again, have other images."""
        assert self._division.split is not None
        return any(int(self._hash_of(number)) not in known for number in self._division.split[1].tolist())

    def _note_copies(self, copies: dict[int, int], images: int) -> None:
        before = len(set(self._copies.values()))
        self._copies |= copies
        copied = len(set(self._copies.values()))
        if before < _MANY * images <= copied:
            self._say(
                f"{copied} of {images} held-out images also occur among the training samples, so the filter measures "
                "on images that the network has trained on; remove the copies, or pass groups that keep them together"
            )

    def _hash_of(self, number: int) -> Tensor:
        return image_hashes(to_uint8(self._samples.item(number)[0])[None].cpu())
