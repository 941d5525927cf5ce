"""Which sums a kernel carries in low precision from tile to tile, and in tiles of how many keys: seen from outside."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
import torch
from torch import Tensor

from attention_check.checks.gross_errors import LOST, gross_errors
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.measurements import Measurements
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import FP64, Format

SUMS = ("accumulator", "row_sum")  # what `carry` asks for
QUERIES = (1, 16, 256)  # at a time; the last are more than a tile of queries holds
TERMS = (  # of a sum, and the sizes of tiles that it asks for
    (1024, (1, 2, 4, 8, 16, 32, 128)),
    (4096, (64, 256, 512)),  # large tiles need more terms to lose 2 ulp, and so do tiles of 64 in 8 splits of the keys
)
LARGE = 64.0  # the large term of V, so that small ones are held by FP16 and by caches of 8 bits
ALONE = 64  # small terms of the control
ALL = 0.8  # of what is lost when every tile is: where tiles are twice as large as asked for, at most 0.72 is
FIRST, LAST, CONTROL = range(3)  # places of the large term; the control has the small terms without it
CARRIES = slice(CONTROL)  # the two of them that a carry loses terms of
UNSEEN = 0.25  # relative error of small terms alone from which on nothing is said: ALONE sums of BF16 cost up to 0.125


def carry(
    kernel: KernelRef | str | Callable,
    fmt: str,
    queries: int = 16,
    head_dim: int = 64,
    causal: bool = False,
    device: str = "cpu",
) -> list[dict]:
    """A cell: sums that only a carry of more bits than `fmt` has can hold.

    One term is large, the n - 1 others are 0.45 ulp of it divided by a number of keys. A kernel that keeps a sum in
    `fmt` and adds to it what a tile holds, loses every tile of up to that many keys. One that keeps FP32 loses none,
    and is off by the rounding of its output, half an ulp. The fewest `keys` from which on all is lost are the tile's
    size.

    Two sums are asked for separately. Accumulator O: all P are equal, V is the large and the small numbers. Row sum l:
    V is not 0 for one key alone, and the P of the others are the small numbers. The large term stands first or last,
    for kernels that begin at either end.

    The last column of V has the large term alone, and its output shows l by itself: where equal P are added up in BF16
    one by one, l stays at 256, and every output is several times too large. That is no loss of O, and is taken off it.

    The control: sums of 64 small terms without the large one, where a carry loses nothing. (The large one is there, and
    is taken away again by the next key, so that a cache with one scale for all of V is as coarse as it was.) A kernel
    that does not return them right, that of a quantised cache for instance, does not lose them by a carry.

    Args:
        kernel: called in fmt, or in FP32 where it has no `fmt`: then FP32 tensors are carried in it or not.
        queries: at a time. The most of QUERIES are as many as keys for a kernel that takes no fewer.
        causal: whether it masks: then its last query is compared, which sees all keys.

    Returns:
        rows of `sums`, whose columns data/columns.csv explains.
    """
    form, fn, rows = Format.of(fmt), kernel_fn(kernel, causal), []
    for what in SUMS:
        for n, keys in TERMS:
            sums = _sums(what, form, tuple(keys), n, head_dim)
            ulp = form.ulp(torch.maximum(sums.golden, sums.if_all_lost))  # O grows by small terms, or O / l shrinks
            answer = _answer(fn, form, sums, head_dim, queries, device)
            lost = control = [math.nan] * len(keys)
            if answer.o is not None:
                o = answer.o.double().cpu()  # (3, keys, n_q, head_dim)
                o = o[:, :, -1:] if causal else o
                o, l = o[..., :-1], sums.golden_of_large / o[..., -1:]  # l: the kernel's, over what it should be
                control = ((o * l / sums.golden)[CONTROL] - 1).abs().amax((1, 2)).tolist()
                o = o * l.where((l - 1).abs() > UNSEEN, 1.0) if what == "accumulator" else o
                lost = ((o - sums.golden).abs() / ulp)[CARRIES].amax((0, 2, 3)).tolist()
            every = ((sums.if_all_lost - sums.golden[FIRST]).abs() / ulp[FIRST]).flatten().tolist()
            answered = dict(outcome=answer.outcome, problem=answer.problem)
            rows += [
                dict(what=what, terms=n, keys=b, lost=x, all=of, control=c) | answered
                for b, x, of, c in zip(keys, lost, every, control)
            ]
    return rows


def carried(table: pd.DataFrame) -> list[dict]:
    """What a table of `carry` says, by format, number of queries and sum.

    Returns:
        dicts: fmt, queries, sum, lost (the most, ulp), low (True, False, or None where it could not be seen), tile (the
        fewest keys from which on all is lost: the tile's size; None where nothing is lost), blind (small terms alone
        are not returned right, so that their loss says nothing), terms, all (what is lost if every tile is, ulp).
    """
    found = []
    for (fmt, queries, what), rows in table.sort_values("keys").groupby(["fmt", "queries", "what"]):  # O first
        ran = bool(rows.lost.notna().all())
        seen = rows[(rows.control <= UNSEEN) & (rows["all"] > LOST)]
        low, tile, blind = None, None, ran and len(seen) < int((rows["all"] > LOST).sum())
        if ran:
            excess = seen.lost - seen.control * seen["all"]  # beyond what small terms alone lose
            every = seen[(seen.lost >= ALL * seen["all"]) & (excess > LOST)]
            tile = int(every["keys"].min()) if len(every) else None
            # In the row sum an error of a score, or of the exponential, shows as well, but loses no whole tile.
            sure = what == "accumulator" or tile is not None or found[-1]["low"]
            low = bool((excess > LOST).any() and sure) or (None if blind else False)
        most = rows.loc[rows.lost.idxmax() if ran else rows.terms.idxmax()]
        one = dict(fmt=fmt, queries=int(queries), sum=what, lost=float(rows.lost.max()), low=low, tile=tile)
        found.append(one | dict(blind=blind, terms=int(most.terms), all=float(most["all"])))
    return found


def _answer(fn, fmt, sums, head_dim, queries, device):
    """What a kernel gives for these sums: in FP32 where it has no fmt, for all queries where it takes no fewer."""
    q, k, v = sums.q, sums.k, sums.v
    for dtype in (fmt.dtype, torch.float32):
        for n_q in (queries, q.shape[2]) if queries == max(QUERIES) else (queries,):
            answer = call_kernel(fn, *(x.to(device, dtype) for x in _whole(q[:, :, :n_q], k, v, head_dim)))
            if answer.o is not None:
                return answer
    return answer


def _whole(q, k, v, head_dim):
    """Q, K and V (3, keys, n, head_dim) of those of a Sums: of Q and K the other features are 0, those of V are like
    the first."""
    pad = torch.nn.functional.pad
    v = torch.cat([v[..., :1].expand(*v.shape[:-1], head_dim - 1), v[..., 1:]], -1)
    return pad(q, (0, head_dim - 1)), pad(k, (0, head_dim - 1)), v


@dataclass(frozen=True)
class Sums:
    """Calls whose outputs are sums of one large term and many small ones, or of small ones alone.

    The first dimension is the place of the large term (FIRST, LAST, CONTROL), the second the number of keys by which
    the small terms are divided.

    Attributes:
        q, k: (3, keys, n, 1), their first feature. v: (3, keys, n, 2), its first column and its last, in which the
            large term stands alone. All on the format's grid.
        golden, golden_of_large: (3, keys, 1, 1), of these columns.
        if_all_lost: (keys, 1, 1), the sum if no small term arrived.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    golden: Tensor
    golden_of_large: Tensor
    if_all_lost: Tensor


@lru_cache(maxsize=32)  # the same for every kernel; a megabyte each
def _sums(what, fmt, keys, n, head_dim):
    """The Sums of `carry`."""
    ulp = 2 * fmt.unit_roundoff
    small = torch.tensor([0.45 * ulp / b for b in keys], dtype=torch.float64)[:, None, None]  # (keys, 1, 1)
    q, k, v = torch.zeros(3, 3, len(keys), n, 1, dtype=torch.float64)
    if what == "accumulator":
        v[CARRIES] = LARGE * small
        v[FIRST, :, 0] = v[LAST, :, -1] = v[CONTROL, :, 0] = LARGE
        v[CONTROL, :, 1], v[CONTROL, :, -ALONE:] = -LARGE, LARGE * small
        if_all_lost = torch.full((len(keys), 1, 1), LARGE / n, dtype=torch.float64)
    else:
        q[:], k[:] = head_dim**0.5, small.log()
        k[FIRST, :, 0] = k[LAST, :, -1] = k[CONTROL, :, 0] = 0
        v[FIRST, :, 0] = v[LAST, :, -1] = LARGE
        v[CONTROL, :, -ALONE:] = LARGE
        if_all_lost = torch.full((len(keys), 1, 1), LARGE, dtype=torch.float64)
    large = torch.zeros_like(v)
    large[FIRST, :, 0] = large[LAST, :, -1] = large[CONTROL, :, 0] = LARGE
    q, k, v = (fmt(x) for x in (q, k, torch.cat([v, large], -1)))
    q_whole, k_whole, _ = _whole(q[:, :, :1], k, v, head_dim)
    golden = kernels.golden(q_whole, k_whole, v, inputs=FP64)  # of like rows, columns
    values, alone_golden = golden.split(1, -1)
    return Sums(q, k, v, values, alone_golden, if_all_lost)


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure what it carries from tile to tile: rows of `carry`. No more queries are asked for than the plan says."""
    formats = [fmt for fmt in checked.judged if fmt != "FP32"] or ["BF16"]
    counts = [count for count in QUERIES[: 1 if checked.one_query else None] if count <= checked.plan.square]
    settings = [dict(fmt=fmt, queries=count) for fmt in formats for count in counts]
    return checked.table(carry, settings, causal=checked.way.able.causal, **checked.call)


def sums_seen(found: Measurements) -> tuple[pd.DataFrame, Finding | None]:
    """The rows of a table of `carry` in formats that have no coarser numbers, and the finding of `gross_errors` that
    hides what every sum loses; None where a loss is seen."""
    wrong, sums = [*gross_errors(found)], found.sums
    coarser = {f.where["fmt"] for f in wrong if f.what == "coarse"}
    sums = sums[~sums.fmt.isin(coarser)] if coarser and len(sums) else sums
    return sums, next((f for f in wrong if f.what != "coarse" or not len(sums)), None)


def judged(found: Measurements) -> Iterator[Finding]:
    """What is carried from tile to tile: a finding for each format and sum, of the number of queries where most is
    lost; or one that says why there is none."""
    sums, hides = sums_seen(found)
    if hides or not len(sums):
        yield Finding("carry", Severity.REPORTED, dict(problem="") | (dict(because=hides.what) if hides else {}))
        return
    severities = {True: Severity.FAILS, False: Severity.PASSES, None: Severity.REPORTED}
    problems = sums.problem[sums.outcome != Outcome.ANSWERED]
    groups: dict[tuple, list[dict]] = {}
    for one in carried(sums):
        groups.setdefault((one["fmt"], one["sum"]), []).append(one)
    for group in groups.values():
        low = [one for one in group if one["low"]]
        clean = [one for one in group if one["low"] is False]
        most = max(low or clean or group, key=lambda one: one["lost"])
        where = {name: most[name] for name in ("sum", "fmt", "tile", "terms", "all")}
        where |= dict(queries=[one["queries"] for one in low or clean or group], queries_of=len(low) + len(clean))
        if most["low"] is None:
            where |= dict(blind=any(one["blind"] for one in group), problem=problems.iloc[0] if len(problems) else "")
        yield Finding("carry", severities[most["low"]], where, most["lost"], LOST)
