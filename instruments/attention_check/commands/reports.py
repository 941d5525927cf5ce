"""The check of a kernel from start to end: isolate it, measure, judge, write the page."""

import secrets
from dataclasses import asdict, replace
from pathlib import Path

from attention_check.adapters import LAYOUTS
from attention_check.isolation.calls import judged_by_one_thread
from attention_check.isolation.isolated_kernel import LIMIT_S, conduct, isolated, wait
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_check.measure.plan import PLANS, CheckPlan
from attention_check.report.page import Report, circumstances, package_of, write_report
from attention_check.report.page_files import PageFiles
from attention_check.report.tables import kernel_sections
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.kernel_ref import KernelRef


def check_kernel(
    kernel: KernelRef | str, depth: CheckPlan | str = "report", out: str | Path = "", device: str = "cpu",
    layout: str = "bhsd", timeout: float = LIMIT_S, seed: int | None = None, arithmetic: str = "",
) -> Report:  # fmt: skip
    """Judge a kernel and write its page.

    Args:
        kernel: a KernelRef or the text of one: a registered kernel runs here; that of a module runs in a separate
            process and is not imported here.
        depth: a CheckPlan, or "quick" or "report".
        out: folder for the page; empty is build/reports.
        layout: of the kernel's tensors, of `adapters.LAYOUTS`, where `kernel` is a text. A kernel that is asked for in
            "bhsd" and reads "bshd" is judged so.
        timeout: seconds that a call may take in that process.
        seed: of the lengths, their inputs and the order of calls that a kernel cannot know before. None: another one at
            each judgement; its settings say which, as drawn_seed.
        arithmetic: of Baseline, for a kernel that computes in 8 bits or fewer, as of `low_bits.baseline_in`.

    Raises:
        ValueError: there is no such kernel, depth, layout or arithmetic; before anything is judged. An old page of the
            kernel's is gone then too.
    """
    lookup("layout", layout, LAYOUTS)
    kernel = KernelRef.of(kernel, layout=layout)
    plan: CheckPlan = lookup("depth", depth, PLANS) if isinstance(depth, str) else depth
    plan = replace(plan, drawn_seed=secrets.randbits(31) if seed is None else seed, arithmetic=arithmetic)
    files = PageFiles.of(out, kernel.label)
    files.clear()
    with isolated(kernel, timeout) as kernel:
        wait(kernel)
        with judged_by_one_thread():  # nothing is kept: code that the kernel calls elsewhere may have changed
            found = examine(kernel, plan, device)
        found = replace(found, conduct=conduct(kernel))  # its process ends
    from attention_check.plots.kernel_report import kernel_panels  # matplotlib, once the kernel is judged

    judgement = judge_kernel(kernel, found)
    judged, lengths = KernelRef.of(judgement.subject), found.lengths
    about = {
        "Kernel": judged.bare.label, "Package": package_of(judged), **circumstances(device),
        "Depth": depth if isinstance(depth, str) else "its own",
        "Layout": "bshd" if "bshd" in judged.readings else kernel.layout,
        "Lengths N": sorted(lengths.n.unique()) if len(lengths) else plan.lengths,
        "head_dim": ", ".join(map(str, lengths.head_dim.unique())) if len(lengths) else "none",
        "Draws": f"{plan.seeds}; {plan.bias_seeds} of inputs that make trouble, N = {plan.troubled_n}",
        "Drawn anew": f"{len(plan.drawn)} lengths and the order of calls; --seed {plan.drawn_seed} repeats them",
    }  # fmt: skip
    settings = dict(kernel=judgement.label, device=device) | asdict(plan)
    sections, panels = kernel_sections(found), kernel_panels(found)
    return write_report(files, judgement, sections, panels, found.items(), about, settings)
