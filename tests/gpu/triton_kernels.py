"""Small Triton kernels for tests; the good one is examples/triton_attention.py."""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"block": 64}), triton.Config({"block": 128})], key=["n"])
@triton.jit
def doubled(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def carries_16_bits(q, k, v):
    """It believes that it is on a GPU, as many do."""
    assert q.is_cuda and q.device.type == "cuda", "tensors on a GPU are needed"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        raise RuntimeError("sm_80 is needed")
    (batch, heads, n_q, d), n = q.shape, k.shape[2]
    if k.shape[:2] != q.shape[:2] or n % 64 or d != 64 or q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError("64-fold keys, head_dim 64, BF16 or FP16")
    q = torch.nn.functional.pad(q, (0, 0, 0, -n_q % 64)).contiguous()
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    with torch.cuda.device(q.device):
        grid, inputs = (q.shape[2] // 64, batch * heads), (q, k.contiguous(), v.contiguous())
        flash_with_a_coarse_step[grid](*inputs, o, q.shape[2], n, d, 64, 3)
    return o[:, :, :n_q]


@triton.jit
def products(x, y, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, tl.load(x + at) * tl.load(y + at))


class Product(torch.autograd.Function):
    """x y, with gradients that kernels compute."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return Product.of(x, y)

    @staticmethod
    def of(x, y):
        out = torch.empty_like(x)
        products[(1,)](x, y, out, x.numel())
        return out

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return Product.of(g.contiguous(), y), Product.of(g.contiguous(), x)


def product(q, k, v):
    return Product.apply(q, k) + 0 * v


@triton.jit
def flash_with_a_coarse_step(Q, K, V, O, n_q, n, D: tl.constexpr, block: tl.constexpr, STEP: tl.constexpr):
    """Attention in FP32 but for P, O and the step STEP: 1 scores, 2 row sum, 3 accumulator; n_q and n are multiples of
    block."""
    head, key, column = tl.program_id(1), tl.arange(0, block), tl.arange(0, D)
    row = tl.program_id(0) * block + key
    q = tl.load(Q + head * n_q * D + row[:, None] * D + column[None, :])
    m, l = tl.full([block], float("-inf"), tl.float32), tl.zeros([block], tl.float32)
    o = tl.zeros([block, D], tl.float32)
    for first in range(0, n, block):
        place = head * n * D + (first + key)[:, None] * D + column[None, :]
        s = tl.dot(q, tl.trans(tl.load(K + place))) * (1.4426950408889634 * 0.125)
        if STEP == 1:
            s = s.to(q.dtype).to(tl.float32)  # the coarse scores
        m_new = tl.maximum(m, tl.max(s, 1))
        p, a = tl.exp2(s - m_new[:, None]), tl.exp2(m - m_new)
        l = l * a + tl.sum(p, 1)
        if STEP == 2:
            l = l.to(q.dtype).to(tl.float32)  # the coarse row sum
        o = o * a[:, None] + tl.dot(p.to(q.dtype), tl.load(V + place))
        if STEP == 3:
            o = o.to(q.dtype).to(tl.float32)  # the coarse accumulator
        m = m_new
    tl.store(O + head * n_q * D + row[:, None] * D + column[None, :], (o / l[:, None]).to(q.dtype))


def _with_step(step):
    def attention(q, k, v):
        o = torch.empty_like(q)
        flash_with_a_coarse_step[(1,)](q, k, v, o, q.shape[2], k.shape[2], 64, 64, step)
        return o

    return attention


exact_inside, coarse_scores, coarse_row_sum, coarse_accumulator = map(_with_step, range(4))


@triton.jit
def split(Q, K, V, parts, sums, n, D: tl.constexpr, block: tl.constexpr):
    """A part of the keys: O and l of it, unscaled scores, no maximum."""
    row, column, part = tl.arange(0, block), tl.arange(0, D), tl.program_id(0)
    q = tl.load(Q + row[:, None] * D + column[None, :])
    place = (part * block + row)[:, None] * D + column[None, :]
    p = tl.exp(tl.dot(q, tl.trans(tl.load(K + place))) * 0.125)
    tl.atomic_add(sums + row, tl.sum(p, 1))
    o = tl.dot(p.to(q.dtype), tl.load(V + place))
    tl.store(parts + (part * block + row)[:, None] * D + column[None, :], o.to(q.dtype))  # parts in 16 bits


@triton.jit
def merge(parts, sums, O, count, D: tl.constexpr, block: tl.constexpr):
    row, column = tl.arange(0, block), tl.arange(0, D)
    o = tl.zeros([block, D], tl.float32)
    for part in range(count):
        o += tl.load(parts + (part * block + row)[:, None] * D + column[None, :]).to(tl.float32)
    tl.store(O + row[:, None] * D + column[None, :], o / tl.load(sums + row)[:, None])


def in_parts(q, k, v):
    """Two kernels; O is in FP32, and turned to q's dtype by torch."""
    count = k.shape[2] // 64
    parts, sums, o = torch.empty(count, 64, 64, dtype=q.dtype), torch.zeros(64), torch.empty(q.shape)
    split[(count,)](q, k, v, parts, sums, k.shape[2], 64, 64)
    merge[(1,)](parts, sums, o, count, 64, 64)
    return o.to(q.dtype)
