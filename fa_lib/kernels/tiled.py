"""Flash Attention, tile by tile, each step rounded: the paper's microbenchmark."""

import torch

from fa_lib.kernels.reference import finite, nonzero, stored
from fa_lib.kernels.rows import by_rows

ALGORITHMS = ("fa1", "fa2")


def tiled(q, k, v, *, tiling, precision, algorithm="fa2", causal=False, scale=None, mask=None, rows=None):
    """Flash Attention with online softmax, each step rounded as `precision` says.

    A tile in which a row sees no key leaves that row as it was, as kernels do that skip such tiles. Rows are
    independent, so `tiling.block_q` cannot change a result, and the rows worked on at once are chosen for speed.

    Args:
        tiling: a Tiling; block_kv keys are handled at a time.
        precision: a Precision.
        algorithm: "fa1" (arXiv 2205.14135, Algorithm 1: O is normalised at every tile) or
            "fa2" (arXiv 2307.08691, Algorithm 1: O is divided by the row sum once, at the end).
        rows: rows worked on at once instead of the choice made here; no result depends on it.
        q, k, v, causal, scale, mask: as `reference`.

    Returns:
        o: (batch, heads, n_q, head_dim) in q's dtype, its values on the grid of `precision.output`. A row that
        sees no key is zero.

    Raises:
        ValueError: an argument does not fit.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: got {algorithm!r}; accepted are {', '.join(ALGORITHMS)}")
    step, last = (_fa1, _fa1_last) if algorithm == "fa1" else (_fa2, _fa2_last)
    p = precision

    def kernel(q_i, k, v, scale, visible):
        m = q_i.new_full((q_i.shape[0], 1), -torch.inf)  # running row maximum (rows, 1)
        l = torch.zeros_like(m)  # running row sum (rows, 1)
        O = q_i.new_zeros(q_i.shape[0], v.shape[1])  # running output (rows, head_dim)
        for j in range(0, k.shape[0], tiling.block_kv):
            if visible.hides_all(j):
                break
            k_j, v_j = k[j : j + tiling.block_kv], v[j : j + tiling.block_kv]
            S = p.scores(visible((q_i @ k_j.mT).mul_(scale), j))  # (rows, B_c)
            m_tile = p.stats(S.amax(-1, keepdim=True))  # (rows, 1)
            if visible.trivial:
                m, l, O = step(p, S, v_j, m_tile, m, l, O)
            else:
                seen = m_tile > -torch.inf
                m, l, O = (torch.where(seen, new, old) for new, old in zip(step(p, S, v_j, m_tile, m, l, O), (m, l, O)))
        return last(p, l, O)

    o = by_rows(kernel, q, k, v, p, causal=causal, scale=scale, mask=mask, width=tiling.block_kv, rows=rows)
    return stored(o, q.dtype)


def _fa1(p, S, v, m_tile, m, l, O):
    P = p.exponent(torch.exp_(p.exponent(S - finite(m_tile))))  # (rows, B_c)
    l_tile = p.stats(P.sum(-1, keepdim=True))  # (rows, 1)
    m_new = torch.maximum(m, m_tile)
    l_old = p.stats(p.stats(torch.exp_(p.stats(m - finite(m_new)))) * l)  # the old sum, rescaled (rows, 1)
    a_tile = p.stats(torch.exp_(p.stats(m_tile - finite(m_new))))  # the tile's factor (rows, 1)
    l_new = p.stats(l_old + p.stats(a_tile * l_tile))
    PV = p.accumulator(p.probs(P) @ v)  # (rows, head_dim)
    O = p.accumulator(p.accumulator(l_old * O) + p.accumulator(a_tile * PV))
    return m_new, l_new, p.accumulator(O / nonzero(l_new))


def _fa1_last(p, l, O):
    return p.output(O)


def _fa2(p, S, v, m_tile, m, l, O):
    m_new = torch.maximum(m, m_tile)
    P = p.exponent(torch.exp_(p.exponent(S - finite(m_new))))  # (rows, B_c)
    a = p.stats(torch.exp_(p.stats(m - finite(m_new))))  # rescale of what was accumulated (rows, 1)
    l = p.stats(p.stats(a * l) + p.stats(P.sum(-1, keepdim=True)))
    PV = p.accumulator(p.probs(P) @ v)  # (rows, head_dim)
    return m_new, l, p.accumulator(p.accumulator(a * O) + PV)


def _fa2_last(p, l, O):
    return p.output(p.accumulator(O / nonzero(l)))


def rescales(q, k, *, tiling, precision, causal=False, scale=None, mask=None):
    """How often each row's maximum is raised by a tile after its first: the rescales that change a value.

    Args: as `tiled`.

    Returns:
        int64 tensor (batch, heads, n_q).
    """
    p = precision

    def kernel(q_i, k, _, scale, visible):
        m, count = None, torch.zeros(q_i.shape[0], 1, dtype=q_i.dtype, device=q_i.device)
        for j in range(0, k.shape[0], tiling.block_kv):
            S = p.scores(visible((q_i @ k[j : j + tiling.block_kv].mT).mul_(scale), j))  # (rows, B_c)
            m_tile = p.stats(S.amax(-1, keepdim=True))
            if m is not None:
                count += (m_tile > m) & (m > -torch.inf)
            m = m_tile if m is None else torch.maximum(m, m_tile)
        return count

    count = by_rows(kernel, q, k, k, p, causal=causal, scale=scale, mask=mask, width=tiling.block_kv, out_features=1)
    return count.squeeze(-1).long()
