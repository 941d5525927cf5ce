"""Some checks of a kernel by name: which there are, what is told, and the exit codes."""

import json
from dataclasses import dataclass

import pytest
import torch
from in_a_folder import command

from attention_check.testing.checks import CHECKS, Result, check_lines, check_named, chosen, failed, result_of
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef

MINE = "examples.my_kernel:attention"  # carries BF16


def test_a_name_is_a_check_and_any_word_of_it_all_of_its_kind():
    assert chosen(["carry", "strides", "carry_row_sum"]) == ["carry_accumulator", "carry_row_sum", "strides"]
    assert len(chosen(["rule"])) == sum(check.startswith("rule_") for check in CHECKS) > 2
    assert chosen(["softcap"])[0] == "answer_softcap"
    assert any(check.startswith("answer_one_query_") for check in chosen(["decoding"]))
    with pytest.raises(ValueError, match=r"check: got 'carr'; accepted are error_uniform, .*, or words of these"):
        chosen(["carr"])


def test_a_kernel_need_not_be_hashable_and_a_name_may_stand_for_another_one_later():
    @dataclass
    class Kernel:
        times: float

        def __call__(self, q, k, v):
            return self.times * torch.nn.functional.scaled_dot_product_attention(q, k, v)

    right, wrong = Kernel(1.0), Kernel(2.0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(right)
    check = "answer_fewer_queries"
    assert result_of(check, right).passed and not result_of(check, wrong).passed
    for kernel in (right, wrong):
        assert result_of(check, KernelRef("", "by_name", fn=kernel)).passed == (kernel is right)


def test_a_kernel_is_asked_what_is_named_and_nothing_else(tmp_path):
    found = check_named("flash", ["carry", "sinks"])
    assert [result.passed for result in found.values()] == [True, True, None] and failed(found) is False
    path = tmp_path / "found.json"
    done = command(
        "check", "kernel", MINE, "--check", "carry", "--check", "strides", "--exit-code", "--json", f"{path}"
    )
    assert done.exit_code == 1
    first, *lines = done.stdout.splitlines()
    assert first == f"{MINE}: 4 checks: 2 passed, 2 failed."  # and its conduct
    assert lines[0].startswith("  carry_accumulator: FAILS: It keeps its accumulator O in low precision")
    assert "in tiles of" in lines[0]
    record = json.loads(path.read_text())
    assert record["kernel"] == MINE and not record["checks"]["carry_row_sum"]["passed"] and record["versions"]
    assert command("check", "kernel", MINE, "--check", "carry").exit_code == 0  # without --exit-code


@pytest.mark.parametrize(
    "kernel, check",
    [
        ("benchmarks.mutants.gradients:dv_wrong_at_96", "answer_gradients_at_96"),
        ("benchmarks.mutants.gradients:dk_not_scaled", "gradients_97"),
        ("benchmarks.mutants.casts:p_truncated", "rounding_probs"),
        ("benchmarks.mutants.scores:scale_ignored", "answer_scale"),
    ],
)
def test_a_defect_fails_the_check_of_its_name_and_a_right_kernel_passes(kernel, check):
    assert result_of(check, kernel).passed is False
    assert result_of(check, "benchmarks.mutants.controls:fa2").passed is True


def test_what_could_not_be_asked_is_no_pass():
    nothing = {"sinks": Result(None, "no such option")}
    assert failed(nothing) is None and failed(nothing | {"strides": Result(True)}) is False
    assert check_lines("k", nothing)[0] == "k: 1 check: 1 not run."
    assert command("check", "kernel", "flash", "--check", "sinks", "--exit-code").exit_code == 3


@pytest.mark.parametrize(
    "words, message",
    [
        (("flash", "--check", "nothing"), "check: got 'nothing'; accepted are error_uniform"),
        (("flash", "--check", "carry", "--quick"), "quick: got it with"),
        (("flash", "--check", "carry", "--seed", "3"), "seed: got it with"),
        (("flash", "--check", "carry", "--device", "cuda"), "device: got 'cuda';"),
        (("no.such:kernel", "--check", "carry"), "no.such"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(words, message):
    done = command("check", "kernel", *words)
    assert done.exit_code == 2 and message in done.stderr and done.stdout == ""


def multiples_of_128(q, k, v):
    """A kernel for lengths of whole tiles."""
    if k.shape[-2] % 128:
        raise NotImplementedError("multiples of 128 keys")
    return kernels.as_shipped(q, k, v)


def test_gradients_of_a_shape_that_a_kernel_refuses_are_not_asked():
    found = {check: result_of(check, multiples_of_128).passed for check in ("rule_97", "gradients_97", "gradients_256")}
    assert found == {"rule_97": None, "gradients_97": None, "gradients_256": True}
