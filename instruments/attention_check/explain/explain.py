"""`explain`, of tensors and of a file: q, k, v, one output or two, and what the reader believes of them."""

import math
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from attention_check.conventions.low_bits import SCALES
from attention_check.conventions.reading import CapturedCall
from attention_check.explain.explanation import explanation
from attention_check.explain.other_outputs import with_other_outputs
from attention_check.explain.verdict import Explanation
from attention_check.probe.named_tensors import BESIDE, NAMES, SECOND, STARTS, Reading, by_meaning, option_values
from attention_check.probe.read_call import call_of
from attention_check.probe.tensor_files import require, tensors
from fa_lib.kernels.options import CallOptions

LOST = 0.01  # that the inverse of a scale and a number that was fitted may be apart


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
        require(named, stored, "qkvo")
        options = reading.options(option_values(named))
        return {name: call_of(named, reading, options, name) for name in ("o", SECOND) if name in named}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _beside(stored):
    """What came with the output, by their keys in NAMES; and the tensors and options that are none of it. None is not
    there."""
    names = {name.lower() for what in ("dO", *BESIDE, *SCALES, *STARTS) for name in NAMES[what]}
    there = {name: x for name, x in stored.items() if x is not None}
    rest = {name: x for name, x in there.items() if name.lower() not in names}
    return by_meaning({name: x for name, x in there.items() if name not in rest}), rest


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
    return explain_call(call_of(dict(q=q, k=k, v=v, o=o) | beside, Reading(layout=layout), options))
