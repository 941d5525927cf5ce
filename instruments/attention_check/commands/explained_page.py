"""The files of an explanation: a page, the worst rows with a script that reads them, and a paragraph for an issue."""

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows
from attention_check.conventions.conventions import what
from attention_check.conventions.reading import CapturedCall, Unfit
from attention_check.conventions.search import rounding_of
from attention_check.explain.distance import Scan, scan
from attention_check.explain.explain_words import MEANINGS, gravest, groups, lines
from attention_check.explain.verdict import Explanation, Verdict
from attention_check.plots.wrong_rows import wrong_rows
from attention_check.report.page import png, rendered
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import date
from fa_lib.execution.results import versions

TEMPLATE = Path(__file__).parents[1] / "explain" / "explanation.html.jinja"
MARKDOWN = """**{headline}**

{tensors}. {options}

{evidence}
"""
REPRODUCED = """
The worst rows of a head, with their keys, are in `{arrays}` (attached). With numpy alone:

```python
{script}```

prints

```
{printed}```
"""


def issue(call: CapturedCall, gravest: str, lines: list[str], arrays: str, script: str, printed: str) -> str:
    """The paragraph, in Markdown.

    Args:
        gravest: the line that comes first. lines: of `explain_words.lines`. arrays: the name of the reproduction's
            file. script, printed: its program, and what that prints; "" where there is none.
    """
    tensors = ", ".join(f"{name} {tuple(getattr(call, name).shape)}" for name in "qkvo")
    text = MARKDOWN.format(
        headline=gravest, tensors=f"{tensors}, inputs in {call.fmt.name}, o in {_dtype(call.o)}",
        options=f"Called with {options_in_words(call.options)}." if call.options else "Called without options.",
        evidence="\n".join(f"- {line.strip()}" for line in lines if line != gravest),
    )  # fmt: skip
    return text + (REPRODUCED.format(arrays=arrays, script=script, printed=printed) if script else "")


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options of a call, "" where there are none: "causal=True, mask=bool (256, 256)"."""
    return ", ".join(
        f"{name}={_dtype(x)} {tuple(x.shape)}" if isinstance(x, Tensor) else f"{name}={x}"
        for name, x in options.items()
    )


def _dtype(x):
    return str(x.dtype).removeprefix("torch.")


ROWS = 8  # of the head that is furthest off
SCRIPT = """import numpy as np

x = np.load("{file}")  # rows {rows} of head {head}, entry {entry} of the batch
for reading, scale, softcap in {readings}:
    q, k, v, o, bias, sink = (x[f"{{reading}}_{{name}}"] for name in ("q", "k", "v", "o", "bias", "sink"))
    S = scale * (q @ k.T)
    S = (softcap * np.tanh(S / softcap) if softcap else S) + bias  # -inf hides a key
    m = np.maximum(S.max(-1, keepdims=True), sink)
    P = np.exp(S - m)
    attention = P / (P.sum(-1, keepdims=True) + np.exp(sink - m)) @ v
    error = np.abs(o - attention).max()
    print(f"{{reading}}: |o - attention| is up to {{error:.3g}}, |attention| up to {{np.abs(attention).max():.3g}}")
"""


def reproduction(
    call: CapturedCall, readings: Mapping[str, Dialect], scans: Mapping[Dialect, Scan], file: str
) -> tuple[dict[str, np.ndarray], str] | None:
    """The worst rows as believed, and the same rows in other dialects, where they have the same layout; None where the
    script's attention is none of them.

    Args:
        readings: "as_believed" (if its shapes make a call), "as_read", "wrong_part" -> its dialect, in this order.
        scans: of these, all rows; of "wrong_part" none is needed. file: name of the arrays' file, .npz.

    Returns:
        "as_believed_q", "as_read_q" ... -> float64, of the worst rows of one head: q, o (rows, d), k, v (keys, d), bias
        (rows, keys), sink (), which is -inf where there is none, without keys that no row sees; and a program that
        reads them from the file, and prints how far o is off in each reading.
    """
    shown, arrays, at, layout = [], {}, None, ""
    for name, dialect in readings.items():
        if not dialect.is_standard or dialect.factor != 1:
            continue
        if at is None or dialect.layout != layout:
            if dialect not in scans:
                continue
            at, layout = _worst(scans[dialect]), dialect.layout
        entry, head, rows_at = at
        rows = call.rows(dialect, places=(torch.tensor([entry]), torch.tensor([head]), rows_at))
        arrays |= {f"{name}_{key}": x for key, x in _arrays(rows).items()}
        shown.append((name, rows.scale, rows.softcap))
    if at is None or not len(at[2]):
        return None
    entry, head, rows_at = at
    where = dict(rows=", ".join(map(str, rows_at.tolist())), head=head, entry=entry)
    return arrays, SCRIPT.format(file=file, readings=tuple(shown), **where)


def _worst(scan: Scan) -> tuple[int, int, Tensor]:
    """The entry, the head and the rows that are furthest off."""
    residual_by_row = scan.residual_by_row.nan_to_num(-1.0, posinf=math.inf)
    entry, head = divmod(int(residual_by_row.amax(-1).argmax()), residual_by_row.shape[1])
    entries, heads, rows_at = scan.places
    counted = int((residual_by_row[entry, head] >= 0).sum())  # the others see no key, or nothing that is finite
    worst = residual_by_row[entry, head].topk(min(ROWS, counted)).indices
    return int(entries[entry]), int(heads[head]), rows_at[worst].sort().values


def _arrays(rows: Rows) -> dict[str, np.ndarray]:
    q, k, v, o, bias = (x[0, 0] for x in (rows.q, rows.k, rows.v, rows.o, rows.bias))
    seen = (bias > -math.inf).any(0)
    found = dict(q=q, k=k[seen], v=v[seen], o=o, bias=bias[:, seen])
    return {name: x.numpy() for name, x in found.items()} | dict(sink=rows.sinks.numpy().reshape(()))


def write_explained(page: Path, call: CapturedCall, found: Explanation, name: str, source: str) -> None:
    """Write the worst rows (.npz), a program that reads them (.py), a paragraph for an issue (.md), and the page last,
    beside which the others lie, by its stem.

    Args:
        page: the HTML file. name: of the output, "o" or "o_ref". source: of the tensors, in words.
    """
    arrays_file, script_file = (page.with_name(f"{page.stem}_rows.{ext}") for ext in ("npz", "py"))
    issue_file = page.with_name(f"{page.stem}_issue.md")
    for old in (page, arrays_file, script_file, issue_file):
        old.unlink(missing_ok=True)
    scans = _scans(call, found)
    names = ("as_believed", "as_read") if Dialect() in scans else ("as_read",)
    readings: dict[str, Dialect] = {name: dialect for name, dialect in zip(names, scans)}
    if found.part is not None:
        readings["wrong_part"] = Dialect(**found.part)
    shown = "", ""  # a script, and what it prints when it is run
    if worst := reproduction(call, readings, scans, arrays_file.name):
        arrays, script = worst
        with replacing(arrays_file) as path, path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
        with replacing(script_file) as path:
            path.write_text(script)
        ran = [sys.executable, script_file.name]
        shown = script, subprocess.run(ran, cwd=page.parent, capture_output=True, text=True, check=True).stdout
    text = groups(found, name)
    verdict, first = gravest(text)
    paragraph = issue(call, f"{verdict.name}: {first}", lines(found, name), arrays_file.name, *shown)
    with replacing(issue_file) as path:
        path.write_text(paragraph, encoding="utf-8")
    about = dict(File=source, Output=name) | _about(call)
    attachment = arrays_file.name if worst else ""
    html = _page(found, text, scans, rounding_of(call, [*scans][-1]), about, paragraph, attachment)
    with replacing(page) as path:
        path.write_text(html, encoding="utf-8")


def _scans(call: CapturedCall, found: Explanation) -> dict[Dialect, Scan]:
    """All rows beside the believed dialect, where its shapes make a call, and beside the one that was found."""
    scans = {}
    for dialect in dict.fromkeys((Dialect(), Dialect(**found.dialect))):
        try:
            scans[dialect] = scan(call, call.rows(dialect))
        except Unfit:
            continue
    return scans


def _about(call: CapturedCall) -> dict[str, str]:
    tensors: dict[str, list[str]] = {}  # shape -> the tensors that have it
    for name, x in [*((name, getattr(call, name)) for name in "qkvo"), *call.others.items()]:
        tensors.setdefault(f"{tuple(x.shape)}", []).append(name)
    shapes = {", ".join(names): shape for shape, names in tensors.items()}
    by = {"Explained by": f"fa_lib, torch {versions()['torch']}", "Date": date()}
    return shapes | {"Inputs": call.fmt.name, "Options": options_in_words(call.options) or "none"} | by


def _page(
    found: Explanation, text: list[tuple[Verdict | None, list[str]]], scans: dict[Dialect, Scan], rounding: float,
    about: dict[str, str], paragraph: str, attachment: str,
) -> str:  # fmt: skip
    readings = {
        f"read as {what(dialect.changes())}" if dialect.changes() else "read as you believe it": (
            each.residual_by_row, each.places[2]) for dialect, each in scans.items()
    }  # fmt: skip
    figure = wrong_rows(readings, rounding)
    picture = png(figure)
    plt.close(figure)
    verdict, headline = gravest(text)
    return rendered(
        TEMPLATE, verdict=verdict.value, headline=headline,
        meaning=MEANINGS[verdict] if verdict == found.verdict else "",
        groups=[(each or "", [line for line in group if line != headline]) for each, group in text],
        about=about, output=about["Output"],
        picture=picture, picture_alt=f"{text[0][1][0]} Relative error by head and row.",
        tried=[(what(one) if one else "as believed", f"{off:.2g}") for one, off in found.tried],
        issue=paragraph.splitlines(), attachment=attachment,
    )  # fmt: skip
