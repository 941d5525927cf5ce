"""The figure of the gallery: how far each shipped kernel is from the golden value, at one query, sixteen and many; and
the figure of its finds, each with two kinds of evidence of its cause."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.kernels.rule import ALLOWED
from fa_lib.plots.captions import captioned
from fa_lib.plots.recorded import NONE
from fa_lib.plots.style import BASELINE, FLASH, GREY, INK, SOFTMAX, band, plain_ticks, styled

QUERIES = {  # of the table's columns times_<key> -> label, colour, marker
    "1": ("1 query, as in decoding", FLASH, "o"),
    "16": ("16 queries", SOFTMAX, "s"),
    "many": ("as many queries as keys", BASELINE, "^"),
}
MOST = 3000  # of the axis; what is larger, or not finite, stands there


@styled
def gallery(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw a row for each judged kernel, the one with the largest error above, with the findings beside it; below, the
    same for other devices, where other kernels run.

    Args:
        table: of `gallery_rows.row`: key, project, verdict, found (a few words), times_1, times_16, times_many.
        recorded: device -> such a table.
    """
    parts = [_judged(rows) for rows in (table, *recorded.values())]
    heights = [0.235 * len(rows) + 0.6 for rows in parts]
    figure, axes = plt.subplots(
        len(parts), 1, figsize=(10.5, sum(heights) + 1.0), height_ratios=heights, sharex=True, squeeze=False
    )
    for ax, rows in zip(axes[:, 0], parts):
        _rows(ax, rows)
    for ax, title in zip(axes[:, 0], ("CPU", *recorded) if recorded else ()):
        ax.set_title(title)
    axes[-1, 0].set_xlabel("largest error over Baseline's, worst of the formats, lengths and ordinary inputs")
    axes[0, 0].legend(loc="lower right", fontsize=7.5)
    fails = (parts[0].verdict == "fails").sum()
    title = f"Of {len(parts[0])} calls of shipped attention kernels {fails} fail; how many queries are asked can decide"
    for device, rows in zip(recorded, parts[1:]):
        title += f"\nOn {device}: {(rows.verdict == 'fails').sum()} of {len(rows)}"
    return captioned(figure, title, caption)


def _judged(table):
    """Select the kernels that have a verdict, the one with the largest error last."""
    rows = table[table.verdict.isin(("passes", "fails"))].copy()
    rows = rows.reindex(columns=rows.columns.union([f"times_{key}" for key in QUERIES], sort=False))
    rows["worst"] = rows[[f"times_{key}" for key in QUERIES]].max(axis=1)
    return rows.sort_values(["verdict", "worst"], ascending=[False, True]).reset_index(drop=True)


def _rows(ax, rows):
    columns, y = [f"times_{key}" for key in QUERIES], np.arange(len(rows))
    lows, highs = rows[columns].min(axis=1), rows["worst"]
    ax.hlines(y, lows.clip(upper=MOST), highs.clip(upper=MOST), color=GREY, lw=0.8)
    for key, (label, color, marker) in QUERIES.items():
        ax.plot(rows[f"times_{key}"].clip(upper=MOST), y, ls="", color=color, marker=marker, ms=5, label=label)
    ax.axvline(ALLOWED["o"], color=INK, lw=1.2)
    ax.annotate("the rule: 2", (ALLOWED["o"], len(rows) - 0.3), (4, 0), textcoords="offset points", fontsize=7)
    ax.set(xscale="log", xlim=(0.2, MOST), ylim=(-0.7, len(rows) + 0.3), yticks=y)
    ax.set_yticklabels([f"{row.project}: {row.key}" for row in rows.itertuples()], fontsize=7.5)
    for label, verdict in zip(ax.get_yticklabels(), rows.verdict):
        label.set_color(FLASH if verdict == "fails" else INK)
    for at, words in zip(y, rows.found):
        ax.annotate(words, (1, at), (5, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                    va="center", fontsize=7, color=INK, annotation_clip=False)  # fmt: skip
    plain_ticks(ax.xaxis)
    ax.grid(axis="y", lw=0.3)


WHO = {  # of `finds.error_rows` -> label, colour, marker
    "kernel": ("the kernel", FLASH, "o"),
    "emulated": ("emulated, that step rounded", BASELINE, "x"),
    "changed": ("control: in FP32", GREY, "v"),
}
PANELS = {  # find -> title, column along the axis, its label, tensor of the rule, what the control has in FP32
    "ggml": ("ggml:\nO in FP16, key by key", "n", "keys, one query, two threads", "o", "V"),
    "ringattention": ("ringattention:\nevery step in BF16", "n", "keys and queries", "o", "scores, sums, output"),
    "pallas_decode": ("Pallas decode:\nparts in BF16", "splits", "parts of 4,096 keys", "o", "Q, K, V and all else"),
    "openvino": ("OpenVINO:\nFP16 cut to BF16", "n", "keys, 64 queries", "o", "Q, K, V and all else"),
    "torch_backward": (
        "torch: dV in BF16,\nblock by block",
        "queries",
        "rows of 256 keys",
        "dv",
        "the emulation's sums",
    ),
}


@styled
def finds(tables: dict[str, pd.DataFrame], caption: str) -> Figure:
    """Draw the largest error over Baseline's of the kernel and of a control, above; and the largest error of an
    emulation that rounds the step in question over the kernel's, below.

    Args:
        tables: find -> rows of `experiments.finds`, uniform inputs.
    """
    figure, axes = plt.subplots(2, len(tables), figsize=(11.8, 5.0), squeeze=False, sharex="col", sharey="row",
                                height_ratios=(1.7, 1))  # fmt: skip
    ratios = []
    for (above, below), (find, rows) in zip(axes.T, tables.items()):
        title, column, label, tensor, control = PANELS[find]
        times = rows.pivot(index=[column, "seed"], columns="who", values="times_max")
        for kind in ("kernel", "changed"):
            name, color, marker = WHO[kind]
            band(above, times[kind].unstack("seed"), color, marker, name if kind == "kernel" else None)
        above.axhline(ALLOWED[tensor], color=INK, lw=1.2)
        above.annotate(f"control, in FP32:\n{control}", (0.03, times.changed.min()), (0, -5), ("axes fraction", "data"),
                       "offset points", fontsize=7, color=INK, va="top")  # fmt: skip
        ratio = (times.emulated / times.kernel).dropna()
        band(below, ratio.unstack("seed"), BASELINE, "x", None)
        below.axhline(1, color=INK, lw=0.9)
        ratios += [*ratio]
        above.set(xscale="log", yscale="log", title=title, xticks=sorted(rows[column].unique()))
        below.set(xlabel=label)
        above.minorticks_off()
        plain_ticks(above.xaxis)
        below.tick_params(axis="x", labelrotation=45)
    plain_ticks(axes[0][0].yaxis)
    axes[0][0].set_ylim(axes[0][0].get_ylim()[0] / 20)  # room for words
    axes[0][0].legend(loc="upper left", fontsize=7)
    axes[0][0].set_ylabel("largest error over Baseline's")
    axes[1][0].set(ylabel="emulation's largest\nerror / kernel's", ylim=(0.85, 1.15))
    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return captioned(
        figure, f"Five finds on CPUs: emulating the coarse step gives {span} of the kernel's error", caption
    )
