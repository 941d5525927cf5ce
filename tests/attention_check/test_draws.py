"""One draw beyond the rule is chance; two are the kernel's. A verdict on a right kernel does not hang on a draw."""

import math

import pandas as pd
import pytest

from attention_check.checks.errors import largest
from attention_check.checks.shapes import judged as over_shapes
from attention_check.judge.findings import Severity
from attention_check.measure.draws import AT_ONCE, MORE, OF_LENGTHS, redraw_failures, worst_draws
from attention_check.report.wordings import worded
from fa_lib.kernels.rule import ALLOWED

LIMIT = ALLOWED["o"]


def lengths(*times, fmt="FP16"):
    """A table of draws of one call; None: not answered."""
    call = dict(fmt=fmt, distribution="normal", n=128, queries=1)
    return pd.DataFrame([
        call | dict(seed=i, times_max=math.nan if x is None else x, outcome="refused" if x is None else "answered")
        for i, x in enumerate(times)
    ])  # fmt: skip


def again(times):
    """Draws once more, all of which err so much."""
    return lambda call, seeds: lengths(*[times] * len(seeds), fmt=call.fmt).assign(seed=[*seeds])


@pytest.mark.parametrize(
    "times, number",
    [
        ([1.0, 1.9], 1.9),
        ([1.0, 2.2], 2.2),  # too few draws to tell
        ([1.0] * MORE + [2.2], 1.0),
        ([1.0] * MORE + [2.2, 2.1], 2.2),
        ([1.0] * MORE + [LIMIT * AT_ONCE + 0.1], LIMIT * AT_ONCE + 0.1),  # no chance goes so far
        ([1.0] * MORE + [math.inf], math.inf),
        ([None] * MORE + [2.2], 2.2),  # no other draw was answered
        ([1.0, 2.2] + [None] * MORE, 2.2),
        ([1.0] * MORE + [2.2, math.nan], math.inf),  # an answer that is not finite
        ([2.2], 2.2),
    ],
)
def test_what_counts(times, number):
    assert worst_draws(lengths(*times), OF_LENGTHS, LIMIT).times_max.item() == number


def test_a_draw_beyond_the_rule_is_drawn_again_and_others_are_not():
    asked = []

    def listed(call, seeds):
        asked.append((call.fmt, [*seeds]))
        return again(1.0)(call, seeds)

    rows = pd.concat([lengths(1.0, 2.2, 1.1), lengths(1.0, 1.2, fmt="BF16")], ignore_index=True)
    found = redraw_failures(rows, OF_LENGTHS, LIMIT, listed)
    assert asked == [("FP16", [*range(3, 3 + MORE)])]
    assert len(found) == len(rows) + MORE
    error, chance = largest(found)
    assert (error.what, error.severity, error.number) == ("error", Severity.PASSES, 1.2)
    assert (chance.what, chance.severity, chance.number) == ("chance", Severity.REPORTED, 2.2)
    (said,) = worded([chance])
    assert said.text.startswith("In one of 11 draws its largest error is beyond the rule (normal inputs, FP16")


def test_a_call_is_drawn_again_once_also_where_nothing_is_answered():
    rows = redraw_failures(lengths(2.2), OF_LENGTHS, LIMIT, again(None))
    assert len(rows) == 1 + MORE and worst_draws(rows, OF_LENGTHS, LIMIT).times_max.item() == 2.2


@pytest.mark.parametrize("times", [[2.5], [2.1, 2.2], [1.0, 2.2, 2.3]])
def test_what_is_beyond_the_rule_again_fails(times):
    found = redraw_failures(lengths(*times), OF_LENGTHS, LIMIT, again(2.4))
    (error,) = largest(found)
    assert (error.severity, error.number) == (Severity.FAILS, max(found.times_max))


def test_a_shape_counts_once_however_often_it_was_drawn():
    row = dict(head_dim=64, fmt="FP16", tensor="o", allowed=LIMIT, outcome="answered", problem="", relative=1e-4)
    rows = [row | {"shape": "97", "seed": i, "ratio": x} for i, x in enumerate([2.8] + [1.0] * MORE)]
    rows += [row | {"shape": "256", "seed": 0, "ratio": 1.1}]
    chance, outputs = over_shapes(pd.DataFrame(rows))
    assert (chance.what, chance.where["draws"]) == ("chance", MORE + 1)
    assert (outputs.severity, outputs.where["of"], outputs.number) == (Severity.PASSES, 2, 1.1)
