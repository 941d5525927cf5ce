"""The tables of a check as a reader wants them: what decides in front, the gravest row first, few digits, all text.

A column `breaks`, of truth values, says of which rows the rule is broken, or an answer is at fault.
"""

from dataclasses import dataclass

import pandas as pd

from attention_check.isolation.calls import FAULTS
from attention_check.isolation.worker import Outcome
from attention_check.measure.draws import OF_LENGTHS, OF_SHAPES, worst_draws
from attention_check.measure.measurements import Measurements
from attention_check.report.labels import label, noted
from fa_lib.kernels.rule import ALLOWED

BROKE = "breaks"  # the column
OUTCOMES = {
    Outcome.ANSWERED: "right", Outcome.REFUSED: "not supported", Outcome.WRONG: "wrong", Outcome.MALFORMED: "broken",
    Outcome.ENDED: "no answer", Outcome.NOT_CALLED: "not called",
}  # fmt: skip
COLUMNS = dict(fmt="format", distribution="inputs", n="N", o="output", dq="dQ", dk="dK", dv="dV")


@dataclass(frozen=True)
class Section:
    """A table under a heading.

    Attributes:
        table: text in every cell, as `tables` makes it; a column `breaks` of truth values becomes a word.
        text: how it is read.
    """

    heading: str
    table: pd.DataFrame
    text: str = ""

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Names, and whether they hold numbers, which are aligned at the right."""
        cells = self.table.drop(columns=BROKE, errors="ignore").astype(str)
        return [(name, bool(cells[name].str.match(r"[\d–]").all())) for name in cells]

    @property
    def broke(self) -> list[bool] | None:
        """Of each row, whether it breaks the rule; None where none does."""
        broke = self.table[BROKE].astype(bool).tolist() if BROKE in self.table else []
        return broke if any(broke) else None

    @property
    def rows(self) -> list[list[str]]:
        cells = self.table.drop(columns=BROKE, errors="ignore")
        return [[f"{cell}" for cell in row] for row in cells.itertuples(index=False, name=None)]


def kernel_sections(found: Measurements) -> list[Section]:
    """The tables of a kernel's page: those that have more than their findings say. All of them are CSV files."""
    return [
        Section("What it can do", by_call(found.asked)),
        Section(
            "How far it is from the golden value", by_length(found.lengths),
            "Errors over Baseline's on the same outputs, the largest of the seeds and their mean; then the mean of "
            "the largest error and of the root mean square. The largest decides: at most 2.",
        ),
        Section(
            "Shapes and masks", by_shape(found.shapes),
            "The largest error over Baseline's; ! is beyond what is allowed, 2 for the output and 3 for gradients, "
            "which are reported, and counted only where they are wrong by more than 20 %.",
        ),
    ]  # fmt: skip


def by_call(asked: pd.DataFrame) -> pd.DataFrame:
    """A table of `contract`: the answer, what was asked, and a note in words. head_dims with one answer are one row."""
    lines: dict = {}
    for i, row in enumerate(asked.itertuples()):
        merged = row.dim and row.outcome not in FAULTS  # faults stay one by one
        lines.setdefault((row.asked, row.outcome) if merged else i, []).append(row)
    order = {Outcome.REFUSED: 1, Outcome.ANSWERED: 2}
    rows = [
        {
            BROKE: row.outcome in FAULTS, "answer": OUTCOMES[row.outcome],
            "asked for": label(row.asked, *(each.dim for each in line)),
            "head_dim": row.head_dim, "note": noted(row.outcome, row.note, row.problem),
        }
        for line in sorted(lines.values(), key=lambda line: order.get(line[0].outcome, 0)) for row in line[:1]
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    return table if asked.head_dim.nunique() > 1 else table.drop(columns="head_dim")


def by_length(lengths: pd.DataFrame) -> pd.DataFrame:
    """A table of `measure` over N: a line for each format, inputs, N and number of queries."""
    if not len(lengths):
        return lengths
    of = lengths.groupby([*OF_LENGTHS.call], sort=False)
    worst = worst_draws(lengths, OF_LENGTHS, ALLOWED["o"]).set_index([*OF_LENGTHS.call]).times_max
    errors = pd.DataFrame({
        "worst / Baseline's": worst, "mean / Baseline's": of.times_max.mean(), "largest error": of["max"].mean(),
        "root mean square": of.rmse.mean(),
    })  # fmt: skip
    fault = of.outcome.agg(lambda outcomes: outcomes.isin(FAULTS).any())
    rows = numbers_text(errors).assign(**{BROKE: fault | (worst > ALLOWED["o"])}).reset_index().rename(columns=COLUMNS)
    front = [BROKE, "worst / Baseline's", "mean / Baseline's", "format", "inputs", "N", "queries"]
    return gravest_first(rows[[*front, "largest error", "root mean square"]], worst.to_numpy())


def by_shape(shapes: pd.DataFrame) -> pd.DataFrame:
    """A table of `measure_shapes`: error over Baseline's, "!" where it is beyond what is allowed; a line for each
    shape and format, a column for each tensor."""
    if not len(shapes):
        return shapes
    index = ["shape", "head_dim", "fmt"]
    each = [worst_draws(rows, OF_SHAPES, ALLOWED[tensor]) for tensor, rows in shapes.groupby("tensor", sort=False)]
    calls = pd.concat(each, ignore_index=True)
    beyond = (calls.outcome == Outcome.ANSWERED) & ~(calls.ratio <= calls.tensor.map(ALLOWED))
    wide = calls.assign(ratio=calls.ratio.map(number_text) + beyond.map({True: " !", False: ""}))
    wide = wide.pivot(index=index, columns="tensor", values="ratio").fillna("–")
    wide = wide[[tensor for tensor in ALLOWED if tensor in wide]]
    outputs = calls.assign(beyond=beyond)[calls.tensor == "o"].set_index(index)
    broke = (outputs.beyond | outputs.outcome.isin(FAULTS)).reindex(wide.index)
    rows = wide.assign(**{BROKE: broke}).rename_axis(columns=None).reset_index()[[BROKE, *wide.columns, *index]]
    return gravest_first(rows.rename(columns=COLUMNS), outputs.ratio.reindex(wide.index).to_numpy())


def number_text(value):
    """Two digits after the point, fewer of what is large; a dash where there is none."""
    return "–" if pd.isna(value) else f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def numbers_text(table):
    """Errors, which may be small, in three digits; their quotients as `number_text` has them."""
    return table.apply(lambda column: column.map(number_text if column.abs().max() >= 0.1 else "{:.1e}".format))


def gravest_first(table, gravity):
    """The gravest rows first: those that break the rule, then by a number, the largest first."""
    broke = table[BROKE].astype(bool) if BROKE in table else pd.Series(False, table.index)
    keys = pd.DataFrame({"broke": broke.to_numpy(), "gravity": pd.Series(gravity).to_numpy(dtype=float)})
    order = keys.sort_values(["broke", "gravity"], ascending=False, kind="stable", na_position="last").index
    return table.iloc[order].reset_index(drop=True)
