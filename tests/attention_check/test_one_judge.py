"""The page and pytest judge alike: of the tables that pytest's checks measure, both have one verdict, on all right
kernels and all mutants of both sets."""

import math
from dataclasses import fields

import pandas as pd
import pytest

from attention_check.judge.captured import of_gradients
from attention_check.judge.errors import over_shapes
from attention_check.judge.findings import Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.captured import FINITE
from attention_check.measure.measurements import Measurements
from attention_check.measure.relations import RELATIONS
from attention_check.testing import checks
from attention_check.testing.checked import Result
from attention_check.testing.checks import CHECKS, judged_kernel, result
from benchmarks import judge

SOME = [
    name for name in CHECKS if name not in RELATIONS and name != "bound"
]  # half the time; both judge one kind of row
RIGHT = {each.key for each in (*judge.FIRST.controls, *judge.SECOND.controls)}


def verdicts(kernel, names):
    """Of one kernel: pytest's, which checks fail, and the page's, by the same tables."""
    judged = judged_kernel(kernel)
    if isinstance(judged, Result):
        return ["every check"], None
    failing, tables = [], {each.name: [judged.asked] if each.name == "asked" else [] for each in fields(Measurements)}
    for name in names:
        check, measured = CHECKS[name], CHECKS[name].measure(judged)
        if isinstance(measured, Result):
            assert measured.passed is None, name
            continue
        failing += [name] if result(check.judge(measured)).passed is False else []
        for of, table in measured.items():
            if len(table) and of != "asked":
                tables[of].append(table)
    once = {of: pd.concat(own, ignore_index=True) for of, own in tables.items() if own and of != "conventions"}
    for of, by in (("lengths", ["distribution", "n", "seed"]), ("shapes", ["shape", "tensor", "seed"]),
                   ("sums", ["what", "terms", "keys"])):  # fmt: skip
        once[of] = once[of].drop_duplicates(by) if of in once else pd.DataFrame()
    return failing, judge_kernel(judged.kernel, Measurements(**once))


def agree(each, names):
    failing, judgement = verdicts(each.name, names)
    if judgement is None:
        assert each.key not in RIGHT
        return
    of_page = [(f.what, f.where) for f in judgement.findings if f.severity == Severity.FAILS]
    assert bool(failing) == (judgement.verdict == Verdict.FAILS), (each.key, failing, of_page)
    assert not failing or each.key not in RIGHT, (each.key, failing)


@pytest.mark.parametrize("key", ["fa2", "delta_forgotten", "noise"])
def test_the_page_and_pytest_have_one_verdict(key, monkeypatch):
    monkeypatch.setattr(checks, "N", 128)
    (each,) = (one for one in judge.EVERY if one.key == key)
    agree(each, CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("each", judge.EVERY, ids=lambda each: each.key)
def test_the_page_and_pytest_have_one_verdict_on_every_mutant_and_right_kernel(each, monkeypatch):
    monkeypatch.setattr(checks, "N", 128)
    agree(each, SOME)


def gradients(**changed):
    """A row of `measure_shapes`, and of `captured_gradients`."""
    row = dict(outcome="answered", problem="", tensor="dq", ratio=1.0, relative=0.01, allowed=3.0, shape="97", seed=0)
    return pd.DataFrame([row | dict(head_dim=64, fmt="BF16", yardstick=FINITE) | changed])


@pytest.mark.parametrize(("ratio", "relative", "fails"), [
    (1.0, 0.01, False), (10.0, 0.01, False), (2.9, 0.5, False), (3.1, 0.21, True), (math.nan, math.nan, True),
])  # fmt: skip
def test_one_rule_of_gradients(ratio, relative, fails):
    """Far from attention's, and further than Baseline's own error explains: on the page, in pytest, of a file."""
    table = gradients(ratio=ratio, times_max=ratio, relative=relative)
    assert [f.what for f in over_shapes(table) if f.severity == Severity.FAILS] == ["wrong_gradient"] * fails
    assert result(CHECKS["gradients_97"].judge(Measurements(shapes=table))).passed is not fails
    assert any(f.severity == Severity.FAILS for f in of_gradients(table)) == fails
