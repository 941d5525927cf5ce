"""Q, K, V drawn from a seed, by distribution."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.numerics.formats import FP32


def _uniform(rng, shape):
    return rng.random(shape)


def _normal(rng, shape):
    return rng.standard_normal(shape)


def _outliers(rng, shape):
    return rng.standard_normal(shape) + 10.0 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)


DISTRIBUTIONS = {
    "uniform": _uniform,  # on [0, 1)
    "normal": _normal,  # N(0, 1)
    "outliers": _outliers,  # N(0, 1) + N(0, 100) * Bernoulli(0.001), arXiv 2407.08608
    # what makes trouble, for standard normal Q, K, V otherwise:
    "sink": _normal,  # the first key attracts every query: P is near 1 there
    "repeated maxima": _normal,  # every eighth key is the same, and attains each row's maximum: P = 1 there
    "one-signed V": _normal,  # V >= 0
    "peaked": _normal,  # logits of standard deviation 8: few keys matter
    "flat": _normal,  # logits of standard deviation 1/8: all keys matter the same
    "off by one": _normal,  # one key more than the others have: the last tile holds one
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
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution: got {distribution!r}; accepted are {', '.join(DISTRIBUTIONS)}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed: got {seed!r}; accepted is a whole number of at least 0")
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = []
    for size in (shape, kv_shape or shape, kv_shape or shape):
        if min(size) < 1:
            raise ValueError(f"shape: got {tuple(size)}; accepted are dimensions of at least 1")
        values = DISTRIBUTIONS[distribution](rng, tuple(size))
        tensors.append(torch.from_numpy(values.astype(np.float32).astype(np.float64)))
    return _TROUBLE.get(distribution, lambda *x: x)(*tensors)


def _sink(q, k, v):
    """Give every query the component 3 along one direction; the first key is that direction, 3 * sqrt(head_dim)
    long."""
    d = q.shape[-1]
    along = torch.ones(d, dtype=q.dtype) / d**0.5
    k = k.clone()
    k[..., 0, :] = along * 3 * d**0.5
    return FP32(q - (q @ along)[..., None] * along + 3 * along), FP32(k), v


def _repeated_maxima(q, k, v):
    """Make every eighth key the same one; it scores 8 for every query, twice as much as the others reach."""
    d = q.shape[-1]
    along = torch.ones(d, dtype=q.dtype) / d**0.5
    k = k.clone()
    k[..., ::8, :] = along * 4 * d**0.5
    return FP32(q - (q @ along)[..., None] * along + 2 * along), FP32(k), v


def _off_by_one(q, k, v):
    return q, torch.cat([k, k[..., :1, :].flip(-1)], -2), torch.cat([v, v[..., :1, :].flip(-1)], -2)


_TROUBLE = {
    "sink": _sink,
    "repeated maxima": _repeated_maxima,
    "one-signed V": lambda q, k, v: (q, k, v.abs()),
    "peaked": lambda q, k, v: (8 * q, k, v),
    "flat": lambda q, k, v: (q / 8, k, v),
    "off by one": _off_by_one,
}
