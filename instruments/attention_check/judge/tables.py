"""From each table of a kernel's check to findings: what holds, where, by what number and limit, and no sentence."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pandas as pd

from attention_check.conventions.conventions import keys_of
from attention_check.isolation.calls import FAULTS
from attention_check.isolation.worker import DRAWS, UNSUPPORTED, Outcome
from attention_check.judge.findings import Finding, Severity, within
from attention_check.measure.capability import CAPABILITIES, CAUSAL_FEWER, CAUSAL_ONE, crashed
from attention_check.measure.capability import FEWER as FEWER_QUERIES
from attention_check.measure.carry import LOST, carried
from attention_check.measure.contract import BY_DEFAULT, NAMED, OTHER_LAYOUT, OUTSIDE, formats
from attention_check.measure.draws import OF_LENGTHS, OF_SHAPES, SIDE, worst_draws
from attention_check.measure.measurements import Measurements
from attention_check.measure.mistakes import EXPLAINED, ROUNDINGS
from attention_check.measure.relations import RELATIONS
from attention_check.measure.relations.subject import BREAKS, BROKEN, CONVENTION, NOT_ASKED, ROUNDING
from attention_check.measure.way import TAKES
from attention_check.measure.wrong_answers import FAR, furthest
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import ALLOWED, CALLS
from fa_lib.numerics.confidence import interval
from fa_lib.numerics.formats import Format

MADE = 0.8  # of the squared error is made by the factor, in every setting
FEWER = 2  # bits of the outputs than of the format
SAME = 0.1  # of its distance to 1 is what the factor may be off its median: a carry's factor grows with N
OF_BOUND = ("judged", "distribution", "n", "rows", "of", "key", "same", "share", "fmt", "tiles", "factor")


def growth(lengths: pd.DataFrame) -> Iterator[Finding]:
    """How the error over Baseline's goes with N, for the format, inputs and number of queries where it is largest."""
    few = lengths.queries.where(lengths.queries < lengths.n, 0).astype(int)  # 0: as many as keys
    mean = lengths.assign(few=few).groupby(["fmt", "distribution", "few", "n"]).times_max.mean().dropna().reset_index()
    groups = [rows for _, rows in mean.groupby(["fmt", "distribution", "few"], sort=False) if len(rows) > 1]
    if groups:
        rows = max(groups, key=lambda rows: rows.times_max.max())
        first, last = rows.iloc[0], rows.iloc[-1]
        where = dict(distribution=first.distribution, fmt=first.fmt, queries=int(first.few) or None, n=int(last.n))
        where |= dict(from_n=int(first.n), from_number=float(first.times_max))
        yield Finding("growth", Severity.REPORTED, where, last.times_max)


def largest(lengths: pd.DataFrame) -> Iterator[Finding]:
    """The largest error over lengths, numbers of queries, formats and ordinary inputs."""
    calls = worst_draws(lengths, OF_LENGTHS, ALLOWED["o"])
    if calls.times_max.notna().any():
        worst = calls.loc[calls.times_max.idxmax()]
        yield Finding("error", within(worst.times_max, ALLOWED["o"]), place(worst), worst.times_max, ALLOWED["o"])
        yield from _chance(calls, "times_max", ALLOWED["o"], place)


def _chance(calls: pd.DataFrame, times: str, allowed: float, at: Callable[[pd.Series], dict]) -> Iterator[Finding]:
    """Calls that one draw alone would fail: the one that is furthest."""
    lucky = calls[(calls.alone > allowed) & (calls[times] <= allowed)]
    if len(lucky):
        worst = lucky.loc[lucky.alone.idxmax()]
        where = at(worst) | dict(draws=int(worst.draws), second=float(worst[times]))
        yield Finding("chance", Severity.REPORTED, where, worst.alone, allowed)


def place(row: pd.Series) -> dict:
    """Of a row of `tables.measure`; queries is None where they are as many as keys."""
    queries = int(row.queries) if row.queries < row.n else None
    return dict(distribution=row.distribution, fmt=row.fmt, n=int(row.n), queries=queries)


def over_shapes(shapes: pd.DataFrame) -> Iterator[Finding]:
    """The rule over shapes and masks: outputs count, gradients are reported, unless they are no gradients of attention.
    What is no answer counts, but for a refusal, which is no support."""
    if not len(shapes):
        return
    ran = shapes[shapes.outcome == Outcome.ANSWERED]
    for outcome, rows in shapes[~shapes.outcome.isin([Outcome.ANSWERED, *UNSUPPORTED])].groupby("outcome"):
        first = rows.iloc[0]
        where = dict(shape=first["shape"], fmt=first.fmt, outcome=outcome, problem=first.problem)
        yield Finding("problem", Severity.FAILS, where)
    for tensors, what in ((("o",), "outputs"), (("dq", "dk", "dv"), "gradients")):
        draws = ran[ran.tensor.isin(tensors)]
        if not len(draws):
            continue
        limit = draws.allowed.max()
        rows = worst_draws(draws, OF_SHAPES, limit)
        yield from _chance(
            rows, "ratio", limit, lambda call: {name: call[name] for name in ("shape", "head_dim", "fmt")}
        )
        failed = rows[rows.ratio > limit]
        counts = dict(failed=len(failed), of=len(rows))
        if not len(failed):
            yield Finding(what, Severity.PASSES, counts, rows.ratio.max(), limit)
            continue
        worst = failed.loc[failed.ratio.idxmax()]
        where = counts | dict(tensor=worst.tensor, shape=worst["shape"], fmt=worst.fmt)
        severity = Severity.FAILS if what == "outputs" else Severity.REPORTED
        yield Finding(what, severity, where, worst.ratio, limit)
        wrong = wrong_gradients(failed, "ratio", limit) if what == "gradients" else failed[:0]
        if len(wrong):
            worst = furthest(wrong)
            where = {name: worst[name] for name in ("tensor", "shape", "fmt")} | dict(head_dim=int(worst.head_dim))
            yield Finding("wrong_gradient", Severity.FAILS, where, worst.relative, FAR)


def wrong_gradients(rows: pd.DataFrame, times: str, limit: float) -> pd.DataFrame:
    """The rows of gradients that are not attention's: more than FAR off, and beyond the rule of three, as Baseline's
    own may be that far off where a gradient nearly cancels. NaN is beyond both. times: the column of the largest error
    over Baseline's. limit: up to which that is within the rule."""
    return rows[~(rows[times] <= limit) & ~(rows.relative <= FAR)]


def problems(table: pd.DataFrame) -> Iterator[Finding]:
    """A kernel that refuses inputs of a table of `tables.measure` does not support them; anything else fails."""
    bad = table[table.outcome != Outcome.ANSWERED]
    for (outcome, crash), rows in bad.groupby(["outcome", bad.problem.map(crashed)]):
        severity = Severity.REPORTED if outcome in UNSUPPORTED and not crash else Severity.FAILS
        where = place(rows.iloc[0]) | dict(outcome=outcome, problem=rows.problem.iloc[0])
        yield Finding("problem", severity, where)


def on_trouble(inputs: pd.DataFrame) -> Iterator[Finding]:
    """The worst of the inputs that make trouble, and the bias that is furthest from Baseline's."""
    if not inputs.times_max.notna().any():
        return
    worst = inputs.groupby(["fmt", "distribution"]).times_max.mean().dropna().sort_values()
    fmt, distribution = worst.index[-1]
    yield Finding("worst_input", Severity.REPORTED, dict(fmt=fmt, distribution=distribution), worst.iloc[-1])
    groups = inputs.groupby(["fmt", "distribution"])
    level, sure = 1 - 0.05 / len(groups), []  # each group is a chance to find one
    for at, rows in groups:
        mean, low, high = interval(rows.outwards, level)
        if (low > 0 or high < 0) and abs(mean) >= SIDE:
            sure.append((at, mean, low, high, rows.baseline_outwards[rows.outwards.notna()].mean()))
    if sure:
        (fmt, distribution), mean, low, high, baseline = max(sure, key=lambda one: abs(one[1] - one[4]))
        where = dict(fmt=fmt, distribution=distribution, low=float(low), high=float(high), baseline=float(baseline))
        yield Finding("outwards", Severity.REPORTED, where, mean, SIDE)


def of_bound(close: pd.DataFrame, kernel: str) -> Iterator[Finding]:
    """A finding for each row of `closeness` or `closeness.bounds` that is beyond its bound, or one for the row that is
    nearest to it.

    Beyond its bound, with the very error of another attention, an output fails: the rule does not see that where
    Baseline's own error is large, as where few keys have most of the weight. Beyond it with the error of a rounding, or
    of nothing that was tried, it is reported: a kernel that carries less than FP32 is beyond it, too."""
    rows = close.sort_values("times", ascending=False).to_dict("records") if len(close) else []
    for row in [each for each in rows if each["times"] > 1] or rows[:1]:
        where = dict(kernel=kernel) | {name: x for name, x in row.items() if name in OF_BOUND}
        if row["times"] <= 1:
            yield Finding("bound", Severity.PASSES, where, row["times"], 1.0)
        elif row["same"] and row["key"] not in ROUNDINGS:
            yield Finding("mistake", Severity.FAILS, where, row["times"], 1.0)
        else:
            yield Finding("bound", Severity.REPORTED, where, row["times"], 1.0)


def scaled(lengths: pd.DataFrame) -> float | None:
    """The one factor that a kernel's outputs are off by, in a table of its own rows of `tables.measure`; None where
    there is none, or one setting alone to see it in."""
    rows = lengths[lengths.outcome == Outcome.ANSWERED] if "factor" in lengths else lengths[:0]
    if len(rows) < 2 or not (rows.by_factor >= MADE).all():
        return None
    off = rows.factor - 1
    near = (off - off.median()).abs() <= SAME * abs(off.median())
    return float(1 + off.median()) if near.all() else None


def coarse(lengths: pd.DataFrame) -> dict[str, int]:
    """Formats of which all outputs of a kernel, in a table as above, lack FEWER bits or more -> the bits they have."""
    rows = lengths[lengths.outcome == Outcome.ANSWERED] if "bits" in lengths else lengths[:0]
    most = rows.groupby("fmt", sort=False).bits.max() if len(rows) else {}
    return {fmt: int(most[fmt]) for fmt in dict(most) if most[fmt] <= Format.of(fmt).precision - FEWER}


def of_wrong(lengths: pd.DataFrame, repeats: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each; all fail, and where there is one, what a carry loses cannot be told from it (in that format,
    where it is of one)."""
    distance = repeats["apart"].max() if "apart" in repeats else 0.0  # ulp
    if distance > LOST:  # more than another order of FP32 sums, which turns the last bit
        yield Finding("noise", Severity.FAILS, dict(runs=int(repeats.runs.iloc[0])), distance, LOST)
    if (factor := scaled(lengths)) is not None:
        yield Finding("scale", Severity.FAILS, dict(settings=len(lengths)), factor)
    for fmt, count in coarse(lengths).items():
        yield Finding("coarse", Severity.FAILS, dict(fmt=fmt), count, Format.of(fmt).precision - FEWER + 1)


def _sums_seen(found: Measurements) -> tuple[pd.DataFrame, Finding | None]:
    """The rows of a table of `carry` in formats that have no coarser numbers, and the finding of `of_wrong` that hides
    what every sum loses; None where a loss is seen."""
    wrong, sums = [*of_wrong(found.lengths, found.repeats)], found.sums
    coarser = {f.where["fmt"] for f in wrong if f.what == "coarse"}
    sums = sums[~sums.fmt.isin(coarser)] if coarser and len(sums) else sums
    return sums, next((f for f in wrong if f.what != "coarse" or not len(sums)), None)


def of_sums(found: Measurements) -> Iterator[Finding]:
    """What is carried from tile to tile: a finding for each format and sum, of the number of queries where most is
    lost; or one that says why there is none."""
    sums, hides = _sums_seen(found)
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


def row_sum(found: Measurements) -> Iterator[Finding]:
    """An error of a sum that is no carry."""
    sums, hides = _sums_seen(found)
    if hides or not len(sums):
        return
    off = [one for one in carried(sums) if one["low"] is False and one["lost"] > LOST]
    for fmt, what in dict.fromkeys((one["fmt"], one["sum"]) for one in off):
        lost = max(one["lost"] for one in off if (one["fmt"], one["sum"]) == (fmt, what))
        yield Finding("sum_error", Severity.REPORTED, dict(sum=what, fmt=fmt), lost)


def rounded_splits(splits: pd.DataFrame) -> Iterator[Finding]:
    """The cause of a large error without a carry: an emulation with rounded splits makes the same one."""
    if len(splits) and splits.explained.notna().any():
        best = splits.loc[splits.explained.astype(float).idxmax()]
        if best.explained >= EXPLAINED:
            where = place(best) | dict(splits=int(best.splits), low_merge=bool(best.low_merge))
            yield Finding("rounded_splits", Severity.REPORTED, where, best.explained, EXPLAINED)


def repeats(table: pd.DataFrame) -> Iterator[Finding]:
    """Different outputs and gradients of one call."""
    row = table.iloc[0]
    for what in ("outputs", "gradients"):
        if pd.notna(row[what]):
            yield Finding("repeats", Severity.REPORTED, dict(of=what, runs=int(row.runs)), row[what])


def of_casts(found: Measurements) -> Iterator[Finding]:
    """How casts round, a finding for each cast and mode: truncation of P or of the output fails. A sum carried in low
    precision rounds as the output does, and says nothing of it."""
    rounding, (sums, _) = found.rounding, _sums_seen(found)
    if not len(rounding):
        return
    low = len(sums) and any(one["low"] for one in carried(sums))
    seen = rounding[(rounding["mode"] != "not_seen") & ((rounding.what != "output") | (not low))]
    for (what, mode), rows in seen.groupby(["what", "mode"], sort=False):
        fails = mode == "truncates" and what != "inputs"
        where = dict(what=what, mode=mode, into=[*dict.fromkeys(rows.into)])
        yield Finding("rounding_mode", Severity.FAILS if fails else Severity.REPORTED, where)


ROUGH = 20  # times the error of plain sums in FP32 or FP64: another order of additions makes a few, TF32 hundreds


def not_attention(asked: pd.DataFrame) -> Iterator[Finding]:
    """Say why a kernel that has no format is not judged."""
    if formats(asked):
        return
    bad = asked[asked.outcome.isin((Outcome.WRONG, Outcome.MALFORMED))]
    ended = asked[asked.outcome == Outcome.ENDED]
    worst = next(rows for rows in (bad, ended, asked) if len(rows)).iloc[0]
    right = [int(length.removeprefix("length_")) for length in asked.asked[asked.outcome == Outcome.ANSWERED]]
    where = _asked_of(worst) | (dict(right_at=right) if right else {})
    yield Finding("not_attention" if len(bad) else "not_run", Severity.FAILS, where)


EVEN = [each.key for each in CAPABILITIES if each.call.n_q == each.call.n_kv]  # as many queries as keys
KEYS_OF_Q = keys_of(dict(keys=(0, next(each.call.n_q for each in CAPABILITIES if each.key == FEWER_QUERIES))))


def answers(asked: pd.DataFrame) -> Iterator[Finding]:
    """Calls that are answered, and not with attention; with the head_dim where it is not that which is judged. Before
    them: that the kernel takes the number of keys from q."""
    faults = asked[asked.outcome.isin(FAULTS)]
    if not faults.asked.isin(EVEN).any() and (asked.note[asked.asked == FEWER_QUERIES] == KEYS_OF_Q).any():
        yield Finding("keys_of_q", Severity.FAILS)
    for _, row in faults.iterrows():
        other = None if row.head_dim == asked.head_dim.iloc[0] else int(row.head_dim)
        yield Finding("answer", Severity.FAILS, _asked_of(row) | dict(head_dim=other))


def _asked_of(row: pd.Series) -> dict:
    """Of a row of `contract`."""
    return {name: row[name] for name in ("asked", "outcome", "note", "problem")} | dict(dim=int(row.dim))


NOT_JUDGED = {"raises": NAMED, "outside": OUTSIDE, "unsupported": ""}  # findings of what is refused -> its note


def unsupported(asked: pd.DataFrame) -> Iterator[Finding]:
    """Calls that the kernel refuses, those that it raises at though its parameters are for them, and those for which it
    reads outside of its tensors: not judged."""
    for what, note in NOT_JUDGED.items():
        if len(rows := asked[(asked.outcome == Outcome.REFUSED) & (asked.note == note)]):
            where = dict(asked=[*rows.asked], dims=[*map(int, rows.dim)])
            where |= dict(problem=rows.problem.iloc[0]) if what != "unsupported" else {}
            yield Finding(what, Severity.REPORTED, where)


def less_than_format(found: Measurements) -> Iterator[Finding]:
    """Formats in which an answer is further off than plain sums, of those in which errors are not judged; or the
    shorter one in which the kernel is known to compute."""
    if found.arithmetic:
        yield Finding("arithmetic", Severity.REPORTED, dict(arithmetic=found.arithmetic))
        return
    judged = {*found.lengths.fmt}
    for row in found.asked[found.asked.times > ROUGH].itertuples():
        if row.asked not in judged:
            yield Finding("less_than_format", Severity.REPORTED, dict(fmt=row.asked), row.times, ROUGH)


def top_left(found: Measurements) -> bool:
    """Whether a causal mask is aligned top-left in some call."""
    return "note" in found.asked and bool((found.asked.note == "top_left").any())


def causal(found: Measurements) -> Iterator[Finding]:
    """How it masks, where that decides what is judged."""
    asked = found.asked
    if (asked.note == "causal_only").any():
        yield Finding("causal_only", Severity.REPORTED)
    if (asked.note == BY_DEFAULT).any():
        yield Finding(BY_DEFAULT, Severity.REPORTED)
    if top_left(found) and len(found.shapes):
        yield Finding("top_left", Severity.REPORTED)


def alignment(asked: pd.DataFrame) -> Iterator[Finding]:
    """A causal mask that is aligned otherwise for one query than for several, where queries are fewer than keys: chunks
    of a prompt and single tokens then see other keys. asked: table of `contract`."""
    right = asked[asked.outcome == Outcome.ANSWERED]
    notes = [*(right.note[right.asked == each] for each in (CAUSAL_FEWER, CAUSAL_ONE))]
    if all(map(len, notes)) and len({each.iloc[0] for each in notes}) > 1:
        yield Finding("alignment", Severity.FAILS, dict(several=notes[0].iloc[0], one=notes[1].iloc[0]))


def counted_shapes(found: Measurements) -> pd.DataFrame:
    """Select the rows of `shapes` that count: where a causal mask is aligned top-left, those that this leaves as they
    are."""
    if not top_left(found) or not len(found.shapes):
        return found.shapes
    calls = found.shapes["shape"].map(CALLS)
    return found.shapes[[not call.options.get("causal") or call.n_q == call.n_kv for call in calls]]


def conventions(found: Measurements) -> Iterator[Finding]:
    """Another convention is another answer, but for a layout of all tensors: a caller has to know that one anyway, and
    which calls it takes."""
    followed = tuple(key for key in found.conventions if key not in TAKES)
    if followed:
        severity = Severity.REPORTED if followed == (OTHER_LAYOUT,) else Severity.FAILS
        yield Finding("convention", severity, dict(keys="+".join(followed)))
    for key in found.conventions:
        if key in TAKES:
            yield Finding("takes", Severity.REPORTED, dict(key=key))


def only_fp64(found: Measurements) -> Iterator[Finding]:
    """Say of a kernel that runs in the golden value's own format alone that no error of it could be measured."""
    if not len(found.lengths):
        yield Finding("only_fp64", Severity.REPORTED)


def on_gpu(found: Measurements) -> Iterator[Finding]:
    """That it ran in the arithmetic of a GPU that is not there."""
    if gpu := KernelRef.of(found.kernel).gpu:
        yield Finding("on_gpu", Severity.REPORTED, dict(gpu=gpu))


def coverage(found: Measurements) -> Iterator[Finding]:
    """How much was judged. settings: of format, inputs, N and queries; shapes: of shape, head_dim and format; each with
    how many were asked for."""
    where = {}
    for name, table, by in (("settings", found.lengths, ["fmt", "distribution", "n", "queries"]),
                            ("shapes", counted_shapes(found), ["shape", "head_dim", "fmt"])):  # fmt: skip
        ran = table[table.outcome == Outcome.ANSWERED] if len(table) else table
        where |= {name: ran.groupby(by).ngroups if len(ran) else 0}
        where |= {f"{name}_of": table.groupby(by).ngroups if len(table) else 0}
    yield Finding("coverage", Severity.REPORTED, where)


def of_relations(related: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each relation that does not hold, of its gravest case, and how many cases do. A difference within
    rounding is reported where the mathematics says the same bits, and so is what many kernels give by convention, and a
    break of a relation that does not count. related: table of `relations.relate`, with columns key and fmt."""
    if not len(related):
        return
    answered = related[related.outcome != NOT_ASKED]
    answered = answered.assign(uncounted=uncounted_breaks(answered))
    kept_cases = 0
    for key, rows in answered.groupby("key", sort=False):
        relation = RELATIONS[key]
        reported = rows.outcome.eq(ROUNDING) & relation.bits
        reported |= rows.uncounted | rows.outcome.eq(CONVENTION)
        failed = rows.outcome.isin((BREAKS, BROKEN)) & ~reported
        kept_cases += int((~rows.outcome.isin((BREAKS, BROKEN)) | (reported & relation.counts)).sum())
        if not (failed | reported).any():
            continue
        bad = rows[failed] if failed.any() else rows[reported]
        over = bad.number / bad.limit.where(bad.limit > 0, 1)  # the worst in its own limits
        worst = bad.loc[over.idxmax()] if over.notna().any() else bad.iloc[0]
        where = dict(relation=key, cases=[*dict.fromkeys(bad.case)], case=worst.case, fmt=worst.fmt)
        where |= dict(outcome=worst.outcome, problem=worst.problem)
        severity = Severity.FAILS if failed.any() else Severity.REPORTED
        yield Finding("relation", severity, where, worst.number, worst.limit)
    if len(answered):
        counts = dict(held=kept_cases, of=len(answered), not_asked=len(related) - len(answered))
        yield Finding("relations", Severity.PASSES if kept_cases == len(answered) else Severity.REPORTED, counts)


def uncounted_breaks(related: pd.DataFrame) -> pd.Series:
    """Which rows of a table of `relations.relate`, with a column key, break their relation and do not count: NaN where
    the relation says so, and all breaks of a relation that does not count."""
    relations = related.key.map(RELATIONS)
    nan = related.number.isna() & relations.map(lambda relation: relation.nan_is_told).astype(bool)
    return related.outcome.eq(BREAKS) & (nan | ~relations.map(lambda relation: relation.counts).astype(bool))


TOLD = ("prints", "unasked")  # of acts: they are not counted


def of_conduct(conduct: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each kind of act, rows as of `IsolatedKernel.told`: what ends the process, leaks, or changes what
    other code computes by fails; what calls print and draw from random numbers is told."""
    if not len(conduct):
        return
    state = conduct.what == "state"
    settings = conduct[~state | ~conduct.detail.isin(DRAWS)]
    for what, rows in settings.groupby("what", sort=False):
        where = dict(details=[*dict.fromkeys(rows.detail)], times=int(rows.times.sum()), at=rows["at"].iloc[0])
        where |= dict(on_import=bool(rows.on_import.any()))
        yield Finding(what, Severity.REPORTED if what in TOLD else Severity.FAILS, where, rows.number.max())
    draws = conduct[state & conduct.detail.isin(DRAWS) & ~conduct.on_import.astype(bool)]  # imports draw for libraries
    if len(draws):
        yield Finding("draws", Severity.REPORTED, dict(details=[*dict.fromkeys(draws.detail)]))


class Check(NamedTuple):
    """A question that is asked of a kernel. judge: what was measured -> findings; tables: of Measurements, which it
    reads."""

    judge: Callable[[Measurements], Iterable[Finding]]
    tables: tuple[str, ...]


CHECKS = {  # in the order of their findings
    "conventions": Check(conventions, ("asked",)),
    "conduct": Check(lambda found: of_conduct(found.conduct), ("conduct",)),
    "gross_errors": Check(lambda found: of_wrong(found.lengths, found.repeats), ("lengths", "repeats")),
    "carry": Check(of_sums, ("sums", "lengths", "repeats")),
    "growth": Check(lambda found: growth(found.lengths), ("lengths",)),
    "answer": Check(lambda found: answers(found.asked), ("asked",)),
    "error": Check(lambda found: largest(found.lengths), ("lengths",)),
    "splits": Check(lambda found: rounded_splits(found.splits), ("splits",)),
    "sum_error": Check(row_sum, ("sums", "lengths", "repeats")),
    "problem": Check(lambda found: problems(found.lengths), ("lengths",)),
    "trouble": Check(lambda found: problems(found.inputs), ("inputs",)),
    "causal": Check(causal, ("asked",)),
    "alignment": Check(lambda found: alignment(found.asked), ("asked",)),
    "precision": Check(less_than_format, ("asked", "lengths")),
    "bound": Check(lambda found: of_bound(found.bounds, found.kernel), ("bounds",)),
    "rule": Check(lambda found: over_shapes(counted_shapes(found)), ("shapes", "asked")),
    "relations": Check(lambda found: of_relations(found.relations), ("relations",)),
    "bias": Check(lambda found: on_trouble(found.inputs), ("inputs",)),
    "repeats": Check(lambda found: repeats(found.repeats), ("repeats",)),
    "rounding": Check(of_casts, ("rounding", "sums", "lengths", "repeats")),
    "on_gpu": Check(on_gpu, ()),
    "only_fp64": Check(only_fp64, ("lengths",)),
    "coverage": Check(coverage, ("lengths", "shapes", "asked")),
    "unsupported": Check(lambda found: unsupported(found.asked), ("asked",)),
    "not_attention": Check(lambda found: not_attention(found.asked), ("asked",)),
}
NO_ATTENTION = ("conventions", "conduct", "not_attention")  # what is judged of a kernel that has no format
NO_ERRORS = ("conventions", "conduct", "answer", "only_fp64", "unsupported")  # and of one that has FP64 alone
