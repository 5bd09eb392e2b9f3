"""Policies from short strings: timm's own, and a few of ours."""

from __future__ import annotations

import math
import re

from particleaugment.core.op_table import AUTHORS_OPS
from particleaugment.policies.auto import PUBLISHED, AutoAugment, published
from particleaugment.policies.policy import Policy
from particleaugment.policies.rand import Identity, RandAugment
from particleaugment.policies.subpolicies import SubPolicies
from particleaugment.policies.trivial import TrivialAugment
from particleaugment.util.hints import nearest_name

__all__ = ["SHORT_STRINGS", "TIMM_OPS", "parse", "with_ops"]

TIMM_OPS: tuple[str, ...] = AUTHORS_OPS
"""The ops of timm's RandAugment, in its order."""

# timm's op weights for "tweights", in the order of TIMM_OPS.
_TIMM_WEIGHTS = (0.25, 0.05, 0.05, 3, 0.05, 0.05, 0.05, 0.25, 0.05, 0.05, 0.25, 2, 2, 1, 1)
_TIMM_AUTO = {
    "original": ("imagenet", "timm-original"),
    "originalr": ("imagenet", "timm-research"),
    "v0": ("v0", "timm"),
    "v0r": ("v0", "timm-research"),
}
_OWN = ("none", "trivial", "trivial-standard", "randaugment")
_EXAMPLES = (
    "rand-m9-n3-mstd0.5-inc1, original, v0 (as in timm), randaugment-n3-m4, trivial, trivial-standard, "
    "autoaugment-cifar10, none"
)


SHORT_STRINGS: dict[str, str] = {
    "learned": "learned while training, by the filter (training runs only)",
    "schedule:FILE": "the policies of a recorded run, replayed (training runs only)",
    "file:FILE": "any policy file (training runs only)",
    "none": "only the always-on transforms",
    "trivial": "TrivialAugment, wide space; trivialaugment is the same",
    "trivial-n2": "two of TrivialAugment's ops per image; any number",
    "trivial-standard": "TrivialAugment, standard space",
    "randaugment-n3-m4": "RandAugment on the paper's ops: n ops at level m, optionally -p0.5",
    "autoaugment-cifar10": "AutoAugment as published for CIFAR-10; also -imagenet, -svhn",
    "rand-m9-n3-inc1": "timm's RandAugment strings, with mstd, mmax, p and tweights",
    "original": "timm's AutoAugment strings; also originalr, v0, v0r, each with -mstd0.5",
}
"""The strings that a run's ``policy`` setting takes, with what they mean."""


def parse(text: str) -> Policy:
    """Return the policy that a short string describes.

    timm's strings give what timm does with them: its op set (Invert, no Identity), probability 0.5 unless ``p`` says
    otherwise, and a filter drawn between bilinear and bicubic per op. Our own are ``none``, ``trivial`` (or
    ``trivialaugment``), ``trivial-n2`` (two such ops), ``trivial-standard``, ``autoaugment-cifar10`` (or ``-imagenet``,
    ``-svhn``) and ``randaugment-n3-m4`` with an optional ``-p0.5`` (the paper's ops, ``timm-increasing``, probability
    1).

    >>> parse("rand-m9-n3-inc1").semantics
    'timm-increasing'
    >>> parse("none")
    Identity()
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a policy string, got {type(text).__name__}")
    head, *sections = text.split("-")
    if head == "rand":
        return _timm_rand(text, sections)
    if head in _TIMM_AUTO:
        return _timm_auto(text, head, sections)
    if head == "randaugment":
        return _own_rand(text, sections)
    if text in ("none", "identity"):
        return Identity()
    if text in ("trivial", "trivialaugment", "trivial-wide", "trivialaugment-wide"):
        return TrivialAugment()
    if head in ("trivial", "trivialaugment") and sections and re.fullmatch(r"n\d+", sections[0]):
        return TrivialAugment(n=_whole(text, "n", _options(text, sections, ("n",))["n"]))
    if text in ("trivial-standard", "trivialaugment-standard"):
        return TrivialAugment("standard")
    if head == "autoaugment" and len(sections) == 1 and sections[0] in PUBLISHED:
        return AutoAugment(sections[0])
    if head in ("augmix", "3a"):
        raise ValueError(f"{text!r} needs timm itself: {head} mixes or blurs images, which no program here can express")
    if text.startswith(("schedule:", "file:")) or text.endswith(".json"):
        raise ValueError(
            f"{text!r} names a file; read it with pa.load_policy(PATH), or pa.Schedule.load(PATH) for a run's policies"
        )
    names = (*_TIMM_AUTO, *_OWN, "rand", *(f"autoaugment-{name}" for name in PUBLISHED if name != "v0"))
    hint = nearest_name(text, names) or nearest_name(head, names)
    raise ValueError(f"{text!r} is not a policy string{hint}; examples: {_EXAMPLES}")


def with_ops(policy: Policy, text: str, ops: tuple[str, ...]) -> Policy:
    """Return a policy that draws from other ops; the one that does nothing is returned as it is.

    Args:
        policy: What :func:`parse` made of the text.
        text: The text, for errors.
        ops: Names of the ops.

    >>> with_ops(parse("trivial"), "trivial", ("Rotate", "Color")).ops
    ('Rotate', 'Color')
    """
    try:
        return policy.with_ops(ops)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy={text} cannot draw from these ops: {error}") from None


def _options(text: str, sections: list[str], known: tuple[str, ...]) -> dict[str, float]:
    options: dict[str, float] = {}
    for section in sections:
        match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)", section)
        if match is None or match[1] not in known:
            raise ValueError(f"in {text!r} the section {section!r} is not one of {', '.join(known)} and a number")
        if match[1] in options:
            raise ValueError(f"in {text!r} the option {match[1]!r} is given twice")
        options[match[1]] = float(match[2])
    return options


def _whole(text: str, name: str, value: float) -> int:
    if not value.is_integer():
        raise ValueError(f"in {text!r} the option {name!r} must be a whole number, got {value:g}")
    return int(value)


def _timm_rand(text: str, sections: list[str]) -> RandAugment:
    weighted = "tweights" in sections
    transforms = [section for section in sections if section.startswith("t") and section != "tweights"]
    if transforms:
        raise ValueError(
            f"in {text!r} the op set {transforms[0]!r} blurs images; only 'tweights' can be expressed here"
        )
    rest = [section for section in sections if section != "tweights"]
    options = _options(text, rest, ("m", "n", "p", "mstd", "mmax", "inc"))
    if "inc" in options and options["inc"] == 0:
        raise ValueError(f"in {text!r} omit inc0: versions of timm differ in whether it means inc1")
    highest = _whole(text, "mmax", options["mmax"]) if "mmax" in options else None
    if highest is not None and highest <= 0:
        raise ValueError(f"in {text!r} the option 'mmax' must be positive")
    spread = options.get("mstd", 0.0)
    level = _whole(text, "m", options.get("m", 10.0))
    return RandAugment(
        n=_whole(text, "n", options.get("n", 2.0)),
        m=level,
        p=options.get("p", 0.5),
        semantics="timm-increasing" if "inc" in options or weighted else "timm",
        ops=TIMM_OPS,
        m_std=math.inf if spread > 100 else spread,
        m_max=highest or (10.0 if level > 10 else None),
        op_weights=_TIMM_WEIGHTS if weighted else None,
        resample="random",
    )


def _timm_auto(text: str, head: str, sections: list[str]) -> SubPolicies:
    options = _options(text, sections, ("mstd",))
    name, semantics = _TIMM_AUTO[head]
    return SubPolicies(published(name), semantics, m_std=options.get("mstd", 0.0), resample="random")


def _own_rand(text: str, sections: list[str]) -> RandAugment:
    options = _options(text, sections, ("m", "n", "p"))
    return RandAugment(n=_whole(text, "n", options.get("n", 2.0)), m=options.get("m", 9.0), p=options.get("p", 1.0))
