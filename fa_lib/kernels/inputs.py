"""Q, K, V drawn from a seed, by distribution."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.numerics.formats import FP32


def _outliers(rng, shape):
    return rng.standard_normal(shape) + 10.0 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)


def _as_drawn(q, k, v):
    return q, k, v


def _attracted(keys: slice, of_keys: int, of_queries: int):
    """Make the change that gives every query the component `of_queries` along one direction, and makes `keys` that
    direction, of_keys * sqrt(head_dim) long."""

    def change(q, k, v):
        d = q.shape[-1]
        along = torch.ones(d, dtype=q.dtype) / d**0.5
        k = k.clone()
        k[..., keys, :] = along * of_keys * d**0.5
        return FP32(q - (q @ along)[..., None] * along + of_queries * along), FP32(k), v

    return change


def _off_by_one(q, k, v):
    return q, torch.cat([k, k[..., :1, :].flip(-1)], -2), torch.cat([v, v[..., :1, :].flip(-1)], -2)


_DRAWN = {"uniform": np.random.Generator.random, "outliers": _outliers}  # the others are drawn from N(0, 1)
DISTRIBUTIONS = {  # -> what becomes of Q, K, V then
    "uniform": _as_drawn,  # on [0, 1)
    "normal": _as_drawn,
    "outliers": _as_drawn,  # N(0, 1) + N(0, 100) * Bernoulli(0.001), arXiv 2407.08608
    # what makes trouble:
    "sink": _attracted(slice(1), 3, 3),  # the first key attracts every query: P is near 1 there
    # every eighth key is the same, scores 8, and attains each row's maximum: P = 1 there
    "repeated maxima": _attracted(slice(None, None, 8), 4, 2),
    "one-signed V": lambda q, k, v: (q, k, v.abs()),
    "peaked": lambda q, k, v: (8 * q, k, v),  # logits of standard deviation 8: few keys matter
    "flat": lambda q, k, v: (q / 8, k, v),  # logits of standard deviation 1/8: all keys matter the same
    "off by one": _off_by_one,  # one key more than the others have: the last tile holds one
}
UNEVEN = "off by one"  # of DISTRIBUTIONS: more keys than queries


def draw(
    distribution: str, seed: int, shape: Sequence[int], kv_shape: Sequence[int] | None = None
) -> tuple[Float64[Tensor, "*q"], Float64[Tensor, "*kv"], Float64[Tensor, "*kv"]]:
    """Draw Q, K, V from a seed, the same values on every platform.

    Draws are rounded to the FP32 grid. The platform's influence (the last bit of its log and exp in the tails of the
    normal distribution) is far below that, and captured tensors have no more bits either.

    Args:
        distribution: a name of DISTRIBUTIONS.
        seed: whole number >= 0.
        shape: of Q, (batch, heads, sequence, head_dim) or any leading dimensions.
        kv_shape: of K and V; None is Q's.

    Returns:
        (q, k, v): float64, of these shapes; with "off by one", K and V have one key more.

    Raises:
        ValueError: unknown distribution, negative seed, a dimension below 1.
    """
    change = lookup("distribution", distribution, DISTRIBUTIONS)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed: got {seed!r}; accepted is a whole number of at least 0")
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = []
    for size in (shape, kv_shape or shape, kv_shape or shape):
        if min(size) < 1:
            raise ValueError(f"shape: got {tuple(size)}; accepted are dimensions of at least 1")
        values = _DRAWN.get(distribution, np.random.Generator.standard_normal)(rng, tuple(size))
        tensors.append(torch.from_numpy(values.astype(np.float32).astype(np.float64)))
    return change(*tensors)
