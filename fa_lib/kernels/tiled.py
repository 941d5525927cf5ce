"""Flash Attention, tile by tile, each step rounded: the paper's microbenchmark."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from fa_lib.kernels.algorithm import LN2, Algorithm
from fa_lib.kernels.backward import Backward, differentiable
from fa_lib.kernels.options import Keys, Outputs, Queries, ResolvedOptions, Scores, Values
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rows import by_rows, dropped, nonzero, rounding, stored, tiles
from fa_lib.kernels.tiling import Tiling

Steps: TypeAlias = Any  # a Precision, or functions under the names of its fields
Carried: TypeAlias = tuple[Tensor, Tensor, Tensor]  # m (rows, 1), l (rows, 1), O (rows, head_dim)


def tiled(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    tiling: Tiling,
    precision: Precision,
    algorithm: Algorithm | str = "fa2",
    rows: int | None = None,
    q_k: Tensor | None = None,
    **options,
) -> Outputs:
    """Compute Flash Attention with online softmax, each step rounded as `precision` says. Differentiable, as FA is.

    With a sink the row maximum and the row sum begin there: m = sink, l = 1, O = 0 (of the first part, with splits).

    A tile in which a row sees no key leaves that row as it was, as in kernels that skip such tiles. Rows are
    independent, so in the forward pass `tiling.block_q` cannot change a result, and the number of rows that are worked
    on at once is chosen for speed.

    Args:
        q, k, v, options: as `reference`.
        tiling: a Tiling of block_kv keys. The gradients dK and dV are summed over tiles of block_q queries.
        precision: a Precision.
        algorithm: an Algorithm, or the name of one: "fa1", "fa2", "fa4".
        rows: number of rows to work on at once; None lets the function choose. No result depends on it.
        q_k: as `reference`.

    Returns:
        o: as of `reference`.

    Raises:
        ValueError: an argument does not fit.
    """
    if not isinstance(tiling, Tiling):
        raise ValueError(f"tiling: got {tiling!r}; accepted is a Tiling(block_q, block_kv)")
    how, settings, p = Algorithm.of(algorithm), ResolvedOptions.of(q, k, v, **options), rounding(precision)
    forward_pass = Forward.of(p, how, settings.scale, tiling.block_kv)
    forward_settings = unscaled(settings) if how.scale_in_exponent else settings

    def forward(q, k, v):
        features, width = v.shape[-1] + 1, tiling.block_kv
        sizes: Any = dict(features=features, width=width, rows=rows)
        out = by_rows(forward_pass.rows, (q, k, v), p, forward_settings, **sizes, q_k=q_k, several=True)
        return stored(out[..., :-1], q.dtype), out[..., -1:]

    def probabilities(S, L):
        return p.exponent.round_(p.products.exp_(p.exponent.round_(S.sub_(L))))  # P, divided by the row sum already

    return differentiable(q, k, v, forward, Backward(p, settings, probabilities, tiling), options.get("sinks"))


@dataclass(frozen=True)
class Forward:
    """The forward pass over some rows of one head.

    Attributes:
        p: a Precision.
        how: an Algorithm.
        block_kv: keys of a tile.
        unit: the unit of S and m: the scale, where the exponential multiplies it in, else 1.
        tile: a function as `fa1_tile`: m, l and O after one more tile.
        last: a function as `fa2_last`: the output after the last tile.
    """

    p: Steps
    how: Algorithm
    block_kv: int
    unit: float
    tile: Callable
    last: Callable

    @classmethod
    def of(cls, p: Steps, how: Algorithm, scale: float, block_kv: int) -> "Forward":
        """Choose the steps of an algorithm."""
        if how.scale_in_exponent:
            c = p.exponent(torch.tensor(scale / LN2, dtype=torch.float64))
            return cls(p, how, block_kv, scale, partial(folded_tile, c), times_last)
        if how.name == "fa1":
            return cls(p, how, block_kv, 1.0, fa1_tile, lambda p, l, O: O)  # it is divided by l already
        return cls(p, how, block_kv, 1.0, fa2_tile, times_last if how.reciprocal else fa2_last)

    def rows(self, q_i: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        """Compute O and then the log-sum-exp, (rows, d_v + 1), of q_i (rows, head_dim), k (n_kv, head_dim) and v (n_kv,
        d_v), of one head."""
        all_tiles = list(tiles(k, v, self.block_kv, scores))
        size = max(1, -(-len(all_tiles) // self.how.splits))  # tiles of a part
        parts, sink = [], scores.sink  # where the first part begins
        for i in range(0, max(1, len(all_tiles)), size):
            part_tiles = all_tiles[i : i + size][:: -1 if self.how.reverse else 1]
            parts.append(self.part(q_i, part_tiles, v.shape[-1], scores, sink))
            sink = None
        return merged(self.p, parts) if self.how.splits > 1 else parts[0]

    def part(self, q_i: Tensor, some_tiles: list, features: int, scores: Scores, sink: Tensor | None) -> Tensor:
        """Compute O and then the log-sum-exp, (rows, features + 1), over some tiles of keys (of `rows.tiles`); sink is
        (1, 1) or None. With splits, O is not rounded to the output's format."""
        p, how = self.p, self.how
        m = q_i.new_full((*q_i.shape[:-1], 1), -torch.inf)  # running row maximum (rows, 1)
        l = p.row_sum(torch.zeros_like(m))  # running row sum (rows, 1)
        O = p.accumulator(q_i.new_zeros(*q_i.shape[:-1], features))  # running output (rows, d_v)
        if sink is not None:
            m, l = p.maximum(p.scores(sink) / self.unit).expand_as(m), l + how.p_factor
        for j, k_j, v_j in some_tiles:
            S = scores(q_i, k_j, j)  # (rows, B_c)
            seen = scores.seen(S)
            S = p.scores.round_(S)
            m_tile = p.maximum(S.amax(-1, keepdim=True) if how.maximum is None else how.maximum(S))  # (rows, 1)
            before = m, l, O if seen is True else O.clone()
            m, l, O = self.tile(p, how, lambda P, j=j: dropped(p, scores, P, j), S, v_j, m_tile, (m, l, O))
            if seen is not True:
                m, l, O = (x.where(seen, old) for x, old in zip((m, l, O), before))
        m = m.where(l != 0, 0.0)  # of a row that saw no key
        log = p.row_sum(torch.log(nonzero(l)) - (how.p_exponent_offset or 0) * LN2)
        L = p.row_sum(m * self.unit + log).where(l != 0, -torch.inf if how.splits > 1 else 0.0)  # (rows, 1)
        O = self.last(p, l, O)  # (rows, d_v)
        return torch.cat([O if how.splits > 1 else p.output(O), L], -1)


def merged(p: Precision, parts: list[Tensor]) -> Tensor:
    """Merge O and L of parts of the keys, (rows, d_v + 1) each, into those of all keys: sum of exp(L_i - L) O_i."""
    O, L = (torch.stack(x) for x in zip(*((x[..., :-1], x[..., -1:]) for x in parts)))  # (parts, rows, d_v), (.., 1)
    m = L.amax(0)  # (rows, 1)
    m = m.where(m != -torch.inf, 0.0)  # of a row that saw no key
    weights = p.factors(torch.exp(p.factors(L - m)))  # (parts, rows, 1)
    l = p.row_sum(weights.sum(0))
    out = p.accumulator((p.factors(weights / nonzero(l)) * O).sum(0))
    return torch.cat([p.output(out), p.row_sum(m + p.row_sum(torch.log(nonzero(l))))], -1)


def fa1_tile(
    p: Steps, how: Algorithm, dropped: Callable, S: Tensor, v: Tensor, m_tile: Tensor, carried: Carried
) -> Carried:
    """Update m, l and O with one more tile; O is divided by l.

    Args:
        p: a Precision.
        how: an Algorithm.
        dropped: a function of P (rows, B_c) that applies dropout and rounds, and may overwrite P.
        S: (rows, B_c), overwritten.
        v: (B_c, d_v).
        m_tile: (rows, 1), the tile's row maxima.
        carried: (m (rows, 1), l (rows, 1), O (rows, d_v)) so far; O is overwritten.

    Returns:
        (m, l, O) after the tile.
    """
    m, l, O = carried
    P = p.exponent.round_(exp_of(p, how)(p.exponent.round_(S.sub_(m_tile))))  # (rows, B_c)
    l_tile = p.row_sum(p.products.totals(P))  # (rows, 1)
    m_new = torch.maximum(m, m_tile)
    l_old = p.row_sum(p.factors(p.products.exp_(p.factors(m - m_new))) * l)  # the old sum, rescaled (rows, 1)
    a_tile = p.factors(p.products.exp_(p.factors(m_tile - m_new)))  # the tile's factor (rows, 1)
    l_new = p.row_sum(l_old + p.row_sum(a_tile * l_tile))
    PV = p.accumulator.round_(p.products.matmul(dropped(P), v))  # (rows, head_dim)
    O = p.accumulator.round_(p.accumulator.round_(O.mul_(l_old)).add_(p.accumulator.round_(PV.mul_(a_tile))))
    return m_new, l_new, p.accumulator.round_(O.div_(nonzero(l_new)))


def exp_of(p: Steps, how: Algorithm) -> Callable:
    """Return the function that is the exponential of S - m: it takes and returns (rows, B_c), and may overwrite it."""
    return p.products.exp_ if how.exp is torch.exp else how.exp


def fa2_tile(
    p: Steps, how: Algorithm, dropped: Callable, S: Tensor, v: Tensor, m_tile: Tensor, carried: Carried
) -> Carried:
    """Update m, l and O with one more tile, as `fa1_tile`; O is not divided by l."""
    m, l, O = carried
    m_new = torch.maximum(m, m_tile)
    if how.rescale_threshold:
        m_new = m.where(m_new - m <= how.rescale_threshold, m_new)  # not worth a rescale
    P = exp_of(p, how)(p.exponent.round_(S.sub_(m_new)))
    P = p.exponent.round_(P if how.p_factor == 1 else P * how.p_factor)  # (rows, B_c)
    a = p.factors(p.products.exp_(p.factors(m - m_new)))  # rescale of what was accumulated (rows, 1)
    return m_new, *fa2_sums(p, how, p.row_sum(p.products.totals(P)), dropped(P), a, v, l, O)


def fa2_sums(
    p: Steps, how: Algorithm, total: Tensor, P: Tensor, a: Tensor, v: Tensor, l: Tensor, O: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiply l (rows, 1) and O (rows, d_v), which is overwritten, by a (rows, 1), and add a tile to them: its total
    (rows, 1), the sum of P, and P (rows, B_c) after dropout and rounding, times v (B_c, d_v)."""
    l = p.row_sum(p.row_sum(a * l) + total)
    O = p.accumulator.round_(O.mul_(a))  # (rows, head_dim)
    if how.accumulate_in_mma:
        return l, p.accumulator.round_(p.products.matmul(P, v, O))
    return l, p.accumulator.round_(O.add_(p.accumulator.round_(p.products.matmul(P, v))))


def fa2_last(p: Steps, l: Tensor, O: Tensor) -> Tensor:
    """Divide O (rows, d_v) by l (rows, 1) after the last tile."""
    return p.accumulator(O / nonzero(l))


def unscaled(asked: ResolvedOptions) -> ResolvedOptions:
    """Return the options of a call with scale 1, so that its scores are Q Kᵀ.

    Raises:
        ValueError: something is added to the scores, or caps them, which happens after the scale.
    """
    added = asked.mask is not None and asked.mask.dtype != torch.bool
    if added or asked.softcap is not None:
        got = "scale_in_exponent=True with softcap or an added mask"
        raise ValueError(f"algorithm: got {got}; accepted is it without them")
    return replace(asked, scale=1.0)


def folded_tile(
    c: Tensor, p: Steps, how: Algorithm, dropped: Callable, S: Tensor, v: Tensor, m_tile: Tensor, carried: Carried
) -> Carried:
    """Update m, l and O with one more tile, as `fa2_tile`, for scores without their scale; c: scale * log2(e), rounded,
    a tensor of one number."""
    m, l, O = carried
    m_new = torch.maximum(m, m_tile)
    if how.rescale_threshold_log2:
        m_new = m.where(p.factors((m - m_new) * c) >= -how.rescale_threshold_log2, m_new)  # not worth a rescale
    shift = p.exponent(m_new * c - (how.p_exponent_offset or 0))  # (rows, 1)
    P = p.exponent.round_(how.exp2(p.exponent.round_(S.mul_(c).sub_(shift))))  # (rows, B_c); an FMA
    a = p.factors(torch.exp2(p.factors((m - m_new) * c)))  # (rows, 1)
    return m_new, *fa2_sums(p, how, p.row_sum(p.products.totals(P)), dropped(P), a, v, l, O)


def times_last(p: Steps, l: Tensor, O: Tensor) -> Tensor:
    """Multiply O (rows, d_v) by 1 / l, l (rows, 1), after the last tile."""
    return p.accumulator(O * p.row_sum(1 / nonzero(l)))


def rescales(
    q: Queries, k: Keys, *, tiling: Tiling, precision: Precision, q_k: Tensor | None = None, **options
) -> Int[Tensor, "*lead n_q"]:
    """Count how often a tile after its first raises each row's maximum, int64 (..., heads, n_q): the rescales that
    change a value. Arguments as of `tiled`."""
    settings, p = ResolvedOptions.of(q, k, k, **options), precision

    def count_rows(q_i, k, _, scores):
        m = None if scores.sink is None else p.maximum(p.scores(scores.sink))
        count = q_i.new_zeros(*q_i.shape[:-1], 1)
        for j, k_j, _ in tiles(k, k, tiling.block_kv, scores):
            m_tile = p.maximum(p.scores(scores(q_i, k_j, j).amax(-1, keepdim=True)))  # rounds the largest score alone
            if m is not None:
                count += (m_tile > m) & (m > -torch.inf)
            m = m_tile if m is None else torch.maximum(m, m_tile)
        return count

    counts = by_rows(count_rows, (q, k, k), p, settings, features=1, width=tiling.block_kv, q_k=q_k, several=True)
    return counts.squeeze(-1).long()
