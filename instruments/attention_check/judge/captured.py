"""From the tables of captured tensors, and of a model's calls, to findings."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from attention_check.checks import bounds, conduct
from attention_check.explain.verdict import Explanation
from attention_check.explain.verdict import Verdict as Explained
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Judgement, Severity, within
from attention_check.measure.captured import OVERFLOWS
from attention_check.measure.measurements import ROUNDED, TensorMeasurements
from attention_check.measure.wrong_answers import FAR
from attention_check.probe.probe import summary
from attention_check.probe.replays import TIMES
from fa_lib.kernels.kernel_ref import label_of
from fa_lib.kernels.rule import ALLOWED

UNDERFLOW = 1e-3  # of a row's probability
FEW = 64  # rows: of fewer in FP32, which Baseline is in too, its largest error may be small by luck
LITTLE = 0.5  # of rows that see their own key: fewer do not by padding alone


def judge_tensors(
    names: Sequence[str], found: TensorMeasurements, about: Mapping[str, str] | None = None,
    explained: Explanation | None = None, unexplained: str = "",
) -> Judgement:  # fmt: skip
    """Captured tensors: they pass where the first of the named kernels is within the rule on every head that has one,
    and its error is not that of another attention. With fewer than FEW rows in FP32, being within its own bound is
    enough. Where Baseline itself overflows there is no rule: on such heads an output is held to its own bound, and
    where it has none on any head, they are not judged.

    Args:
        names: kernels; the first is judged. about: of the Capture.
        explained: what the output that was captured is, and what came with it. A BUG fails, and o under another
            convention; coarser arithmetic is reported, and the rule decides. unexplained: why it was not explained.
    """
    about, far = about or {}, found.deviations
    findings = [*conduct.judged(found.conduct), *_of_explanation(explained, unexplained)]
    for name in names:
        rows, judged = far[far.kernel == name], name == names[0]
        bad = rows[rows.outcome != Outcome.ANSWERED]
        if len(bad):
            where = dict(kernel=name, outcome=bad.outcome.iloc[0], problem=bad.problem.iloc[0])
            findings.append(Finding("refused", Severity.FAILS if judged else Severity.REPORTED, where))
            continue
        rows = rows[rows.times_max.notna()]
        if not len(rows):
            continue
        worst = rows.loc[rows.times_max.idxmax()]
        where = dict(kernel=name, head=int(worst["head"]), heads=len(rows))
        few_rows = _few(worst.get("fmt"), worst.get("rows"), found.bound)
        severity = _ruled(worst.times_max, few_rows) if judged else Severity.REPORTED
        findings.append(Finding("head_error", severity, where, worst.times_max, ALLOWED["o"] if judged else None))
    findings += [*bounds.judged(found.bound, names[0]), *_no_yardstick(names[0], far)]
    if "blind" in far and (blind := int(far[far.kernel == ROUNDED].blind.sum())):
        findings.append(Finding("blind_rows", Severity.REPORTED, dict(rows=blind)))
    if "beside" in about:
        findings.append(Finding("beside", Severity.REPORTED, dict(tensors=about["beside"])))
    if "layer" in about:
        findings.append(Finding("captured", Severity.REPORTED, dict(about)))
    flagged = {what: heads for what, heads in flags(found.risks).items() if heads}
    findings += [Finding(what, Severity.REPORTED, dict(heads=heads)) for what, heads in flagged.items()]
    return Judgement("tensors", names[0], tuple(findings), label_of(names[0]))


def _of_explanation(explained, why):
    if why:
        yield Finding("not_explained", Severity.REPORTED, dict(why=why))
    if explained is None:
        return
    for tensor, verdict, times in explained.verdicts:
        counts = verdict == Explained.BUG or verdict == Explained.CONVENTION and tensor == "o"
        other = Severity.FAILS if counts else Severity.REPORTED
        severity = Severity.PASSES if verdict == Explained.ROUNDING else other
        yield Finding("explained", severity, dict(tensor=tensor, verdict=verdict.name), times, limit=1.0)
    if explained.not_judged:
        yield Finding("not_explained", Severity.REPORTED, dict(why=explained.not_judged))


def _few(fmt, rows, close):
    """Whether there are too few rows for the rule, and outputs are within their own bounds: `closeness.closeness`."""
    return fmt == "FP32" and rows < FEW and len(close) > 0 and bool((close.times <= 1).all())


def _ruled(times, few):
    """What a largest error over Baseline's means for the verdict."""
    return Severity.REPORTED if few and times > ALLOWED["o"] else within(times, ALLOWED["o"])


def _no_yardstick(judged, far):
    """Heads where Baseline's output is not finite, with the error of the judged kernel: it fails where that is another
    answer, and not where the golden value is not finite, either."""
    rows = far[far.yardstick == OVERFLOWS] if "yardstick" in far else far[:0]
    if len(rows):
        own = rows.relative[rows.kernel == judged].max()  # NaN where it has none
        where = dict(heads=[*map(int, dict.fromkeys(rows["head"]))], kernel=judged)
        yield Finding("baseline_overflows", Severity.FAILS if own > FAR else Severity.REPORTED, where, own, FAR)


def judge_model(
    subject: str, table: pd.DataFrame, baseline: str | None = "baseline",
    skipped: Mapping[tuple[str, str], int] | None = None, nonfinite: Mapping | None = None, causal: bool = False,
    close: Sequence[Mapping] = (), ways: Sequence[Mapping] = (),
) -> Judgement:  # fmt: skip
    """A model, by the table of a Probe: it passes where, in every layer, the largest error of the attention that ran is
    within the rule, as times Baseline's largest, no call held a NaN or an infinity, and attention gives a prompt the
    same o in every way. Where no call was compared, it is not judged.

    Args:
        baseline, skipped, nonfinite: of the Probe. causal: no row may see a later key than its own.
        close: rows of `closeness.WorstCall`. ways: rows of `replays.compared`.
    """
    found, findings, close = summary(table, baseline), [], pd.DataFrame([*close])
    if nonfinite:
        where = {name: nonfinite[name] for name in ("model", "step", "layer", "call", "tensor") if name in nonfinite}
        findings.append(Finding("nonfinite", Severity.FAILS, where))
    ran = table[(table.kernel == "ran") & (table.against == "golden")]
    by_layer = ran.assign(fmt=ran.get("fmt", "")).groupby(["model", "layer"])
    calls = by_layer.agg(rows=("rows", "sum"), fmt=("fmt", "first"))
    for (model, layer), row in found.iterrows():
        for kernel, times in row.items():
            where = dict(model=model, layer=layer, kernel=kernel)
            judged = kernel == "ran" and not math.isnan(times)
            at = calls.loc[(model, layer)]
            severity = _ruled(times, _few(at.fmt, at.rows, close)) if judged else Severity.REPORTED
            findings.append(Finding("layer_error", severity, where, times, ALLOWED["o"] if judged else None))
    own = [f for f in findings if f.what == "layer_error" and f.where["kernel"] == "ran"]
    if not any(f.severity != Severity.REPORTED or f.number is not None for f in own):
        findings.insert(0, Finding("nothing_compared", Severity.REPORTED))
    findings += [*bounds.judged(close, "attention"), *_of_masks(table, causal), *_of_ways(ways)]
    for (kernel, why), count in dict(skipped or {}).items():
        findings.append(Finding("skipped", Severity.REPORTED, dict(kernel=kernel, why=why), count))
    return Judgement("model", subject, tuple(findings))


def _of_ways(ways):
    """Where two ways first differ in o, attention got the same q, k and v, and is the cause."""
    alike = [dict(row) for row in ways if not row["why"] and not row["differs"]]
    if alike:
        yield Finding("way_of_attention", Severity.PASSES, dict(ways=alike), max(row["times"] for row in alike), TIMES)
    for row in ways:
        if row["why"]:
            yield Finding("way_not_run", Severity.REPORTED, dict(row))
        elif row["differs"]:
            fails = row["tensor"] == "o"
            what = "way_of_attention" if fails else "way_differs"
            yield Finding(what, Severity.FAILS if fails else Severity.REPORTED, dict(row), row["times"], TIMES)


def _of_masks(table, causal):
    """What the masks of calls show: that they do nothing. Of calls with as many queries as keys, too: keys behind a
    row's own, which a decoder may not see, and rows that do not see their own key, as under a mask of the other
    polarity. Of others, that they do not."""
    if "later" not in table:
        return
    names = [name for name in ("model", "step", "layer", "call") if name in table]
    calls = table.drop_duplicates(names)
    idle = calls[calls.masked == 0] if "masked" in calls else calls[:0]
    if len(idle):
        where = {name: f"{idle.iloc[0][name]}" for name in names}
        yield Finding("idle_mask", Severity.REPORTED, dict(calls=len(idle), of=len(calls)) | where)
    uneven = calls[calls.later.isna() & (calls.get("n_q", 2) != 1)]  # a single query is the last, and sees none behind
    if causal and len(uneven):
        yield Finding("later_unknown", Severity.REPORTED, dict(calls=len(uneven), of=len(calls)))
    calls = calls[calls.later.notna()]
    for what, rows in (("sees_later", calls[calls.later > 0]), ("own_hidden", calls[calls.own < LITTLE])):
        if len(rows):
            first = rows.iloc[0]
            where = dict(calls=len(rows), of=len(calls)) | {name: f"{first[name]}" for name in names}
            share = rows.later.max() if what == "sees_later" else 1 - rows.own.min()
            fails = what == "sees_later" and causal
            yield Finding(what, Severity.FAILS if fails else Severity.REPORTED, where, share)


def flags(risky: pd.DataFrame) -> dict[str, list[int]]:
    """Findings of a table of `captured.risks` -> the heads they hold for: "biased_output" (several keys attain the
    maximum, and V has mostly one sign), "one_signed" (V alone), "underflow" (of P, above UNDERFLOW)."""
    one_signed = risky.one_sided > 0.5
    bias = (risky.repeated > 0.01) & one_signed
    found = dict(biased_output=bias, one_signed=one_signed & ~bias, underflow=risky.mass > UNDERFLOW)
    return {what: risky["head"][heads].tolist() for what, heads in found.items()}
