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
LEDGER = ROOT / "docs" / "ledger.md"
HEADLINES = (  # the README's
    "fig4-ten-times", "fig5a-max-grows", "fig6b-square-same", "fig9-rescale", "fig7-wasserstein-grows",
    "fig8-low-precision", "fa3-times", "fa4-fp8-offset-8", "law",
)  # fmt: skip
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
    "": "The law, which no paper has",
}
PAGE = """# The ledger

<!-- made by `make claims`, not by hand -->

Each row is a statement of a paper, or a question it leaves open; numbers in brackets count the settings it was tried
in. One rule makes every verdict: the words are read as an interval (`data/published.csv`), and the 95 % confidence
interval of our mean over seeds is held against it (Student's t; of ratios of weights' distances the geometric mean).
*Reproduced*: ours lies inside. *Not reproduced*: it lies outside. *Consistent*: the two overlap, but ours does not lie
inside, so that more seeds would be needed. *Not stated*: the paper gives no value.
Figure 2 has no row in FP64: there the order of the real kernel's sums, which is the machine's, decides."""


def published() -> pd.DataFrame:
    """The published statements, indexed by id. average is "geometric" of ratios that training multiplies, else ""."""
    texts = ("paper", "source", "published", "average")
    return pd.read_csv(PUBLISHED, index_col="id", dtype=dict.fromkeys(texts, str)).fillna(dict.fromkeys(texts, ""))


def verdict(values: Sequence[float] | np.ndarray, low: float, high: float, average: str = "") -> str:
    """What values over seeds say of a statement that holds within [low, high], by the 95 % confidence interval of their
    mean (Student's t; of a single value, the value).

    Args:
        average: as of `bounds`.

    Returns:
        "reproduced": the interval lies inside, the ends included; "not reproduced": it lies outside; "consistent": it
        does both; "not stated": nothing was published (low is NaN).
    """
    if np.isnan(low):
        return "not stated"
    _, first, last = bounds(values, average)
    if low <= first and last <= high:
        return "reproduced"
    return "consistent" if low <= last and first <= high else "not reproduced"


def bounds(values: Sequence[float] | np.ndarray, average: str = "") -> tuple[float, float, float]:
    """A mean and the ends of its 95 % confidence interval; of a single value, the value.

    Args:
        average: "" is arithmetic; of a "geometric" mean the interval is that of the logarithms.
    """
    each = pd.Series(values, dtype=float)
    found = np.exp(interval(np.log(each))) if average else np.array(interval(each))
    mean, first, last = (float(x) for x in found)
    return (mean, first, last) if len(values) > 1 else (mean, mean, mean)


def claim(id: str, setting: str, values: Sequence[float] | pd.Series) -> dict[str, str]:
    """One row of the ledger.

    Args:
        id: of a statement in data/published.csv.
        setting: what the paper leaves out, in words.
        values: ours, one a seed.

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
    """A `claim` for each distribution of a Series indexed by (distribution, seed)."""
    groups = values.groupby("distribution", sort=False)
    return [claim(id, f"{distribution} inputs, {setting}", group) for distribution, group in groups]


def ledger(results: Path = RESULTS) -> pd.DataFrame:
    """Every statement with every result for it, statements without a result included.

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
    held = [bounds(s, how) if s.size else (np.nan,) * 3 for s, how in zip(seeds, table.average)]
    table["mean"], table["first"], table["last"] = zip(*held)
    stated = zip(seeds, table.low, table.high, table.average)
    table["verdict"] = [verdict(s, *how) if s.size else "not run" for s, *how in stated]
    table["seeds"] = [s.size for s in seeds]
    return table


def markdown(table: pd.DataFrame) -> str:
    """The ledger as a Markdown table."""
    lines = ["| figure | statement | setting | published | ours (95 % interval; seeds) | verdict |", "|" + "---|" * 6]
    last = None
    for row in table.itertuples():
        ours = f"{row.mean:.3g} ({row.first:.3g} to {row.last:.3g}; {row.seeds})" if row.verdict != "not run" else ""
        named = (row.figure, f"{row.statement}: {row.quantity}") if row.id != last else ("", "")
        cells = (*named, row.setting, row.published if row.id != last else "", ours, f"**{row.verdict}**")
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
        last = row.id
    return "\n".join(lines)


def summary(table: pd.DataFrame) -> str:
    """The ledger as a Markdown table of one line a statement: its verdicts, counted over settings."""
    lines = ["| figure | statement | published | verdicts, by setting |", "|" + "---|" * 4]
    for _, rows in table.groupby("id", sort=False):
        first = rows.iloc[0]
        lines.append(f"| {first.figure} | {first.statement} | {first.published} | {_verdicts(rows)} |")
    return "\n".join(lines)


def _verdicts(rows):
    counts = rows.verdict.value_counts()
    return "; ".join(f"**{name}**" + (f" ({count})" if len(rows) > 1 else "") for name, count in counts.items())


def headlines(table: pd.DataFrame) -> str:
    """The README's rows: of each of HEADLINES the range of our means over settings, and its verdicts."""
    lines = ["| statement | published | ours | verdicts, by setting |", "|" + "---|" * 4]
    for id in HEADLINES:
        rows = table[table.id == id]
        low, high = f"{rows['mean'].min():.2g}", f"{rows['mean'].max():.2g}"
        first, ours = rows.iloc[0], low if low == high else f"{low} to {high}"
        said = f"{first.statement}: {first.quantity}"
        lines.append(f"| {said} | {first.published} | {ours} | {_verdicts(rows)} |")
    return "\n".join(lines)


def in_readme(text: str, table: pd.DataFrame) -> str:
    """README text with what stands between its two marks replaced by `headlines`."""
    return renewed(text, BEGIN, END, headlines(table), "README")


def page(table: pd.DataFrame) -> str:
    """docs/ledger.md: of every paper a summary, and every setting with its numbers."""
    parts = [PAGE]
    for paper, rows in table.groupby("paper", sort=False):
        parts += [f"## {PAPERS[paper]}", summary(rows), "### Every setting, with its numbers", markdown(rows)]
    return "\n\n".join(parts) + "\n"


def renew(table: pd.DataFrame) -> None:
    """Write the ledger into docs/ledger.md and the README of the checkout; each is whole or as it was."""
    readme = ROOT / "README.md"
    for file, text in ((LEDGER, page(table)), (readme, in_readme(readme.read_text(), table))):
        with replacing(file) as path:
            path.write_text(text)
