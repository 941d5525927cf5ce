"""What would explain an error: emulated mistakes on the same rows, and the one whose error is this one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows
from attention_check.conventions.conventions import keys_of
from attention_check.conventions.fitting import holding
from attention_check.conventions.reading import CapturedCall
from attention_check.conventions.search import search
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, TF32, Format, truncated

ALIKE = 1.5  # times as large, or as small: an error of this size
ROWS = 32  # of one head, the worst, that mistakes are tried on
BLOCKS = (16, 32, 64, 128, 256, 512)  # keys of a tile that are tried beside the declared ones
STEPS = {  # of a Precision, that are in 16 bits
    "accumulator": ("accumulator",),
    "sums": ("accumulator", "row_sum"),
    "row_sum": ("row_sum",),
    "scores": ("scores",),
    "inputs": ("inputs",),
    "every_step": ("scores", "exponent", "probs", "maximum", "factors", "row_sum", "accumulator"),
}
ROUNDINGS = (
    "accumulator", "sums", "row_sum", "scores", "every_step", "inputs", "probs_truncated", "mask_rounded", "bias",
)  # fmt: skip
CARRIED = ("accumulator", "sums", "row_sum", "every_step")  # of these, mistakes whose error tells the tiles
WITH_FACTOR = ("bias",)  # mistakes with a number that is fitted to the error
FITTED = 0.02  # of the share that a mistake with a number fitted to the error must explain more than one without
EXPLAINED = 0.8  # of the squared error: so much, or more, is the same where the cause is the same
BIASES = 2.0  # unit roundoffs that outputs are off at most, in the mean, where P and they are rounded to one side


@dataclass(frozen=True)
class Cause:
    """A mistake that makes an error.

    Attributes:
        key: of STEPS, or "probs_truncated", "mask_rounded", "bias" (a factor that roundings to one side
            make), "keep_missing", or of `conventions.keys_of`.
        same: it makes this very error; else one of this size.
        fmt, tiles: of what is carried, where that is the mistake.
        share: of the squared error that the mistake explains.
        factor: the number that was fitted, of the output or the scale for example, where that is the mistake.
    """

    key: str
    same: bool
    share: float
    fmt: str = ""
    tiles: int = 0
    factor: float = 1.0


@dataclass(frozen=True)
class Hypothesis:
    """A computation that may have made an output.

    Attributes:
        key, fmt, tiles, factor: as of a Cause. o: what it gives for the rows, (rows, d_v).
        declared: its formats and tiles are those that the kernel declares.
    """

    key: str
    o: Tensor
    fmt: str = ""
    tiles: int = 0
    factor: float = 1.0
    declared: bool = False

    def cause(self, rows: "Worst") -> Cause:
        """Score it on the rows."""
        share = explained_share(rows.o, rows.golden, self.o)
        return Cause(self.key, share >= EXPLAINED, share, self.fmt, self.tiles, self.factor)


def explained_share(o: Tensor, golden: Tensor | float, emulated: Tensor) -> float:
    """The share of an output's squared error that an emulation explains: 1 - |o - emulated|² / |o - golden|². 1 is all
    of it; errors that have nothing to do with each other give less than 0; NaN where the output has no error."""
    error = (o - golden).square().sum().item()
    return 1 - (o - emulated).square().sum().item() / error if error else math.nan


@dataclass(frozen=True)
class Worst:
    """The worst rows of one head, and what a kernel gave for them.

    Attributes:
        q (rows, d), k (n_kv, d), v (n_kv, d_v), o, golden (rows, d_v): float64. options: of `CallOptions`, for these
            rows; the mask is what is added to S, (rows, n_kv).
        call: the entry of the batch that they are of; None where it is not at hand. dropped: it has dropout, which the
            call and the options lack.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    golden: Tensor
    options: dict[str, Any]
    call: CapturedCall | None = None
    dropped: bool = False

    @classmethod
    def of(cls, rows: Rows, golden: Tensor, entry: int, head: int, at: Tensor, **more: Any) -> "Worst":
        """Some rows of a head, by their places among the sampled ones; golden: as `rows.o`."""
        q, o, golden, bias = (x[entry, head, at] for x in (rows.q, rows.o, golden, rows.bias))
        k, v = (x[entry, head].nan_to_num(0.0, 0.0, 0.0) for x in (rows.k, rows.v))  # they see nothing but numbers
        options = rows.options() | dict(mask=bias)
        if "sinks" in options:
            options["sinks"] = options["sinks"][head : head + 1]
        return cls(q, k, v, o, golden, options, **more)


def worst(times: Tensor, o: Tensor, golden: Tensor, tensors: tuple, fmt: Format, options: dict) -> Worst:
    """The rows of one head whose errors over the bound (*lead, n_q, d_v) are the largest; fmt: of the inputs."""
    heads, n_q = tensors[0].shape[-3], tensors[0].shape[-2]
    by_row = times.amax(-1).reshape(-1, n_q)  # (heads of all entries, n_q)
    entry, head = divmod(int(by_row.amax(-1).argmax()), heads)
    at = by_row[entry * heads + head].topk(min(ROWS, n_q)).indices
    q, k, v, o, golden = (x.detach()[(None,) * (4 - x.ndim)].flatten(0, -4) for x in (*tensors, o, golden))
    q, k, v = (fmt(x[entry : entry + 1].double()).to(fmt.dtype or torch.float64) for x in (q, k, v))
    options = dict(options)
    dropped = options.pop("keep", None) is not None
    options.pop("dropout_p", None)
    if (mask := options.get("mask")) is not None:
        mask = mask.expand(*tensors[0].shape[:-1], k.shape[-2])
        options["mask"] = mask[(None,) * (4 - mask.ndim)].flatten(0, -4)[entry : entry + 1]
    call = CapturedCall(q, k, v, o[entry : entry + 1], options)
    rows = call.rows(Dialect(), places=(torch.tensor([0]), torch.tensor([head]), at.cpu()))
    due = golden[entry : entry + 1, head : head + 1, at].double().cpu()
    return Worst.of(rows, due, 0, 0, torch.arange(len(at)), call=call, dropped=dropped)


def cause(rows: Worst, precision: Precision, block: int) -> Cause | None:
    """The first of `causes`; None where there is none."""
    return next(iter(causes(rows, precision, block)), None)


def causes(rows: Worst, precision: Precision, block: int) -> list[Cause]:
    """The mistakes that explain an error, the best first: the same error before one of this size, and that of the
    declared tiles before others.

    Args:
        precision: as declared. block: keys of a tile, as declared.
    """
    if rows.dropped:
        due = kernels.golden(rows.q, rows.k, rows.v, inputs=precision.inputs, **rows.options)
        found = [_rated(Hypothesis("keep_missing", due), rows)]
    else:
        found = [_rated(each, rows) for each in _mistakes(rows, precision, block)]
        found += [_convention(rows.call)] if rows.call is not None else []
    return [each for *_, each in sorted(filter(None, found), key=lambda each: each[:2], reverse=True)]


def _convention(entry: CapturedCall) -> tuple[bool, float, Cause] | None:
    """As `_rated`, of the dialect in which the output of an entry of the batch is right to rounding."""
    fits = search(entry)
    believed = next((each.residual for each in fits if not each.dialect.changes()), math.inf)
    for dialect, residual in holding(entry, fits):
        changes, share = dialect.changes(), 1 - (residual / believed) ** 2 if believed else 0.0
        if changes and share >= EXPLAINED:
            (number, *more) = changes.values()
            factor = number if isinstance(number, float) and not more else 1.0
            return True, share, Cause(keys_of(changes), True, share, factor=factor)
    return None


def _rated(tried: Hypothesis, rows: Worst) -> tuple[bool, float, Cause] | None:
    """A Cause with what it is chosen by; None where the hypothesis has neither the error of the rows nor, in the
    declared tiles, one of its size."""
    found = tried.cause(rows)
    if found.same:
        return True, found.share - FITTED * (tried.key in WITH_FACTOR), found
    size = (rows.o - rows.golden).square().sum()
    times = ((tried.o - rows.golden).square().sum() / size).sqrt().item() if size else math.inf
    return (False, -abs(math.log(times)), found) if tried.declared and 1 / ALIKE <= times <= ALIKE else None


def _mistakes(rows: Worst, precision: Precision, block: int) -> Iterator[Hypothesis]:
    n_kv, narrow, mask, tensors = rows.k.shape[0], precision.inputs, rows.options["mask"], (rows.q, rows.k, rows.v)
    rounded = narrow(mask)
    if not torch.equal(rounded, mask):
        due = kernels.golden(*tensors, inputs=narrow, **rows.options | dict(mask=rounded))
        yield Hypothesis("mask_rounded", due)
    factor = ((rows.o * rows.golden).sum() / rows.golden.square().sum().clamp(min=1e-300)).item()
    if abs(factor - 1) <= BIASES * precision.probs.unit_roundoff:
        yield Hypothesis("bias", factor * rows.golden, factor=factor)
    exact = replace(precision, output=FP64)  # else the rounding of the answer hides what makes the error

    def emulated(changed: Precision, **kernel_options) -> Tensor:
        o = kernels.tiled(*tensors, precision=changed, **rows.options, **kernel_options)
        return precision.output(o)

    for fmt in (narrow,) if narrow.precision < FP32.precision else (TF32, BF16, FP16):
        for key, steps in STEPS.items():
            if all(getattr(precision, step).precision <= fmt.precision for step in steps):
                continue
            changed = replace(exact, **dict.fromkeys(steps, fmt))
            carried = key in CARRIED
            blocks = dict.fromkeys((block, *(size for size in BLOCKS if size < n_kv))) if carried else (block,)
            for size in blocks:
                tiles = -(-n_kv // size) if carried else 0
                for algorithm in ("fa2", "fa1") if carried else ("fa2",):
                    o = emulated(changed, tiling=Tiling(64, size), algorithm=algorithm)
                    yield Hypothesis(key, o, fmt.name, tiles, declared=size == block)
    least = mask.masked_fill(mask == -math.inf, math.inf).amin(-1, keepdim=True)
    if (mask.isfinite() & (mask != 0)).any():  # as ALiBi is that counts from the first key
        counted = narrow(mask - least.where(least < math.inf, 0.0))
        o = kernels.tiled(
            *tensors, precision=replace(exact, scores=narrow), tiling=Tiling(64, block),
            **rows.options | dict(mask=counted),
        )  # fmt: skip
        yield Hypothesis("scores", precision.output(o), narrow.name)
    cut = replace(exact, probs=truncated(precision.probs))
    o = emulated(cut, tiling=Tiling(64, block), algorithm="fa2")
    yield Hypothesis("probs_truncated", o, precision.probs.name, declared=True)
