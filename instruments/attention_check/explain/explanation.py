"""Is an output rounding or a bug, and why: which attention it is, in which arithmetic, and where it is wrong.

CANDIDATES lists what an output may be; `explanation` asks one after the other, and the first that holds is the answer.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, scores, weights
from attention_check.conventions.conventions import BY_CHOICE, keys_of
from attention_check.conventions.low_bits import OF_P, on_grid
from attention_check.conventions.other_keys import moved_keys
from attention_check.conventions.reading import UNITS, CapturedCall, Unfit, in_four_dimensions, spread
from attention_check.conventions.search import NEAR, PART, Fit, Rated, holding, is_flat, search
from attention_check.conventions.seen_keys import seen_keys
from attention_check.conventions.solved_weights import EXPLAINED, HELD_OUT, LEAST_DROPOUT, dropped, noise, wrong_tiles
from attention_check.explain.arithmetic import computation
from attention_check.explain.distance import BOUNDS, PRODUCTS, SCORES, Distance, over_bound, parts
from attention_check.explain.verdict import OUT, Explanation, Verdict, WrongRegions, runs, wrong_regions
from attention_check.measure.mistakes import Cause
from attention_check.tolerance import BLOCK
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import E4M3, FP16, FP32, Format
from fa_lib.theory.extremes import RMS

UNLIKE = 4.0  # times the median row's error: a row that is looked at again; times the sample's: that is none of it
SUSPECTS = 256  # rows of a head, at most, that are looked at again
ONE_CAST = RMS * E4M3.unit_roundoff  # relative root mean square: of values that are rounded once, to 8 bits
COARSER = 8.0  # times Baseline's error: as of three bits fewer in every step; with more, noise is no arithmetic
COARSE = 0.4  # a residual of 4 bits; with more, no arithmetic is looked for
SHOWN = 8  # dialects that were tried, the nearest
# aspects in which a dialect may be near to another one, so that being near is no evidence
GRADUAL = {"scale", "softcap", "alibi", "window", "keys", "hidden", "penalty", "sink", "sinks", "softmax", "factor"}
MUCH = 0.01  # of the error as believed, that a convention leaves: it explains 99.99 % of its square
ELSEWHERE, IN_MOST = 2**15, 0.95  # rows, among which one is looked for; and of these, that must be found
AT_LARGEST = 0.03  # of the largest number, that rows which overflow and others may be beside it
VANISHES = math.log(2.0**-149)  # an exponent, below which the exponential is 0 in FP32
FEWEST, MOST = 16, 2  # values of a part, at least; and what it changes, at most: a few values are near anything
SEEN, ROOM = (4, 4, 24), 2**18  # entries, heads and rows whose keys are sought, at most; and of their scores
WRONG = 8.0  # times the root mean square error of right rows, at least, has a wrong row; and twice what is rounding


class Case:
    """A call, or a part of one, and what is known of it: each thing is computed where it is first needed."""

    def __init__(self, call: CapturedCall):
        self.call, self.fitted, self.zero_rows = call, list[Rated](), 0

    @cached_property
    def believed(self) -> Distance | None:
        """How far the output is from the dialect as the caller believes; None where its shapes make no call."""
        try:
            return Distance.of(self.call, Dialect())
        except Unfit:
            return None

    @cached_property
    def fits(self) -> list[Fit]:
        """The listed dialects, the nearest first; raises Unfit where the shapes make no call in any."""
        fits = search(self.call)
        if self.believed is None and not any(each.residual_by_row.numel() for each in fits):
            raise Unfit("q, k, v and o: their shapes make no call of attention in any layout that is tried")
        return fits

    @cached_property
    def nearest(self) -> Distance:
        """How far it is from the nearest listed dialect; a part from the believed one."""
        best = self.fits[0].dialect
        is_believed = self.call.at is not None or best == Dialect()
        return self.believed if self.believed and is_believed else Distance.of(self.call, best)

    def counts(self, numbers: Distance) -> bool:
        """Whether enough rows see a key in a dialect, and it hides none that the believed one judges."""
        hides = numbers.blind_rows == "other" and self.believed is not None and self.believed.blind_rows != "other"
        return numbers.is_counted and not hides

    def explained(
        self, numbers: Distance, verdict: Verdict = Verdict.BUG, of_all: bool = False, **more: Any
    ) -> Explanation:  # fmt: skip
        """An Explanation with the numbers of a Distance, and more fields. of_all: all rows were looked at."""
        places = self.call.at or [range(count) for count in numbers.rows.shape[:3]]
        looked_at = numbers.scan.residual_by_row.numel() if of_all else numbers.fit.residual_by_row.numel()
        fields = {name: getattr(numbers, name) for name in ("nan_rows", "hidden_nan", "blind_rows")} | more
        return Explanation(
            verdict, numbers.rows.dialect.changes(), self.call.fmt.name, numbers.times_bound, numbers.times_rule,
            numbers.residual, self.believed.residual if self.believed else math.inf,
            rows=(looked_at, math.prod(map(len, places))), scale=numbers.rows.scale, zero_rows=self.zero_rows, **fields,
        )  # fmt: skip

    def confirmed(self, numbers: Distance, verdict: Verdict, arithmetic: Cause | None = None) -> Explanation:
        """The verdict on the sampled rows, where all others are like them; else BUG, and where it is."""
        if numbers.scan.nan_rows or numbers.scan.hidden_nan:
            return _not_finite(self, numbers)
        wrong = _rows_over_bound(numbers)
        if not wrong.any():
            return self.explained(numbers, verdict, True, arithmetic=arithmetic)
        return _wrong_part(self, numbers, wrong) or self.explained(numbers, of_all=True, where=_located(wrong, numbers))


def explanation(call: CapturedCall) -> Explanation:
    """Explain an output.

    Raises:
        Unfit: the tensors make no call of attention in any layout.
    """
    if (mask := call.options.get("mask")) is not None:
        call = replace(call, options=call.options | dict(mask=_narrowest(mask)))
    case = Case(call)
    found = next(answer for each in CANDIDATES if (answer := each.of(case)))
    if "fits" not in vars(case):  # it was known before others were tried
        return found
    rated = [*case.fitted, *((each.dialect, each.residual) for each in case.fits)]
    nearest = dict(sorted(rated, key=lambda each: each[1])[:SHOWN])
    return replace(found, tried=tuple((dialect.changes(), off) for dialect, off in nearest.items()))


def _of_part(call: CapturedCall, *at: Tensor) -> Explanation | None:
    """What a part of an output is by itself, at these entries, heads and rows; None where nothing is found, it is right
    as believed, or it has few values, which fit anything."""
    case = Case(replace(call, at=at))
    if math.prod(map(len, at)) * call.v.shape[-1] < FEWEST or case.believed and case.believed.is_rounding:
        return None
    return next((answer for each in CANDIDATES if each.of_parts and (answer := each.of(case))), None)


def cause_of(
    o: Tensor, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], precision: Precision, block: int = BLOCK
) -> Cause | None:
    """What has the error of an output that is beyond the bound of a declared kernel; None where nothing that was tried
    has it, or where it holds in places alone.

    Args:
        o: (..., n_q, d_v); q, k, v: as `tolerance`. options: of the call, keep and dropout_p among them. block: keys of
            a tile, as declared.
    """
    fmt, is_dropped = precision.inputs, options.get("keep") is not None
    options = {name: x for name, x in options.items() if x is not None and name not in ("keep", "dropout_p")}
    options = {name: x for name, x in options.items() if name != "causal" or x}
    if "mask" in options:
        options["mask"] = in_four_dimensions(options["mask"].expand(*q.shape[:-1], k.shape[-2]))
    q, k, v = (in_four_dimensions(fmt(x.detach().double()).to(fmt.dtype or torch.float64)) for x in (q, k, v))
    stated = "" if fmt.dtype else fmt.name
    o = in_four_dimensions(o.detach())
    call = CapturedCall(q, k, v, o, options, stated=stated, declared=precision, block=block)
    if is_dropped:
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


def of_eight_bits(case: Case, believed: Distance | None) -> Explanation | None:
    """Right for a kernel of 8 bits, on whose grid all of q, k and v lie."""
    call = case.call
    exact = believed and believed.is_rounding and believed.is_counted and (believed.times_bound or 0.0) <= 1
    low = "" if exact or call.stated or call.declared else on_grid(call.q, call.k, call.v)
    found = in_another_dialect(Case(replace(call, stated=low)), None) if low else None
    return found if found and found.verdict in (Verdict.ROUNDING, Verdict.CONVENTION) else None


def as_believed(case: Case, believed: Distance) -> Explanation | None:
    """Within rounding of what the caller believes; or no row counts, and none is strange."""
    counts = believed.is_counted or believed.fit.counted.numel() * case.call.v.shape[-1] >= FEWEST
    return case.confirmed(believed, Verdict.ROUNDING) if believed.is_rounding and counts else None


def rows_of_zero(case: Case, believed: Distance) -> Explanation | None:
    """Rows of 0 that see keys, and others that are what they are. Rows of padding, whose own keys a mask hides, are a
    convention."""
    call, o = case.call, case.call.o.cpu().clone()
    zero, n_kv, d = (o == 0).all(-1), call.k.shape[2], call.q.shape[-1]  # zero: (batch, heads, n_q)
    if not zero.any() or zero.all() or zero.shape != call.q.shape[:3] or zero.sum() * n_kv * d > PRODUCTS:
        return None
    due, features, top = torch.zeros_like(zero), o.shape[-1], -math.inf
    for entry, head in zero.any(-1).nonzero().tolist():
        for at in zero[entry, head].nonzero().flatten().split(max(SCORES // n_kv, 1)):
            rows = call.rows(Dialect(), places=(torch.tensor([entry]), torch.tensor([head]), at))
            golden = rows.golden[0, 0].to(o.dtype)
            due[entry, head, at] = sees = rows.seen[0, 0, :, 0] & golden.any(-1) & golden.isfinite().all(-1)
            o[entry, head, at[sees]] = golden[sees]
            top = max([top, *scores(rows)[0, 0, sees].amax(-1).tolist()])
    if not due.any():
        return None
    found = explanation(replace(call, o=o))
    if found.verdict == Verdict.BUG:
        case.zero_rows = int(due.sum())
        return None
    found = replace(found, believed=believed.residual)  # of the rows as they are
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
    return replace(found, verdict=Verdict.BUG, zero="underflow" if top < VANISHES else "rows", where=where)


def features_of_zero(case: Case, believed: Distance) -> Explanation | None:
    """Features of 0 in all rows, and others that are what they are."""
    call = case.call
    zero = (call.o == 0).flatten(0, -2).all(0).cpu()  # (d_v,)
    if not zero.any() or zero.all() or not believed.rows.golden[..., zero].any():
        return None
    found = explanation(replace(call, v=call.v[..., ~zero], o=call.o[..., ~zero]))
    ranges = tuple(runs(zero.nonzero().flatten().tolist()))
    where = WrongRegions(1.0, (), (), (), ranges, (*believed.rows.shape[:3], len(zero)))
    return replace(found, verdict=Verdict.BUG, zero="features", where=where)


def rows_elsewhere(case: Case, believed: Distance) -> Explanation | None:
    """Right rows, but in other places; what is wrong beside them is 0."""
    call, (*shape, n_kv) = case.call, believed.rows.shape
    places: Any = tuple(torch.arange(count) for count in shape)
    if math.prod(shape) > ELSEWHERE or math.prod(shape) * n_kv * call.q.shape[-1] > PRODUCTS:
        return None
    every = ((each.golden.flatten(0, 2), each.o.flatten(0, 2)) for each in parts(call, believed.rows, places))
    due, o = map(torch.cat, zip(*every))
    least = UNLIKE * believed.rounding * due.norm(dim=-1)  # (entries * heads * rows,), in their order
    error = (o - due).norm(dim=-1)
    wrong = error > least
    moved = (wrong & o.any(-1)).nonzero().flatten()
    at = moved[spread(len(moved), SUSPECTS)]
    if not len(at):
        return None
    off, of = torch.cdist(o[at], due).min(1)
    if ((off <= least[of]) & (UNLIKE * off <= error[at])).double().mean() < IN_MOST:
        return None
    wrong = wrong.unflatten(0, shape)[..., None].expand(*shape, o.shape[-1])
    found = tuple((_place(int(a), shape), _place(int(b), shape)) for a, b in zip(at, of))
    where: Any = wrong_regions(wrong, places, (*believed.rows.shape[:3], o.shape[-1]))
    more: dict[str, Any] = dict(elsewhere=found, where=where)
    return case.explained(believed, of_all=True, zero="others" * (len(moved) < wrong[..., 0].sum()), **more)


def _place(at: int, shape: list[int]) -> tuple[int, ...]:
    """Entry, head and row of the at-th row."""
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))


def of_one_number(case: Case, believed: Distance | None) -> Explanation | None:
    """The same number everywhere."""
    value = case.call.o.flatten()[0].item()
    if math.isnan(value) or (case.call.o != value).any():
        return None
    return case.explained(believed or case.nearest, constant=value)


def in_another_dialect(case: Case, _: Distance | None) -> Explanation | None:
    """Right in another dialect: a listed one, or one with fitted numbers."""
    return _right(case, (dialect for dialect, _ in holding(case.call, case.fits, case.fitted)))


def _right(case: Case, dialects: Iterable[Dialect]) -> Explanation | None:
    """In the first dialect in which the sampled rows are right, and all others like them."""
    for dialect in dialects:
        numbers = Distance.of(case.call, dialect)
        if dialect.changes() and case.believed and numbers.is_same(case.believed):
            continue
        no_bound = dialect.part or numbers.times_bound is None
        if no_bound and case.believed and numbers.residual**2 > EXPLAINED * case.believed.residual**2:
            continue  # without a bound it may be near to any output
        if not is_flat(numbers.rows, numbers.rounding) and numbers.holds and case.counts(numbers):
            if numbers.nan_rows or numbers.hidden_nan:
                return _not_finite(case, numbers)
            verdict = _of_conventions(dialect, case.call)
            return case.confirmed(numbers, verdict)
    return None


def in_other_bits(case: Case, believed: Distance) -> Explanation | None:
    """Right, had its bits been read as the other format of 16."""
    call = case.call
    other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}.get(call.o.dtype)
    if other is None:
        return None
    for names in ("o", "qkvo")[: 1 + (call.q.dtype == call.o.dtype)]:
        turned: dict[str, Any] = {name: getattr(call, name).view(other) for name in names}
        numbers = Distance.of(replace(call, **turned), Dialect())
        if numbers.is_rounding and numbers.is_counted and numbers.fit.counted.numel():
            return case.explained(believed, bits=Format.of(other).name, bits_of_all=len(names) > 1)
    return None


def not_finite(case: Case, believed: Distance | None) -> Explanation | None:
    """Not finite where it should be, or the other way round."""
    bad = case.nearest.nan_rows or case.nearest.hidden_nan
    return _not_finite(case, believed or case.nearest) if bad else None


def in_coarser_arithmetic(case: Case, believed: Distance | None) -> Explanation | None:
    """Near a dialect: a computation in fewer bits has its error, or all rows are alike."""
    call, numbers = case.call, case.nearest
    if numbers.residual > COARSE or not case.counts(numbers):
        return None
    best, fmt = numbers.rows.dialect, call.precision.output if call.stated in OF_P else call.fmt
    q = None if best.layout or best.roles else call.q
    found = computation(numbers.rows, fmt, replace(call.precision, inputs=fmt), call.block, q)
    changes, before = best.changes(), believed.residual if believed else math.inf
    near = NEAR * min(1.0, before) if changes else NEAR  # so it explains 99 % of the squared error
    if changes.keys() & GRADUAL:
        near = min(NEAR, MUCH * before) if all(change in BY_CHOICE for change in changes.items()) else 0.0
    alike = numbers.is_even and numbers.residual <= near
    large = numbers.residual > ONE_CAST and numbers.times_rule > COARSER
    if alike and not changes and ((numbers.times_bound or 0.0) > BOUNDS or large):  # an error that is like noise is no
        share = noise(numbers.rows)  # other function's, but for a dropout of more weights than nobody drops
        alike = share is not None and share < LEAST_DROPOUT and numbers.residual <= ONE_CAST
    if not (found or alike and not wrong_tiles(call, best)):
        return None
    if not found and believed and not changes and (seen := rows_of_other_keys(case, believed)):
        return seen
    verdict = Verdict.BUG if _of_conventions(best, call) == Verdict.BUG else Verdict.PRECISION
    return case.confirmed(numbers, verdict, found)


def rows_of_other_keys(case: Case, believed: Distance) -> Explanation | None:
    """Right in all rows, of other ranges of keys than these rows should see."""
    found, (entries, heads, rows) = believed.scan, SEEN
    wrong = found.residual_by_row > HELD_OUT * believed.rounding
    at = [wrong.any(others).nonzero().flatten() for others in ((1, 2), (0, 2), (0, 1))]
    most = entries, heads, max(min(rows, ROOM // (entries * heads * case.call.k.shape[2])), 4)
    places: Any = [of[each[spread(len(each), count)]] for of, each, count in zip(found.places, at, most)]
    seen = seen_keys(case.call, tuple(places)) if wrong.any() else ()
    return case.explained(believed, of_all=True, seen=seen, where=_located(wrong, believed)) if seen else None


def wrong_in_a_part(case: Case, believed: Distance) -> Explanation | None:
    """Right in some entries and heads, or else rows, and wrong in others, of which one is known by itself."""
    residuals = believed.scan.residual_by_row
    return _wrong_part(case, believed, residuals.isfinite() & (residuals > UNLIKE * believed.rounding))


def _wrong_part(case: Case, numbers: Distance, wrong: Tensor) -> Explanation | None:
    """What one of the wrong parts is by itself. wrong: which rows are, bool like the residuals of a scan."""
    call, residuals = case.call, numbers.scan.residual_by_row
    finite = residuals.isfinite()
    bad = wrong.sum(-1) > OUT * finite.sum(-1)  # (batch, heads)
    if call.at is not None or numbers.rows.dialect.changes() or bad.shape != call.q.shape[:2] or not wrong.any():
        return None
    of_heads, where = bool(bad.any() and not bad.all()), _located(wrong, numbers)
    if not of_heads and not (where and where.rows and wrong.sum() <= (1 - OUT) * finite.sum()):
        return None
    entry = int((bad if of_heads else wrong.any(-1)).any(1).nonzero()[0])
    heads, rows = (bad if of_heads else wrong.any(-1))[entry].nonzero().flatten(), numbers.scan.places[2]
    if where and where.rows:
        rows = rows[wrong[entry].any(0)]
    first = heads[heads * call.k.shape[1] // bad.shape[1] == heads[0] * call.k.shape[1] // bad.shape[1]]
    for of in (heads, first) if len(first) < len(heads) else (heads,):
        inner = _of_part(call, torch.tensor([entry]), of, rows)
        if inner is None or "alibi" in inner.dialect or inner.tiles and not of_heads or len(inner.dialect) > MOST:
            continue
        known = inner.moved or inner.tiles or inner.dropout or inner.seen and of_heads
        if known or inner.dialect and inner.where is None:
            return case.explained(numbers, of_all=True, where=where, inside=(entry, tuple(of.tolist()), inner))
    return None


def of_other_weights(case: Case, believed: Distance | None) -> Explanation | None:
    """Right but for tiles of other keys, for the weights of whole tiles, or for weights that are dropped."""
    for numbers in dict.fromkeys((believed or case.nearest, case.nearest)):
        dialect = numbers.rows.dialect
        if not dialect.changes() and (moved := moved_keys(case.call)):
            return case.explained(numbers, moved=moved)
        if solved := wrong_tiles(case.call, dialect):
            tiles, rows, wrong = solved
            where = wrong_regions(wrong.expand_as(rows.o), rows.places, (*rows.shape[:3], rows.o.shape[-1]))
            return case.explained(numbers, tiles=tiles, where=where)
        if share := dropped(case.call.rows(dialect)):
            return case.explained(numbers, dropout=share)
    return None


def wrong_in_each_head(case: Case, believed: Distance) -> Explanation | None:
    """Wrong in all heads, in another way in each perhaps: the first head is known by itself."""
    call, first = case.call, torch.zeros(1, dtype=torch.int64)
    if call.q.shape[1] == 1 or believed.scan.residual_by_row.shape[:2] != call.q.shape[:2]:
        return None
    inner = _of_part(call, first, first, believed.scan.places[2])
    if inner is None or inner.where is not None or len(inner.dialect) > MOST:
        return None
    if not (inner.dialect or inner.moved or inner.seen):
        return None
    where = WrongRegions(1.0, (), (), (), (), (*believed.rows.shape[:3], call.v.shape[-1]))
    return case.explained(believed, of_all=True, inside=(0, (0,), inner), where=where)


def wrong_in_features(case: Case, believed: Distance) -> Explanation | None:
    """Wrong in some features of all rows, and right in the others."""
    rows, golden, counted = believed.rows, believed.rows.golden, believed.rows.counted
    size = golden[counted].square().mean().sqrt().clamp(min=1e-300)
    wrong = ((rows.o - golden).abs() > UNLIKE * believed.rounding * size) & counted[..., None]
    features = wrong[counted].double().mean(0) > 0.5  # (d_v,)
    if not features.any() or features.double().mean() > 1 - PART:
        return None
    of_rows = wrong[counted][:, features].double().mean(-1) > 0.5  # values near 0 are near a wrong 0
    where = wrong_regions(wrong, rows.places, (*rows.shape[:3], rows.o.shape[-1]))
    return case.explained(believed, where=where) if where.features and of_rows.double().mean() > 1 - OUT else None


def wrong_in_places(case: Case, believed: Distance | None) -> Explanation:
    """Wrong, and where; everywhere, where no dialect holds in the others."""
    numbers = case.nearest
    right = (numbers.fit.counted <= UNLIKE * numbers.rounding).double().mean().item()
    # where no dialect holds, or nothing lies apart in it, the nearest one says nothing of where the output is wrong
    where, tried = None, [numbers] * (right >= PART or believed is None) + [believed or numbers]
    for numbers in dict.fromkeys(tried):
        residuals = numbers.scan.residual_by_row
        finite, where = residuals[residuals.isfinite()], None
        lowest = finite.quantile(0.1).item() if 0 < finite.numel() < 2**24 else 0.0
        wrong = residuals > max(WRONG * lowest, 2 * numbers.rounding)
        rest = residuals[~wrong & residuals.isfinite()]
        if rest.numel() and rest.median() <= UNLIKE * numbers.rounding:  # the others are attention
            where = _located(wrong, numbers)
        if where is not None and where.is_known:
            break
    like = None if where is not None and where.is_known else noise(numbers.rows)
    keys, features = numbers.rows.v.shape[-2:]
    short = features // 2 if where is None and keys > features // 2 else 0  # with as many, v may be ill-conditioned
    return case.explained(numbers, of_all=True, where=where, noise=like, short=short)


class Candidate(NamedTuple):
    """What an output may be."""

    find: Callable[[Case, Any], Explanation | None]  # of a Case and its `believed`; None where it is something else
    of_parts: bool = False  # a part of an output may be it, too
    in_any_shape: bool = False  # it is asked, too, where the shapes make no call as believed: `believed` is None then

    def of(self, case: Case) -> Explanation | None:
        return self.find(case, case.believed) if case.believed or self.in_any_shape else None


CANDIDATES = (
    Candidate(of_eight_bits, in_any_shape=True), Candidate(rows_of_zero), Candidate(as_believed),
    Candidate(of_one_number, in_any_shape=True), Candidate(in_another_dialect, of_parts=True, in_any_shape=True),
    Candidate(in_other_bits), Candidate(not_finite, in_any_shape=True),
    Candidate(in_coarser_arithmetic, in_any_shape=True), Candidate(features_of_zero), Candidate(rows_elsewhere),
    Candidate(wrong_in_a_part),
    Candidate(of_other_weights, of_parts=True, in_any_shape=True), Candidate(rows_of_other_keys, of_parts=True),
    Candidate(wrong_in_each_head), Candidate(wrong_in_features), Candidate(wrong_in_places, in_any_shape=True),
)  # fmt: skip


def _not_finite(case: Case, numbers: Distance) -> Explanation:
    """An output that is not finite where it should be, or the other way; and where."""
    found = numbers.scan
    wrong = found.residual_by_row.isinf()[..., None].expand_as(found.errors)
    where = wrong_regions(wrong, found.places, (*numbers.rows.shape[:3], wrong.shape[-1]))
    bad, sizes, hidden = wrong[..., 0].flatten(), [], list[Tensor]()
    for each in parts(case.call, numbers.rows, found.places):
        sizes.append([largest(each).nan_to_num(0.0).flatten() / LARGEST[name] for name, largest in OVERFLOWS.items()])
        hidden.append((each.bias.isneginf().any(-1) & each.seen[..., 0]).flatten())
    has_hidden = torch.cat(hidden)
    hides = "each" if torch.equal(has_hidden, bad) and not bad.all() else "keys" * bool(has_hidden.any())
    hides = hides if case.call.k.isfinite().all() and case.call.v.isfinite().all() else "nan"
    overflow = next((name for name, x in zip(OVERFLOWS, map(torch.cat, zip(*sizes))) if _overflows(x, bad)), "")
    counts: dict[str, Any] = dict(nan_rows=found.nan_rows, hidden_nan=found.hidden_nan)
    return case.explained(numbers, of_all=True, where=where, overflow=overflow, hides=hides, **counts)


def _overflows(size: Tensor, bad: Tensor) -> bool:
    """Whether sizes, over the largest number, are beyond it, or at it, in bad rows alone."""
    highest = size.masked_fill(bad, 0.0).max()
    lowest = size[bad].min() if bad.any() else highest
    return bool(highest < lowest and highest - AT_LARGEST < 1 < lowest + AT_LARGEST)


def _largest(x: Tensor, rows: Rows) -> Tensor:
    """The largest of x, of the shape of scores, among the keys that each row sees."""
    return x.masked_fill(rows.bias == -math.inf, -math.inf).amax(-1)


def _sum_of_values(rows: Rows) -> Tensor:
    """The largest sum of exp(S - m) v, before it is divided by the row sum."""
    return (rows.golden.abs() / weights(rows).amax(-1, keepdim=True)).amax(-1)


OVERFLOWS: dict[str, Callable[[Rows], Tensor]] = {  # what may overflow in a row, the largest of it
    "products": lambda rows: _largest(rows.products, rows),
    "scores": lambda rows: _largest(scores(rows), rows),
    "capped": lambda rows: _largest((rows.products * rows.scale / (rows.softcap or math.inf)).abs(), rows),
    "capped_twice": lambda rows: _largest(2 * rows.products * rows.scale / (rows.softcap or math.inf), rows),
    "sums": _sum_of_values,
}
LARGEST = dict.fromkeys(OVERFLOWS, math.log(FP32.max)) | dict(products=FP16.max, sums=FP16.max)


def _contradicts(call: CapturedCall, changes: dict[str, Any]) -> bool:
    """Whether an output is right with another scale than the one that was given, a window of another size, causally
    where that was denied, or hides causally what the call's mask shows: nobody means that as a convention."""
    given, found = call.options.get("window") or (), changes.get("window")
    pairs = zip(given, found) if isinstance(found, tuple) else ()
    resized = any(None not in sides and abs(sides[0] - sides[1]) > 1 for sides in pairs)  # a key may be a row's own
    mask, causal = call.options.get("mask"), call.options.get("causal")
    of_rows = mask is not None and mask.ndim > 1 and mask.shape[-2] > 1 and not causal
    hides = "causal" in changes and (causal is False or of_rows and "mask" not in changes)
    return resized or hides or "scale" in changes and call.options.get("scale") is not None


def _of_conventions(dialect: Dialect, call: CapturedCall) -> Verdict:
    """The verdict on an output that is right in a dialect."""
    changes = dialect.changes()
    named = {change[0]: BY_CHOICE[change].fault for change in changes.items() if change in BY_CHOICE}
    fitted = changes.keys() - named.keys()  # keys, or a number: nobody means them
    window = changes.get("window")
    limited = isinstance(window, tuple) and None not in window  # without a limit a side was forgotten
    if limited and window != (0, 0):  # of no keys to either side o is v
        fitted -= {"window"}
    if fitted or any(named.values()) or _contradicts(call, changes):
        return Verdict.BUG
    return Verdict.CONVENTION if changes else Verdict.ROUNDING


def _narrowest(mask):
    """A mask without the entries and heads in which it is the same."""
    for dim in range(mask.ndim - 2):
        first = mask.narrow(dim, 0, 1)
        mask = first if torch.equal(first.expand_as(mask), mask) else mask
    return mask


def _located(wrong_rows: Tensor, numbers: Distance) -> WrongRegions | None:
    """The wrong part of an output, of its wrong rows in a scan; None where none are, or all."""
    found = numbers.scan
    if not wrong_rows.any() or wrong_rows[found.residual_by_row.isfinite()].all():
        return None
    least = min(numbers.rounding, UNITS * numbers.call.fmt.unit_roundoff)
    wrong = (found.errors > 3 * least) & wrong_rows[..., None]
    return wrong_regions(wrong, found.places, (*numbers.rows.shape[:3], wrong.shape[-1]))


def _rows_over_bound(numbers: Distance) -> Tensor:
    """Which rows of a scan are wrong where the sampled ones are not, bool like its residuals: their error is far above
    that of most, and beyond their bound as those of the sample are not."""
    residuals = numbers.scan.residual_by_row
    finite = residuals[residuals.isfinite()]
    usual = finite.median().item() if finite.numel() else 0.0
    suspect = residuals > max(UNLIKE * usual, numbers.call.fmt.unit_roundoff)
    if numbers.times_bound is None:
        worst = numbers.fit.counted.max().item() if numbers.fit.counted.numel() else 0.0
        return suspect & (residuals > max(UNLIKE * worst, numbers.rounding))
    wrong, (entries, heads, rows_at) = torch.zeros_like(suspect), numbers.scan.places
    for i, j in suspect.any(-1).nonzero().tolist():
        at = suspect[i, j].nonzero().flatten()
        at = at[spread(len(at), SUSPECTS)]
        rows = numbers.call.rows(numbers.rows.dialect, places=(entries[i : i + 1], heads[j : j + 1], rows_at[at]))
        over = over_bound(rows, numbers.call)
        if over is not None:
            wrong[i, j, at] = over[0, 0] > max(1.0, UNLIKE * numbers.times_bound)
    return wrong
