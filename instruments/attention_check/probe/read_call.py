"""A call of attention from tensors by their names, in any layout and format that people store."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.low_bits import EIGHT_BITS, OF_P, SCALES, dequantised
from attention_check.conventions.reading import CapturedCall
from attention_check.probe.named_tensors import BESIDE, SECOND, STARTS, Reading, narrowed, narrower_format
from attention_check.probe.packed import kept_apart
from fa_lib.kernels.options import validate
from fa_lib.numerics.formats import Format

TAKEN = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
NO_OUTPUT = torch.empty(0)


def call_of(
    named: Mapping[str, Tensor], reading: Reading, options: Mapping[str, Any], output: str = "o"
) -> CapturedCall:  # fmt: skip
    """The call of tensors in a layout. Values in a wider dtype that are all BF16's or FP16's are taken in it.

    Args:
        named: q, k, v, o, a second output, what came with o, scales and starts, by the keys of `named_tensors.NAMES`.
            Tensors of three dimensions have no batch; of two, no heads either. With cu_seqlens they are (rows of all
            sequences, heads, head_dim). Without the output, the call's is NO_OUTPUT.
        options: of `kernels.options.CallOptions`, as they are believed. output: "o", or SECOND, which nothing came
            with.

    Raises:
        ValueError: a tensor has another number of dimensions, or no accepted dtype; or the sequences are not accepted.
    """
    options = {name: x for name, x in options.items() if x is not None}
    layout, masks, first = reading.layout, {}, ()
    if starts := {name: named[name] for name in STARTS if name in named}:
        first = tuple(next(iter(starts.values())).reshape(-1).tolist())
        options, masks = kept_apart(named["q"], named["k"], starts, options)
        layout = "bshd"
    own = {"o": named[output]} if output in named else {}
    found = {name: _in_order(name, x, layout) for name, x in ({name: named[name] for name in "qkv"} | own).items()}
    others = {name: _in_order(name, named[name], layout) for name in ("dO", *BESIDE) if name in named}
    scales = {name: named[name] for name in SCALES if name in named}
    values, stated = dequantised({name: found[name] for name in "qkv"}, scales)
    found |= values
    for name in "kv":
        if found[name].dtype != found["q"].dtype:
            raise ValueError(f"{name}: got {found[name].dtype}; accepted is q's, {found['q'].dtype}")
    fmt = reading.fmt or ("" if stated else narrower_format(found))
    fmt, stated = ("", fmt) if fmt in OF_P else (fmt, stated)
    if stated in ("BF16", "FP16") and all(narrowed(x, Format.of(stated).dtype) is not x for x in values.values()):
        fmt, stated = stated, ""
    wide = [x for x in found.values() if x.dtype == torch.float64]
    if not fmt and own and values["q"].dtype == torch.float64:
        fmt = "FP32" if all(narrowed(x, torch.float32) is not x for x in wide) else ""
    if fmt:
        dtype = Format.of(fmt).dtype
        found |= {name: found[name].to(dtype) for name in "qkv"}
        found |= {name: narrowed(found[name], dtype) for name in own}
        others |= {name: narrowed(others[name], dtype) for name in ("dq", "dk", "dv") if name in others}
    q, k, v, o = (found.get(name, NO_OUTPUT) for name in "qkvo")
    numbers = {name: x.item() for name, x in scales.items() if x.numel() == 1}
    beside = {} if output == SECOND else others
    call = CapturedCall(q, k, v, o, options, beside, stated, numbers, masks=masks, starts=first)
    _check(call)
    return call


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
