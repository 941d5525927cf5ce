"""Three kernels that are easily confused, emulated in the format of their inputs, under names of their own.

`baseline` takes and returns what `reference` does, and the others what `tiled` does, but a precision.
"""

from typing import Any

from fa_lib.kernels.options import Keys, Outputs, Queries, Values
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.reference import reference
from fa_lib.kernels.tiled import tiled
from fa_lib.kernels.tiling import Tiling


def baseline(q: Queries, k: Keys, v: Values, **options) -> Outputs:
    """Emulate Baseline Attention: S, P and O in q's dtype, the softmax inside in FP32 (`Precision.materialized`)."""
    return reference(q, k, v, precision=Precision.materialized(q.dtype), **options)


def as_shipped(q: Queries, k: Keys, v: Values, **options) -> Outputs:
    """Emulate FlashAttention-2 as shipped: O and l carried in FP32 (`Precision.kernel`), in tiles of 64."""
    return tiled(q, k, v, tiling=Tiling(64, 64), precision=Precision.kernel(q.dtype), **options)


def every_step(q: Queries, k: Keys, v: Values, **options) -> Outputs:
    """Emulate Flash of arXiv 2405.02803: every step in q's dtype, O and l too (`Precision.uniform`, fa1); tiles of
    64."""
    defaults: dict[str, Any] = dict(tiling=Tiling(64, 64), precision=Precision.uniform(q.dtype), algorithm="fa1")
    return tiled(q, k, v, **defaults | options)
