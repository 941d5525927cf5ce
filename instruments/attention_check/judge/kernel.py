"""From the tables of a kernel's check to findings: what holds, where, by what number and limit, and no sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from attention_check.isolation.calls import FAULTS
from attention_check.isolation.worker import Outcome
from attention_check.judge import errors
from attention_check.judge.bound import of_bound
from attention_check.judge.conduct import of_conduct
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.judge.gross_errors import of_wrong
from attention_check.judge.relations import of_relations
from attention_check.measure.capability import CAUSAL_FEWER, CAUSAL_ONE
from attention_check.measure.carry import LOST, carried
from attention_check.measure.contract import BY_DEFAULT, NAMED, OTHER_LAYOUT, adapted, formats
from attention_check.measure.measurements import Measurements
from attention_check.measure.mistakes import EXPLAINED
from attention_check.measure.way import TAKES
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import CALLS

ROUGH = 20  # times the error of plain sums in FP32 or FP64: another order of additions makes a few, TF32 hundreds


def judge_kernel(kernel: KernelRef | str, found: Measurements) -> Judgement:
    """A kernel, by what was measured of it: it passes where its outputs are attention's and within the rule,
    and it carries no low precision from tile to tile. Where no error could be measured, it is not judged. A kernel
    that follows another convention is judged under it."""
    kernel, conduct = KernelRef.of(kernel), tuple(of_conduct(found.conduct))
    kernel = adapted(kernel, found.conventions)
    judgement = partial(Judgement, "kernel", kernel.key, label=kernel.label)
    conventions = tuple(_conventions(found.conventions))
    asked, lengths, shapes = found.asked, found.lengths, found.shapes
    lengths = lengths[lengths.kernel == kernel.key] if len(lengths) else lengths
    if not formats(asked):
        bad, ended = (
            asked[asked.outcome.isin((Outcome.WRONG, Outcome.MALFORMED))],
            asked[asked.outcome == Outcome.ENDED],
        )
        worst = next(rows for rows in (bad, ended, asked) if len(rows)).iloc[0]
        where = {name: worst[name] for name in ("asked", "outcome", "note", "problem")} | dict(dim=int(worst.dim))
        what = "not_attention" if len(bad) else "not_run"
        right = [int(length.removeprefix("length_")) for length in asked.asked[asked.outcome == Outcome.ANSWERED]]
        where |= dict(right_at=right) if right else {}
        return judgement(findings=(*conventions, *conduct, Finding(what, Severity.FAILS, where)))
    unsupported = [*_unsupported(asked)]
    if not len(lengths):
        only = Finding("only_fp64", Severity.REPORTED)
        return judgement(findings=(*conventions, *conduct, *answers(asked), only, *unsupported))
    top_left = bool((asked.note == "top_left").any())
    counted = _counted(shapes) if top_left and len(shapes) else shapes
    wrong = [*of_wrong(lengths, found.repeats)]
    sums = _seen(found.sums, wrong)
    findings = [
        *wrong, *of_sums(found.sums, wrong), *errors.growth(lengths), *answers(asked), *errors.largest(lengths),
        *_rounded_splits(found.splits), *(() if _hides(wrong, sums) else _row_sum(sums)),
        *errors.problems(lengths), *errors.problems(found.inputs), *_causal(asked, top_left and len(shapes) > 0),
        *alignment(asked), *_less_than_format(asked, {*lengths.fmt}),
        *of_bound(found.bounds, kernel.key), *errors.over_shapes(counted),
        *of_relations(found.relations), *errors.on_trouble(found.inputs),
        *_repeats(found.repeats), *of_casts(found.rounding, sums),
        *_on_gpu(kernel), coverage(lengths, counted), *unsupported,
    ]  # fmt: skip
    if not any(findings[-1 - len(unsupported)].where[name] for name in ("settings", "shapes")):
        weak = {Severity.PASSES: Severity.REPORTED}  # nothing else that holds makes a kernel pass
        findings = [replace(f, severity=weak.get(f.severity, f.severity)) for f in findings]
    return judgement(findings=(*conventions, *conduct, *findings))


def _conventions(keys):
    """Another convention is another answer, but for a layout of all tensors: a caller has to know that one anyway, and
    which calls it takes."""
    followed = tuple(key for key in keys if key not in TAKES)
    if followed:
        severity = Severity.REPORTED if followed == (OTHER_LAYOUT,) else Severity.FAILS
        yield Finding("convention", severity, dict(keys="+".join(followed)))
    for key in keys:
        if key in TAKES:
            yield Finding("takes", Severity.REPORTED, dict(key=key))


def _seen(sums, wrong):
    """The rows of a table of `carry` in formats that have no coarser numbers."""
    hidden = {f.where["fmt"] for f in wrong if f.what == "coarse"}
    return sums[~sums.fmt.isin(hidden)] if hidden and len(sums) else sums


def _hides(wrong, sums):
    """The finding of an error that hides what every sum loses; None where a loss is seen. sums: those of `_seen`."""
    return next((f for f in wrong if f.what != "coarse" or not len(sums)), None)


def of_sums(sums: pd.DataFrame, wrong: Sequence[Finding]) -> Iterator[Finding]:
    """What is carried from tile to tile: a finding for each format and sum, of the number of queries where most is
    lost; or one that says why there is none.

    Args:
        sums: table of `carry`. wrong: findings of `of_wrong`, which may hide a carry.
    """
    sums = _seen(sums, wrong)
    if hides := _hides(wrong, sums):
        yield Finding("carry", Severity.REPORTED, dict(problem="", because=hides.what))
        return
    if not len(sums):
        yield Finding("carry", Severity.REPORTED, dict(problem=""))
        return
    severities = {True: Severity.FAILS, False: Severity.PASSES, None: Severity.REPORTED}
    problems = sums.problem[sums.outcome != Outcome.ANSWERED]
    groups: dict[tuple, list[dict]] = {}
    for one in carried(sums):
        groups.setdefault((one["fmt"], one["sum"]), []).append(one)
    for group in groups.values():
        low = [one for one in group if one["low"]]
        clean = [one for one in group if one["low"] is False]
        found = max(low or clean or group, key=lambda one: one["lost"])
        where = {name: found[name] for name in ("sum", "fmt", "tile", "terms", "all")}
        where |= dict(queries=[one["queries"] for one in low or clean or group], queries_of=len(low) + len(clean))
        if found["low"] is None:
            where |= dict(blind=any(one["blind"] for one in group), problem=problems.iloc[0] if len(problems) else "")
        yield Finding("carry", severities[found["low"]], where, found["lost"], LOST)


def answers(asked: pd.DataFrame) -> Iterator[Finding]:
    """Calls that are answered, and not with attention; with the head_dim where it is not that which is judged."""
    for row in asked[asked.outcome.isin(FAULTS)].itertuples():
        other = None if row.head_dim == asked.head_dim.iloc[0] else int(row.head_dim)
        where = dict(
            asked=row.asked, dim=int(row.dim), head_dim=other, outcome=row.outcome, note=row.note, problem=row.problem
        )
        yield Finding("answer", Severity.FAILS, where)


def _unsupported(asked):
    """Calls that the kernel refuses, and those that it raises at though its parameters are for them: not judged."""
    refused = asked[asked.outcome == Outcome.REFUSED]
    for what, rows in (("raises", refused[refused.note == NAMED]), ("unsupported", refused[refused.note != NAMED])):
        if len(rows):
            where = dict(asked=[*rows.asked], dims=[*map(int, rows.dim)])
            where |= dict(problem=rows.problem.iloc[0]) if what == "raises" else {}
            yield Finding(what, Severity.REPORTED, where)


def _less_than_format(asked, judged):
    """Formats in which an answer is further off than plain sums, of those in which errors are not judged."""
    for row in asked[asked.times > ROUGH].itertuples():
        if row.asked not in judged:
            yield Finding("less_than_format", Severity.REPORTED, dict(fmt=row.asked), row.times, ROUGH)


def _rounded_splits(splits):
    """The cause of a large error without a carry: an emulation with rounded splits makes the same one."""
    if len(splits) and splits.explained.notna().any():
        best = splits.loc[splits.explained.astype(float).idxmax()]
        if best.explained >= EXPLAINED:
            where = errors.place(best) | dict(
                splits=int(best.splits), low_merge=bool(best.low_merge), emulated=float(best.emulated)
            )  # fmt: skip
            yield Finding("rounded_splits", Severity.REPORTED, where, best.explained, EXPLAINED)


def _row_sum(sums):
    """An error of a sum that is no carry."""
    found = [one for one in carried(sums) if one["low"] is False and one["lost"] > LOST] if len(sums) else []
    for fmt, what in dict.fromkeys((one["fmt"], one["sum"]) for one in found):
        lost = max(one["lost"] for one in found if (one["fmt"], one["sum"]) == (fmt, what))
        yield Finding("sum_error", Severity.REPORTED, dict(sum=what, fmt=fmt), lost)


def _causal(asked, top_left):
    """How it masks, where that decides what is judged."""
    if (asked.note == "causal_only").any():
        yield Finding("causal_only", Severity.REPORTED)
    if (asked.note == BY_DEFAULT).any():
        yield Finding(BY_DEFAULT, Severity.REPORTED)
    if top_left:
        yield Finding("top_left", Severity.REPORTED)


def alignment(asked: pd.DataFrame) -> Iterator[Finding]:
    """A causal mask that is aligned otherwise for one query than for several, where queries are fewer than keys: chunks
    of a prompt and single tokens then see other keys. asked: table of `contract`."""
    right = asked[asked.outcome == Outcome.ANSWERED]
    notes = [*(right.note[right.asked == each] for each in (CAUSAL_FEWER, CAUSAL_ONE))]
    if all(map(len, notes)) and len({each.iloc[0] for each in notes}) > 1:
        yield Finding("alignment", Severity.FAILS, dict(several=notes[0].iloc[0], one=notes[1].iloc[0]))


def _counted(shapes):
    """The rows of a table of `shapes.measure_shapes` that a kernel whose causal mask is aligned top-left is judged
    by."""
    calls = shapes["shape"].map(CALLS)
    return shapes[[not call.options.get("causal") or call.n_q == call.n_kv for call in calls]]


def _on_gpu(kernel):
    """That it ran in the arithmetic of a GPU that is not there."""
    if kernel.gpu:
        yield Finding("on_gpu", Severity.REPORTED, dict(gpu=kernel.gpu))


def coverage(lengths: pd.DataFrame, shapes: pd.DataFrame) -> Finding:
    """How much was judged. settings: of format, inputs, N and queries; shapes: of shape, head_dim and format; each with
    how many were asked for."""
    where = {}
    for name, table, by in (("settings", lengths, ["fmt", "distribution", "n", "queries"]),
                            ("shapes", shapes, ["shape", "head_dim", "fmt"])):  # fmt: skip
        ran = table[table.outcome == Outcome.ANSWERED] if len(table) else table
        where |= {name: ran.groupby(by).ngroups if len(ran) else 0}
        where |= {f"{name}_of": table.groupby(by).ngroups if len(table) else 0}
    return Finding("coverage", Severity.REPORTED, where)


def _repeats(repeats):
    """Different outputs and gradients of one call."""
    row = repeats.iloc[0]
    for what in ("outputs", "gradients"):
        if pd.notna(row[what]):
            yield Finding("repeats", Severity.REPORTED, dict(of=what, runs=int(row.runs)), row[what])


def of_casts(rounding: pd.DataFrame, sums: pd.DataFrame) -> Iterator[Finding]:
    """How casts round, a finding for each cast and mode: truncation of P or of the output fails. A sum carried in low
    precision rounds as the output does, and says nothing of it."""
    low = len(sums) and any(one["low"] for one in carried(sums))
    if not len(rounding):
        return
    seen = rounding[rounding["mode"] != "not_seen"]
    seen = seen[seen.what != "output"] if low else seen
    for (what, mode), rows in seen.groupby(["what", "mode"], sort=False) if len(seen) else ():
        fails = mode == "truncates" and what != "inputs"
        where = dict(what=what, mode=mode, into=[*dict.fromkeys(rows.into)])
        yield Finding("rounding_mode", Severity.FAILS if fails else Severity.REPORTED, where)
