"""The study in parts: its tables, its rounds of seeds, and that it goes on with the same bits."""

from dataclasses import replace

import pandas as pd
import pytest

from fa_lib.training import campaign
from fa_lib.training.config import Config
from fa_lib.training.study import StudySpec, study

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
