"""Flash Attention, tile by tile, each step rounded: the paper's microbenchmark."""

import math
from functools import partial

import torch

from fa_lib.kernels.backward import Backward, differentiable
from fa_lib.kernels.options import Options
from fa_lib.kernels.rows import by_rows, nonzero, rounding, stored, tiles
from fa_lib.tiling import Tiling

ALGORITHMS = ("fa1", "fa2", "fa4")
LN2 = math.log(2)


def tiled(q, k, v, *, tiling, precision, algorithm="fa2", exp=torch.exp, threshold=None, offset=None, maximum=None,
          splits=1, reverse=False, rows=None, **options):  # fmt: skip
    """Flash Attention with online softmax, each step rounded as `precision` says. Differentiable, as FA is.

    A tile in which a row sees no key leaves that row as it was, as kernels do that skip such tiles. Rows are
    independent, so in the forward pass `tiling.block_q` cannot change a result, and the rows worked on at once are
    chosen for speed.

    Args:
        tiling: a Tiling; block_kv keys are handled at a time. The gradients dK and dV are summed over tiles of
            block_q queries.
        precision: a Precision.
        algorithm: "fa1" (arXiv 2205.14135, Algorithm 1: O is normalised at every tile) or
            "fa2" (arXiv 2307.08691, Algorithm 1: O is divided by the row sum once, at the end) or
            "fa4" (FlashAttention-4: as "fa2", but m is replaced, and O and l rescaled, only when the row's maximum
            has risen by more than `threshold` since; P is then as large as 2**threshold).
        exp: the exponential of S - m, a function of a float64 tensor; `models.fast_exp` is torch's on CPU,
            `models.polynomial_exp` FlashAttention-4's. The few factors exp(m - m') are always torch.exp, and so is the
            backward pass.
        threshold: of "fa4", in powers of two; None is 8.
        offset: P is 2**offset times exp(S - m), and so is l; it cancels in O, and moves P away from the format's
            subnormals. Whole; of "fa2" and "fa4". None is 0.
        maximum: the row maximum of a tile, a function of S (rows, B_c) that gives (rows, 1); None is the largest score.
            `models.dynamic_maximum` is that of arXiv 2510.04212.
        splits: parts of the keys, whole tiles each, that are worked on apart and merged by their log-sum-exp at the
            end, as in flash decoding. Each part's O is in `precision.accumulator`.
        reverse: the last tile first, as FlashAttention-2 has it on CUDA.
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
    for name, value, least, of in (("threshold", threshold, 0, ("fa4",)), ("offset", offset, None, ("fa2", "fa4"))):
        if value is not None and (
            algorithm not in of or least is not None and not value >= least or value != int(value)
        ):
            raise ValueError(
                f"{name}: got {value!r} with {algorithm!r}; accepted is a whole number, for {' and '.join(of)}"
            )
    if type(splits) is not int or splits < 1:
        raise ValueError(f"splits: got {splits!r}; accepted is a whole number from 1")
    options = Options.of(q, k, v, **options)
    step, last = _steps(algorithm, threshold, offset)
    p = rounding(precision)

    def few_rows(q_i, k, v, scores):
        seen = list(tiles(k, v, tiling.block_kv, scores))[:: -1 if reverse else 1]
        size = max(1, -(-len(seen) // splits))  # tiles of a part
        parts = [part(q_i, seen[i : i + size], v.shape[1], scores) for i in range(0, max(1, len(seen)), size)]
        return parts[0] if len(parts) == 1 else merged(p, parts)

    def part(q_i, some_tiles, features, scores):
        m = q_i.new_full((q_i.shape[0], 1), -torch.inf)  # running row maximum (rows, 1)
        l = torch.zeros_like(m)  # running row sum (rows, 1)
        O = q_i.new_zeros(q_i.shape[0], features)  # running output (rows, head_dim)
        for j, k_j, v_j in some_tiles:
            S = scores(q_i, k_j, j)  # (rows, B_c)
            seen = scores.seen(S)
            S = p.scores(S)
            m_tile = p.stats(S.amax(-1, keepdim=True) if maximum is None else maximum(S))  # (rows, 1)
            new = step(p, exp, lambda P, j=j: p.probs(scores.drop(P, j)), S, v_j, m_tile, m, l, O)
            if seen is not True:
                new = (after.where(seen, before) for after, before in zip(new, (m, l, O)))
            m, l, O = new
        m = m.where(l != 0, 0.0)  # of a row that saw no key
        log = p.stats(torch.log(nonzero(l)) - (offset or 0) * LN2)
        L = p.stats(m + log).where(l != 0, -torch.inf if splits > 1 else 0.0)  # log-sum-exp (rows, 1)
        O = last(p, l, O)  # (rows, head_dim)
        return torch.cat([O if splits > 1 else p.output(O), L], -1)  # (rows, head_dim + 1)

    def forward(q, k, v):
        width = tiling.block_kv
        out = by_rows(few_rows, q, k, v, p, options, features=v.shape[-1] + 1, width=width, rows=rows)
        return stored(out[..., :-1], q.dtype), out[..., -1:]

    def probabilities(S, L):
        return p.exponent(torch.exp_(p.exponent(S - L)))  # P, divided by the row sum already

    return differentiable(q, k, v, forward, Backward(p, options, probabilities, tiling))


def merged(p, parts):
    """O and L of all keys from those of its parts: sum of exp(L_i - L) O_i."""
    O, L = (torch.stack(x) for x in zip(*((x[:, :-1], x[:, -1:]) for x in parts)))  # (parts, rows, head_dim), (.., 1)
    m = L.amax(0)  # (rows, 1)
    m = m.where(m != -torch.inf, 0.0)  # of a row that saw no key
    weights = p.stats(torch.exp(p.stats(L - m)))  # (parts, rows, 1)
    l = p.stats(weights.sum(0))
    out = p.accumulator((p.stats(weights / nonzero(l)) * O).sum(0))
    return torch.cat([p.output(out), p.stats(m + p.stats(torch.log(nonzero(l))))], -1)


def _steps(algorithm, threshold, offset):
    """What is done at every tile, and at the end."""
    if algorithm == "fa1":
        return fa1_tile, fa1_last
    above = 0 if algorithm == "fa2" else 8 if threshold is None else threshold
    return partial(fa2_tile, raised=2.0 ** (offset or 0), slack=above * LN2), fa2_last


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
    return O


def fa2_tile(p, exp, dropped, S, v, m_tile, m, l, O, raised=1.0, slack=0.0):
    m_new = torch.maximum(m, m_tile)
    if slack:
        m_new = m.where(m_new - m <= slack, m_new)  # not worth a rescale
    P = p.exponent(exp(p.exponent(S - m_new)) * raised)  # (rows, B_c)
    a = p.stats(torch.exp_(p.stats(m - m_new)))  # rescale of what was accumulated (rows, 1)
    l = p.stats(p.stats(a * l) + p.stats(P.sum(-1, keepdim=True)))
    PV = p.accumulator(dropped(P) @ v)  # (rows, head_dim)
    return m_new, l, p.accumulator(p.accumulator(a * O) + PV)


def fa2_last(p, l, O):
    return p.accumulator(O / nonzero(l))


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
