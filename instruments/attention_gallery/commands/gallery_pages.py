"""The gallery's pages: a table of every kernel, a page for each, and the numbers of the finds."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from attention_check.judge.findings import Judgement
from attention_check.report.sentences import sentences_of
from attention_gallery.catalogue import ENTRIES, MODELLED
from attention_gallery.causes import explained
from attention_gallery.commands import judge_gallery
from attention_gallery.commands.gallery_finds import prove
from attention_gallery.commands.gallery_index import (
    BEGIN,
    BY,
    DOCS,
    END,
    ON_MODELLED,
    OTHERS,
    RECORDED,
    TABLES,
    VERDICTS,
    WHO,
    bias_words,
    committed,
    elsewhere,
    index,
    judged_on,
    literal,
    others,
)
from attention_gallery.commands.gallery_rows import QUERIES
from attention_gallery.commands.gallery_settings import FIVE, THREE, JudgingSettings
from attention_gallery.commands.gallery_words import found, given, power, times
from attention_gallery.experiments.finds import FINDS
from attention_gallery.plots import gallery as plots
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.paths import CHECKOUT, build
from fa_lib.execution.results import provenance, recorded, save_figure
from fa_lib.execution.untrusted import Untrusted
from fa_lib.plots.recorded import NONE

MODELLED_LIMIT_S = 1800  # of one GPU kernel on a CPU


def page(row: Mapping, judgement: Judgement | None) -> str:
    """Write the text of docs/gallery/<key>.md: how a kernel is called in real use, its verdict, and its findings.

    Args:
        row: of `causes.explained`. judgement: the kernel's; None where it has only a problem.
    """
    sentences = [one for group in sentences_of(judgement).values() for one in group] if judgement else []
    texts = [" ".join(filter(None, (one.line, one.more, one.remedy))) for one in sentences] or [f"It {row['problem']}."]
    items = [f"- {literal(text)}" for text in texts]
    bias = bias_words(row, " ulp", "Baseline's own: ")
    bias = f"\nMean signed error away from zero, the largest that is no chance: {bias}.\n" if bias else ""
    errors = [
        f"| {words} | {times(row.get(f'times_{key}'))} | {power(row.get(f'relative_{key}'))} |"
        for key, words in QUERIES.items()
    ]
    return "\n".join([
        f"# {row['project']}: {row['key']}", "", "<!-- made by `make gallery`, not by hand -->", "",
        f"Version {row['version']}. In real use: {row['use']}.", "",
        f"Verdict: {VERDICTS[row['verdict']]}.{_read(row)}{_few_bits(row)} `fa-lib check kernel gallery:{row['key']}` "
        "makes a page with a figure.",
        "", "| queries | largest error over Baseline's | largest relative error |", "|---|---|---|", *errors, bias,
        *items, "",
    ])  # fmt: skip


def _read(row: Mapping) -> str:
    """Say what the project's source says of a kernel's failure; "" where it does not fail, or nobody has read it."""
    if not given(row.get("found")):
        return ""
    return f" Cause: {literal(row['found'])} ({literal(row['source'])}). {literal(row['reason'])}".rstrip()


def _few_bits(row: Mapping) -> str:
    """Say how a kernel stands to the bits of its cache; "" of other kernels."""
    if not given(row.get("over_bits")):
        return ""
    beside = f"{times(row['over_bits'])} times that of exact attention on what its cache holds"
    return f" Its error is at most {beside}; what these bits cost does not count."


def with_numbers(text: str, rows: pd.DataFrame, by: list[str]) -> str:
    """Put a table into the text of a find's page, between its two marks.

    Args:
        text: the page's. rows: of `experiments.finds.error_rows`, with the columns of the call.
        by: the columns that name the call, of BY.

    Raises:
        ValueError: the marks are missing.
    """
    head = [
        *by,
        *(f"{WHO[who]}: × Baseline" for who in WHO),
        "kernel: relative error",
        "emulated: correlation of errors",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, group in rows.groupby(by, sort=False):
        mean = group.groupby("who")[["times_max", "relative", "alike"]].mean().reindex(list(WHO))
        cells = [*map(str, key), *map(times, mean.times_max), power(mean.relative["kernel"])]
        alike = mean.alike["emulated"]
        lines.append("| " + " | ".join([*cells, "–" if math.isnan(alike) else f"{alike:.4f}"]) + " |")
    return renewed(text, BEGIN, END, "\n".join(lines), "text")


def of_one_tensor(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a find's table that its page and its figure show: of three gradients those of dV."""
    return rows[rows.tensor == "dv"] if "tensor" in rows else rows


def make(only: Sequence[str], quick: bool, jobs: int, say: Callable) -> None:
    """Judge kernels of the gallery and print a line for each. When all are judged, renew the committed files:
    data/gallery, docs/gallery and figures/gallery*.

    Args:
        only: keys of kernels; empty is all of them, or five if quick. quick: whether by the plan "quick".
        jobs: kernels at a time. say: gets each line.

    Raises:
        ValueError: a key is unknown, or all are to be judged and there is no checkout.
    """
    everything = _renews(only, quick)
    depth = "quick" if quick else "full"
    manner = JudgingSettings(f"{build() / 'gallery' / depth}", depth)
    table = _judged(only or (FIVE if quick else ENTRIES), manner, jobs, say)
    if everything:
        say("the finds")
        proofs = prove(f"{Path(manner.folder) / 'cells'}", jobs)
        for find in FINDS.keys() - proofs.keys():
            say(f"{find}: kept as it was; this processor computes it otherwise")
        publish(table, proofs_kept() | proofs, manner)
        say("data/gallery, docs/gallery and figures/gallery are new; see `git status`")


def make_modelled(only: Sequence[str], quick: bool, jobs: int, say: Callable) -> None:
    """Judge GPU kernels in a GPU's arithmetic and print a line for each. When all are judged, renew
    data/gallery/modelled.csv, their pages, the index and the figure.

    Args:
        only: keys of kernels; empty is all of MODELLED, or three if quick. quick, jobs, say: as of `make`.

    Raises:
        ValueError: as `make`.
    """
    everything = _renews(only, quick)
    depth = "rehearsal" if quick else "modelled"
    folder = f"{build() / 'gallery' / f'gpu_{depth}'}"
    manner = JudgingSettings(folder, depth, "modelled", limit_s=MODELLED_LIMIT_S)
    table = _judged(only or (THREE if quick else MODELLED), manner, jobs, say)
    if everything:
        publish_modelled(table, manner)
        say("data/gallery/modelled.csv, docs/gallery and figures/gallery are new; see `git status`")


def _renews(only: Sequence[str], quick: bool) -> bool:
    """Return whether the committed files are renewed, because all kernels are judged.

    Raises:
        ValueError: they are, and there is no checkout.
    """
    everything = not only and not quick
    if everything and CHECKOUT is None:
        raise ValueError("gallery: there is no checkout to renew here; accepted are names of kernels, or --quick")
    return everything


def _judged(
    keys: Iterable[str], manner: JudgingSettings, jobs: int, say: Callable
) -> pd.DataFrame:  # fmt: skip
    """Judge kernels, and say a line for each."""
    table = judge_gallery.judge_all(list(keys), manner, say, jobs)
    for row in table.to_dict("records"):
        say(summary_line(row))
    return table


def publish_modelled(table: pd.DataFrame, manner: JudgingSettings) -> None:
    """Write the table, the figure, the pages and the index of GPU kernels into the checkout."""
    assert CHECKOUT is not None  # `make_modelled` refuses to publish without one
    entries_of = [MODELLED[key] for key in table.key]
    table = table.assign(gpu=[entry.gpu for entry in entries_of], as_used=[entry.as_used for entry in entries_of])
    with replacing(TABLES / "modelled.csv") as path:
        table.to_csv(path, index=False, float_format="%.5g")
    with replacing(TABLES / "modelled_provenance.json") as path:
        archives = {key: entry.package.sha256 for key, entry in MODELLED.items() if entry.package}
        path.write_text(json.dumps(provenance(dict(kernels=list(table.key), archives=archives)), indent=1) + "\n")
    for row in explained(table[table.verdict != "cannot_run"], "modelled").to_dict("records"):
        with replacing(DOCS / f"{row['key']}.md") as path:
            path.write_text(page(row, judge_gallery.judgement_of(row["key"], manner)))
    renew()


def renew() -> None:
    """Write the index and the figures anew from the committed tables, as after a change of data/gallery/causes.csv."""
    assert CHECKOUT is not None
    judged = committed("verdicts")
    table, other = explained(judged, "cpu"), elsewhere(recorded(RECORDED))
    with replacing(DOCS / "index.md") as path:
        path.write_text(index(table, other, explained(others(judged), "cpu")))
    for name, figure in drawn(table, proofs_kept(), other).items():
        save_figure(figure, CHECKOUT / "figures" / name)


def proofs_kept() -> dict[str, pd.DataFrame]:
    """Read find -> its committed table, for the finds that have one; columns as of `experiments.finds.error_rows`."""
    paths = {find: TABLES / f"{find}.csv" for find in FINDS}
    return {find: pd.read_csv(path) for find, path in paths.items() if path.exists()}


def summary_line(row: Mapping) -> str:
    """Write a row of `judge_gallery.rows` on one line."""
    numbers = ", ".join(f"{words} {times(row.get(f'times_{key}'))}" for key, words in QUERIES.items())
    return f"{row['key']}: {row['verdict']}; {numbers}; {Untrusted(found(row))}".rstrip("; ")


def publish(table: pd.DataFrame, proofs: Mapping[str, pd.DataFrame], manner: JudgingSettings) -> None:
    """Write tables, figures and pages of the whole gallery into the checkout. proofs: find -> its table."""
    assert CHECKOUT is not None  # `make` refuses to publish without one
    older = others(table)
    for name, each in (dict(verdicts=table, **proofs) | {OTHERS: older}).items():
        with replacing(TABLES / f"{name}.csv") as path:
            each.to_csv(path, index=False, float_format="%.5g")
    with replacing(TABLES / "provenance.json") as path:
        path.write_text(json.dumps(provenance(dict(kernels=list(table.key), processor=judged_on())), indent=1) + "\n")
    judgements = {key: judge_gallery.judgement_of(key, manner) for key in table.key[table.verdict != "cannot_run"]}
    write(explained(table, "cpu"), judgements, DOCS)
    for find, rows in proofs.items():
        page = DOCS / f"find_{find}.md"
        text = with_numbers(page.read_text(), of_one_tensor(rows), [name for name in BY if name in rows])
        with replacing(page) as path:
            path.write_text(text)
    renew()


def drawn(
    table: pd.DataFrame, proofs: Mapping[str, pd.DataFrame], elsewhere: Mapping[str, pd.DataFrame] = NONE
) -> dict[str, Figure]:
    """Draw the figures "gallery", "gallery_all" and "gallery_finds".

    Args:
        table, elsewhere: as of `index`. proofs: find -> its table.
    """
    shown = {find: _on_the_axis(find, rows) for find, rows in proofs.items()}
    words = "Uniform inputs, head_dim 64. Lines: mean over two seeds; bands: min to max. Horizontal line: the rule."
    tables = {device: _with_words(rows) for device, rows in {"CPU": table, **elsewhere}.items()}
    return dict(
        gallery=plots.defects({device: rows for device, rows in tables.items() if device in ("CPU", ON_MODELLED)}),
        gallery_all=plots.every_path(tables, " ".join(_caption(device, rows) for device, rows in tables.items())),
        gallery_finds=plots.finds(shown, words),
    )


def _caption(device: str, table: pd.DataFrame) -> str:
    """Write how the kernels of one device were called, and their versions."""
    cpu = "BF16 and FP16, else FP32; uniform and normal inputs; head_dim 64; two seeds, 128 to 16,384 keys"
    how = {"CPU": cpu, ON_MODELLED: "128 to 4,096 keys, one seed"}.get(device, "recorded")
    ran = table[table.verdict != "cannot_run"]
    versions = ", ".join(sorted({f"{row.project} {row.version}" for row in ran.itertuples()}))
    return f"{device}: {how}: {versions}."


def _with_words(table):
    return table.assign(found=[found(row) for row in table.to_dict("records")])


def _on_the_axis(find, rows):
    rows = of_one_tensor(rows[rows.distribution == "uniform"])
    if find == "torch_backward":
        return rows[rows.n == 256]
    return rows[(rows.queries == 1) & (rows.threads == 2)] if find == "ggml" else rows


def write(table: pd.DataFrame, judgements: Mapping[str, Judgement | None], folder: Path) -> None:
    """Write a page for each kernel that could run into a folder; remove pages of kernels that are gone.

    Args:
        table: as of `index`. judgements: key -> judgement or None, for each kernel with a page.
    """
    pages = {
        row["key"]: page(row, judgements[row["key"]]) for row in table.to_dict("records") if row["key"] in judgements
    }
    for name, text in pages.items():
        with replacing(folder / f"{name}.md") as path:
            path.write_text(text)
    for old in folder.glob("*.md"):
        if old.stem not in {*pages, *MODELLED, "index"} and not old.stem.startswith("find_"):
            old.unlink()
