"""The ledger: what was published, what we get with its spread over seeds, and the verdict.

`data/published.csv` holds the statements with the interval [low, high] in which a value agrees with the words.
The notebooks write `<notebook>.claims.csv`. `fa-lib dev claims` prints the two together.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.paths import PUBLISHED, RESULTS, ROOT
from fa_lib.numerics.confidence import interval

BEGIN, END = "<!-- ledger: made by `make claims`, not by hand -->", "<!-- end of ledger -->"
LEDGER, PAPER = ROOT / "docs" / "paper" / "ledger.md", ROOT / "docs" / "paper" / "claims.md"
HEADLINES = (  # of docs/paper/claims.md
    "fig4-ten-times", "fig5a-max-grows", "fig6b-square-same", "fig6b-square-rows", "fig9-rescale",
    "fig7-wasserstein-grows", "fig8-low-precision", "fig8-faster-gpu", "fa3-times", "fa4-fp8-offset-8", "law",
)  # fmt: skip
LAST_OF_PAPER = 8  # figure
PAPERS = {  # of data/published.csv: key -> heading
    "2405.02803": "Is Flash Attention Stable? (arXiv 2405.02803)",
    "2407.08608": "FlashAttention-3 (arXiv 2407.08608)",
    "2510.04212": "Why Low-Precision Transformer Training Fails (arXiv 2510.04212)",
    "flash-attention": "Of the flash-attention package's own reports",
    "2603.05451": "FlashAttention-4 (arXiv 2603.05451)",
    "2606.06521": "P-Cast Precision in FP8 Attention (arXiv 2606.06521)",
    "FlyDSL": "Of FlyDSL's own reports",
    "jax": "Of jax's own reports",
    "2503.01873": "Pseudo-average shifting attention (arXiv 2503.01873)",
    "": "Ours: the law and its bounds (docs/law/theory.md)",
}


def published() -> pd.DataFrame:
    """Read the published statements.

    Returns:
        table: indexed by id; figure, paper (a key of PAPERS), source, statement, quantity, published (the value, as a
        text), low and high (the interval in which a value agrees), average ("geometric" for ratios that training
        multiplies, else ""), open (what the paper leaves open and a setting chooses, or ""), untested (why our numbers
        cannot judge it, or "").
    """
    texts = ("paper", "source", "published", "average", "open", "untested")
    return pd.read_csv(PUBLISHED, index_col="id", dtype=dict.fromkeys(texts, str)).fillna(dict.fromkeys(texts, ""))


def verdict(
    values: Sequence[float] | np.ndarray, low: float, high: float, average: str = "", open: str = "", untested: str = ""
) -> str:  # fmt: skip
    """Compare the 95 % confidence interval of a mean over seeds with a statement's interval.

    Args:
        values: ours, one a seed. low, high: the ends of the statement's interval. average: as of `bounds`.
        open, untested: as of `published`.

    Returns:
        "reproduced": the mean's interval lies within [low, high], the ends included; "not reproduced": it lies outside;
        "not at this setting": so, of a statement that leaves it open; "undecided": it lies partly inside; "ours":
        nothing was published (low is NaN); "not tested": of one that is untested.
    """
    if untested:
        return "not tested"
    if np.isnan(low):
        return "ours"
    _, first, last = bounds(values, average)
    if low <= first and last <= high:
        return "reproduced"
    if low <= last and first <= high:
        return "undecided"
    return "not at this setting" if open else "not reproduced"


def accepted(low: float, high: float) -> str:
    """Write the interval in which a value agrees: "5 to 20", ">= 1", or "" where nothing was published."""
    if np.isnan(low):
        return ""
    if np.isinf(low) or np.isinf(high):
        return f"<= {high:g}" if np.isinf(low) else f">= {low:g}"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def bounds(values: Sequence[float] | np.ndarray, average: str = "") -> tuple[float, float, float]:
    """Compute a mean and the ends of its 95 % confidence interval (Student's t).

    Args:
        values: one a seed.
        average: "" is the arithmetic mean; for "geometric" mean and interval are those of the logarithms.

    Returns:
        mean, first, last: three times the value where there is only one.
    """
    each = pd.Series(values, dtype=float)
    found = np.exp(interval(np.log(each))) if average else np.array(interval(each))
    mean, first, last = (float(x) for x in found)
    return (mean, first, last) if len(values) > 1 else (mean, mean, mean)


def claim(id: str, setting: str, values: Sequence[float] | pd.Series) -> dict[str, str]:
    """Make one row of the ledger.

    Args:
        id: a statement's, in data/published.csv.
        setting: the choices that the paper leaves open, in words.
        values: ours, one a seed.

    Returns:
        dict: id, setting, values (numbers in one text, separated by blanks).

    Raises:
        ValueError: unknown id, no values, or values that are not finite.
    """
    table = published()
    if id not in table.index:
        raise ValueError(f"id: got {id!r}; accepted are {', '.join(table.index)}")
    values = np.asarray(values, dtype=float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"values: got {values}; accepted are finite numbers, one a seed")
    return {"id": id, "setting": setting, "values": " ".join(f"{value:.6g}" for value in values)}


def by_distribution(id: str, setting: str, values: pd.Series) -> list[dict[str, str]]:
    """Make a `claim` for each distribution of inputs.

    Args:
        id, setting: as of `claim`. values: indexed by (distribution, seed).

    Returns:
        rows of `claim`, whose setting begins with the distribution.
    """
    groups = values.groupby("distribution", sort=False)
    return [claim(id, f"{distribution} inputs, {setting}", group) for distribution, group in groups]


def ledger(results: Path = RESULTS) -> pd.DataFrame:
    """Join every statement with every result for it; a statement without a result has one row.

    Args:
        results: folder of <notebook>.claims.csv.

    Returns:
        table: id and the columns of `published`; setting; values (one a seed, as a text) and seeds (how many); their
        min, max and mean; first and last, the ends of the mean's 95 % interval; verdict.
    """
    parts = [pd.read_csv(p, dtype=str) for p in sorted(results.glob("*.claims.csv"))]
    ours = pd.concat(parts) if parts else pd.DataFrame(columns=["id", "setting", "values"])
    table = published().reset_index().merge(ours, on="id", how="left").fillna({"setting": "", "values": ""})
    seeds = [np.array(values.split(), dtype=float) for values in table["values"]]
    for name in ("min", "max"):
        table[name] = [getattr(s, name)() if s.size else np.nan for s in seeds]
    intervals = [bounds(s, average) if s.size else (np.nan,) * 3 for s, average in zip(seeds, table.average)]
    table["mean"], table["first"], table["last"] = zip(*intervals)
    statements = zip(seeds, table.low, table.high, table.average, table.open, table.untested)
    table["verdict"] = [verdict(s, *statement) if s.size else "not run" for s, *statement in statements]
    table["seeds"] = [s.size for s in seeds]
    return table


def markdown(table: pd.DataFrame) -> str:
    """Write a `ledger` as a Markdown table, one line a setting."""
    head = "| figure | statement | setting | published | accepted | ours (95 % interval; values) | verdict |"
    lines, last = [head, "|" + "---|" * 7], None
    for row in table.itertuples():
        spread = f" ({row.first:.3g} to {row.last:.3g}; {row.seeds})" if row.seeds > 1 else ""
        ours = "" if row.verdict == "not run" else f"{row.mean:.3g}{spread}"
        first = row.id != last
        statement = (_figure(row.figure), f"{row.statement}: {row.quantity}") if first else ("", "")
        interval_of_it = (row.published, accepted(row.low, row.high)) if first else ("", "")
        cells = (*statement, row.setting, *interval_of_it, ours, f"**{row.verdict}**")
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
        last = row.id
    return "\n".join(lines)


def summary(table: pd.DataFrame) -> str:
    """Write a `ledger` as a Markdown table, one line a statement, with its verdicts counted over settings."""
    lines = ["| figure | statement | published | accepted | verdicts, by setting | source |", "|" + "---|" * 6]
    for _, rows in table.groupby("id", sort=False):
        first = rows.iloc[0]
        found = f"{first.published} | {accepted(first.low, first.high)} | {_verdicts(rows)} | {first.source}"
        lines.append(f"| {_figure(first.figure)} | {first.statement} | {found} |")
    return "\n".join(lines)


def _figure(number):
    """Write a figure's number; from 9 on they are not the paper's."""
    return f"{number}" if int(f"{number}".rstrip("abcdef")) <= LAST_OF_PAPER else f"ours {number}"


def _verdicts(rows):
    counts, why = rows.verdict.value_counts(), rows.iloc[0].untested
    words = "; ".join(f"**{name}**" + (f" ({count})" if len(rows) > 1 else "") for name, count in counts.items())
    return f"{words}: {why}" if why else words


def headlines(table: pd.DataFrame) -> str:
    """Write the table of docs/paper/claims.md from a `ledger`: for each of HEADLINES the range of our means, and
    its verdicts."""
    lines = ["| statement | published | accepted | ours | verdicts, by setting |", "|" + "---|" * 5]
    for id in HEADLINES:
        rows = table[table.id == id]
        low, high = f"{rows['mean'].min():.3g}", f"{rows['mean'].max():.3g}"
        first, ours = rows.iloc[0], low if low == high else f"{low} to {high}"
        statement = f"{first.statement}: {first.quantity}"
        published_and_accepted = f"{first.published} | {accepted(first.low, first.high)}"
        lines.append(f"| {statement} | {published_and_accepted} | {ours} | {_verdicts(rows)} |")
    return "\n".join(lines)


def with_headlines(text: str, table: pd.DataFrame) -> str:
    """Put `headlines` between the two marks of docs/paper/claims.md.

    Args:
        text: the page's. table: of `ledger`.

    Raises:
        ValueError: the marks are missing.
    """
    return renewed(text, BEGIN, END, headlines(table), PAPER.name)


def page(table: pd.DataFrame) -> str:
    """Write the text of docs/paper/ledger.md from a `ledger`: the page's own beginning, then for each paper a summary
    and every setting's numbers."""
    parts = [LEDGER.read_text().partition("\n## ")[0].rstrip("\n")]
    for paper, rows in table.groupby("paper", sort=False):
        parts += [f"## {PAPERS[paper]}", summary(rows), "### Every setting, with its numbers", markdown(rows)]
    return "\n\n".join(parts) + "\n"


def renew(table: pd.DataFrame) -> None:
    """Write a `ledger` into docs/paper/ledger.md and claims.md of the checkout; each file is whole or as it was."""
    for file, text in ((LEDGER, page(table)), (PAPER, with_headlines(PAPER.read_text(), table))):
        with replacing(file) as path:
            path.write_text(text)
