"""From the tables of a check to findings: what holds, where, by what number and limit. No sentence is written here."""

import math
from collections.abc import Mapping

import pandas as pd
from scipy import stats

from fa_lib.check.findings import Finding, Judgement, Severity, within
from fa_lib.check.model import summary
from fa_lib.check.tensors import cheapest
from fa_lib.experiments.rule import ALLOWED, CALLS

LOST = 2  # ulp: output, P and scores are rounded once each, at most half an ulp; sums of FP32 add nothing that shows
ALL = 0.8  # of what is lost when every tile is
UNDERFLOW = 1e-3  # of a row's probability


def judge_kernel(kernel: str, tables: Mapping[str, pd.DataFrame]) -> Judgement:
    """A kernel, by the tables of `kernel.examine`: it passes where its outputs are attention's and within the rule, and
    it carries no low precision from tile to tile."""
    asked, lengths = tables["asked"], tables["lengths"]
    lengths = lengths[lengths.kernel == kernel] if len(lengths) else lengths
    first = asked.iloc[0]
    where = {name: first[name] for name in ("asked", "outcome", "note", "problem")}
    if not (asked.outcome == "yes").any():
        what = "not_run" if (asked.outcome == "no").all() else "not_attention"
        return Judgement("kernel", kernel, (Finding(what, Severity.FAILS, where),))
    if not len(lengths):
        return Judgement("kernel", kernel, (Finding("only_fp64", Severity.FAILS),))
    top_left = bool((asked.note == "top_left").any())
    findings = [
        *_carry(tables["sums"]), *_growth(lengths), *_answers(asked), *_largest(lengths), *_row_sum(tables["sums"]),
        *_problems(lengths), *_problems(tables["inputs"]), *_shapes(tables["shapes"], top_left),
        *_inputs(tables["inputs"]), *_repeats(tables["repeats"]),
    ]  # fmt: skip
    if len(no := asked[asked.outcome == "no"].asked):
        findings.append(Finding("unsupported", Severity.NOTES, dict(asked=list(no))))
    return Judgement("kernel", kernel, tuple(findings))


def judge_tensors(
    names: list[str], risky: pd.DataFrame, far: pd.DataFrame, better: Mapping[str, list[dict]]
) -> Judgement:
    """Captured tensors: they pass where the first of the named kernels is within the rule on every head.

    Args:
        risky: table of `tensors.risks`. far: of `tensors.deviations`. better: base -> rows of `tensors.changes`.
    """
    findings = []
    for name in names:
        rows, judged = far[far.kernel == name], name == names[0]
        bad = rows[rows.outcome != "yes"]
        if len(bad):
            where = dict(kernel=name, outcome=bad.outcome.iloc[0], problem=bad.problem.iloc[0])
            findings.append(Finding("refused", Severity.FAILS if judged else Severity.NOTES, where))
            continue
        worst = rows.loc[rows.times_max.idxmax()]
        where = dict(kernel=name, head=int(worst["head"]), heads=len(risky))
        severity = within(worst.times_max, ALLOWED["o"]) if judged else Severity.NOTES
        findings.append(Finding("head_error", severity, where, worst.times_max, ALLOWED["o"] if judged else None))
    for what, heads in flags(risky).items():
        if heads:
            findings.append(Finding(what, Severity.NOTES, dict(heads=heads)))
    for base, rows in better.items():
        found = cheapest(rows)
        where = dict(base=base, change=found and found["change"])
        findings.append(Finding("change", Severity.NOTES, where, found and found["times_less"]))
    return Judgement("tensors", names[0], tuple(findings))


def judge_model(
    subject: str, table: pd.DataFrame, baseline: str = "baseline", skipped: Mapping[tuple[str, str], int] | None = None
) -> Judgement:
    """A model, by the table of a Probe: it passes where, in every layer, the largest error of the attention that ran is
    within the rule, as times Baseline's largest.

    Args:
        baseline, skipped: of the Probe.
    """
    found, findings = summary(table, baseline), []
    for (model, layer), row in found.iterrows():
        for kernel, times in row.items():
            where = dict(model=model, layer=layer, kernel=kernel)
            judged = kernel == "ran" and not math.isnan(times)
            severity = within(times, ALLOWED["o"]) if judged else Severity.NOTES
            findings.append(Finding("layer_error", severity, where, times, ALLOWED["o"] if judged else None))
    if not any(finding.severity != Severity.NOTES for finding in findings):
        findings.insert(0, Finding("nothing_compared", Severity.FAILS))
    for (kernel, why), count in dict(skipped or {}).items():
        findings.append(Finding("skipped", Severity.NOTES, dict(kernel=kernel, why=why), count))
    return Judgement("model", subject, tuple(findings))


def carried(table: pd.DataFrame) -> list[dict]:
    """What a table of `kernel.carry` says, by format and sum.

    Returns:
        dicts: fmt, sum, lost (the most, ulp), low (True, False, or None where it did not run), tile (the fewest keys
        from which on all is lost: the tile's size; None where nothing is lost).
    """
    found = []
    for (fmt, what), rows in table.sort_values("keys").groupby(["fmt", "what"]):  # the accumulator first
        lost, low, tile = rows.lost.max(), None, None
        if rows.lost.notna().all():
            every = rows[(rows.lost >= ALL * rows["all"]) & (rows["all"] > LOST)]
            tile = int(every["keys"].min()) if len(every) else None
            # In the row sum an error of a score, or of the exponential, shows as well, but loses no whole tile.
            sure = what == "accumulator" or tile is not None or found[-1]["low"]
            low = bool(lost > LOST and sure)
        found.append(dict(fmt=fmt, sum=what, lost=lost, low=low, tile=tile))
    return found


def interval(values: pd.Series, level: float = 0.95) -> tuple[float, float, float]:
    """Mean and confidence interval (Student's t) of one number per seed; NaNs are dropped."""
    values = values.dropna()
    mean, error = values.mean(), values.sem()
    half = error * stats.t.ppf((1 + level) / 2, len(values) - 1) if len(values) > 1 else float("nan")
    return mean, mean - half, mean + half


def flags(risky: pd.DataFrame) -> dict[str, list[int]]:
    """Findings of a table of `tensors.risks` -> the heads they hold for: "biased_output" (several keys attain the
    maximum, and V has mostly one sign), "one_signed" (V alone), "underflow" (of P, above UNDERFLOW)."""
    bias = (risky.repeated > 0.01) & (risky.one_sided > 0.5)
    found = dict(
        biased_output=bias, one_signed=(risky.one_sided > 0.5) & ~bias, underflow=risky.mass > UNDERFLOW
    )  # fmt: skip
    return {what: risky["head"][heads].tolist() for what, heads in found.items()}


def _carry(sums):
    """A finding for each format and sum, or one that says why there is none."""
    if not len(sums):
        yield Finding("carry", Severity.NOTES, dict(problem=""))
        return
    severities = {True: Severity.FAILS, False: Severity.PASSES, None: Severity.NOTES}
    problems, terms = sums.problem[sums.outcome != "yes"], 2 * int(sums["keys"].max())
    for one in carried(sums):
        where = dict(sum=one["sum"], fmt=one["fmt"], tile=one["tile"], terms=terms)
        where |= dict(problem=problems.iloc[0] if len(problems) else "") if one["low"] is None else {}
        yield Finding("carry", severities[one["low"]], where, one["lost"], LOST)


def _growth(lengths):
    """How the error over Baseline's goes with N on uniform inputs, in the first format."""
    fmt = lengths.fmt.iloc[0]
    rows = lengths[(lengths.distribution == "uniform") & (lengths.fmt == fmt)]
    mean = rows.groupby("n").times_max.mean().dropna()
    if len(mean) > 1:
        ends = dict(n=int(mean.index[-1]), from_n=int(mean.index[0]), from_number=float(mean.iloc[0]))
        yield Finding("growth", Severity.NOTES, dict(distribution="uniform", fmt=fmt) | ends, mean.iloc[-1])


def _answers(asked):
    """Calls that are answered, and not with attention."""
    for row in asked[asked.outcome.isin(("wrong", "broken"))].itertuples():
        where = dict(asked=row.asked, outcome=row.outcome, note=row.note, problem=row.problem)
        yield Finding("answer", Severity.FAILS, where)


def _largest(lengths):
    """The largest error over lengths, formats and ordinary inputs."""
    if lengths.times_max.notna().any():
        worst = lengths.loc[lengths.times_max.idxmax()]
        where = dict(distribution=worst.distribution, fmt=worst.fmt, n=int(worst.n))
        yield Finding("error", within(worst.times_max, ALLOWED["o"]), where, worst.times_max, ALLOWED["o"])


def _row_sum(sums):
    """An error of a sum that is no carry."""
    for one in carried(sums) if len(sums) else ():
        if one["low"] is False and one["lost"] > LOST:
            yield Finding("sum_error", Severity.NOTES, dict(sum=one["sum"], fmt=one["fmt"]), one["lost"])


def _problems(table):
    """A kernel that raises on inputs of a table of `kernel.measure` does not support them; anything else fails."""
    for outcome, rows in table[table.outcome != "yes"].groupby("outcome"):
        row, severity = rows.iloc[0], Severity.NOTES if outcome == "no" else Severity.FAILS
        where = dict(distribution=row.distribution, fmt=row.fmt, n=int(row.n), outcome=outcome, problem=row.problem)
        yield Finding("problem", severity, where)


def _shapes(shapes, top_left):
    """The rule over shapes and masks: outputs count, gradients are told."""
    if top_left and len(shapes):
        yield Finding("top_left", Severity.NOTES)
        calls = shapes["shape"].map(CALLS)
        shapes = shapes[[not call.options.get("causal") or call.n_q == call.n_kv for call in calls]]
    ran = shapes[shapes.outcome == "yes"] if len(shapes) else shapes
    for tensors, what in ((("o",), "outputs"), (("dq", "dk", "dv"), "gradients")):
        rows = ran[ran.tensor.isin(tensors)] if len(ran) else ran
        if not len(rows):
            continue
        failed = rows[~rows.passed.astype(bool)]
        counts = dict(failed=len(failed), of=len(rows))
        if not len(failed):
            yield Finding(what, Severity.PASSES, counts, rows.ratio.max())
            continue
        worst = failed.loc[failed.ratio.idxmax()] if failed.ratio.notna().any() else failed.iloc[0]
        where = counts | dict(tensor=worst.tensor, shape=worst["shape"], fmt=worst.fmt)
        severity = Severity.FAILS if what == "outputs" else Severity.NOTES
        yield Finding(what, severity, where, worst.ratio, worst.allowed)


def _inputs(inputs):
    """The worst of the inputs that make trouble, and the largest bias that is no chance."""
    if not inputs.times_max.notna().any():
        return
    worst = inputs.groupby(["fmt", "distribution"]).times_max.mean().dropna().sort_values()
    fmt, distribution = worst.index[-1]
    yield Finding("worst_input", Severity.NOTES, dict(fmt=fmt, distribution=distribution), worst.iloc[-1])
    groups = inputs.groupby(["fmt", "distribution"]).outwards
    level = 1 - 0.05 / len(groups)  # each group is a chance to find one
    biases = {at: interval(group, level) for at, group in groups}
    sure = {at: b for at, b in biases.items() if b[1] > 0 or b[2] < 0}
    if sure:
        (fmt, distribution), (mean, low, high) = max(sure.items(), key=lambda item: abs(item[1][0]))
        where = dict(fmt=fmt, distribution=distribution, low=float(low), high=float(high))
        yield Finding("outwards", Severity.NOTES, where, mean)


def _repeats(repeats):
    """Different outputs and gradients of one call."""
    row = repeats.iloc[0]
    for what in ("outputs", "gradients"):
        if pd.notna(row[what]):
            yield Finding("repeats", Severity.NOTES, dict(of=what, runs=int(row.runs)), row[what])
