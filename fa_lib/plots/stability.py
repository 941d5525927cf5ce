"""The figure of the spike study: does attention's rounding make training unstable?"""

import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_lib.numerics.confidence import interval
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH, GREEN, GREY, INK, ORANGE, styled
from fa_lib.training import spike_record
from fa_lib.training.spikes import EVERY, MAIN, REPLAYS

COLORS = dict(zip(MAIN, (GREY, BASELINE, FLASH, ORANGE, GREEN)))


@styled
def stability(runs: pd.DataFrame, replays: pd.DataFrame, caption: str) -> Figure:
    """Draw one seed's losses, the spike rates, the doses, and what averts a spike.

    Args:
        runs, replays: of `spike_record.recorded`.
    """
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7))
    (curves, by_arm), (doses, averted) = axes
    _curves(curves, runs)
    counted = spike_record.rates(runs[runs.arm.isin(MAIN)]).set_index("arm").reindex(MAIN)
    _rates(by_arm, counted, [each.label for each in MAIN.values()], [*COLORS.values()])
    by_arm.set(title="Runs that spike", xlabel="share of seeds (95 % interval)")
    responses = spike_record.responses(runs)
    _doses(doses, responses)
    changes = spike_record.rates(replays, "change")
    _rates(averted, changes, [REPLAYS[change].label for change in changes.change], [INK] * len(changes))
    averted.set(title="Baseline's spikes that one change averts", xlabel="share of spikes (95 % interval)")
    cost = responses[(responses.kind == "sums") & (responses.bits == responses.bits.min())].excess.mean()
    title = f"Flash spikes in {counted.loc['flash', 'count']} of {counted.loc['flash', 'of']} runs, Baseline in "
    title += f"{counted.loc['baseline', 'count']}; sums kept in {responses.bits.min()} bits cost {cost:.2f} nats"
    return captioned(figure, title, caption)


def _curves(ax: Axes, runs: pd.DataFrame) -> None:
    """Draw the probes of the first seed in which Baseline spikes."""
    spiked = runs[(runs.arm == "baseline") & (runs.spike > 0)]
    seed = int(spiked.seed.iloc[0]) if len(spiked) else int(runs.seed.iloc[0])
    for arm, one in MAIN.items():
        row = runs[(runs.arm == arm) & (runs.seed == seed)]
        probes = np.array(row.probes.iloc[0].split(), float)
        ax.plot(EVERY * np.arange(1, len(probes) + 1), probes, color=COLORS[arm], lw=1.2, label=one.label)
    ax.set(title=f"One seed, {seed}: all arms", xlabel="training step", ylabel="held-out loss (nats)", ylim=(2.7, 4.6))
    ax.legend(fontsize=7, loc="upper right")


def _rates(ax: Axes, table: pd.DataFrame, labels: list[str], colors: list[str]) -> None:
    """Draw a share with its interval in a row for each group."""
    for y, (row, color) in enumerate(zip(table.itertuples(), colors)):
        ax.plot([row.low, row.high], [y, y], color=color, lw=2)
        ax.plot(row.rate, y, "o", color=color, ms=6)
        ax.annotate(f"{row.count} of {row.of}", (row.high, y), (5, -3), textcoords="offset points", fontsize=7)
    ax.set(yticks=range(len(labels)), xlim=(0, 1.12), ylim=(len(labels) - 0.5, -0.5))
    ax.set_yticklabels([textwrap.fill(label, 26) for label in labels])
    ax.set_xticks(np.arange(0, 1.01, 0.25), labels=[f"{x:g} %" for x in range(0, 101, 25)])


def _doses(ax: Axes, table: pd.DataFrame) -> None:
    """Draw the held-out loss over Flash's against bits, a point for each seed and the mean with its interval."""
    looks = dict(
        sums=("O and l kept in so many bits", FLASH, "o", -0.08), delta=("delta from such an O", GREEN, "s", 0.08)
    )
    for kind, (label, color, marker, shift) in looks.items():
        rows = table[table.kind == kind]
        ax.plot(rows.bits + shift, rows.excess, marker, color=color, ms=3, alpha=0.35, mew=0)
        means = [(bits, *interval(group.excess)) for bits, group in rows.groupby("bits")]
        x, mean, low, high = (np.array(column) for column in zip(*means))
        error = np.abs([mean - low, high - mean])
        ax.errorbar(x + shift, mean, error, color=color, marker=marker, ms=5, lw=1.2, label=label)
    ax.axhline(0, color=INK, lw=0.9)
    ax.invert_xaxis()
    ax.set(title="Fewer bits: held-out loss at the end", xlabel="significant bits (BF16 has 8)")
    ax.set(ylabel="nats above Flash as shipped")
    ax.legend(fontsize=7, loc="upper left")
