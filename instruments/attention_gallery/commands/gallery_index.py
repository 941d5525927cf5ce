"""The gallery's index: a table of every kernel, on a CPU, in a GPU's arithmetic, and as recorded on GPUs."""

import json
import os
import re
from collections.abc import Mapping, Set
from pathlib import Path

import pandas as pd

from attention_gallery.causes import explained
from attention_gallery.commands.gallery_rows import QUERIES
from attention_gallery.commands.gallery_words import found, given, power, times
from attention_gallery.experiments.finds import FINDS
from attention_gallery.implementations import JUDGED, counted
from fa_lib.execution.machine import instructions, processor
from fa_lib.execution.paths import ROOT
from fa_lib.execution.untrusted import Untrusted
from fa_lib.plots.recorded import NONE

TABLES, DOCS = ROOT / "data" / "gallery", ROOT / "docs" / "gallery"
RECORDED = "14_gallery"  # the table of kernels judged on another device
OTHERS = "other_versions"  # the table of `others`
BY = ("n", "queries", "threads", "splits", "distribution")  # columns of a find's table that name a row's call

VERDICTS = {
    "passes": "passes", "fails": "**fails**", "differs": "*differs*", "not_judged": "not judged",
    "cannot_run": "cannot run here",
}  # fmt: skip
ON_DEVICE = (
    "These kernels were judged there ([recorded](../gpu/recorded.md)): at 1 query and at 16 for up to "
    "16,384 keys, and at as many queries as keys for up to 1,024. That page says which relation one breaks. The "
    "findings of each are in `data/recorded/`."
)
ON_MODELLED = "GPUs that are modelled on a CPU"  # the title of the kernels of MODELLED
MODELLED_TEXT = (
    "`make gallery-gpu` ran these GPU kernels on a CPU, in the arithmetic of the GPU that is named "
    "([machine](../gpu/machine.md)), "
    "from their projects' archives by pinned hash: at 1 query and at 16 for up to 4,096 keys, and at as many queries "
    "as keys for up to 512; one seed. The column *as used* says when users run this code on such a GPU."
)
FINDS_ON_GPU = ("llama_cuda", "conch", "flashinfer", "flag_gems", "sglang_decode", "lmdeploy", "sageattention")
BEGIN, END = "<!-- numbers: made by `make gallery` -->", "<!-- end of numbers -->"
_RELATIVE = tuple(f"relative_{key}" for key in QUERIES)
WHO = {"kernel": "kernel", "emulated": "emulated", "changed": "control"}
PAGE = """# The gallery: shipped attention kernels, judged

<!-- made by `make gallery`, not by hand -->

Each kernel is called as a black box on a CPU, with the library's own code at the version named. Under "1 query",
"16" and "many" (as many as keys) stands the kernel's largest error over Baseline's: the worst over formats,
lengths, and uniform and normal inputs. Baseline stores S, P and O in the format; its softmax is in FP32. There are
up to 16,384 keys, and as many queries for up to 1,500. Our rule, after flash-attention's, allows 2; a right kernel that
rounds its scores to 16 bits exceeds it in 1 to 6 of some 4,100 single draws, and one draw alone fails a kernel only
beyond 4. (Pallas's kernels, flash-attention-jax and the compiled flex_attention are interpreted, or compiled anew for
every shape: they get up to 4,096 keys, and 512 queries. A kernel that takes one query a call gets at most 128
queries.) The relative error is the largest of the three. The bias is the mean error away from zero on
inputs made to show one, in ulp, with Baseline's own; a relation is one that every kernel should keep
([checks](../reference/checks.md)).

**Fails**: a defect of a documented use, on hardware where people use it. *Differs*: the judge found the same, but it is
a convention, an interpreter's arithmetic, or a documented default that trades bits; the reason stands under the table.
The cause of each was read in the project's source; file and line stand beside it
([data/gallery/causes.csv](../../data/gallery/causes.csv)).

![Each defect: largest error over Baseline's](../../figures/gallery.png)

A kernel that stores K and V in 4 or 8 bits is compared with exact attention on what its cache holds: it passes where
its error is at most twice as large, and a relation that such a cache breaks does not count. A row of queries that sees
no key is 0 by the rule; NaN and the mean of V are conventions, which do not count.

{counts}: CPU kernels and GPU kernels together.

These finds have a page of their own, with evidence, a reproduction and the text of a bug report: [ggml](find_ggml.md),
[ringattention](find_ringattention.md), [Pallas's decoding](find_pallas_decode.md), [OpenVINO](find_openvino.md),
[torch's gradients](find_torch_backward.md), and of GPU kernels [llama.cpp's CUDA kernels](find_llama_cuda.md),
[Conch](find_conch.md), [FlashInfer](find_flashinfer.md), [FlagGems](find_flag_gems.md),
[SGLang's decoding](find_sglang_decode.md), [LMDeploy's 8-bit cache](find_lmdeploy.md),
[SageAttention](find_sageattention.md). [All call paths in one picture](../../figures/gallery_all.png).

Judged on one processor: {processor}. Another may give other verdicts: with the hint f16 OpenVINO
computes in BF16 where there are instructions for BF16 alone, and in FP32, and passes, where there are none of either.

"""


def others(table: pd.DataFrame, folder: Path = TABLES) -> pd.DataFrame:
    """Read the committed rows of other versions of these kernels, which stay when a library is renewed.

    Args:
        table: of `judge_gallery.rows`; so is the result. folder: has verdicts.csv and other_versions.csv.
    """
    rows = pd.concat(pd.read_csv(folder / f"{name}.csv", dtype=dict(version=str)) for name in ("verdicts", OTHERS))
    another = rows.version != rows.key.map(dict(zip(table.key, table.version)))
    judged = rows.verdict.isin(("passes", "fails")) & rows.key.isin(table.key)
    return rows[another & judged].drop_duplicates(["key", "version"]).reset_index(drop=True)


def index(
    table: pd.DataFrame, elsewhere: Mapping[str, pd.DataFrame] = NONE, older: pd.DataFrame | None = None
) -> str:  # fmt: skip
    """Write the text of docs/gallery/index.md.

    Args:
        table: of `causes.explained`; so is older, of `others`. elsewhere: of `elsewhere`.
    """
    every = table if older is None else pd.concat([table, older])
    every = every.sort_values("key", key=lambda keys: keys.map(list(table.key).index), kind="stable")
    lines = [*_listed(every, set(table.key[table.verdict != "cannot_run"])), *_reasons(every)]
    toc = ["```{toctree}", ":hidden:", "", *(f"find_{find}" for find in (*FINDS, *FINDS_ON_GPU))]
    toc += [key for key, verdict in zip(table.key, table.verdict) if verdict != "cannot_run"]
    for device, other in elsewhere.items():
        if device == ON_MODELLED:
            own = list(other.key[other.verdict != "cannot_run"])
            toc += own
            lines += [
                "",
                "## GPU kernels, run without a GPU",
                "",
                MODELLED_TEXT,
                "",
                *_listed(other, set(own)),
                *_reasons(other),
            ]
        else:
            lines += ["", f"## Recorded on {device}", "", ON_DEVICE, "", *_listed(other), *_reasons(other)]
    toc.append("```")
    together = [table, *(other for device, other in elsewhere.items() if device == ON_MODELLED)]
    counts = f"{counted(row for rows in together for row in rows.to_dict('records'))}"
    parameters = json.loads((TABLES / "provenance.json").read_text())["parameters"]
    page = PAGE.format(counts=counts, processor=literal(parameters["processor"]))
    return page + "\n".join(lines) + "\n\n" + "\n".join(toc) + "\n"


def judged_on() -> str:
    """Name the processor that judges, with its instructions for formats, and what limits them for oneDNN."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")  # OpenVINO then knows no other instructions
    known = [*instructions(), *([f"ONEDNN_MAX_CPU_ISA={limit}"] if limit else [])]
    return f"{processor()} ({', '.join(known) or 'unknown'})"


def committed(name: str) -> pd.DataFrame:
    """Read a table of `judge_gallery.rows` from data/gallery; only an empty cell is NaN."""
    return pd.read_csv(TABLES / f"{name}.csv", keep_default_na=False, na_values=[""])


def elsewhere(on_devices: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the `explained` tables of kernels that are not a CPU's: device -> rows, those in a GPU's arithmetic first,
    then those that were recorded on devices."""
    there = (TABLES / "modelled.csv").exists()
    modelled = {ON_MODELLED: explained(committed("modelled"), "modelled")} if there else {}
    return modelled | {device: explained(rows, device) for device, rows in on_devices.items()}


def _listed(table, pages: Set[str] = frozenset()):
    """Write a Markdown table: a line for each kernel and version; a kernel's first line links to its page, if any."""
    columns = ("kernel", "version", "1 query", "16", "many", "relative error", "gradients", "bias (Baseline's)",
               "relations", "verdict", "found", *(["GPU", "as used"] if "as_used" in table else []))  # fmt: skip
    lines, linked = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)], set()
    for row in table.to_dict("records"):
        numbers = [times(row.get(name)) for name in ("times_1", "times_16", "times_many")]
        relative = max((row[name] for name in _RELATIVE if given(row.get(name))), default=None)
        numbers += [power(relative), times(row.get("gradients")), bias_words(row) or "–"]
        name = f"[{row['key']}]({row['key']}.md)" if row["key"] in pages - linked else row["key"]
        linked.add(row["key"])
        version = row["version"] if given(row["version"]) else ""
        ran = row["verdict"] in JUDGED
        broken = "not counted" if given(row.get("over_bits")) else "breaks one"
        relations = "–" if not ran else broken if "relation" in str(row.get("cause")).split() else "kept"
        source = f" ({row['source']})" if given(row.get("source")) else ""
        cells = (*numbers, relations, VERDICTS[row["verdict"]], literal(f"{found(row)}{source}"))
        cells += (row["gpu"], literal(row["as_used"])) if "as_used" in table else ()
        lines.append("| " + " | ".join((f"{row['project']}: {name}", literal(version), *cells)) + " |")
    return lines


def _reasons(table):
    """Write why rows differ, or what the authors of a failing kernel may say: a line for each reason."""
    keys: dict[str, list[str]] = {}
    for row in table.to_dict("records"):
        if given(row.get("reason")):
            keys.setdefault(row["reason"], []).append(row["key"])
    lines = [f"- {', '.join(same)}: {literal(reason)}" for reason, same in keys.items()]
    return ["", *lines] if lines else []


def bias_words(row, unit="", whose=""):
    """Write a row's bias, with Baseline's in brackets where the row has it; "" where the row has none."""
    if not given(row.get("outwards")):
        return ""
    own = f" ({whose}{row['baseline_outwards']:+.2f})" if given(row.get("baseline_outwards")) else ""
    return f"{row['outwards']:+.2f}{unit}{own}"


def literal(text: str) -> str:
    """Escape a text for Markdown, so that it is shown as it stands, whatever a stranger's kernel has printed in it."""
    return re.sub(r"[\\`*\[\]<>|~${}&]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=\bwww)\.", r"\\\g<0>", Untrusted(text))
