"""Which computation has an output's errors, where the function is known: a format, a carry, a quantised operand."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from attention_check.conventions.attention import Rows, attend
from attention_check.conventions.low_bits import OF_P
from attention_check.conventions.search import FiniteMask
from attention_check.explain.integer_caches import GROUP, by_row, q4_0, q8_0
from attention_check.measure.mistakes import Cause, Worst, mistakes
from attention_check.tolerance import BLOCK
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import SCHEMES
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format, truncated

MOST_ROWS = 16  # of one head, the worst, that computations are tried on
COARSER = (FP32, TF32, BF16, FP16)
ALL_OF_IT = 0.95  # of the squared error: with so much, no other computation is tried
SINGLE = 1024  # keys: with more, tiles of one take too long
PARTLY = 0.5  # of the squared error: so much names a computation whose order of sums is another one
FLOATS = ("FP8_HEAD", "FP8_TOKEN", "MXFP8", "NVFP4")  # of kernels.SCHEMES
SMOOTH = "INT8_SMOOTH"  # K less its mean over keys: all scores of a row change by one number, and the softmax stays
INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": q8_0, "Q4_0": q4_0, "INT8": partial(by_row, most=127), "INT4": partial(by_row, most=7),
}  # fmt: skip


def computation(rows: Rows, fmt: Format, precision: Precision, block: int) -> Cause | None:
    """The computation that reproduces most of the error in the worst rows of the worst head, and of another head, or in
    other rows where there is one head; None where none of those tried reproduces PARTLY of both.

    Args:
        fmt: of the inputs. precision: of a right kernel. block: keys of its tiles.

    Returns:
        Its key is one of mistakes.ROUNDINGS: "kernel" is one of a coarser format, "products" only its products, "cut"
        the same, truncated, "written" and "written_k_scaled" in unfused code; "quantized" is of Q, K, V and P. fmt: a
        format, a key of SCHEMES or INTEGERS, or SMOOTH.
    """
    if rows.dialect.softmax or rows.dialect.softcap:  # emulations have attention's softmax
        return None
    golden = attend(rows)
    counted = FiniteMask.of(rows, golden).counted
    error = (rows.o - golden).square().mean(-1).where(counted, 0.0)  # (entries, heads, rows)
    order, n = error.sum(-1).flatten().argsort(descending=True), error.shape[1]
    entry, head = divmod(int(order[0]), n)
    at = error[entry, head].topk(min(2 * MOST_ROWS, int(counted[entry, head].sum()))).indices
    if not len(at):
        return None
    if len(order) > 1 and counted[divmod(int(order[1]), n)].any():
        at, other = at[:MOST_ROWS], divmod(int(order[1]), n)
        others = error[other].topk(min(MOST_ROWS, int(counted[other].sum()))).indices
    else:
        at, other, others = at[::2], (entry, head), at[1::2]
    tried = _families(Worst.of(rows, golden, entry, head, at), fmt, precision, block)
    again = _families(Worst.of(rows, golden, *other, others), fmt, precision, block) if len(others) else None
    confirmed: list[Cause] = []
    for i, family in enumerate(tried):  # the cheaper ones first
        found = [each for each in family if each.share >= PARTLY]
        if found and again is not None:
            alike = {(each.key, each.fmt) for each in again[i] if each.share >= PARTLY}
            found = [each for each in found if (each.key, each.fmt) in alike]
        confirmed += found
        if any(each.share >= ALL_OF_IT for each in confirmed):
            break
    return max(confirmed, key=lambda each: each.share, default=None)


def _families(worst, fmt, precision, block):
    """What computations give for some rows of a head."""
    return [
        _coarser(worst, fmt, precision.output),
        *([] if "sinks" in worst.options else [_quantized(worst, fmt, precision.output)]),
        _known(worst, precision, block),
    ]


def _known(rows: Worst, precision: Precision, block: int) -> Iterator[Cause]:
    """Single steps in fewer bits."""
    yield from mistakes(rows, precision, block)
    n_kv = rows.k.shape[0]
    if n_kv > SINGLE:
        return
    for fmt in (FP16, BF16):  # O carried from key to key, as llama.cpp decodes
        o = kernels.tiled(
            rows.q, rows.k, rows.v, tiling=Tiling(64, 1), precision=replace(precision, accumulator=fmt, probs=FP32),
            **rows.options,
        )  # fmt: skip
        yield rows.cause("accumulator", o, fmt.name, n_kv)


def _coarser(rows: Worst, fmt: Format, output: Format) -> Iterator[Cause]:
    """A kernel of fewer bits than its inputs have: Q, K, V and P in them, and the answer too."""
    options = rows.options
    for low in COARSER:
        if low.precision >= fmt.precision:
            continue
        for key, answer, cut in (("kernel", low, low), ("products", output, low), ("cut", output, truncated(low))):
            precision = replace(Precision.kernel(low), inputs=cut, probs=cut, output=answer)
            q, k, v = (cut(x) for x in (rows.q, rows.k, rows.v))
            o = kernels.tiled(q, k, v, tiling=Tiling(64, BLOCK), precision=precision, **options)
            yield rows.cause(key, o, low.name)
        scale, exact = rows.options["scale"], replace(Precision.kernel(low), inputs=FP64, output=output)
        q, v = low(rows.q), low(rows.v)
        for key, k in (("written", low(rows.k)), ("written_k_scaled", low(rows.k * scale) / scale)):
            yield rows.cause(key, kernels.reference(q, k, v, precision=exact, **options), low.name)


def _quantized(rows: Worst, fmt: Format, output: Format) -> Iterator[Cause]:
    """Operands in few bits: FP8, block scales, and integers as caches hold them."""
    q, k, v = rows.q, rows.k, rows.v
    precision = replace(Precision.kernel(fmt), output=output)
    settings: dict[str, Any] = rows.options | dict(tiling=Tiling(64, BLOCK), precision=precision)
    for low in (E4M3, E5M2):
        for key, probs in (("probs", low), ("probs_shifted", OF_P[low.name])):
            changed: dict[str, Any] = settings | dict(precision=replace(precision, probs=probs))
            o = kernels.tiled(q, k, v, **changed)
            yield rows.cause(key, o, low.name)
    for scheme in FLOATS:
        group = SCHEMES[scheme].size if SCHEMES[scheme].per == "group" else 1
        if q.shape[-1] % group or v.shape[-1] % group or k.shape[0] % group:
            continue
        of_all, cache = Quantization.of(scheme), Quantization.cache(scheme)
        for key, operands in ("quantized", of_all), ("quantized_qkv", replace(of_all, p=None)), ("quantized_kv", cache):
            yield rows.cause(key, attention(q, k, v, operands, **settings), scheme)
    tried = []
    for scheme, integers in INTEGERS.items():
        if scheme.endswith("_0") and (q.shape[-1] % GROUP or v.shape[-1] % GROUP):
            continue
        low_q, low_k, low_v = (integers(x) for x in (q, k, v))
        tried.append(("quantized_kv", scheme, (q, low_k, low_v)))
        tried.append(("quantized_qkv", scheme, (low_q, low_k, low_v)))
        tried.append(("quantized_qk", scheme, (low_q, low_k, v)))
    for low in (E4M3, E5M2):  # cast as they are: a cache whose scales are all 1
        low_q, low_k, low_v, unscaled = low(q), low(k), low(v), f"{low.name} without a scale"
        tried.append(("quantized_kv", unscaled, (q, low_k, low_v)))
        tried.append(("quantized_qkv", unscaled, (low_q, low_k, low_v)))
        tried += [("quantized_k", unscaled, (q, low_k, v)), ("quantized_v", unscaled, (q, k, low_v))]
    smooth = by_row(q, 127), by_row(k - k.mean(0), 127), v  # as SageAttention takes its mean off K
    for key, scheme, tensors in [*tried, ("quantized_qk", SMOOTH, smooth)]:
        yield rows.cause(key, kernels.tiled(*tensors, **settings), scheme)
