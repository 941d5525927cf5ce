"""Real flash-attention kernels, named explicitly: what cannot run says so, and nothing falls back."""

import warnings
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)

from fa_lib.kernels.options import Asked, check, within
from fa_lib.numerics.formats import BF16, Format, FormatLike

BACKENDS = ("torch", "torch:FA3", "torch:FA4", "flash_attn")


def flash(
    q: Float[Tensor, "*lead n_q d"],
    k: Float[Tensor, "*kv_lead n_kv d"],
    v: Float[Tensor, "*kv_lead n_kv d_v"],
    *,
    backend: str = "torch",
    **options,
) -> Float[Tensor, "*lead n_q d_v"]:
    """A compiled flash-attention kernel, with its own gradients.

    Args:
        backend: "torch" is scaled_dot_product_attention held to its FLASH_ATTENTION backend: on CPU a compiled
            kernel for BF16, FP16, FP32 and FP64 (ATen, FlashAttentionKernel.cpp), on CUDA FlashAttention-2 for
            BF16 and FP16. "torch:FA3" and "torch:FA4" are what torch's registry has under these names.
            "flash_attn" is the flash-attn package's flash_attn_func.
        q: (..., heads, n_q, head_dim). k, v: (..., kv_heads, n_kv, head_dim).
        options: of `options.Asked`. causal is aligned bottom-right, as in every kernel here (torch's own `is_causal`
            aligns top-left). mask: torch's CPU kernel only. window: flash_attn has it, torch's CPU kernel takes it as
            a mask. softcap: flash_attn only. None has sinks, or dropout with a
            given mask.

    Returns:
        o: q's shape and dtype.

    Raises:
        ValueError: an argument does not fit, the backend's name is unknown, or it lacks what is asked for.
        RuntimeError: the kernel cannot run here or on these inputs; what is missing is in the message.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}; accepted are {', '.join(BACKENDS)}")
    asked = Asked.of(**options)
    lacks = {"dropout_p": asked.dropout_p, "softcap": asked.softcap if backend != "flash_attn" else None}
    lacks["mask"] = True if asked.mask is not None and backend == "flash_attn" else None
    lacks["sinks"] = asked.sinks is not None
    for name, value in lacks.items():
        if value:
            raise ValueError(f"{name}: got {value!r}; the kernel {backend!r} has none: use 'tiled'")
    check(q, k, v, **options)
    if backend == "flash_attn":
        return _flash_attn(q, k, v, asked)
    if backend != "torch":
        with _registered(backend.removeprefix("torch:"), q.device):
            return flash(q, k, v, **options)
    causal, mask, window = asked.causal, asked.mask, asked.window
    lead, n_q, n_kv = q.shape[:-2], q.shape[-2], k.shape[-2]
    own_causal = causal and n_q == n_kv and mask is None and window is None
    if window is not None or (causal and not own_causal):
        left, right = window or (None, None)
        visible = within(n_q, n_kv, left, 0 if causal else right, q.device)
        if mask is None or mask.dtype == torch.bool:
            mask = visible if mask is None else mask & visible
        else:
            mask = mask.masked_fill(~visible, -torch.inf)
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.to(q.dtype)).expand(*lead, n_q, n_kv)
        mask = mask.reshape(-1, *mask.shape[-3:]) if mask.ndim > 3 else mask.reshape(1, -1, n_q, n_kv)
    four = [_four(x) for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            o = torch.nn.functional.scaled_dot_product_attention(
                *four,
                attn_mask=mask,
                is_causal=own_causal,
                scale=asked.scale,
                enable_gqa=four[0].shape[1] != four[1].shape[1],
            )
        except RuntimeError as error:
            why = " ".join(str(reason.message).split(" (Triggered")[0] for reason in reasons) or _in_words(error)
            raise RuntimeError(f"torch's FLASH_ATTENTION cannot run {q.dtype} on {q.device}: {why}") from error
    return o.reshape(*lead, n_q, v.shape[-1])


def refusal(backend: str = "torch", fmt: FormatLike = BF16, device: str = "cpu") -> str:
    """Why a backend of `flash` cannot run a format here, by one small call, long enough for torch to pack K and V; ""
    where it can."""
    x = torch.zeros(1, 1, 1024, 32, dtype=Format.of(fmt).dtype, device=device)
    try:
        flash(x, x, x, backend=backend)
    except RuntimeError as error:
        return str(error)
    return ""


def _in_words(error):
    """torch's own message, or what it means where that is known.

    torch packs K and V for the processor's matrix tiles (AMX) where oneDNN finds them, BF16 with amx_bf16 and FP16 with
    amx_fp16, from 64 queries and 64 keys on; its packing exists in AVX512 code alone (ATen, FlashAttentionKernel.cpp).
    """
    if "pack_vnni2" not in str(error):
        return str(error)
    code = torch.backends.cpu.get_cpu_capability()
    return (
        f"torch runs as {code} code here, on a processor with AMX, and packs K and V for AMX in AVX512 code alone; "
        "unset ATEN_CPU_CAPABILITY, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 as well"
    )


def _four(x):
    """(batch, heads, sequence, features), whatever dimensions lead."""
    return x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:])


@contextmanager
def _registered(name, device):
    """torch's flash backend replaced by the one its registry has under `name`."""
    if device.type != "cuda":
        raise RuntimeError(f"torch:{name} needs a CUDA device, and the tensors are on {device}; here 'torch' can run")
    try:
        activate_flash_attention_impl(name)
    except Exception as error:
        raise RuntimeError(f"torch's registry cannot activate {name}: {error}") from error
    try:
        yield
    finally:
        restore_flash_attention_impl()


def _flash_attn(q, k, v, asked):
    if q.device.type != "cuda":
        raise RuntimeError(f"flash_attn needs a CUDA device, and the tensors are on {q.device}; here 'torch' can run")
    try:
        from flash_attn import flash_attn_func  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RuntimeError(f"the package flash-attn is missing ({error}); environment-cuda.yml has it") from error
    sides = tuple(-1 if side is None else side for side in asked.window or (None, None))
    # its layout is (batch, sequence, heads, head_dim)
    transposed = [_four(x).transpose(1, 2) for x in (q, k, v)]
    o = flash_attn_func(
        *transposed, softmax_scale=asked.scale, causal=asked.causal, window_size=sides, softcap=asked.softcap or 0.0
    )
    return o.transpose(1, 2).reshape(*q.shape[:-1], v.shape[-1])
