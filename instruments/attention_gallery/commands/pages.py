"""The gallery's tables and figures, and what the site inserts into its pages: the table of every kernel, a page for
each, and the numbers of the finds."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from attention_check.judge.findings import Judgement
from attention_check.report.sentences import sentences_of
from attention_gallery import plots
from attention_gallery.catalogue import ENTRIES, JUDGED, MODELLED, counted
from attention_gallery.causes import explained
from attention_gallery.commands.judging import QUERIES, JudgingSettings, judge_all, judgement_of
from attention_gallery.finds import FINDS
from attention_gallery.openvino_kernels import computes_fp16_in_bf16
from fa_lib.execution.files import replacing
from fa_lib.execution.ledger import markdown_table
from fa_lib.execution.machine import instructions, processor
from fa_lib.execution.paths import CHECKOUT, ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.results import provenance, recorded
from fa_lib.execution.sweep import sweep
from fa_lib.execution.untrusted import Untrusted
from fa_lib.plots.recorded import NONE

TABLES = ROOT / "data" / "gallery"
JUDGEMENTS = TABLES / "judgements.json"  # kernel -> the record of its Judgement
ON_MODELLED = "GPUs that are modelled on a CPU"  # the title of the kernels of MODELLED
BY = ("n", "queries", "threads", "splits", "distribution")  # columns of a find's table that name a row's call
WHO = {"kernel": "kernel", "emulated": "emulated", "changed": "control"}
COLUMNS = (  # of the index's tables, which may lack some
    *(f"{number}_{key}" for number in ("times", "relative") for key in QUERIES),
    *"version gradients outwards baseline_outwards cause over_bits found source reason problem".split(),
)
WORDS = tomllib.loads(Path(__file__).with_name("pages.toml").read_text())


def make(only: Sequence[str], quick: bool, jobs: int, say: Callable, simulated: bool = False) -> None:
    """Judge kernels of the gallery and print a line for each. When all of a catalogue are judged, renew data/gallery.

    Args:
        only: keys of kernels; empty is all of them, or if quick five, three of the simulated ones.
        quick: whether by a short plan. jobs: kernels at a time. say: gets each line.
        simulated: whether GPU kernels in a GPU's arithmetic, MODELLED, instead of those of a CPU, ENTRIES.
    """
    everything = not only and not quick
    if everything and CHECKOUT is None:
        raise ValueError("gallery: there is no checkout to renew here; accepted are names of kernels, or --quick")
    device, every = ("modelled", MODELLED) if simulated else ("cpu", ENTRIES)
    depth, keys = (WORDS["quick"][device], WORDS["few"][device]) if quick else (WORDS["thorough"][device], every)
    folder, limit_s = build() / "gallery" / f"{'gpu_' if simulated else ''}{depth}", WORDS["limit_s"][device]
    settings = JudgingSettings(f"{folder}", depth, device, limit_s=limit_s)
    table = judge_all(list(only or keys), settings, say, jobs)
    for row in table.to_dict("records"):
        say(summary_line(row))
    if everything:
        proofs = {} if simulated else prove(f"{Path(settings.folder) / 'cells'}", jobs, say)
        publish(table, settings, proofs)
        say("data/gallery is new: commit it, then `make publish` draws the figures")


def prove(cache: str, jobs: int, say: Callable) -> dict[str, pd.DataFrame]:
    """Compute the tables of the finds, swept over lengths, queries, threads and splits: find -> rows of `finds`, with
    the parameters of each; without OpenVINO's where this processor computes its FP16 otherwise."""
    inputs, grids = dict(distribution=["uniform", "normal"], seed=range(2)), dict(WORDS["finds"])
    if not computes_fp16_in_bf16():
        del grids["openvino"]
        say("openvino: its find is kept as it was; this processor computes it otherwise")
    proofs = {}
    with workers(jobs) as pool:
        for find, of_find in grids.items():
            tables = [sweep(FINDS[find], grid | inputs, cache=cache, executor=pool) for grid in of_find]
            proofs[find] = pd.concat(tables, ignore_index=True)
    return proofs


def publish(table: pd.DataFrame, settings: JudgingSettings, proofs: Mapping[str, pd.DataFrame] = NONE) -> None:
    """Write the tables of all of a catalogue into the checkout. proofs: find -> its table."""
    made_of: dict[str, Any] = dict(kernels=list(table.key))
    if settings.device == "modelled":
        entries = [MODELLED[key] for key in table.key]
        table = table.assign(gpu=[entry.gpu for entry in entries], as_used=[entry.as_used for entry in entries])
        made_of["archives"] = {key: entry.package.sha256 for key, entry in MODELLED.items() if entry.package}
        tables, name = dict(modelled=table), "modelled_provenance"
    else:
        tables, name = dict(verdicts=table, **proofs), "provenance"
        limit = os.environ.get(option := "ONEDNN_MAX_CPU_ISA")  # OpenVINO knows no other instructions for formats then
        known = ", ".join([*instructions(), *([f"{option}={limit}"] if limit else [])])
        made_of["processor"] = f"{processor()} ({known or 'unknown'})"
    for file, rows in tables.items():
        _write(TABLES / f"{file}.csv", rows.to_csv(index=False, float_format="%.5g"))
    _write(TABLES / f"{name}.json", json.dumps(provenance(made_of), indent=1) + "\n")
    judged = {key: judgement_of(key, settings) for key in table.key[table.verdict != "cannot_run"]}
    kept = {key: each for key, each in judgements().items() if key not in judged and key in {**ENTRIES, **MODELLED}}
    records = {key: each.record() for key, each in sorted((kept | judged).items()) if each}
    _write(JUDGEMENTS, json.dumps(records, indent=0) + "\n")


def judged() -> str:
    """Write the site's tables of every kernel, from the committed tables: those of a CPU; those in a GPU's arithmetic;
    those that were recorded on devices."""
    elsewhere = {ON_MODELLED: explained(committed("modelled"), "modelled")}
    elsewhere |= {device: explained(rows, device) for device, rows in recorded("14_gallery").items()}
    return index(explained(committed("verdicts"), "cpu"), elsewhere)


def _write(file: Path, text: str) -> None:
    with replacing(file) as path:
        path.write_text(text)


def committed(name: str) -> pd.DataFrame:
    """Read a table of `judging.rows` from data/gallery; only an empty cell is NaN."""
    return pd.read_csv(TABLES / f"{name}.csv", keep_default_na=False, na_values=[""])


def judgements() -> dict[str, Judgement]:
    """Read the committed Judgement of each kernel that came to an end."""
    return {key: Judgement.of(record) for key, record in json.loads(JUDGEMENTS.read_text()).items()}


def write(folder: Path) -> None:
    """Write a page for each kernel that could run into a folder, from the committed tables: the site's pages. Remove
    pages of kernels that are gone."""
    found, written = judgements(), {"index"}
    for name, device in (("verdicts", "cpu"), ("modelled", "modelled")):
        rows = explained(committed(name), device)
        for row in rows[rows.verdict != "cannot_run"].to_dict("records"):
            _write(folder / f"{row['key']}.md", page(row, found.get(row["key"])))
            written.add(row["key"])
    for old in folder.glob("*.md"):
        if old.stem not in written and not old.stem.startswith("find_"):
            old.unlink()


def page(row: Mapping, judgement: Judgement | None) -> str:
    """Write the text of docs/gallery/<key>.md: how a kernel is called in real use, its verdict, and its findings. row:
    of `causes.explained`. judgement: the kernel's; None where it has only a problem."""
    sentences = [sentence for group in sentences_of(judgement).values() for sentence in group] if judgement else []
    findings = [" ".join(filter(None, (sentence.line, sentence.more, sentence.remedy))) for sentence in sentences]
    return _rendered("kernel.md.jinja", row=row, findings=findings or [f"It {row['problem']}."])


def index(table: pd.DataFrame, elsewhere: Mapping[str, pd.DataFrame] = NONE) -> str:
    """Write a table of kernels for each device, with the number of kernels above. table: of `causes.explained`.
    elsewhere: the same of other kernels, device -> rows."""
    together = [table, *(rows for device, rows in elsewhere.items() if device == ON_MODELLED)]
    sections = []
    for device, rows in {"CPU": table, **elsewhere}.items():
        rows = rows.reindex(columns=rows.columns.union(COLUMNS, sort=False))
        rows["relative"] = rows[[f"relative_{key}" for key in QUERIES]].max(axis=1)
        reasons = rows[rows.reason.map(given)].groupby("reason", sort=False).key.agg(list)
        lines = rows.to_dict("records")
        sections.append(dict(device=device, rows=lines, reasons=reasons.to_dict(), as_used="as_used" in rows))
    return _rendered(
        "index.md.jinja", sections=sections, counts=counted(pd.concat(together).to_dict("records")),
        processor=json.loads((TABLES / "provenance.json").read_text())["parameters"]["processor"],
    )  # fmt: skip


def numbers(find: str) -> str:
    """Write the table of a find's page from its committed table."""
    rows = pd.read_csv(TABLES / f"{find}.csv")
    return numbers_of(of_one_tensor(rows), [name for name in BY if name in rows])


def numbers_of(rows: pd.DataFrame, by: list[str]) -> str:
    """Write the table of a find's page.

    Args:
        rows: of `finds.error_rows`, with the columns of the call. by: the columns that name the call, of BY.
    """
    names = [f"{name}: × Baseline" for name in WHO.values()]
    head, lines = [*by, *names, "kernel: relative error", "emulated: correlation of errors"], []
    for key, group in rows.groupby(by, sort=False):
        mean = group.groupby("who")[["times_max", "relative", "alike"]].mean().reindex(list(WHO))
        alike = mean.alike["emulated"]
        correlation = "–" if math.isnan(alike) else f"{alike:.4f}"
        lines.append((*map(str, key), *map(times, mean.times_max), power(mean.relative["kernel"]), correlation))
    return markdown_table(head, lines)


def of_one_tensor(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of a find's table that its page and its figure show: of three gradients those of dV."""
    return rows[rows.tensor == "dv"] if "tensor" in rows else rows


def drawn(table: pd.DataFrame, modelled: pd.DataFrame, proofs: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    """Draw the figures "gallery" and "gallery_finds". table, modelled: of `causes.explained`, kernels on a CPU and
    those of MODELLED. proofs: find -> its table."""
    shown = {find: _on_the_axis(find, rows) for find, rows in proofs.items()}
    caption = "Uniform inputs, head_dim 64. Lines: mean over two seeds; bands: min to max. Horizontal line: the rule."
    tables = {
        device: rows.assign(found=[stated_cause(row) for row in rows.to_dict("records")])
        for device, rows in {"CPU": table, ON_MODELLED: modelled}.items()
    }
    return dict(gallery=plots.defects(tables), gallery_finds=plots.finds(shown, WORDS["panels"], caption))


def _on_the_axis(find, rows):
    rows = of_one_tensor(rows[rows.distribution == "uniform"])
    if find == "torch_backward":
        return rows[rows.n == 256]
    return rows[(rows.queries == 1) & (rows.threads == 2)] if find == "ggml" else rows


def summary_line(row: Mapping) -> str:
    """Write a row of `judging.rows` on one line."""
    numbers = ", ".join(f"{text} {times(row.get(f'times_{key}'))}" for key, text in QUERIES.items())
    return f"{row['key']}: {row['verdict']}; {numbers}; {Untrusted(stated_cause(row))}".rstrip("; ")


def stated_cause(row: Mapping) -> str:
    """Say in a few words why a kernel fails or differs, or that it is as good as its bits; "" where it passes. row: of
    `causes.explained`, or of `judging.rows`."""
    if given(row.get("found")):
        return row["found"]
    if given(row.get("over_bits")) and row["verdict"] == "passes":
        return f"{times(row['over_bits'])} times the error that its 4 or 8 bits cost"
    if given(row.get("problem")):
        return row["problem"]
    findings = str(row.get("cause") or "").split() if row["verdict"] == "fails" else []
    return next((text for finding, text in WORDS["findings"].items() if finding in findings), "")


def bias(row: Mapping, unit: str = "", whose: str = "") -> str:
    """Write a row's bias, with Baseline's in brackets where the row has it; "" where the row has none."""
    if not given(row.get("outwards")):
        return ""
    baseline = f" ({whose}{row['baseline_outwards']:+.2f})" if given(row.get("baseline_outwards")) else ""
    return f"{row['outwards']:+.2f}{unit}{baseline}"


def given(value: Any) -> bool:
    """Say whether a table's cell has a value: it is no NaN, None or empty text."""
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def times(value: float | None) -> str:
    """Write a number of times for a table: two digits, ∞, or a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def power(value: float | None) -> str:
    """Write a relative error for a table: two digits, ∞, or a dash where there is none."""
    return "–" if value is None or math.isnan(value) else "∞" if math.isinf(value) else f"{value:.1e}"


def literal(text: str) -> str:
    """Escape a text for Markdown, so that it is shown as it stands, whatever a stranger's kernel has printed in it."""
    return re.sub(r"[\\`*\[\]<>|~${}&]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=\bwww)\.", r"\\\g<0>", Untrusted(text))


def _rendered(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= dict(literal=literal, times=times, power=power, bias=bias, stated_cause=stated_cause)
    environment.tests |= dict(given=given)
    return environment.get_template(template).render(values, verdicts=WORDS["verdicts"], judged=JUDGED, queries=QUERIES)
