"""Is an output rounding or a bug, and why: which attention it is, in which arithmetic, and where it is wrong."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect
from attention_check.conventions.conventions import BY_CHOICE, keys_of
from attention_check.conventions.fitting import Rated, holding, own_sources
from attention_check.conventions.low_bits import OF_P, on_grid
from attention_check.conventions.other_keys import foreign_page, last_keys, moved_values
from attention_check.conventions.reading import CapturedCall, Places, Unfit, spread
from attention_check.conventions.search import NEAR, PART, UNITS, Fit, is_flat, search
from attention_check.conventions.tile_weights import OF_SINKS, wrong_tiles
from attention_check.explain.arithmetic import computation
from attention_check.explain.distance import BOUNDS, PRODUCTS, SCORES, Distance, Scan, over_bound, parts, scan
from attention_check.explain.dropout import LEAST_DROPOUT, dropped, noise
from attention_check.explain.verdict import OUT, Explanation, Verdict, WrongRegions, wrong_regions
from attention_check.measure.mistakes import Cause
from attention_check.probe.capture import Capture
from attention_check.tolerance import BLOCK
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import E4M3, FP16, Format
from fa_lib.theory.extremes import RMS

UNLIKE = 4.0  # times the median row's error: a row that is looked at again; times the sample's: that is none of it
OF_ALL = {"sources", "heads", "alibi"}  # aspects that count entries or heads: those of a part are others
SUSPECTS = 256  # rows of a head, at most, that are looked at again
ONE_CAST = RMS * E4M3.unit_roundoff  # relative root mean square: of values that are rounded once, to 8 bits
COARSE = 0.4  # a residual of 4 bits; with more, no arithmetic is looked for
SHOWN = 8  # dialects that were tried, the nearest
GRADUAL = {"scale", "softcap", "alibi", "window", "keys", "sink", "sinks", "softmax", "factor"}  # aspects in which a
# dialect may be near to another one, so that being near is no evidence
MUCH = 0.01  # of the error as believed, that a convention leaves: it explains 99.99 % of its square
WRONG = 8.0  # times the root mean square error of right rows, at least; and twice what is rounding


def explanation(call: CapturedCall) -> Explanation:
    """Explain an output.

    Raises:
        Unfit: the tensors make no call of attention in any layout.
    """
    if (mask := call.options.get("mask")) is not None:
        call = replace(call, options=call.options | dict(mask=_narrowest(mask)))
    try:
        outcome = Distance.of(call, Dialect())
    except Unfit:
        outcome = None
    exact = outcome and outcome.is_rounding and outcome.is_counted and (outcome.times_bound or 0.0) <= 1
    if not (exact or call.stated or call.declared) and (low := on_grid(call.q, call.k, call.v)):  # a kernel of 8 bits
        as_low = replace(call, stated=low)
        found = _right(as_low, holding(as_low, search(as_low)), outcome.residual if outcome else math.inf)
        if found and found.verdict in (Verdict.ROUNDING, Verdict.CONVENTION):
            return found
    if outcome and outcome.is_rounding and outcome.is_counted:  # or no row counts, and none is strange
        return _verdict_if_uniform(call, outcome, Verdict.ROUNDING, outcome.residual)
    if outcome and (zero := _zero_rows(call)):
        return zero
    fits, rated = search(call), list[Rated]()
    if outcome is None and not any(each.residual_by_row.numel() for each in fits):
        raise Unfit("q, k, v and o: their shapes make no call of attention in any layout that is tried")
    found = _diagnose(call, outcome, fits, holding(call, fits, rated))
    assert found is not None  # of a whole call
    rated += [(each.dialect, each.residual) for each in fits]
    tried = dict(sorted(rated, key=lambda each: each[1])[:SHOWN])
    return replace(found, tried=tuple((dialect.changes(), off) for dialect, off in tried.items()))


def cause_of(
    o: Tensor, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], precision: Precision, block: int = BLOCK
) -> Cause | None:
    """What has the error of an output that is beyond the bound of a declared kernel; None where nothing that was tried
    has it, or where it holds in places alone.

    Args:
        o: (..., n_q, d_v); q, k, v: as `tolerance`. options: of the call, keep and dropout_p among them. block: keys of
            a tile, as declared.
    """
    fmt, options = precision.inputs, {name: x for name, x in options.items() if x is not None}
    dropped = options.pop("keep", None) is not None
    options.pop("dropout_p", None)
    tensors = (fmt(x.detach().double()).to(fmt.dtype or torch.float64) for x in (q, k, v))
    held = Capture(*tensors, options=options).in_four_dimensions()
    stated = "" if fmt.dtype else fmt.name
    o = o.detach()[(None,) * (4 - o.ndim)].flatten(0, -4)
    call = CapturedCall(held.q, held.k, held.v, o, held.options, stated=stated, declared=precision, block=block)
    if dropped:
        return Cause("keep_missing", True, 1.0) if Distance.of(call, Dialect()).is_rounding else None
    found = explanation(call)
    if found.where is not None or not (found.dialect or found.arithmetic):
        return Cause("dropout", True, 1.0, factor=found.dropout) if found.dropout else None
    if not found.dialect:
        return found.arithmetic
    (number, *more) = found.dialect.values()
    share = 1 - (found.residual / found.believed) ** 2 if math.isfinite(found.believed) else 1.0
    factor = number if isinstance(number, float) and not more else 1.0
    return Cause(keys_of(found.dialect), found.residual <= NEAR, share, factor=factor)


def _diagnose(
    call: CapturedCall, outcome: Distance | None, fits: list[Fit], holds: Iterator[Rated]
) -> Explanation | None:  # fmt: skip
    """Explain an output that is no rounding as believed, or a part of it. Another dialect is named only where it holds:
    all sampled rows are within rounding of it, or of it in fewer bits, if that is confirmed, or PART of them are, and
    the others lie apart.

    Args:
        outcome: of the believed dialect; None where its shapes make no call. fits: of `search`. holds: of `holding`.

    Returns:
        None for a part of which nothing is found.
    """
    believed, best, is_part = outcome.residual if outcome else math.inf, fits[0].dialect, call.at is not None
    explained, value = partial(Distance.explained, verdict=Verdict.BUG, believed=believed), call.o.flatten()[0].item()
    if not is_part and not math.isnan(value) and (call.o == value).all():
        return explained(outcome or Distance.of(call, best), constant=value)
    if right := _right(call, holds, believed):
        return right
    other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}.get(call.o.dtype)
    if outcome and other and not is_part and Distance.of(replace(call, o=call.o.view(other)), Dialect()).is_rounding:
        return explained(outcome, bits=Format.of(other).name)
    if outcome and (spans := last_keys(call)):
        return explained(outcome, spans=spans)
    numbers = outcome if outcome and (is_part or best == Dialect()) else Distance.of(call, best)
    found = None
    if not is_part:
        if numbers.nan_rows or numbers.hidden_nan:
            return _not_finite(call, scan(call, (outcome or numbers).rows), outcome or numbers, believed)
        if coarser := _coarser(call, numbers, believed):
            return coarser
        found = scan(call, outcome.rows) if outcome else None
        if outcome and found and (apart := _apart(call, outcome, found, believed)):
            return apart
    for dialect in dict.fromkeys((Dialect(), numbers.rows.dialect) if outcome else (best,)):
        if solved := wrong_tiles(call, dialect):
            tiles, rows, wrong = solved
            where = wrong_regions(wrong.expand_as(rows.o), rows.places, (*rows.shape[:3], rows.o.shape[-1]))
            return explained(Distance.of(call, dialect), tiles=tiles, where=where)
        if outcome and not dialect.changes() and (moved := moved_values(call)):
            return explained(outcome, moved=moved)
        if share := dropped(call.rows(dialect)):
            return explained(Distance.of(call, dialect), dropout=share)
    if is_part:
        return None
    if outcome and found and (alone := _first_head(call, outcome, found, believed)):
        return alone
    if outcome and (features := _wrong_features(outcome)):
        return explained(outcome, where=features)
    right = (numbers.fit.counted <= UNLIKE * numbers.rounding).double().mean().item()
    # where no dialect holds, or nothing lies apart in it, the nearest one says nothing of where the output is wrong
    where = None
    tried = [numbers] * (right >= PART or outcome is None) + [outcome or numbers]
    for numbers in tried[: 1 + (tried[0] is not tried[-1])]:
        found = found if found and numbers is outcome else scan(call, numbers.rows)
        wrong, where = _wrong(found.residual_by_row, numbers.rounding), None
        rest = found.residual_by_row[~wrong & found.residual_by_row.isfinite()]
        if rest.numel() and rest.median() <= UNLIKE * numbers.rounding:  # the others are attention
            where = _located(found, wrong, numbers)
        if where is not None and where.is_known:
            break
    like = None if where is not None and where.is_known else noise(numbers.rows)
    keys, features = numbers.rows.v.shape[-2:]
    short = features // 2 if where is None and keys > features // 2 else 0  # with as many, v may be ill-conditioned
    return explained(numbers, looked_at=found and found.count, where=where, noise=like, short=short)


def _coarser(call: CapturedCall, numbers: Distance, believed: float) -> Explanation | None:
    """An output that is near a dialect, in which a computation in fewer bits has its error, or all rows are alike."""
    if numbers.residual > COARSE:
        return None
    best, fmt = numbers.rows.dialect, call.precision.output if call.stated in OF_P else call.fmt
    q = None if best.layout or best.roles else call.q
    found = computation(numbers.rows, fmt, replace(call.precision, inputs=fmt), call.block, q)
    changes = best.changes()
    near = NEAR * min(1.0, believed) if changes else NEAR  # so it explains 99 % of the squared error
    if changes.keys() & GRADUAL:
        near = min(NEAR, MUCH * believed) if all(change in BY_CHOICE for change in changes.items()) else 0.0
    alike = numbers.is_even and numbers.residual <= near
    if alike and not changes and (numbers.times_bound or 0.0) > BOUNDS:  # an error that is like noise is no
        share = noise(numbers.rows)  # other function's, but for a dropout of more weights than nobody drops
        alike = share is not None and share < LEAST_DROPOUT and numbers.residual <= ONE_CAST
    if not (found or alike and not wrong_tiles(call, best)):
        return None
    verdict = Verdict.BUG if _of_conventions(best) == Verdict.BUG else Verdict.PRECISION
    return _verdict_if_uniform(call, numbers, verdict, believed, found)


def _apart(
    call: CapturedCall, numbers: Distance, found: Scan, believed: float, wrong: Tensor | None = None
) -> Explanation | None:  # fmt: skip
    """Of an output that is right in some entries and heads, or else rows, as believed, and wrong in others: what one of
    these parts is by itself; None where nothing is found, or all are right or wrong. found: its `scan`. wrong: which
    rows are, bool like its residuals; None: those UNLIKE times what is rounding."""
    finite = found.residual_by_row.isfinite()
    wrong = finite & (found.residual_by_row > UNLIKE * numbers.rounding) if wrong is None else wrong
    bad = wrong.sum(-1) > OUT * finite.sum(-1)  # (batch, heads)
    if call.at is not None or numbers.rows.dialect.changes() or bad.shape != call.q.shape[:2] or not wrong.any():
        return None
    of_heads, where = bool(bad.any() and not bad.all()), _located(found, wrong, numbers)
    if not of_heads and not (where and where.rows and wrong.sum() <= (1 - OUT) * finite.sum()):
        return None
    explained = partial(numbers.explained, Verdict.BUG, believed, found.count, where=where)
    entry = int((bad if of_heads else wrong.any(-1)).any(1).nonzero()[0])
    heads, rows = bad[entry].nonzero().flatten(), found.places[2]
    if of_heads:
        solved = wrong_tiles(call, Dialect()) if call.options.get("sinks") is not None else None
        if solved and solved[0].rule in OF_SINKS:
            return None  # where a sink is small, a wrong one changes little
        own = own_sources(call, Dialect())
        moved = _right(call, iter([(own, 0.0)]), believed) if own.changes() else None
        if moved and moved.where is None:
            return moved
        if page := foreign_page(call, entry):
            return explained(page=page)
    else:
        heads = wrong[entry].any(-1).nonzero().flatten()
    if where and where.rows:
        rows = rows[wrong[entry].any(0)]
    first = heads[heads * call.k.shape[1] // bad.shape[1] == heads[0] * call.k.shape[1] // bad.shape[1]]
    for of in (heads, first) if len(first) < len(heads) else (heads,):
        inner = _of_part(call, (torch.tensor([entry]), of, rows))
        if inner is None or inner.dialect.keys() & OF_ALL or inner.tiles and not of_heads:
            continue
        if inner.spans or inner.moved or inner.tiles or inner.dropout or inner.dialect and inner.where is None:
            return explained(inside=(entry, tuple(of.tolist()), inner))
    return None


def _of_part(call: CapturedCall, at: Places) -> Explanation | None:
    """What a part of an output is by itself, at these entries, heads and rows; None where nothing is found."""
    own = replace(call, at=at)
    fits = search(own)
    return _diagnose(own, Distance.of(own, Dialect()), fits, holding(own, fits))


def _first_head(call: CapturedCall, numbers: Distance, found: Scan, believed: float) -> Explanation | None:
    """Of an output that is wrong in all heads, in another way in each perhaps: what the first head is by itself."""
    if numbers.rows.dialect.changes() or call.q.shape[1] == 1 or found.residual_by_row.shape[:2] != call.q.shape[:2]:
        return None
    at = torch.zeros(1, dtype=torch.int64)
    inner = _of_part(call, (at, at, found.places[2]))
    if inner is None or not inner.dialect or inner.where is not None or inner.dialect.keys() & OF_ALL - {"alibi"}:
        return None
    where = WrongRegions(1.0, (), (), (), (), (*numbers.rows.shape[:3], call.v.shape[-1]))
    return numbers.explained(Verdict.BUG, believed, found.count, inside=(0, (0,), inner), where=where)


def _located(found: Scan, wrong_rows: Tensor, numbers: Distance) -> WrongRegions | None:
    """The wrong part of an output, of its wrong rows; None where none are, or all."""
    if not wrong_rows.any() or wrong_rows[found.residual_by_row.isfinite()].all():
        return None
    least = min(numbers.rounding, UNITS * numbers.fmt.unit_roundoff)
    wrong = (found.errors > 3 * least) & wrong_rows[..., None]
    return wrong_regions(wrong, found.places, (*numbers.rows.shape[:3], wrong.shape[-1]))


def _wrong_features(numbers: Distance) -> WrongRegions | None:
    """Where an output is wrong, if that is in some features of all rows, and the others are right."""
    rows, golden, counted = numbers.rows, numbers.rows.golden, numbers.rows.counted
    size = golden[counted].square().mean().sqrt().clamp(min=1e-300)
    wrong = ((rows.o - golden).abs() > UNLIKE * numbers.rounding * size) & counted[..., None]
    features = wrong[counted].double().mean(0) > 0.5  # (d_v,)
    if not features.any() or features.double().mean() > 1 - PART:
        return None
    of_rows = wrong[counted][:, features].double().mean(-1) > 0.5  # values near 0 are near a wrong 0
    where = wrong_regions(wrong, rows.places, (*rows.shape[:3], rows.o.shape[-1]))
    return where if where.features and of_rows.double().mean() > 1 - OUT else None


def _zero_rows(call: CapturedCall) -> Explanation | None:
    """Of an output with rows of 0 that see keys: what the others are, and which are 0; None where there are no such
    rows, or no others. Those of padding, whose own keys a mask hides, are a convention."""
    o = call.o.cpu().clone()
    zero, n_kv, d = (o == 0).all(-1), call.k.shape[2], call.q.shape[-1]  # zero: (batch, heads, n_q)
    if not zero.any() or zero.all() or zero.shape != call.q.shape[:3] or zero.sum() * n_kv * d > PRODUCTS:
        return None
    due, features = torch.zeros_like(zero), o.shape[-1]
    for entry, head in zero.any(-1).nonzero().tolist():
        for at in zero[entry, head].nonzero().flatten().split(max(SCORES // n_kv, 1)):
            rows = call.rows(Dialect(), places=(torch.tensor([entry]), torch.tensor([head]), at))
            golden = rows.golden[0, 0].to(o.dtype)
            due[entry, head, at] = sees = rows.seen[0, 0, :, 0] & golden.any(-1) & golden.isfinite().all(-1)
            o[entry, head, at[sees]] = golden[sees]
    if not due.any():
        return None
    found = explanation(replace(call, o=o))
    if found.verdict == Verdict.BUG:
        return None
    mask, n_q = call.options.get("mask"), due.shape[2]
    if mask is not None and mask.dtype == torch.bool and n_q <= n_kv:
        own = mask.cpu().expand(*due.shape, n_kv).diagonal(n_kv - n_q, -2, -1)  # whether a row sees its own key
        if torch.equal(~own, due):
            return replace(found, verdict=Verdict.CONVENTION if found.is_rounding else found.verdict, zero="padding")
    places = [torch.arange(count) for count in due.shape]
    entry = due.any((1, 2)).nonzero().flatten()[:1]
    for at in (places[0], entry):  # a pattern in all entries, or in the first one that has such rows
        wrong = due[at][..., None].expand(-1, -1, -1, features)
        where = wrong_regions(wrong, (at, *places[1:]), (len(due), due.shape[1], n_q, features))
        if where.is_known:
            break
    return replace(found, verdict=Verdict.BUG, zero="rows", where=where)


def _right(call: CapturedCall, holds: Iterator[Rated], believed: float) -> Explanation | None:
    """An output in the first dialect in which the sampled rows are right; None where there is none."""
    for dialect, _ in holds:
        numbers = Distance.of(call, dialect)
        if is_flat(numbers.rows, numbers.rounding):
            continue
        if numbers.holds and numbers.is_counted:
            if numbers.nan_rows or numbers.hidden_nan:
                return _not_finite(call, scan(call, numbers.rows), numbers, believed)
            verdict = Verdict.BUG if _contradicts(call, dialect.changes()) else _of_conventions(dialect)
            return _verdict_if_uniform(call, numbers, verdict, believed)
    return None


def _contradicts(call: CapturedCall, changes: dict[str, Any]) -> bool:
    """Whether an output is right with another scale than the one that was given, causally where that was denied, or
    hides causally what the call's mask shows: nobody means that as a convention."""
    mask, causal = call.options.get("mask"), call.options.get("causal")
    of_rows = mask is not None and mask.ndim > 1 and mask.shape[-2] > 1 and not causal
    hides = "causal" in changes and (causal is False or of_rows and "mask" not in changes)
    return hides or "scale" in changes and call.options.get("scale") is not None


def _verdict_if_uniform(call, numbers, verdict, believed, arithmetic=None):
    """The verdict on the sampled rows, where all others are like them; else BUG, and where it is."""
    found = scan(call, numbers.rows)
    if found.nan_rows or found.hidden_nan:
        return _not_finite(call, found, numbers, believed)
    wrong = _rows_over_bound(call, found, numbers)
    if wrong.any():
        asked = verdict != Verdict.ROUNDING or call.at is not None  # before
        if not asked and (zero := _zero_rows(call)):
            return zero
        if apart := _apart(call, numbers, found, believed, wrong):
            return apart
        return numbers.explained(Verdict.BUG, believed, found.count, where=_located(found, wrong, numbers))
    return numbers.explained(verdict, believed, found.count, arithmetic=arithmetic)


def _not_finite(call: CapturedCall, found: Scan, numbers: Distance, believed: float) -> Explanation:
    """An output that is not finite where it should be, or the other way; and where."""
    wrong = found.residual_by_row.isinf()[..., None].expand_as(found.errors)
    where = wrong_regions(wrong, found.places, (*numbers.rows.shape[:3], wrong.shape[-1]))
    over = [((each.products > FP16.max) & (each.bias > -math.inf)).any(-1).flatten()
            for each in parts(call, numbers.rows, found.places)]  # fmt: skip
    over, bad = torch.cat(over), wrong[..., 0].flatten()
    counts: dict[str, Any] = dict(nan_rows=found.nan_rows, hidden_nan=found.hidden_nan)
    counts["overflow"] = int((over & bad).sum()), int((over & ~bad).sum())
    return numbers.explained(Verdict.BUG, believed, found.count, where=where, **counts)


def _narrowest(mask):
    """A mask without the entries and heads in which it is the same."""
    for dim in range(mask.ndim - 2):
        first = mask.narrow(dim, 0, 1)
        mask = first if torch.equal(first.expand_as(mask), mask) else mask
    return mask


def _of_conventions(dialect: Dialect) -> Verdict:
    """The verdict on an output that is right in a dialect."""
    changes = dialect.changes()
    named = {change[0]: BY_CHOICE[change].fault for change in changes.items() if change in BY_CHOICE}
    fitted = changes.keys() - named.keys()  # keys, or a number: nobody means them
    window = changes.get("window")
    limited = isinstance(window, tuple) and None not in window  # without a limit a side was forgotten
    if limited and window != (0, 0):  # of no keys to either side o is v
        fitted -= {"window"}
    if fitted or any(named.values()):
        return Verdict.BUG
    return Verdict.CONVENTION if changes else Verdict.ROUNDING


def _rows_over_bound(call: CapturedCall, found: Scan, numbers: Distance) -> Tensor:
    """Which rows of a scan are wrong where the sampled ones are not, bool like `found.residual_by_row`: their error is
    far above that of most, and beyond their bound as those of the sample are not."""
    finite = found.residual_by_row[found.residual_by_row.isfinite()]
    usual = finite.median().item() if finite.numel() else 0.0
    suspect = found.residual_by_row > max(UNLIKE * usual, numbers.fmt.unit_roundoff)
    if numbers.times_bound is None:
        worst = numbers.fit.counted.max().item() if numbers.fit.counted.numel() else 0.0
        return suspect & (found.residual_by_row > max(UNLIKE * worst, numbers.rounding))
    wrong, (entries, heads, rows_at) = torch.zeros_like(suspect), found.places
    for i, j in suspect.any(-1).nonzero().tolist():
        at = suspect[i, j].nonzero().flatten()
        at = at[spread(len(at), SUSPECTS)]
        rows = call.rows(numbers.rows.dialect, places=(entries[i : i + 1], heads[j : j + 1], rows_at[at]))
        over = over_bound(rows, call)
        if over is not None:
            wrong[i, j, at] = over[0, 0] > max(1.0, UNLIKE * numbers.times_bound)
    return wrong


def _wrong(residual_by_row: Tensor, least: float) -> Tensor:
    """Rows whose relative error is far above that of most, and no rounding."""
    finite = residual_by_row[residual_by_row.isfinite()]
    lowest = finite.quantile(0.1).item() if 0 < finite.numel() < 2**24 else 0.0
    return residual_by_row > max(WRONG * lowest, 2 * least)
