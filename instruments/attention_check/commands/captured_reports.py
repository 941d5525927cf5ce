"""The checks of captured tensors and of a model from start to end: measure, judge, write the page."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from attention_check.explain.explain import explain_call
from attention_check.explain.explain import read as explain_read
from attention_check.explain.explain_words import groups
from attention_check.explain.verdict import Explanation
from attention_check.isolation.isolated_kernel import all_isolated, conduct
from attention_check.judge.captured import judge_model, judge_tensors
from attention_check.measure.captured import examine_tensors
from attention_check.measure.closeness import WorstCall
from attention_check.measure.measurements import RAN
from attention_check.plots.model_report import model_panels
from attention_check.plots.tensors_report import shortened, tensors_panels
from attention_check.probe.capture import AS_IT_IS, captured
from attention_check.probe.named_tensors import SECOND, Reading
from attention_check.probe.probe import Probe
from attention_check.probe.replays import Runs, compared
from attention_check.probe.skipped import place
from attention_check.report.labels import WAYS, named
from attention_check.report.page import Report, circumstances, package_of, write_report
from attention_check.report.page_files import PageFiles
from attention_check.report.tables import Section
from fa_lib.execution import reader_modules
from fa_lib.execution.untrusted import message
from fa_lib.kernels.kernel_ref import KernelRef, label_of
from fa_lib.kernels.rule import REFERENCE_KERNELS
from fa_lib.numerics.formats import Format


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
            changes = f"rounding q, k and v to {held.about['without_o']} changes them"
            accepted = "accepted is the file's own format, or a --kernel to judge"
            raise ValueError(f"format: {changes}, so that the o of {path} is no answer to them; {accepted}")
        names = ("flash" if held.o is None else RAN, *REFERENCE_KERNELS)
    if RAN in names and held.o is None:
        raise ValueError(f"names: got {RAN!r}; {path} holds no o that is an answer to its q, k and v")
    with all_isolated([KernelRef.of(name) for name in names if name != RAN]) as loaded:
        here = iter(loaded)
        subjects = [RAN if name == RAN else next(here) for name in names]
        held = held.on(device)
        q, k, v, options = held.q, held.k, held.v, held.options
        found = examine_tensors(q, k, v, options, subjects, held.o)
        if isinstance(judged := subjects[0], KernelRef):
            found = replace(found, conduct=conduct(judged))
    keys = [*dict.fromkeys(map(str, subjects))]
    explained, why = None, ""
    if judged == RAN:
        try:
            explained = explain_call(explain_read(path, reading)["o"])
        except ValueError as error:  # it takes fewer dimensions and dtypes
            why = message(error)
    if explained is not None and SECOND in held.about.pop("beside", "").split(", "):
        held.about["beside"] = SECOND
    judgement = judge_tensors(keys, found, held.about, explained, why)
    where = place(held.about) if "layer" in held.about else "not told by the file"
    about = {"File": Path(path).name, "Kernel": named(keys[0]), "Captured at": where} | circumstances(device)
    stored = f", stored in {held.about['stored_in']}" if "stored_in" in held.about else ""
    shapes = f"queries {tuple(q.shape)}, keys {tuple(k.shape)}, {Format.of(q.dtype).name}{stored}"
    about |= {"Tensors": " ".join(filter(None, (shapes, shortened(found.risks))))}
    settings = dict(file=f"{path}", names=[*map(label_of, keys)], device=device) | asdict(reading)
    settings |= {name: held.about[name] for name in ("model", "step", "layer", "call", "head") if name in held.about}
    panels = tensors_panels(found.risks, found.deviations)
    sections = [] if explained is None else [explained_section(explained)]
    return write_report(files, judgement, sections, panels, found.items(), about, settings)


def explained_section(explained: Explanation) -> Section:
    """What `explain` says of the output that was captured, a row for each verdict."""
    rows = [
        {"verdict": verdict.name if verdict else "not judged", "what it is": " ".join(words)}
        for verdict, words in groups(explained)
    ]
    return Section("What fa-lib explain says", pd.DataFrame(rows))


def check_model(
    function: str, out: str | Path = "", save: str | Path | None = None,
    names: Sequence[KernelRef | str] = tuple(REFERENCE_KERNELS), causal: bool = False,
) -> Report:  # fmt: skip
    """Run a model under a Probe, and again in other ways; judge its attention and write the page.

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
        run, probe = _model_function(KernelRef.of(function)), Probe(subjects, save=save, also=furthest)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Probe: ")  # its sentences say the same
                with Runs() as runs, probe:
                    run()
        except (Exception, SystemExit) as error:
            raise ValueError(f"function: {function} raises {type(error).__name__}: {message(error)}") from error
    close, ways = furthest.table(), compared(runs.found, _say)
    judgement = judge_model(function, probe.table, probe.baseline, probe.skipped, probe.nonfinite, causal, close, ways)
    about = {"Model": function, "Package": package_of(KernelRef.of(function))} | circumstances("cpu")
    about |= {"Calls of attention": f"{probe.calls}", "Rows of Q compared": f"{probe.queries} for each head of a call"}
    settings = dict(function=function, names=[*map(str, names)], calls=probe.calls, save=f"{save or ''}", causal=causal)
    tables = [("probe", probe.table), ("ways", pd.DataFrame(ways))]
    return write_report(files, judgement, (), model_panels(probe.table), tables, about, settings)


def _say(way, entry):
    print(f"comparing {WAYS[way].format(entry=entry)}", flush=True)


def _model_function(ref: KernelRef) -> Callable:
    """Return the function that runs a model."""
    if ref.is_named:
        accepted = "accepted is package.module:function, a function without arguments that runs the model"
        raise ValueError(f"function: got {ref.label!r}; {accepted}")
    try:
        return ref.imported()
    except ValueError as error:
        raise ValueError(f"function{message(error).removeprefix('kernel')}") from error
