"""Dropout that was left on, and errors like it: what the weights of an output show, and what noise cannot."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attention_check.conventions.attention import Rows, weights

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
    ratio = (found / P.clamp(min=TINY))[LARGE * P.amax(-1, keepdim=True) < P]
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
