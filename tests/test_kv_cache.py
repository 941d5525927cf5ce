"""Which caches of few bits captured heads would bear: numbers, findings, words, and the page."""

from dataclasses import replace

import pandas as pd
import pytest

from attention_check.judge.captured import judge_tensors
from attention_check.measure import captured as kv_cache
from attention_check.measure.measurements import TensorMeasurements
from attention_check.report.labels import CACHES
from attention_check.report.sentences import judgement_lines
from fa_lib import BF16, Precision, Tiling, deviation, draw, kernels
from fa_lib.kernels.quantized_attention import Quantization, attention


def captured(head_dim=64):
    """GQA, four heads on two; the second head of K and V has channels of very different sizes."""
    q, k, v = (x.bfloat16() for x in draw("normal", 0, (2, 4, 48, head_dim), (2, 2, 80, head_dim)))
    k[:, 1, :, 0] *= 40
    q[:, 2:, :, 0] /= 40
    return q, k, v


@pytest.mark.parametrize("options", [{}, dict(causal=True)], ids=str)
def test_numbers_are_those_of_each_head(options):
    q, k, v = captured()
    table = pd.DataFrame(kv_cache.caches(q, k, v, options)).set_index(["cache", "head"])
    call = dict(tiling=Tiling(64, 64), precision=Precision.kernel(BF16), **options)
    assert list(table.index) == [(cache, head) for cache in kv_cache.CACHES for head in range(4)]
    golden = kernels.golden(q, k, v, inputs=BF16, **options)
    for cache in kv_cache.CACHES:
        o = attention(q, k, v, Quantization.cache(cache), **call)
        base = attention(q, k, v, Quantization(), **call)
        for head in range(4):
            d, own = (deviation(x[:, head], golden[:, head]) for x in (o, base))
            found = table.loc[cache, head]
            assert found.relative == pytest.approx(d.relative) and found.times_rmse == pytest.approx(d.rmse / own.rmse)


@pytest.mark.parametrize("cache", ["FP8_HEAD", "MXFP8_UP"])
def test_what_a_head_bears_does_not_depend_on_the_others(cache):
    q, k, v = captured()
    table = pd.DataFrame(kv_cache.caches(q, k, v, {}))
    last = slice(3, 4), slice(1, 2)
    alone = pd.DataFrame(kv_cache.caches(q[:, last[0]], k[:, last[1]], v[:, last[1]], {}))
    of = [rows[rows.cache == cache].relative.iloc[-1] for rows in (table, alone)]
    assert of[0] == of[1]


def test_a_head_that_overflows_does_not_bear_the_cache():
    q, k, v = captured()
    q[:, 0], k[:, 0] = 3e19, 3e19  # S = infinity
    cached = pd.DataFrame(kv_cache.caches(q[:, :1], k[:, :1], v[:, :1], {}))
    assert not cached.relative.le(kv_cache.BEARS).any()
    far = pd.DataFrame([dict(head=0, kernel="flash", times_max=1.0, outcome="answered", problem="")])
    risky = pd.DataFrame([dict(head=0, repeated=0.0, one_sided=0.0, mass=0.0)])
    judgement = judge_tensors(["flash"], TensorMeasurements(far, risky, caches=cached))
    assert [f.where["heads"] for f in judgement.findings if f.what == "cache"] == [[0]] * len(kv_cache.CACHES)
    assert "on 1 of 1 heads (head 0): O is not finite" in "\n".join(judgement_lines(judgement))


def test_a_cache_whose_groups_do_not_fit_is_left_out():
    rows = kv_cache.caches(*captured(head_dim=48), {})
    assert {row["cache"] for row in rows} == {"FP8_HEAD", "NVFP4"}


def test_what_a_head_does_not_bear_is_told_and_not_counted():
    q, k, v = captured()
    cached = pd.DataFrame(kv_cache.caches(q, k, v, {}))
    far = pd.DataFrame([dict(head=0, kernel="flash", times_max=1.0, outcome="answered", problem="")])
    risky = pd.DataFrame([dict(head=0, repeated=0.0, one_sided=0.0, mass=0.0)])
    judgement = judge_tensors(["flash"], TensorMeasurements(far, risky, caches=cached))
    assert judgement.passed
    found = {f.where["cache"]: f for f in judgement.findings if f.what == "cache"}
    worst = cached.groupby("cache").relative.max()
    assert {key: f.number for key, f in found.items()} == worst[[*kv_cache.CACHES]].to_dict()
    assert found["NVFP4"].where["heads"] == [0, 1, 2, 3] and found["FP8_HEAD"].where["heads"] == []
    for key, heads in (("NVFP4", "4 of 4 heads (head 0, 1, 2, 3)"), ("FP8_HEAD", "no head")):
        line = judgement_lines(replace(judgement, findings=(found[key],)))[-1]
        told = (CACHES[key], f"{kv_cache.BEARS:.0%}", heads, f"{found[key].number:.1%}")
        assert all(each in line for each in told), line
