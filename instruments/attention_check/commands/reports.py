"""The three checks from start to end: examine, judge, draw, write a page: a kernel, captured tensors, a model."""

import math
import platform
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from attention_check.isolation.calls import judged_by_one_thread
from attention_check.isolation.isolated_kernel import LIMIT_S, all_isolated, conduct, isolated, wait
from attention_check.isolation.kernel_file import function_of
from attention_check.judge.captured import judge_model, judge_tensors
from attention_check.judge.findings import Judgement
from attention_check.judge.kernel import judge_kernel
from attention_check.measure import captured as tensors
from attention_check.measure.captured import gradients
from attention_check.measure.closeness import WorstCall
from attention_check.measure.examine import examine
from attention_check.measure.examine_tensors import examine_tensors
from attention_check.measure.plan import PLANS, CheckPlan
from attention_check.plots.kernel_report import kernel_panels
from attention_check.plots.model_report import model_panels
from attention_check.plots.tensors_report import shortened, tensors_panels
from attention_check.probe.capture import AS_IT_IS, captured
from attention_check.probe.named_tensors import Reading
from attention_check.probe.probe import Probe
from attention_check.probe.skipped import place
from attention_check.report.labels import named
from attention_check.report.page import Section, page
from attention_check.report.page_files import PageFiles
from attention_check.report.sections import kernel_sections, model_sections, tensors_sections
from fa_lib import kernels
from fa_lib.execution import reader_modules
from fa_lib.execution.files import replacing
from fa_lib.execution.lookup import lookup
from fa_lib.execution.machine import date, installed, package, processor
from fa_lib.execution.results import provenance, versions
from fa_lib.execution.untrusted import Untrusted, message, type_name
from fa_lib.kernels.kernel_ref import KernelRef, label_of
from fa_lib.kernels.rule import REFERENCE_KERNELS
from fa_lib.numerics.formats import Format


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
    kernel: KernelRef | str, depth: CheckPlan | str = "report", out: str | Path = "", device: str = "cpu",
    layout: str = "bhsd", timeout: float = LIMIT_S, seed: int | None = None,
) -> Report:  # fmt: skip
    """Judge a kernel and write its page.

    Args:
        kernel: a KernelRef or the text of one: a registered kernel runs here; that of a module runs in a separate
            process and is not imported here.
        depth: a CheckPlan, or "quick" or "report".
        out: folder for the page; empty is build/reports.
        layout: of the kernel's tensors, of `kernels.LAYOUTS`, where `kernel` is a text. A kernel that is asked for in
            "bhsd" and reads "bshd" is judged so.
        timeout: seconds that a call may take in that process.
        seed: of the lengths, their inputs and the order of calls that a kernel cannot know before. None: another one at
            each judgement; its settings say which, as drawn_seed.

    Raises:
        ValueError: there is no such kernel, depth or layout; before anything is judged. An old page of the kernel's is
            gone then too.
    """
    lookup("layout", layout, kernels.LAYOUTS)
    kernel = KernelRef.of(kernel, layout=layout)
    named = depth if isinstance(depth, str) else "its own"
    plan: CheckPlan = lookup("depth", depth, PLANS) if isinstance(depth, str) else depth
    plan = replace(plan, drawn_seed=secrets.randbits(31) if seed is None else seed)
    files = PageFiles.of(out, kernel.label)
    files.clear()
    with isolated(kernel, timeout) as kernel:
        wait(kernel)
        with judged_by_one_thread():  # nothing is kept: code that the kernel calls elsewhere may have changed
            found = examine(kernel, plan, device)
        found = replace(found, conduct=conduct(kernel))
    judgement = judge_kernel(kernel, found)
    judged = KernelRef.of(judgement.subject)
    about = {"Kernel": judged.bare.label, "Package": _version(judged)} | _here(device)
    d = ", ".join(map(str, found.lengths.head_dim.unique())) if len(found.lengths) else "none"
    n = sorted(found.lengths.n.unique()) if len(found.lengths) else plan.lengths
    about |= {
        "Depth": named,
        "Layout": "bshd" if "bshd" in judged.readings else kernel.layout,
        "Lengths N": n,
        "head_dim": d,
    }
    about |= {"Seeds": f"{plan.seeds}; {plan.bias_seeds} of inputs that make trouble, N = {plan.troubled_n}"}
    about |= {"Drawn anew": f"{len(plan.drawn)} lengths and the order of calls; --seed {plan.drawn_seed} repeats them"}
    settings = dict(kernel=judgement.label, device=device) | asdict(plan)
    sections, panels = kernel_sections(judgement.subject, found), kernel_panels(judgement, found)
    return _written(files, judgement, sections, panels, found.items(), about, settings)


def check_tensors(
    path: str | Path, reading: Reading = AS_IT_IS, out: str | Path = "",
    names: Sequence[KernelRef | str] | None = None,
    device: str = "cpu",
) -> Report:  # fmt: skip
    """Judge captured tensors and write their page.

    Args:
        path, reading: of a .safetensors, .npz or .pt file, as `capture.captured` takes them.
        names: kernels; the first is judged. None: the kernel that ran where the file holds its output, else torch's;
            and REFERENCE_KERNELS beside it.

    Raises:
        ValueError, OSError: the file cannot be read, or there is no such kernel; before anything runs.
    """
    files = PageFiles.of(out, Path(path).stem)
    files.clear()
    held = captured(path, reading)
    if names is None:
        if "without_o" in held.about:
            fmt = held.about["without_o"]
            raise ValueError(
                f"format: rounding q, k and v to {fmt} changes them, so that the o of {path} is no answer to them; "
                "accepted is the file's own format, or a --kernel to judge"
            )
        names = ("flash" if held.o is None else tensors.RAN, *REFERENCE_KERNELS)
    if tensors.RAN in names and held.o is None:
        raise ValueError(f"names: got {tensors.RAN!r}; {path} holds no o that is an answer to its q, k and v")
    with all_isolated([KernelRef.of(name) for name in names if name != tensors.RAN]) as loaded:
        here = iter(loaded)
        subjects = [tensors.RAN if name == tensors.RAN else next(here) for name in names]
        q, k, v = (x.to(device) for x in (held.q, held.k, held.v))
        options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in held.options.items()}
        ran = None if held.o is None else held.o.to(device)
        answers = tensors.answered(q, k, v, options, subjects, ran)
        back = pd.DataFrame()
        judged, behaved = subjects[0], pd.DataFrame()
        if isinstance(judged, KernelRef):
            if held.dO is not None:
                back = pd.DataFrame(gradients(q, k, v, held.dO.to(device), options, judged))
            behaved = conduct(judged)
    keys = tuple(answers)
    found = replace(examine_tensors(q, k, v, options, answers, keys[0]), gradients=back, conduct=behaved)
    judgement = judge_tensors(keys, found, held.about)
    where = place(held.about) if "layer" in held.about else "not told by the file"
    about = {"File": Path(path).name, "Kernel": named(keys[0]), "Captured at": where} | _here(device)
    stored = f", stored in {held.about['stored_in']}" if "stored_in" in held.about else ""
    shapes = f"queries {tuple(q.shape)}, keys {tuple(k.shape)}, {Format.of(q.dtype).name}{stored}"
    about |= {"Tensors": " ".join(filter(None, (shapes, shortened(found.risks))))}
    settings = (
        dict(file=f"{path}", names=[*map(label_of, keys)], device=device)
        | asdict(reading)
        | {name: held.about[name] for name in ("model", "step", "layer", "call", "head") if name in held.about}
    )
    finite = {base: [row for row in rows if math.isfinite(row["times_less"])] for base, rows in found.changes.items()}
    panels = tensors_panels(found.risks, found.deviations, finite)
    return _written(files, judgement, tensors_sections(found), panels, found.items(), about, settings)


def check_model(
    function: str, out: str | Path = "", save: str | Path | None = None,
    names: Sequence[KernelRef | str] = tuple(REFERENCE_KERNELS), causal: bool = False,
) -> Report:  # fmt: skip
    """Run a model under a Probe, judge its attention and write the page.

    Args:
        function: "package.module:function", that runs the model on a few batches; it is called without arguments.
        save: .safetensors file for the worst call's tensors.
        names: kernels computed beside the attention that runs.
        causal: no row may see a later key than its own.

    Raises:
        ValueError: there is no such function, or it raises; an argument of Probe does not fit.
    """
    files = PageFiles.of(out, function)
    files.clear()
    with all_isolated([*map(KernelRef.of, names)]) as subjects, reader_modules.in_front():
        furthest = WorstCall()
        run, probe = function_of(function), Probe(subjects, save=save, also=furthest)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Probe: ")  # its sentences say the same
                with probe:
                    run()
        except (Exception, SystemExit) as error:
            raise ValueError(f"function: {function} raises {type_name(error)}: {message(error)}") from error
    close = furthest.table()
    judgement = judge_model(function, probe.table, probe.baseline, probe.skipped, probe.nonfinite, causal, close)
    about = {"Model": function, "Package": _version(KernelRef.of(function))} | _here("cpu")
    about |= {"Calls of attention": f"{probe.calls}", "Rows of Q compared": f"{probe.queries} for each head of a call"}
    settings = dict(
        function=function, names=[f"{name}" for name in names], calls=probe.calls, save=f"{save or ''}", causal=causal
    )
    sections, panels = model_sections(probe.table), model_panels(probe.table)
    return _written(files, judgement, sections, panels, [("probe", probe.table)], about, settings)


def _version(kernel):
    """Write the package that a kernel is of, with its version."""
    for source in entry_points(group="fa_lib.kernel_packages", name=kernel.module.partition(".")[0] or kernel.function):
        if project := source.load()(kernel):
            return project
    return (package(kernel.module) or "none that is installed") if kernel.module else "fa_lib, built in"


def _here(device):
    """Versions, the date and the device, as the heading of a page has them."""
    found = versions()
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else processor()
    count = torch.get_num_threads()
    threads = "" if torch.device(device).type == "cuda" else f", {count} thread{'' if count == 1 else 's'}"
    own = f"fa_lib {installed('fa_lib') or 'of a checkout'}"
    libraries = f"{own}, torch {found['torch']}, Python {platform.python_version()}"
    return {"Judged by": libraries, "Date": date(), "Device": f"{name}{threads}"}


def _written(
    files: PageFiles, judgement: Judgement, sections: list[Section], panels: Mapping[str, Figure],
    found: Iterable[tuple[str, pd.DataFrame]], about: dict, settings: dict,
) -> Report:  # fmt: skip
    """Write the tables, the record, and the page."""
    record = judgement.record() | provenance(settings)
    for name, table in found:
        if table.empty:
            continue
        with replacing(files.folder / f"{name}.csv") as path:
            table.to_csv(path, index=False, float_format="%.7g")
    for figure in panels.values():
        _literal(figure)
    files.write(record, page(judgement, sections, panels, about, settings))
    for figure in panels.values():
        plt.close(figure)
    return Report(judgement, files.page, record)


def _literal(figure):
    """The names of strangers in a picture's legends are neither formulas nor control characters."""
    legends = [ax.get_legend() for ax in figure.axes if ax.get_legend()]
    for text in (*figure.texts, *(each for legend in legends for each in legend.get_texts())):
        text.set_text("\n".join(map(Untrusted, text.get_text().split("\n"))))
        text.set_parse_math(False)
