"""What would explain an error: emulated mistakes on the same rows, and the one whose error is this one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.conventions import keys_of
from attention_check.conventions.fitting import holding
from attention_check.conventions.reading import CapturedCall
from attention_check.conventions.search import search
from fa_lib import kernels
from fa_lib.kernels.options import ResolvedOptions
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

    def cause(self, rows: "Rows") -> Cause:
        """Score it on the rows."""
        share = explained_share(rows.o, rows.golden, self.o)
        return Cause(self.key, share >= EXPLAINED, share, self.fmt, self.tiles, self.factor)


def explained_share(o: Tensor, golden: Tensor | float, emulated: Tensor) -> float:
    """The share of an output's squared error that an emulation explains: 1 - |o - emulated|² / |o - golden|². 1 is all
    of it; errors that have nothing to do with each other give less than 0; NaN where the output has no error."""
    error = (o - golden).square().sum().item()
    return 1 - (o - emulated).square().sum().item() / error if error else math.nan


@dataclass(frozen=True)
class Rows:
    """The worst rows of one head, and what a kernel gave for them.

    Attributes:
        q (rows, d), k (n_kv, d), v (n_kv, d_v): float64. o, golden: (rows, d_v), float64.
        masks: "asked", or "mask_rounded" -> what is added to S (rows, n_kv). options: of `CallOptions`, for these rows.
        entry: the call and the output of the entry of the batch that they are of; None where it has dropout.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    golden: Tensor
    masks: dict[str, Tensor]
    options: dict[str, Any]
    entry: CapturedCall | None = None

    @classmethod
    def worst(cls, times: Tensor, o: Tensor, golden: Tensor, tensors: tuple, fmt: Format, options: dict) -> "Rows":
        """The rows of one head whose errors over the bound (*lead, n_q, d_v) are the largest; fmt: of the inputs."""
        q, k, v = tensors
        resolved = ResolvedOptions.of(q, k, v, **options)
        by_row = times.amax(-1).reshape(-1, q.shape[-2])  # (heads, n_q)
        head = int(by_row.amax(-1).argmax())
        rows = by_row[head].topk(min(ROWS, q.shape[-2])).indices
        flat = [x.detach().double().reshape(-1, *x.shape[-2:]) for x in (q, k, v, o, golden)]
        Q, O, golden_rows = (flat[i][head, rows] for i in (0, 3, 4))
        K, V = (x[head // resolved.group] for x in flat[1:3])
        masks = {
            key: _added(ResolvedOptions.of(q, k, v, **changed), head, rows)
            for key, changed in _masks(options, fmt).items()
        }
        sink, keep = resolved.sink(head), resolved.keep
        keep_rows = None if keep is None else keep.reshape(-1, *keep.shape[-2:])[head, rows]
        row_options = dict(
            scale=resolved.scale, softcap=resolved.softcap, sinks=None if sink is None else sink.reshape(1)
        )
        row_options |= dict(keep=keep_rows, dropout_p=resolved.dropout_p)
        entry = None if resolved.keep is not None else _entry(tensors, o, options, head, fmt)
        return cls(Q, K, V, O, golden_rows, masks, row_options, entry)


def _entry(tensors, o, options, head, fmt):
    """One entry of the batch, that a flattened head is of."""
    q, k, v, o = (x.detach()[(None,) * (4 - x.ndim)].flatten(0, -4) for x in (*tensors, o))
    q, k, v = (fmt(x.double()).to(fmt.dtype or torch.float64) for x in (q, k, v))
    at = slice(head // q.shape[1], head // q.shape[1] + 1)
    mask = options.get("mask")
    if mask is not None:
        mask = mask.expand(*tensors[0].shape[:-1], k.shape[-2])
        options = options | dict(mask=mask[(None,) * (4 - mask.ndim)].flatten(0, -4)[at])
    return CapturedCall(q[at], k[at], v[at], o[at], options)


def cause(rows: Rows, precision: Precision, block: int) -> Cause | None:
    """The first of `causes`; None where there is none."""
    return next(iter(causes(rows, precision, block)), None)


def causes(rows: Rows, precision: Precision, block: int) -> list[Cause]:
    """The mistakes that explain an error, the best first: the same error before one of this size, and that of the
    declared tiles before others.

    Args:
        precision: as declared. block: keys of a tile, as declared.
    """
    found = [_rated(each, rows) for each in _mistakes(rows, precision, block)]
    found += [_convention(rows.entry)] if rows.entry is not None else []
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


def _rated(tried: Hypothesis, rows: Rows) -> tuple[bool, float, Cause] | None:
    """A Cause with what it is chosen by; None where the hypothesis has neither the error of the rows nor, in the
    declared tiles, one of its size."""
    found = tried.cause(rows)
    if found.same:
        return True, found.share - FITTED * (tried.key in WITH_FACTOR), found
    size = (rows.o - rows.golden).square().sum()
    times = ((tried.o - rows.golden).square().sum() / size).sqrt().item() if size else math.inf
    return (False, -abs(math.log(times)), found) if tried.declared and 1 / ALIKE <= times <= ALIKE else None


def _mistakes(rows: Rows, precision: Precision, block: int) -> Iterator[Hypothesis]:
    n_kv, mask = rows.k.shape[0], rows.masks["asked"]
    tensors = rows.q, rows.k, rows.v
    for key, other in rows.masks.items():
        if key != "asked":
            yield Hypothesis(key, kernels.golden(*tensors, inputs=precision.inputs, mask=other, **rows.options))

    factor = ((rows.o * rows.golden).sum() / rows.golden.square().sum().clamp(min=1e-300)).item()
    if abs(factor - 1) <= BIASES * precision.probs.unit_roundoff:
        yield Hypothesis("bias", factor * rows.golden, factor=factor)
    if rows.options["keep"] is not None:
        options: dict[str, Any] = rows.options | dict(keep=None, dropout_p=0.0)
        yield Hypothesis("keep_missing", kernels.golden(*tensors, inputs=precision.inputs, mask=mask, **options))
    exact = replace(precision, output=FP64)  # else the rounding of the answer hides what makes the error

    def emulated(changed: Precision, **kernel_options) -> Tensor:
        o = kernels.tiled(*tensors, precision=changed, mask=mask, **rows.options, **kernel_options)
        return precision.output(o)

    narrow = precision.inputs
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
    cut = replace(exact, probs=truncated(precision.probs))
    o = emulated(cut, tiling=Tiling(64, block), algorithm="fa2")
    yield Hypothesis("probs_truncated", o, precision.probs.name, declared=True)


def _masks(options, fmt):
    """Options of "asked", and of a mask that is rounded to the format of the inputs."""
    found, mask = dict(asked=options), options.get("mask")
    if mask is not None and mask.dtype != torch.bool:
        found["mask_rounded"] = options | dict(mask=fmt(mask.detach().double()))
    return found


def _added(asked: ResolvedOptions, head: int, rows: Tensor) -> Tensor:
    """What is added to the scores of some rows, -inf where a key is hidden: (rows, n_kv)."""
    zero = torch.zeros(asked.n_kv, 1, dtype=torch.float64, device=rows.device)
    return torch.cat([asked.rows(head, slice(row, row + 1))(zero[:1], zero, 0) for row in rows.tolist()])
