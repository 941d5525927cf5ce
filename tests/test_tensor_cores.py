"""The experiment on tensor cores' sums: what its rows are of, and what it calls a change of bits or of the error."""

import pandas as pd
import pytest

from fa_lib.experiments.tensor_cores import CHOICES, EXACT_SUMS, LEVELS, adders, choices, effects, sums
from fa_lib.numerics.tensor_cores import UNITS


def test_units_that_add_alike_are_one():
    assert adders("FP16") == dict(V100=["V100"], A100=["A100", "L40S"], H100=["H100", "H200", "B200"])
    assert adders("BF16") == dict(A100=["A100", "L40S"], H100=["H100", "H200", "B200"])
    assert adders("E4M3") == dict(L40S=["L40S"], H100=["H100", "H200"], B200=["B200"])
    for fmt in ("TF32", "E5M2"):
        every = [unit for units in adders(fmt).values() for unit in units]
        assert sorted(every) == sorted(core.unit for core in UNITS if str(core.inputs) == fmt)


def test_sums_lose_what_the_context_adds():
    lost = {}
    for n in (512, 4096):
        rows = pd.DataFrame(sums("E4M3", "uniform", n, 0, rows=2)).set_index(["unit", "level"])
        assert list(rows.index) == [
            (EXACT_SUMS, "one_level"), *((unit, level) for unit in adders("E4M3") for level in LEVELS)
        ]  # fmt: skip
        exact, one, two = (rows.loc[at] for at in ((EXACT_SUMS, "one_level"), ("H100", "one_level"), ("H100", "tile")))
        assert (exact["lean"], exact["bits"], exact["times"]) == (0, 0, 1)
        assert -one["bias"] > 0.9 * one["relative"] > 2 * two["relative"]  # what is wrong is what is lost
        assert one["bias"] == pytest.approx(one["lean"] + exact["bias"], abs=1e-6)
        lost[n] = -one["lean"]
    assert 6 < lost[4096] / lost[512] < 20  # with the keys, and so 8 times


def test_the_16_bit_formats_have_one_level_and_their_own_units():
    rows = pd.DataFrame(sums("BF16", "normal", 512, 0, rows=2))
    assert list(rows.unit) == [EXACT_SUMS, "A100", "H100"] and set(rows.level) == {"one_level"}
    with pytest.raises(ValueError, match="level: got 'three'; accepted are one_level, tile"):
        sums("E4M3", "normal", 64, 0, levels=["three"])


def test_every_choice_is_held_against_the_kernel_without_it():
    rows = pd.DataFrame(choices("FP16", "normal", 0, n=512, rows=16)).set_index("choice")
    assert list(rows.index) == list(CHOICES)
    assert rows.bits["reciprocal"] <= 0.001 < rows.bits["truncated"] < rows.bits["reversed"]
    assert ((rows.bits > 0) | (rows.times_rmse == 1)).all()


def test_an_effect_needs_one_per_cent_and_an_interval_over_seeds_without_0():
    def of(choice, bits, *times):
        keys = dict(fmt="BF16", choice=choice, distribution="normal", bits=bits)
        return [dict(keys, seed=seed, times_rmse=each) for seed, each in enumerate(times)]

    rows = (
        of("a", 0, 1, 1)
        + of("b", 0.2, 0.97, 1.01)
        + of("c", 0.2, 1.001, 1.002)
        + of("d", 0.1, 0.95, 0.951)
        + of("e", 0.1, 0.95)
    )
    other = [dict(row, distribution="uniform", times_rmse=1.0) for row in rows]
    found = effects(pd.DataFrame(rows + other)).set_index("choice")
    assert found.effect.to_dict() == dict(a="neither", b="bits", c="bits", d="error", e="bits")
    assert (found.times_min["d"], found.times_max["d"], found.bits_max["d"]) == (0.95, 1.0, 0.1)
