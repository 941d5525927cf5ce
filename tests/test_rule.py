"""The rule of the field: what it lets pass and what it catches."""

import math

import pandas as pd
import pytest

from fa_lib.experiments.rule import ALLOWED, CALLS, rule

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", ["97", "causal 113 x 203", "GQA 384", "causal window 512"])
@pytest.mark.parametrize("fmt", ["BF16", "FP16"])
def test_kernels_that_carry_fp32_pass_the_rule(shape, fmt):
    table = pd.DataFrame(rule(shape, 59, "normal", fmt, seed=3))
    assert set(table.tensor) == {"o", "dq", "dk", "dv"}
    assert table[table.kernel == "as_shipped"].passed.all()
    assert table[(table.kernel == "flash") & (table.tensor == "o")].passed.all()


def test_the_rule_catches_what_the_paper_saw():
    table = pd.DataFrame(rule("4096", 64, "uniform", "BF16", seed=0, gradients=False)).set_index("kernel")
    assert table.passed.to_dict() == {"flash": True, "as_shipped": True, "every_step": False}
    assert table.ratio["every_step"] > 10


def test_shapes_are_known():
    assert any(c.options.get("window") for c in CALLS.values()) and max(c.n_q for c in CALLS.values()) == 4096
    with pytest.raises(ValueError, match="shape: got '98'; accepted are 97, 113 x 203"):
        rule("98", 64, "normal", "BF16", 0)


def test_where_baseline_makes_no_error_the_ratio_is_one_or_infinite():
    rows = rule("window 512", 64, "normal", "FP64", 0, ["flash", "baseline"])  # Baseline in FP64: the golden value
    assert {row["baseline"] for row in rows if row["tensor"] == "o"} == {0.0}
    ratio = {row["kernel"]: row["ratio"] for row in rows if row["tensor"] == "o"}
    assert ratio == {"flash": math.inf, "baseline": 1.0}
    assert [row["passed"] for row in rows if row["kernel"] == "baseline"] == [True] * len(ALLOWED)


def test_every_kernel_is_held_once_and_to_the_same_numbers():
    rows = rule("GQA 384", 32, "normal", "BF16", 0)
    assert rule("GQA 384", 32, "normal", "BF16", 0, ["as_shipped", "as_shipped"]) == rows[4:8]
    assert {row["tensor"]: row["allowed"] for row in rows} == ALLOWED
