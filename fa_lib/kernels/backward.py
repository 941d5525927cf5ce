"""Gradients of attention, each step rounded: P is recomputed tile by tile, as FlashAttention does.

With dO the gradient of the output O (arXiv 2205.14135, appendix B; arXiv 2307.08691, Algorithm 2):
    dV = Pᵀ dO,  dP = dO Vᵀ,  dS = P ∘ (dP - delta),  dQ = scale dS K,  dK = scale dSᵀ Q,
where delta = rowsum(dO ∘ O), which equals rowsum(P ∘ dP). A sink has no value, so that dP is 0 there: its gradient
is the sum over rows of -P_sink delta.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fa_lib.kernels.rows import by_rows, dropped, flat, rows_at_once, run, stochastic, stored, tiles


def differentiable(
    q: Tensor, k: Tensor, v: Tensor, forward: Callable, backward: Callable, sinks: Tensor | None = None
) -> Tensor:
    """Call a kernel's forward pass, and give its output o the gradients of `backward` where an input requires one.

    Args:
        q, k, v: as `reference`.
        forward: forward(q, k, v) -> (o, statistics of its rows (..., n_q, 1 or 2)).
        backward: backward(q, k, v, o, statistics, dO) -> the gradients of q, k and v, and of sinks where there are any.
        sinks: (heads,).
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, sinks)):
        return _Attention.apply(q, k, v, sinks, forward, backward)
    return forward(q, k, v)[0]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, forward, backward):
        o, statistics = forward(q, k, v)
        ctx.save_for_backward(q, k, v, o, statistics, sinks)
        ctx.backward = backward
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dO):
        q, k, v, o, statistics, sinks = ctx.saved_tensors
        gradients = ctx.backward(q, k, v, o, statistics, dO)
        results = [stored(g, x.dtype) for g, x in zip(gradients, (q, k, v) if sinks is None else (q, k, v, sinks))]
        return *results, *[None] * (6 - len(results))


class Backward:
    """Computes dQ, dK and dV, and the gradient of the sinks where there are any, in the shapes of q, k, v and sinks.

    Args:
        precision, options: the Precision and the ResolvedOptions of the forward call.
        probabilities: a function of S (rows, keys), which it may overwrite, and of the statistics of its rows; it
            returns P (rows, keys).
        tiling: a Tiling for Flash: dQ is summed over tiles of block_kv keys, dK and dV over tiles of block_q queries
            (and over the Q heads that share them), each sum rounded to `precision.grad_sums`; delta = rowsum(dO ∘ O).
            Here block_q changes results. None for Baseline: each matrix product rounds once; delta = rowsum(P ∘ dP), as
            softmax's own gradient has it.

    A call raises a ValueError where the precision's products quantise P.
    """

    def __init__(self, precision, options, probabilities, tiling):
        self.p, self.options, self.probabilities, self.tiling = precision, options, probabilities, tiling

    def __call__(self, q, k, v, o, statistics, dO):
        p, options = self.p, self.options
        if not p.products.has_gradients:
            raise ValueError("precision: got products that quantise P; accepted for gradients are those that do not")
        n_q, block_kv = options.n_q, self.tiling.block_kv if self.tiling else options.n_kv
        dO, o = flat(dO, p), o.detach().double().reshape(-1, *o.shape[-2:])  # (heads, n_q, head_dim)
        statistics = statistics.reshape(dO.shape[0], n_q, -1)  # (heads, n_q, 1 or 2)
        add = p.grad_sums.round_ if self.tiling else lambda x: x  # rounds a running sum, once a tile
        delta = p.delta((dO * o).sum(-1, keepdim=True))  # (heads, n_q, 1); Baseline's is written over it

        def dq_rows(q_i, k, v, scores, statistics_i, dO_i, delta_i):
            dQ = torch.zeros_like(q_i)  # (rows, head_dim)
            for j, k_j, v_j in tiles(k, v, block_kv, scores):
                _, dS = self.pair(scores, q_i, k_j, v_j, j, statistics_i, dO_i, delta_i)
                dQ = add(p.products.matmul(dS, k_j).mul_(options.scale).add_(dQ))
            return p.output(p.grad_sums(dQ))

        rest, dQ = (statistics, dO, delta), q.new_zeros(q.shape, dtype=torch.float64)
        if self.tiling:
            sizes = dict(features=q.shape[-1], width=block_kv)
            dQ = by_rows(dq_rows, (q, k, v), p, options, **sizes, beside=rest, several=True)
        dK_dV = self.dk_dv(q, k, v, dQ.view(-1, n_q, q.shape[-1]), block_kv, add, rest)
        return dQ, *dK_dV, *(() if options.sinks is None else (self.sinks(statistics, delta),))

    def sinks(self, statistics, delta):
        """Compute the gradient of the sinks, (heads,), from statistics (heads, n_q, 1 or 2) and delta (heads, n_q, 1),
        heads being those of all leading dimensions."""
        p, total = self.p, torch.zeros_like(self.options.sinks)
        for head in range(delta.shape[0]):
            S = p.scores(self.options.sink(head)).repeat(self.options.n_q, 1)  # (n_q, 1)
            P = self.probabilities(S, statistics[head])
            total[head % len(total)] += p.grads(P * p.exponent(-delta[head])).sum()
        return p.output(p.grad_sums(total))

    def dk_dv(self, q, k, v, dQ, block_kv, add, rest):
        """Compute dK and dV, in the shapes of k and v; add: rounds a running sum; rest: statistics, dO and delta,
        (heads, n_q, ...) each. Baseline's P and dS serve delta and dQ, (heads, n_q, head_dim), too: both are written.
        """
        p, options, shapes = self.p, self.options, (k.shape, v.shape)
        q, k, v = (flat(x, p) for x in (q, k, v))
        block_q = self.tiling.block_q if self.tiling else rows_at_once(q, options.n_kv, options)
        # Keys are independent here, as rows are elsewhere: tiles of block_kv keys are worked on together, as many as
        # leave each thread some; but one at a time with stochastic formats.
        threads = torch.get_num_threads() if k.device.type == "cpu" else 1
        share = -(-k.shape[0] * options.n_kv // (threads * block_kv))  # tiles
        keys = block_kv * max(1, 0 if stochastic(p) else min(share, rows_at_once(k, block_q, options) // block_kv))
        dK, dV = torch.zeros_like(k), torch.zeros_like(v)

        def work(task):
            kv, first = task
            last = min(first + keys, options.n_kv)
            blocks = [(j, min(j + block_kv, last)) for j in range(first, last, block_kv)]
            for head in range(kv * options.group, (kv + 1) * options.group):
                for i in range(0, options.n_q, block_q):
                    rows = slice(i, min(i + block_q, options.n_q))
                    scores = options.rows(head, rows, p.products)
                    seen = [block for block in blocks if scores.sees(*block)]  # neighbours all
                    if not seen:
                        continue
                    j = seen[0][0]
                    columns = slice(j, seen[-1][1])
                    k_j, v_j, dK_j, dV_j = (x[kv, columns] for x in (k, v, dK, dV))  # (keys, head_dim)
                    q_i, statistics_i, dO_i, delta_i = (x[head, rows] for x in (q, *rest))
                    P, dS = self.pair(scores, q_i, k_j, v_j, j, statistics_i, dO_i, delta_i)
                    if not self.tiling:
                        dQ[head, rows] = p.output(p.grad_sums(p.products.matmul(dS, k_j).mul_(options.scale)))
                    P = dropped(p, scores, P, j)
                    dV[kv, columns] = add(p.products.matmul(P.mT, dO_i).add_(dV_j))
                    dK[kv, columns] = add(p.products.matmul(dS.mT, q_i).mul_(options.scale).add_(dK_j))
            for x in (dK, dV):
                x[kv, first:last] = p.output(p.grad_sums(x[kv, first:last]))

        run([(kv, j) for kv in range(k.shape[0]) for j in range(0, options.n_kv, keys)], work, k.device)
        return tuple(x.reshape(shape) for x, shape in zip((dK, dV), shapes))

    def factors(self, scores, q_i, k_j, v_j, j, statistics_i, dO_i):
        """Compute P before dropout, and dP, of one tile: both (rows, B_c)."""
        p = self.p
        P = self.probabilities(p.scores.round_(scores(q_i, k_j, j)), statistics_i)
        dP = p.scores.round_(p.products.matmul(dO_i, v_j.mT))
        return P, dP if scores.keeps_all else p.scores(scores.drop(dP, j))

    def pair(self, scores, q_i, k_j, v_j, j, statistics_i, dO_i, delta_i):
        """Compute P before dropout, and dS as it enters the matrix products, of one tile: both (rows, B_c)."""
        P, dP = self.factors(scores, q_i, k_j, v_j, j, statistics_i, dO_i)
        if not self.tiling:
            delta_i[:] = self.p.delta((dP * P).sum(-1, keepdim=True))
        dS = self.p.exponent.round_(dP.sub_(delta_i)).mul_(P)
        softcap = self.options.softcap
        if softcap is not None:
            dS = dS * (1 - (scores.capped(q_i, k_j, j) / softcap) ** 2)
        return P, self.p.grads.round_(dS)
