"""The figures of the gallery: its defects, a row each; and its finds, each with two kinds of evidence of its cause."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_gallery.catalogue import JUDGED, counted, project
from fa_lib.kernels.rule import ALLOWED
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH, GREY, INK, band, plain_ticks, styled

TIMES = ["times_1", "times_16", "times_many"]  # columns of a table, by number of queries
MOST = 3000  # of the axis; what is larger, or not finite, stands there


@styled
def defects(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw a row for each defect, and for what differs, from the least to the largest error of its call paths; all
    other call paths are one row. tables: device -> rows of `causes.explained`."""
    rows = pd.concat([_judged(table).assign(device=device) for device, table in tables.items()])
    rows["defect"] = rows.defect.where(rows.defect != "", rows.key).where(rows.verdict != "passes", "")
    groups = [same for _, same in rows[rows.verdict != "passes"].groupby(["verdict", "defect"])]
    groups.sort(key=lambda same: (same.verdict.iloc[0] == "fails", _by_error(same), same.worst.max()))
    groups.insert(0, rows[rows.verdict == "passes"])
    figure, ax = plt.subplots(figsize=(8, 0.245 * len(groups) + 1.2))
    labels = []
    for y, same in enumerate(groups):
        first, passes = same.iloc[0], same.verdict.iloc[0] == "passes"
        color = INK if passes else FLASH if first.verdict == "fails" and _by_error(same) else GREY
        ax.hlines(y, same.least.min(), same.worst.max(), color=color, lw=1.2)
        look: dict[str, Any] = dict(ms=5, mfc="none") if first.verdict == "differs" else dict(ms=5)
        ax.plot(same.worst, [y] * len(same), ls="", marker="o", color=color, **look)
        if first.verdict == "fails" and not _by_error(same):
            ax.plot(0.25, y, marker="x", color=FLASH, ms=6, mew=1.6, clip_on=False)
        who = ", ".join(dict.fromkeys(map(project, same.to_dict("records"))))
        where = "on a CPU" if first.device == "CPU" else "on a GPU"
        labels.append(f"{same.groupby('project').ngroups} projects" if passes else f"{who}, {where}")
        found = f"{len(same)} call paths: pass" if passes else first.found
        found = f"differs: {found}" if first.verdict == "differs" else found
        ax.annotate(found, (1, y), (6, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=7.5,
                    color=INK, annotation_clip=False)  # fmt: skip
    ax.axvline(ALLOWED["o"], color=INK, lw=1.0)
    place = ALLOWED["o"], len(groups) - 0.4
    ax.annotate(f"the rule: {ALLOWED['o']:g}", place, (4, 0), textcoords="offset points", fontsize=7)
    ax.set(xscale="log", xlim=(0.2, MOST), ylim=(-0.7, len(groups) + 0.2), yticks=range(len(groups)))
    ax.set_yticklabels(labels, fontsize=7.5)
    plain_ticks(ax.xaxis)
    ax.grid(axis="y", lw=0.3)
    ax.set_xlabel("largest error over Baseline's")
    marks: dict[str, Any] = dict(ls="", ms=5)
    ax.plot([], [], marker="o", color=FLASH, label="fails by its error", **marks)
    ax.plot([], [], marker="x", color=FLASH, label="fails by what stands at the right", mew=1.6, **marks)
    ax.plot([], [], marker="o", color=GREY, mfc="none", label="differs", **marks)
    ax.legend(loc="lower right", fontsize=7)
    counts = counted(rows.to_dict("records"))
    title = f"{counts.paths} call paths of {counts.projects} projects: {counts.fail} fail, by {counts.defects} defects"
    caption = (
        "A dot is a call path. Baseline: plain attention in the same format. Caches of 4 and 8 bits are compared with "
        "exact attention on the stored values."
    )
    return captioned(figure, title, caption)


def _by_error(rows):
    """Whether the worst of some rows is beyond the rule by its error."""
    return bool((rows.worst > ALLOWED["o"]).any())


def _judged(table):
    """Select the kernels that have a verdict, the one with the largest error last. A kernel with a cache of few bits
    has one error, over what its bits cost."""
    rows = table[table.verdict.isin(JUDGED)].copy()
    rows.loc[rows.over_bits.notna(), TIMES] = np.nan
    errors = rows[[*TIMES, "over_bits"]].clip(upper=MOST)
    rows["worst"], rows["least"] = errors.max(axis=1), errors.min(axis=1)
    return rows.sort_values("worst", kind="stable")


WHO = {  # of `finds.error_rows` -> label, colour, marker
    "kernel": ("the kernel", FLASH, "o"),
    "emulated": ("emulated, that step rounded", BASELINE, "x"),
    "changed": ("control: in FP32", GREY, "v"),
}


@styled
def finds(tables: dict[str, pd.DataFrame], panels: Mapping[str, Sequence[str]], caption: str) -> Figure:
    """Draw the largest error over Baseline's of the kernel and of a control, above; and the largest error of an
    emulation that rounds the step in question over the kernel's, below. tables: find -> rows of `finds`, uniform
    inputs. panels: find -> title, column along the axis, its label, tensor of the rule, what the control has in
    FP32."""
    figure, axes = plt.subplots(2, len(tables), figsize=(11.8, 5.0), squeeze=False, sharex="col", sharey="row",
                                height_ratios=(1.7, 1))  # fmt: skip
    ratios = []
    for (above, below), (find, rows) in zip(axes.T, tables.items()):
        title, column, label, tensor, control = panels[find]
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
    title = f"Five finds on CPUs: emulating the coarse step gives {span} of the kernel's error"
    return captioned(figure, title, caption)
