"""Weights of one model with its units in the order of another's.

The hidden units of a feed-forward layer, and the heads of an attention layer, can change places without any change of
what the model computes. So two models may differ in every weight and still compute the same: before they are compared,
the units of one are matched with those of the other (Ainsworth et al. 2023, arXiv 2209.04836).
"""

import re
from collections.abc import Mapping

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

UNITS = (  # a layer's name, and its tensors: which dimension of each its units, or its heads, are
    (r".*\.ff\.net\.", {"0.proj.weight": 0, "0.proj.bias": 0, "2.weight": 1}),
    (r".*\.DenseReluDense\.", {"wi_0.weight": 0, "wi_1.weight": 0, "wo.weight": 1}),
    (r".*\.attn[12]\.",
     {**{f"to_{x}.{kind}": 0 for x in "qkv" for kind in ("weight", "bias")}, "to_out.0.weight": 1}),
)  # fmt: skip


def aligned(a: Mapping[str, Tensor], b: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Reorder the units of weights a so that they are nearest to those of b: the hidden units of each feed-forward
    layer, and the heads of the transformer. (Those of the text encoder share a position bias, and stay.)

    Args:
        a, b: name -> tensor, of `TextToImage`, of the same shapes.
        heads: of the transformer.

    Returns:
        name -> tensor, of a's shapes.
    """
    tensors = dict(a)
    for pattern, dimensions in UNITS:
        for layer in sorted({match.group() for name in a if (match := re.match(pattern, name))}):
            places = {layer + end: dim for end, dim in dimensions.items() if layer + end in a}
            if places:
                count = heads if "attn" in pattern else a[next(iter(places))].shape[0]
                tensors |= _matched(a, b, places, count)
    return tensors


def _matched(a, b, places, count):
    """Reorder the `count` units of a's tensors at `places` so that they are nearest to b's."""
    similarity = _units(b, places, count) @ _units(a, places, count).T  # (units of b, units of a)
    _, order = linear_sum_assignment(similarity.numpy(), maximize=True)
    out = {}
    for name, dim in places.items():
        split = a[name].unflatten(dim, (count, -1))
        out[name] = split.index_select(dim, torch.from_numpy(order)).reshape(a[name].shape)
    return out


def _units(weights, places, count):
    """What a layer's units hold: (count, numbers), float64."""
    columns = [weights[name].double().unflatten(dim, (count, -1)).movedim(dim, 0) for name, dim in places.items()]
    return torch.cat([x.reshape(count, -1) for x in columns], 1)
