"""The golden value beyond FP64: attention in double-double, for kernels whose format is FP64 or close to it."""

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.kernels.options import Keys, Queries, ResolvedOptions, Values
from fa_lib.kernels.reference import refuse_nonfinite
from fa_lib.kernels.rows import rows_at_once, run
from fa_lib.numerics.formats import Format, FormatLike


def golden_pair(
    q: Queries, k: Keys, v: Values, *, inputs: FormatLike, scale: float | None = None
) -> tuple[Float64[Tensor, "*lead n_q d_v"], Float64[Tensor, "*lead n_q d_v"]]:
    """Compute the golden value as high + low, where high is its rounding to FP64; the same bits on any machine.

    Computed on the CPU, a few rows of Q at a time, on torch's number of threads. Arguments as of `golden`, of whose
    options it has the scale alone; its default is rounded to float64.

    Returns:
        (high, low): float64 (..., heads, n_q, d_v) each, on q's device. Their sum's error is some n_kv² 2**-106 of the
        largest |v| at most; with d and n_kv of some hundred and scores of some ten it is near 1e-30.

    Raises:
        ValueError: an argument does not fit, or an input is not finite.
    """
    from fa_lib.numerics import double_double

    refuse_nonfinite(q, k, v)
    settings, fmt, device = ResolvedOptions.of(q, k, v, scale=scale), Format.of(inputs), q.device
    Q, K, V = (fmt(x.detach().double().cpu().reshape(-1, *x.shape[-2:])).numpy() for x in (q, k, v))
    V = np.concatenate([V, np.ones_like(V[..., :1])], -1)  # its last column sums P
    high, low = np.empty((2, len(Q), settings.n_q, V.shape[-1] - 1))
    step = rows_at_once(torch.from_numpy(Q), settings.n_kv, settings)

    def work(task):
        head, first = task
        rows, kv = slice(first, first + step), head // settings.group
        S, S_low = double_double.matmul(Q[head, rows], np.ascontiguousarray(K[kv].T))  # (rows, n_kv)
        S, e = double_double.multiply(S, settings.scale)
        x, y = double_double.add(S, -S.max(-1, keepdims=True))
        P, P_low = double_double.exp(*double_double.add(x, y + (e + S_low * settings.scale)))  # (rows, n_kv)
        O, O_low = double_double.matmul(P, V[kv], P_low)  # (rows, d_v + 1)
        l, l_low = O[:, -1:], O_low[:, -1:]
        high[head, rows], low[head, rows] = double_double.divide(O[:, :-1], O_low[:, :-1], l, l_low)

    run([(head, first) for head in range(len(Q)) for first in range(0, settings.n_q, step)], work, torch.device("cpu"))
    shape = (*settings.lead, settings.n_q, V.shape[-1] - 1)
    high, low = (torch.from_numpy(x).reshape(shape).to(device) for x in (high, low))
    return high, low
