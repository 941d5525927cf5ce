"""Where claims end: the limits that pages name, computed from the data. tests/test_said.py has the other numbers."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from attention_check.judge.findings import Verdict
from benchmarks import tolerances
from benchmarks.mutations import __main__ as mutations
from fa_lib.execution import claims
from fa_lib.execution.paths import RECORDED, RESULTS, ROOT
from fa_lib.experiments.law import law, only_sums, ratios_of
from fa_lib.numerics.confidence import interval
from fa_lib.numerics.formats import BF16
from fa_lib.theory.law import expected
from fa_lib.theory.recurrence import Tiles, carried, drawn, golden, simulated

H100 = RECORDED / "NVIDIA_H100_80GB_HBM3" / "data" / "results"


def page(name):
    return " ".join((ROOT / name).read_text().split())


def test_where_the_law_holds():
    text, table = page("docs/law/theory.md"), pd.read_csv(RESULTS / "13_theory.csv")
    ratios = ratios_of(table).sort_index()
    near, selected = (ratios.law - 1).abs() <= 0.1, ratios.independent
    assert f"At {selected.sum()} of the {len(ratios)} places the inputs let us expect independent roundings" in text
    in_8_bits, fa1 = near.xs(8, level="bits"), near.loc["uniform", "fa1", 8]
    assert f"within 10 % at {near[selected].sum()}. Of all {len(near)} it is within 10 % at {near.sum()}" in text
    assert f"in 8 bits at {in_8_bits.sum()} of {len(in_8_bits)}, " in text
    assert f"uniform inputs in 8 bits at {fa1.sum()} of {len(fa1)}" in text
    ends = [abs(ratios.law["uniform", algorithm, bits, 2 ** (bits - 5)] - 1) for algorithm in ("fa1", "fa2")
            for bits in (8, 10, 12)]  # fmt: skip
    assert f"to {100 * max(ends):.0f} % at 8 tiles in 8 bits (BF16), 32 in 10 and 128 in 12" in text
    bias = table.query("distribution == 'uniform' and algorithm == 'fa1' and bits == 8").groupby("tiles").bias.mean()
    assert "is {:.2f}, {:.2f} and {:.2f} of FA1's root mean square at 64, 128".format(*bias[[64, 128, 256]]) in text


@pytest.mark.slow
def test_the_drift():
    text, sums, u = page("docs/law/theory.md"), only_sums(BF16), BF16.unit_roundoff
    given = dict(tiles=256, algorithm="fa2", rows=2048)
    errors = [simulated(sums, block_kv=keys, **given) / u for keys in (80, 128)]
    assert f"the law says {expected(sums, tiles=256, algorithm='fa2', values='one_sign') / u:.1f} u for FA2" in text
    assert "{:.1f} u with tiles of 80 keys and {:.1f} u with tiles of 128".format(*errors) in text
    drift = []
    for keys in (32, 48):
        tiles = drawn("one_sign", 128, 2048, keys)
        drift.append((carried(tiles, sums, "fa2") / golden(tiles) - 1).mean().item() / u)
    assert "{:+.1f} u with tiles of 32 keys and {:+.1f} u with 48".format(*drift) in text
    low = {"fa1": [], "fa2": []}
    for keys in (32, 48, 64, 80, 96, 128):
        for algorithm, each in low.items():
            due = expected(sums, tiles=32, algorithm=algorithm, values="one_sign")
            each.append(100 - 100 * due / simulated(sums, tiles=32, algorithm=algorithm, block_kv=keys, rows=2048))
    fa1, fa2 = (f"{min(each):.0f} to {max(each):.0f} %" for each in low.values())
    assert f"{fa1} with tiles of 32 to 128 (FA2: {fa2}; by the program)" in text
    of = drawn("one_sign", 64, 512)
    outputs = [carried(Tiles(of.highest[:t], of.l[:t], of.O[:t]), sums, "fa1") for t in range(16, 65)]
    same = [(a == b).double().mean().item() for a, b in zip(outputs, outputs[1:])]  # from tile 17 on
    still = [100 * np.mean(part) for part in (same[:16], same[16:])]
    assert "17 to 32 leave {:.0f} % of the outputs as they were, tiles 33 to 64 leave {:.0f} %".format(*still) in text


@pytest.mark.slow
def test_draws_at_256_tiles():
    ranges = []
    for keys in (80, 128):
        each = [law("uniform", 256, seed, bits=(8,), algorithms=("fa2",), block_kv=keys)[0]["measured"]
                for seed in range(6)]  # fmt: skip
        ranges += [min(each), max(each)]
    words_of = "six draws of the emulator give {:.0f} to {:.0f} u and {:.1f} to {:.1f} u".format(*ranges)
    assert words_of in page("docs/law/theory.md")


def test_the_ladder():
    text = page("docs/paper/findings.md")
    table = pd.read_csv(RESULTS / "09_why_ten_times.csv").query("start == 'shipped' and n == 2048")
    times = table.groupby(["distribution", "algorithm", "step"]).times_max
    means, scores = times.mean().drop(["accumulator", "row_sum"], level="step"), times.max().xs("scores", level="step")
    assert means.max() < 1  # "no other step takes a kernel past Baseline's error"
    normal = means.xs("scores", level="step").normal
    assert {f"{x:.1f}" for x in normal} == {"0.9"} and f"at 0.9 (five seeds; at most {scores.max():.2f})" in text


def test_gpu_time():
    text = page("docs/gpu/recorded.md")
    table = pd.read_csv(H100 / "speed.csv").groupby(["size", "process", "kernel"]).seconds
    by = {name: getattr(table, name)().unstack().eval("flash / unfused").groupby("size").agg(["min", "max"])
          for name in ("median", "mean")}  # fmt: skip
    small, large = ("{:.2f} to {:.2f}".format(*by["median"].loc[size]) for size in ("small", "large"))
    assert f"`small`: {small} in three processes; `large`: {large}" in text
    small, large = ("{:.2f} to {:.2f}".format(*by["mean"].loc[size]) for size in ("small", "large"))
    assert f"it is {small} and {large}" in text


def test_many_verdicts():
    """docs/threats.md: three quarters of the ledger's verdicts outlast Bonferroni's correction."""
    ledger = claims.ledger()
    tested = ledger[ledger.verdict.isin(("reproduced", "not reproduced", "not at this setting", "undecided"))]
    stays = []
    for row in tested[(tested.verdict != "undecided") & (tested.seeds > 1)].itertuples():
        each = pd.Series(np.array(row.values.split(), dtype=float))
        ends = interval(np.log(each) if row.average else each, 1 - 0.05 / len(tested))[1:]
        low, high = np.exp(ends) if row.average else ends
        stays.append(row.low <= low and high <= row.high or high < row.low or row.high < low)
    assert np.mean(stays) == pytest.approx(0.75, abs=0.03)
    assert "three quarters of the verdicts stay" in page("docs/threats.md")


def test_the_judge_at_first_sight():
    rows, first = mutations.mutations(), mutations.first_look()
    high = rows.kind.isin(("no number", "wrong", "less exact"))
    severe, failed = high | (rows.kind == "raises"), first.verdict.reindex(rows.index) == Verdict.FAILS
    alarms = first.assert_close.reindex(rows.index).astype(bool)
    k, n = (failed & severe).sum(), severe.sum()
    low, most = binomtest(int(k), int(n)).proportion_ci()
    share = f"{k} of {n}, {100 * k / n:.0f} % ({100 * low:.0f} to {100 * most:.0f})"
    assert share in page("docs/threats.md") and share in page("docs/reference/mutants.md")
    for name in ("threats", "comparison", "reference/mutants"):
        assert f"{high.sum()} " in page(f"docs/{name}.md") and f"{(failed & high).sum()}" in page(f"docs/{name}.md")
    assert f"fails all {high.sum()}" in page("docs/threats.md") and alarms[high].all()


def test_false_alarms():
    rows = re.findall(r"\| 0 of 1,000 \|", (ROOT / "docs" / "reference" / "testing.md").read_text())
    assert len(rows) == 25 and "none came in 25,000 calls" in page("docs/reference/testing.md")
    keys = sorted(n_kv for _, n_kv, _ in tolerances.SHAPES)
    assert f"on {keys[0]} to {keys[-1]} keys and head_dim 64" in page("docs/threats.md")
