"""`explain`, of tensors and of a file: q, k, v, one output or two, and what the reader believes of them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.low_bits import EIGHT_BITS, OF_P, SCALES, dequantised
from attention_check.conventions.reading import CapturedCall
from attention_check.explain.explanation import explanation
from attention_check.explain.other_outputs import with_other_outputs
from attention_check.explain.verdict import Explanation
from attention_check.probe.named_tensors import (
    BESIDE,
    NAMES,
    SECOND,
    STARTS,
    Reading,
    by_meaning,
    narrowed,
    narrower_format,
    option_values,
)
from attention_check.probe.packed import kept_apart
from attention_check.probe.tensor_files import tensors
from fa_lib.kernels.options import CallOptions, validate, within
from fa_lib.numerics.formats import Format

LOST = 0.01  # that the inverse of a scale and a number that was fitted may be apart
TAKEN = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def read(path: str | Path, reading: Reading) -> dict[str, CapturedCall]:
    """ "o", and "o_ref" where the file holds a second output -> the call with that output.

    Args:
        path: .safetensors, .npz or .pt without pickle, with q, k, v, o, a second output, what came with o, and options,
            under any of `named_tensors.NAMES`. Tensors of three dimensions have no batch; of two, no heads either. With
            cu_seqlens they are (rows of all sequences, heads, head_dim).
        reading: what the reader says of them. Values in a wider dtype that are all BF16's or FP16's are taken in it.

    Raises:
        ValueError: names the file, and the tensor that is missing or not accepted.
    """
    stored = {name: x.detach() for name, x in tensors(path, reading.allow_large).items()}
    try:
        named = by_meaning(stored)
        if missing := [name for name in "qkvo" if name not in named]:
            accepted, held = ", ".join(NAMES[missing[0]]), ", ".join(stored)
            raise ValueError(f"{missing[0]}: it is not in the file, which has {held}; accepted is {accepted}")
        outputs = {name: named[name] for name in ("o", SECOND) if name in named}
        options = reading.options(option_values(named))
        q, k, v = (named[name] for name in "qkv")
        beside, _ = _beside(named)
        of_second = {name: x for name, x in beside.items() if name in (*SCALES, *STARTS)}
        return {
            name: captured_call(q, k, v, o, reading, options, beside if name == "o" else of_second)
            for name, o in outputs.items()
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _beside(stored):
    """What came with the output, by their keys in NAMES; and the tensors and options that are none of it. None is not
    there."""
    names = {name.lower() for what in ("dO", *BESIDE, *SCALES, *STARTS) for name in NAMES[what]}
    there = {name: x for name, x in stored.items() if x is not None}
    rest = {name: x for name, x in there.items() if name.lower() not in names}
    return by_meaning({name: x for name, x in there.items() if name not in rest}), rest


def _in_order(name: str, x: Tensor, layout: str) -> Tensor:
    """A tensor as (batch, heads, sequence, features), a log-sum-exp as (batch, heads, sequence): of three dimensions it
    has no batch, of two no heads either. Raises a ValueError where it has no accepted dtype, or other dimensions."""
    of_rows = name in ("lse", "dlse")
    x = x[..., 0] if of_rows and isinstance(x, Tensor) and x.ndim == 4 and x.shape[-1] == 1 else x
    most = 3 if of_rows else 4  # dimensions
    if not isinstance(x, Tensor) or x.dtype not in (*TAKEN, *(EIGHT_BITS if name in ("q", "k", "v") else ())):
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name}: got {got}; accepted are {', '.join(f'{each}'[6:] for each in TAKEN)}")
    if not most - 2 <= x.ndim <= most or 0 in x.shape[: most - 1]:
        accepted = f"{most - 2} to {most} dimensions of at least 1"
        raise ValueError(f"{name}: got shape {tuple(x.shape)}; accepted are {accepted}")
    turn = layout == "bshd" and not of_rows and x.ndim > 2
    x = x[(None,) * (most - x.ndim)]
    return x.transpose(1, 2) if turn else x


def captured_call(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, reading: Reading, options: Mapping[str, Any],
    beside: Mapping[str, Tensor],
) -> CapturedCall:  # fmt: skip
    """The call of tensors in a layout.

    Args:
        q, k, v, o: of four dimensions, in the layout of `reading`; three are of one batch, two of one head as well.
        options: of `kernels.options.CallOptions`, as they are believed.
        beside: what came with the output, of BESIDE, and dO; and STARTS, where sequences are packed.

    Raises:
        ValueError: a tensor has another number of dimensions, or no accepted dtype; or the sequences are not accepted.
    """
    layout, masks, first = reading.layout, {}, ()
    if starts := {name: x for name, x in beside.items() if name in STARTS}:
        first = tuple(next(iter(starts.values())).reshape(-1).tolist())
        masks = with_lengths_of_q(q, k, starts, options)
        layout, options = "bshd", kept_apart(q, k, starts, options)
    found = {name: _in_order(name, x, layout) for name, x in dict(q=q, k=k, v=v, o=o).items()}
    others = {name: _in_order(name, x, layout) for name, x in beside.items() if name not in (*SCALES, *STARTS)}
    scales = {name: x for name, x in beside.items() if name in SCALES}
    values, stated = dequantised({name: found[name] for name in "qkv"}, scales)
    found |= values
    if len({found[name].dtype for name in "qkv"}) > 1:
        raise ValueError(f"k: got {found['k'].dtype}, and v in {found['v'].dtype}; accepted is q's, {found['q'].dtype}")
    fmt = reading.fmt or ("" if stated else narrower_format(found))
    fmt, stated = ("", fmt) if fmt in OF_P else (fmt, stated)
    if stated in ("BF16", "FP16") and all(narrowed(x, Format.of(stated).dtype) is not x for x in values.values()):
        fmt, stated = stated, ""
    if not fmt and all(torch.equal(x.float().double(), x.double()) for x in found.values() if x.dtype == torch.float64):
        fmt = "FP32" if found["q"].dtype == torch.float64 else ""
    if fmt:
        dtype = Format.of(fmt).dtype
        found |= {name: found[name].to(dtype) for name in "qkv"}
        found["o"] = narrowed(found["o"], dtype)
        others |= {name: narrowed(others[name], dtype) for name in ("dq", "dk", "dv") if name in others}
    held = {name: x for name, x in options.items() if x is not None}
    q, k, v, o = (found[name] for name in ("q", "k", "v", "o"))
    numbers = {name: x.item() for name, x in scales.items() if x.numel() == 1}
    call = CapturedCall(q, k, v, o, held, others, stated, numbers, masks=masks, starts=first)
    _check(call)
    return call


def with_lengths_of_q(
    q: Tensor, k: Tensor, starts: Mapping[str, Tensor], options: Mapping[str, Any]
) -> dict[str, Tensor]:  # fmt: skip
    """The masks, as `packed.kept_apart` makes them, of packed sequences whose keys are taken where the queries are, or
    as many as queries; {} where queries and keys have the same places."""
    if len(starts) < len(STARTS) or options.get("mask") is not None or q.ndim != 3 or k.ndim != 3:
        return {}
    of_q, of_k = (starts[name].reshape(-1).tolist() for name in STARTS)
    left, right = options.get("window") or (None, None)
    right = (0 if right is None else min(right, 0)) if options.get("causal") else right
    masks = {"starts_of_q": torch.zeros(len(q), len(k), dtype=torch.bool)}
    masks["lengths_of_q"] = masks["starts_of_q"].clone()
    for first, end, key in zip(of_q, of_q[1:], of_k):
        block = within(end - first, end - first, left, right, torch.device("cpu"))
        for name, at in (("starts_of_q", first), ("lengths_of_q", key)):
            part = masks[name][first:end, at : at + end - first]
            part |= block[:, : part.shape[1]]
    return {} if of_q == of_k else masks


def _check(call):
    """Raise a ValueError for an option that no call has."""
    for name in ("keep", "dropout_p"):
        if name in call.options:
            raise ValueError(f"{name}: got {call.options[name]!r}; accepted is a call without dropout")
    batch, heads, n_q, n_kv = *call.q.shape[:3], call.k.shape[2]
    mask = call.options.get("mask")
    tensors = torch.ones(1, 1, n_q, 1), torch.ones(1, 1, n_kv, 1), torch.ones(1, 1, n_kv, 1)
    validate(*tensors, **{name: x for name, x in call.options.items() if name not in ("mask", "sinks")})
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"mask: got {type(mask).__name__}; accepted is a tensor")
    layouts = [(batch, heads, n_q, n_kv), (batch, n_q, heads, call.k.shape[1])]  # read so, or the other way
    if mask is not None and batch == 1 and mask.ndim == 4 and mask.shape[0] == heads:  # heads are in the features
        layouts.append((heads, mask.shape[1], n_q, n_kv))
    shape = () if mask is None else mask.shape
    fits = (all(a in (1, b) for a, b in zip(reversed(shape), reversed(each))) for each in layouts)
    if len(shape) > 4 or not any(fits):
        raise ValueError(f"mask: got shape {tuple(shape)}; accepted is one that broadcasts to {layouts[0]}")


def explain_call(call: CapturedCall) -> Explanation:
    """What an output is, and what came with it; raises Unfit where the tensors make no call in any layout."""
    found = explanation(call)
    found = replace(found, **_scales(found, call.scales), sequence=_sequence(found, call.starts))
    return with_other_outputs(call, found)


def _scales(found, scales):
    """Which scales in 8 bits a number of the dialect undoes, and whether it exchanges those of k and v."""

    def undoes(aspect, number):
        fitted = found.dialect.get(aspect)
        return isinstance(fitted, float) and abs(fitted * number - 1) < LOST

    of = dict(q_scale="scale", k_scale="scale", v_scale="factor")  # what an output is off by that lacks it
    lost = tuple(name for name, x in scales.items() if undoes(of[name], x) and not undoes(of[name], 1.0))
    k, v = (scales.get(name, math.nan) for name in ("k_scale", "v_scale"))
    return dict(lost=lost, swapped=k != v and undoes("scale", k / v) and undoes("factor", v / k))


def _sequence(found, starts):
    """The packed sequence that has all wrong rows; None where there is none."""
    if not found.where or not found.where.rows or found.where.features:
        return None
    (first, _), (_, last) = found.where.rows[0], found.where.rows[-1]
    return next((i for i, (at, end) in enumerate(zip(starts, starts[1:])) if at <= first and last < end), None)


def explain(q: Tensor, k: Tensor, v: Tensor, o: Tensor, *, layout: str = "bhsd", **options) -> Explanation:
    """Explain an output of q, k and v: is it rounding or a bug, and why? `print` it to read it.

    Args:
        q: (batch, heads, n_q, head_dim). k, v: (batch, kv_heads, n_kv, head_dim or d_v). o: (batch, heads, n_q, d_v).
            No batch, and no heads either, where they have fewer dimensions.
        layout: "bhsd", or "bshd": (batch, sequence, heads, head_dim).
        options: what is believed of the call: causal, scale, mask, window, softcap, sinks. What came with the output,
            where it did: lse, the log-sum-exp of each row's scores (batch, heads, n_q); dO, the output's gradient, in
            its shape; dq, dk, dv, those of q, k and v for it, in theirs; dlse,
            lse's gradient, like it, where they are for that too. For packed sequences, tensors (rows of all
            sequences, heads, head_dim): cu_seqlens, and cu_seqlens_k where keys differ, (sequences + 1,).

    Raises:
        ValueError: a tensor is not accepted, or the tensors make no call of attention in any layout.
    """
    beside, options = _beside(options)
    CallOptions.of(**options)
    return explain_call(captured_call(q, k, v, o, Reading(layout=layout), options, beside))
