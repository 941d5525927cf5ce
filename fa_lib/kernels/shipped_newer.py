"""FlashAttention-3 and 4 in the emulator's words: what `shipped` has, with arguments, results and errors as there, for
newer kernels than FlashAttention-2."""

from dataclasses import replace
from typing import Any

from fa_lib.kernels.polynomials import mixed_exp2
from fa_lib.kernels.shipped import fa2_with, refuse, width_for
from fa_lib.numerics.formats import BF16, E4M3, FP16, Format, FormatLike

HOPPER, BLACKWELL = ("H100", "H200"), ("B200",)  # of UNITS


def fa3_cuda(
    fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False, two_level: bool = False
) -> dict[str, Any]:
    """Describe FlashAttention-3 on Hopper: as `shipped.fa2_cuda`, with larger tiles, O always chained through the MMA;
    and FP8.

    Tiles of keys by head_dim (hopper/tile_size.h): 16 bits 192 up to 64 (causal 128), 144 up to 96, 176 up to 128
    (causal 128), 112 up to 192, 80 above; E4M3 160, 128, 224, 160, 128.

    In E4M3 P is 2**8 exp(S - m) in E4M3 (hopper/softmax.h, Max_offset), and the output BF16. Q, K and V are taken as
    they are stored: give `tiled` the scale times the scales of Q and K, and multiply O by V's. Left out beside
    what `shipped` leaves out: which 32 keys an FP8 instruction takes together, since the kernel permutes them.

    Args:
        fmt: FP16, BF16 or E4M3. unit: of HOPPER, or "".
        two_level: whether P V begins at zero in each tile, and is then added to O in FP32: not in FlashAttention-3's
            source, where this is an open request (flash-attention, pull request 2250), but in vLLM's copy of it
            (vllm-project/flash-attention, pull request 104).
    """
    fmt = _one_of(fmt, FP16, BF16, E4M3)
    refuse(head_dim, unit, HOPPER)
    widths = (160, 128, 224, 160, 128) if fmt == E4M3 else (192, 144, 176, 112, 80)
    if causal and fmt != E4M3:
        widths = (128, 144, 128, 112, 80)
    keys = width_for(head_dim, (64, 96, 128, 192, 256), widths)
    arguments = fa2_with(fmt, keys, unit, accumulate_in_mma=not two_level, p_exponent_offset=8 if fmt == E4M3 else None)
    if fmt != E4M3:
        return arguments
    return arguments | dict(precision=replace(arguments["precision"], output=BF16, grads=BF16))


def fa4_cuda(fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False) -> dict[str, Any]:
    """Describe FlashAttention-4 on a B200 (sm100), 16 bits and head_dim up to 128: as `shipped.fa2_cuda` with tiles of
    128 keys, and with two changes:

    - m is replaced, and O and l rescaled, only where the row's maximum has risen by more than 2**8 since
      (SoftmaxSm100.update_row_max of flash_attn/cute/softmax.py, rescale_threshold of flash_fwd_sm100.py);
    - a part of the exponentials is a polynomial of degree 3 (`mixed_exp2`): of 128 keys 24 at head_dim
      from 97 to 128 without causal, where two processors work together, else 16 (_TUNING_CONFIG of flash_fwd_sm100.py).

    Left out beside what `shipped` leaves out: tiles at the edge of a mask, the last tile of keys among them, take no
    polynomial; the period that is tuned for other calls (lengths that differ, few queries, a B300, which takes none);
    FP8, whose threshold and offset have changed from request to request (2578, 2694, 2717, 2731).
    causal chooses the period of the polynomials. unit: of BLACKWELL, or "".
    """
    fmt = _one_of(fmt, FP16, BF16)
    refuse(head_dim, unit, BLACKWELL, limit=128)
    power = mixed_exp2(10 if head_dim > 96 and not causal else 16)
    arguments = fa2_with(fmt, 128, unit, accumulate_in_mma=True)
    return arguments | dict(algorithm=replace(arguments["algorithm"], name="fa4", threshold=8, exp2=power))


def fa4_hopper(fmt: FormatLike, head_dim: int, unit: str = "", *, causal: bool = False) -> dict[str, Any]:
    """Describe FlashAttention-4 on Hopper, 16 bits and head_dim up to 128: as `shipped.fa2_cuda` with O chained
    through the MMA and tiles of 128 keys, of 144 for head_dim 65 to 96 without causal (_tile_size_fwd_sm90 of
    flash_attn/cute/interface.py). It has neither the polynomials nor the threshold of `fa4_cuda`.
    unit: of HOPPER, or "".
    """
    fmt = _one_of(fmt, FP16, BF16)
    refuse(head_dim, unit, HOPPER, limit=128)
    return fa2_with(
        fmt, width_for(head_dim, (64, 96, 128), (128, 128 if causal else 144, 128)), unit, accumulate_in_mma=True
    )


def _one_of(fmt: FormatLike, *accepted: Format) -> Format:
    own = Format.of(fmt)
    if own not in accepted:
        raise ValueError(f"fmt: got {own}; accepted are {', '.join(map(str, accepted))}")
    return own
