"""Which caches of few bits each captured head would bear: K and V quantised, Q and P in the tensors' own format."""

from typing import Any

from torch import Tensor

from attention_check.measure.captured import by_head
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import Scheme
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation, over_baseline

CACHES = {"FP8_HEAD": "FP8 with a scale a head", "MXFP8_UP": "MXFP8", "NVFP4": "NVFP4"}  # key of SCHEMES -> label
BEARS = 0.05  # of O, root mean square: on normal inputs FP8 loses 4 %, NVFP4 13.5 % (notebook 16)


def caches(q: Tensor, k: Tensor, v: Tensor, options: dict) -> list[dict]:
    """What a cache in each of CACHES makes of the output, by head; one whose groups do not divide head_dim is left out.

    Returns:
        rows: head; cache, a key of CACHES; relative: root mean square error over that of O, NaN or infinite where the
        output is not finite; times_rmse: over that of the same kernel without a quantised cache. NVFP4 has one scale
        for all heads of a tensor, so that a head's numbers depend on the others.
    """
    fmt, rows = Format.of(q.dtype), []
    golden = by_head(kernels.golden(q, k, v, inputs=fmt, **options))
    call: dict[str, Any] = dict(tiling=Tiling(64, 64), precision=Precision.kernel(fmt), **options)
    plain = by_head(attention(q, k, v, Quantization(), **call))
    for key in CACHES:
        scheme = Scheme.of(key)
        if scheme.per == "group" and any(x.shape[-1] % scheme.size for x in (k, v)):
            continue
        outs = by_head(attention(q, k, v, Quantization.cache(scheme), **call))
        for head, (o, base, g) in enumerate(zip(outs, plain, golden)):
            d, own = deviation(o, g, fmt), deviation(base, g, fmt)
            times = over_baseline(d.rmse, own.rmse)
            rows.append(dict(head=head, cache=key, relative=d.relative, times_rmse=times))
    return rows
