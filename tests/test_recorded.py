"""Tables recorded on other devices are drawn beside the one made here, in figures 2 to 6."""

from functools import cache

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from marks import caption, missing, numbers

from fa_lib import sweep
from fa_lib.execution import outcome, results
from fa_lib.experiments.microbenchmark import Setup, compare, grid, tiles_of_sram
from fa_lib.experiments.validation import agree
from fa_lib.formats import Format
from fa_lib.metrics import over_baseline
from fa_lib.paths import NOTEBOOKS
from fa_lib.plots import microbenchmark as plots
from fa_lib.plots.algorithm_changes import algorithm_changes
from fa_lib.plots.validation import validation

pytestmark = pytest.mark.slow

INPUTS, EXPONENTIAL = ["uniform", "normal"], np.linspace(-4, -0.1, 15).reshape(3, 5)


def compared(n, block_kv=16):
    return sweep(compare, **grid(n, block_kv, INPUTS, ["BF16", "FP64"], 2, Setup(head_dim=16)))


@cache
def table(name, n):
    """A small table of a notebook, made on this CPU."""
    if name == "01_kernels":
        return sweep(agree, dict(n=[n, n + 32], head_dim=16, heads=1, distribution=INPUTS, fmt="BF16", seed=range(2)))
    if name == "05_algorithm_changes":
        tiles = tiles_of_sram([1024, 4096], 16)
        rows = compared(n, sorted(set(tiles.block_kv))).query("kernel == 'flash' and against == 'baseline'")
        return tiles.merge(rows, on="block_kv")
    rows = compared([n, n + 32] if name in ("03_golden_value.tiles", "04_sequence_length") else n)
    kept = {
        "02_precision": "kernel == 'flash' and against != 'golden'",
        "03_golden_value": "against == 'golden'",
        "03_golden_value.tiles": "fmt == 'BF16'",
    }
    return rows.query(kept[name]) if name in kept else rows


def spread(values, table, by):
    groups = values.groupby([table[name] for name in by])
    return np.concatenate([getattr(groups, name)().to_numpy() for name in ("min", "mean", "max")])


def in_units(table, column="max"):
    return table[column] / table.fmt.map(lambda fmt: Format.of(fmt).unit_roundoff)


def of_validation(table):
    longest = table[table.n == table.n.max()]
    return spread((1 - longest.identical).clip(lower=1e-6), longest, ["distribution", "choice"])


def of_precision(table):
    return spread(table["max"], table, ["distribution", "fmt", "against"])


def of_golden_value(table, by_tiles):
    keys = ["distribution", "tiles"]
    wide = by_tiles[by_tiles.against == "golden"].pivot(index=[*keys, "seed"], columns="kernel", values="max")
    times = over_baseline(wide[["flash"]], wide[["baseline"]].set_axis(["flash"], axis=1)).reset_index()
    units = in_units(table).clip(lower=plots.FLOOR)
    return [*spread(units, table, ["distribution", "fmt", "kernel"]), *spread(times.flash, times, keys)]


def of_sequence_length(table):
    rows = table.query("kernel == 'flash' and against == 'baseline'")
    relative = table.query("kernel == 'flash' and against == 'golden' and fmt == 'BF16'")
    by = ["distribution", "fmt", "n"]
    return [x for column in ("max", "mean", "std") for x in spread(in_units(rows, column), rows, by)] + [
        *spread(in_units(relative, "relative"), relative, by)
    ]


def of_algorithm_changes(table):
    return spread(in_units(table), table, ["distribution", "fmt", "variant", "area"])


FIGURES = {  # tables -> how they are drawn, and what of each device's the figure must have
    ("01_kernels",): (lambda *given: validation(EXPONENTIAL, *given), of_validation),
    ("02_precision",): (plots.precision, of_precision),
    ("03_golden_value", "03_golden_value.tiles"): (plots.golden_value, of_golden_value),
    ("04_sequence_length",): (plots.sequence_length, of_sequence_length),
    ("05_algorithm_changes",): (algorithm_changes, of_algorithm_changes),
}


def named(figure):
    """Devices -> markers, of the legends."""
    shown = [ax.get_legend() for ax in figure.axes if ax.get_legend()]
    lines = [line for legend in shown for line in zip(legend.get_texts(), legend.legend_handles)]
    return {text.get_text(): line.get_marker() for text, line in lines if "GPU" in text.get_text()}


@pytest.fixture(autouse=True)
def nothing_recorded(tmp_path, monkeypatch):
    for module in (results, outcome):
        monkeypatch.setattr(module, "RECORDED", tmp_path)
    yield
    plt.close("all")


@pytest.mark.parametrize("names", FIGURES, ids=lambda names: names[0])
def test_what_other_devices_left_is_drawn_and_named(names, tmp_path):
    draw, shown = FIGURES[names]
    here, full = ([table(name, n) for name in names] for n in (64, 160))
    in_part = [rows[(rows.distribution == "uniform") & (rows.fmt == "BF16")] for rows in full]
    in_part = [rows.assign(**{key: 0.7 * rows[key] for key in ("identical", "max") if key in rows}) for rows in in_part]
    alone = draw(*here, "Words.")
    assert "Hollow" not in caption(alone) and not named(alone)
    for device, tables in (("Some_GPU", full), ("Tiny_GPU", in_part)):
        for name, rows in zip(names, tables):
            results.save(tmp_path / device, name, {}, rows)
    recorded = [results.recorded(name) for name in names]
    assert [list(each) for each in recorded] == [["Some GPU", "Tiny GPU"]] * len(names)
    figure = draw(*here, "Words.", *recorded)
    assert not missing(numbers(*alone.axes), *figure.axes).size
    for device in ("Some GPU", "Tiny GPU"):
        theirs = shown(*(each[device] for each in recorded))
        assert missing(theirs, *alone.axes).size and not missing(theirs, *figure.axes).size
        own = recorded[0][device]
        n = own.n.max() if names[0] == "01_kernels" else own.n.min()
        assert f"{device} (N = {n}" in caption(figure) and "2 seeds)" in caption(figure)
    assert named(figure) == {"Some GPU": "*", "Tiny GPU": "P"}


@pytest.mark.parametrize("name", [path.stem for path in sorted(NOTEBOOKS.glob("0[1-578]_*.ipynb"))])
def test_a_notebook_draws_its_own_recorded_tables_and_runs_again_when_there_is_another(name, tmp_path):
    path = NOTEBOOKS / f"{name}.ipynb"
    assert any(f'recorded("{name}")' in cell.source for cell in nbformat.read(path, as_version=4).cells)
    given = [outcome.made_from(path, dict(device=device)) for device in ("cpu", "cuda")]
    results.save(tmp_path / "Some_GPU", "12_your_tensors", {}, pd.DataFrame({"x": [1]}))
    assert [outcome.made_from(path, dict(device=device)) for device in ("cpu", "cuda")] == given
    results.save(tmp_path / "Some_GPU", name, {}, pd.DataFrame({"x": [1]}))
    assert outcome.made_from(path, dict(device="cpu")) != given[0]
    assert outcome.made_from(path, dict(device="cuda")) == given[1]  # the run that makes them does not wait for itself
