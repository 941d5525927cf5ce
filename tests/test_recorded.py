"""Tables recorded on other devices are drawn beside the one made here, in figures 2 to 6."""

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest

from attention_gallery.causes import explained
from attention_gallery.commands import pages
from attention_gallery.finds import FINDS
from benchmarks.tables import save_table
from fa_lib import sweep
from fa_lib.execution import notebooks, results
from fa_lib.execution.paths import NOTEBOOKS
from fa_lib.experiments.microbenchmark import BenchmarkSettings, compare, grid
from fa_lib.plots import microbenchmark as plots
from fa_lib.plots.rule import ruled

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


def title(ax):
    """Of an axes, on whichever side the style puts it."""
    return "".join(ax.get_title(loc=side) for side in ("left", "center", "right"))


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


def test_the_largest_of_the_shapes_of_other_devices_stands_over_the_rule(tmp_path):
    rows = [
        dict(distribution=d, kernel=kernel, tensor=tensor, ratio=(i + 1) * 0.37 + j)
        for d in INPUTS for i, kernel in enumerate(("flash", "as_shipped", "every_step"))
        for tensor in ("o", "dq") for j in range(3)
    ]  # fmt: skip
    here = pd.DataFrame(rows)
    theirs = here.assign(ratio=1.91 * here.ratio).query("tensor == 'o'")
    results.save(tmp_path / "Some_GPU", "01_kernels", {}, here, more=dict(rule=theirs))
    figure = ruled(here, "Words.", results.recorded("01_kernels.rule"))
    assert named(figure) == {"Some GPU": "*"} and "recorded on Some GPU" in caption(figure)
    drawn = [y for ax in figure.axes for line in ax.lines if line.get_marker() == "*" for y in line.get_ydata()]
    largest = theirs.groupby(["distribution", "kernel"]).ratio.max()
    assert sorted(y for y in drawn if np.isfinite(y)) == pytest.approx(sorted(largest))


def test_kernels_judged_on_another_device_have_rows_of_their_own(tmp_path):
    here = pd.read_csv(pages.TABLES / "verdicts.csv", keep_default_na=False, na_values=[""])
    rows = [
        dict(key="torch_cudnn", project="PyTorch", version="2.11.0", verdict="passes", times_1=0.83, times_16=0.87),
        dict(
            key="sageattention", project="SageAttention", version="1.0.6", verdict="fails", times_1=31.7, cause="error"
        ),
        dict(
            key="xformers_default", project="xformers", version="", verdict="cannot_run", problem="raises ImportError"
        ),
    ]
    results.save(tmp_path / "Some_GPU", pages.RECORDED, {}, pd.DataFrame(rows))
    recorded = {"Some GPU": explained(results.recorded(pages.RECORDED)["Some GPU"], "Some GPU")}
    proofs = {find: pd.read_csv(pages.TABLES / f"{find}.csv") for find in FINDS}
    here = explained(here, "cpu")
    figure = pages.drawn(here, proofs, recorded)["gallery_all"]
    assert title(figure.axes[1]) == "Some GPU: 1 of 2 fail" and "Some GPU: recorded" in caption(figure)
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == [
        "PyTorch: torch_cudnn", "SageAttention: sageattention",
    ]  # fmt: skip
    text = pages.index(here, recorded)
    assert text.split("## Recorded on Some GPU")[0].rstrip() == pages.index(here).rstrip()
    assert "| SageAttention: sageattention | 1.0.6 |" in text and "| cannot run here | raises ImportError |" in text


DRAWING = sorted([*NOTEBOOKS.glob("0[1-57]_*.ipynb"), *NOTEBOOKS.glob("tutorials/14_*.ipynb")])


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
