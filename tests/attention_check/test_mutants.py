"""The mutants: their right kernels are attention, and the score counts."""

import pandas as pd
import pytest

from benchmarks import judge, other_judges
from benchmarks.mutants import CONTROLS, MUTANTS
from fa_lib import BF16, kernels
from fa_lib.kernels.inputs import draw
from tests.test_kernels import run

BY_KEY = {each.key: each for each in (*MUTANTS, *CONTROLS)}


def given(n_q=96, heads=2, batch=1, **options):
    """Q, K, V, and options."""
    tensors = draw("normal", 0, (batch, heads, n_q, 64), (batch, 2, 96, 64))
    return [BF16(x).bfloat16() for x in tensors], options


@pytest.mark.parametrize("each", CONTROLS, ids=lambda each: each.key)
def test_controls_are_attention(each):
    """Within eight roundings to BF16 of the golden value, at the largest output; gradients too."""
    for tensors, options in (given(n_q=40, heads=4, batch=2), given(causal=True, scale=0.1)):
        dO = draw("normal", 1, tensors[0].shape)[0].bfloat16()
        due = run(kernels.golden, [x.double() for x in tensors], dO, inputs=BF16, **options)
        for a, b in zip(run(each.kernel, tensors, dO, **options), due):
            assert (a.double() - b).abs().max() <= 8 * BF16.unit_roundoff * b.abs().max()


def rows(**changed):
    """A score: every mutant condemned, every control passed."""
    found = []
    for each in judge.EVERY:
        verdict = "fails" if each in MUTANTS else "passes"
        row = dict(seed=0, kernel=each.name, verdict=verdict, fails=[["error", "", []]], tells=[])
        found.append(row | dict(assert_close=["o"], rule_of_two=[]) | changed.get(each.key, {}))
    return pd.DataFrame(found)


def test_the_score_counts_and_says_what_is_missed():
    assert judge.missed(rows()) == []
    told = dict(verdict="passes", fails=[], tells=[["gradients", "dv", []]])
    silent = told | dict(tells=[])
    assert judge.missed(rows(noise=told)) == []  # told is seen
    assert judge.missed(rows(noise=silent)) == ["noise: not seen at 1 of 1 seeds"]
    assert judge.missed(rows(fa2=dict(verdict="fails"))) == ["fa2: right, and failed at 1 of 1 seeds"]
    lines = judge.totals(rows(noise=silent, fa2=dict(verdict="fails"))).splitlines()
    assert lines[2].startswith(f"| ours | {len(MUTANTS) - 1} of {len(MUTANTS)} | 0 | 1 | 1 of {len(CONTROLS)} ")
    by_kernel = judge.by_kernel(rows(noise=told)).set_index("kernel")
    assert (by_kernel.kind == "mutant").sum() == len(MUTANTS)
    assert [*by_kernel.loc["noise", ["ours", "reported", "assert_close", "rule_of_two"]]] == [0, "gradients: dv", 1, 0]


def test_every_kernel_has_a_line_in_the_committed_table():
    assert len(BY_KEY) == len(judge.EVERY)
    assert {*pd.read_csv(judge.KERNELS).kernel} == {each.key for each in judge.EVERY}


def test_the_other_judges_judge(monkeypatch):
    """Right attention in FP32 is within flash-attention's rule; 1.15 times it is condemned by both, in each dtype."""
    short = {key: call for key, call in other_judges.CALLS.items() if call.n_kv == 203}
    monkeypatch.setattr(other_judges, "CALLS", short)
    right, wrong = (other_judges.condemned(BY_KEY[key].kernel, 0) for key in ("naive_fp32", "too_large"))
    assert right["rule_of_two"] == []
    for found in wrong.values():
        assert {f"o, {key}, {dtype}" for key in short for dtype in other_judges.DTYPES} <= set(found)
    assert other_judges.condemned(lambda q, k, v: None, 0) == dict(assert_close=[], rule_of_two=[])  # takes no causal
