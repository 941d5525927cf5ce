"""The ledger's committed rows are what the committed tables say, for the notebooks of ROWS; so are tables
that are derived from others."""

import pandas as pd
import pytest

from fa_lib.execution.paths import RESULTS
from fa_lib.experiments import ledger_rows
from fa_lib.training import campaign, distances, growth, spike_record
from fa_lib.training import ledger_rows as of_training
from fa_lib.training.config import Config


def read(name):
    return pd.read_csv(RESULTS / f"{name}.csv")


def why_ten_times():
    tables = {name: read(f"09_why_ten_times.{name}") for name in ("rescaling", "fa3", "fp8", "offsets", "options")}
    ladder = read("09_why_ten_times")
    n = int(ladder.n.iloc[0])
    return [
        *ledger_rows.of_ladder(ladder[ladder.distribution == "uniform"], n),
        *ledger_rows.of_rescaling(tables["rescaling"], n), *ledger_rows.of_outliers(tables["fa3"]),
        *ledger_rows.of_fp8(tables["fp8"], tables["offsets"], tables["options"]),
    ]  # fmt: skip


def biased_rounding():
    name = "10_biased_rounding"
    tables = read(name), read(f"{name}.steps"), read(f"{name}.directions")
    return ledger_rows.of_biased_rounding(*tables, dict(config="small", steps=campaign.PARTS["main"].steps))


def weights_in_context():
    table, less = read("08_weights_in_context"), read("08_weights_in_context.less")
    warmup, recipes = Config.load("small").warmup, {"": less.set_index(["pair", "seed"])}
    for part, words in of_training.OTHER_RECIPES.items():
        rows = campaign.select_study(campaign.recorded_tables()["differences"], part)
        recipes[words] = distances.times_less(rows, warmup)
    return of_training.of_context(table, recipes, "small", warmup)


def training_health():
    ratios = distances.losses(read("08_weights_in_context.runs"))
    return of_training.of_losses(ratios, f"small, {campaign.PARTS['main'].steps} steps")


PREDICTED = ["flash", "flash_small_tiles", "flash_fp32"]


def weight_divergence():
    table = read("07_weight_divergence")
    return of_training.of_divergence(table, growth.predicted(table, PREDICTED, metric="wasserstein"), "small")


ROWS = {
    "07_weight_divergence": weight_divergence,
    "08_weights_in_context": weights_in_context,
    "08b_training_health": training_health,
    "09_why_ten_times": why_ten_times,
    "10_biased_rounding": biased_rounding,
    "20_is_it_stable": lambda: of_training.of_spikes(spike_record.recorded()["runs"]),
    "17_published_numbers": lambda: (
        ledger_rows.of_sinks(read("17_published_numbers"), 4096)
        + ledger_rows.of_mass(read("17_published_numbers.mass"), 8192)
        + ledger_rows.of_sink_gradients(read("17_published_numbers.gradients"), 1024)
        + ledger_rows.of_overflow(read("17_published_numbers.overflow"), 512)
        + ledger_rows.of_polynomials(read("17_published_numbers.polynomials"))
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_committed_rows_are_those_of_the_committed_tables(name):
    committed, ours = read(f"{name}.claims"), pd.DataFrame(ROWS[name]())
    assert ours[["id", "setting"]].equals(committed[["id", "setting"]])
    for own, other in zip(ours["values"], committed["values"].astype(str)):
        assert [float(x) for x in own.split()] == pytest.approx([float(x) for x in other.split()], rel=1e-4)


DERIVED = {  # table -> made of other recorded ones
    "07_weight_divergence.rates": lambda: growth.rates(read("07_weight_divergence")),
    "07_weight_divergence.predicted": lambda: growth.predicted(read("07_weight_divergence"), PREDICTED),
    "20_is_it_stable.paired": lambda: spike_record.paired(spike_record.recorded()["runs"]),
    "20_is_it_stable.replays": lambda: spike_record.rates(spike_record.recorded()["replays"], "change"),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_table_is_what_the_recorded_ones_say(name):
    """Of figure 7's prediction, too: nudges of five seeds of ten are recorded, and the others have none."""
    pd.testing.assert_frame_equal(DERIVED[name](), read(name), check_dtype=False, rtol=1e-4, atol=1e-5)
