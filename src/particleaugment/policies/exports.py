"""Policies for other libraries: the closest static policy that timm, torchvision or a plain list can express."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import singledispatch
from typing import Any, NamedTuple

from particleaugment.core.op_table import OPS, lookup
from particleaugment.policies.auto import PUBLISHED, AutoAugment
from particleaugment.policies.parse import _TIMM_WEIGHTS, TIMM_OPS, parse
from particleaugment.policies.policy import Policy, document, get_semantics
from particleaugment.policies.rand import Identity, RandAugment
from particleaugment.policies.snippets import TIMM_SNIPPET, TORCHVISION_OPS, TORCHVISION_SNIPPET
from particleaugment.policies.subpolicies import SubPolicies, SubPolicy
from particleaugment.policies.trivial import TrivialAugment
from particleaugment.util.hints import nearest_name

__all__ = ["TARGETS", "Export", "export"]

_COUNTS = 1000  # timm draws sub-policies uniformly: weights become repetitions, this many in all
_SIZE = (32, 32)  # for semantics that count in pixels
_ENHANCE = ("Color", "Contrast", "Brightness", "Sharpness")
_GEOMETRY_TOPS = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 0.45, "TranslateY": 0.45}
_TIMM_VARIANTS: Mapping[str, Mapping[str, str]] = {
    "timm": {},
    "timm-increasing": dict.fromkeys((*_ENHANCE, "Posterize", "Solarize"), "Increasing"),
    "timm-original": {"Posterize": "Original"},
    "timm-research": {"Posterize": "Increasing"},
}


class Export(NamedTuple):
    """A policy in another library's terms.

    Attributes:
        text: What to write: a short string, Python source or JSON.
        lost: What the other library cannot express, in one sentence.
    """

    text: str
    lost: str


def export(policy: Policy, to: str, epoch: int | None = None) -> Export:
    """Return the closest static policy that a library can express.

    Args:
        policy: Any policy; of a schedule, the policy of one epoch is taken.
        to: ``timm``, ``torchvision`` or ``json``.
        epoch: Which epoch; by default the last.

    >>> from particleaugment import parse
    >>> export(parse("rand-m9-n3-mstd0.5-inc1"), "timm")
    Export(text='rand-m9-n3-p0.5-mstd0.5-inc1\\n', lost='Nothing is lost.')
    """
    if to not in TARGETS:
        hint = nearest_name(to, TARGETS) or f"; the targets are {', '.join(TARGETS)}"
        raise ValueError(f"a policy cannot be exported to {to!r}{hint}")
    fixed, lost = policy.static(epoch)
    text, more = TARGETS[to](fixed)
    losses = [*lost, *more]
    return Export(text, f"Lost: {'; '.join(losses)}." if losses else "Nothing is lost.")


def _json(policy: Policy) -> tuple[str, list[str]]:
    return document(policy), []


# timm.


@singledispatch
def _timm(policy: Policy) -> tuple[str, list[str]]:
    raise _not_portable(policy)


@_timm.register
def _(policy: Identity) -> tuple[str, list[str]]:
    raise ValueError("the policy does nothing to an image: leave timm's --aa out")


@_timm.register
def _(policy: TrivialAugment) -> tuple[str, list[str]]:
    lost = ["the op set (timm's lacks Identity and adds Invert and SolarizeAdd)", "the 31 steps of the level"]
    lost += ["the wide ranges of the arguments"] if policy.space == "wide" else []
    return f"rand-m10-n{policy.n}-p1-mstd101-inc1\n", lost + _unknown_ops(policy.ops)


@_timm.register
def _(policy: SubPolicies) -> tuple[str, list[str]]:
    for head in ("original", "originalr", "v0", "v0r"):
        text = head + (f"-mstd{_decimal(policy.m_std)}" if policy.m_std else "")
        if not math.isinf(policy.m_std) and parse(text) == policy:
            return text + "\n", []
    return _timm_list(policy)


@_timm.register
def _(policy: RandAugment) -> tuple[str, list[str]]:
    top = get_semantics(policy.semantics).top
    scale = 10 / top
    level, spread = round(policy.m * scale), policy.m_std * scale
    parts = [f"rand-m{level}-n{policy.n}-p{_decimal(policy.p)}"]
    # timm takes a spread above 100 for infinity.
    parts += [f"mstd{101 if math.isinf(spread) else _decimal(min(spread, 100.0))}"] if spread else []
    parts += [f"mmax{max(1, round(policy.m_max * scale))}"] if policy.m_max is not None else []
    weighted = policy.op_weights == _TIMM_WEIGHTS
    parts += ["tweights"] if weighted else ["inc1"] if policy.semantics != "timm" else []
    text = "-".join(parts)
    parsed = parse(text)
    assert isinstance(parsed, RandAugment)
    sentences = {
        "m": f"the level {policy.m:g} of {top:g}, which becomes {level} of timm's 10",
        "semantics": f"the arguments of semantics {policy.semantics!r} ({parsed.semantics!r} is timm's)",
        "ops": f"the op set (timm's is {', '.join(TIMM_OPS)})",
        "m_std": f"the noise of {policy.m_std:g} on levels of {top:g}, which becomes {parsed.m_std:g} of timm's 10",
        "m_max": f"the highest level {policy.m_max or 0:g} of {top:g}, which becomes {parsed.m_max or 0:g} of timm's",
        "op_weights": "the ops' weights",
        "resample": "the one resampling filter (timm draws bilinear or bicubic)",
    }
    lost = [text for name, text in sentences.items() if getattr(policy, name) != getattr(parsed, name)]
    return text + "\n", lost + _unknown_ops(policy.ops)


def _timm_list(policy: SubPolicies) -> tuple[str, list[str]]:
    closest = _closest_string(policy)
    hint = f" (--aa {closest} comes closest, with every op alike)" if closest else ""
    lost = [f"the form of an --aa string: this is Python for timm's AutoAugment class{hint}"]
    rows, dropped = _converted(policy, lambda step: _timm_step(step, policy.semantics))
    lost += dropped
    counts = _repetitions(policy.weights, len(rows))
    if policy.weights is not None and len(set(policy.weights)) > 1:
        lost.append(f"weights finer than 1 in {sum(counts)}")
    hparams = '"img_mean": (128, 128, 128)'
    hparams += "" if policy.resample == "random" else ', "interpolation": Image.Resampling.BILINEAR'
    if policy.m_std:
        hparams += ', "magnitude_std": ' + ("math.inf" if math.isinf(policy.m_std) else repr(policy.m_std))
    return (
        TIMM_SNIPPET.format(
            imports="import math\n\n" if "math." in hparams else "",
            hparams=hparams,
            closest=f"# The closest --aa string, with every op alike: {closest}\n" if closest else "",
            counts=_wrapped(counts),
            rows=_lines(rows),
        ),
        lost,
    )


def _timm_step(step: tuple[str, float, float], semantics: str) -> tuple[str, float, float] | None:
    """One step in timm's names and levels, or None if timm has no such op."""
    name, probability, level = step
    if name not in TIMM_OPS:
        return None
    mapping = get_semantics(semantics)
    named = name + "Rel" if name.startswith("Translate") else name
    if semantics in _TIMM_VARIANTS:
        return named + _TIMM_VARIANTS[semantics].get(name, ""), probability, _short(level)
    argument = mapping.argument(name, level, 1, _SIZE)
    if name in _GEOMETRY_TOPS:
        level = abs(argument) / _GEOMETRY_TOPS[name] * 10
    elif name in _ENHANCE:
        signed = mapping.rule(name).signed
        named, level = (name + "Increasing", abs(argument - 1) / 0.09) if signed else (name, (argument - 0.1) / 0.18)
    elif name == "Posterize":
        bits = int(argument)
        named, level = ("Posterize", 2.5 * bits) if bits <= 4 else ("PosterizeOriginal", 2.5 * (bits - 4))
    elif name == "Solarize":
        # Half a step up, since timm cuts the threshold to a whole number.
        level = (math.ceil(argument) + 0.5) / 25.6
    elif name == "SolarizeAdd":
        level = (int(argument) + 0.5) / 11
    return named, probability, _short(min(max(level, 0.0), 10.0))


def _repetitions(weights: tuple[float, ...] | None, count: int) -> list[int]:
    """How often each sub-policy stands in a list that is drawn uniformly, by largest remainder."""
    if weights is None or len(set(weights)) == 1:
        return [1] * count
    shares = [weight / sum(weights) * _COUNTS for weight in weights]
    counts = [int(share) for share in shares]
    order = sorted(range(count), key=lambda i: counts[i] - shares[i])
    for i in order[: _COUNTS - sum(counts)]:
        counts[i] += 1
    return counts


def _closest_string(policy: SubPolicies) -> str:
    """As many ops an image at the mean level, where the levels are timm's; else nothing."""
    suffix = {"timm": "", "timm-increasing": "-inc1"}.get(policy.semantics)
    weights = policy.weights or (1.0,) * len(policy.sub_policies)
    steps = [(w * p, name, level) for w, row in zip(weights, policy.sub_policies) for name, p, level in row]
    ops_per_image = sum(p for p, _, _ in steps) / sum(weights)
    with_level = [(p, level) for p, name, level in steps if lookup(name).takes_argument]
    total = sum(p for p, _ in with_level)
    if suffix is None or ops_per_image < 0.005 or total == 0:
        return ""
    level = sum(p * level for p, level in with_level) / total
    n = math.ceil(ops_per_image)
    return f"rand-m{round(level)}-n{n}-p{ops_per_image / n:.2f}{suffix}"


# torchvision.


@singledispatch
def _torchvision(policy: Policy) -> tuple[str, list[str]]:
    raise _not_portable(policy)


@_torchvision.register
def _(policy: Identity) -> tuple[str, list[str]]:
    return _expression("Identity()"), []


@_torchvision.register
def _(policy: TrivialAugment) -> tuple[str, list[str]]:
    published = {*policy.ops} == {*TrivialAugment().ops}
    lost = [] if published else ["the op set (torchvision's is the published one)"]
    lost += [] if policy.space == "wide" else ["the standard ranges of the arguments (torchvision's are wide)"]
    lost += ["the random resampling filter"] if policy.resample == "random" else []
    call = "TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)"
    text = _expression(call if policy.n == 1 else f"Compose([v2.{call}] * {policy.n})")
    return text, lost + _unknown_ops(policy.ops)


@_torchvision.register
def _(policy: SubPolicies) -> tuple[str, list[str]]:
    for name in PUBLISHED:
        if name != "v0" and policy == AutoAugment(name).sub_policies:
            member = f"AutoAugmentPolicy.{name.upper()}"
            return _expression(f"AutoAugment(v2.{member}, interpolation=InterpolationMode.BILINEAR)"), []
    return _torchvision_list(policy)


@_torchvision.register
def _(policy: RandAugment) -> tuple[str, list[str]]:
    top = get_semantics(policy.semantics).top
    magnitude = min(30, round(policy.m / top * 30))
    sentences = {
        f"the level {policy.m:g} of {top:g}, which becomes {magnitude} of 30": policy.m / top * 30 != magnitude,
        f"the arguments of semantics {policy.semantics!r}": policy.semantics != "torchvision",
        "the op set (torchvision's has no Invert and no SolarizeAdd)": {*policy.ops} != {*TrivialAugment().ops},
        f"the probability {policy.p:g} of each drawn op (torchvision always applies it)": policy.p < 1,
        "the noise on the level": policy.m_std > 0,
        "the ops' weights": policy.op_weights is not None,
        "the random resampling filter": policy.resample == "random",
    }
    call = f"RandAugment(num_ops={policy.n}, magnitude={magnitude}, interpolation=InterpolationMode.BILINEAR)"
    return _expression(call), [text for text, applies in sentences.items() if applies] + _unknown_ops(policy.ops)


def _torchvision_list(policy: SubPolicies) -> tuple[str, list[str]]:
    rows, lost = _converted(policy, lambda step: _torchvision_step(step, policy.semantics))
    lost += ["Pillow's pixels on tensors, where torchvision rounds otherwise", "shifts of a part of a pixel"]
    lost += ["the noise on the levels"] if policy.m_std else []
    lost += ["the random resampling filter"] if policy.resample == "random" else []
    weights = policy.weights or (1.0,) * len(rows)
    return TORCHVISION_SNIPPET.format(weights=_wrapped([_short(w) for w in weights]), rows=_lines(rows)), lost


def _torchvision_step(step: tuple[str, float, float], semantics: str) -> tuple[str, float, float, float] | None:
    name, probability, level = step
    if name not in TORCHVISION_OPS:
        return None
    mapping = get_semantics(semantics)
    plus, minus = (_short(mapping.argument(name, level, sign, _SIZE)) for sign in (1, -1))
    if name == "Posterize" and plus < 1:
        return "Brightness", probability, 0.0, 0.0  # both are black, and Pillow 13 refuses 0 bits
    return name, probability, plus, minus


def _expression(call: str) -> str:
    filters = "from torchvision.transforms import InterpolationMode\n" if "InterpolationMode" in call else ""
    return f"{filters}from torchvision.transforms import v2\n\npolicy = v2.{call}\n"


TARGETS: Mapping[str, Callable[[Policy], tuple[str, list[str]]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "json": _json,
}
"""What a policy can be exported to."""


# What both lists share.


def _converted(
    policy: SubPolicies, convert: Callable[[tuple[str, float, float]], tuple[Any, ...] | None]
) -> tuple[list[list[tuple[Any, ...]]], list[str]]:
    """The sub-policies in other terms, without the steps that have none, and a sentence on what went."""
    rows, dropped = [], set()
    for sub_policy in policy.sub_policies:
        converted = [(step, convert((step[0], _short(step[1]), step[2]))) for step in _steps(sub_policy)]
        rows.append([new for _, new in converted if new is not None])
        dropped |= {step[0] for step, new in converted if new is None}
    lost = [f"{', '.join(sorted(dropped))} (it has no such op)"] if dropped else []
    if any(get_semantics(policy.semantics).rule(name).pixels for name in policy.ops if name not in dropped):
        lost.append(f"translations in pixels, which become their part of {_SIZE[0]}")
    return rows, lost


def _not_portable(policy: Policy) -> ValueError:
    known = "Identity, RandAugment, TrivialAugment or SubPolicies"
    return ValueError(f"a policy of kind {policy.kind!r} cannot be exported: its static() must return {known}")


def _unknown_ops(names: tuple[str, ...]) -> list[str]:
    """Say which ops are in neither timm's nor torchvision's op set."""
    unknown = [name for name in names if name not in OPS and name not in TIMM_OPS]
    return [f"{', '.join(unknown)} (not in its op set)"] if unknown else []


def _steps(sub_policy: SubPolicy) -> list[tuple[str, float, float]]:
    return [step for step in sub_policy if step[0] != "Identity" and step[1] > 0]


def _short(value: float) -> float:
    """Six digits are more than a policy knows."""
    return float(f"{value:.6g}")


def _decimal(value: float) -> str:
    """A number without an exponent, whose minus sign would end a section of timm's strings.

    >>> _decimal(1.0), _decimal(0.5), _decimal(1e-05)
    ('1', '0.5', '0.00001')
    """
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


def _lines(rows: Sequence[Sequence[tuple[Any, ...]]]) -> str:
    return "\n".join(f"    {list(row)!r}," for row in rows)


def _wrapped(values: Sequence[float]) -> str:
    return "\n".join(f"    {', '.join(map(repr, values[i : i + 12]))}," for i in range(0, len(values), 12))
