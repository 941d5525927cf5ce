"""The study: arms that differ in one thing, how far their weights drift, what is watched and drawn; its parts and
rounds of seeds, which go on with the same bits."""

from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from runs import QUICK, TINY, run, same_weights

from attention_check.probe import training as of_probe
from attention_check.probe.training import watch
from fa_lib.execution.pools import workers
from fa_lib.plots import training as of_plots
from fa_lib.training import campaign
from fa_lib.training.arm import ARMS, PAIRS
from fa_lib.training.config import Config
from fa_lib.training.distances import MEASURES, Job, at_end, direction, distances, slopes, times_less
from fa_lib.training.run_folder import weights
from fa_lib.training.study import StudySpec, study


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_differs_in_one_thing(name):
    a, b = (asdict(ARMS[arm]) for arm in (PAIRS[name].arm, PAIRS[name].twin))
    assert sum(a[field] != b[field] for field in a) == (0 if name == "rerun" else 1)


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    spec = StudySpec(seeds=1, steps=6, every=2, config=TINY)
    with workers(1) as pool:
        table, runs = study(PAIRS, spec, folder, executor=pool)
    return table, runs, folder, spec


def test_the_study_compares_every_pair(small_study):
    table, runs, _, _ = small_study
    assert set(runs.arm) == set(ARMS) and (runs.status == "done").all()
    assert set(table.pair) == set(PAIRS)
    assert (table.groupby("pair").step.unique().map(list).map(tuple) == (0, 1, 2, 4, 6)).all()
    end = at_end(table, "wasserstein")[:, 0]
    assert not table[table.pair == "rerun"].drop(columns=["pair", "seed", "step"]).any(axis=None)
    others = end[~end.index.str.startswith(("rerun", "perturb", "reversed"))]
    assert (end.drop("rerun") > 0).all() and end["flash_fp32"] == others.min() and end["init"] == others.max()
    assert end["flash_fp32"] < end["flash"] / 100
    dtypes = runs.set_index("arm").dtype
    assert dtypes.fp32 == dtypes.flash_fp32 == "float32" and dtypes.fp16 == dtypes.fp16_scaled == "float16"
    start = table[table.step == 0].set_index("pair").wasserstein
    moved = start.index.str.startswith(("perturb", "init"))
    assert (start[moved] > 0).all() and (start[~moved] == 0).all()


def test_what_is_finished_is_not_trained_again_and_processes_change_nothing(small_study):
    table, runs, folder, spec = small_study
    written = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    again, _ = study(["flash", "bf16"], spec, folder)
    pd.testing.assert_frame_equal(again, table[table.pair.isin(["flash", "bf16"])].reset_index(drop=True))
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == written
    here = folder / "here"
    run(here, ARMS["flash"], steps=6, every=2)
    assert same_weights(here, runs.set_index("arm").loc["flash", "at"], 6)


def test_a_watched_run_is_the_same_run(small_study, monkeypatch, tmp_path):
    _, runs, _, _ = small_study
    monkeypatch.setattr(of_probe.tempfile, "TemporaryDirectory", lambda: nullcontext(tmp_path))
    rows = pd.DataFrame(watch(0, TINY, 6, [0, 2, 5], ["flash", "stepwise"]))
    assert same_weights(tmp_path, runs.set_index("arm").loc["baseline", "at"], 6)
    assert len(rows) == 3 * 2 * TINY.layers * TINY.heads * 5 and set(rows.kind) == {"self", "cross"}
    assert set(zip(rows.kernel, rows.against)) == {
        ("ran", "golden"), ("flash", "golden"), ("stepwise", "golden"), ("flash", "ran"), ("stepwise", "ran"),
    }  # fmt: skip
    error = rows[rows.against == "golden"].groupby("kernel").rmse.mean()
    assert 0.5 < error.flash / error.ran < 1.1 < error.stepwise / error.ran
    assert (rows["max"] > 0).all() and (rows.rmse < rows.scale / 100).all()


def test_a_run_with_one_checkpoint_has_no_direction(tmp_path):
    run(tmp_path, config=QUICK, steps=2)
    job = Job("rerun", 0, tmp_path, tmp_path)
    assert direction(job) != []
    weights(tmp_path, 2).unlink()
    assert direction(job) == []


def test_arms_that_diverged_are_left_out_of_what_is_compared():
    rows = [
        dict(pair=pair, seed=seed, step=step) | dict.fromkeys(MEASURES, x) | dict(relative_wasserstein=x * (step + 1))
        for pair, x in (("flash", 1.0), ("fp16", 3.0), ("bf16", 2.0))
        for seed in (0, 1)
        for step in (0, 10, 20)
        if not (pair == "fp16" or (pair == "bf16" and seed == 1)) or step < 20
    ]
    less = times_less(pd.DataFrame(rows), 0)
    assert less.index.tolist() == [("bf16", 0)] and less.ratio.tolist() == [2.0]
    figure = of_plots.in_context({"here": pd.DataFrame(rows)}, "")
    assert len(figure.axes) == 2


def test_what_cannot_be_watched_is_refused_before_training():
    with pytest.raises(ValueError, match=r"^at: got \[0, 3\]; .* 0 to 2$"):
        watch(0, TINY, 3, [0, 3], ["flash"])
    with pytest.raises(ValueError, match=r"^kernel: 'fa_lib\.kernels\.compiled:_flash_attn' cannot do"):
        watch(0, TINY, 3, [0, 2], ["fa_lib.kernels.compiled:_flash_attn"])


def test_distances_and_slopes():
    b = {"one": torch.tensor([1.0, -1.0]), "two.to_k.bias": torch.tensor([[0.0, 2.0], [4.0, 6.0]])}
    a = {"one": torch.tensor([-1.0, 1.0]), "two.to_k.bias": torch.tensor([[1.0, 3.0], [5.0, 7.0]])}
    d = distances(a, b)
    assert d["wasserstein"] == 0.5  # 0 where two weights change places, 1
    assert d["wasserstein_by_size"] == pytest.approx(4 / 6) and d["key_bias"] == 1
    assert d["relative_wasserstein"] == 0.5 / np.mean([1, 3])
    assert d["max"] == 2 and d["mean"] == pytest.approx(8 / 6)
    assert d["relative_l2"] == pytest.approx((12 / 58) ** 0.5)
    assert d["wasserstein_all"] == pytest.approx(
        np.mean(np.abs(np.sort([-1, 1, 1, 3, 5, 7]) - np.sort([1, -1, 0, 2, 4, 6])))
    )
    with pytest.raises(ValueError, match="other names or shapes"):
        distances(a, {"one": a["one"]})
    rows = [dict(pair="p", seed=s, step=t, x=(s + 1) * max(t, 10)) for s in (0, 1) for t in (0, 10, 20, 30)]
    assert slopes(pd.DataFrame(rows), "x", 10)["p"].tolist() == pytest.approx([1, 2])


PARTS = {
    "main": campaign.Part("main", ("flash", "perturb"), 2, steps=4, every=2),
    "lower_rate": campaign.Part("lower_rate", ("flash",), 1, steps=4, every=2, lr=5e-4),
}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(campaign, "PARTS", PARTS)
    monkeypatch.setattr(campaign, "ROUNDS", (1, 2))
    return Config.load("tiny")


def test_the_study_is_kept_part_by_part_and_goes_on(small, tmp_path, monkeypatch):
    folder, out = tmp_path / "runs", tmp_path / "recorded"
    assert campaign.recorded_tables(out) == {}
    with monkeypatch.context() as patch:  # stopped after the first seed
        patch.setattr(campaign, "ROUNDS", (1,))
        first = campaign.run_study_parts(["main"], small, folder, out=out)
    assert set(first["differences"].seed) == {0}
    found = campaign.run_study_parts(["main", "lower_rate"], small, folder, out=out)
    main = campaign.select_study(found["differences"], "main")
    assert set(main.seed) == {0, 1} and set(main.step) == {0, 1, 2, 4} and set(main.pair) == {"flash", "perturb"}
    again = main[main.seed == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, campaign.select_study(first["differences"], "main"))
    slow = campaign.select_study(found["differences"], "lower_rate")
    assert set(slow.seed) == {0} and not slow.wasserstein.equals(main[main.pair == "flash"].wasserstein)
    assert set(found["directions"].groupby(["part", "pair"]).seed.nunique().loc["main"]) == {2}
    with monkeypatch.context() as patch:  # a part on another machine
        patch.setattr(campaign, "arithmetic", lambda: dict(torch="of another machine"))
        campaign.run_study_parts(["lower_rate"], small, folder, out=out)
    assert campaign._arithmetics(out) == {"main": campaign.arithmetic(), "lower_rate": dict(torch="of another machine")}


def test_a_short_run_has_the_first_bits_of_a_longer_one(small, tmp_path, monkeypatch):
    held = campaign.run_study_parts(["main"], small, tmp_path / "runs", out=tmp_path / "recorded")["bits"]
    spec = StudySpec(1, 2, 2, replace(small, lr=PARTS["main"].lr))
    _, runs = study(["flash"], spec, tmp_path / "short")
    same = campaign.same_bits(runs, held)
    assert same.same.all() and set(same.step) == {0, 1, 2} and set(same.arm) == {"baseline", "flash"}
    out = tmp_path / "recorded"
    words = campaign.agreement(same, out)
    assert words.startswith("6 of 6 weights") and ";" not in words  # no word of the machine
    held["sha256"] = held.sha256.str[::-1]
    other = campaign.same_bits(runs, held)
    assert not other.same.any()
    words = campaign.agreement(other, out)  # no error, though every name is the same
    assert words.startswith("0 of 6 weights made here have the bits of the recorded study; recorded: torch 2")
    monkeypatch.setattr(campaign, "arithmetic", lambda: dict(torch="2.99", instructions="NEON"))
    assert campaign.agreement(other, out).endswith("; here: torch 2.99, instructions NEON")


def test_an_unknown_part_is_named(small, tmp_path):
    with pytest.raises(ValueError, match="part: got 'minor'; accepted are main, lower_rate"):
        campaign.run_study_parts(["minor"], small, tmp_path, out=tmp_path)


def test_a_twin_that_two_parts_trained_is_there_once():
    """Each in its own time."""
    parts = dict(part=["main", "orders", "orders", "lower_rate"], arm=["fp32", "fp32", "reversed_keys_fp32", "fp32"])
    table = pd.DataFrame(
        parts | dict(seed=0, loss=[0.1, 0.1, 0.1, 0.2], seconds=[40.0, 41.0, 42.0, 43.0], zeros=[0, None, None, 0])
    )
    found = campaign.same_recipe(table)
    assert list(found.arm) == ["fp32", "reversed_keys_fp32"] and list(found.seconds) == [40.0, 42.0]
