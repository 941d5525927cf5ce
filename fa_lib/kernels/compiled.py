"""Real flash-attention kernels, named explicitly: what cannot run says so, and nothing falls back."""

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.options import CallOptions, Keys, Outputs, Queries, Values, validate
from fa_lib.numerics.formats import BF16, Format, FormatLike


def flash(q: Queries, k: Keys, v: Values, *, backend: str = "torch", **options) -> Outputs:
    """Call a compiled flash-attention kernel, with its own gradients.

    Args:
        q, k, v: as `reference`.
        backend: "torch" is scaled_dot_product_attention restricted to its FLASH_ATTENTION backend: on CPU a compiled
            kernel for BF16, FP16, FP32 and FP64 (ATen, FlashAttentionKernel.cpp), on CUDA FlashAttention-2 for
            BF16 and FP16. "torch:FA3" and "torch:FA4" are the kernels of these names in torch's registry.
            "flash_attn" is the flash-attn package's flash_attn_func.
        options: of `options.CallOptions`. causal is aligned bottom-right, as in every kernel here (torch's own
            `is_causal` aligns top-left). mask: torch's CPU kernel only. window: flash_attn has it, torch's CPU kernel
            takes it as a mask. softcap: flash_attn only. None of them has sinks, or dropout with a mask of the caller.

    Returns:
        o: (..., heads, n_q, d_v) in q's dtype.

    Raises:
        ValueError: an argument does not fit, the backend's name is unknown, or it lacks what is asked for.
        RuntimeError: the kernel cannot run here or on these inputs; what is missing is in the message.
    """
    lacks, run = lookup("backend", backend, BACKENDS)
    settings = CallOptions.of(**options)
    for name in lacks:
        value = getattr(settings, name)
        if isinstance(value, Tensor) or value:
            shown = "a tensor" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"{name}: got {shown}; the kernel {backend!r} has none: use 'tiled'")
    validate(q, k, v, **options)
    return run(q, k, v, settings)


def refusal(backend: str = "torch", fmt: FormatLike = BF16, device: str = "cpu") -> str:
    """Say why a backend of `flash` cannot run a format, of Q, K and V, on this machine; "" where it can. It makes one
    small call, long enough for torch to pack K and V."""
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


def _torch(q, k, v, settings):
    """Call scaled_dot_product_attention, restricted to its FLASH_ATTENTION backend."""
    mask, own_causal = _sdpa_mask(q, k, settings)
    four = [_four(x) for x in (q, k, v)]  # (batch, heads, n, features)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            o = torch.nn.functional.scaled_dot_product_attention(
                *four, attn_mask=mask, is_causal=own_causal, scale=settings.scale,
                enable_gqa=four[0].shape[1] != four[1].shape[1],
            )  # fmt: skip
        except RuntimeError as error:
            why = " ".join(str(reason.message).split(" (Triggered")[0] for reason in reasons) or _in_words(error)
            raise RuntimeError(f"torch's FLASH_ATTENTION cannot run {q.dtype} on {q.device}: {why}") from error
    return o.reshape(*q.shape[:-1], v.shape[-1])


def _sdpa_mask(q, k, settings):
    """Return torch's attn_mask, (batch, heads, n_q, n_kv) or None, and its is_causal, which aligns top-left: another
    alignment and a window become a mask."""
    mask, (lead, n_q, n_kv) = settings.mask, (q.shape[:-2], q.shape[-2], k.shape[-2])
    own_causal = settings.causal and n_q == n_kv and mask is None and settings.window is None
    if settings.window is not None or (settings.causal and not own_causal):
        visible = settings.inside(q, k)  # (n_q, n_kv)
        if mask is None or mask.dtype == torch.bool:
            mask = visible if mask is None else mask & visible
        else:
            mask = mask.masked_fill(~visible, -torch.inf)
    if mask is None:
        return None, own_causal
    return _four((mask if mask.dtype == torch.bool else mask.to(q.dtype)).expand(*lead, n_q, n_kv)), own_causal


def _registered(name, q, k, v, settings):
    """Call `_torch` with the kernel that torch's registry has under `name` as its flash backend."""
    if q.device.type != "cuda":
        raise RuntimeError(f"torch:{name} needs a CUDA device, and the tensors are on {q.device}; here 'torch' can run")
    try:
        activate_flash_attention_impl(name)
    except Exception as error:
        raise RuntimeError(f"torch's registry cannot activate {name}: {error}") from error
    try:
        return _torch(q, k, v, settings)
    finally:
        restore_flash_attention_impl()


def _four(x):
    """(batch, heads, sequence, features), whatever dimensions lead."""
    return x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:])


def _flash_attn(q, k, v, settings):
    if q.device.type != "cuda":
        raise RuntimeError(f"flash_attn needs a CUDA device, and the tensors are on {q.device}; here 'torch' can run")
    try:
        from flash_attn import flash_attn_func  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RuntimeError(f"the package flash-attn is missing ({error}); environment-cuda.yml has it") from error
    sides = tuple(-1 if side is None else side for side in settings.window or (None, None))
    transposed = [_four(x).transpose(1, 2) for x in (q, k, v)]  # (batch, n, heads, head_dim)
    o = flash_attn_func(
        *transposed, softmax_scale=settings.scale, causal=settings.causal, window_size=sides,
        softcap=settings.softcap or 0.0,
    )  # fmt: skip
    return o.transpose(1, 2).reshape(*q.shape[:-1], v.shape[-1])


_TORCH_LACKS = ("dropout_p", "softcap", "sinks")
BACKENDS: dict[str, tuple[tuple[str, ...], Callable[..., Tensor]]] = {
    # -> the options of `options.CallOptions` that it lacks, and run(q, k, v, settings) -> o, settings a CallOptions
    "torch": (_TORCH_LACKS, _torch),
    "torch:FA3": (_TORCH_LACKS, partial(_registered, "FA3")),
    "torch:FA4": (_TORCH_LACKS, partial(_registered, "FA4")),
    "flash_attn": (("dropout_p", "mask", "sinks"), _flash_attn),
}
