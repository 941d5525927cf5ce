"""`attention_check.testing`, for everybody's tests: a right kernel passes, a wrong one does not, and it is said why."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from attention_check.checks.relations import RELATIONS
from attention_check.report.labels import has_this_error
from attention_check.testing import assert_attention_close, parametrize_with_checks
from attention_check.testing.checks import CHECKS, result_of
from attention_check.tolerance import tolerance
from benchmarks.tolerances import RIGHT, SHAPES, right, worst, wrong
from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64

EXAMPLE = ROOT / "examples" / "kernel_tests"
EXACT = Precision.uniform(FP64)


def drawn(distribution="normal", fmt=BF16, n_q=32, n_kv=256, heads=2, kv_heads=2):
    tensors = draw(distribution, 0, (1, heads, n_q, 64), (1, kv_heads, n_kv, 64))
    return tuple(fmt(x).to(fmt.dtype) for x in tensors)


def carrying(block=16, fmt=BF16, **steps):
    """A kernel that declares FP32 and rounds these steps otherwise."""
    precision = replace(Precision.kernel(fmt), **steps)
    return partial(kernels.tiled, tiling=Tiling(64, block), precision=precision)


def pytest_in(folder, *words):
    """`pytest` in a folder, with no plugin but ours."""
    env = os.environ | dict(PYTHONPATH=str(ROOT), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", OMP_NUM_THREADS="1")
    words = [sys.executable, "-m", "pytest", "-p", "pytest_fa_lib", *words]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("kernel", right(), ids=lambda kernel: f"{kernel.label}, {kernel.fmt}")
def test_a_right_kernel_passes(kernel):
    """A few of the 1,000 seeds that `benchmarks.tolerances` runs."""
    for seed, (distribution, shape) in enumerate(zip(RIGHT, (*SHAPES, *SHAPES))):
        assert worst(kernel, distribution, seed, shape) <= 1


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_16_bits_where_32_are_declared_do_not_pass(distribution):
    found = [kernel for kernel in wrong() if "carried" in kernel.label]
    assert len(found) == 16
    for kernel in found:
        assert worst(kernel, distribution, 0, (64, 256, False)) > 1, kernel


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("step", ["probs", "scores", "exponent", "row_sum", "accumulator"])
def test_each_step_makes_the_error_that_is_derived_for_it(step, distribution):
    """With one step rounded and the others exact: at most the derived standard deviation, which takes each significand
    for the worst, and no less than a third of it; for the exponent a fifth, as kernels that fold the scale into it and
    have an exponential of one ulp are allowed: scores near 2, of which S - m is -1/2, give sqrt(0.23 / 2.8) = 0.28."""
    q, k, v = draw(distribution, 0, (1, 2, 256, 64), (1, 2, 512, 64))
    precision = replace(EXACT, **{step: BF16})
    about = tolerance(q, k, v, precision=precision, tiles=32)
    z = math.sqrt(2 * math.log(2 * about.golden[..., 0].numel() * (about.golden.shape[-1] + 1) / 1e-6))
    s = about.bound / z
    o = kernels.tiled(q, k, v, tiling=Tiling(64, 16), precision=precision)
    found = ((o - about.golden) / s).square().mean().sqrt().item()
    assert (1 / 5 if step == "exponent" else 1 / 3) < found < 1
    of_rows = about.times(o)[1].square().mean().sqrt().item() * z
    # features of O may err alike, and here they do not: 1 / sqrt(64) of the third
    least = {"exponent": 1 / 8, "accumulator": 1 / 24}
    assert least.get(step, 1 / 4) < of_rows < 1


def test_the_false_alarm_rate_sets_the_bound_as_derived():
    q, k, v = draw("normal", 0, (1, 1, 8, 64), (1, 1, 256, 64))
    precision = replace(EXACT, probs=BF16)
    often, seldom = (tolerance(q, k, v, precision=precision, false_alarm=rate).bound for rate in (1e-2, 1e-8))
    count = often.numel() + 8  # outputs and rows
    ratio = math.sqrt(math.log(2 * count / 1e-8) / math.log(2 * count / 1e-2))
    assert torch.allclose(seldom / often, torch.full_like(often, ratio), rtol=1e-6)


@pytest.mark.parametrize("what", ["equal", "nearly equal", "constant V", "small V", "large scores"])
@pytest.mark.parametrize("fmt", [BF16, FP16, FP32], ids=str)
def test_roundings_that_repeat_are_no_alarm(what, fmt):
    q, k, v = draw("normal", 2, (1, 2, 33, 64), (1, 2, 97, 64))
    q = q * {"equal": 0, "nearly equal": 1e-2, "large scores": 16}.get(what, 1)
    v = torch.full_like(v, 0.7) if what == "constant V" else v * 1e-6 if what == "small V" else v.abs()
    q, k, v = (fmt(x).to(fmt.dtype) for x in (q, k, v))
    own = Precision.materialized(fmt)
    assert_attention_close(kernels.flash(q, k, v), q, k, v, precision=fmt)
    o = kernels.reference(q, k, v, precision=own)
    assert_attention_close(o, q, k, v, precision=own, algorithm="baseline")
    uniform = Precision.uniform(fmt)
    o = kernels.tiled(q, k, v, precision=uniform, tiling=Tiling(64, 16), algorithm="fa1")
    assert_attention_close(o, q, k, v, precision=uniform, tiles=7, algorithm="fa1")


def test_equal_probabilities_err_by_more_than_independent_ones_would():
    """255 equal P of Baseline have one error, nearly u: without that, this right kernel would be blamed."""
    q, k, v = (torch.zeros(1, 1, 4, 64), torch.zeros(1, 1, 255, 64), torch.full((1, 1, 255, 64), 0.7))
    precision = replace(EXACT, probs=BF16)
    about = tolerance(q.double(), k.double(), v.double(), precision=precision, algorithm="baseline")
    error = (kernels.reference(q.double(), k.double(), v.double(), precision=precision) - about.golden).abs()
    z = math.sqrt(2 * math.log(2 * about.golden[..., 0].numel() * (about.golden.shape[-1] + 1) / 1e-6))
    independent = z * BF16.unit_roundoff / 3**0.5 * 0.7 / 255**0.5
    assert (error > independent).all() and (error <= about.bound).all()


@pytest.mark.parametrize("options", [
    dict(causal=True), dict(window=(20, 5)), dict(scale=0.3), dict(mask=torch.ones(32, 256, dtype=torch.bool).tril(9)),
], ids=lambda options: next(iter(options)))  # fmt: skip
def test_options_and_shared_heads_are_judged_as_asked(options):
    q, k, v = drawn(kv_heads=1)
    o = kernels.flash(q, k, v, **options)
    assert_attention_close(o, q, k, v, precision=torch.bfloat16, **options)
    with pytest.raises(AssertionError, match="times the bound"):
        assert_attention_close(o, q, k, v, precision="BF16")


def cause_of(key, tiles=0):
    """What is said of an error of a Cause in BF16."""
    return has_this_error(dict(key=key, fmt="BF16", tiles=tiles, factor=1.0, same=True))


@pytest.mark.parametrize(("kernel", "key", "tiles"), [
    (carrying(accumulator=BF16), "accumulator", 16), (carrying(row_sum=BF16), "row_sum", 16),
    (carrying(32, accumulator=BF16, row_sum=BF16), "sums", 8),
])  # fmt: skip
def test_the_sum_that_is_low_is_named(kernel, key, tiles):
    """Other conventions are named as in tests/attention_check/test_explain_fitted.py."""
    q, k, v = drawn("uniform", n_q=32)
    with pytest.raises(AssertionError) as failed:
        assert_attention_close(kernel(q, k, v), q, k, v, precision="BF16", tiles=16)
    assert f": {cause_of(key, tiles)}\n" in str(failed.value)


def test_a_mask_that_the_kernel_rounds_is_named():
    q, k, v = drawn()
    mask = 3 * torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    with pytest.raises(AssertionError, match=f": {cause_of('mask_rounded')}\n"):
        assert_attention_close(kernels.flash(q, k, v, mask=mask), q, k, v, precision="BF16", mask=mask)
    mask = mask.bfloat16()
    assert_attention_close(kernels.flash(q, k, v, mask=mask), q, k, v, precision="BF16", mask=mask)


def test_one_row_is_found_and_an_unknown_mistake_is_unknown():
    q, k, v = drawn()
    o = kernels.flash(q, k, v)
    o[0, 1, 7, 3] += 1
    with pytest.raises(AssertionError) as failed:
        assert_attention_close(o, q, k, v, precision="BF16")
    first, row, *others = str(failed.value).splitlines()
    assert first.endswith(f" 1 of 64 rows, worst (0, 1, 7): {cause_of('')}")
    assert "row (0, 1, 7), feature 3: |o - golden| = 0.999, bound 0.00" in row and not others


def test_an_error_that_each_output_hides_is_seen_in_its_row():
    """As a row sum that is off makes it."""
    q, k, v = drawn()
    precision = replace(Precision.kernel(BF16), output=FP32)
    about = tolerance(q, k, v, precision=precision)
    off = about.golden * (1 + 1.2 * about.of_row / about.golden.norm(dim=-1, keepdim=True))
    hidden = about.times(off)[0].amax(-1) < 1  # of a row, by each output
    assert hidden.any()
    assert_attention_close(about.golden.float(), q, k, v, precision=precision)
    with pytest.raises(AssertionError, match=r"all features: \|\(o - golden\) . golden\| / \|golden\| = "):
        o = off.where(hidden[..., None], about.golden).float()
        assert_attention_close(o, q, k, v, precision=precision)


def test_outputs_of_another_kind_are_told():
    q, k, v = drawn()
    o, mask = kernels.flash(q, k, v), torch.ones(32, 256, dtype=torch.bool)
    mask[5] = False
    for bad, said in (
        (None, "o: got NoneType; due is a tensor"),
        (o.mT, r"o: got shape \(1, 2, 64, 32\); due is \(1, 2, 32, 64\)"),
        (o.float(), "o: got torch.float32; due is torch.bfloat16"),
        (o.index_fill(2, torch.tensor([3]), math.nan), r"NaN or infinite in 2 of 64 rows, the first \(0, 0, 3\)"),
    ):
        with pytest.raises(AssertionError, match=said):
            assert_attention_close(bad, q, k, v, precision="BF16")
    given = dict(precision="BF16", mask=mask)
    assert_attention_close(kernels.flash(q, k, v, mask=mask), q, k, v, **given)
    for value, said in ((math.nan, "NaN .*; 2 of 64 rows"), (1.0, "not 0 in 2 of 64 rows")):
        with pytest.raises(AssertionError, match=said):
            o = kernels.flash(q, k, v, mask=mask).index_fill(2, torch.tensor([5]), value)
            assert_attention_close(o, q, k, v, **given)


@pytest.mark.parametrize(("given", "said"), [
    (dict(tiles=0), "tiles: got 0; accepted .* 256 keys"),
    (dict(tiles=257), "tiles: got 257"), (dict(algorithm="fa3"), "algorithm: got 'fa3'; accepted are fa1, fa2"),
    (dict(false_alarm=0), "false_alarm: got 0;"),
    (dict(precision="BF17"), "format: got 'BF17'"), (dict(is_causal=True), "is_causal: got True; accepted options are"),
], ids=lambda given: next(iter(given)) if isinstance(given, dict) else "")  # fmt: skip
def test_bad_arguments_are_refused(given, said):
    q, k, v = drawn()
    with pytest.raises(ValueError, match=said):
        assert_attention_close(q, q, k, v, **dict(precision="BF16") | given)


def test_every_check_has_an_id_and_an_expected_failure_its_reason():
    mark = parametrize_with_checks(["flash", partial(kernels.tiled)], expected_failures={"every_key": "atomics"}).mark
    names, given = mark.args
    assert names == ("kernel", "check") and len(given) == 2 * len(CHECKS)
    assert {f"flash-{key}" for key in RELATIONS} | {"tiled-carry"} <= {each.id for each in given}
    (one,) = (each for each in given if each.id == "flash-every_key")
    assert one.marks[0].kwargs == dict(reason="atomics", raises=AssertionError, strict=True)
    with pytest.raises(ValueError, match="expected_failures: got 'batch'; accepted are error, problem"):
        parametrize_with_checks(["flash"], expected_failures={"batch": ""})


def test_a_kernel_that_raises_fails_a_check_in_every_format():
    def nothing(q, k, v, causal=False, scale=None):
        raise RuntimeError("no such device")

    broken = result_of("every_key", nothing)
    assert broken.passed is False and broken.why.startswith("BF16, FP16, FP32:")


def test_pytest_starts_without_torch(tmp_path):
    (tmp_path / "test_nothing.py").write_text("import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    done = pytest_in(tmp_path, "-rA")
    assert done.returncode == 0 and "1 passed" in done.stdout and "fa_lib: " in done.stdout, done.stdout


@pytest.mark.slow
def test_a_kernel_is_checked_without_a_file_and_a_stale_expectation_fails(tmp_path):
    (tmp_path / "mine.py").write_text("from fa_lib.kernels import flash as kernel\n")
    done = pytest_in(tmp_path, "--fa-lib-kernel", "mine.py:kernel", "-k", "every_key or carry", "-v")
    assert done.returncode == 0 and "kernel mine.py:kernel" in done.stdout, done.stdout + done.stderr
    assert "test_kernel[mine:kernel-every_key] PASSED" in done.stdout and "2 passed" in done.stdout
    (tmp_path / "test_mine.py").write_text(
        "from attention_check.testing import parametrize_with_checks\n"
        "@parametrize_with_checks(['flash'], expected_failures={'every_key': 'atomics'})\n"
        "def test_kernel(kernel, check):\n    check(kernel)\n"
    )
    done = pytest_in(tmp_path, "-k", "every_key")
    assert done.returncode == 1 and "XPASS(strict)" in done.stdout and "atomics" in done.stdout, done.stdout


@pytest.mark.slow
def test_the_example_passes():
    """Its own tests, and the checks that one of its kernels fails; test_one_judge runs all checks of a right kernel."""
    done = pytest_in(EXAMPLE, "-p", "no:cacheprovider", "-k", "output or sums or error or carry or constant or dv_sum")
    assert done.returncode == 0 and " passed" in done.stdout and " xfailed" in done.stdout, done.stdout
