"""Real kernels in the emulator's words: the arguments with which `tiled` does what they do."""

from dataclasses import replace
from typing import Any

import torch

from fa_lib.dots import TensorCore
from fa_lib.formats import BF16, FP16, Format, FormatLike
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.exponentials import fast_exp
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling


def torch_cpu(fmt: FormatLike, n_q: int) -> dict[str, Any]:
    """torch's flash kernel on CPU (ATen, FlashAttentionKernel.cpp) for n_q queries.

    Tiles of 512 keys, and of 256, 64 or 32 queries. In BF16 and FP16 the scores, row statistics and O are FP32, P is
    rounded before P V but not in the row sums, and the exponential of P is `fast_exp` where the processor has AVX2 or
    AVX512 (ATEN_CPU_CAPABILITY=default takes the C library's). The gradients dQ, dK, dV are
    added up, tile after tile, in tensors of the inputs' format. What is left out: the order of FP32 additions.

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.
    """
    fmt = Format.of(fmt)
    block_q = 256 if n_q >= 768 else 64 if n_q >= 192 else 32
    precision = replace(Precision.kernel(fmt), grad_sums=fmt)
    exp = fast_exp if fmt in (BF16, FP16) and vectorised() else torch.exp
    return dict(tiling=Tiling(block_q, 512), precision=precision, algorithm=Algorithm("fa2", exp=exp))


def vectorised() -> bool:
    """True where torch's CPU kernels run as AVX2 or AVX512 code."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def fa2_cuda(fmt: FormatLike, head_dim: int, unit: str = "") -> dict[str, Any]:
    """FlashAttention-2 on CUDA (sm80 and later): tiles of 128 x 128 at head_dim up to 64, 128 x 64 above, the last tile
    of keys first, the scale multiplied in with the exponential, O multiplied by 1 / l (`Algorithm.folded`).

    By its source; it has not been held against a GPU here. What is left out, each a matter of FP32's last bits:
    ex2.approx's own error, the order of row sums, and, where no unit is named, how a tensor core adds.

    Args:
        unit: of `dots.UNITS`, "H100": products are summed as its matrix unit does, and O is what P V begins with.

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.

    Raises:
        ValueError: there is no such unit, or it does not take such inputs.
    """
    tiling, precision = Tiling(128, 128 if head_dim <= 64 else 64), Precision.kernel(fmt)
    if unit:
        precision = replace(precision, products=TensorCore.of(unit, fmt))
    return dict(
        tiling=tiling, precision=precision, algorithm=Algorithm("fa2", reverse=True, folded=True, chained=bool(unit))
    )
