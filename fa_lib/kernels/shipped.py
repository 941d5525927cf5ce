"""Real kernels in the emulator's words: the arguments with which `tiled` does what they do.

Each function returns tiling, precision and algorithm, in a dict, and raises a ValueError for a unit, format or head_dim
that the kernel does not have. fmt is of the inputs; unit, of UNITS, is whose matrix unit sums the products: then the
sum P V begins with O. With "" sums are exact, and O is added to them. causal says whether the call will be causal: it
chooses the tile.

Each is put together from its source. Three were compared with the kernel itself: `torch_cpu`; `fa2_cuda` and
`fa2_splitkv` by ptx_machine, which runs FlashAttention-2's code on a CPU (`experiments.original`). Left out of CUDA's,
each a matter of FP32's last bits: the tables of `ex2.approx` (2**y is exact here) and of `rcp.approx`, the
order in which a warp adds up a row sum, and multiply-adds that a compiler fuses unasked.
"""

from dataclasses import replace
from typing import Any

import torch

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.exponentials import fast_exp
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import EXACT
from fa_lib.numerics.formats import BF16, FP16, Format, FormatLike
from fa_lib.numerics.tensor_cores import TensorCore

AMPERE_ON = ("A100", "L40S", "H100", "H200", "B200")  # of UNITS


def torch_cpu(fmt: FormatLike, n_q: int) -> dict[str, Any]:
    """Describe torch's flash kernel on CPU (ATen, FlashAttentionKernel.cpp) for n_q queries.

    Tiles of 512 keys, and of 256, 64 or 32 queries. In BF16 and FP16 the scores, row statistics and O are FP32, P is
    rounded before P V but not in the row sums, and the exponential of P is `fast_exp` where the processor has AVX2 or
    AVX512 (ATEN_CPU_CAPABILITY=default takes the C library's). The gradients dQ, dK, dV are
    added up, tile after tile, in tensors of the inputs' format. What is left out: the order of FP32 additions.
    """
    fmt = Format.of(fmt)
    block_q = 256 if n_q >= 768 else 64 if n_q >= 192 else 32
    precision = replace(Precision.kernel(fmt), grad_sums=fmt)
    exp = fast_exp if fmt in (BF16, FP16) and vectorised() else torch.exp
    return dict(tiling=Tiling(block_q, 512), precision=precision, algorithm=Algorithm("fa2", exp=exp))


def vectorised() -> bool:
    """Return whether torch's CPU kernels run as AVX2 or AVX512 code."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def fa2_cuda(fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False) -> dict[str, Any]:
    """Describe FlashAttention-2 on CUDA (sm80 and later): the last tile of keys first, the scale multiplied in with the
    exponential, O multiplied by 1 / l (`Algorithm.scale_in_exponent`).

    Tiles of 128 keys at head_dim up to 64, of 64 above; an L40S (sm89) takes 32 at head_dim from 97 to 128 without
    causal (flash_fwd_launch_template.h, softmax.h of csrc/flash_attn/src). The number of queries in a tile, which no
    result depends on, is that of an A100. Left out: what the module leaves out. unit: of AMPERE_ON.
    """
    refuse(head_dim, unit, AMPERE_ON)
    keys = 32 if unit == "L40S" and 96 < head_dim <= 128 and not causal else 128 if head_dim <= 64 else 64
    return fa2_with(fmt, keys, unit, accumulate_in_mma=bool(unit))


def fa2_splitkv(fmt: FormatLike, head_dim: int, splits: int, unit: str = "") -> dict[str, Any]:
    """Describe FlashAttention-2's split-KV kernel on CUDA, of decoding: as `fa2_cuda`, with tiles of 256 keys at
    head_dim up to 64, of 128 up to 128 and of 64 above, in `splits` parts of whole tiles, the O of each part in FP32.

    One part has tiles of 128 keys up to 64 and of 64 above, as the newest source has it (run_mha_fwd_splitkv_dispatch).
    Left out beside what the module leaves out: parts are merged by their log-sum-exp in FP32, here sum of
    exp(L_i - max) O_i over its sum with one rounding, there sum of exp(L_i - L) O_i with one at every part
    (combine_attn_seqk_parallel). How many parts the kernel takes follows from its grid and the GPU's processors: the
    caller says it.
    """
    refuse(head_dim, unit, AMPERE_ON)
    widths = (128, 64, 64) if splits == 1 else (256, 128, 64)
    return fa2_with(fmt, width_for(head_dim, (64, 128, 256), widths), unit, accumulate_in_mma=bool(unit), splits=splits)


def fa2_with(fmt: FormatLike, keys: int, unit: str, **more: Any) -> dict[str, Any]:
    """Describe FlashAttention-2 with tiles of `keys` keys. more: further fields of the Algorithm."""
    products = TensorCore.of(unit, fmt) if unit else EXACT
    algorithm = Algorithm("fa2", reverse=True, scale_in_exponent=True, **more)
    precision = replace(Precision.kernel(fmt), products=products)
    return dict(tiling=Tiling(128, keys), precision=precision, algorithm=algorithm)


def width_for(head_dim: int, ends: tuple[int, ...], widths: tuple[int, ...]) -> int:
    """Return that of widths, tiles' keys, whose end of ends is the first that is not below head_dim."""
    return next(width for end, width in zip(ends, widths) if head_dim <= end)


def refuse(head_dim: int, unit: str, units: tuple[str, ...], limit: int = 256) -> None:
    """Refuse a unit that is not of units, and a head_dim above the limit, with a ValueError."""
    if unit and unit not in units:
        raise ValueError(f"unit: got {unit!r}; the kernel runs on {', '.join(units)}; accepted is one of them, or ''")
    if type(head_dim) is not int or not 0 < head_dim <= limit:
        raise ValueError(f"head_dim: got {head_dim!r}; accepted is a whole number from 1 to {limit}")
