"""The tables of a check as a reader wants them: means over seeds, few digits, a line for each setting, all text."""

from collections.abc import Mapping

import pandas as pd

from fa_lib.check.judge import interval
from fa_lib.check.kernel_words import noted
from fa_lib.check.model import summary
from fa_lib.check.relations import RELATIONS
from fa_lib.check.subject import BITWISE, BREAKS, BROKEN, NOT_ASKED, ROUNDING
from fa_lib.check.tensors import CHANGES

RELATED = {BITWISE: "same bits", ROUNDING: "within rounding", BREAKS: "breaks", BROKEN: "no answer"}
COLUMNS = dict(fmt="format", distribution="inputs", n="N", times_max="max / Baseline's")


def by_call(asked: pd.DataFrame) -> pd.DataFrame:
    """A table of `contract`: what was asked, the outcome, and a note in words."""
    told = [noted(row.outcome, row.note, row.problem) for row in asked.itertuples()]
    dims = asked[["head_dim"]] if asked.head_dim.nunique() > 1 else asked[[]]
    return asked[["asked"]].join(dims).assign(outcome=asked.outcome, note=told)


def by_length(lengths: pd.DataFrame, kernel: str) -> pd.DataFrame:
    """A table of `measure` over N: a line for each format, inputs, N and number of queries."""
    if not len(lengths):
        return lengths
    of = lengths[lengths.kernel == kernel].groupby(["fmt", "distribution", "n", "queries"], sort=False)
    shown = of[["rmse", "max", "times_max"]].mean()
    return shown.map("{:.2g}".format).reset_index().rename(columns=COLUMNS)


def by_input(inputs: pd.DataFrame) -> pd.DataFrame:
    """A table of `measure` on inputs that make trouble: a line for each format and inputs."""
    if not len(inputs):
        return inputs
    lines = []
    for (fmt, distribution), rows in inputs.groupby(["fmt", "distribution"], sort=False):
        mean, low, high = interval(rows.outwards)
        error = dict(fmt=fmt, distribution=distribution, times_max=f"{rows.times_max.mean():.2f}")
        sided = {"away from zero (ulp)": _signed(mean), "95 % interval": f"{_signed(low)} to {_signed(high)}"}
        sided |= {"Baseline's": _signed(rows.baseline_outwards.mean())}
        lines.append(error | sided | dict(problem=rows.problem.iloc[0]))
    return pd.DataFrame(lines).rename(columns=COLUMNS)


def _signed(number):
    """Three digits, and no "-0.000"."""
    return f"{round(number, 3) + 0.0:+.3f}"


def by_shape(shapes: pd.DataFrame) -> pd.DataFrame:
    """A table of `ruled`: error over Baseline's, "!" where it breaks the rule; a line for each shape and format, a
    column for each tensor."""
    if not len(shapes):
        return shapes
    rows = shapes.assign(ratio=shapes.ratio.map("{:.2f}".format) + shapes.passed.map({False: " !"}).fillna(""))
    wide = rows.pivot(index=["shape", "head_dim", "fmt"], columns="tensor", values="ratio").fillna("")
    return wide.rename_axis(columns=None).reset_index().rename(columns=COLUMNS)


def by_relation(related: pd.DataFrame) -> pd.DataFrame:
    """A table of `relate`: a line for each case that was asked, a column for each format."""
    asked = related[related.outcome != NOT_ASKED] if len(related) else related
    if not len(asked):
        return asked
    says = asked.key.map(lambda key: RELATIONS[key].says)
    apart = ": " + asked.number.map("{:.2g}".format) + " of " + asked.limit.map("{:.2g}".format)
    told = asked.outcome.map(RELATED) + apart.where(asked.outcome.isin((ROUNDING, BREAKS)), "")
    rows = asked.assign(told=told, **{"what must hold": says})
    wide = rows.pivot(index=["what must hold", "case"], columns="fmt", values="told").fillna("")
    order = dict.fromkeys(zip(rows["what must hold"], rows.case))
    return wide.loc[[*order]].rename_axis(columns=None).reset_index()


def by_change(better: Mapping[str, list[dict]]) -> pd.DataFrame:
    """base -> rows of `tensors.changes`: a line for each change, the cheapest first."""
    return pd.DataFrame([
        {"kernel": base, "change": CHANGES[row["change"]].label, "cost": CHANGES[row["change"]].cost,
         "error / with the change": f"{row['times_less']:.2f}"}
        for base, rows in better.items() for row in rows[1:]
    ])  # fmt: skip


def by_head(risky: pd.DataFrame) -> pd.DataFrame:
    """A table of `tensors.risks`, four digits."""
    return risky.round(4).astype(str)


def by_layer(table: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """A table of a Probe: for each layer the largest error of every kernel over Baseline's."""
    return summary(table, baseline).map("{:.2f}".format).reset_index()
