"""Weights that an output shows, solved for in every row: of whole tiles of keys, which tell a wrong row sum, a missing
rescale or parts that are merged wrongly; and of each key, which tell dropout."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, Rows, scores, weights
from attention_check.conventions.reading import CapturedCall

EVERY = (16, 32), (32, 64), (64, 128), (128, 256), (1, 2), (1, 4), (1, 8)  # keys of a tile, of every so many
SIZES = (256, 128, 64, 32, 16)  # keys of a tile that are tried after one tile of all keys, the largest first
FEATURES = 4  # of V, for each tile at least: half of them are fitted to, and twice as many numbers as are sought
HELD_OUT = 2.0  # times the residual that is rounding, on the features that were not fitted to
EXPLAINED = 0.1  # of the squared error, that may be left on these features: rounding of large scores may be as large
SURE = 6.0  # standard errors: so far from 1 a tile's weight is off
LEAST = 0.05  # and by so much: less may be rounding to one side
COUNTS = 4  # times, at most, that keys are counted: of larger factors many are near a whole one
IN_MOST = 0.95  # of the rows, that follow a rule: the others are as rounding may make one in twenty
AGREE = 0.05  # root mean square of log times that a rule may leave, of what there is
KEYS = 4.0  # that share a tile's weight, in the mean over a row's tiles: with fewer, factors of tiles fit any error
MOST = 4  # tiles that are listed
TINY = 1e-300

KEPT = 0.05  # of a weight: so near to 0, or to the one size that kept weights have, it is dropped, or kept
FEWEST = 12  # weights: where one of no relation is dropped or kept by chance in one of four, all are in one of 10^7
SIGMAS = 4.0  # of the share that is dropped, up to which its factor 1 / (1 - share) may be off
LARGE = 0.1  # of a row's largest weight: smaller ones drown in the output's rounding
ALONG = 0.1  # of an error, and of the output, that an error has along it, at most: noise has no direction
LEAST_DROPOUT = 0.005  # of the weights: nobody drops fewer
ALIKE = 0.25  # of the mean over heads, that a head's error may be off: about a standard error for 32 independent values
LEAST_ROWS = 2  # of few keys, from which dropout is read
MOST_ODDS = 20.0  # with more, there is nothing of the output left


class Rule(StrEnum):
    """What weights of tiles follow."""

    ROW_SUM = "row_sum"  # all tiles of a row have one factor
    BEFORE_MASK = "before_mask"  # that factor is the share of the weights that the mask leaves
    MISSING = "missing"  # some are missing, the others right
    ZEROS = "zeros"  # some are missing, and count in the row sum with scores of 0
    COUNTED = "counted"  # some count more than once
    MAXIMUM = "maximum"  # exp(m - m_t), m_t the maximum up to tile t
    EQUAL = "equal"  # each tile counts as much as another one, whatever its log-sum-exp
    BASE_2 = "base_2"  # exp(L) of a tile taken as 2^L
    BASE_E = "base_e"  # 2^L of a tile taken as exp(L)
    PARTIAL = "partial"  # each tile is divided by the row sum up to it, and not by that of all
    DIVIDED = "divided"  # so is the output so far, at every tile
    OTHER = "other"


@dataclass(frozen=True)
class WrongTiles:
    """The weights of tiles, where within a tile all keys have the right weights among themselves.

    Attributes:
        size: keys of a tile. rule: what the weights follow. period: the keys of a tile are those whose numbers modulo
            this are in its range; 0 where they follow each other. share: of the rows that were solved, that are wrong.
        tiles: (first key, last key, least, largest) of those that are off in most rows, at most MOST: how many times
            its weight a tile has, the 5th and the 95th percentile of these rows.
    """

    size: int
    rule: Rule
    tiles: tuple[tuple[int, int, float, float], ...]
    period: int = 0
    share: float = 1.0


def wrong_tiles(call: CapturedCall, dialect: Dialect) -> tuple[WrongTiles, Rows, Tensor] | None:
    """Solve each row of an output for the weights of tiles, of the largest size at which that holds, or of some keys of
    every so many: it leaves no more than rounding on every other feature, which nothing was fitted to. Raises Unfit
    where the shapes make no call.

    Returns:
        What is wrong, the rows, and in which of them, bool (entries, heads, rows, 1). None where no size holds, or no
        weight is off.
    """
    rows = call.rows(dialect)
    if dialect.softmax in SOFTMAX_OVER:
        return None
    fit = rows.counted & (weights(rows) @ rows.v).isfinite().all(-1)
    n_kv, rounding = rows.v.shape[2], HELD_OUT * call.rounding(dialect)
    sizes = [(n_kv, 0), *((size, 0) for size in SIZES if size < n_kv)]  # in the order of how much is fitted
    sizes += [(size, period) for size, period in EVERY if period < n_kv and n_kv % period == 0]
    for size, period in sizes:
        found = _of_tiles(_in_order(rows, size, period) if period else rows, size, period, fit, rounding)
        if found is not None:
            tiles, wrong = found
            return None if tiles is None else (tiles, rows, wrong)
    return None


def _in_order(rows: Rows, size: int, period: int) -> Rows:
    """The rows with those keys behind each other that are one tile."""
    order = (torch.arange(rows.shape[3]) % period // size).sort(stable=True).indices
    k, v = (x[:, :, order] for x in (rows.k, rows.v))
    return replace(rows, k=k, v=v, **{name: getattr(rows, name)[..., order] for name in ("products", "bias")})


def _of_tiles(rows, size, period, fit, rounding):
    """The WrongTiles of a size, None where no weight is off, and which rows are wrong, (entries, heads, rows, 1); None
    where the size does not hold. period: the rows are in its order. fit: rows that count."""
    n_kv, features = rows.v.shape[2:]
    keys = n_kv * size // period if period else size  # of a tile
    parts, count = weights(rows).split(keys, -1), -(-n_kv // keys)
    spread = sum(part.sum(-1) ** 2 / part.square().sum(-1).clamp(min=TINY) for part in parts) / count
    counted = fit & (spread >= KEYS)  # where one key has all the weight, its tile's factor is the key's own
    if FEATURES * count > features or not counted.any():
        return None
    tiles = torch.stack([part @ v for part, v in zip(parts, rows.v.split(keys, 2))], -1)[counted]
    o = rows.o[counted]
    times, error, left = _solved(tiles, o)
    unsolved = ((tiles.sum(-1) - o)[:, 1::2].norm() / o[:, 1::2].norm()).item()
    if left > min(rounding, EXPLAINED**0.5 * unsolved):
        return None
    near = torch.maximum(SURE * error, torch.full_like(error, LEAST))
    off = ((times - 1).abs() > near) & (tiles.square().sum(-2) > 0)  # of tiles of which the row sees a key
    wrong = torch.zeros_like(counted)
    wrong[counted] = off.any(-1)
    if not off.any():
        return None, wrong
    rule, listed = _told(rows, keys, times, near, off, counted)
    ends = ((at * size, min((at + 1) * size, period or n_kv) - 1) for at, *_ in listed)
    tiles = tuple((*of, *each[1:]) for of, each in zip(ends, listed))
    return WrongTiles(size, rule, tiles, period, off.any(-1).double().mean().item()), wrong[..., None]


def _solved(tiles, o):
    """The factor of each tile (rows, tiles) and its standard error, by least squares over every other feature, and the
    residual on the others.

    Args:
        tiles: P V of each tile, (rows, features, tiles). o: (rows, features).
    """
    A, b = tiles[:, ::2], o[:, ::2, None]
    inverse = torch.linalg.pinv(A.mT @ A, hermitian=True)  # (rows, tiles, tiles)
    times = inverse @ (A.mT @ b)
    left = o[:, 1::2] - (tiles[:, 1::2] @ times)[..., 0]
    noise = left.square().mean(-1, keepdim=True)
    error = (noise * inverse.diagonal(dim1=-2, dim2=-1)).clamp(min=0).sqrt()
    return times[..., 0], error, (left.square().sum() / o[:, 1::2].square().sum().clamp(min=TINY)).sqrt().item()


def _told(rows: Rows, size, times, near, off, counted):
    """The rule of factors (rows, tiles), of which some are off, and which tiles are, with the least and the largest.
    near: how far from 1 a right factor may be."""
    rule, off = _rule(rows, size, times, near, off, counted)
    times = times / _least(times) if rule == Rule.COUNTED else times
    listed, most = [], off.sum(0).max()
    for at in off.sum(0).argsort(descending=True, stable=True)[:MOST].sort().values.tolist():
        if 2 * off[:, at].sum() >= most:
            ends = torch.tensor([0.05, 0.95], dtype=times.dtype)
            listed.append((at, *times[off[:, at], at].quantile(ends).tolist()))
    return rule, listed


def _rule(rows, size, times, near, off, counted):
    """The rule that the factors follow, and which of them are wrong by it."""
    S = scores(rows)[counted]  # (rows, n_kv)
    if times.shape[1] == 1:
        of_all = (rows.products * rows.scale)[counted]  # as if the mask came after the softmax
        left = (torch.logsumexp(S, -1) - torch.logsumexp(of_all, -1)).exp()
        alike = (times[:, 0] - left).abs().max() < LEAST * times.max()
        return (Rule.BEFORE_MASK if alike and S.isneginf().any() else Rule.ROW_SUM), off
    parts = S.split(size, -1)
    L = torch.stack([part.logsumexp(-1) for part in parts], -1)  # (rows, tiles)
    m, so_far = torch.stack([part.amax(-1) for part in parts], -1).cummax(-1).values, L.logcumsumexp(-1)
    later = F.pad((so_far - m)[:, :-1].flip(-1).cumsum(-1).flip(-1), (0, 1))  # of the tiles from one on, but the last
    for rule, due in ((Rule.PARTIAL, so_far[:, -1:] - so_far), (Rule.DIVIDED, -later)):
        near_due = (times - due.exp()).abs() < near * due.exp().clamp(min=1)
        if (near_due | L.isneginf()).all(-1).double().mean().item() >= IN_MOST:
            return rule, off
    gone, wrong = off & (times.abs() < near), off.any(-1)
    others = times.masked_fill(gone, math.nan).nanmedian(-1, keepdim=True).values  # a row sum without these keys
    rest = ((times - others).abs() < near * others) | ~(off | gone)
    if gone.any() and (gone | rest).all(-1).double().mean().item() >= IN_MOST:
        return (Rule.ZEROS if _zeros(parts, gone, others[:, 0]) else Rule.MISSING), gone
    counts = times / _least(times)
    more = counts.round() > 1
    whole = (counts - counts.round()).abs() < near * counts
    if more.any() and (whole | (times == 0)).all(-1).double().mean().item() >= IN_MOST and counts.max() < COUNTS + 0.5:
        return Rule.COUNTED, more
    sure = wrong & (4 * near < times).all(-1)  # a causal row may see next to nothing of a tile
    wrong = sure if 2 * sure.sum() > wrong.sum() else wrong
    L, m = L[wrong], m[wrong]
    log_times = times[wrong].clamp(min=TINY).log()
    alike = log_times.diff(dim=-1).square().mean(0).sqrt() <= AGREE * _spread(log_times)  # tiles of one part
    part = torch.cat([torch.zeros(1), (~alike).cumsum(0)]).long()
    L = torch.stack([L[:, part == each].logsumexp(-1) for each in part.tolist()], -1)
    of_base = (Rule.BASE_2, (math.log(2) - 1) * L), (Rule.BASE_E, (1 / math.log(2) - 1) * L)
    for rule, due in ((Rule.MAXIMUM, m[:, -1:] - m), (Rule.EQUAL, -L), *of_base):
        if due.isfinite().all() and _spread(log_times - due) <= AGREE * _spread(log_times):
            return rule, off
    return Rule.OTHER, off


def _least(times):
    """The least factor of each row, (rows, 1), but for those of 0: of tiles that it does not see."""
    return times.where(times > LEAST, math.inf).amin(-1, keepdim=True)


def _zeros(parts, gone, others):
    """Whether the other tiles' factors are nearer to those beside keys of zeros than to those without these keys."""
    L = torch.stack([part.logsumexp(-1) for part in parts], -1)  # (rows, tiles)
    of_all, keys = L.logsumexp(-1), torch.stack([part.isfinite().sum(-1) for part in parts], -1)
    left = 1 - ((L - of_all[:, None]).exp() * gone).sum(-1)  # of the row sum
    zeros = ((keys * gone).sum(-1).log() - of_all).exp()
    return ((others * (left + zeros) - 1).abs().nanmedian() < (others * left - 1).abs().nanmedian()).item()


def _spread(x):
    """Root mean square of the differences from the mean of each row."""
    return (x - x.mean(-1, keepdim=True)).square().mean().sqrt().item()


def solved(rows: Rows) -> Tensor | None:
    """The weights that made an output, (entries, heads, rows, n_kv), by least squares; None where there are more keys
    than features, or the values do not tell the keys apart."""
    v = rows.v.nan_to_num(0.0, 0.0, 0.0)
    if v.shape[2] > v.shape[3] or (torch.linalg.matrix_rank(v) < v.shape[2]).any():
        return None
    return rows.o @ torch.linalg.pinv(v)


def dropped(rows: Rows) -> float | None:
    """The share of weights that dropout took: the solved weights are 0, or all the same multiple of what they should
    be. None where they are not, or there is no solution."""
    rows = _of_few_keys(rows)
    P, found = weights(rows), solved(rows)
    if found is None or rows.dialect.softmax or not rows.o.isfinite().all():
        return None
    return share_dropped((found / P.clamp(min=TINY))[LARGE * P.amax(-1, keepdim=True) < P])


def share_dropped(ratio: Tensor) -> float | None:
    """The share of weights that dropout took, of their ratios to what they should be: each is 0, or the one multiple
    that this share leaves. None where they are not."""
    gone = ratio.abs() < KEPT
    share = gone.double().mean().item()
    kept, count = ratio[~gone], ratio.numel()
    if count < FEWEST or not 0 < share < 1 or ((kept / kept.median() - 1).abs() > KEPT).any():
        return None
    took = 1 - 1 / kept.median().item()
    return took if took > KEPT / 2 and abs(took - share) <= SIGMAS * math.sqrt(share * (1 - share) / count) else None


def _of_few_keys(rows: Rows) -> Rows:
    """Of rows of more keys than can be solved for, those that see the first keys alone, half as many as features."""
    few = rows.v.shape[-1] // 2
    hidden = (rows.bias[..., few:] == -math.inf).all(-1).all((0, 1))  # (rows,)
    if not few or rows.v.shape[2] <= rows.v.shape[3] or hidden.sum() < LEAST_ROWS or rows.dialect.softmax:
        return rows
    of_rows = {name: getattr(rows, name)[:, :, hidden] for name in ("q", "o")}
    of_keys = {name: getattr(rows, name)[:, :, :few] for name in ("k", "v")}
    of_both = {name: getattr(rows, name)[:, :, hidden, :few] for name in ("products", "bias")}
    return replace(rows, **of_rows, **of_keys, **of_both)


def noise(rows: Rows) -> float | None:
    """The share of weights whose dropout would make an error of this size, where it is like noise: without bias, and of
    the size that independent errors of all weights have in every head. 0 where the weights show that it is no dropout;
    None where it is not like noise."""
    if rows.dialect.softmax or rows.nan.any() or rows.hidden_nan.any() or not rows.counted.any():
        return None
    golden, o = (x.where(rows.counted[..., None], 0.0) for x in (rows.golden, rows.o))
    error = o - golden
    due = (weights(rows).square() @ rows.v.square()).sum((0, 2, 3))  # (heads,)
    odds = error.square().sum((0, 2, 3)) / due.clamp(min=TINY)
    size = error.norm().minimum(golden.norm()) * golden.norm()
    along = ((error * golden).sum() / size.clamp(min=TINY)).abs().item()
    mean = odds.mean().item()
    if not (odds - mean).abs().max() <= ALIKE * mean or mean >= MOST_ODDS or along > ALONG:
        return None
    return 0.0 if solved(_of_few_keys(rows)) is not None else mean / (1 + mean)
