"""The gallery's pages, tables and figures: an index of every kernel, a page for each, and the numbers of the finds."""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TypeGuard, TypeVar

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
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.machine import instructions, processor
from fa_lib.execution.paths import CHECKOUT, ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.results import provenance, recorded, save_figure
from fa_lib.execution.sweep import sweep
from fa_lib.execution.untrusted import Untrusted
from fa_lib.plots.recorded import NONE

T = TypeVar("T")

TABLES, DOCS = ROOT / "data" / "gallery", ROOT / "docs" / "gallery"
RECORDED = "14_gallery"  # the table that was recorded of kernels on another device
OTHERS = "other_versions"  # the table of `others`
ON_MODELLED = "GPUs that are modelled on a CPU"  # the title of the kernels of MODELLED
MODELLED_LIMIT_S = 1800  # of one GPU kernel on a CPU
FIVE = ("ggml_decode", "ggml_prefill", "ring_16_bit_logits", "onnx_attention", "transformers_eager")  # of a quick look
THREE = ("llama_cuda_decode", "sglang_extend", "conch_paged")  # of a quick look at GPU kernels
FINDS_ON_GPU = ("llama_cuda", "conch", "flashinfer", "flag_gems", "sglang_decode", "lmdeploy", "sageattention")
BEGIN, END = "<!-- numbers: made by `make gallery` -->", "<!-- end of numbers -->"
BY = ("n", "queries", "threads", "splits", "distribution")  # columns of a find's table that name a row's call
WHO = {"kernel": "kernel", "emulated": "emulated", "changed": "control"}
VERDICTS = {
    "passes": "passes", "fails": "**fails**", "differs": "*differs*", "not_judged": "not judged",
    "cannot_run": "cannot run here",
}  # fmt: skip
CAUSES = {  # findings of judging.row's cause, the gravest first -> a few words, where nobody has read the source
    "carry": "keeps a running sum in 16 bits",
    "coarse": "computes a format in a coarser one",
    "answer": "answers some calls wrongly",
    "scale": "is off by one factor",
    "noise": "gives other results on each call",
    "problem": "NaN or an error on some inputs",
    "wrong_gradient": "wrong gradients",
    "error": "error beyond the rule",
    "relation": "breaks a relation",
    "outputs": "error beyond the rule at some shapes",
}


def make(only: Sequence[str], quick: bool, jobs: int, say: Callable, simulated: bool = False) -> None:
    """Judge kernels of the gallery and print a line for each. When all of a catalogue are judged, renew the committed
    files: data/gallery, docs/gallery and figures/gallery*.

    Args:
        only: keys of kernels; empty is all of them, or if quick five, three of the simulated ones.
        quick: whether by a short plan. jobs: kernels at a time. say: gets each line.
        simulated: whether GPU kernels in a GPU's arithmetic, MODELLED, instead of those of a CPU, ENTRIES.

    Raises:
        ValueError: a key is unknown, or all are to be judged and there is no checkout.
    """
    everything = not only and not quick
    if everything and CHECKOUT is None:
        raise ValueError("gallery: there is no checkout to renew here; accepted are names of kernels, or --quick")
    if simulated:
        depth, every, few = "rehearsal" if quick else "modelled", MODELLED, THREE
        folder = build() / "gallery" / f"gpu_{depth}"
        settings = JudgingSettings(f"{folder}", depth, "modelled", limit_s=MODELLED_LIMIT_S)
    else:
        depth, every, few = "quick" if quick else "full", ENTRIES, FIVE
        settings = JudgingSettings(f"{build() / 'gallery' / depth}", depth)
    table = judge_all(list(only or (few if quick else every)), settings, say, jobs)
    for row in table.to_dict("records"):
        say(summary_line(row))
    if everything and simulated:
        publish_modelled(table, settings)
        say("data/gallery/modelled.csv, docs/gallery and figures/gallery are new; see `git status`")
    elif everything:
        say("the finds")
        proofs = prove(f"{Path(settings.folder) / 'cells'}", jobs)
        for find in FINDS.keys() - proofs.keys():
            say(f"{find}: kept as it was; this processor computes it otherwise")
        publish(table, proofs_kept() | proofs, settings)
        say("data/gallery, docs/gallery and figures/gallery are new; see `git status`")


def prove(cache: str = "", jobs: int = 2) -> dict[str, pd.DataFrame]:
    """Compute the tables of the finds, swept over lengths, queries, threads and splits: find -> rows of
    `finds`, with the parameters of each; without OpenVINO's where this processor computes its FP16
    otherwise."""
    inputs = dict(distribution=["uniform", "normal"], seed=range(2))
    with workers(jobs) as pool:

        def over(find, *grids):
            swept = [sweep(FINDS[find], grid | inputs, cache=cache, executor=pool) for grid in grids]
            return pd.concat(swept, ignore_index=True)

        lengths = dict(n=[512, 1024, 2048, 4096, 8192, 16384], queries=1, threads=2)
        queries, threads = dict(n=4096, queries=[63, 64], threads=2), dict(n=16384, queries=1, threads=[1, 8])
        rows = dict(n=256, queries=[1024, 4096, 16384, 65536])
        proofs = dict(
            torch_backward=over("torch_backward", rows, *(dict(n=n, queries=n) for n in (2048, 4096, 8192))),
            ggml=over("ggml", lengths, queries, threads),
            ringattention=over("ringattention", dict(n=[512, 2048, 8192])),
            pallas_decode=over("pallas_decode", dict(n=4096, splits=[1, 4, 16])),
        )
        return proofs | (dict(openvino=over("openvino", dict(n=[512, 2048, 8192]))) if computes_fp16_in_bf16() else {})


def publish(table: pd.DataFrame, proofs: Mapping[str, pd.DataFrame], settings: JudgingSettings) -> None:
    """Write tables, figures and pages of the whole gallery into the checkout. proofs: find -> its table."""
    assert CHECKOUT is not None  # `make` refuses to publish without one
    tables = dict(verdicts=table, **proofs) | {OTHERS: others(table)}  # before the table of now is written
    for name, rows in tables.items():
        with replacing(TABLES / f"{name}.csv") as path:
            rows.to_csv(path, index=False, float_format="%.5g")
    _write_provenance("provenance", dict(kernels=list(table.key), processor=judged_on()))
    judgements = {key: judgement_of(key, settings) for key in table.key[table.verdict != "cannot_run"]}
    write(explained(table, "cpu"), judgements, DOCS)
    for find, rows in proofs.items():
        page = DOCS / f"find_{find}.md"
        text = with_numbers(page.read_text(), of_one_tensor(rows), [name for name in BY if name in rows])
        with replacing(page) as path:
            path.write_text(text)
    renew()


def publish_modelled(table: pd.DataFrame, settings: JudgingSettings) -> None:
    """Write the table, the figure, the pages and the index of GPU kernels into the checkout."""
    assert CHECKOUT is not None  # `make` refuses to publish without one
    entries = [MODELLED[key] for key in table.key]
    table = table.assign(gpu=[entry.gpu for entry in entries], as_used=[entry.as_used for entry in entries])
    with replacing(TABLES / "modelled.csv") as path:
        table.to_csv(path, index=False, float_format="%.5g")
    archives = {key: entry.package.sha256 for key, entry in MODELLED.items() if entry.package}
    _write_provenance("modelled_provenance", dict(kernels=list(table.key), archives=archives))
    for row in explained(table[table.verdict != "cannot_run"], "modelled").to_dict("records"):
        with replacing(DOCS / f"{row['key']}.md") as path:
            path.write_text(page(row, judgement_of(row["key"], settings)))
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


def _write_provenance(name, parameters):
    with replacing(TABLES / f"{name}.json") as path:
        path.write_text(json.dumps(provenance(parameters), indent=1) + "\n")


def judged_on() -> str:
    """Name the processor that judges, with its instructions for formats, and what limits them for oneDNN."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")  # OpenVINO then knows no other instructions
    known = [*instructions(), *([f"ONEDNN_MAX_CPU_ISA={limit}"] if limit else [])]
    return f"{processor()} ({', '.join(known) or 'unknown'})"


def committed(name: str) -> pd.DataFrame:
    """Read a table of `judging.rows` from data/gallery; only an empty cell is NaN."""
    return pd.read_csv(TABLES / f"{name}.csv", keep_default_na=False, na_values=[""])


def proofs_kept() -> dict[str, pd.DataFrame]:
    """Read find -> its committed table, for the finds that have one; columns as of `finds.error_rows`."""
    paths = {find: TABLES / f"{find}.csv" for find in FINDS}
    return {find: pd.read_csv(path) for find, path in paths.items() if path.exists()}


def others(table: pd.DataFrame, folder: Path = TABLES) -> pd.DataFrame:
    """Read the committed rows of other versions of these kernels, which stay when a library is renewed.

    Args:
        table: of `judging.rows`; so is the result. folder: has verdicts.csv and other_versions.csv.
    """
    rows = pd.concat(pd.read_csv(folder / f"{name}.csv", dtype=dict(version=str)) for name in ("verdicts", OTHERS))
    another = rows.version != rows.key.map(dict(zip(table.key, table.version)))
    judged = rows.verdict.isin(("passes", "fails")) & rows.key.isin(table.key)
    return rows[another & judged].drop_duplicates(["key", "version"]).reset_index(drop=True)


def elsewhere(on_devices: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the `explained` tables of kernels that are not a CPU's: device -> rows, those in a GPU's arithmetic first,
    then those that were recorded on devices."""
    there = (TABLES / "modelled.csv").exists()
    modelled = {ON_MODELLED: explained(committed("modelled"), "modelled")} if there else {}
    return modelled | {device: explained(rows, device) for device, rows in on_devices.items()}


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


def page(row: Mapping, judgement: Judgement | None) -> str:
    """Write the text of docs/gallery/<key>.md: how a kernel is called in real use, its verdict, and its findings.

    Args:
        row: of `causes.explained`. judgement: the kernel's; None where it has only a problem.
    """
    sentences = [sentence for group in sentences_of(judgement).values() for sentence in group] if judgement else []
    findings = [" ".join(filter(None, (sentence.line, sentence.more, sentence.remedy))) for sentence in sentences]
    errors = [
        (text, times(row.get(f"times_{key}")), power(row.get(f"relative_{key}"))) for key, text in QUERIES.items()
    ]
    return _templates().get_template("kernel.md.jinja").render(
        row=row, verdict=VERDICTS[row["verdict"]], bias=_bias(row, " ulp", "Baseline's own: "),
        findings=findings or [f"It {row['problem']}."],
        errors=_markdown_table(("queries", "largest error over Baseline's", "largest relative error"), errors),
    )  # fmt: skip


def index(
    table: pd.DataFrame, elsewhere: Mapping[str, pd.DataFrame] = NONE, older: pd.DataFrame | None = None
) -> str:  # fmt: skip
    """Write the text of docs/gallery/index.md.

    Args:
        table: of `causes.explained`; so is older, of `others`. elsewhere: of `elsewhere`.
    """
    every = table if older is None else pd.concat([table, older])
    every = every.sort_values("key", key=lambda keys: keys.map(list(table.key).index), kind="stable")
    names = {ON_MODELLED: "modelled"}
    tables = {"cpu": every} | {names.get(device, device): other for device, other in elsewhere.items()}
    together = [table, *(other for device, other in tables.items() if device == "modelled")]
    with_pages = [key for rows in together for key in rows.key[rows.verdict != "cannot_run"]]
    sections = [
        dict(
            device=device, reasons=_reasons(other),
            kernels=_listed(other, {*with_pages} if device in ("cpu", "modelled") else frozenset()),
        )
        for device, other in tables.items()
    ]  # fmt: skip
    parameters = json.loads((TABLES / "provenance.json").read_text())["parameters"]
    return _templates().get_template("index.md.jinja").render(
        sections=sections, counts=counted(row for rows in together for row in rows.to_dict("records")),
        processor=parameters["processor"],
        pages=[*(f"find_{find}" for find in (*FINDS, *FINDS_ON_GPU)), *with_pages],
    )  # fmt: skip


def _listed(table: pd.DataFrame, pages: Set[str]) -> str:
    """Write a Markdown table: a line for each kernel and version; a kernel's first line links to its page, if any."""
    columns = ("kernel", "version", "1 query", "16", "many", "relative error", "gradients", "bias (Baseline's)",
               "relations", "verdict", "found", *(["GPU", "as used"] if "as_used" in table else []))  # fmt: skip
    lines, linked = [], set()
    for row in table.to_dict("records"):
        numbers = [times(row.get(name)) for name in ("times_1", "times_16", "times_many")]
        relative = [row[name] for name in (f"relative_{key}" for key in QUERIES) if given(row.get(name))]
        numbers += [power(max(relative, default=None)), times(row.get("gradients")), _bias(row) or "–"]
        name = f"[{row['key']}]({row['key']}.md)" if row["key"] in pages - linked else row["key"]
        linked.add(row["key"])
        version = row["version"] if given(row["version"]) else ""
        broken = "not counted" if given(row.get("over_bits")) else "breaks one"
        kept = broken if "relation" in str(row.get("cause")).split() else "kept"
        relations = kept if row["verdict"] in JUDGED else "–"
        source = f" ({row['source']})" if given(row.get("source")) else ""
        cells = (*numbers, relations, VERDICTS[row["verdict"]], literal(f"{stated_cause(row)}{source}"))
        cells += (row["gpu"], literal(row["as_used"])) if "as_used" in table else ()
        lines.append((f"{row['project']}: {name}", literal(version), *cells))
    return _markdown_table(columns, lines)


def _reasons(table: pd.DataFrame) -> dict[str, list[str]]:
    """Collect why rows differ, or what the authors of a failing kernel may say: reason -> keys."""
    keys: dict[str, list[str]] = {}
    for row in table.to_dict("records"):
        if given(row.get("reason")):
            keys.setdefault(row["reason"], []).append(row["key"])
    return keys


def with_numbers(text: str, rows: pd.DataFrame, by: list[str]) -> str:
    """Put a table into the text of a find's page, between its two marks.

    Args:
        text: the page's. rows: of `finds.error_rows`, with the columns of the call.
        by: the columns that name the call, of BY.

    Raises:
        ValueError: the marks are missing.
    """
    names = [f"{name}: × Baseline" for name in WHO.values()]
    head, lines = [*by, *names, "kernel: relative error", "emulated: correlation of errors"], []
    for key, group in rows.groupby(by, sort=False):
        mean = group.groupby("who")[["times_max", "relative", "alike"]].mean().reindex(list(WHO))
        alike = mean.alike["emulated"]
        correlation = "–" if math.isnan(alike) else f"{alike:.4f}"
        lines.append((*map(str, key), *map(times, mean.times_max), power(mean.relative["kernel"]), correlation))
    return renewed(text, BEGIN, END, _markdown_table(head, lines), "text")


def of_one_tensor(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of a find's table that its page and its figure show: of three gradients those of dV."""
    return rows[rows.tensor == "dv"] if "tensor" in rows else rows


def drawn(
    table: pd.DataFrame, proofs: Mapping[str, pd.DataFrame], elsewhere: Mapping[str, pd.DataFrame] = NONE
) -> dict[str, Figure]:
    """Draw the figures "gallery", "gallery_all" and "gallery_finds".

    Args:
        table, elsewhere: as of `index`. proofs: find -> its table.
    """
    shown = {find: _on_the_axis(find, rows) for find, rows in proofs.items()}
    caption = "Uniform inputs, head_dim 64. Lines: mean over two seeds; bands: min to max. Horizontal line: the rule."
    tables = {
        device: rows.assign(found=[stated_cause(row) for row in rows.to_dict("records")])
        for device, rows in {"CPU": table, **elsewhere}.items()
    }
    return dict(
        gallery=plots.defects({device: rows for device, rows in tables.items() if device in ("CPU", ON_MODELLED)}),
        gallery_all=plots.every_path(tables, " ".join(_caption(device, rows) for device, rows in tables.items())),
        gallery_finds=plots.finds(shown, caption),
    )


def _caption(device: str, table: pd.DataFrame) -> str:
    """Write how the kernels of one device were called, and their versions."""
    cpu = "BF16 and FP16, else FP32; uniform and normal inputs; head_dim 64; two seeds, 128 to 16,384 keys"
    how = {"CPU": cpu, ON_MODELLED: "128 to 4,096 keys, one seed"}.get(device, "recorded")
    ran = table[table.verdict != "cannot_run"]
    versions = ", ".join(sorted({f"{row.project} {row.version}" for row in ran.itertuples()}))
    return f"{device}: {how}: {versions}."


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
    """Say in a few words why a kernel fails or differs, or that it is as good as its bits; "" where it passes.

    Args:
        row: of `causes.explained`, or of `judging.rows`.
    """
    if given(row.get("found")):
        return row["found"]
    if given(row.get("over_bits")) and row["verdict"] == "passes":
        return f"{times(row['over_bits'])} times the error that its 4 or 8 bits cost"
    if given(row.get("problem")):
        return row["problem"]
    findings = str(row.get("cause") or "").split() if row["verdict"] == "fails" else []
    return next((text for finding, text in CAUSES.items() if finding in findings), "")


def _bias(row, unit="", whose=""):
    """Write a row's bias, with Baseline's in brackets where the row has it; "" where the row has none."""
    if not given(row.get("outwards")):
        return ""
    baseline = f" ({whose}{row['baseline_outwards']:+.2f})" if given(row.get("baseline_outwards")) else ""
    return f"{row['outwards']:+.2f}{unit}{baseline}"


def given(value: T | None) -> TypeGuard[T]:
    """Say whether a table's cell has a value: it is no NaN, None or empty text."""
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def times(value: float | None) -> str:
    """Write a number of times for a table: two digits, ∞, or a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def power(value: float | None) -> str:
    """Write a relative error for a table: two digits, ∞, or a dash where there is none."""
    return "–" if not given(value) else "∞" if math.isinf(value) else f"{value:.1e}"


def literal(text: str) -> str:
    """Escape a text for Markdown, so that it is shown as it stands, whatever a stranger's kernel has printed in it."""
    return re.sub(r"[\\`*\[\]<>|~${}&]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=\bwww)\.", r"\\\g<0>", Untrusted(text))


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *lines = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *lines])


def _templates() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    templates.filters |= dict(literal=literal, times=times)
    templates.tests |= dict(given=given)
    return templates
