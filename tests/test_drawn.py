"""The other figures: each draws the numbers of its committed table, says a message, and names its axes."""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from marks import caption, is_named, message, missing, title

from attention_check.judge.kernel import judge_kernel
from attention_check.measure.measurements import Measurements
from attention_check.measure.reference_cache import WORST
from attention_check.plots import explain, kernel_report
from fa_lib.execution import results
from fa_lib.execution.paths import GPU, RESULTS, ROOT
from fa_lib.execution.results import recorded
from fa_lib.experiments.newer_kernels import FP8_KERNELS
from fa_lib.plots import (
    ablation,
    biased_rounding,
    block_scales,
    captions,
    growth,
    heads,
    law,
    microbenchmark,
    newer_kernels,
    published,
    rescaling,
    rule,
    tensor_cores,
    training,
    validation,
)
from fa_lib.plots.algorithm_changes import algorithm_changes
from fa_lib.plots.original_kernel import LEAST
from fa_lib.plots.original_kernel import original_kernel as original
from fa_lib.training import distances
from fa_lib.training.arm import PAIRS

WORDS = "The words of the notebook."


def read(name):
    path = RESULTS / f"{name}.csv"
    return pd.read_csv(path if path.exists() else GPU / f"{name}.csv")


def spread(values, by):
    """Least, mean and largest over what `by` leaves out: the marks of a band."""
    groups = values.groupby(by)
    return np.concatenate([getattr(groups, name)() for name in ("min", "mean", "max")])


@dataclass(frozen=True)
class Drawn:
    """A figure of committed tables.

    Attributes:
        figure: its file. tables: their names. draw: from the tables.
        shown: from the tables, the numbers that it must have drawn.
    """

    figure: str
    tables: tuple[str, ...]
    draw: Callable
    shown: Callable


# Figure 2


def of_validation(agreement):
    rows = agreement[(agreement.fmt == "BF16") & (agreement.n == agreement.n.max())]
    different = (1 - rows.identical).clip(lower=1e-6)
    return [*different, *different.groupby([rows.distribution, rows.choice]).mean()]


def of_original(table, calls):
    """The choices at their longest N in one setting, and the model by call."""
    longest = table[table.n == table.n.max()]
    one = longest[(longest.fmt == "BF16") & (longest.head_dim == 64) & ~longest.causal & (longest.gpu == "H100")]
    by_call = longest[longest.choice == "model"].groupby(["fmt", "head_dim", "causal", "gpu", "distribution"])
    groups = one.groupby(["distribution", "choice"]), by_call, calls.groupby(["call", "gpu", "distribution"])
    return np.concatenate([each.different.agg(lambda x: x.clip(lower=LEAST).mean()) for each in groups])


EXPONENTIAL = (np.linspace(-10, 0, 5), np.linspace(0, 1e-4, 5), np.linspace(0, 2e-4, 5))

# Our figures 9 and 10


def of_ladder(table):
    by = ["distribution", "start", "algorithm", "step"]
    return [*table.times_max, *table.groupby(by).times_max.mean()]


def of_rescaling(table):
    keys = [table[name] for name in ("algorithm", "distribution", "order", "maximum", "tiles")]
    return spread(table.relative / 2**-8, keys)


def of_map(table):
    return np.log2(table.groupby(["distribution", "bits", "tiles"]).times_max.mean())


def of_references(table):
    wide = table.pivot(index=["distribution", "seed"], columns=["kernel", "against"], values=["max", "rmse"])
    golden = [against for against in table.against.unique() if against != "baseline_fp16"]
    times = []
    for of in ("max", "rmse"):
        times += [wide[of]["flash_fp16"][name] / wide[of]["baseline_fp16"][name] for name in golden]
        times.append(wide[of]["flash_fp16"]["baseline_fp16"] / wide[of]["baseline_fp16"]["golden_rounded"])
    return [x for each in times for x in [*each, *each.groupby("distribution").mean()]]


def of_options(table):
    by = ["distribution", "carry", "name"]
    return [*table.times_rmse, *table.bias, *table.groupby(by)[["times_rmse", "bias"]].mean().to_numpy().ravel()]


def of_fp8(offsets, table):
    keys = [offsets.offset, offsets.spread]
    return [*spread(offsets.relative, keys), *table[[*FP8_KERNELS]].to_numpy().ravel()]


def of_law(table):
    shown = table[table.bits.isin([table.bits.min(), table.bits.max()])]
    means = shown.groupby(["distribution", "bits", "algorithm", "tiles"])[["predicted", "simulated"]].mean()
    return [*shown.measured, *means.predicted, *means.simulated]


def of_contexts(table):
    rows = table[(table.fmt == "E4M3") | ((table.fmt == "FP16") & (table.distribution == "uniform"))]
    rows = rows[(rows.fmt == "FP16") | (rows.level == "one_level") | (rows.unit == "H100")]
    keys = [rows[name] for name in ("fmt", "distribution", "unit", "level", "n")]
    return [*spread(rows.relative, keys), *spread(100 * rows.bias, keys)]


def of_mechanism(by_repeats, by_gap, steps):
    runs = steps.groupby(["cure", "run"])[["delta", "delta_rmse"]].mean()
    sums = steps[steps.cure == steps.cure.iloc[0]].pivot(index="step", columns="run", values="delta").cumsum()
    edges = [*sums.min(axis=1), *sums.mean(axis=1), *sums.max(axis=1)]
    gaps = spread(by_gap.error, [by_gap.repeats, by_gap.gap])
    return [*by_repeats.groupby(["sign", "repeats"]).error.mean(), *gaps, *runs.delta.abs(), *runs.delta_rmse, *edges]


def of_directions(table):
    return [*table.score, *table.groupby("pair").score.mean()]


# The study


def of_inside(table):
    """Errors over Baseline's: for each kind, step and seed the spread, for each head the mean."""
    rows = table[table.against == "golden"].assign(error=lambda t: t.rmse / t.scale)
    heads = rows.groupby(["kind", "layer", "head", "step", "seed", "kernel"]).error.mean()
    over = heads.groupby(["kind", "step", "seed", "kernel"]).mean().unstack()
    each = heads.groupby(["kind", "layer", "head", "seed", "kernel"]).mean().unstack()
    found = []
    for name in over.columns.drop("ran"):
        found += [*spread(over[name] / over["ran"], ["kind", "step"]), *(each[name] / each["ran"])]
    return found


def over_training(table, pairs, metrics):
    rows = table[table.pair.isin(pairs) & (table.step > 0)]
    keys = [rows.pair, rows.step]
    return np.concatenate([spread(rows[metric], keys) for metric in metrics])


def of_divergence(table):
    """Two distances; and geometric means of the first over the nudge's."""
    wide = table[table.step > 0].pivot(index=["step", "seed"], columns="pair", values="wasserstein")
    over = [np.log(wide[pair] / wide[nudge]).groupby("step").mean() for pair, nudge in training.NUDGED.items()]
    return [*over_training(table, training.PARTING, ("wasserstein", "max")), *np.exp(np.concatenate(over))]


def of_context(table):
    """By arm over the nudge; by measure low precision over Flash, and Flash over the nudge."""
    ends = table[table.step == table.step.max()].pivot(index="seed", columns="pair")
    reach = ends["relative_wasserstein"]
    ratio = reach.div(reach["perturb"], axis=0)[[n for n in training.STYLE if n in reach and n != "perturb"]]
    shown = [ratio]
    for measure in distances.MEASURES:
        low = ends[measure][[*distances.LOW_PRECISION]].div(ends[measure]["flash"], axis=0)
        shown += [low.assign(flash=ends[measure]["flash"] / ends[measure]["perturb"])]
    return [x for each in shown for x in [*each.stack(), *np.exp(np.log(each).mean())]]


def of_growth(rates, predicted):
    rows = rates[rates.pair.isin(growth.SHOWN) & (rates.since > 0)]
    ratio = predicted.predicted / predicted.measured
    one_rate = np.log(predicted.one_rate / predicted.measured).groupby([predicted.pair, predicted.step]).mean()
    return [*spread(rows.rate, [rows.pair, rows.step]), *spread(ratio, [predicted.pair, predicted.step]),
            *np.exp(one_rate)]  # fmt: skip


def of_health(runs, signals):
    each = 100 * (distances.losses(runs) - 1)
    shown = signals[signals.arm.isin(("baseline", "flash", "flash_small_tiles", "fp32", "fp16"))]
    return [*each[each.index.get_level_values("pair").isin(training.STYLE)],
            *spread(shown.entropy, [shown.arm, shown.step])]  # fmt: skip


def of_less(table):
    return np.log2(np.exp(np.log(table.ratio).groupby([table.pair, table.lr, table.step]).mean()))


def of_key_bias(table):
    rows = table[table.step > 0]
    far = spread(rows.wasserstein, [rows.pair, rows.biased, rows.step])
    biased = rows[rows.biased]
    return [*far, *spread(biased.key_bias * 100, [biased.pair, biased.step])]


# Our figure 17


def of_sinks(table):
    parts = table.pivot(index=["kind", "strength", "seed"], columns="cast", values="mse")
    gains = [parts.forward / parts[name] for name in ("reversed", "forward_256")]
    shown = table[table.cast != "reversed_256"]
    lost = spread(shown.lost, [shown.kind, shown.strength, shown.cast])
    return [*lost, *(x for gain in gains for x in spread(gain, ["kind", "strength"]))]


def of_sink_gradients(table):
    return [*table.left, *table.stored, *table.golden]


def of_overflow(table):
    return table.groupby(["mean", "amplitude"]).largest.mean()


# A kernel's report

REPORTED = dict(lengths="") | {
    name: f".{name}" for name in ("asked", "shapes", "inputs", "bounds", "sums", "repeats", "rounding")
}


def draw_report(*tables):
    tables = Measurements(**dict(zip(REPORTED, tables)))
    return kernel_report.kernel_report(judge_kernel("every_step", tables), tables, WORDS)


def of_report(lengths, asked, shapes, inputs, bounds, sums, *_):
    own = lengths[lengths.kernel == "every_step"]
    own = own[
        own.fmt == own.fmt[own.times_max.idxmax()]
    ]  # the format, and the numbers of queries, of the largest error
    own, grown = own.assign(few=own.queries.where(own.queries < own.n, 0)), []
    for _, rows in own.groupby("distribution"):
        rows = rows[rows.few == rows.groupby("few").times_max.mean().idxmax()]
        grown += [*spread(rows.times_max, [rows.n])]
    means = inputs[inputs.distribution != WORST].groupby(["fmt", "distribution"]).outwards.mean()
    lost = sums.groupby(["what", "fmt", "keys"]).lost.max().clip(lower=0.05)
    beside = inputs.groupby(["fmt", "distribution"]).baseline_outwards.mean()
    return [*grown, *shapes.ratio, *lost, *means, *beside[beside.index.get_level_values(1) != WORST]]


def of_block_scales(table):
    rows = table[(table.recipe != "bf16") & table.part.isin(("all", "cache"))]
    return [*rows.times_rmse, *rows.groupby(["kind", "recipe", "part"]).times_rmse.mean()]


def of_operands(table):
    rows = table[table.part.isin(("q", "k", "v", "p"))]
    return [*rows.times_rmse, *rows.groupby(["kind", "recipe", "part"]).times_rmse.mean()]


def of_heads(table):
    """By tiles the median of each model; by head, at the most tiles, the mean over texts; of drawn inputs one mean."""
    most = table[table.tiles == table.tiles.max()]
    heads = most.groupby(["name", "layer", "head"]).times_rms.mean()
    drawn = heads.index.get_level_values("name").isin(("uniform", "normal"))
    return [*table.groupby(["name", "tiles"]).times_rms.median(), *heads[~drawn],
            *heads[drawn].groupby("name").mean()]  # fmt: skip


def of_reports(table):
    """Where each line begins and ends."""
    return [*table.believed.clip(explain.LEAST, explain.MOST), *table.residual.clip(explain.LEAST, explain.MOST)]


REPEATED, PARTING = "10_biased_rounding", "10_biased_rounding.directions"
DRAWN = [
    Drawn(
        "figure2_validation",
        ("01_kernels",),
        lambda t: validation.validation(EXPONENTIAL, t, WORDS, recorded("01_kernels")),
        of_validation,
    ),
    Drawn(
        "figure2c_original",
        ("original", "calls"),
        lambda t, c: original(t, c, WORDS),
        of_original,
    ),
    Drawn(
        "figure2b_rule",
        ("01_kernels.rule",),
        lambda t: rule.ruled(t, WORDS, recorded("01_kernels.rule")),
        lambda t: t.ratio,
    ),
    Drawn("inside_a_model", ("06_inside_a_model",), lambda t: training.inside(t, WORDS), of_inside),
    Drawn("inside_pretrained", ("06_inside_a_model.heads",), lambda t: heads.heads(t, WORDS), of_heads),
    Drawn(
        "figure7_weight_divergence",
        ("07_weight_divergence",),
        lambda t: training.divergence({"here": t}, WORDS),
        of_divergence,
    ),
    Drawn(
        "figure8_weights_in_context",
        ("08_weights_in_context",),
        lambda t: training.in_context({"here": t}, WORDS),
        of_context,
    ),
    Drawn(
        "figure7b_growth",
        tuple(f"07_weight_divergence.{name}" for name in ("rates", "predicted")),
        lambda rates, predicted: growth.growth(rates, predicted, pd.DataFrame(), WORDS),
        of_growth,
    ),
    Drawn(
        "figure8d_health",
        ("08_weights_in_context.runs", "08b_training_health.signals"),
        lambda runs, signals: growth.health(distances.losses(runs), signals, WORDS),
        of_health,
    ),
    Drawn(
        "figure8e_low_precision",
        ("08_weights_in_context.by_rate",),
        lambda t: growth.less_map({rate: rows for rate, rows in t.groupby("lr", sort=False)}, WORDS),
        of_less,
    ),
    Drawn("figure8b_key_bias", ("08b_training_health",), lambda t: training.key_bias(t, WORDS), of_key_bias),
    Drawn("ours9_ladder", ("09_why_ten_times",), lambda t: ablation.ladder(t, WORDS), of_ladder),
    Drawn("ours9b_rescaling", ("09_why_ten_times.rescaling",), lambda t: rescaling.rescaling(t, WORDS), of_rescaling),
    Drawn("ours9c_map", ("09_why_ten_times.map",), lambda t: ablation.bits_and_tiles(t, WORDS), of_map),
    Drawn("ours9d_verdicts", ("09_why_ten_times.verdicts",), lambda t: ablation.references(t, WORDS), of_references),
    Drawn("ours9e_options", ("09_why_ten_times.options",), lambda t: newer_kernels.options(t, WORDS), of_options),
    Drawn(
        "ours9f_fp8",
        ("09_why_ten_times.offsets", "09_why_ten_times.fp8"),
        lambda *t: newer_kernels.fp8(*t, {8: {2: 0.361}, 4: {2: 0.022}} | dict.fromkeys(FP8_KERNELS, 0.01), WORDS),
        of_fp8,
    ),
    Drawn("ours13_law", ("13_theory",), lambda t: law.law(t, WORDS), of_law),
    Drawn("ours15_tensor_cores", ("15_tensor_cores",), lambda t: tensor_cores.contexts(t, WORDS), of_contexts),
    Drawn(
        "ours10_mechanism",
        (REPEATED, f"{REPEATED}.gaps", f"{REPEATED}.steps"),
        lambda *t: biased_rounding.mechanism(*t, WORDS),
        of_mechanism,
    ),
    Drawn(
        "ours10b_directions",
        (PARTING,),
        lambda t: biased_rounding.directions(t, {key: PAIRS[key].label for key in dict.fromkeys(t.pair)}, WORDS),
        of_directions,
    ),
    Drawn("ours17_sinks", ("17_fp8_beside_sinks",), lambda t: published.sinks(t, WORDS), of_sinks),
    Drawn(
        "ours17b_sink_gradients",
        ("17b_sink_gradients",),
        lambda t: published.sink_gradients(t, WORDS),
        of_sink_gradients,
    ),
    Drawn("ours17c_overflow", ("17c_fp16_overflow",), lambda t: published.overflow(t, WORDS), of_overflow),
    Drawn(
        "ours17d_polynomials",
        ("17d_polynomials.curves",),
        lambda t: published.polynomials(t, WORDS),
        lambda t: t.error,
    ),
    Drawn(
        "ours16_block_scales",
        ("16_block_scales",),
        lambda t: block_scales.block_scales(t, WORDS),
        of_block_scales,
    ),
    Drawn("ours16b_operands", ("16_block_scales",), lambda t: block_scales.operands(t, WORDS), of_operands),
    Drawn("ours18_explain", ("18_explain",), lambda t: explain.explained_reports(t, WORDS), of_reports),
    Drawn("ours11_report", tuple(f"11_your_kernel{suffix}" for suffix in REPORTED.values()), draw_report, of_report),
]


@pytest.mark.parametrize("each", DRAWN, ids=lambda each: each.figure)
def test_a_figure_draws_its_table(each):
    before = dict(plt.rcParams)
    tables = [read(name) for name in each.tables]
    figure = each.draw(*tables)
    assert dict(plt.rcParams) == before  # the style is of the drawing
    assert not missing(each.shown(*tables), *figure.axes).size
    assert len(message(figure)) > 20 and caption(figure).startswith(WORDS)
    own = [ax for ax in figure.axes if ax.get_subplotspec()]  # not a colour bar
    assert all(is_named(ax.xaxis) for ax in own if ax.get_subplotspec().is_last_row())
    assert all(is_named(ax.yaxis) for ax in own if ax.get_subplotspec().is_first_col())
    plt.close(figure)


@pytest.mark.parametrize("each", DRAWN, ids=lambda each: each.figure)
def test_the_committed_figure_says_its_message_and_how_many_seeds(each):
    """Of the notebook's words the seeds; the message as it is drawn from the committed table."""
    committed = (ROOT / "figures" / f"{each.figure}.svg").read_text()
    assert each.figure == "figure2b_rule" or "seeds" in committed, "the caption names the seeds"
    figure = each.draw(*(read(name) for name in each.tables))
    assert all(line in committed for line in message(figure).splitlines()), "stale: draw it again"
    plt.close(figure)


NOT_ALIKE = {  # drawn here otherwise than in their notebooks: fewer machines or curves, another order
    "figure2_validation", "figure7_weight_divergence", "figure7b_growth", "figure8_weights_in_context",
    "figure8d_health", "figure8e_low_precision", "ours9f_fp8", "ours10b_directions", "ours11_report",
}  # fmt: skip


OF_PAPER = [  # tests/test_figures.py says what they show
    Drawn("figure3_precision", ("02_precision",), lambda t: microbenchmark.precision(t, WORDS), len),
    Drawn(
        "figure4_golden_value",
        ("03_golden_value", "03_golden_value.tiles"),
        lambda *t: microbenchmark.golden_value(*t, WORDS),
        len,
    ),
    Drawn("figure5_sequence_length", ("04_sequence_length",), lambda t: microbenchmark.sequence_length(t, WORDS), len),
    Drawn("figure6_algorithm_changes", ("05_algorithm_changes",), lambda t: algorithm_changes(t, WORDS), len),
]
ALIKE = [each for each in [*DRAWN, *OF_PAPER] if each.figure not in NOT_ALIKE]


@pytest.mark.parametrize("each", ALIKE, ids=lambda each: each.figure)
def test_the_committed_figure_is_drawn_by_this_code(each, tmp_path):
    """Its lines lie where they are drawn now. Figure 5 had a law that the code no longer had."""
    tables = [read(name) for name in each.tables]
    path = ROOT / "figures" / f"{each.figure}.svg"
    assert is_drawn(each.draw, tables, path, tmp_path), "stale: draw it again"


def test_a_stale_figure_is_noticed(tmp_path):
    table = read("09_why_ten_times.rescaling")
    results.save_figure(rescaling.rescaling(table, WORDS), tmp_path / "old")
    other = table.assign(relative=table.relative.where(table.tiles != 64, 1.05 * table.relative))
    drawn = [
        is_drawn(lambda t: rescaling.rescaling(t, WORDS), [t], tmp_path / "old.svg", tmp_path) for t in (table, other)
    ]
    assert drawn == [True, False]


def is_drawn(draw, tables, path, folder):
    """Whether a figure in a file has the lines that are drawn from tables, to a fifth of a point, with the file's words
    for WORDS in the caption."""
    figure = draw(*tables)
    added = caption(figure).removeprefix(WORDS)
    theirs = " ".join(re.findall(r"fill: #555555[^>]*>([^<]*)</text>", path.read_text()))
    words = html.unescape(theirs)
    assert words.endswith(added), "stale: its caption"
    figure._supxlabel.set_text(captions.wrapped(figure, words))
    results.save_figure(figure, folder / "now")
    plt.close(figure)
    then, now = (lines(each) for each in (path, folder / "now.svg"))
    return len(then) == len(now) and all(len(a) == len(b) and np.allclose(a, b, atol=0.2) for a, b in zip(then, now))


def lines(path):
    """The numbers of each path and mark of an SVG."""
    places = re.findall(r'<(?:path|use)[^>]*?(?: d="([^"]*)"| x="([^"]*)" y="([^"]*)")', path.read_text())
    return [np.array(re.findall(r"-?[\d.]+(?:e-?\d+)?", " ".join(place)), dtype=float) for place in places]


def test_recorded_runs_are_drawn_beside_the_one_here(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    assert results.recorded("07_weight_divergence") == {}
    folder = tmp_path / "Some_GPU" / "data" / "results"
    folder.mkdir(parents=True)
    table = read("08_weights_in_context")
    other = table.assign(**{name: 2 * table[name] for name in ("wasserstein", "max", "relative_wasserstein")})
    other.to_csv(folder / "08_weights_in_context.csv", index=False)
    tables = {"here": table, **results.recorded("08_weights_in_context")}
    assert list(tables) == ["here", "Some GPU"]
    shown = (
        (training.divergence(tables, ""), of_divergence),
        (training.in_context(tables, ""), of_context),
    )
    for figure, of in shown:
        rows = np.reshape(figure.axes, (2, -1))
        for axes, (machine, numbers) in zip(rows, tables.items()):
            assert title(axes[0]) == machine
            assert not missing(of(numbers), *axes).size
        plt.close(figure)


def test_a_length_that_was_drawn_stands_among_the_others():
    lengths, *others = (read(f"11_your_kernel{suffix}") for suffix in REPORTED.values())
    longest = lengths[(lengths.kernel == "every_step") & (lengths.n == lengths.n.max()) & (lengths.seed == 0)]
    drawn = longest.assign(n=5000, seed=937515267, queries=longest.queries.where(longest.queries < longest.n, 5000))
    ax = draw_report(pd.concat([lengths, drawn], ignore_index=True), *others).axes[1]
    own = [line for line in ax.get_lines() if line.get_marker() in "os"]
    assert len(own) == 2
    for line in own:
        assert line.get_xdata()[-1] == 5000 and np.isfinite(line.get_ydata().astype(float)).all()
