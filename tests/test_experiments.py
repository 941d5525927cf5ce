"""The experiments of notebooks 9, 10, 13, 15, 16 and 17: a cell of each committed table is what the code gives. What
the tables show is asserted in the notebooks, in the ledger (test_ledger_rows) and on the pages (test_pages)."""

import math

import numpy as np
import pandas as pd
import pytest

from fa_lib.execution.paths import RESULTS
from fa_lib.experiments import ablation, biased_rounding, fp8_probs, newer_kernels, tensor_cores
from fa_lib.experiments.block_scales import RECIPES, block_scales
from fa_lib.experiments.law import measured, predicted, worst
from fa_lib.experiments.overflow import overflow
from fa_lib.experiments.polynomials import polynomial_error
from fa_lib.experiments.rescaling import rescaling
from fa_lib.experiments.sink_gradients import sink_gradient
from fa_lib.kernels.quantized_attention import OPERANDS

APART = ("fp8_tensor", "mxfp8_up", "nvfp4", "nvfp4_two_level")
PARTS = {key: ["all", "cache", *(OPERANDS if key in APART else [])] for key in RECIPES}  # as in notebook 16
TEN, BIASED = "09_why_ten_times", "10_biased_rounding"
CELLS = [  # a table, its experiment, one cell of its grid, and what the table does not hold
    (TEN, ablation.ladder, dict(distribution="uniform", seed=0, n=2048), dict(starts=["shipped"])),
    (f"{TEN}.map", ablation.carried, dict(distribution="uniform", seed=0, tiles=16),
     dict(bits=[8, 10, 11, 12, 14, 16, 20, 24])),
    (f"{TEN}.verdicts", ablation.references, dict(distribution="normal", seed=0, n=2048), {}),
    *[(f"{TEN}.rescaling", rescaling,
       dict(distribution="normal", seed=0, n=2048, order=order, tiles=32, rows=64, algorithm=algorithm), {})
      for order in ("as_drawn", "every_tile") for algorithm in ("fa1", "fa2")],
    (f"{TEN}.options", newer_kernels.options, dict(distribution="outliers", seed=0, n=2048), dict(carries=["BF16"])),
    (f"{TEN}.fa3", newer_kernels.outliers, dict(n=2048, head_dim=128, seed=0), {}),
    (f"{TEN}.fp8", newer_kernels.fp8_table, dict(n=2048, seed=0), {}),
    (f"{TEN}.offsets", newer_kernels.fp8_offset, dict(offset=8, spread=1.0, seed=0, n=8192), {}),
    *[(BIASED, biased_rounding.bias, dict(cure="carried_bf16", sign=sign, repeats=2, seed=0), {})
      for sign in ("positive", "negative", "both")],
    *[(f"{BIASED}.steps", biased_rounding.bias, dict(cure=cure, sign="negative", repeats=2, seed=0), {})
      for cure in ("fast_exp", "stochastic", "dynamic_2", "output_fp32")],
    (f"{BIASED}.gaps", biased_rounding.bias,
     dict(cure="carried_bf16", sign="positive", repeats=2, gap=8, seed=0), {}),
    ("13_theory", measured, dict(seed=0), dict(distributions=["normal"], tiles=[1, 8], bits=[8, 10, 12, 16])),
    ("13_theory.blocks", predicted, dict(distribution="uniform", tiles=32, block_kv=80, drawn=2048),
     dict(bits=[8, 10, 12])),
    *[("13_theory.worst", worst, dict(fmt="BF16", tiles=tiles, seed=2, candidates=256), {})
      for tiles in (4, 8)],  # too small, too large
    *[("15_tensor_cores", tensor_cores.sums, dict(fmt=fmt, distribution="uniform", n=512, rows=4), dict(seeds=[0, 2]))
      for fmt in ("BF16", "E4M3")],
    ("16_block_scales", block_scales, dict(kind="shifted K", seed=0, n=2048, rows=128, head_dim=128),
     dict(parts=PARTS)),
    *[("17_published_numbers", fp8_probs.sink_cast, dict(strength=6, kind=kind, seed=0, n=4096), {})
      for kind in fp8_probs.KINDS],
    ("17_published_numbers.mass", fp8_probs.row_mass, dict(spread=2, n=1024, seed=0, rows=8192), {}),
    ("17_published_numbers.gradients", sink_gradient, dict(seed=0, n=1024), dict(kept=(1, 0.1, 0.01))),
    ("17_published_numbers.overflow", overflow, dict(mean=20, amplitude=5.0, seed=0, rows=512), {}),
    ("17_published_numbers.polynomials", polynomial_error, dict(degree=4), {}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "table, experiment, cell, fixed", CELLS, ids=[f"{cell[0]} {i}" for i, cell in enumerate(CELLS)]
)
def test_a_cell_of_a_committed_table_is_what_the_code_gives(table, experiment, cell, fixed):
    """To a tenthousandth: where a score falls on the other side of a tie, a mean changes in its last digits. To a
    hundredth where torch computes, whose order of sums is the processor's."""
    near = 1e-2 if experiment is ablation.references else 1e-4
    committed = pd.read_csv(RESULTS / f"{table}.csv")
    for column, value in cell.items():
        committed = committed[committed[column] == value]
    parts = dict(starts="start", carries="carry", distributions="distribution", tiles="tiles", seeds="seed")
    for axis, column in parts.items():  # of which a part is computed
        committed = committed[committed[column].isin(fixed[axis])] if axis in fixed else committed
    rows = experiment(**cell, **fixed)
    now = pd.DataFrame(rows if isinstance(rows, list) else [rows])
    assert len(now) == len(committed) > 0
    for column, values in now.items():
        due = committed[column]
        if values.dtype.kind in "fi":
            np.testing.assert_allclose(values, due, rtol=near, atol=near * due.abs().max(), err_msg=column)
        else:
            assert values.tolist() == due.tolist()


@pytest.mark.parametrize("scale, cast", [(1, "forward"), (256, "forward_256")])
def test_a_learned_sink_takes_the_share_of_the_closed_form(scale, cast):
    at, lost_share = fp8_probs.LOST + math.log(scale), fp8_probs.lost_share
    assert lost_share(at, scale, 0) == 0.5 and lost_share(at - 1, scale) == 0.5 and lost_share(at - 1, scale, 0) < 0.2
    for strength in (at - 1, at, at + 1):
        rows = {row["cast"]: row["lost"] for row in fp8_probs.sink_cast(strength, "logit", 0, n=1024, rows=16)}
        of = lost_share(strength, scale, 0)
        assert abs(rows[cast] - of) < 4 * math.sqrt(of * (1 - of) / 1024)  # rows share the keys: as if there were one
