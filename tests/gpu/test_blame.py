"""Which line loses the digits: a planted coarse step is found, and FlashAttention-2's shares are the theory's."""

import re

import pytest
import torch
from in_a_folder import command
from triton_kernels import coarse_accumulator, coarse_row_sum, coarse_scores, exact_inside, in_parts

from attention_check.gpu.blame import blame, source_text, what_if
from benchmarks.blamed import fa2_forward
from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import FP16, FP32
from fa_lib.theory.rounding_counts import roundings

MINE = "examples.triton_attention:attention"


def drawn(n_q, n_kv, distribution="normal", dtype=torch.bfloat16, seed=0):
    return [x.to(dtype) for x in draw(distribution, seed, (1, 1, n_q, 64), (1, 1, n_kv, 64))]


@pytest.mark.parametrize("fn, words", [
    (coarse_scores, "the coarse scores"), (coarse_row_sum, "the coarse row sum"),
    (coarse_accumulator, "the coarse accumulator"),
])  # fmt: skip
@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_a_planted_coarse_step_is_found(fn, words, gpu):
    """On an H100 Triton takes wgmma."""
    q, k, v = drawn(64, 512, "uniform" if fn is coarse_row_sum else "normal")
    found = blame(fn, q, k, v, gpu=gpu)
    worst = found.table.iloc[0]
    assert words in worst.text and worst.share > 0.4 and worst.without < 0.8, found.table
    assert found.complete and not found.lost
    (better,) = what_if(fn, q, k, v, [{worst.line: FP32}], gpu=gpu)
    assert float(better.norm() / found.size) == pytest.approx(worst.without, rel=1e-3)


def test_without_a_coarse_step_the_error_is_that_of_p_and_o():
    q, k, v = drawn(64, 256)
    found = blame(exact_inside, q, k, v)
    first, second = found.table.text[:2]
    assert "tl.store(O" in first and "p.to(q.dtype)" in second
    assert found.table.share[:2].sum() == pytest.approx(1, abs=1e-3)
    assert found.table.share.sum() == pytest.approx(1, abs=1e-6)


def test_the_error_that_is_split_is_the_kernels_own():
    q, k, v = drawn(64, 256, dtype=torch.float16)
    found, o = blame(MINE, q, k, v, gpu="H100"), kernels.get(MINE, gpu="H100")(q, k, v)
    assert torch.equal(found.exact + found.error, o.double())
    golden = kernels.golden(q, k, v, inputs=FP16)
    assert (found.exact - golden).norm() / golden.norm() < 1e-7
    assert found.coarse_format == FP16 and (found.table.coarse >= 0.99).all()


def test_what_has_no_shadows_is_refused():
    with pytest.raises(
        ValueError, match="its numbers have no shadows; accepted are kernels without it: choose another"
    ):
        blame(MINE, *drawn(128, 256), gpu="B200")


def test_shadows_go_from_kernel_to_kernel_and_through_atomic_sums():
    q, k, v = drawn(64, 256)
    found = blame(in_parts, q, k, v)
    assert found.complete and "parts in 16 bits" in found.table.text[0] + found.table.text[1]
    assert found.table.share.sum() == pytest.approx(1, abs=1e-3), "O in FP32, before torch rounds it"


@pytest.mark.parametrize("distribution, values", [("normal", "zero_mean"), ("uniform", "one_sign")])
def test_the_shares_of_flash_attention_2_are_the_theorys(distribution, values):
    """Of P's rounding and of storing O; all else is FP32."""
    shares = {"P": 0.0, "O": 0.0}
    for seed in range(2):
        q, k, v = drawn(128, 512, distribution, seed=seed)
        found = blame(fa2_forward, q, k, v)
        assert found.complete
        for row in found.table[found.table.share.abs() > 1e-4].to_dict("records"):
            assert row["what"] == "cvt.bf16x2", row
            file, _, number = row["within"].rpartition(":")
            shares["O" if "acc_o" in source_text(file)[int(number)] else "P"] += row["share"] / 2
    weight = roundings(512 // 64, "fa2", values, 64).terms["probs"]
    assert shares["O"] == pytest.approx(1 / (1 + weight), rel=0.25)
    if values == "zero_mean":
        assert shares["P"] == pytest.approx(weight / (1 + weight), rel=0.25)


def test_the_command_prints_the_lines():
    result = command("blame", MINE, "-n", "64")
    assert result.exit_code == 0, result.output
    assert re.search(r"\d+ %    0\.\d\d     1\.00  triton_attention\.py:41\n +tl\.store", result.output)


def test_the_source_of_a_kernel_that_was_compiled_in_another_checkout_is_read(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "tl.store" in source_text("/gone/elsewhere/examples/triton_attention.py")[41]
    assert source_text("/gone/elsewhere/nothing.py") == {}


def test_a_kernel_that_launches_nothing_is_refused():
    with pytest.raises(ValueError, match=r"whose output no kernel here has written; accepted is one that launches"):
        blame("baseline", *drawn(16, 16))
