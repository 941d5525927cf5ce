"""Causal attention for training a decoder on a CPU, all heads at once, each arm in its own arithmetic.

A step that is kept in BF16 is an operation on bfloat16 tensors: torch computes it in FP32 and rounds once. Matrix
products multiply BF16 values, add up in FP32 and round once, as tensor cores do. The backward passes are the kernels'
own (arXiv 2205.14135, appendix B; arXiv 2307.08691, Algorithm 2), not autograd's of the emulation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fa_lib.numerics.formats import Format

FP32, BF16 = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Arithmetic:
    """What an arm's attention computes in.

    Attributes:
        tiled: Flash Attention in tiles; else Baseline, which writes S and P.
        inputs: dtype of q, k, v, P and dS as they enter a matrix product, and of the output.
        steps: dtype of S, m, P, dP, dS and of the log-sum-exp.
        sum_bits: significant bits in which l and O are kept from tile to tile (24: FP32; 8: BF16); and dQ, dK, dV where
            `steps` is BF16.
        delta_bits: significant bits of the O in delta = rowsum(dO * O): 8 is the stored output, 24 the O of FP32 sums.
        block: keys of a tile (B_c), and queries of a tile (B_r) where dK and dV are summed.
    """

    tiled: bool = True
    inputs: torch.dtype = BF16
    steps: torch.dtype = FP32
    sum_bits: int = 24
    delta_bits: int = 8
    block: int = 16


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply BF16 or FP32 matrices, summed in FP32 and rounded once: (g, m, k), (g, k, n) -> (g, m, n)."""
    return torch.bmm(a.float(), b.float()).to(dtype)


def kept(bits: int) -> Callable[[Tensor], Tensor]:
    """Return the function that rounds a sum to so many significant bits, with BF16's range; values in FP32 or BF16."""
    if bits == 24:
        return lambda x: x
    if bits == 8:
        return lambda x: x.to(BF16).to(x.dtype)
    fmt = Format.of((8, bits))
    return lambda x: fmt.round_(x.double()).to(x.dtype)


class Attention(torch.autograd.Function):
    """Causal attention, called `Attention.apply(q, k, v, how)`: q, k, v FP32 (batch, heads, n, head_dim), how an
    Arithmetic. The output is FP32 in that shape; where `how.inputs` is BF16, its values and the gradients' are BF16's.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: Arithmetic) -> Tensor:
        shape = q.shape
        q, k, v = (x.reshape(-1, *shape[-2:]).to(how.inputs) for x in (q, k, v))  # (batch * heads, n, head_dim)
        O, *saved = (tiled if how.tiled else baseline)(q, k, v, how)
        ctx.save_for_backward(q, k, v, *saved)
        ctx.how = how
        return O.float().reshape(shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor | None, ...]:
        shape, how = dO.shape, ctx.how
        dO = dO.reshape(-1, *shape[-2:]).to(how.inputs)
        backward: Callable = tiled_backward if how.tiled else baseline_backward
        gradients = backward(*ctx.saved_tensors, dO, how)
        return *(x.to(how.inputs).float().reshape(shape) for x in gradients), None


def hidden(rows: int, keys: int, first: int = 0) -> Tensor:
    """Return which keys each row may not see, bool (rows, keys); the first key is that of row `first`."""
    return torch.ones(rows, keys, dtype=torch.bool).triu_(1 - first)


def baseline(q: Tensor, k: Tensor, v: Tensor, how: Arithmetic) -> tuple[Tensor, ...]:
    """Compute O and P, S and P written in `how.inputs`, as a framework does; the softmax itself is in FP32."""
    n, scale = q.shape[1], 1 / math.sqrt(q.shape[2])
    S = (product(q, k.mT, FP32) * scale).to(how.inputs).float()  # (g, n, n)
    P = torch.softmax(S.masked_fill_(hidden(n, n), -math.inf), -1).to(how.inputs)
    return product(P, v, how.inputs), P


def baseline_backward(
    q: Tensor, k: Tensor, v: Tensor, P: Tensor, dO: Tensor, how: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dQ, dK and dV: dP and dS are written in `how.inputs`; delta = rowsum(P * dP) is in FP32."""
    scale = 1 / math.sqrt(q.shape[2])
    dP, wide = product(dO, v.mT, how.inputs).float(), P.float()  # (g, n, n)
    dS = ((dP - (wide * dP).sum(-1, keepdim=True)) * wide).to(how.inputs)
    return product(dS, k, FP32) * scale, product(dS.mT, q, FP32) * scale, product(P.mT, dO, FP32)


def tiled(q: Tensor, k: Tensor, v: Tensor, how: Arithmetic) -> tuple[Tensor, ...]:
    """Compute O, the log-sum-exp L (g, n, 1) and the O that delta is made of, tile by tile, as FlashAttention-2."""
    (g, n, d), keep, steps = q.shape, kept(how.sum_bits), how.steps
    m = torch.full((g, n, 1), -math.inf, dtype=steps)  # row maximum
    l = torch.zeros(g, n, 1, dtype=steps)  # row sum
    O = torch.zeros(g, n, d, dtype=steps)
    for j in range(0, n, how.block):
        S = product(q[:, j:], k[:, j : j + how.block].mT, steps) * (1 / math.sqrt(d))  # (g, n - j, B_c)
        S[:, : how.block].masked_fill_(hidden(how.block, how.block), -math.inf)
        m_old, m_new = m[:, j:], torch.maximum(m[:, j:], S.amax(-1, keepdim=True))
        P = S.sub_(m_new).exp_()
        a = torch.exp(m_old - m_new)  # rescales what the earlier tiles left
        l[:, j:] = keep(keep(l[:, j:] * a) + keep(P.sum(-1, keepdim=True)))
        PV = product(P.to(how.inputs), v[:, j : j + how.block], steps)  # (g, n - j, d)
        O[:, j:] = keep(keep(O[:, j:] * a) + keep(PV))
        m[:, j:] = m_new
    O = O.div_(l)
    stored = O.to(how.inputs)
    return stored, m + torch.log(l), stored if how.delta_bits == 8 else kept(how.delta_bits)(O)


def tiled_backward(
    q: Tensor, k: Tensor, v: Tensor, L: Tensor, O: Tensor, dO: Tensor, how: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dQ, dK and dV: P is made again from S and L; dQ is summed over tiles of keys, dK and dV over tiles of
    queries."""
    (g, n, d), steps, scale = q.shape, how.steps, 1 / math.sqrt(q.shape[2])
    delta = (dO.float() * O.float()).sum(-1, keepdim=True).to(steps)  # (g, n, 1)
    rows = 4 * how.block if steps is BF16 else n  # queries of a tile; sums in FP32 differ by their order alone
    dQ, dK, dV = (torch.zeros(g, n, d, dtype=steps) for _ in range(3))
    for j in range(0, n, how.block):
        keys, i = slice(j, j + how.block), j // rows * rows  # i: the first tile of queries that sees these keys
        S = product(q[:, i:], k[:, keys].mT, steps) * scale  # (g, n - i, B_c)
        P = S.sub_(L[:, i:]).exp_()
        last = j + how.block - i  # behind these rows no key is hidden
        P[:, :last].masked_fill_(hidden(last, how.block, j - i), 0.0)
        dP = product(dO[:, i:], v[:, keys].mT, steps)
        dS = dP.sub_(delta[:, i:]).mul_(P).to(how.inputs)
        dQ[:, i:] += product(dS, k[:, keys], steps) * scale
        for a in range(i, n, rows):
            dK[:, keys] += product(dS[:, a - i : a - i + rows].mT, q[:, a : a + rows], steps)
            dV[:, keys] += product(P[:, a - i : a - i + rows].to(how.inputs).mT, dO[:, a : a + rows], steps)
    return dQ, dK * scale, dV
