"""The gradient of a sink: one number a head, a sum over all rows and features whose terms nearly cancel."""

from collections.abc import Sequence
from typing import Any

import torch

from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16


def sink_gradient(
    seed: int, *, kept: Sequence[float] = (1,), n: int = 1024, heads: int = 8, head_dim: int = 128
) -> list[dict]:
    """A cell: measure the gradient of learned sinks of 0 when its terms, or only their sum, are rounded to BF16 (jax's
    issue 40128).

    The gradient is the sum over rows and features of -P_sink O dO (`kernels.backward`). Each way of rounding is
    compared with two exact sums: one of O as the forward pass stored it, in BF16, and one of the exact O. The sums
    themselves are exact in this experiment.

    Args:
        seed: of the draw. kept: shares, one after the other: dO loses so much of its component along P_sink O that each
            head's sum falls to this share of its first value. 1 changes nothing; the smaller the share, the more the
            terms cancel.
        n: queries and keys, not causal.

    Returns:
        rows: kept; rounded, "terms" (each product), "rows" (each row's sum) or "sum" (the result alone); stored and
        golden, the root mean square over heads of the error to the exact sum of the stored and of the exact O, over the
        root mean square of that sum; left, the mean over heads of |sum| / sum of |terms|, of the stored O.
    """
    q, k, v = (BF16(x) for x in draw("normal", seed, (1, heads, n, head_dim)))
    dO_first = draw("normal", seed + 1_000_000, q.shape)[0]  # (1, heads, n, head_dim)
    sinks: dict[str, Any] = dict(sinks=torch.zeros(heads, dtype=torch.float64))
    exact = kernels.golden(q, k, v, inputs=BF16, **sinks)
    o = kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=Precision.kernel(BF16), **sinks)
    S = q @ k.mT * head_dim**-0.5  # (1, heads, n, n)
    P = 1 / (1 + torch.exp(S).sum(-1, keepdim=True))  # of the sink (1, heads, n, 1)
    along, results = P * o, []
    component = _by_head(along * dO_first) / _by_head(along.square())  # (heads,)
    for share in kept:
        dO = BF16(dO_first - (1 - share) * component[:, None, None] * along)
        terms, golden = -along * dO, _by_head(-P * exact * dO)  # (1, heads, n, head_dim), (heads,)
        stored = _by_head(terms)
        left = (stored.abs() / _by_head(terms.abs())).mean().item()
        ways = dict(terms=_by_head(BF16(terms)), rows=BF16(terms.sum(-1)).sum((0, 2)), sum=stored)
        for name, value in ways.items():
            errors = dict(stored=_relative(BF16(value), stored), golden=_relative(BF16(value), golden))
            results.append(dict(kept=share, rounded=name) | errors | dict(left=left))
    return results


def _by_head(x):
    return x.sum((0, 2, 3))


def _relative(value, exact):
    return ((value - exact).square().mean() / exact.square().mean()).sqrt().item()
