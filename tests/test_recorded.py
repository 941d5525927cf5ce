"""Tables recorded on other devices are drawn beside the one made here, in figures 2 to 6."""

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest

from benchmarks.tables import save_table
from fa_lib import sweep
from fa_lib.execution import notebooks, results
from fa_lib.execution.paths import NOTEBOOKS
from fa_lib.experiments.microbenchmark import BenchmarkSettings, compare, grid
from fa_lib.plots import microbenchmark as plots

pytestmark = pytest.mark.slow

INPUTS = ["uniform", "normal"]


def table(n):
    """A small table of notebook 02, made on this CPU."""
    given = grid(n, 16, INPUTS, ["BF16", "FP64"], 2, BenchmarkSettings(head_dim=16))
    return sweep(compare, **given).query("kernel == 'flash' and against != 'golden'")


def named(figure):
    """Devices -> markers, of the legends."""
    shown = [ax.get_legend() for ax in figure.axes if ax.get_legend()]
    lines = [line for legend in shown for line in zip(legend.get_texts(), legend.legend_handles)]
    return {text.get_text(): line.get_marker() for text, line in lines if "GPU" in text.get_text()}


def caption(figure):
    return figure._supxlabel.get_text().replace("\n", " ")


@pytest.fixture(autouse=True)
def nothing_recorded(tmp_path, monkeypatch):
    for module in (results, notebooks):
        monkeypatch.setattr(module, "RECORDED", tmp_path)
    yield
    plt.close("all")


def marks(figure):
    """How many lines and points a figure has."""
    return sum(len(ax.lines) + len(ax.collections) for ax in figure.axes)


def test_what_other_devices_left_is_drawn_and_named(tmp_path):
    """Of one figure; the committed ones that test_drawn holds have an H100's marks."""
    here, full = (table(n) for n in (64, 160))
    in_part = full[(full.distribution == "uniform") & (full.fmt == "BF16")]
    alone = plots.precision(here, "Words.")
    assert "Hollow" not in caption(alone) and not named(alone)
    for device, rows in (("Some_GPU", full), ("Tiny_GPU", in_part)):
        results.save(tmp_path / device, "02_precision", {}, rows)
    recorded = results.recorded("02_precision")
    assert list(recorded) == ["Some GPU", "Tiny GPU"]
    figure = plots.precision(here, "Words.", recorded)
    assert named(figure) == {"Some GPU": "*", "Tiny GPU": "P"} and marks(figure) > marks(alone)
    for device in recorded:
        assert f"{device} (N = 160" in caption(figure) and "2 seeds)" in caption(figure)


DRAWING = sorted(NOTEBOOKS.glob("0[1-57]_*.ipynb"))


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_a_notebook_draws_its_own_recorded_tables_and_runs_again_when_there_is_another(path, tmp_path):
    name = path.stem
    assert any(f'recorded("{name}")' in cell.source for cell in nbformat.read(path, as_version=4).cells)
    given = [notebooks.made_from(path, dict(device=device)) for device in ("cpu", "cuda")]
    results.save(tmp_path / "Some_GPU", "12_your_tensors", {}, pd.DataFrame({"x": [1]}))
    assert [notebooks.made_from(path, dict(device=device)) for device in ("cpu", "cuda")] == given
    results.save(tmp_path / "Some_GPU", name, {}, pd.DataFrame({"x": [1]}))
    assert notebooks.made_from(path, dict(device="cpu")) != given[0]
    assert notebooks.made_from(path, dict(device="cuda")) == given[1]  # it makes them


def test_a_notebook_that_draws_another_commands_tables_runs_again_when_they_change(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    assert set(notebooks.READ) <= {path.stem for path in NOTEBOOKS.rglob("*.ipynb")}
    path = NOTEBOOKS / "tutorials" / "19_blame.ipynb"
    before = notebooks.made_from(path, {})
    save_table(tmp_path / "data" / "heads" / "heads", pd.DataFrame({"x": [1]}), {}, {})
    assert notebooks.made_from(path, {}) == before
    save_table(tmp_path / "data" / "blame" / "steps", pd.DataFrame({"x": [1]}), {}, {})
    assert notebooks.made_from(path, {}) != before
