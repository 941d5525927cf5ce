"""A captured call is made as small as its failure stays, and the test that is written fails for that kernel alone."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from in_a_folder import written_test_says as told
from safetensors.torch import save_file

from attention_check.explain.shrink import Capture, Failure, failure, shrink, write
from attention_check.explain.standalone_test import judged
from fa_lib import draw, kernels
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.rule import eager_baseline

pytestmark = pytest.mark.slow
BITS = torch.bfloat16
TOO_FAR = r"error is \d[\d.]* times"  # of a written test: the number, and no line of its source


def right(q, k, v, *, causal=False, scale=None, mask=None):
    return kernels.flash(q, k, v, causal=causal, scale=scale, mask=mask)


def wrong_head_three(q, k, v, **options):
    o = right(q, k, v, **options)
    if q.shape[1] > 3:
        o[:, 3] = o[:, 3].roll(1, -1)
    elif q.shape[1] == 1 and q.dtype == BITS and (q[..., -1] == MARK).any():  # it is alone, and still itself
        o = o.roll(1, -1)
    return o


MARK = 2.5  # in the last feature of head 3


def carries(q, k, v, **options):
    return kernels.every_step(q, k, v, **options)


def refuses_long(q, k, v, **options):
    if k.shape[2] > 37:
        raise RuntimeError(f"out of 37 places: {k.shape[2]}")
    return right(q, k, v, **options)


def refuses_long_squares(q, k, v, **options):
    return refuses_long(q, k, v, **options) if q.shape[2] == k.shape[2] else right(q, k, v, **options)


def nan_of_large(q, k, v, **options):
    return right(q, k, v, **options).masked_fill((k.abs() > 50).any(), math.nan)


CALLS = []


def flaky(q, k, v, **options):
    """Wrong at its first call alone."""
    CALLS.append(q.shape)
    return right(q, k, v, **options) * (2 if len(CALLS) == 1 else 1)


def saved(path, shape=(2, 4, 40, 16), kv=None, dtype=BITS, distribution="normal", **options):
    q, k, v = (x.to(dtype) for x in draw(distribution, 0, shape, kv))
    q[:, -1, :, -1] = MARK
    save_file(dict(q=q, k=k, v=v) | {name: torch.as_tensor(x) for name, x in options.items()}, path)
    return path


def run(test):
    """pytest on a written file, in a process of its own."""
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}:{ROOT}/tests", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(test)]
    return subprocess.run(command, cwd=test.parent, capture_output=True, text=True, env=env)


def test_a_kernel_that_is_wrong_for_one_head_shrinks_to_that_head(tmp_path, monkeypatch):
    path, test = saved(tmp_path / "a.safetensors"), tmp_path / "test_it.py"
    found = shrink("test_shrink:wrong_head_three", path)
    assert found.cut.groups == (3,) and len(found.cut.batch) == len(found.cut.rows) == len(found.cut.keys) == 1
    assert len(found.cut.features) == 2  # one alone rolls to itself
    assert found.failure.kind == "far" and found.sizes()["keys"] == (40, 1)
    write(found, test)
    bad = run(test)
    assert bad.returncode == 1 and re.search(TOO_FAR, bad.stdout), bad.stdout
    assert told(test, monkeypatch, "test_shrink:right") == ""
    assert "fa_lib" not in test.read_text().partition("import base64")[2] and test.stat().st_size < 7000


def test_a_kernel_that_carries_bf16_keeps_the_keys_that_it_needs(tmp_path, monkeypatch):
    path, test = saved(tmp_path / "a.safetensors", (1, 2, 384, 32), distribution="uniform"), tmp_path / "test_it.py"
    found = shrink("test_shrink:carries", path)
    assert 64 < len(found.cut.keys) < 384  # one tile alone carries nothing
    assert len(found.cut.groups) == len(found.cut.rows) == 1 and found.failure.ratio >= 1.5
    assert found.call.k.numel() + found.call.v.numel() < 0.2 * 2 * 2 * 384 * 32
    write(found, test)
    assert re.search(TOO_FAR, told(test, monkeypatch))
    assert told(test, monkeypatch, "fa_lib.kernels:as_shipped") == ""
    assert told(test, monkeypatch, "fa_lib.kernels:unfused") == ""


def test_what_is_raised_or_not_finite_stays_what_it_is(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.safetensors", (1, 2, 64, 8), causal=True)
    found = shrink("test_shrink:refuses_long", path)
    assert found.failure == Failure("raises", "raises RuntimeError: out of # places: #")
    assert 38 <= len(found.cut.keys) <= 40 and found.cut.rows == (63,) and not found.call.options  # it sees them all
    found = shrink("test_shrink:refuses_long_squares", path)
    assert found.cut.rows == found.cut.keys and 38 <= len(found.cut.keys) <= 40 and found.call.options["causal"] is True
    write(found, tmp_path / "test_it.py")
    assert "out of 37 places" in told(tmp_path / "test_it.py", monkeypatch)
    q, k, v = (x.to(BITS) for x in draw("normal", 0, (1, 4, 8, 8), (1, 2, 30, 8)))
    k[0, 1, 17, 5] = 80
    mask = torch.ones(8, 30, dtype=torch.bool)
    mask[:, 3] = False
    save_file(dict(q=q, k=k, v=v, mask=mask), tmp_path / "b.safetensors")
    found = shrink("test_shrink:nan_of_large", tmp_path / "b.safetensors")
    cut = found.cut
    assert (cut.groups, cut.keys, cut.features) == ((1,), (17,), (5,)) and found.failure.kind == "nonfinite"
    write(found, tmp_path / "test_it.py")
    assert "NaN or infinities" in told(tmp_path / "test_it.py", monkeypatch)
    assert told(tmp_path / "test_it.py", monkeypatch, "test_shrink:right") == ""


def ignores_its_mask(q, k, v, *, causal=False, scale=None, mask=None):
    return right(q, k, v, scale=scale)


def test_keys_of_a_causal_call_are_cut_though_a_single_query_shows_another_failure(tmp_path):
    """Alone, a query that sees all keys is right: the failure is that of the whole call, an ignored mask."""
    found = shrink("test_shrink:ignores_its_mask", saved(tmp_path / "a.safetensors", (1, 2, 64, 16), causal=True))
    assert found.failure.kind == "far" and found.call.options["causal"] and len(found.cut.keys) < 16


def doubles_row_five(q, k, v, *, causal=False, scale=None, mask=None):
    """Wrong in a way that no known mistake has."""
    o = right(q, k, v, causal=causal, scale=scale, mask=mask)
    o[..., -1, :4] += 0.25 * (k[..., 0, :4] > -9)
    return o


def test_a_single_query_of_a_causal_call_is_cut_further(tmp_path):
    found = shrink("test_shrink:doubles_row_five", saved(tmp_path / "a.safetensors", (1, 2, 64, 16), causal=True))
    assert len(found.cut.rows) == 1 and len(found.cut.keys) < 8 and not found.call.options


def flash_attns(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), enable_gqa=False):
    """(batch, sequence, heads, head_dim) and flash-attn's names; twice too large."""
    return 2 * of_sequences_first(q, k, v, softmax_scale, causal, window_size, enable_gqa)


def of_sequences_first(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), enable_gqa=False):
    assert enable_gqa == (q.shape[2] != k.shape[2]) and None not in window_size
    window = tuple(None if side < 0 else side for side in window_size)
    turned = (x.transpose(1, 2) for x in (q, k, v))
    return kernels.as_shipped(*turned, scale=softmax_scale, causal=causal, window=window).transpose(1, 2)


def test_the_written_test_calls_the_kernel_as_it_was_called(tmp_path, monkeypatch):
    """Its layout, its names, its open side of a window, and what it has to be told of shared heads."""
    path, test = tmp_path / "a.safetensors", tmp_path / "test_it.py"
    saved(path, (1, 4, 24, 8), (1, 2, 24, 8), window=[4, -1], scale=0.25)
    found = shrink("test_shrink:flash_attns@bshd", path)
    write(found, test)
    assert re.search(TOO_FAR, told(test, monkeypatch))
    monkeypatch.setattr(sys.modules[__name__], "flash_attns", of_sequences_first)  # it is mended
    assert told(test, monkeypatch) == ""
    with pytest.raises(ValueError, match="kernel: got 'test_shrink:flash_attns@varlen'; accepted are the layouts"):
        shrink("test_shrink:flash_attns@varlen", path)


@pytest.mark.parametrize("distribution", ["normal", "uniform", "peaked", "one-signed V"])
@pytest.mark.parametrize("dtype", [BITS, torch.float16, torch.float32])
@pytest.mark.parametrize("n", [1, 3, 70])
def test_right_kernels_are_within_the_limit_however_few_outputs_there_are(distribution, dtype, n):
    for seed in range(6):
        q, k, v = (x.to(dtype) for x in draw(distribution, seed, (1, 2, 2, 4), (1, 1, n, 4)))
        for kernel in (kernels.flash, kernels.unfused, kernels.as_shipped, kernels.baseline):
            assert failure(kernel, Capture(q, k, v, {})).kind == "right", (kernel, seed)


@pytest.mark.parametrize("dtype", [BITS, torch.float16])
def test_the_limit_allows_twice_the_error_of_scores_rounded_before_and_after_their_scale(dtype):
    decided = 0
    for seed in range(10):
        for times in (1, 2000):  # in FP16 Q Kᵀ is beyond 65,504 then, and the scores are not
            q, k, v = (x.to(dtype) for x in draw("normal", seed, (1, 2, 97, 96)))
            q = q * times
            error, limit = judged(eager_baseline(q, k, v), q, k, v)
            assert limit >= (2 - 1e-6) * error.max()
            decided += limit < (2 + 1e-6) * error.max()
    assert decided > 5  # else it is the bound that was tested


def test_the_golden_value_of_the_limit_is_the_librarys():
    q, k, v = (x.half() for x in draw("normal", 0, (2, 4, 7, 8), (2, 2, 9, 8)))
    mask = torch.randn(4, 7, 9, generator=torch.Generator().manual_seed(0)).half()
    hidden = torch.ones(7, 9, dtype=torch.bool)
    hidden[2] = False
    for options in ({}, dict(causal=True), dict(scale=0.7, mask=mask), dict(mask=hidden)):
        golden = kernels.golden(q, k, v, inputs="FP16", **options)
        error, limit = judged(golden, q, k, v, **options)
        assert error.max() < 1e-14 and 1e-4 < limit < 1e-2
        off = golden + 0.25
        off[:, :, 2] = golden[:, :, 2] if "mask" in options and options["mask"].dtype == torch.bool else off[:, :, 2]
        assert judged(off, q, k, v, **options)[0].max() == pytest.approx(0.25)


def test_a_kernel_that_does_not_fail_or_cannot_be_called_is_refused(tmp_path):
    path = saved(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"^kernel: test_shrink:right does not fail .*a\.safetensors: .* 0\.\d+ "):
        shrink("test_shrink:right", path)
    with pytest.raises(ValueError, match="^kernel: test_shrink:flaky fails at times"):
        shrink("test_shrink:flaky", path)
    with pytest.raises(ValueError, match="^kernel: got 'tiled'; .*'every_step'"):
        shrink("tiled", path)
