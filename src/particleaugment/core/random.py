"""Draws as pure functions of their key.

``uniform(seed, stream, epoch, ids, slots)`` is Philox4x32-10 evaluated at a counter made of the key, in int64 torch
operations, so the same key gives the same bits on every device, in every batch, worker, rank and after every resume.
There is no generator object and no state. The counter words are

    (id low 32 bits, id high 32 bits, epoch, stream << 24 | slot >> 1)

and the key words are the two halves of the seed. One evaluation yields four 32-bit words, that is two 53-bit uniforms:
even slots take the first pair, odd slots the second.

:func:`standard_normal`, :func:`log`, :func:`exp` and :func:`sqrt` use nothing but additions, multiplications and
divisions of tensors, each correctly rounded by IEEE 754, so that they too are equal bit for bit on CPU and GPU. Library
logarithms are not, nor is torch's square root on a CPU (MKL's is off by an ulp now and then), nor a division by a plain
number (CUDA multiplies by its reciprocal).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["Stream", "exp", "log", "philox4x32", "sqrt", "standard_normal", "uniform", "uniforms"]


class Stream(IntEnum):
    """Named, mutually independent sources of draws; a stream's number is part of every key and never changes."""

    CROP = 1
    FLIP = 2
    ERASE = 3
    PARTICLE = 4
    OP = 5
    SIGN = 6
    ORDER = 7
    NOISE = 8
    RESAMPLE = 9
    SPLIT = 10
    GATE = 11
    LEVEL = 12
    INTERPOLATION = 13
    INIT = 14
    SHUFFLE = 15
    MODEL = 16
    JITTER = 17
    SHAKE = 18
    PLACE = 19


_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
MAX_SLOTS = 1 << 24
CHUNK = 1 << 14
"""Evaluations at once on a CPU: they stay in its cache, and no larger than what torch's loops do on one thread. More
threads gain little here, and where processes share the cores their hand-overs cost a hundred times the work."""


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int | Tensor, int | Tensor]
) -> tuple[Tensor, ...]:
    """Return the four output words of Philox4x32-10; every word is an int64 tensor holding an unsigned 32-bit value.

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(int(word)) for word in philox4x32((zero,) * 4, (zero,) * 2)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # A product of two 32-bit words may pass 2^63: int64 wraps, and masking after the shift restores the high word.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = (product0 >> 32) & _MASK, (product1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _MASK, high0 ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int | Tensor, stream: Stream, epoch: int | Tensor, ids: Tensor, slots: int) -> Tensor:
    """Return float64 uniforms in [0, 1) of shape ``[*ids.shape, slots]``.

    >>> ids = torch.tensor([7, 123])
    >>> whole = uniform(0, Stream.OP, epoch=3, ids=ids, slots=2)
    >>> part = uniform(0, Stream.OP, epoch=3, ids=ids[1:], slots=2)
    >>> torch.equal(whole[1:], part)
    True
    """
    return uniforms(seed, epoch, ids, {stream: slots})[stream]


def uniforms(seed: int | Tensor, epoch: int | Tensor, ids: Tensor, slots: Mapping[Stream, int]) -> dict[Stream, Tensor]:
    """Return :func:`uniform` for several streams at once, in a single evaluation of the generator."""
    ids = checked_ids(ids)
    blocks = {stream: (count + 1) // 2 for stream, count in slots.items()}
    for stream, count in slots.items():
        if not 0 <= count <= MAX_SLOTS:
            raise ValueError(f"a stream holds 0 to {MAX_SLOTS} slots, got {count} for {stream.name.lower()}")
    last_word = _last_words(tuple(blocks.items()), ids.device)
    column = ids.unsqueeze(-1)
    # A seed given as a number keeps the key schedule out of tensor arithmetic.
    seed_word: int | Tensor = _checked_number("seed", seed, 63) if not isinstance(seed, Tensor) else seed
    if isinstance(seed_word, Tensor):
        seed_word = _word("seed", seed_word, ids.device, 63)
    epoch_word = _word("epoch", epoch, ids.device, 32)
    key = (seed_word & _MASK, (seed_word >> 32) & _MASK)
    if ids.device.type == "cpu" and ids.numel() * len(last_word) > CHUNK:
        values = torch.empty(ids.numel(), len(last_word), 2, dtype=torch.float64, device="cpu")
        rows = max(1, CHUNK // len(last_word))
        for place, part in zip(values.split(rows), column.reshape(-1, 1).split(rows)):
            place.copy_(_evaluated(part, epoch_word, last_word, key))
        values = values.view(*ids.shape, -1, 2)
    else:
        values = _evaluated(column, epoch_word, last_word, key)
    result, start = {}, 0
    for stream, count in slots.items():
        chunk = values[..., start : start + blocks[stream], :]
        result[stream] = chunk.reshape(*ids.shape, 2 * blocks[stream])[..., :count]
        start += blocks[stream]
    return result


def _evaluated(ids: Tensor, epoch: Tensor, last_word: Tensor, key: tuple[int | Tensor, int | Tensor]) -> Tensor:
    """Return the two uniforms of every evaluation, ``[..., evaluations, 2]``, for ids of shape ``[..., 1]``."""
    words = philox4x32((ids & _MASK, ids >> 32, epoch, last_word), key)
    pairs = torch.stack([(words[0] << 21) | (words[1] >> 11), (words[2] << 21) | (words[3] >> 11)], dim=-1)
    return pairs.to(torch.float64) * 2.0**-53


@lru_cache(maxsize=1024)
def _last_words(blocks: tuple[tuple[Stream, int], ...], device: torch.device) -> Tensor:
    """The counter's last word for each evaluation; cached, so that a captured graph copies nothing from the host."""
    words = [(int(stream) << 24) + block for stream, count in blocks for block in range(count)]
    return torch.tensor(words, dtype=torch.int64, device=device)


def checked_ids(ids: Tensor) -> Tensor:
    """Return sample ids as they are, or raise if they are not int64 or, on the CPU, if one is negative."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64:
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"sample ids must be an int64 tensor, got {kind}; use torch.tensor([...], dtype=torch.int64)")
    if ids.is_meta or ids.is_nested or ids.layout is not torch.strided:
        raise TypeError("sample ids must be an ordinary tensor with numbers in it, not sparse, nested or meta")
    if ids.device.type == "cpu" and ids.numel() and int(ids.min()) < 0:
        raise ValueError(
            f"sample ids must not be negative, got {int(ids.min())}; use each sample's index in its data set"
        )
    return ids


def checked_seed(seed: int) -> int:
    """Return a seed as it is, or raise unless it is a whole number below 2^63."""
    return _checked_number("seed", seed, 63, "an int")


def checked_epoch(epoch: int) -> int:
    """Return an epoch as it is, or raise unless it is a whole number below 2^32."""
    return _checked_number("epoch", epoch, 32, "an int")


def _word(name: str, value: int | Tensor, device: torch.device, bits: int) -> Tensor:
    if isinstance(value, Tensor):
        if value.dtype != torch.int64 or value.dim() != 0:
            raise TypeError(
                f"{name} must be an int or a 0-d int64 tensor, got {value.dtype} of shape {tuple(value.shape)}"
            )
        return value.to(device)
    return torch.full((), _checked_number(name, value, bits), dtype=torch.int64, device=device)


def _checked_number(name: str, value: int, bits: int, kinds: str = "an int or a 0-d int64 tensor") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be {kinds}, got {type(value).__name__}")
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{name} must be in 0..2^{bits}-1, got {value}")
    return value


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive float64 numbers, the same bits on every device (error below 5e-16 relative)."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(low, mantissa * 2, mantissa)
    power = exponent.to(torch.float64) - low.to(torch.float64)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = torch.full_like(s, 1 / 25)
    for n in range(23, 0, -2):
        series = series * square
        series = series + 1 / n
    return power * math.log(2) + 2 * (s * series)


def exp(x: Tensor) -> Tensor:
    """Exponential of float64 numbers of moderate size (absolute value up to 16), the same bits on every device."""
    small = x * (1 / 256)
    series = torch.ones_like(x)
    for n in range(10, 0, -1):
        series = series * small
        series = series * (1 / n)
        series = series + 1
    for _ in range(8):
        series = series * series
    return series


def sqrt(x: Tensor) -> Tensor:
    """Square root of positive normal float64 numbers by Newton's method, the same bits on every device."""
    # Halving the exponent, in the bits, starts within 6 % of the root; five steps square that error to nothing.
    root = ((x.contiguous().view(torch.int64) >> 1) + (1023 << 51)).view(torch.float64)
    for _ in range(5):
        root = (root + x / root) * 0.5
    return root


# Coefficients of Wichura's algorithm AS 241 (PPND16): numerator and denominator, highest power first.
CENTRAL = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4)
    + (1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4)
    + (5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
MIDDLE = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0)
    + (3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1)
    + (6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2)
    + (2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4)
    + (1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Tensor) -> Tensor:
    parts = []
    for polynomial in coefficients:
        value = torch.full_like(x, polynomial[0])
        for coefficient in polynomial[1:]:
            value = value * x
            value = value + coefficient
        parts.append(value)
    return parts[0] / parts[1]


def standard_normal(u: Tensor) -> Tensor:
    """Map uniforms from [0, 1) to standard normal numbers by the inverse distribution function.

    >>> [round(float(z), 6) for z in standard_normal(torch.tensor([0.5, 0.975, 0.001], dtype=torch.float64))]
    [0.0, 1.959964, -3.090232]
    """
    p = u.clamp(min=2.0**-54)
    q = p - 0.5
    tail = log(torch.minimum(p, 1 - p))
    r = sqrt(-tail)
    outside = torch.where(r <= 5, _ratio(MIDDLE, r - 1.6), _ratio(FAR, r - 5))
    central = q * _ratio(CENTRAL, 0.180625 - q * q)
    return torch.where(q.abs() <= 0.425, central, torch.where(q < 0, -outside, outside))
