"""Why ten times: what the ladder, the map of bits and tiles and the references must show, at their own scale."""

import pytest

from fa_lib import sweep
from fa_lib.experiments.ablation import KERNELS, REFERENCES, STARTS, STEPS, carried, ladder, references
from fa_lib.experiments.problem import Problem
from fa_lib.numerics.formats import BF16, FP32, FP64

pytestmark = pytest.mark.slow


def mean(table, by, value):
    return table.groupby(by)[value].mean()


def test_what_is_carried_makes_the_ten_times_and_nothing_else_does():
    """A prototype, uniform inputs, N = 2048: as shipped 0.9, O alone 11 (fa1) and 6 (fa2), the statistics 5."""
    grid = dict(distribution="uniform", seed=range(3))
    innocent = ("scores", "exponent", "probs", "maximum", "factors")
    steps = ["nothing", *innocent, "row_sum", "accumulator"]
    table = sweep(ladder, grid, fixed=dict(starts=["shipped"], steps=steps))
    times = mean(table, ["step", "algorithm"], "times_max")
    for algorithm, of_o in (("fa1", 9), ("fa2", 5)):
        assert times["nothing", algorithm] < 1
        assert times["accumulator", algorithm] > of_o and times["row_sum", algorithm] > 4
        for step in innocent:
            assert times[step, algorithm] < times["row_sum", algorithm] / 10
    steps = ["nothing", "inputs", "scores", "probs", "output"]
    raised = sweep(ladder, grid, fixed=dict(starts=["all_bf16"], steps=steps))
    times = mean(raised, ["step", "algorithm"], "times_max")
    for algorithm in ("fa1", "fa2"):
        assert (times[:, algorithm] / times["nothing", algorithm]).between(0.75, 1.25).all()


def test_it_takes_few_bits_over_many_tiles():
    grid = dict(distribution="uniform", seed=range(2), tiles=[1, 16, 64])
    table = sweep(carried, grid, fixed=dict(bits=[8, 12, 24]))
    times = mean(table, ["bits", "tiles"], "times_max")
    assert times[8, 64] > 8 > times[8, 16] > times[8, 1] and (times[24] < 1).all() and (times[12] < 2).all()


def test_what_one_kernel_is_compared_with_decides():
    table = sweep(references, dict(distribution="normal", seed=range(2), n=512))
    rmse = mean(table, ["kernel", "against"], "rmse")
    flash, baseline = rmse["flash_fp16"], rmse["baseline_fp16"]
    assert flash["golden_rounded"] < 0.7 * baseline["golden_rounded"]  # nearer to the truth
    assert flash["baseline_fp16"] > 1.5 * flash["golden_rounded"]  # and off by Baseline's own error
    assert baseline["baseline_fp16"] == 0
    assert flash["golden_exact"] > 1.2 * flash["golden_rounded"]


def test_one_cell_tries_every_change_on_one_draw():
    rows = ladder("normal", 1, 128)
    assert [(row["start"], row["algorithm"], row["step"]) for row in rows] == [
        (start, algorithm, step) for start in STARTS for algorithm in ("fa1", "fa2") for step in STEPS
    ]
    one = ladder("normal", 1, 128, starts=["all_bf16"], algorithms=["fa2"], steps=["inputs"])
    assert one == [rows[len(STEPS) * 3 + list(STEPS).index("inputs")]]
    found = references("normal", 0, n=64)
    assert {row["kernel"] for row in found} == set(KERNELS) and {row["against"] for row in found} == set(REFERENCES)


def test_a_problem_holds_a_kernel_against_the_golden_value_of_its_own_inputs():
    problem = Problem.drawn("normal", 0, 32, 48, heads=2)
    assert problem.q.shape == problem.golden.shape == (1, 2, 32, 64) and problem.k.shape == (1, 2, 48, 64)
    other = problem.golden_of(FP32)
    assert other is problem.golden_of(FP32) and not other.equal(problem.golden)
    assert problem.errors(other, FP32)["max"] == 0 < problem.errors(other)["max"]
    exact = Problem.drawn("normal", 0, 32, 48, heads=2, inputs=FP64)
    assert exact.baseline.max > problem.baseline.max  # it has the rounding of the inputs in it
    errors = problem.errors(BF16(problem.golden))
    assert 0 < errors["times_max"] < 1 and errors["times_rmse"] == errors["rmse"] / problem.baseline.rmse


def test_unknown_keys_are_refused():
    for wrong, words in (
        (dict(starts=["raised"]), "start: got 'raised'; accepted are shipped, all_bf16"),
        (dict(steps=["softmax"]), "step: got 'softmax'; accepted are nothing, inputs"),
    ):
        with pytest.raises(ValueError, match=words):
            ladder("normal", 0, 64, **wrong)
