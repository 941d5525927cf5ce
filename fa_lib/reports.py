"""The three checks from start to end: examine, judge, draw, write a page: a kernel, captured tensors, a model."""

import importlib
import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from fa_lib import kernels
from fa_lib.check import tables, tensors
from fa_lib.check.apart import LIMIT_S, in_a_process, in_processes
from fa_lib.check.attempt import message, shown
from fa_lib.check.capture import captured
from fa_lib.check.findings import Judgement
from fa_lib.check.judge import judge_kernel
from fa_lib.check.judge_captured import judge_model, judge_tensors
from fa_lib.check.kernel import DEPTHS, Depth, examine
from fa_lib.check.model import Probe
from fa_lib.check.page_files import PageFiles
from fa_lib.check.report import Section, page
from fa_lib.check.skipped import place
from fa_lib.execution.files import replacing
from fa_lib.execution.results import provenance
from fa_lib.experiments.variant import known
from fa_lib.plots.kernel_report import kernel_report
from fa_lib.plots.model_report import model_report
from fa_lib.plots.tensors_report import tensors_report

FELLOWS = ("as_shipped", "every_step")  # emulated kernels beside the one that is judged


@dataclass(frozen=True)
class Report:
    """A check that has been made.

    Attributes:
        judgement: what was found. page: the HTML file; its tables are CSV files in the folder of the same name.
        record: findings, settings and versions, as JSON can hold them.
    """

    judgement: Judgement
    page: Path
    record: dict


def check_kernel(
    kernel: str, depth: Depth | str = "report", out: str | Path = "", device: str = "cpu", layout: str = "bhsd",
    limit: float = LIMIT_S, seed: int | None = None,
) -> Report:  # fmt: skip
    """Judge a kernel and write its page.

    Args:
        kernel: a registered kernel, which runs here; or package.module:function, which runs in a process of its own and
            is not imported here.
        depth: a Depth, or "quick" or "report".
        out: folder for the page; empty is build/reports.
        layout: of the kernel's tensors, of `kernels.LAYOUTS`.
        limit: seconds that a call may take in that process.
        seed: of the lengths, their inputs and the order of calls that a kernel cannot know before. None: another one at
            each judgement; its settings say which, as drawn_seed.

    Raises:
        ValueError: there is no such kernel, depth or layout; before anything is judged. An old page of the kernel's is
            gone then too.
    """
    known("layout", layout, kernels.LAYOUTS)
    kernel = kernel if layout == "bhsd" else f"{kernel}@{layout}"
    depth = known("depth", depth, DEPTHS) if isinstance(depth, str) else depth
    depth = replace(depth, drawn_seed=secrets.randbits(31) if seed is None else seed)
    files = PageFiles.of(out, kernel)
    files.clear()
    with in_a_process(kernel, limit) as alone:
        if alone is None:
            kernels.plain(kernel)
        else:
            alone.wait()
        found = examine(kernel, depth, device)  # nothing is kept: code that the kernel calls elsewhere may have changed
        found |= {} if alone is None else dict(conduct=alone.conduct())
    judgement = judge_kernel(kernel, found)
    d = ", ".join(map(str, found["lengths"].head_dim.unique())) if len(found["lengths"]) else "none"
    trouble = f"inputs that make trouble: N = {depth.troubled_n}, {depth.bias_seeds} seeds"
    caption = f"d = {d}; {depth.seeds} seeds; {trouble}."
    sections = [
        Section("What it can do", tables.by_call(found["asked"])),
        Section("How far it is from the golden value", tables.by_length(found["lengths"], kernel),
                "Mean over seeds of the root mean square and of the largest error, and the largest over Baseline's on "
                "the same outputs."),
        Section("Inputs that make trouble", tables.by_input(found["inputs"]),
                "The largest error over Baseline's, and the mean signed error away from zero (in ulp, with its 95 % "
                "interval over seeds), beside Baseline's."),
        Section("Shapes and masks", tables.by_shape(found["shapes"]),
                "The largest error over Baseline's, output and gradients; ! where it breaks the rule."),
        Section("Relations that every kernel keeps", tables.by_relation(found["relations"]),
                "How far two answers are apart, and how far two right ones may be (docs/checks.md)."),
    ]  # fmt: skip
    figure = kernel_report(judgement, found, caption)
    settings = dict(kernel=kernel, device=device) | asdict(depth)
    return _written(files, judgement, sections, figure, found, settings)


def check_tensors(
    path: str | Path, fmt: str = "", out: str | Path = "",
    names: tuple[str, ...] | None = None, device: str = "cpu",
) -> Report:  # fmt: skip
    """Judge captured tensors and write their page.

    Args:
        path: of a .safetensors, .npz or .pt file, as `tensors.read` takes it; fmt: to round them to first.
        names: kernels; the first is judged. None: the kernel that ran where the file holds its output, else torch's;
            and FELLOWS beside it.

    Raises:
        ValueError, OSError: the file cannot be read, or there is no such kernel; before anything runs.
    """
    files = PageFiles.of(out, Path(path).stem)
    files.clear()
    held = captured(path, fmt)
    if names is None:
        names = ("flash" if held.o is None else tensors.RAN, *FELLOWS)
    with in_processes(names):
        for name in names:
            if name != tensors.RAN:
                kernels.plain(name)
            elif held.o is None:
                raise ValueError(f"names: got {name!r}; {path} holds no o that is an answer to its q, k and v")
        q, k, v = (x.to(device) for x in (held.q, held.k, held.v))
        options = held.options | ({"mask": held.options["mask"].to(device)} if "mask" in held.options else {})
        ran = None if held.o is None else held.o.to(device)
        far = pd.DataFrame(tensors.deviations(q, k, v, options, list(names), ran))
    risky = pd.DataFrame(tensors.risks(q, k, v, options))
    better = {base: tensors.changes(q, k, v, options, base) for base in tensors.CARRIES}
    judgement = judge_tensors(list(names), risky, far, better, held.about)
    where = f"Captured at {place(held.about)}. " if "layer" in held.about else ""
    caption = (
        f"{where}{tuple(q.shape)} queries, {tuple(k.shape)} keys, {q.dtype}. Golden value from the inputs as they are."
    )
    sections = [
        Section("How risky each head is", tables.by_head(risky)),
        Section("Which change lowers the error", tables.by_change(better), "Root mean square error, before / after."),
    ]
    finite = {base: [row for row in rows if math.isfinite(row["times_less"])] for base, rows in better.items()}
    figure = tensors_report(judgement, risky, far, finite, caption)
    settings = dict(file=f"{path}", fmt=fmt, names=[*names], device=device) | {
        name: held.about[name] for name in ("model", "step", "layer", "call", "head") if name in held.about
    }
    return _written(files, judgement, sections, figure, dict(risks=risky, deviations=far), settings)


def check_model(
    function: str, out: str | Path = "", save: str | Path | None = None,
    names: tuple[str, ...] = ("as_shipped", "every_step"),
) -> Report:  # fmt: skip
    """Run a model under a Probe, judge its attention and write the page.

    Args:
        function: "package.module:function", that runs the model on a few batches; it is called without arguments.
        save: .safetensors file for the worst call's tensors.
        names: kernels computed beside the attention that runs.

    Raises:
        ValueError: there is no such function, or it raises; an argument of Probe does not fit.
    """
    files = PageFiles.of(out, function)
    files.clear()
    with in_processes(names):
        run, probe = _function(function), Probe(names, save=save)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Probe: ")  # its sentences say the same
                with probe:
                    run()
        except (Exception, SystemExit) as error:
            raise ValueError(f"function: {function} raises {shown(type(error).__name__)}: {message(error)}") from error
    judgement = judge_model(function, probe.table, probe.baseline, probe.skipped, probe.nonfinite)
    calls = f"{probe.calls} calls of attention; {probe.queries} rows of Q compared for each head of a call."
    figure = model_report(judgement, probe.table, calls)
    sections = [Section("Layer by layer", tables.by_layer(probe.table), "The largest error over Baseline's largest.")]
    settings = dict(function=function, names=[*names], calls=probe.calls, save=f"{save or ''}")
    return _written(files, judgement, sections, figure, dict(probe=probe.table), settings)


def _written(
    files: PageFiles, judgement: Judgement, sections: list[Section], figure: Any, found: Mapping[str, pd.DataFrame],
    settings: dict,
) -> Report:  # fmt: skip
    """Write the tables, the record, and the page."""
    if figure is not None:
        _literal(figure)
    versions = provenance(settings)
    for name, table in found.items():
        if table.empty:
            continue
        with replacing(files.folder / f"{name}.csv") as path:
            table.to_csv(path, index=False, float_format="%.7g")
    told = settings | {"torch": versions["versions"]["torch"], "python": versions["python"]}
    record = judgement.record() | versions
    files.write(record, page(judgement, sections, figure, told))
    if figure is not None:
        plt.close(figure)
    return Report(judgement, files.page, record)


def _literal(figure):
    """The names of strangers in a figure's title, caption and legends are neither formulas nor control characters."""
    legends = [ax.get_legend() for ax in figure.axes if ax.get_legend()]
    for text in (*figure.texts, *(each for legend in legends for each in legend.get_texts())):
        text.set_text("\n".join(map(shown, text.get_text().split("\n"))))
        text.set_parse_math(False)


def _function(name: str) -> Callable:
    """The function that "package.module:function" names."""
    accepted = "accepted is package.module:function, a function without arguments that runs the model"
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"function: got {name!r}; {accepted}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        where = "modules are looked for in the current folder and on PYTHONPATH"
        raised = f"{shown(type(error).__name__)}: {message(error)}"
        raise ValueError(f"function: got {name!r}; it cannot be had: {raised} ({where})") from error
    if not callable(found):
        raise ValueError(f"function: got {name!r}, a {type(found).__name__}; {accepted}")
    return found
