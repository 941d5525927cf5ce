"""Flash Attention, tile by tile, each step rounded: the paper's microbenchmark."""

import torch

from fa_lib.kernels.backward import Backward, differentiable
from fa_lib.kernels.reference import nonzero, rounding, stored
from fa_lib.kernels.rows import Options, by_rows, tiles
from fa_lib.tiling import Tiling

ALGORITHMS = ("fa1", "fa2")


def tiled(q, k, v, *, tiling, precision, algorithm="fa2", exp=torch.exp, rows=None, **options):
    """Flash Attention with online softmax, each step rounded as `precision` says. Differentiable, as FA is.

    A tile in which a row sees no key leaves that row as it was, as kernels do that skip such tiles. Rows are
    independent, so in the forward pass `tiling.block_q` cannot change a result, and the rows worked on at once are
    chosen for speed.

    Args:
        tiling: a Tiling; block_kv keys are handled at a time. The gradients dK and dV are summed over tiles of
            block_q queries.
        precision: a Precision.
        algorithm: "fa1" (arXiv 2205.14135, Algorithm 1: O is normalised at every tile) or
            "fa2" (arXiv 2307.08691, Algorithm 1: O is divided by the row sum once, at the end).
        exp: the exponential of S - m, a function of a float64 tensor; `models.fast_exp` is torch's on CPU.
            The few factors exp(m - m') are always torch.exp, and so is the backward pass.
        rows: rows worked on at once instead of the choice made here; no result depends on it.
        q, k, v, options: as `reference`: causal, scale, mask, window, softcap, keep, dropout_p.

    Returns:
        o: (batch, heads, n_q, head_dim) in q's dtype, its values on the grid of `precision.output`. A row that
        sees no key is zero.

    Raises:
        ValueError: an argument does not fit.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: got {algorithm!r}; accepted are {', '.join(ALGORITHMS)}")
    if not isinstance(tiling, Tiling):
        raise ValueError(f"tiling: got {tiling!r}; accepted is a Tiling(block_q, block_kv)")
    options = Options.of(q, k, v, **options)
    step, last = (fa1_tile, fa1_last) if algorithm == "fa1" else (fa2_tile, fa2_last)
    p = rounding(precision)

    def few_rows(q_i, k, v, scores):
        m = q_i.new_full((q_i.shape[0], 1), -torch.inf)  # running row maximum (rows, 1)
        l = torch.zeros_like(m)  # running row sum (rows, 1)
        O = q_i.new_zeros(q_i.shape[0], v.shape[1])  # running output (rows, head_dim)
        for j, k_j, v_j in tiles(k, v, tiling.block_kv, scores):
            S = scores(q_i, k_j, j)  # (rows, B_c)
            seen = scores.seen(S)
            S = p.scores(S)
            m_tile = p.stats(S.amax(-1, keepdim=True))  # (rows, 1)
            new = step(p, exp, lambda P, j=j: p.probs(scores.drop(P, j)), S, v_j, m_tile, m, l, O)
            if seen is not True:
                new = (after.where(seen, before) for after, before in zip(new, (m, l, O)))
            m, l, O = new
        m = m.where(l != 0, 0.0)  # of a row that saw no key
        L = p.stats(m + p.stats(torch.log(nonzero(l))))  # log-sum-exp (rows, 1)
        return torch.cat([last(p, l, O), L], -1)  # (rows, head_dim + 1)

    def forward(q, k, v):
        width = tiling.block_kv
        out = by_rows(few_rows, q, k, v, p, options, features=v.shape[-1] + 1, width=width, rows=rows)
        return stored(out[..., :-1], q.dtype), out[..., -1:]

    def probabilities(S, L):
        return p.exponent(torch.exp_(p.exponent(S - L)))  # P, divided by the row sum already

    return differentiable(q, k, v, forward, Backward(p, options, probabilities, tiling))


def fa1_tile(p, exp, dropped, S, v, m_tile, m, l, O):
    P = p.exponent(exp(p.exponent(S - m_tile)))  # (rows, B_c)
    l_tile = p.stats(P.sum(-1, keepdim=True))  # (rows, 1)
    m_new = torch.maximum(m, m_tile)
    l_old = p.stats(p.stats(torch.exp_(p.stats(m - m_new))) * l)  # the old sum, rescaled (rows, 1)
    a_tile = p.stats(torch.exp_(p.stats(m_tile - m_new)))  # the tile's factor (rows, 1)
    l_new = p.stats(l_old + p.stats(a_tile * l_tile))
    PV = p.accumulator(dropped(P) @ v)  # (rows, head_dim)
    O = p.accumulator(p.accumulator(l_old * O) + p.accumulator(a_tile * PV))
    return m_new, l_new, p.accumulator(O / nonzero(l_new))


def fa1_last(p, l, O):
    return p.output(O)


def fa2_tile(p, exp, dropped, S, v, m_tile, m, l, O):
    m_new = torch.maximum(m, m_tile)
    P = p.exponent(exp(p.exponent(S - m_new)))  # (rows, B_c)
    a = p.stats(torch.exp_(p.stats(m - m_new)))  # rescale of what was accumulated (rows, 1)
    l = p.stats(p.stats(a * l) + p.stats(P.sum(-1, keepdim=True)))
    PV = p.accumulator(dropped(P) @ v)  # (rows, head_dim)
    return m_new, l, p.accumulator(p.accumulator(a * O) + PV)


def fa2_last(p, l, O):
    return p.output(p.accumulator(O / nonzero(l)))


def rescales(q, k, *, tiling, precision, **options):
    """How often each row's maximum is raised by a tile after its first: the rescales that change a value.

    Args: as `tiled`.

    Returns:
        int64 tensor (batch, heads, n_q).
    """
    options = Options.of(q, k, k, **options)
    p = precision

    def few_rows(q_i, k, _, scores):
        m, count = None, torch.zeros(q_i.shape[0], 1, dtype=q_i.dtype, device=q_i.device)
        for j, k_j, _ in tiles(k, k, tiling.block_kv, scores):
            S = p.scores(scores(q_i, k_j, j))  # (rows, B_c)
            m_tile = p.stats(S.amax(-1, keepdim=True))
            if m is not None:
                count += (m_tile > m) & (m > -torch.inf)
            m = m_tile if m is None else torch.maximum(m, m_tile)
        return count

    return by_rows(few_rows, q, k, k, p, options, features=1, width=tiling.block_kv).squeeze(-1).long()
