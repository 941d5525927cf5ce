"""The gallery's pages: a table of every kernel, a page for each, and the numbers of the finds."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fa_lib.check.isolation.untrusted import Untrusted
from fa_lib.check.judge.findings import Judgement
from fa_lib.check.report.sentences import sentences_of
from fa_lib.commands import judge_gallery
from fa_lib.commands.gallery_words import found, given, power, times
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.machine import instructions, processor
from fa_lib.execution.paths import CHECKOUT, ROOT, build
from fa_lib.execution.results import provenance, recorded, save_figure
from fa_lib.experiments.finds import FINDS
from fa_lib.gallery.catalogue import ENTRIES
from fa_lib.plots import gallery as plots
from fa_lib.plots.recorded import NONE

TABLES, DOCS = ROOT / "data" / "gallery", ROOT / "docs" / "gallery"
RECORDED = "14_gallery"  # the table that `fa-lib dev record` leaves of kernels on another device
OTHERS = "other_versions"  # the table of `others`
BY = ("n", "queries", "threads", "splits", "distribution")  # columns of a find's table that name a row's call

VERDICTS = {"passes": "passes", "fails": "**fails**", "not_judged": "not judged", "cannot_run": "cannot run here"}
ON_DEVICE = (
    "`fa-lib dev record` judged these kernels there ([gpu.md](../gpu.md)): at 1 query and at 16 for up to 16,384 keys, "
    "and at as many queries as keys for up to 1,024. The findings of each are in `data/recorded/`."
)
BEGIN, END = "<!-- numbers: made by `make gallery` -->", "<!-- end of numbers -->"
_RELATIVE = tuple(f"relative_{key}" for key in judge_gallery.QUERIES)
WHO = {"kernel": "kernel", "emulated": "emulated", "changed": "one type changed"}
PAGE = """# The gallery: shipped attention kernels, judged

<!-- made by `make gallery`, not by hand -->

Each kernel is called as a black box on a CPU, with the library's own code at the version named. Numbers are the
largest error over Baseline's (attention whose matrices S, P and O are stored in the format), at one query and at 16,
for up to 16,384 keys, and at as many queries as keys, for up to 1,500; the worst of the formats, lengths, and uniform
and normal inputs. The rule of the field allows 2. (Pallas's kernels, flash-attention-jax and the compiled
flex_attention are interpreted, or compiled anew for every shape: they are asked for up to 4,096 keys, and 512
queries. A kernel that takes one query a call is asked for 128.) The relative error is the largest of the three. The
bias is the mean error away from zero on inputs made to show one, in ulp, with Baseline's own; a relation is one that
every kernel should keep ([checks](../checks.md)).

![Largest errors of shipped kernels over Baseline's, at 1, 16 and many queries](../../figures/gallery.png)

`ggml_prefill` and `whisper_prefill` fail by their calls of 1 and 16 queries, which take the way of decoding; called
for as many queries as keys, as for a prompt, they do not.

A quantised cache (`ggml_q8_0`, `ggml_q4_0`) fails by the bits it stores K and V with, and not by its sums; the rule
is meant for kernels that hold K and V in the format. Where a row says "rounds partial results", an emulation that does
so has the kernel's errors.

Four finds have a page of their own, with two proofs and a reproduction: [ggml](find_ggml.md),
[ringattention](find_ringattention.md), [Pallas's decoding](find_pallas_decode.md), [OpenVINO](find_openvino.md).

Judged on one processor: {processor} ({instructions}). Another may give other verdicts: OpenVINO computes FP16 in BF16
where there are instructions for BF16 alone, and in FP32, and passes, where there are none of either.

"""


def others(table: pd.DataFrame, folder: Path = TABLES) -> pd.DataFrame:
    """Read the committed rows of other versions of these kernels, which stay when a library is renewed.

    Args:
        table: of `judge_gallery.rows`; so is the result. folder: has verdicts.csv and other_versions.csv.
    """
    committed = pd.concat(pd.read_csv(folder / f"{name}.csv", dtype=dict(version=str)) for name in ("verdicts", OTHERS))
    another = committed.version != committed.key.map(dict(zip(table.key, table.version)))
    judged = committed.verdict.isin(("passes", "fails")) & committed.key.isin(table.key)
    return committed[another & judged].drop_duplicates(["key", "version"]).reset_index(drop=True)


def index(
    table: pd.DataFrame, elsewhere: Mapping[str, pd.DataFrame] = NONE, older: pd.DataFrame | None = None
) -> str:  # fmt: skip
    """Write the text of docs/gallery/index.md.

    Args:
        table: of `judge_gallery.rows`. elsewhere: device -> the table of `fa-lib dev record` there. older: of `others`.
    """
    every = table if older is None else pd.concat([table, older])
    every = every.sort_values("key", key=lambda keys: keys.map(list(table.key).index), kind="stable")
    lines = _listed(every, set(table.key[table.verdict != "cannot_run"]))
    for device, other in elsewhere.items():
        lines += ["", f"## Recorded on {device}", "", ON_DEVICE, "", *_listed(other)]
    toc = ["```{toctree}", ":hidden:", "", *(f"find_{find}" for find in FINDS)]
    toc += [key for key, verdict in zip(table.key, table.verdict) if verdict != "cannot_run"] + ["```"]
    page = PAGE.format(
        processor=literal(processor()), instructions=", ".join(map(literal, instructions())) or "unknown"
    )
    return page + "\n".join(lines) + "\n\n" + "\n".join(toc) + "\n"


def _listed(table, pages: Set[str] = frozenset()):
    """Write a Markdown table: a line for each kernel and version; a kernel's first line links to its page, if any."""
    columns = ("kernel", "version", "1 query", "16", "many", "relative error", "gradients", "bias (Baseline's)",
               "relations", "verdict", "found")  # fmt: skip
    lines, linked = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)], set()
    for row in table.to_dict("records"):
        numbers = [times(row.get(name)) for name in ("times_1", "times_16", "times_many")]
        relative = max((row[name] for name in _RELATIVE if given(row.get(name))), default=None)
        numbers += [power(relative), times(row.get("gradients")), _bias(row) or "–"]
        name = f"[{row['key']}]({row['key']}.md)" if row["key"] in pages - linked else row["key"]
        linked.add(row["key"])
        version = row["version"] if given(row["version"]) else ""
        ran = row["verdict"] in ("passes", "fails")
        relations = "–" if not ran else "breaks one" if "relation" in str(row.get("cause")).split() else "kept"
        cells = (*numbers, relations, VERDICTS[row["verdict"]], literal(found(row)))
        lines.append("| " + " | ".join((f"{row['project']}: {name}", literal(version), *cells)) + " |")
    return lines


def _bias(row, unit="", whose=""):
    """Write a row's bias, with Baseline's in brackets where the row has it; "" where the row has none."""
    if not given(row.get("outwards")):
        return ""
    own = f" ({whose}{row['baseline_outwards']:+.2f})" if given(row.get("baseline_outwards")) else ""
    return f"{row['outwards']:+.2f}{unit}{own}"


def page(row: Mapping, judgement: Judgement | None) -> str:
    """Write the text of docs/gallery/<key>.md: how a kernel is called in real use, its verdict, and its findings.

    Args:
        row: of `judge_gallery.rows`. judgement: the kernel's; None where it has only a problem.
    """
    sentences = [one for group in sentences_of(judgement).values() for one in group] if judgement else []
    texts = [" ".join(filter(None, (one.line, one.more, one.remedy))) for one in sentences] or [f"It {row['problem']}."]
    items = [f"- {literal(text)}" for text in texts]
    bias = _bias(row, " ulp", "Baseline's own: ")
    bias = f"\nMean signed error away from zero, the largest that is no chance: {bias}.\n" if bias else ""
    errors = [
        f"| {words} | {times(row.get(f'times_{key}'))} | {power(row.get(f'relative_{key}'))} |"
        for key, words in judge_gallery.QUERIES.items()
    ]
    return "\n".join([
        f"# {row['project']}: {row['key']}", "", "<!-- made by `make gallery`, not by hand -->", "",
        f"Version {row['version']}. In real use: {row['use']}.", "",
        f"Verdict: {VERDICTS[row['verdict']]}. `fa-lib check kernel gallery:{row['key']}` makes a page with a figure.",
        "", "| queries | largest error over Baseline's | largest relative error |", "|---|---|---|", *errors, bias,
        *items, "",
    ])  # fmt: skip


def literal(text: str) -> str:
    """Escape a text for Markdown, so that it is shown as it stands, whatever a stranger's kernel has printed in it."""
    return re.sub(r"[\\`*\[\]<>|~${}&]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=\bwww)\.", r"\\\g<0>", Untrusted(text))


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


def make(only: Sequence[str], quick: bool, jobs: int, say: Callable) -> None:
    """Judge kernels of the gallery and print a line for each. When all are judged, renew the committed files:
    data/gallery, docs/gallery and figures/gallery*.

    Args:
        only: keys of kernels; empty is all of them, or five if quick. quick: whether by the plan "quick".
        jobs: kernels at a time. say: gets each line.

    Raises:
        ValueError: a key is unknown, or all are to be judged and there is no checkout.
    """
    everything = not only and not quick
    if everything and CHECKOUT is None:
        raise ValueError("gallery: there is no checkout to renew here; accepted are names of kernels, or --quick")
    depth = "quick" if quick else "full"
    manner = judge_gallery.JudgingSettings(f"{build() / 'gallery' / depth}", depth)
    keys = list(only) or (judge_gallery.FIVE if quick else list(ENTRIES))
    table = judge_gallery.judge_all(keys, manner, say, jobs)
    for row in table.to_dict("records"):
        say(summary_line(row))
    if everything:
        say("the finds")
        proofs = judge_gallery.prove(f"{Path(manner.folder) / 'cells'}", jobs)
        for find in FINDS.keys() - proofs.keys():
            say(f"{find}: kept as it was; this processor computes it otherwise")
        publish(table, proofs_kept() | proofs, manner)
        say("data/gallery, docs/gallery and figures/gallery are new; see `git status`")


def proofs_kept() -> dict[str, pd.DataFrame]:
    """Read find -> its committed table, for the finds that have one; columns as of `experiments.finds.error_rows`."""
    paths = {find: TABLES / f"{find}.csv" for find in FINDS}
    return {find: pd.read_csv(path) for find, path in paths.items() if path.exists()}


def summary_line(row: Mapping) -> str:
    """Write a row of `judge_gallery.rows` on one line."""
    numbers = ", ".join(f"{words} {times(row.get(f'times_{key}'))}" for key, words in judge_gallery.QUERIES.items())
    return f"{row['key']}: {row['verdict']}; {numbers}; {Untrusted(found(row))}".rstrip("; ")


def publish(table: pd.DataFrame, proofs: Mapping[str, pd.DataFrame], manner: judge_gallery.JudgingSettings) -> None:
    """Write tables, figures and pages of the whole gallery into the checkout. proofs: find -> its table."""
    assert CHECKOUT is not None  # `make` refuses to publish without one
    older = others(table)
    for name, each in (dict(verdicts=table, **proofs) | {OTHERS: older}).items():
        with replacing(TABLES / f"{name}.csv") as path:
            each.to_csv(path, index=False, float_format="%.5g")
    with replacing(TABLES / "provenance.json") as path:
        path.write_text(json.dumps(provenance(dict(kernels=list(table.key))), indent=1) + "\n")
    elsewhere = recorded(RECORDED)
    for name, figure in drawn(table, proofs, elsewhere).items():
        save_figure(figure, CHECKOUT / "figures" / name)
    judgements = {key: judge_gallery.judgement_of(key, manner) for key in table.key[table.verdict != "cannot_run"]}
    write(table, judgements, DOCS, elsewhere, older)
    for find, rows in proofs.items():
        page = DOCS / f"find_{find}.md"
        text = with_numbers(page.read_text(), rows, [name for name in BY if name in rows])
        with replacing(page) as path:
            path.write_text(text)


def drawn(
    table: pd.DataFrame, proofs: Mapping[str, pd.DataFrame], elsewhere: Mapping[str, pd.DataFrame] = NONE
) -> dict[str, Figure]:
    """Draw the figures "gallery" and "gallery_finds".

    Args:
        table, elsewhere: as of `index`. proofs: find -> its table.
    """
    caption = (
        "BF16 and FP16, else FP32; uniform and normal inputs; two seeds; 128 to 16,384 keys (as many queries as keys: "
        f"to 1,500); head_dim 64. On a CPU; Pallas in its interpreter. {_versions(table)}."
    )
    shown = {find: _on_the_axis(find, rows) for find, rows in proofs.items()}
    words = "Uniform inputs, head_dim 64. Lines: mean over two seeds; bands: min to max. Horizontal line: the rule."
    others = {device: _with_words(other) for device, other in elsewhere.items()}
    for device, other in others.items():
        caption += f" Below, recorded on {device}, as many queries as keys to 1,024: {_versions(other)}."
    return dict(gallery=plots.gallery(_with_words(table), caption, others), gallery_finds=plots.finds(shown, words))


def _versions(table):
    ran = table[table.verdict != "cannot_run"]
    return ", ".join(sorted({f"{row.project} {row.version}" for row in ran.itertuples()}))


def _with_words(table):
    return table.assign(found=[found(row) for row in table.to_dict("records")])


def _on_the_axis(find, rows):
    rows = rows[rows.distribution == "uniform"]
    return rows[(rows.queries == 1) & (rows.threads == 2)] if find == "ggml" else rows


def write(
    table: pd.DataFrame, judgements: Mapping[str, Judgement | None], folder: Path,
    elsewhere: Mapping[str, pd.DataFrame] = NONE, older: pd.DataFrame | None = None,
) -> None:  # fmt: skip
    """Write index.md and a page for each kernel that could run into a folder; remove pages of kernels that are gone.

    Args:
        table, elsewhere, older: as of `index`. judgements: key -> judgement or None, for each kernel with a page.
    """
    pages = {
        row["key"]: page(row, judgements[row["key"]]) for row in table.to_dict("records") if row["key"] in judgements
    }
    for name, text in (pages | dict(index=index(table, elsewhere, older))).items():
        with replacing(folder / f"{name}.md") as path:
            path.write_text(text)
    for old in folder.glob("*.md"):
        if old.stem not in pages and old.stem != "index" and not old.stem.startswith("find_"):
            old.unlink()
