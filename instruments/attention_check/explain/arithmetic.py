"""Which computation has an output's errors, where the function is known: a format, a carry, a quantised operand."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from attention_check.conventions.attention import Rows, attend
from attention_check.conventions.search import Standing
from attention_check.explain.quantized import quantized
from attention_check.measure import mistakes
from attention_check.tolerance import BLOCK
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, TF32, Format, truncated

MOST_ROWS = 16  # of one head, the worst, that computations are tried on
COARSER = (FP32, TF32, BF16, FP16)
SINGLE = 1024  # keys: with more, tiles of one take too long
PARTLY = 0.5  # of the squared error: so much names a computation whose order of sums is another one
NOT_ARITHMETIC = ("scale_factor", "factor", "keep_missing")  # of mistakes: another function


@dataclass(frozen=True)
class Computation:
    """A computation whose output was compared with one.

    Attributes:
        key: of mistakes.STEPS and their like; "kernel" (of a coarser format), "products" (only its products), "cut"
            (the same, truncated); "quantized" (Q, K, V and P), "quantized_qkv" or "quantized_kv".
        fmt: the format, or the key of SCHEMES. tiles: over which sums are carried in it; 0 of others.
        share: of the squared error, that it reproduces.
        factor: of a "bias".
    """

    key: str
    fmt: str
    share: float
    tiles: int = 0
    factor: float = 1.0


def computation(rows: Rows, fmt: Format, output: Format) -> Computation | None:
    """The computation that reproduces most of the error in the worst rows of the worst head; None where none of those
    tried reproduces PARTLY of it.

    Args:
        fmt, output: of the inputs and of the output.
    """
    if rows.dialect.softmax or rows.dialect.softcap:  # emulations have attention's softmax
        return None
    golden = attend(rows)
    counted = Standing.of(rows, golden).counted
    error = (rows.o - golden).square().mean(-1).where(counted, 0.0)  # (entries, heads, rows)
    entry, head = divmod(int(error.sum(-1).argmax()), error.shape[1])
    at = error[entry, head].topk(min(MOST_ROWS, int(counted[entry, head].sum()))).indices
    if not len(at):
        return None
    q, o, due = (x[entry, head, at] for x in (rows.q, rows.o, golden))
    k, v = (x[entry, head].nan_to_num(0.0, 0.0, 0.0) for x in (rows.k, rows.v))  # these rows see nothing but numbers
    bias = rows.bias[entry, head, at]
    sink = rows.sinks.reshape(-1)[head : head + 1]
    sinks = sink if (sink > -math.inf).all() else None
    options = dict(scale=rows.scale, softcap=rows.softcap, keep=None, sinks=sinks, dropout_p=0.0)
    worst = mistakes.Rows(q, k, v, o, due, dict(asked=bias), options)
    precision = replace(Precision.kernel(fmt), output=output)
    tried = [_coarser(worst, fmt, output, bias), _known(worst, precision)]
    if sinks is None:
        tried.insert(1, _quantized(worst, fmt, bias))
    found: list[Computation] = []
    for more in tried:  # the cheaper ones first
        found += more
        best = max(found, key=lambda each: each.share, default=None)
        if best and best.share >= PARTLY:
            return best
    return None


def _known(rows: mistakes.Rows, precision: Precision) -> Iterator[Computation]:
    """Single steps in fewer bits."""
    for each in mistakes.causes(rows, precision, BLOCK):
        if each.same:
            yield Computation(each.key, each.fmt, each.share, each.tiles, each.factor)
    n_kv = rows.k.shape[0]
    if n_kv > SINGLE:
        return
    for fmt in (FP16, BF16):  # O carried from key to key, as llama.cpp decodes
        o = kernels.tiled(
            rows.q, rows.k, rows.v, tiling=Tiling(64, 1), precision=replace(precision, accumulator=fmt, probs=FP32),
            mask=rows.masks["asked"], **rows.options,
        )  # fmt: skip
        yield Computation("accumulator", fmt.name, _share(rows, o), n_kv)


def _coarser(rows: mistakes.Rows, fmt: Format, output: Format, bias: Tensor) -> Iterator[Computation]:
    """A kernel of fewer bits than its inputs have: Q, K, V and P in them, and the answer too."""
    options: dict[str, Any] = {name: rows.options[name] for name in ("scale", "softcap", "sinks")} | dict(mask=bias)
    for low in COARSER:
        if low.precision >= fmt.precision:
            continue
        for key, answer, cut in (("kernel", low, low), ("products", output, low), ("cut", output, truncated(low))):
            precision = replace(Precision.kernel(low), inputs=cut, probs=cut, output=answer)
            q, k, v = (cut(x) for x in (rows.q, rows.k, rows.v))
            o = kernels.tiled(q, k, v, tiling=Tiling(64, BLOCK), precision=precision, **options)
            yield Computation(key, low.name, _share(rows, o))
        scale, exact = rows.options["scale"], replace(Precision.kernel(low), inputs=FP64, output=output)
        q, v = low(rows.q), low(rows.v)
        for key, k in (("written", low(rows.k)), ("written_k_scaled", low(rows.k * scale) / scale)):
            o = kernels.reference(q, k, v, precision=exact, **options)
            yield Computation(key, low.name, _share(rows, o))


def _share(rows, o):
    """Of the squared error, that an output reproduces."""
    error = (rows.o - rows.golden).square().sum()
    return 1 - ((rows.o - o.double()).square().sum() / error).item() if error else 0.0


def _quantized(rows: mistakes.Rows, fmt: Format, bias: Tensor) -> Iterator[Computation]:
    """Operands in few bits."""
    for key, scheme, o in quantized(rows, fmt, bias):
        yield Computation(key, scheme, _share(rows, o))
