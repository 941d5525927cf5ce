"""The committed figures: each is what this code draws from its committed tables."""

import html
import re
from importlib import import_module

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from attention_check.judge.kernel import judge_kernel
from attention_check.measure.measurements import Measurements
from attention_check.plots import explain, kernel_report
from attention_check.plots.report_figure import report_figure
from fa_lib.execution import ledger, results
from fa_lib.execution.paths import GPU, RESULTS, ROOT
from fa_lib.execution.results import recorded
from fa_lib.experiments.newer_kernels import FP8_KERNELS
from fa_lib.plots import biased_rounding, captions, growth, newer_kernels, overview, rule, training, validation
from fa_lib.plots.stability import stability
from fa_lib.training import distances, spike_record

WORDS = "The words of the notebook."
EXPONENTIAL = (np.linspace(-10, 0, 5), np.linspace(0, 1e-4, 5), np.linspace(0, 2e-4, 5))
REPORTED = ("lengths", "asked", "shapes", "inputs", "bounds", "sums", "repeats", "rounding")
STUDY, TEN, BIASED = "08_weights_in_context", "09_why_ten_times", "10_biased_rounding"


def validated(table, words):
    return validation.validation(EXPONENTIAL, table, words, recorded("01_kernels"))


def ruled(table, words):
    return rule.ruled(table, words, recorded("01_kernels.rule"))


def directed(table, words):
    return biased_rounding.directions(table, {key: training.LABELS[key] for key in dict.fromkeys(table.pair)}, words)


def grown(rates, predicted, words):
    return growth.growth(rates, predicted, pd.DataFrame(), words)


def healthy(runs, words):
    return growth.health(distances.losses(runs), words)


def by_rate(table, words):
    return growth.less_map({rate: rows for rate, rows in table.groupby("lr", sort=False)}, words)


def in_fp8(offsets, table, words):
    return newer_kernels.fp8(offsets, table, {8: {2: 0.361}, 4: {2: 0.022}} | dict.fromkeys(FP8_KERNELS, 0.01), words)


def report(*tables_and_words):
    *tables, words = tables_and_words
    measured = Measurements(**dict(zip(REPORTED, tables)))
    panels = kernel_report.kernel_panels(measured)
    return report_figure(judge_kernel("every_step", measured), panels, words, rows=2, figsize=(10.5, 7.4))


FIGURES = {  # figure -> its tables; what draws it from them and the notebook's words: a function, or its name
    "figure2b_rule": (["01_kernels.rule"], ruled),
    "figure2c_original": (["original", "calls"], "original.original_kernel"),
    "figure3_precision": (["02_precision"], "microbenchmark.precision"),
    "figure4_golden_value": (["03_golden_value", "03_golden_value.tiles"], "microbenchmark.golden_value"),
    "figure5_sequence_length": (["04_sequence_length"], "microbenchmark.sequence_length"),
    "figure6_algorithm_changes": (["05_algorithm_changes"], "algorithm_changes.algorithm_changes"),
    "figure8b_key_bias": (["08b_training_health"], "training.key_bias"),
    "figure8d_health": ([f"{STUDY}.runs"], healthy),
    "inside_a_model": (["06_inside_a_model"], "training.inside"),
    "inside_pretrained": (["06_inside_a_model.heads"], "heads.heads"),
    "ours9_ladder": ([TEN], "ablation.ladder"),
    "ours9b_rescaling": ([f"{TEN}.rescaling"], "rescaling.rescaling"),
    "ours9c_map": ([f"{TEN}.map"], "ablation.bits_and_tiles"),
    "ours9d_verdicts": ([f"{TEN}.verdicts"], "ablation.references"),
    "ours9e_options": ([f"{TEN}.options"], "newer_kernels.options"),
    "ours10_mechanism": ([BIASED, f"{BIASED}.gaps", f"{BIASED}.steps"], "biased_rounding.mechanism"),
    "ours13_law": (["13_theory", "13_theory.blocks"], "law.law"),
    "ours15_tensor_cores": (["15_tensor_cores"], "tensor_cores.contexts"),
    "ours16_block_scales": (["16_block_scales"], "block_scales.block_scales"),
    "ours16b_operands": (["16_block_scales"], "block_scales.operands"),
    "ours17_sinks": (["17_published_numbers"], "published.sinks"),
    "ours17b_sink_gradients": (["17_published_numbers.gradients"], "published.sink_gradients"),
    "ours17c_overflow": (["17_published_numbers.overflow"], "published.overflow"),
    "ours17d_polynomials": (["17_published_numbers.curves"], "published.polynomials"),
    "ours18_explain": (["18_explain"], explain.explained_reports),
    "ours20_stability": (["20_is_it_stable"], lambda _, words: stability(*spike_record.recorded().values(), words)),
}
OTHERWISE = {  # drawn here with fewer machines or curves than in their notebooks, or in another order
    "figure2_validation": (["01_kernels"], validated),
    "figure7_weight_divergence": (["07_weight_divergence"], lambda t, words: training.divergence({"here": t}, words)),
    "figure7b_growth": (["07_weight_divergence.rates", "07_weight_divergence.predicted"], grown),
    "figure8_weights_in_context": ([STUDY], lambda t, words: training.in_context({"here": t}, words)),
    "figure8e_low_precision": ([f"{STUDY}.by_rate"], by_rate),
    "ours9f_fp8": ([f"{TEN}.offsets", f"{TEN}.fp8"], in_fp8),
    "ours10b_directions": ([f"{BIASED}.directions"], directed),
    "ours11_report": (["11_your_kernel", *(f"11_your_kernel.{name}" for name in REPORTED[1:])], report),
}


def read(name):
    path = RESULTS / f"{name}.csv"
    return pd.read_csv(path if path.exists() else GPU / path.name)


@pytest.fixture(autouse=True)
def matplotlibs_settings_are_left_alone():
    before = dict(plt.rcParams)
    yield
    plt.close("all")
    assert dict(plt.rcParams) == before


def says_its_message(figure, name):
    """Whether the committed figure has the message of a drawn one; symbols are drawn letter by letter."""
    committed = (ROOT / "figures" / f"{name}.svg").read_text()
    return all(line.split("$")[0] in committed for line in figure._suptitle.get_text().splitlines())


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_figure_is_drawn_from_its_tables_and_the_committed_one_says_its_message(name):
    tables, draw = OTHERWISE[name]
    figure = draw(*map(read, tables), WORDS)
    assert figure._supxlabel.get_text().startswith(WORDS) and any(ax.has_data() for ax in figure.axes)
    assert len(figure._suptitle.get_text()) > 20 and says_its_message(figure, name), "stale: draw it again"


@pytest.mark.parametrize("name", FIGURES)
def test_the_committed_figure_is_drawn_by_this_code(name, tmp_path):
    """It says the same, and its lines and points lie where they are drawn now."""
    tables, draw = FIGURES[name]
    if isinstance(draw, str):
        module, function = draw.split(".")
        draw = getattr(import_module(f"fa_lib.plots.{module}"), function)
    figure = draw(*map(read, tables), WORDS)
    assert len(figure._suptitle.get_text()) > 20 and says_its_message(figure, name), "stale: draw it again"
    assert is_drawn(figure, ROOT / "figures" / f"{name}.svg", tmp_path), "stale: draw it again"


def test_the_readmes_picture_is_drawn_by_this_code(tmp_path):
    figure = overview.overview({name: read(name) for name, *_ in overview.PANELS.values()}, ledger.ledger())
    path = ROOT / "figures" / "paper.svg"
    assert says_its_message(figure, "paper") and is_drawn(figure, path, tmp_path, results.save_figure), "stale"


def test_the_readmes_picture_says_every_verdict_where_they_differ():
    rows = [("uniform inputs, N = 9", "reproduced"), ("normal inputs, N = 9", "not at this setting")]
    table = pd.DataFrame([dict(id="x", setting=setting, verdict=verdict) for setting, verdict in rows])
    assert overview.verdicts(table, "x")[0] == "uniform: reproduced; normal: not at this setting"
    assert overview.verdicts(table[:1], "x") == ("reproduced", overview.GREEN)


def as_svg(figure, path):
    """As `save_figure`, without the PNG, which takes longer; a layout that a first drawing moves needs it."""
    with plt.style.context(results.STYLE):
        figure.savefig(f"{path}.svg", metadata={"Date": None}, backend="svg")


def is_drawn(figure, path, folder, save=as_svg):
    """Whether a file has the lines of a drawn figure, to a fifth of a point, with its own words for WORDS in the
    caption."""
    added = " ".join(figure._supxlabel.get_text().split()).removeprefix(WORDS)
    words = html.unescape(" ".join(re.findall(r"fill: #555555[^>]*>([^<]*)</text>", path.read_text())))
    assert words.endswith(added), "stale: its caption"
    figure._supxlabel.set_text(captions.wrapped(figure, words))
    save(figure, folder / "now")
    then, now = (lines(file) for file in (path, folder / "now.svg"))
    return len(then) == len(now) > 9 and all(
        len(a) == len(b) and np.allclose(a, b, atol=0.2) for a, b in zip(then, now)
    )


def lines(path):
    """The numbers of each path and mark of an SVG."""
    places = re.findall(r'<(?:path|use)[^>]*?(?: d="([^"]*)"| x="([^"]*)" y="([^"]*)")', path.read_text())
    return [np.array(re.findall(r"-?[\d.]+(?:e-?\d+)?", " ".join(place)), dtype=float) for place in places]
