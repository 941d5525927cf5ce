"""The gallery of mutants: each differs from its right skeleton where its defect says, and nowhere else."""

import math
import re

import pandas as pd
import pytest
import torch

from benchmarks import judge, other_judges
from benchmarks.judge import FIRST, SECOND
from benchmarks.mutants import CONTROLS, MUTANTS, calls
from benchmarks.mutants.controls import fa2
from fa_lib import BF16, Format, kernels
from fa_lib.kernels.inputs import draw

BY_KEY = {each.key: each for each in (*MUTANTS, *CONTROLS)}
HIDDEN = torch.ones(96, 96, dtype=torch.bool).tril().index_fill(0, torch.tensor([3]), False)


def given(n_q=96, n_kv=96, heads=2, kv_heads=2, d=64, dtype=torch.bfloat16, times=1.0, batch=1, **options):
    """Q, K, V, and options."""
    q, k, v = draw("normal", 0, (batch, heads, n_q, d), (batch, kv_heads, n_kv, d))
    return [Format.of(dtype)(x).to(dtype) for x in (q * times, k, v)], options


def with_nan():
    (q, k, v), _ = given()
    v[..., 90, :] = math.nan
    return [q, k, v], dict(mask=torch.arange(96) != 90)


def transposed():
    tensors, _ = given()
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors], {}


CAUSAL, MANY = given(causal=True), given(n_kv=1100)
SHOWN = {  # key -> a call that shows the defect, and one that does not
    "o_in_bf16": (given(n_kv=512), given(n_kv=1)),
    "o_in_fp16": (given(n_kv=512), given(n_kv=1)),
    "l_in_bf16": (given(n_kv=512), given(n_kv=1)),
    "both_in_bf16": (given(n_kv=512), given(n_kv=1)),
    "low_in_decoding": (given(n_q=1, n_kv=512), given(n_q=5, n_kv=512)),
    "splits_in_16_bits": (given(n_kv=512), None),
    "o_not_rescaled": (given(n_kv=512), given(n_kv=64)),
    "maximum_of_first_tile": (given(n_kv=512, dtype=torch.float16, times=30), given(n_kv=64)),
    "p_truncated": (given(), given(dtype=torch.float32)),
    "output_truncated": (given(), given(dtype=torch.float32)),
    "p_in_fp8": (given(), given(n_kv=1)),
    "exp_low_at_0": (given(), given(n_kv=1)),
    "fp16_inside": (given(times=2.0**16), None),
    "no_maximum": (given(times=64), None),
    "too_large": (given(), None),
    "no_scale": (given(), given(scale=0.1)),
    "scale_1_over_d": (given(), given(scale=0.1)),
    "scale_ignored": (given(scale=0.1), given()),
    "log2_e_forgotten": (given(), given(n_kv=1)),
    "window_off_by_one": (given(window=(8, 8)), CAUSAL),
    "sees_next": (CAUSAL, given()),
    "top_left": (given(n_q=32, causal=True), CAUSAL),
    "last_tile_unmasked": (CAUSAL, given()),
    "mask_inverted": (given(mask=~HIDDEN), CAUSAL),
    "hidden_rows_nan": (given(mask=HIDDEN), CAUSAL),
    "hidden_rows_mean": (given(mask=HIDDEN), CAUSAL),
    "hidden_nan_spreads": (with_nan(), given(mask=HIDDEN)),
    "sink_without_mass": (given(sinks=torch.zeros(2)), given()),
    "sink_in_powers_of_2": (given(sinks=torch.ones(2)), given(sinks=torch.zeros(2))),
    "part_dropped": (given(), given(n_kv=128)),
    "last_dropped_above_1024": (MANY, given(n_kv=1024)),
    "padding_counted": (given(), given(n_kv=128)),
    "offsets_in_16_bits": (MANY, given(n_kv=1024)),
    "strides_ignored": (transposed(), given()),
    "heads_in_turn": (given(heads=4), given(heads=4, kv_heads=4)),
    "garbage_beyond_head_dim": (given(d=80), given(d=96)),
    "splits_by_batch": (given(), given(batch=2)),
    "future_in_scale": (given(), None),
    "order_by_chance": (MANY, given(n_kv=64)),
    "noise": (given(), None),
}
ONCE = {"k_changed", "remembers_k"}  # the second call shows it
BACKWARD = {  # a call that shows it, and one that does not
    "dv_wrong_at_96": (given(d=96), given()),
    "dk_not_scaled": (given(), given(scale=1.0)),
    "dk_and_dv_swapped": (given(), given(n_q=1, n_kv=1)),
    "shared_heads_lost": (given(heads=4), given()),
    "delta_forgotten": (given(), None),
    "dq_by_chance": (MANY, given(n_kv=64)),
}


def same(a, b):
    return torch.equal(a.nan_to_num(7e4), b.nan_to_num(7e4))


@pytest.mark.parametrize("key", SHOWN)
def test_a_mutant_differs_where_its_defect_says_and_nowhere_else(key):
    torch.manual_seed(1)
    shown, hidden = SHOWN[key]
    tensors, options = shown
    assert not same(BY_KEY[key].kernel(*tensors, **options), fa2(*tensors, **options))
    if hidden:
        tensors, options = hidden
        assert same(BY_KEY[key].kernel(*tensors, **options), fa2(*tensors, **options))


def gradients(fn, tensors, options):
    x = [t.clone().requires_grad_() for t in tensors]
    o = fn(*x, **options)
    return torch.autograd.grad(o, x, draw("normal", 1, o.shape)[0].to(o.dtype)), o


@pytest.mark.parametrize("key", BACKWARD)
def test_a_mutant_of_the_backward_pass_has_right_outputs(key):
    torch.manual_seed(1)
    shown, hidden = BACKWARD[key]
    (wrong, o), (right, due) = (gradients(fn, *shown) for fn in (BY_KEY[key].kernel, fa2))
    assert same(o, due) and not all(map(same, wrong, right))
    if hidden:
        (wrong, _), (right, _) = (gradients(fn, *hidden) for fn in (BY_KEY[key].kernel, fa2))
        assert all(map(same, wrong, right)) or key == "dk_and_dv_swapped"  # with one key dK is 0, and dV is not


def test_some_defects_show_at_the_second_call(monkeypatch):
    monkeypatch.setattr(calls, "_KEYS", {})
    (q, k, v), _ = given()
    for key in ONCE:
        fn, changed = BY_KEY[key].kernel, k.clone()
        assert same(fn(q, changed, v), fa2(q, k, v))
        assert not same(fn(q, k.flip(-1) if key == "remembers_k" else changed, v), fa2(q, k.flip(-1), v))
        assert torch.equal(changed, k) == (key == "remembers_k")


def test_every_mutant_is_tried_here_and_says_what_it_is():
    assert SHOWN.keys() | BACKWARD.keys() | ONCE == {each.key for each in MUTANTS}
    assert len(BY_KEY) == len(MUTANTS) + len(CONTROLS) and len(MUTANTS) >= 32 and len(CONTROLS) >= 12
    assert len({each.key for each in judge.EVERY}) == len(judge.EVERY) == 66 + 54
    for each in judge.EVERY:
        assert each.defect.endswith(".") and kernels.get(each.name) is each.kernel
        assert re.fullmatch(r"(arXiv \d{4}\.\d{5}|github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|)", each.source)


@pytest.mark.parametrize("each", (*CONTROLS, *SECOND.controls), ids=lambda each: each.key)
def test_controls_are_attention(each):
    """Within eight roundings to BF16 of the golden value, at the largest output; gradients too."""
    for tensors, options in (given(n_q=40, heads=4, batch=2), given(causal=True, scale=0.1)):
        x = [t.double().requires_grad_() for t in tensors]
        golden = kernels.golden(*x, inputs=BF16, **options)
        due = torch.autograd.grad(golden, x, draw("normal", 1, golden.shape)[0].to(torch.bfloat16).double())
        grads, o = gradients(each.kernel, tensors, options)
        for a, b in zip((o, *grads), (golden, *due)):
            assert (a.double() - b).abs().max() <= 8 * BF16.unit_roundoff * b.abs().max()


def rows(**changed):
    """A score: every mutant condemned, every control passed."""
    found = []
    for each in judge.EVERY:
        verdict = "fails" if each in (*MUTANTS, *SECOND.mutants) else "passes"
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
    lines = judge.totals(rows(noise=silent, fa2=dict(verdict="fails")), FIRST).splitlines()
    assert lines[2].startswith(f"| ours | {len(MUTANTS) - 1} of {len(MUTANTS)} | 0 | 1 | 1 of {len(CONTROLS)} ")
    by_kernel = judge.by_kernel(rows(noise=told)).set_index("kernel")
    assert (by_kernel.kind == "mutant").sum() == len(MUTANTS) + len(SECOND.mutants)
    assert [*by_kernel.loc["noise", ["ours", "reported", "assert_close", "rule_of_two"]]] == [0, "gradients: dv", 1, 0]


def test_every_kernel_has_a_line_in_the_committed_table():
    assert {*pd.read_csv(judge.KERNELS).kernel} == {each.key for each in judge.EVERY}


def test_the_second_set_was_judged_before_the_judge_knew_it():
    first = judge.first_look()
    assert (
        set(first.kernel) == {each.name for each in SECOND.every} and first.groupby("kernel").seed.nunique().eq(5).all()
    )
    lines = judge.totals(first, SECOND).splitlines()
    assert lines[2].startswith("| ours | 26 of 40 | 0 | 14 | 5 of 70 | 1 of 14 |")
    assert judge.totals(first, SECOND) in judge.PAGE.read_text()


def test_the_other_judges_judge(monkeypatch):
    """Right attention in FP32 is within flash-attention's rule; 1.15 times it is condemned by both, in each dtype."""
    short = {key: call for key, call in other_judges.CALLS.items() if call.n_kv == 203}
    monkeypatch.setattr(other_judges, "CALLS", short)
    right, wrong = (other_judges.condemned(BY_KEY[key].kernel, 0) for key in ("naive_fp32", "too_large"))
    assert right["rule_of_two"] == []
    for found in wrong.values():
        assert {f"o, {key}, {dtype}" for key in short for dtype in other_judges.DTYPES} <= set(found)
    assert other_judges.condemned(lambda q, k, v: None, 0) == dict(assert_close=[], rule_of_two=[])  # takes no causal
