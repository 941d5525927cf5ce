"""What would explain an error: emulated mistakes on the same rows, and the one whose error is this one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.check.judge import EXPLAINED
from fa_lib.check.sampling import both
from fa_lib.formats import BF16, FP16, FP32, FP64, Format, truncated
from fa_lib.kernels.options import Options
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

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
CARRIED = ("accumulator", "sums", "row_sum", "every_step")  # of these, mistakes whose error tells the tiles
MISSING = {"sinks": dict(sinks=None), "softcap": dict(softcap=None), "keep": dict(keep=None, dropout_p=0.0)}


@dataclass(frozen=True)
class Cause:
    """A mistake that makes an error.

    Attributes:
        key: of STEPS, or "probs_truncated", "scale_missing", "scale_twice", of MISSING, "top_left", "unmasked",
            "mask_rounded", "causal".
        same: it makes this very error; else one of this size.
        fmt, tiles: of what is carried, where that is the mistake.
        share: of the squared error that the mistake explains.
    """

    key: str
    same: bool
    share: float
    fmt: str = ""
    tiles: int = 0


@dataclass(frozen=True)
class Rows:
    """The worst rows of one head, and what a kernel gave for them.

    Attributes:
        q (rows, d), k (n_kv, d), v (n_kv, d_v): float64. o, golden: (rows, d_v), float64.
        masks: mistake, or "asked" -> what is added to S (rows, n_kv). options: of `Asked`, for these rows.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    golden: Tensor
    masks: dict[str, Tensor]
    options: dict[str, Any]

    @classmethod
    def worst(cls, times: Tensor, o: Tensor, golden: Tensor, tensors: tuple, fmt: Format, options: dict) -> "Rows":
        """The rows of one head whose errors over the bound (*lead, n_q, d_v) are the largest; fmt: of the inputs."""
        q, k, v = tensors
        asked = Options.of(q, k, v, **options)
        by_row = times.amax(-1).reshape(-1, q.shape[-2])  # (heads, n_q)
        head = int(by_row.amax(-1).argmax())
        rows = by_row[head].topk(min(ROWS, q.shape[-2])).indices
        flat = [x.detach().double().reshape(-1, *x.shape[-2:]) for x in (q, k, v, o, golden)]
        here = [flat[0][head, rows], *(x[head // asked.group] for x in flat[1:3]), *(x[head, rows] for x in flat[3:])]
        masks = {
            key: _added(Options.of(q, k, v, **changed), head, rows)
            for key, changed in _masks(q, k, options, fmt).items()
        }
        sink, keep = asked.sink(head), asked.keep
        kept = None if keep is None else keep.reshape(-1, *keep.shape[-2:])[head, rows]
        given = dict(scale=asked.scale, softcap=asked.softcap, sinks=None if sink is None else sink.reshape(1))
        return cls(*here, masks, given | dict(keep=kept, dropout_p=asked.dropout_p))


def cause(rows: Rows, precision: Precision, block: int) -> Cause | None:
    """The mistake that explains an error best: the same error before one of this size, and that of the declared tiles
    before others; None where none does.

    Args:
        precision: as declared. block: keys of a tile, as declared.
    """
    error, found = rows.o - rows.golden, []
    size = error.square().sum()
    for key, about, o in _mistakes(rows, precision, block):
        share = 1 - ((rows.o - o).square().sum() / size).item()
        times = ((o - rows.golden).square().sum() / size).sqrt().item()
        same = share >= EXPLAINED
        alike = about.get("declared", False) and 1 / ALIKE <= times <= ALIKE
        if same or alike:
            told = {name: about[name] for name in ("fmt", "tiles") if name in about}
            found.append((same, share if same else -abs(math.log(times)), Cause(key, same, share, **told)))
    return max(found, key=lambda each: each[:2])[-1] if found else None


def _mistakes(rows: Rows, precision: Precision, block: int) -> Iterator[tuple[str, dict, Tensor]]:
    """Key, what is to be told of it, and the output (rows, d_v) of each mistake."""
    n_kv, mask = rows.k.shape[0], rows.masks["asked"]
    tensors = rows.q, rows.k, rows.v
    for key, other in rows.masks.items():
        if key != "asked":
            yield key, {}, kernels.golden(*tensors, inputs=precision.inputs, mask=other, **rows.options)
    changes = dict(scale_missing=dict(scale=1.0), scale_twice=dict(scale=rows.options["scale"] ** 2))
    for name, without in MISSING.items():
        if rows.options[name] is not None:
            changes[f"{name}_missing"] = without
    for key, change in changes.items():
        options = rows.options | change
        yield key, {}, kernels.golden(*tensors, inputs=precision.inputs, mask=mask, **options)
    exact = replace(precision, output=FP64)  # else the rounding of the answer hides what makes the error

    def emulated(changed: Precision, **given) -> Tensor:
        o = kernels.tiled(*tensors, precision=changed, mask=mask, **rows.options, **given)
        return precision.output(o)

    narrow = precision.inputs
    for fmt in (narrow,) if narrow.precision < FP32.precision else (BF16, FP16):
        for key, steps in STEPS.items():
            if all(getattr(precision, step).precision <= fmt.precision for step in steps):
                continue
            changed = replace(exact, **dict.fromkeys(steps, fmt))
            carried = key in CARRIED
            blocks = dict.fromkeys((block, *(size for size in BLOCKS if size < n_kv))) if carried else (block,)
            for size in blocks:
                about = dict(fmt=fmt.name, declared=size == block) | (dict(tiles=-(-n_kv // size)) if carried else {})
                for algorithm in ("fa2", "fa1") if carried else ("fa2",):
                    yield key, about, emulated(changed, tiling=Tiling(64, size), algorithm=algorithm)
    given, told = dict(tiling=Tiling(64, block), algorithm="fa2"), dict(fmt=precision.probs.name, declared=True)
    cut = replace(exact, probs=truncated(precision.probs))
    yield "probs_truncated", told, emulated(cut, **given)


def _masks(q, k, options, fmt):
    """Options of "asked" and of each mistake of masks that would change something; fmt: of the inputs."""
    n_q, n_kv = q.shape[-2], k.shape[-2]
    found, mask = dict(asked=options), options.get("mask")
    if options.get("causal") and n_q != n_kv:
        visible = torch.ones(n_q, n_kv, dtype=torch.bool, device=q.device).tril()
        found["top_left"] = options | dict(causal=False, mask=both(visible, mask))
    if options.get("causal") or mask is not None or options.get("window"):
        found["unmasked"] = options | dict(causal=False, mask=None, window=None)
    if mask is not None and mask.dtype != torch.bool:
        found["mask_rounded"] = options | dict(mask=fmt(mask.detach().double()))
    if not options.get("causal"):
        found["causal"] = options | dict(causal=True)
    return found


def _added(asked: Options, head: int, rows: Tensor) -> Tensor:
    """What is added to the scores of some rows, -inf where a key is hidden: (rows, n_kv)."""
    zero = torch.zeros(asked.n_kv, 1, dtype=torch.float64, device=rows.device)
    return torch.cat([asked.rows(head, slice(row, row + 1))(zero[:1], zero, 0) for row in rows.tolist()])
