"""Every check of a kernel by name, each asked by itself: it passes, it fails, or it cannot be asked."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pandas as pd

from fa_lib.check.carry import LOST, SUMS, carried, carry
from fa_lib.check.contract import Ability, formats
from fa_lib.check.findings import Judgement, Severity
from fa_lib.check.golden import Inputs
from fa_lib.check.judge_relations import of_relations
from fa_lib.check.judge_wrong import coarse, noisy, scaled
from fa_lib.check.kernel import QUICK, contracted, measure, ruled
from fa_lib.check.relations import RELATIONS, relate
from fa_lib.check.repeats import repeats
from fa_lib.check.subject import NOT_ASKED
from fa_lib.check.words import said_of
from fa_lib.experiments.rule import ALLOWED

N = 512  # keys that errors are measured at
RUNS = 3  # of a call, for noise
QUERIES = 16  # at a time, that carries are asked for with
JUDGED = ("BF16", "FP16", "FP32")  # the first that a kernel has


@dataclass(frozen=True)
class Result:
    """Of one check.

    Attributes:
        passed: None where it was not asked. why: what was found, or why it was not asked.
    """

    passed: bool | None
    why: str = ""


@dataclass(frozen=True)
class Judged:
    """A kernel, the format and head_dim it is judged in, and what `contract` found of it."""

    kernel: str | Callable
    fmt: str
    head_dim: int
    able: Ability


def result_of(check: str, kernel: str | Callable) -> Result:
    """What a check of CHECKS says of a kernel.

    Raises:
        ValueError: there is no such kernel.
        KeyError: there is no such check.
    """
    judged = _judged(kernel)
    if isinstance(judged, str):
        return Result(False, judged)
    return CHECKS[check](judged)


@cache
def _judged(kernel) -> Judged | str:
    """The Judged; or, where the kernel answers in no format, what it does instead."""
    asked, head_dim, able = contracted(kernel, "cpu")
    can = formats(asked[asked.head_dim == head_dim])
    for fmt in JUDGED:
        if fmt in can:
            return Judged(kernel, fmt, head_dim, able)
    bad = asked[asked.outcome != "yes"].iloc[0]
    what = bad.problem or "does not return attention"
    return f"{', '.join(JUDGED)}: the kernel answers in none of them; in {bad.asked} it {what}"


def _error(judged: Judged, distribution: str) -> Result:
    """The largest error is within the field's rule."""
    given = dict(head_dim=judged.head_dim, causal=judged.able.causal)
    (row,) = measure([judged.kernel], Inputs(judged.fmt, distribution, N, 0, **given))
    return _ruled(row["outcome"], row["problem"], row["times_max"], judged.fmt)


def _rule(judged: Judged, shape: str) -> Result:
    """The same, for a shape of `rule.CALLS`; its outputs, and no gradients."""
    able = Ability(gradients=False, causal=judged.able.causal)
    (row,) = ruled(shape, judged.head_dim, "normal", judged.fmt, 0, judged.kernel, able=able)
    return _ruled(row["outcome"], row["problem"], row["ratio"], judged.fmt)


def _ruled(outcome: str, problem: str, times: float, fmt: str) -> Result:
    if outcome == "no":
        return Result(None, f"the kernel {problem}")
    if outcome != "yes":
        return Result(False, f"the kernel {problem}")
    told = f"{times:.3g} times Baseline's largest error in {fmt}; accepted are {ALLOWED['o']}"
    return Result(times <= ALLOWED["o"], told)


def _carry(judged: Judged, what: str) -> Result:
    """The sum is carried in more bits than the inputs' format."""
    fmt = "BF16" if judged.fmt == "FP32" else judged.fmt
    rows = carry(judged.kernel, fmt, QUERIES, judged.head_dim, judged.able.causal)
    table = pd.DataFrame(rows).assign(fmt=fmt, queries=QUERIES)
    (found,) = (each for each in carried(table) if each["sum"] == what)
    if found["low"] is None:
        problems = [row["problem"] for row in rows if row["problem"]]
        why = problems[0] if problems else "does not return small terms alone, so that a loss would say nothing"
        return Result(None, f"the kernel {why}")
    if found["low"] and (hides := _hides_a_carry(judged)):
        return Result(None, f"the kernel {hides}")
    tile = f", in tiles of {found['tile']} keys" if found["tile"] else ""
    told = f"loses {found['lost']:.3g} ulp of {fmt} of a sum of large and small terms{tile}; accepted are {LOST}"
    return Result(not found["low"], told)


def _hides_a_carry(judged: Judged) -> str:
    """Another cause of a loss, which has to go before a carry is named; a verb and its object, or ""."""
    given = dict(head_dim=judged.head_dim, causal=judged.able.causal)
    inputs = [Inputs(judged.fmt, "normal", n, 0, **given) for n in (N // 4, N)]
    lengths = pd.DataFrame([row for each in inputs for row in measure([judged.kernel], each)]).assign(fmt=judged.fmt)
    if coarse(lengths) and judged.fmt != "FP32":  # an FP32 kernel is asked for carries in BF16
        return f"returns numbers of a coarser format than {judged.fmt}, so that a loss says nothing of a carry"
    if factor := scaled(lengths):
        return f"returns {factor:.4g} times attention's output, so that a loss says nothing of a carry"
    able = Ability(gradients=False, causal=judged.able.causal)
    again = repeats(judged.kernel, judged.fmt, RUNS, head_dim=judged.head_dim, able=able)
    if apart := noisy(pd.DataFrame([again])):
        return (
            f"returns other outputs on each call, up to {apart:.3g} ulp apart, so that a loss says nothing of a carry"
        )
    return ""


def _relation(judged: Judged, key: str) -> Result:
    """A relation that no kernel may break."""
    rows = relate(judged.kernel, key, judged.fmt, judged.head_dim, able=judged.able)
    if all(row["outcome"] == NOT_ASKED for row in rows):
        problems = [row["problem"] for row in rows if row["problem"]]
        return Result(None, f"the kernel {problems[0]}" if problems else "the kernel has no such option")
    table = pd.DataFrame(rows).assign(key=key, fmt=judged.fmt)
    found = tuple(each for each in of_relations(table) if each.what == "relation")
    groups = said_of(Judgement("kernel", "", found)).values()
    said = " ".join(one.line for group in groups for one in group)
    if any(each.severity == Severity.FAILS for each in found):
        return Result(False, f"{said} Asked because of {RELATIONS[key].source}.")
    if any(each.number is None for each in found):  # NaN, that is told and not counted
        return Result(None, said)
    return Result(True, said)


CHECKS: dict[str, Callable[[Judged], Result]] = {
    **{f"error_{name}": partial(_error, distribution=name) for name in ("uniform", "normal")},
    **{f"rule_{shape.replace(' ', '_')}": partial(_rule, shape=shape) for shape in QUICK.shapes},
    **{f"carry_{what}": partial(_carry, what=what) for what in SUMS},
    **{key: partial(_relation, key=key) for key in RELATIONS},
}
