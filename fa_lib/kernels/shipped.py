"""Real kernels in the emulator's words: the arguments with which `tiled` does what they do.

Each is put together from its source. Three were compared with the kernel itself: `torch_cpu`; `fa2_cuda` and
`fa2_splitkv` by ptx_machine, which runs FlashAttention-2's code on a CPU (`experiments.original`). Left out of CUDA's,
each a matter of FP32's last bits: the tables of `ex2.approx` (2**y is exact here) and of `rcp.approx`, the
order in which a warp adds up a row sum, and multiply-adds that a compiler fuses unasked.
"""

from dataclasses import replace
from typing import Any

import torch

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.exponentials import fast_exp, mixed_exp2
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import EXACT
from fa_lib.numerics.formats import BF16, E4M3, FP16, Format, FormatLike
from fa_lib.numerics.tensor_cores import TensorCore

AMPERE_ON, HOPPER, BLACKWELL = (("A100", "L40S", "H100", "H200", "B200"), ("H100", "H200"), ("B200",))  # of UNITS


def torch_cpu(fmt: FormatLike, n_q: int) -> dict[str, Any]:
    """Describe torch's flash kernel on CPU (ATen, FlashAttentionKernel.cpp) for n_q queries.

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
    """Return whether torch's CPU kernels run as AVX2 or AVX512 code."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def fa2_cuda(fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False) -> dict[str, Any]:
    """Describe FlashAttention-2 on CUDA (sm80 and later): the last tile of keys first, the scale multiplied in with the
    exponential, O multiplied by 1 / l (`Algorithm.scale_in_exponent`).

    Tiles of 128 keys at head_dim up to 64, of 64 above; an L40S (sm89) takes 32 at head_dim from 97 to 128 without
    causal (flash_fwd_launch_template.h, softmax.h of csrc/flash_attn/src). The number of queries in a tile, which no
    result depends on, is that of an A100. Left out: what the module leaves out.

    Args:
        fmt: of the inputs.
        head_dim: up to 256.
        unit: of AMPERE_ON: products are summed as its matrix unit does, and the sum P V begins with O; "": sums are
            exact, and O is added to them.
        causal: whether the call will be causal: it chooses the tile.

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.

    Raises:
        ValueError: there is no such unit, it does not take such inputs, or the kernel runs on none such or takes no
            such head_dim.
    """
    _refuse(head_dim, unit, AMPERE_ON)
    keys = 32 if unit == "L40S" and 96 < head_dim <= 128 and not causal else 128 if head_dim <= 64 else 64
    return _fa2(fmt, keys, unit, accumulate_in_mma=bool(unit))


def fa2_splitkv(fmt: FormatLike, head_dim: int, splits: int, unit: str = "") -> dict[str, Any]:
    """Describe FlashAttention-2's split-KV kernel on CUDA, of decoding: as `fa2_cuda`, with tiles of 256 keys at
    head_dim up to 64, of 128 up to 128 and of 64 above, in `splits` parts of whole tiles, the O of each part in FP32.

    One part has tiles of 128 keys up to 64 and of 64 above, as the newest source has it (run_mha_fwd_splitkv_dispatch).
    Left out beside what the module leaves out: parts are merged by their log-sum-exp in FP32, here sum of
    exp(L_i - max) O_i over its sum with one rounding, there sum of exp(L_i - L) O_i with one at every part
    (combine_attn_seqk_parallel). How many parts the kernel takes follows from its grid and the GPU's processors: the
    caller says it.

    Args:
        fmt, head_dim, unit: as of `fa2_cuda`.
        splits: number of parts of the keys, from 1.

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.

    Raises:
        ValueError: as `fa2_cuda`; or splits is no whole number from 1.
    """
    _refuse(head_dim, unit, AMPERE_ON)
    widths = (128, 64, 64) if splits == 1 else (256, 128, 64)
    return _fa2(fmt, _by(head_dim, (64, 128, 256), widths), unit, accumulate_in_mma=bool(unit), splits=splits)


def fa3_cuda(
    fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False, two_level: bool = False
) -> dict[str, Any]:
    """Describe FlashAttention-3 on Hopper: as `fa2_cuda`, with larger tiles, O always chained through the MMA; and FP8.

    Tiles of keys by head_dim (hopper/tile_size.h): 16 bits 192 up to 64 (causal 128), 144 up to 96, 176 up to 128
    (causal 128), 112 up to 192, 80 above; E4M3 160, 128, 224, 160, 128.

    In E4M3 P is 2**8 exp(S - m) in E4M3 (hopper/softmax.h, Max_offset), and the output BF16. Q, K and V are taken as
    they are stored: give `tiled` the scale times the scales of Q and K, and multiply O by V's. Left out beside
    what the module leaves out: which 32 keys an FP8 instruction takes together, since the kernel permutes them.

    Args:
        fmt: FP16, BF16 or E4M3.
        head_dim, causal: as of `fa2_cuda`.
        unit: of HOPPER, or "".
        two_level: whether P V begins at zero in each tile, and is then added to O in FP32: not in FlashAttention-3's
            source, where this is an open request (flash-attention, pull request 2250), but in vLLM's copy of it
            (vllm-project/flash-attention, pull request 104).

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.

    Raises:
        ValueError: as `fa2_cuda`; or it is another format.
    """
    fmt = _one_of(fmt, FP16, BF16, E4M3)
    _refuse(head_dim, unit, HOPPER)
    widths = (160, 128, 224, 160, 128) if fmt == E4M3 else (192, 144, 176, 112, 80)
    if causal and fmt != E4M3:
        widths = (128, 144, 128, 112, 80)
    keys = _by(head_dim, (64, 96, 128, 192, 256), widths)
    arguments = _fa2(fmt, keys, unit, accumulate_in_mma=not two_level, p_exponent_offset=8 if fmt == E4M3 else None)
    if fmt != E4M3:
        return arguments
    return arguments | dict(precision=replace(arguments["precision"], output=BF16, grads=BF16))


def fa4_cuda(fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False) -> dict[str, Any]:
    """Describe FlashAttention-4 on a B200 (sm100), 16 bits and head_dim up to 128: as `fa2_cuda` with tiles of 128
    keys, and with two changes:

    - m is replaced, and O and l rescaled, only where the row's maximum has risen by more than 2**8 since
      (SoftmaxSm100.update_row_max of flash_attn/cute/softmax.py, rescale_threshold of flash_fwd_sm100.py);
    - a part of the exponentials is a polynomial of degree 3 (`exponentials.mixed_exp2`): of 128 keys 24 at head_dim
      from 97 to 128 without causal, where two processors work together, else 16 (_TUNING_CONFIG of flash_fwd_sm100.py).

    Left out beside what the module leaves out: tiles at the edge of a mask, the last tile of keys among them, take no
    polynomial; the period that is tuned for other calls (lengths that differ, few queries, a B300, which takes none);
    FP8, whose threshold and offset have changed from request to request (2578, 2694, 2717, 2731).

    Args:
        fmt: FP16 or BF16.
        head_dim: up to 128.
        unit: of BLACKWELL, or "".
        causal: whether the call will be causal: it chooses the period.

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.

    Raises:
        ValueError: as `fa2_cuda`; or it is another format.
    """
    fmt = _one_of(fmt, FP16, BF16)
    _refuse(head_dim, unit, BLACKWELL, limit=128)
    power = mixed_exp2(10 if head_dim > 96 and not causal else 16)
    arguments = _fa2(fmt, 128, unit, accumulate_in_mma=True)
    return arguments | dict(algorithm=replace(arguments["algorithm"], name="fa4", threshold=8, exp2=power))


def fa4_hopper(fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False) -> dict[str, Any]:
    """Describe FlashAttention-4 on Hopper, 16 bits and head_dim up to 128: as `fa2_cuda` with O chained through the MMA
    and tiles of 128 keys, of 144 for head_dim 65 to 96 without causal (_tile_size_fwd_sm90 of flash_attn/cute/
    interface.py). It has neither the polynomials nor the threshold of `fa4_cuda`.

    Args:
        fmt: FP16 or BF16.
        head_dim: up to 128.
        unit: of HOPPER, or "".
        causal: whether the call will be causal.

    Returns:
        dict of tiling, precision and algorithm, for `tiled`.

    Raises:
        ValueError: as `fa2_cuda`; or it is another format.
    """
    fmt = _one_of(fmt, FP16, BF16)
    _refuse(head_dim, unit, HOPPER, limit=128)
    return _fa2(fmt, _by(head_dim, (64, 96, 128), (128, 128 if causal else 144, 128)), unit, accumulate_in_mma=True)


def _fa2(fmt: FormatLike, keys: int, unit: str, **more: Any) -> dict[str, Any]:
    """Describe FlashAttention-2 with tiles of `keys` keys. more: further fields of the Algorithm."""
    products = TensorCore.of(unit, fmt) if unit else EXACT
    algorithm = Algorithm("fa2", reverse=True, scale_in_exponent=True, **more)
    precision = replace(Precision.kernel(fmt), products=products)
    return dict(tiling=Tiling(128, keys), precision=precision, algorithm=algorithm)


def _by(head_dim: int, ends: tuple[int, ...], widths: tuple[int, ...]) -> int:
    """Return the width of the first end that is not below head_dim."""
    return next(width for end, width in zip(ends, widths) if head_dim <= end)


def _refuse(head_dim: int, unit: str, units: tuple[str, ...], limit: int = 256) -> None:
    if unit and unit not in units:
        raise ValueError(f"unit: got {unit!r}; the kernel runs on {', '.join(units)}; accepted is one of them, or ''")
    if type(head_dim) is not int or not 0 < head_dim <= limit:
        raise ValueError(f"head_dim: got {head_dim!r}; accepted is a whole number from 1 to {limit}")


def _one_of(fmt: FormatLike, *accepted: Format) -> Format:
    own = Format.of(fmt)
    if own not in accepted:
        raise ValueError(f"fmt: got {own}; accepted are {', '.join(map(str, accepted))}")
    return own
