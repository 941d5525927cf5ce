"""Which computation has an output's errors, where the function is known: a format, a carry, a quantised operand."""

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from attention_check.conventions.attention import Rows
from attention_check.conventions.low_bits import GROUP, OF_P, between, by_row, in_blocks, q8_0, q_0, q_1, scaled
from attention_check.measure.mistakes import EXPLAINED, Cause, explained_share
from attention_check.tolerance import BLOCK
from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import SCHEMES
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format, truncated

MOST_ROWS = 16  # of one head, the worst, that computations are tried on
OPERANDS = "quantized_"  # keys of mistakes.ROUNDINGS: with casts of these no order of sums matters: all of it is due
COARSER = (FP32, TF32, BF16, FP16)
ALL_OF_IT = 0.95  # of the squared error: with so much, no other computation is tried
PARTLY = 0.5  # of the squared error: so much names a computation whose order of sums is another one
FITTED = 0.02  # of the share that a mistake with a number fitted to the error must explain more than one without
BIASES = 2.0  # unit roundoffs that outputs are off at most, in the mean, where P and they are rounded to one side
BLOCKS = (16, 32, 64, 128, 256, 512)  # keys of a tile that are tried beside the declared ones
SINGLE = 1024  # keys: with more, tiles of one take too long
STEPS = {  # of a Precision, that are in 16 bits
    "accumulator": ("accumulator",), "sums": ("accumulator", "row_sum"), "row_sum": ("row_sum",),
    "scores": ("scores",), "probs": ("probs",), "inputs": ("inputs",),
    "every_step": ("scores", "exponent", "probs", "maximum", "factors", "row_sum", "accumulator"),
}  # fmt: skip
CARRIED = ("accumulator", "sums", "row_sum", "every_step")  # of these, mistakes whose error tells the tiles
FLOATS = ("FP8_HEAD", "FP8_TOKEN", "MXFP8", "NVFP4")  # of kernels.SCHEMES
SMOOTH = "INT8_SMOOTH"  # K less its mean over keys: all scores of a row change by one number, and the softmax stays
INT8_BLOCKS = {  # as SageAttention has them: a format's name -> queries and keys of a block with one scale, smooth
    f"{name} in blocks of {n_q} queries and {n_kv} keys": (n_q, n_kv, name != "INT8")
    for name, n_q, n_kv in product(("INT8", f"{SMOOTH},"), (128, 64, 32), (64, 128))
}
CASTS: dict[str, Callable[[Tensor], Tensor]] = {  # as caches hold k and v; of floats without a scale, or one of 1
    "Q8_0": q8_0, **{f"Q{bits}_0": partial(q_0, bits=bits) for bits in (4, 5, 6)},
    **{f"Q{bits}_1": partial(q_1, bits=bits) for bits in (4, 5)}, "INT8": partial(by_row, most=127),
    "INT4": partial(by_row, most=7),
    **{f"{low.name} without a scale": low for low in (E4M3, E5M2)},
    "INT8 without a scale": lambda x: x.round().clamp(-128, 127),
}  # fmt: skip
ONE_SCALE, SCALES = "E4M3 with one scale", 64  # such a scale, within a factor of 2; and how many are tried
Computed = tuple[str, str, int, Callable[[], Tensor]]  # a key of mistakes.ROUNDINGS, a format, tiles, and what gives
# the rows as they are then, before the next one is asked for


@dataclass(frozen=True)
class Worst:
    """The worst rows of one head, and what a kernel gave for them.

    Attributes:
        tensors: q (rows, d), k (n_kv, d), v (n_kv, d_v); o, golden (rows, d_v): float64. options: of `CallOptions`, for
            these rows; the mask is what is added to S, (rows, n_kv).
        fmt: of the inputs. precision: of a right kernel. block: keys of its tiles. queries: of the whole head, float64
            (n_q, d), at which the rows stand `at`; None where these are not at hand.
    """

    tensors: tuple[Tensor, Tensor, Tensor]
    o: Tensor
    golden: Tensor
    options: dict[str, Any]
    fmt: Format
    precision: Precision
    block: int
    queries: Tensor | None
    at: Tensor

    @classmethod
    def of(cls, rows: Rows, q_of_call: Tensor | None, entry: int, head: int, at: Tensor, **kernel: Any) -> "Worst":
        """Some rows of a head, by their places among the sampled ones. q_of_call: (batch, heads, n_q, d)."""
        entries, heads, rows_at = rows.places
        queries = None if q_of_call is None else q_of_call[entries[entry], heads[head]].detach().double().cpu()
        q, o, golden, bias = (x[entry, head, at] for x in (rows.q, rows.o, rows.golden, rows.bias))
        k, v = (x[entry, head].nan_to_num(0.0, 0.0, 0.0) for x in (rows.k, rows.v))  # they see nothing but numbers
        options = rows.options() | dict(mask=bias)
        if "sinks" in options:
            options["sinks"] = options["sinks"][head : head + 1]
        return cls((q, k, v), o, golden, options, queries=queries, at=rows_at[at], **kernel)

    def tiled(self, precision: Precision, *tensors: Tensor, size: int = BLOCK, **changed: Any) -> Tensor:
        """The rows of an emulated kernel, of other tensors and options than the call's where they are given."""
        options = self.options | changed
        return kernels.tiled(*(tensors or self.tensors), tiling=Tiling(64, size), precision=precision, **options)

    def stored(self, precision: Precision, **changed: Any) -> Tensor:
        """The same, in the format of the output."""
        return self.precision.output(self.tiled(precision, **changed))

    def maximum_known(self) -> dict[str, Any]:
        """Options of `tiled` with which each row's maximum is known beforehand, and nothing is rescaled."""
        S = self.tensors[0] @ self.tensors[1].mT * self.options["scale"] + self.options["mask"]
        zero = Algorithm("fa2", maximum=lambda tile: torch.zeros_like(tile[..., :1]))
        return dict(algorithm=zero, mask=self.options["mask"] - S.amax(-1, keepdim=True))

    def causes(self, computed: Iterator[Computed], asked: Container[tuple[str, str]] | None = None) -> list[Cause]:
        """Those that explain PARTLY of the error or more, up to one that has the output's bits. A number that was
        fitted to it must earn its place. asked: keys and formats that are tried; None is all."""
        found = []
        for key, fmt, tiles, emulate in computed:
            if asked is not None and (key, fmt) not in asked:
                continue
            o, factor = emulate(), self.bias if key == "bias" else 1.0
            share = explained_share(self.o, self.golden, o)
            found.append(Cause(key, share >= EXPLAINED, share - FITTED * (factor != 1), fmt, tiles, factor))
            if torch.equal(o, self.o):
                break
        is_cast = [each.key.startswith(OPERANDS) and each.fmt not in FLOATS for each in found]
        return [each for each, strict in zip(found, is_cast) if each.share >= (EXPLAINED if strict else PARTLY)]

    @property
    def bias(self) -> float:
        """The factor with which attention comes nearest."""
        return ((self.o * self.golden).sum() / self.golden.square().sum().clamp(min=1e-300)).item()


def computation(
    rows: Rows, fmt: Format, precision: Precision, block: int, q_of_call: Tensor | None = None
) -> Cause | None:  # fmt: skip
    """The computation that reproduces most of the error in the worst rows of the worst head, and of another head, or in
    other rows where there is one head; None where none of those tried reproduces PARTLY of both. fmt, precision, block,
    q_of_call: as of Worst.

    Returns:
        Its key is one of mistakes.ROUNDINGS: "kernel" is one of a coarser format, "products" only its products, "cut"
        the same, truncated, "written" and "written_k_scaled" in unfused code; "quantized" is of Q, K, V and P. fmt: a
        format, a key of SCHEMES or CASTS, or SMOOTH.
    """
    if rows.dialect.softmax or rows.dialect.softcap:  # emulations have attention's softmax
        return None
    counted = rows.counted
    error = (rows.o - rows.golden).square().mean(-1).where(counted, 0.0)  # (entries, heads, rows)
    worst, *more = (divmod(int(i), error.shape[1]) for i in error.sum(-1).flatten().argsort(descending=True)[:2])
    at = error[worst].topk(min(2 * MOST_ROWS, int(counted[worst].sum()))).indices
    if not len(at):
        return None
    if more and counted[more[0]].any():
        at, other = at[:MOST_ROWS], more[0]
        others = error[other].topk(min(MOST_ROWS, int(counted[other].sum()))).indices
    else:
        at, other, others = at[::2], worst, at[1::2]
    first, again = (Worst.of(rows, q_of_call, *of, chosen, fmt=fmt, precision=precision, block=block)
                    for of, chosen in ((worst, at), (other, others)))  # fmt: skip
    confirmed: list[Cause] = []
    for family in (_coarser, _quantized, _steps):  # the cheaper ones first
        found = first.causes(family(first))
        if found and len(others):
            asked = {(each.key, each.fmt) for each in found}
            alike = {(each.key, each.fmt) for each in again.causes(family(again), asked)}
            found = [each for each in found if (each.key, each.fmt) in alike]
        confirmed += found
        if any(each.share >= ALL_OF_IT for each in confirmed):
            break
    return max(confirmed, key=lambda each: each.share, default=None)


def _coarser(rows: Worst) -> Iterator[Computed]:
    """A kernel of fewer bits than its inputs have: Q, K, V and P in them, and the answer too."""
    q, k, v = rows.tensors
    for low in COARSER:
        if low.precision >= rows.fmt.precision:
            continue
        output, scale = rows.precision.output, rows.options["scale"]
        for key, answer, cut in (("kernel", low, low), ("products", output, low), ("cut", output, truncated(low))):
            precision = replace(Precision.kernel(low), inputs=cut, probs=cut, output=answer)
            yield key, low.name, 0, partial(rows.tiled, precision, *map(cut, rows.tensors))
        exact = replace(Precision.kernel(low), inputs=FP64, output=output)
        for key, low_k in (("written", low(k)), ("written_k_scaled", low(k * scale) / scale)):
            written = partial(kernels.reference, low(q), low_k, low(v), precision=exact, **rows.options)
            yield key, low.name, 0, written


def _quantized(rows: Worst) -> Iterator[Computed]:
    """Operands in few bits: FP8, block scales, and integers as caches hold them."""
    if "sinks" in rows.options:
        return
    (q, k, v), precision = rows.tensors, replace(Precision.kernel(rows.fmt), output=rows.precision.output)
    for low in (E4M3, E5M2):
        for key, probs in (("probs", low), ("probs_shifted", OF_P[low.name])):
            yield key, low.name, 0, partial(rows.tiled, replace(precision, probs=probs))
    for scheme in FLOATS:
        group = SCHEMES[scheme].size if SCHEMES[scheme].per == "group" else 1
        if q.shape[-1] % group or v.shape[-1] % group or k.shape[0] % group:
            continue
        of_all, cache = Quantization.of(scheme), Quantization.cache(scheme)
        for key, operands in ("quantized", of_all), ("quantized_qkv", replace(of_all, p=None)), ("quantized_kv", cache):
            settings = rows.options | dict(tiling=Tiling(64, BLOCK), precision=precision)
            yield key, scheme, 0, partial(attention, q, k, v, operands, **settings)
    for of, name, *tensors in _in_integers(rows):
        yield f"quantized_{of}", name, 0, partial(rows.tiled, precision, *tensors)


def _in_integers(rows):
    """Operands as CASTS and SageAttention's kernels have them: of which they are, how, and q, k and v."""
    q, k, v = rows.tensors
    in_groups = q.shape[-1] % GROUP == v.shape[-1] % GROUP == 0
    for name, cast in CASTS.items():
        if in_groups or not name.startswith("Q"):
            low = dict(zip("qkv", map(cast, rows.tensors)))
            for of in ("kv", "qkv", "qk", "k", "v"):
                yield of, name, *(low[x] if x in of else own for x, own in zip("qkv", rows.tensors))
    casts = [(name, cast) for name, cast in CASTS.items() if in_groups or not name.startswith("Q")]
    casts += [(ONE_SCALE, partial(scaled, power=i / SCALES)) for i in range(SCALES)]
    first = min((_nearest_cast(rows, rows.tensors, i, casts) for i in (1, 2)), key=lambda each: each[0])
    other = _nearest_cast(rows, first[-1], 3 - first[1], casts)
    a, b = (name for _, _, name, _ in sorted((first, other), key=lambda each: each[1]))
    yield "kv", a if a == b else f"{a} and {b}", *other[-1]
    for bits, size in product((8, 4, 2), (k.shape[0], 128, 64, 32)):  # as KIVI and other caches
        low_v = between(v.mT, bits, min(size, v.shape[1])).mT
        for of, low_k in (("feature", between(k, bits, size)), ("key", between(k.mT, bits, min(size, k.shape[1])).mT)):
            group = "" if size == k.shape[0] else f" in groups of {size}"
            yield "kv", f"INT{bits} from least to largest, k by {of} and v by key,{group}".rstrip(","), q, low_k, low_v
    yield "qk", SMOOTH, by_row(q, 127), by_row(k - k.mean(0), 127), v
    for name, (n_q, n_kv, less) in INT8_BLOCKS.items():
        if rows.queries is not None:
            low_k = in_blocks(k - k.mean(0) if less else k, n_kv)
            yield "qk", name, in_blocks(rows.queries, n_q)[rows.at], low_k, v


def _nearest_cast(rows, tensors, i, casts):
    """Which cast of k (i = 1) or v (2) leaves least of the error: how much, i, its name, and q, k and v then."""
    precision = replace(Precision.kernel(rows.fmt), output=rows.precision.output)

    def of(cast):
        return [cast(x) if i == at else x for at, x in enumerate(tensors)]

    def left(cast):
        return 1 - explained_share(rows.o, rows.golden, rows.tiled(precision, *of(cast)))

    name, cast = min(casts, key=lambda each: left(each[1]))
    if name == ONE_SCALE:  # another head may have larger values
        power = min((cast.keywords["power"] + i for i in range(4)), key=lambda x: left(partial(scaled, power=x)))
        around = (power - 1 / SCALES, power + 1 / SCALES)
        found: Any = minimize_scalar(lambda x: left(partial(scaled, power=x)), bounds=around)
        cast = partial(scaled, power=found.x)
    return left(cast), i, name, of(cast)


def _steps(rows: Worst) -> Iterator[Computed]:
    """Computations that differ from a right one in a step."""
    precision, mask, n_kv, block = rows.precision, rows.options["mask"], rows.tensors[1].shape[0], rows.block
    narrow, exact = precision.inputs, replace(precision, output=FP64)  # the answer's rounding would hide the error
    if not torch.equal(rounded := narrow(mask), mask):
        options = rows.options | dict(mask=rounded)
        yield "mask_rounded", "", 0, partial(kernels.golden, *rows.tensors, inputs=narrow, **options)
    if abs(rows.bias - 1) <= BIASES * precision.probs.unit_roundoff:
        yield "bias", "", 0, lambda: rows.bias * rows.golden
    coarser = {FP16: (FP16, BF16)}.get(narrow, (narrow,)) if narrow.precision < FP32.precision else (TF32, BF16, FP16)
    known = [] if {"sinks", "softcap"} & rows.options.keys() else [rows.maximum_known()]
    for fmt in coarser:
        for key, steps in STEPS.items():
            if all(getattr(precision, step).precision <= fmt.precision for step in steps):
                continue
            changed, carried = replace(exact, **dict.fromkeys(steps, fmt)), key in CARRIED
            for size in dict.fromkeys((block, *(size for size in BLOCKS if carried and size < n_kv))):
                orders = [dict(algorithm=name) for name in ("fa2", "fa1")[: 1 + carried]]
                for order in (*orders, *known * carried):
                    tiles = -(-n_kv // size) * carried
                    yield key, fmt.name, tiles, partial(rows.stored, changed, size=size, **order)
    if (mask.isfinite() & (mask != 0)).any():  # as ALiBi is that counts from the first key
        least = mask.masked_fill(mask == -math.inf, math.inf).amin(-1, keepdim=True)
        counted = narrow(mask - least.where(least < math.inf, 0.0))
        low = replace(exact, scores=narrow)
        yield "scores", narrow.name, 0, partial(rows.stored, low, size=block, mask=counted)
    cut = replace(exact, probs=truncated(precision.probs))
    yield "probs_truncated", precision.probs.name, 0, partial(rows.stored, cut, size=block)
    for fmt in (FP16, BF16) if n_kv <= SINGLE else ():  # O carried from key to key, as llama.cpp decodes
        carried = replace(precision, accumulator=fmt, probs=FP32)
        yield "accumulator", fmt.name, n_kv, partial(rows.tiled, carried, size=1)
