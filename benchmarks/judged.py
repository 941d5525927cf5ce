"""One judgement of one kernel on one draw of inputs: ours, and two other judges'."""

import io
from contextlib import redirect_stderr
from dataclasses import replace

import torch

from attention_check.checks.relations import RELATIONS
from attention_check.judge.findings import Severity
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.draws import SIDE
from attention_check.measure.examine import examine
from attention_check.measure.plan import CheckPlan
from benchmarks.other_judges import condemned
from fa_lib import kernels

APART = 1000  # between first seeds: more than a judgement draws
DEPTH = CheckPlan(  # a few seconds
    lengths=(1024,), seeds=1, shapes=("causal 113 x 203", "GQA 384", "causal window 512", "1500"), head_dims=(96,),
    troubled_n=128, bias_seeds=3, runs=3, relations=(*RELATIONS,),
)  # fmt: skip
QUICK = replace(DEPTH, bias_seeds=1, runs=2, square=255)  # and no other judge


def judged(seed: int, kernel: str, quick: bool = False) -> dict:
    """A cell: what judges say of a kernel on one draw of inputs.

    Args:
        quick: ours alone, in fewer calls.

    Returns:
        dict: verdict (ours); fails and tells (of our findings: [what, of what, cases]); what JUDGES fail it for.
    """
    torch.manual_seed(seed)  # of kernels that leave something to chance
    with redirect_stderr(io.StringIO()):  # bars of progress
        measured = examine(kernel, replace(QUICK if quick else DEPTH, first_seed=APART * seed))
    judgement = judge_kernel(kernel, measured)
    by = {Severity.FAILS: [], Severity.REPORTED: []}
    for finding in judgement.findings:
        if finding.severity == Severity.FAILS or tells(finding):
            by[finding.severity].append([finding.what, detail(finding), finding.where.get("cases", [])])
    found = dict(verdict=judgement.verdict.value, fails=by[Severity.FAILS], tells=by[Severity.REPORTED])
    return found | ({} if quick else condemned(kernels.plain(kernel), APART * seed))


def tells(finding) -> bool:
    """Whether a note says that something is amiss, though it does not count."""
    at, number = finding.where, finding.number
    amiss = dict(
        gradients=at.get("failed"), repeats=number is not None and number > 1, problem=True, top_left=True,
        outwards=number is not None and abs(number - at.get("baseline", 0)) >= SIDE, relation=True,
        bound=number is not None and number > 1, raises=True, less_than_format=True, causal_by_default=True,
    )  # fmt: skip
    return finding.severity == Severity.REPORTED and bool(amiss.get(finding.what))


def detail(finding) -> str:
    """What a finding is of: of a bound, the mistake or rounding that has its error."""
    if finding.what in ("bound", "mistake"):
        return finding.where["key"]
    names = ("relation", "asked", "sum", "what", "tensor", "of")
    found = next((finding.where[name] for name in names if finding.where.get(name)), "")
    return found if isinstance(found, str) else ", ".join(found)
