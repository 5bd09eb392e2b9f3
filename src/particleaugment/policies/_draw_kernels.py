"""One sample's draws, number by number: the same bits as the policies' tensor arithmetic.

Compiled where Numba is installed, and otherwise run as they stand: so tables are flat, arrays or lists, and whole
numbers are masked where a machine word would wrap. Nothing here may be reordered: every product and sum rounds as in
:mod:`particleaugment.core.random` and :mod:`particleaugment.core.semantics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from particleaugment.core.op_table import lookup
from particleaugment.core.random import CENTRAL, FAR, MIDDLE, Stream
from particleaugment.policies.tables import Draw

try:
    from particleaugment.executors._compiled import claim, unowned
    from particleaugment.executors._compiled import compiled as _compile
    from particleaugment.executors._team import run_by_team
except ImportError:
    COMPILED = False

    def _compile(function: Callable[..., Any]) -> Any:
        return function
else:
    COMPILED = True

_MASK = 0xFFFFFFFF
_TINY = 2.0**-53
_CUTOUT = lookup("Cutout").index
_OP, _SIGN, _GATE, _LEVEL = int(Stream.OP), int(Stream.SIGN), int(Stream.GATE), int(Stream.LEVEL)
_ORDER, _PARTICLE = int(Stream.ORDER), int(Stream.PARTICLE)
_INTERPOLATION, _PLACE = int(Stream.INTERPOLATION), int(Stream.PLACE)
_RANDOM_OPS, _RANDOM_LEVELS, _ROWS = int(Draw.RANDOM_OPS), int(Draw.RANDOM_LEVELS), int(Draw.ROWS)
_LOG_2, _ROOT_HALF = math.log(2), math.sqrt(0.5)

KIND, SLOTS, CHOICES, LEVELS, ROWS, GATED, CODED, ORDERED, WEIGHTED, PLACED, COLOUR = range(11)
"""Places in a plan's whole numbers."""
TOP, SCALE, BASE, OF_SIDE, PIXELS, DOWN, LOW, HIGH, SIGNED, MIRRORED, TRUNCATES, ROUNDS, TURNS = range(13)
"""Places in an op's rule."""
RULE = 13
_TOGETHER = 16  # samples that a thread draws at a time: their rows share no cache line with another thread's


@_compile
def _uniforms(seed: int, epoch: int, id: int, stream: int, count: int, start: int, out: Any) -> None:
    """Write ``count`` uniforms of a stream from ``out[start]`` on; Philox4x32-10, as ``core.random.philox4x32``."""
    for block in range((count + 1) // 2):
        c0, c1, c2, c3 = id & _MASK, id >> 32, epoch, (stream << 24) + block
        k0, k1 = seed & _MASK, (seed >> 32) & _MASK
        for _ in range(10):
            product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c1, c2, c3 = (
                ((product1 >> 32) & _MASK) ^ c1 ^ k0,
                product1 & _MASK,
                ((product0 >> 32) & _MASK) ^ c3 ^ k1,
                product0 & _MASK,
            )
            k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
        out[start + 2 * block] = float((c0 << 21) | (c1 >> 11)) * _TINY
        if 2 * block + 1 < count:
            out[start + 2 * block + 1] = float((c2 << 21) | (c3 >> 11)) * _TINY


@_compile
def _chosen(u: float, options: int) -> int:
    return min(int(u * options), options - 1)


@_compile
def _interval(u: float, edges: Any, start: int, count: int) -> int:
    """The first interval whose upper edge is above a uniform."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if edges[start + middle] > u:
            high = middle
        else:
            low = middle + 1
    return low


@_compile
def _log(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    power = float(exponent)
    if mantissa < _ROOT_HALF:
        mantissa, power = mantissa * 2, power - 1.0
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = 1 / 25
    for n in range(23, 0, -2):
        series = series * square
        series = series + 1 / n
    return power * _LOG_2 + 2 * (s * series)


@_compile
def _sqrt(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    bits = ((exponent + 1022) << 52) + int((mantissa * 2 - 1) * 4503599627370496.0)
    halved = (bits >> 1) + (1023 << 51)
    root = math.ldexp(1.0 + (halved & ((1 << 52) - 1)) * 2.0**-52, (halved >> 52) - 1023)
    for _ in range(5):
        root = (root + x / root) * 0.5
    return root


@_compile
def _polynomial(coefficients: Any, x: float) -> Any:
    value = coefficients[0]
    for i in range(1, 8):
        value = value * x
        value = value + coefficients[i]
    return value


_CENTRAL_0, _CENTRAL_1 = CENTRAL
_MIDDLE_0, _MIDDLE_1 = MIDDLE
_FAR_0, _FAR_1 = FAR


@_compile
def _normal(u: float) -> Any:
    p = max(u, 2.0**-54)
    q = p - 0.5
    if abs(q) <= 0.425:
        square = 0.180625 - q * q
        return q * (_polynomial(_CENTRAL_0, square) / _polynomial(_CENTRAL_1, square))
    r = _sqrt(-_log(min(p, 1 - p)))
    if r <= 5:
        outside = _polynomial(_MIDDLE_0, r - 1.6) / _polynomial(_MIDDLE_1, r - 1.6)
    else:
        outside = _polynomial(_FAR_0, r - 5) / _polynomial(_FAR_1, r - 5)
    return -outside if q < 0 else outside


@_compile
def _argument(rules: Any, choice: int, level: float, sign: float, height: int, width: int) -> Any:
    """``Semantics.arguments``, for one op."""
    at = choice * RULE
    side = float(height if rules[at + DOWN] > 0 else width)
    of_side = rules[at + OF_SIDE] > 0
    share = level / rules[at + TOP]
    scaled = share * (rules[at + SCALE] * side if of_side else rules[at + SCALE])
    if rules[at + TRUNCATES] > 0:
        nudge = 1.0 if scaled > 0 else -1.0 if scaled < 0 else 0.0
        scaled = float(int(scaled + nudge * 1e-9))
    elif rules[at + ROUNDS] > 0:
        scaled = _rounded(scaled)
    scaled = scaled / (side if of_side or rules[at + PIXELS] > 0 else 1.0)
    if rules[at + SIGNED] > 0:
        scaled = scaled * sign
    base = rules[at + BASE] * sign if rules[at + MIRRORED] > 0 else rules[at + BASE]
    argument = base + scaled
    if rules[at + TURNS] > 0:
        argument = 180.0 - 90.0 * sign if share + 1e-9 < 2.0 / 3.0 else 180.0
    return min(max(argument, rules[at + LOW]), rules[at + HIGH])


@_compile
def _rounded(value: float) -> float:
    """To the nearest whole number, and halves to the even one."""
    whole = math.floor(value)
    rest = value - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2 == 1):
        whole += 1
    return float(whole)


@_compile
def _span(side: float, place: float, length: int, whole_centre: bool) -> tuple[int, int]:
    """``semantics._span``, for one square."""
    if whole_centre:
        half = int(_rounded(side)) // 2
        centre = min(int(place * length), length - 1)
        return max(centre - half, 0), min(centre + half, length)
    if not side > 0:
        return 0, 0
    middle = length + (1.0 - length) * place
    start = int(max(middle - side / 2, 0.0))
    end = int(min(start + side, float(length))) + 1
    return start, min(end, length)


@_compile
def _without_replacement(u: Any, rates: Any, count: int, slots: int, chosen: Any) -> None:
    """The first ``slots`` of independent exponentials with some rates, of equals the first."""
    for i in range(count):
        u[i] = -_log(max(1 - u[i], 2.0**-54)) / rates[i]
    _in_order(u, 0, count, slots, chosen)


@_compile
def _in_order(keys: Any, start: int, count: int, slots: int, chosen: Any) -> None:
    """Write the places of the ``slots`` smallest keys, in rising order, of equals the first; keys are used up."""
    for k in range(slots):
        best = 0
        for i in range(1, count):
            if keys[start + i] < keys[start + best]:
                best = i
        chosen[k] = best
        keys[start + best] = math.inf


@_compile
def draw(
    whole: Any, spread: float, highest: float, ops: Any, rules: Any, names: Any, level: Any, gate: Any, edges: Any,
    seed: int, epoch: int, id: int, height: int, width: int, code: int, u: Any, chosen: Any, op: Any, arg: Any,
    codes: Any, patch: Any,
) -> None:  # fmt: skip
    """Draw one sample's program into ``op``, ``arg``, ``codes`` and ``patch``.

    Args:
        whole: The plan's whole numbers.
        spread: Standard deviation of the levels.
        highest: Highest level after noise.
        ops: Op indices, by choice.
        rules: Rules of the ops, by choice.
        names: Choice by row and slot, for sub-policies.
        level: Levels: one, by choice of a level, by slot, or by row and slot.
        gate: Probabilities that an op is applied: one, by slot and choice, or by row and slot.
        edges: Upper edges of the rows' intervals, or the rates of the ops where those are weighted.
        seed: The seed.
        epoch: The epoch.
        id: The sample's id.
        height: Height of the image.
        width: Its width.
        code: Filter of slots that do not draw their own.
        u: Room for uniforms.
        chosen: Room for a number per slot.
        op: Where op indices are written.
        arg: Where arguments are written.
        codes: Where filters are written.
        patch: Where rectangles are written, five numbers per slot, if any op is Cutout.
    """
    kind, slots, choices, rows = whole[KIND], whole[SLOTS], whole[CHOICES], whole[ROWS]
    row, first, signs, gates, places = 0, 0, slots, 2 * slots, 3 * slots
    if kind in (_RANDOM_OPS, _RANDOM_LEVELS):
        if whole[WEIGHTED]:
            _uniforms(seed, epoch, id, _OP, choices, 0, u)
            _without_replacement(u, edges, choices, slots, chosen)
        else:
            _uniforms(seed, epoch, id, _OP, slots, 0, u)
            for k in range(slots):
                chosen[k] = _chosen(u[k], choices)
    elif kind == _ROWS:
        _uniforms(seed, epoch, id, _OP, 1, 0, u)
        row = _interval(u[0], edges, 0, rows) if whole[WEIGHTED] else _chosen(u[0], rows)
        first = row * slots
    else:
        _uniforms(seed, epoch, id, _PARTICLE, 1, 0, u)
        first = _interval(u[0], edges, 0, rows) * slots
    if whole[GATED]:
        gating = _GATE if kind in (_RANDOM_OPS, _RANDOM_LEVELS, _ROWS) else _OP
        _uniforms(seed, epoch, id, gating, slots, gates, u)
    _uniforms(seed, epoch, id, _SIGN, slots, signs, u)
    if kind == _RANDOM_LEVELS or spread > 0:
        _uniforms(seed, epoch, id, _LEVEL, slots, 0, u)
    if whole[PLACED]:
        _uniforms(seed, epoch, id, _PLACE, 2 * slots, places, u)
    for k in range(slots):
        entry, level_at, gate_at = k, 0, 0
        if kind == _ROWS:
            entry, level_at, gate_at = names[first + k], first + k, first + k
        elif kind == _RANDOM_OPS:
            entry = chosen[k]
        elif kind == _RANDOM_LEVELS:
            entry, gate_at = chosen[k], k * choices + chosen[k]
            level_at = _chosen(u[k], whole[LEVELS])
        else:
            level_at, gate_at = k, first + k
        op[k], arg[k] = 0, 0.0
        if whole[PLACED]:
            for i in range(5):
                patch[5 * k + i] = 0
        gate_drawn = 0 if kind == _RANDOM_LEVELS else k  # there, one draw says how many slots are applied
        if whole[GATED] and not u[gates + gate_drawn] < gate[gate_at]:
            continue
        value = level[level_at]
        if spread > 0 and kind != _RANDOM_LEVELS:
            value = u[k] * value if spread == math.inf else value + _normal(u[k]) * spread
        value = min(max(value, 0.0), highest)
        sign = 1.0 if u[signs + k] < 0.5 else -1.0
        op[k] = ops[entry]
        arg[k] = _argument(rules, entry, value, sign, height, width)
        if whole[PLACED] and ops[entry] == _CUTOUT:
            side, where = arg[k] * width, 5 * k
            left, right = _span(side, u[places + 2 * k], width, whole[PLACED] == 2)
            top, bottom = _span(side, u[places + 2 * k + 1], height, whole[PLACED] == 2)
            patch[where], patch[where + 1], patch[where + 2], patch[where + 3] = left, top, right, bottom
            patch[where + 4] = whole[COLOUR]
    if whole[CODED]:
        _uniforms(seed, epoch, id, _INTERPOLATION, slots, 0, u)
        for k in range(slots):
            codes[k] = 1 if u[k] < 0.5 else 2
    else:
        for k in range(slots):
            codes[k] = code
    if whole[ORDERED]:
        _shuffle(seed, epoch, id, slots, u, chosen, op, arg, codes, patch, whole[PLACED] > 0)


@_compile
def _shuffle(
    seed: int, epoch: int, id: int, slots: int, u: Any, chosen: Any, op: Any, arg: Any, codes: Any, patch: Any,
    placed: bool,
) -> None:  # fmt: skip
    """Put the slots into a random order."""
    _uniforms(seed, epoch, id, _ORDER, slots, 0, u)
    _in_order(u, 0, slots, slots, chosen)
    # Each column is copied to spare room and back in order; whole numbers fit into a float exactly.
    for k in range(slots):
        u[k] = float(op[k])
        u[slots + k] = arg[k]
        u[2 * slots + k] = float(codes[k])
    for k in range(slots):
        op[k] = int(u[chosen[k]])
        arg[k] = u[slots + chosen[k]]
        codes[k] = int(u[2 * slots + chosen[k]])
    if placed:
        for i in range(5):
            for k in range(slots):
                u[k] = float(patch[5 * k + i])
            for k in range(slots):
                patch[5 * k + i] = int(u[chosen[k]])


@_compile
def draw_many(
    whole: Any, spread: float, highest: float, ops: Any, rules: Any, names: Any, level: Any, gate: Any, edges: Any,
    seed: int, epoch: int, height: int, width: int, code: int, u: Any, chosen: Any, op: Any, arg: Any, codes: Any,
    patch: Any, ids: Any, counter: Any, count: int,
) -> None:  # fmt: skip
    """Draw the programs that ``counter`` gives out, a row each of ``op``, ``arg``, ``codes`` and ``patch``."""
    if run_by_team(counter):
        return
    whole, ops, rules, names = unowned(whole), unowned(ops), unowned(rules), unowned(names)
    level, gate, edges, ids = unowned(level), unowned(gate), unowned(edges), unowned(ids)
    u, chosen, op, arg = unowned(u), unowned(chosen), unowned(op), unowned(arg)
    codes, patch = unowned(codes), unowned(patch)
    start = claim(counter, _TOGETHER)
    while start < count:
        for i in range(start, min(start + _TOGETHER, count)):
            draw(
                whole, spread, highest, ops, rules, names, level, gate, edges, seed, epoch, ids[i], height, width, code,
                u[i], chosen[i], op[i], arg[i], codes[i], patch[i].reshape(patch[i].size),
            )  # fmt: skip
        start = claim(counter, _TOGETHER)
