"""Three kernels that are easily confused, emulated in the format of their inputs, under names of their own."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from fa_lib.kernels.precision import Precision
from fa_lib.kernels.reference import reference
from fa_lib.kernels.tiled import tiled
from fa_lib.kernels.tiling import Tiling


def baseline(
    q: Float[Tensor, "*lead n_q d"],
    k: Float[Tensor, "*kv_lead n_kv d"],
    v: Float[Tensor, "*kv_lead n_kv d_v"],
    **options,
) -> Float[Tensor, "*lead n_q d_v"]:
    """Baseline Attention: S, P and O written in q's dtype, the softmax inside in FP32 (`Precision.materialized`)."""
    return reference(q, k, v, precision=Precision.materialized(q.dtype), **options)


def as_shipped(
    q: Float[Tensor, "*lead n_q d"],
    k: Float[Tensor, "*kv_lead n_kv d"],
    v: Float[Tensor, "*kv_lead n_kv d_v"],
    **options,
) -> Float[Tensor, "*lead n_q d_v"]:
    """FlashAttention-2 as shipped: O and l carried in FP32 from tile to tile (`Precision.kernel`), tiles of 64."""
    return tiled(q, k, v, tiling=Tiling(64, 64), precision=Precision.kernel(q.dtype), **options)


def every_step(
    q: Float[Tensor, "*lead n_q d"],
    k: Float[Tensor, "*kv_lead n_kv d"],
    v: Float[Tensor, "*kv_lead n_kv d_v"],
    **options,
) -> Float[Tensor, "*lead n_q d_v"]:
    """Flash of arXiv 2405.02803: every step in q's dtype, O and l too (`Precision.uniform`, fa1), tiles of 64."""
    given: dict[str, Any] = dict(tiling=Tiling(64, 64), precision=Precision.uniform(q.dtype), algorithm="fa1")
    return tiled(q, k, v, **given | options)
