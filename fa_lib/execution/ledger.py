"""The ledger's tables and pages: each published statement joined with what the notebooks got, and the verdict.

`fa-lib dev claims` prints it; data/ledger.csv has its rows, docs/paper/claims.md its headlines, and the site all of it.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from fa_lib.execution.claims import bounds, published, verdict
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.paths import RESULTS, ROOT

BEGIN, END = "<!-- ledger: made by `make claims`, not by hand -->", "<!-- end of ledger -->"
LEDGER, PAPER = ROOT / "data" / "ledger.csv", ROOT / "docs" / "paper" / "claims.md"
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


def ledger(results: Path = RESULTS) -> pd.DataFrame:
    """Join every statement with every result for it; a statement without a result has one row.

    Args:
        results: folder of <notebook>.claims.csv.

    Returns:
        table: id and the columns of `claims.published`; setting; values (one a seed, as a text) and seeds (how many);
        their mean; first and last, the ends of the mean's 95 % interval; verdict.
    """
    parts = [pd.read_csv(p, dtype=str) for p in sorted(results.glob("*.claims.csv"))]
    ours = pd.concat(parts) if parts else pd.DataFrame(columns=["id", "setting", "values"])
    table = published().reset_index().merge(ours, on="id", how="left").fillna({"setting": "", "values": ""})
    seeds = [np.array(values.split(), dtype=float) for values in table["values"]]
    intervals = [bounds(s, average) if s.size else (np.nan,) * 3 for s, average in zip(seeds, table.average)]
    table["mean"], table["first"], table["last"] = zip(*intervals)
    statements = zip(seeds, table.low, table.high, table.average, table.open, table.untested)
    table["verdict"] = [verdict(s, *statement) if s.size else "not run" for s, *statement in statements]
    return table.assign(seeds=[s.size for s in seeds])


def markdown(table: pd.DataFrame) -> str:
    """Write a `ledger` as a Markdown table, one line a setting; a statement stands in the first of its lines."""
    lines = []
    for row, again in zip(table.itertuples(), table.id.duplicated()):
        spread = f" ({row.first:.3g} to {row.last:.3g}; {row.seeds})" if row.seeds > 1 else ""
        ours = "" if row.verdict == "not run" else f"{row.mean:.3g}{spread}"
        statement, interval = (_figure(row), f"{row.statement}: {row.quantity}"), _published(row)
        if again:
            statement = interval = "", ""
        lines.append([*statement, row.setting, *interval, ours, f"**{row.verdict}**"])
    names = "figure", "statement", "setting", "published", "accepted", "ours (95 % interval; values)", "verdict"
    return markdown_table(names, lines)


def summary(table: pd.DataFrame) -> str:
    """Write a `ledger` as a Markdown table, one line a statement, with its verdicts counted over settings."""
    lines = []
    for _, rows in table.groupby("id", sort=False):
        row = rows.iloc[0]
        lines.append([_figure(row), row.statement, *_published(row), _verdicts(rows), row.source])
    return markdown_table(("figure", "statement", "published", "accepted", "verdicts, by setting", "source"), lines)


def headlines(table: pd.DataFrame) -> str:
    """Write the table of docs/paper/claims.md from a `ledger`: for each of HEADLINES the range of our means, and
    its verdicts."""
    lines = []
    for id in HEADLINES:
        rows = table[table.id == id]
        row, ends = rows.iloc[0], dict.fromkeys((f"{rows['mean'].min():.3g}", f"{rows['mean'].max():.3g}"))
        lines.append([f"{row.statement}: {row.quantity}", *_published(row), " to ".join(ends), _verdicts(rows)])
    return markdown_table(("statement", "published", "accepted", "ours", "verdicts, by setting"), lines)


def markdown_table(names: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table: the names of its columns, and its lines of cells."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    rules = "|" + "---|" * len([*names])
    head, *rows = ("| " + " | ".join(line) + " |" for line in ([*names], *escaped))
    return "\n".join([head, rules, *rows])


def _figure(row):
    """Write a statement's figure; from 9 on they are not the paper's."""
    return row.figure if int(row.figure.rstrip("abcdef")) <= LAST_OF_PAPER else f"ours {row.figure}"


def _published(row):
    """Return what was published, and the interval in which a value agrees: "5 to 20", ">= 1", or "" for none."""
    low, high = row.low, row.high
    if np.isnan(low):
        return row.published, ""
    if np.isinf(low) or np.isinf(high):
        return row.published, f"<= {high:g}" if np.isinf(low) else f">= {low:g}"
    return row.published, f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _verdicts(rows):
    counts, why = rows.verdict.value_counts(), rows.iloc[0].untested
    words = "; ".join(f"**{name}**" + (f" ({count})" if len(rows) > 1 else "") for name, count in counts.items())
    return f"{words}: {why}" if why else words


def with_headlines(text: str, table: pd.DataFrame) -> str:
    """Put `headlines` between the two marks of a text, docs/paper/claims.md's; a ValueError where they are missing."""
    return renewed(text, BEGIN, END, headlines(table), PAPER.name)


def rows(table: pd.DataFrame) -> str:
    """Write a `ledger` as data/ledger.csv has it, a line a setting."""
    accepted = [_published(row)[1] for row in table.itertuples()]
    names = ["figure", "paper", "statement", "quantity", "published", "accepted", "setting", "mean", "first", "last"]
    return table.assign(accepted=accepted)[[*names, "seeds", "verdict"]].to_csv(index=False, float_format="%.5g")


def sections(table: pd.DataFrame) -> str:
    """Write a `ledger` as the site's page of it does: for each paper a summary and every setting's numbers."""
    parts = []
    for paper, statements in table.groupby("paper", sort=False):
        parts += [
            f"## {PAPERS[paper]}",
            summary(statements),
            "### Every setting, with its numbers",
            markdown(statements),
        ]
    return "\n\n".join(parts) + "\n"


def renew(table: pd.DataFrame) -> None:
    """Write a `ledger` into data/ledger.csv and docs/paper/claims.md of the checkout; each is whole or as it was."""
    for file, text in ((LEDGER, rows(table)), (PAPER, with_headlines(PAPER.read_text(), table))):
        with replacing(file) as path:
            path.write_text(text)
