"""A verdict on kernels whose faults are known, and on files: what the reports say, and what they refuse."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch

from fa_lib import BF16, FP16, Precision, Tiling, kernels
from fa_lib.check.judge import carried, interval, judge
from fa_lib.check.kernel import BIASED, attempt, carry, contract, examine, measure, repeats, ruled
from fa_lib.paths import ROOT

SMALL = dict(lengths=[128, 1024], seeds=2, shapes=["97", "causal 203"], head_dims=[32], troubled_n=128, bias_seeds=3,
             runs=3)  # fmt: skip


def emulated(q, k, v, steps=(), block_kv=64, **options):
    precision = replace(Precision.kernel(q.dtype), **dict.fromkeys(steps, q.dtype))
    return kernels.tiled(q, k, v, tiling=Tiling(64, block_kv), precision=precision, **options)


def register(name, fn):
    if name not in kernels.available():
        kernels.register(name, fn)
    return name


@pytest.mark.parametrize("fmt", [BF16, FP16])
@pytest.mark.parametrize("steps", [(), ("accumulator",), ("stats",), ("accumulator", "stats")])
@pytest.mark.parametrize(
    "given", [dict(), dict(algorithm="fa1"), dict(reverse=True), dict(block_kv=16), dict(block_kv=256)]
)
def test_what_a_kernel_carries_is_seen_from_outside(fmt, steps, given):
    """Which of its sums, and in tiles of how many keys."""
    name = f"{steps}, {given}"
    found = carried(
        pd.DataFrame(carry(register(name, partial(emulated, steps=steps, **given)), fmt)).assign(fmt=fmt.name)
    )
    low = {one["what"]: one["low"] for one in found}
    due = {"accumulator O": "accumulator" in steps, "row sum l": "stats" in steps}
    if given.get("algorithm") == "fa1" and "accumulator" in steps:
        assert low.pop("row sum l") in (True, False)  # it divides O, kept in the format, by l at every tile
        due.pop("row sum l")
    assert low == due
    assert {one["tile"] for one in found if due.get(one["what"])} <= {given.get("block_kv", 64)}
    assert all(one["lost"] < 1 for one in found if not one["low"])


def test_real_kernels_carry_no_low_precision():
    for name in ("flash", "unfused", "baseline"):
        for fmt in ("BF16", "FP16"):
            found = carried(pd.DataFrame(carry(name, fmt)).assign(fmt=fmt))
            assert [one["low"] for one in found] == [False, False], name


def test_splits_do_not_hide_a_carry():
    name = register("in splits", partial(emulated, steps=("accumulator", "stats"), splits=8))
    assert {one["low"] for one in carried(pd.DataFrame(carry(name, BF16)).assign(fmt="BF16"))} == {True}


@pytest.fixture(scope="module")
def verdicts():
    tables = {name: examine(name, **SMALL) for name in ("flash", "unfused", "every_step")}
    return {name: judge(name, **tables[name]) for name in tables}


def test_good_kernels_pass_and_a_bad_one_fails_for_its_carry(verdicts):
    assert verdicts["flash"].passed and verdicts["unfused"].passed
    assert verdicts["flash"].carries == () and "between tiles: no" in str(verdicts["flash"])
    bad = verdicts["every_step"]
    assert not bad.passed and bad.carries == ("accumulator O", "row sum l")
    assert "between tiles: yes, in its accumulator O and row sum l" in str(bad) and "FP32" in bad.advice
    assert re.search(r"times Baseline's \(uniform inputs, (BF16|FP16), N = 1024\), where the rule allows 2", str(bad))
    assert "the same bits in 3 of 3 runs" in str(bad)


def attention(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def only_whole_tiles(q, k, v, causal=False, scale=None):
    if k.shape[-2] % 64:
        raise RuntimeError("keys must be a multiple of 64")
    return attention(q, k, v, is_causal=causal, scale=scale)


def no_causality(q, k, v, causal=False, scale=None):
    return attention(q, k, v, scale=scale)


BROKEN = {
    "raises": (lambda q, k, v: 1 / 0, "no", "raises ZeroDivisionError"),
    "nan": (lambda q, k, v: attention(q, k, v) * math.nan, "broken", "65536 NaN or infinite values"),
    "shape": (lambda q, k, v: attention(q, k, v)[..., :1], "broken", r"of shape \(2, 2, 256, 1\), where"),
    "dtype": (lambda q, k, v: attention(q, k, v).double() if q.dtype != torch.float64 else None, "broken", "is due"),
    "list": (lambda q, k, v: [q], "broken", "returns list, where a tensor is due"),
    "changes": (lambda q, k, v: k.mul_(2) and None or attention(q, k, v), "no", "raises RuntimeError"),
    "other": (lambda q, k, v: v.mean(-2, keepdim=True).expand_as(q), "wrong", "not attention's"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_that_is_none_is_reported_as_that(name):
    fn, outcome, detail = BROKEN[name]
    asked = pd.DataFrame(contract(register(f"broken: {name}", fn)))
    assert asked.outcome.iloc[0] == outcome and re.search(detail, asked.detail.iloc[0]), asked.iloc[0]
    tables = examine(f"broken: {name}", **SMALL)
    verdict = judge(f"broken: {name}", **tables)
    assert (
        not verdict.passed
        and verdict.carries is None
        and re.search("It (is no attention kernel|could not be run): asked for BF16 it", str(verdict))
    )


def test_a_kernel_that_changes_its_inputs_is_caught():
    def scales_q(q, k, v):
        with torch.no_grad():
            q.mul_(k.shape[-1] ** -0.5)
        return attention(q, k, v, scale=1.0)

    q, k, v = torch.randn(3, 1, 2, 8, 16)
    assert attempt(scales_q, q, k, v)[1] == "changes its inputs: q"
    assert attempt(attention, q, k, v)[1] == ""


def test_a_kernel_that_does_less_is_judged_by_what_it_does():
    name = register("whole tiles", only_whole_tiles)
    tables = examine(name, **SMALL | dict(shapes=["97", "GQA 384", "1024"]))
    asked = tables["asked"].set_index("asked")
    assert asked.outcome["a length off the tiles, N = 203"] == "no"
    assert "multiple of 64" in asked.detail["a length off the tiles, N = 203"]
    assert asked.detail["causal, fewer queries than keys"] == "aligned top-left, as torch's is_causal"
    verdict = judge(name, **tables)
    assert verdict.passed and "Not supported, so not judged: a length off the tiles" in str(verdict)
    shapes = tables["shapes"]
    assert shapes[shapes["shape"] == "97"].problem.str.contains("multiple of 64").all()
    assert shapes[shapes["shape"] == "1024"].passed.astype(bool).all()


def written_out(q, k, v, causal=False, scale=None, m=None, sure=lambda q: None):
    sure(q)
    S = (q.float() @ k.float().mT) * (scale or q.shape[-1] ** -0.5)
    S = S.masked_fill(torch.ones(S.shape[-2:]).triu(1) > 0, -math.inf) if causal else S  # top-left
    P = torch.exp(S - (S.amax(-1, keepdim=True) if m is None else m))
    return ((P.to(q.dtype).float() @ v.float()) / P.sum(-1, keepdim=True)).to(q.dtype)


def only(condition):
    def sure(q):
        assert condition(q), "not this one"

    return partial(written_out, sure=sure)


def examined(name, fn, **changes):
    tables = examine(register(name, fn), **SMALL | changes)
    return judge(name, **tables)


def test_a_softmax_without_the_maximum_fails_where_scores_are_large():
    verdict = examined("no maximum", partial(written_out, m=0.0))
    assert not verdict.passed and "Asked for scores up to some 250: returns" in str(verdict)


def test_nan_on_inputs_that_make_trouble_fails():
    def nan_on_peaked(q, k, v):
        return written_out(q, k, v) * (math.nan if q.std() * 8 > 20 and q.shape[-2] == 128 else 1)

    verdict = examined("nan on peaked", nan_on_peaked)
    assert not verdict.passed and "On peaked inputs in BF16 at N = 128 it returns 8192 NaN" in str(verdict)
    assert "nan times" not in str(verdict)


def test_kernels_of_one_format_or_one_head_dim_are_judged_in_it():
    assert examined("FP32 alone", only(lambda q: q.dtype == torch.float32)).passed
    assert examined("FP16 alone", only(lambda q: q.dtype == torch.float16)).passed
    verdict = examined("FP64 alone", only(lambda q: q.dtype == torch.float64))
    assert not verdict.passed and "FP64 alone, the golden value's own format" in str(verdict)
    assert examined("128 alone", only(lambda q: q.shape[-1] == 128)).passed


def test_top_left_causality_is_told_and_not_counted():
    verdict = examined("top left", written_out, shapes=["causal 203", "causal 113 x 203"])
    assert verdict.passed and "aligned top-left" in str(verdict)


def test_a_kernel_without_gradients_or_long_lengths_is_judged_by_the_rest():
    def short(q, k, v):
        assert k.shape[-2] < 600, "too long"
        return torch.from_numpy(written_out(q.float(), k.float(), v.float()).numpy()).to(q.dtype)

    verdict = examined("short", short)
    assert verdict.passed and "Not judged: On uniform inputs in BF16 at N = 1024 it raises" in str(verdict)
    assert "could not be seen: raises AssertionError: too long" in str(verdict)


def test_low_precision_elsewhere_is_not_called_a_carry():
    def scaled_first(q, k, v):
        return written_out((q * (q.shape[-1] ** -0.5 * 1.4427)).to(q.dtype), k, v, scale=0.6931)

    found = carried(pd.DataFrame(carry(register("scaled first", scaled_first), BF16)).assign(fmt="BF16"))
    assert [one["low"] for one in found] == [False, False] and found[1]["lost"] > 1


def test_a_parameter_of_that_name_makes_no_emulated_kernel():
    def named(q, k, v, precision="highest"):
        assert precision == "highest"
        return written_out(q, k, v)

    assert contract(register("named", named))[0]["outcome"] == "yes"


def test_an_option_that_is_ignored_fails():
    asked = pd.DataFrame(contract(register("no causality", no_causality))).set_index("asked")
    assert asked.outcome["causal"] == "wrong" and asked.detail["causal"] == "it takes causal=True and does not mask"


def test_runs_that_differ_are_counted():
    noise = iter(range(1000))
    name = register("noisy", lambda q, k, v: attention(q, k, v) + 1e-2 * next(noise))
    assert repeats(name, "BF16", 5)["outputs"] == 5 and repeats("flash", "BF16", 5) == dict(
        runs=5, outputs=1, gradients=1
    )


def test_the_bias_is_of_the_kernel_and_not_of_the_rounding_of_its_output():
    """With two maxima and V > 0 the rounded golden value errs to one side itself, as does one that carries FP32."""
    assert abs(measure("as_shipped", "BF16", BIASED, 256, 0)["outwards"]) < 1e-3
    assert measure("baseline", "BF16", BIASED, 256, 0)["outwards"] > 0.05
    low = register("O alone", partial(emulated, steps=("accumulator",), block_kv=512))
    assert measure(low, "BF16", BIASED, 256, 0)["outwards"] > 0.05


def test_a_confidence_interval_is_students():
    mean, low, high = interval(pd.Series([1.0, 2.0, 3.0]))
    assert mean == 2 and high - 2 == pytest.approx(4.302653 / 3**0.5, rel=1e-6) and low == pytest.approx(4 - high)


def test_ruled_answers_whatever_a_kernel_does():
    rows = ruled("97", 32, "normal", "BF16", 0, register("always raises", lambda *_, **__: 1 / 0))
    assert [row["problem"] for row in rows] == ["raises ZeroDivisionError: division by zero"]


def command(*words, cwd=ROOT, **env):
    return subprocess.run(
        [sys.executable, "-m", "fa_lib.check.report", *words], cwd=cwd, capture_output=True, text=True,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1", **env},
    )  # fmt: skip


def test_a_users_file_is_reported_on_in_one_page(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text((ROOT / "examples" / "my_kernel.py").read_text())
    (ROOT / "build").mkdir(exist_ok=True)
    done = command(
        "--kernel", "own.mine:attention", "--out", str(tmp_path / "reports"), "--gate", "--scale", "quick", cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "own.mine:attention fails. It carries low precision between tiles: yes, in its accumulator O" in done.stdout
    assert "tiles of up to 32 keys" in done.stdout
    page = (tmp_path / "reports" / "own.mine_attention.html").read_text()
    assert page.count("data:image/png;base64") == 1 and "carries low precision between tiles: yes" in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page) and "cell/s" not in page
    held = json.loads((tmp_path / "reports/own.mine_attention/data/results/11_your_kernel.verdict.json").read_text())
    assert held["passed"] is False and held["words"] in done.stdout


@pytest.mark.parametrize(
    "words, message",
    [
        (["--kernel", "no_such_module:f"], "kernel: got 'no_such_module:f'; it cannot be had: ModuleNotFoundError"),
        (["--kernel", "fa_lib:nothing"], "has no attribute 'nothing'"),
        (["--kernel", "fa_lib:kernels"], "a module; accepted is a function"),
        (["--kernel", "broken_file:f"], "SyntaxError"),
        (["--kernel", "attention"], "kernel: got 'attention'; accepted are reference"),
        (["--qkv", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
)  # fmt: skip
def test_bad_words_are_refused_before_anything_runs(words, message, tmp_path):
    (tmp_path / "broken_file.py").write_text("def f(:\n")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "broken_file.py"] or "__pycache__" in str(list(tmp_path.iterdir()))
