"""The tensors of `reports.REPORTS`: a function makes those of each thread.

Where the library of then is not at hand, a few lines make the defect; the thread has what was found.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import E4M3, FP16, FP64, TF32


@dataclass(frozen=True)
class Call:
    """The tensors of a report.

    Attributes:
        q: (batch, heads, n_q, head_dim). k, v: (batch, kv_heads, n_kv, head_dim or d_v). o: the output that was
            reported, (batch, heads, n_q, d_v) or in its author's layout.
        believed: the options of the call, as the author took them to be.
        others: what else was reported: lse, dO, dq, dk, dv.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    believed: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Tensor] = field(default_factory=dict)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> list[Tensor]:
    """Three normal tensors of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(dtype) for _ in range(3)]


def _turned(x):
    return x.transpose(1, 2)


def _bf16():
    return drawn(1, 8, 256, 64)


def _fp32(n=256):
    return drawn(1, 8, n, 64, dtype=torch.float32)


def _few_queries(dtype=torch.bfloat16):
    q, k, v = (x.to(dtype) for x in _fp32())
    return q[:, :, :32], k, v


def _visible(n_q, n, share=0.5):
    return torch.rand(n_q, n, generator=torch.Generator().manual_seed(3)) < share


def softmax_over_dim_0():
    q, k, v = (drawn(4, 4, n, 8, dtype=torch.float32, seed=n)[0] for n in (2, 3, 4))
    return Call(q, k, v[:, :, :3], torch.softmax(q @ k.mT / 8**0.5, 0) @ v[:, :, :3])


def other_last_stride():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, k.mT.reshape(k.shape), v))


def no_features():
    v = drawn(1, 16, 16, 1, dtype=torch.float32)[0]
    return Call(v[..., :0], v[..., :0], v, torch.zeros_like(v))


def less_exact():
    q, k, v = drawn(1, 16, 64, 64, dtype=torch.float32)
    return Call(q, k, v, kernels.unfused(q, k, v, scale=8**-0.5), dict(scale=8**-0.5, mask=torch.zeros(64, 64)))


def one_head():
    q, k, v = drawn(2, 1, 128, 256, dtype=torch.float32)
    return Call(q, k, v, sdpa(q, k, v))


def nan_hidden():
    q, k, v = drawn(2, 4, 16, 8, dtype=torch.float32)
    o = sdpa(q, k, v)
    q[0, 0, 5, 0] = math.nan
    return Call(q, k, v, o)


def block_hidden():
    """exp(-inf + inf) where a block of 512 keys is hidden from a row."""
    q, k, v = drawn(1, 2, 640, 64, dtype=torch.float32)
    mask = torch.full((640, 640), -math.inf).triu(1) + torch.full((640, 640), -math.inf).tril(-10)
    o = sdpa(q, k, v, attn_mask=mask)
    o[:, :, 522:] = math.nan
    return Call(q, k, v, o, dict(mask=mask))


def split_scale():
    q, k, v = _bf16()
    root = 64**-0.25
    o = torch.softmax((q * root) @ (k * root).mT, -1) @ v
    return Call(q, k, v, o)


def one_query():
    q, k, v = drawn(1, 1, 1000, 64)
    mask = _visible(1, 1000, 0.58)
    return Call(q[:, :, :1], k, v, sdpa(q[:, :, :1], k, v, attn_mask=mask), dict(mask=mask))


def large_inputs():
    q, k, v = (10 * x for x in drawn(1, 16, 240, 128))
    return Call(q, k, v, sdpa(q, k, v))


def future_seen():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, k, v), dict(causal=True))


def other_polarity():
    q, k, v = _bf16()
    mask = torch.ones(256, 256, dtype=torch.bool).tril()
    return Call(q, k, v, sdpa(q, k, v, attn_mask=~mask.tril(-1)), dict(mask=mask.tril(-1)))


def top_left():
    q, k, v = _few_queries(torch.float32)
    return Call(q, k, v, sdpa(q, k, v, is_causal=True), dict(causal=True))


def executed_in_bf16(**options):
    q, k, v = drawn(4, 1, 64, 128, dtype=torch.float32)
    return Call(q, k, v, kernels.flash(*(x.bfloat16() for x in (q, k, v))).float(), options)


def wrong_product():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, torch.cat([k[..., 1::2], k[..., 0::2]], -1), v))


def bottom_right():
    q, k, v = drawn(1, 4, 1024, 64, dtype=torch.float16)
    q = q[:, :, :32]
    return Call(q, k, v, kernels.flash(q, k, v, causal=True), dict(mask=torch.ones(32, 1024, dtype=torch.bool).tril()))


def layout():
    q, k, v = drawn(2, 82, 8, 64, dtype=torch.float32)
    return Call(q, k, v, _turned(sdpa(*map(_turned, (q, k, v)))))


def sinks_dropped():
    q, k, v = drawn(1, 8, 34, 64)
    return Call(q[:, :, :1], k, v, sdpa(q[:, :, :1], k, v), dict(sinks=torch.linspace(0, 4, 8)))


def layout_of_jax():
    q, k, v = drawn(1, 4, 32, 64, dtype=torch.float32)
    return Call(q, k, v, _turned(sdpa(*map(_turned, (q, k, v)))))


def bits_multiplied():
    q, k, v = drawn(1, 1, 16, 16)
    bits = q.view(torch.int16).double() @ k.view(torch.int16).double().mT
    return Call(q, k, v, (bits @ v.double()).bfloat16())


def tf32():
    q, k, v = _fp32()
    rounded_q, rounded_k, rounded_v = (TF32(x.double()).float() for x in (q, k, v))
    return Call(q, k, v, sdpa(rounded_q, rounded_k, rounded_v))


def last_key_lost():
    q, k, v = drawn(1, 2, 225, 512)
    return Call(q, k, v, sdpa(q, k[:, :, :224], v[:, :, :224]))


def strides_of_another():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, _turned(k.reshape(1, 256, 8, 64)), v))


def fp8(x: Tensor) -> Tensor:
    """A tensor in E4M3, with one scale a head."""
    scale = x.abs().amax((-1, -2), keepdim=True) / 448
    return E4M3((x / scale).double()).float() * scale


def eight_bits():
    q, k, v = _fp32()
    return Call(q.bfloat16(), k.bfloat16(), v.bfloat16(), sdpa(fp8(q), fp8(k), fp8(v)).bfloat16())


def zeros():
    q, k, v = _fp32()
    return Call(q, k, v, torch.zeros_like(v))


def near_zero():
    q, k, v = _bf16()
    v = v - v.mean(2, keepdim=True)
    return Call(q, k, v, sdpa(q, k, v))


def fp16_carried():
    q = drawn(1, 4, 64, 64, dtype=torch.float16)[0]
    k, v = (torch.rand(1, 4, 4096, 64, generator=torch.Generator().manual_seed(i)).half() for i in (1, 2))
    precision = replace(Precision.kernel(FP16), accumulator=FP16, row_sum=FP16)
    return Call(q, k, v, kernels.tiled(q, k, v, tiling=Tiling(64, 32), precision=precision))


def fp16():
    q, k, v = drawn(1, 8, 128, 64, dtype=torch.float16)
    return Call(q, k, v, kernels.as_shipped(q, k, v))


def gradients_of_another_order():
    q, k, v = drawn(2, 2, 49, 32, dtype=torch.float32)
    dO = torch.arange(q.numel(), dtype=torch.float32).reshape(q.shape) / q.numel()
    for each in (q, k, v):
        each.requires_grad_()
    o = sdpa(q, k, v)
    in_memory = dO.reshape(2, 49, 2, 32).transpose(1, 2)  # the same numbers, filled in as they lie in memory
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), in_memory)
    return Call(q.detach(), k.detach(), v.detach(), o.detach(), others=dict(dO=dO, dq=dq, dk=dk, dv=dv))


def inverted_after():
    q, k, v = (side.unflatten(-1, (8, 64)).transpose(1, 2) for side in drawn(10, 1, 512, dtype=torch.float32))
    return Call(q, k, v, kernels.unfused(q, k, v))  # 1 / o is 16 apart where o is near 0; o itself is right


def int8_products():
    """q k^T in integers, with a scale for each row, after K's mean is taken off: SageAttention's step."""
    q, k, v = drawn(2, 4, 512, 128, dtype=torch.float16)
    q8, k8 = (int8(x) for x in (q.double(), k.double() - k.double().mean(2, keepdim=True)))
    return Call(q, k, v, kernels.golden(q8, k8, v.double(), inputs=FP64, causal=True).half(), dict(causal=True))


def int8(x: Tensor) -> Tensor:
    """A tensor (..., n, d) in integers to 127, times a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale
