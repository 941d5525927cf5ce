"""The gallery's pages: a table of every kernel, a page for each, and the numbers of the three finds."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fa_lib.check.findings import Judgement
from fa_lib.check.words import sentences
from fa_lib.execution.files import replacing

SUMS = {"accumulator": "O", "row_sum": "l"}
VERDICTS = {"passes": "passes", "fails": "**fails**", "not_judged": "not judged", "cannot_run": "cannot run here"}
CAUSES = {  # of survey.row's cause, the gravest first -> a few words
    "rounded_splits": "rounds partial results",
    "answer": "answers some calls wrongly",
    "problem": "breaks on some inputs",
    "error": "error beyond the rule",
    "outputs": "error beyond the rule at some shapes",
}
BEGIN, END = "<!-- numbers: made by `make gallery` -->", "<!-- end of numbers -->"
WHO = {"kernel": "kernel", "emulated": "emulated", "changed": "one type changed"}
PAGE = """# The gallery: shipped attention kernels, judged

<!-- made by `make gallery`, not by hand -->

Each kernel is called as a black box on a CPU, with the library's own code at the version named. Numbers are the
largest error over Baseline's (attention whose matrices S, P and O are stored in the format), at one query, at 16, and
at as many queries as keys; the worst of the formats, of lengths up to 16,384 (4,096 for kernels that an interpreter
runs), and of uniform and normal inputs. The rule of the field allows 2.

![Largest errors of shipped kernels over Baseline's, at 1, 16 and many queries](../../figures/gallery.png)

Three finds have a page of their own, with two proofs and a reproduction: [ggml](find_ggml.md),
[ringattention](find_ringattention.md), [Pallas's decoding](find_pallas_decode.md).

"""


def found(row: Mapping) -> str:
    """What was found in a kernel, in a few words; "" where it passes. row: of `survey.row`."""
    if _given(row.get("carries")):
        sums = " and ".join(SUMS[each] for each in row["carries"].split())
        tile = row.get("tile")
        where = "" if not _given(tile) else ", key by key" if tile == 1 else f", in tiles of {int(tile)}"
        return f"carries {sums} in {' and '.join(row['carried_in'].split())}{where}"
    if _given(row.get("problem")):
        return row["problem"]
    causes = str(row.get("cause") or "").split()
    return next((words for cause, words in CAUSES.items() if cause in causes), "")


def _given(value):
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def times(value: float | None) -> str:
    """A number of times, for a table: two digits, ∞, or a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def index(table: pd.DataFrame) -> str:
    """docs/gallery/index.md."""
    lines = ["| kernel | version | 1 query | 16 | many | gradients | verdict | found |", "|" + "---|" * 8]
    for row in table.to_dict("records"):
        numbers = [times(row.get(name)) for name in ("times_1", "times_16", "times_many", "gradients")]
        name = row["key"] if row["verdict"] == "cannot_run" else f"[{row['key']}]({row['key']}.md)"
        cells = (f"{row['project']}: {name}", row["version"], *numbers, VERDICTS[row["verdict"]], found(row))
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    toc = ["```{toctree}", ":hidden:", "", "find_ggml", "find_ringattention", "find_pallas_decode"]
    toc += [key for key, verdict in zip(table.key, table.verdict) if verdict != "cannot_run"] + ["```"]
    return PAGE + "\n".join(lines) + "\n\n" + "\n".join(toc) + "\n"


def page(row: Mapping, judgement: Judgement | None) -> str:
    """docs/gallery/<key>.md: how a kernel is called in real use, its verdict, and each finding in a sentence."""
    said = [f"- {text}" for _, text in sentences(judgement)] if judgement else [f"- It {row['problem']}."]
    bias = ""
    if _given(row.get("outwards")):
        own = f" (Baseline's own: {row['baseline_outwards']:+.2f})" if _given(row.get("baseline_outwards")) else ""
        bias = f"\nMean signed error away from zero, the largest that is no chance: {row['outwards']:+.2f} ulp{own}.\n"
    errors = [
        f"| {words} | {times(row.get(f'times_{key}'))} | {_power(row.get(f'relative_{key}'))} |"
        for key, words in (("1", "1"), ("16", "16"), ("many", "as many as keys"))
    ]
    return "\n".join([
        f"# {row['project']}: {row['key']}", "", "<!-- made by `make gallery`, not by hand -->", "",
        f"Version {row['version']}. In real use: {row['use']}.", "",
        f"Verdict: {VERDICTS[row['verdict']]}. `fa-lib check kernel gallery:{row['key']}` makes a page with a figure.",
        "", "| queries | largest error over Baseline's | largest relative error |", "|---|---|---|", *errors, bias,
        *said, "",
    ])  # fmt: skip


def _power(value):
    return "–" if not _given(value) else "∞" if math.isinf(value) else f"{value:.1e}"


def with_numbers(text: str, rows: pd.DataFrame, by: list[str]) -> str:
    """The text of a find's page, with a table of `experiments.finds` between its two marks.

    Args:
        by: the columns that say of what: n, queries, threads, splits.

    Raises:
        ValueError: the marks are missing.
    """
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    if not re.search(pattern, text, flags=re.S):
        raise ValueError(f"text: the marks {BEGIN!r} and {END!r} are missing")
    head = [
        *by,
        *(f"{WHO[who]}: × Baseline" for who in WHO),
        "kernel: relative error",
        "emulated: correlation of errors",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, group in rows.groupby(by, sort=False):
        mean = group.groupby("who")[["times_max", "relative", "alike"]].mean().reindex(list(WHO))
        cells = [*map(str, key), *map(times, mean.times_max), _power(mean.relative["kernel"])]
        alike = mean.alike["emulated"]
        lines.append("| " + " | ".join([*cells, "–" if math.isnan(alike) else f"{alike:.4f}"]) + " |")
    return re.sub(pattern, lambda _: "\n".join([BEGIN, *lines, END]), text, flags=re.S)


def write(table: pd.DataFrame, judgements: Mapping[str, Judgement | None], folder: Path) -> None:
    """index.md and a page for each kernel that could run, into a folder; pages of kernels that are gone are removed."""
    pages = {
        row["key"]: page(row, judgements[row["key"]]) for row in table.to_dict("records") if row["key"] in judgements
    }
    for name, text in (pages | dict(index=index(table))).items():
        with replacing(folder / f"{name}.md") as path:
            path.write_text(text)
    for old in folder.glob("*.md"):
        if old.stem not in pages and old.stem != "index" and not old.stem.startswith("find_"):
            old.unlink()
