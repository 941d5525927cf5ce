"""The words around a figure: its message above, every setting the paper leaves out below."""

import textwrap
from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

KERNELS = {  # of `experiments.microbenchmark`
    "baseline": "Baseline, softmax inside in FP32",
    "baseline_in_format": "Baseline, softmax in the format too",
}


def label_of(flash: str) -> str:
    """Return the legend of a kernel that `experiments.microbenchmark.compare` takes."""
    return "Flash, every step in the format" if flash == "tiled" else f"kernel {flash!r}"


def settings_caption(table: pd.DataFrame) -> str:
    """Write the caption of a figure of `experiments.microbenchmark.compare`: every setting that the paper leaves out.

    Args:
        table: of `compare`.
    """
    flash, algorithm = table.flash.iloc[0], table.algorithm.iloc[0]
    values_of = {"N": table.n, "d": table.head_dim, "B_c": table.block_kv, "M": table.get("sram"), "heads": table.heads}
    words = [label_of(flash) + (f" ({algorithm})" if flash == "tiled" else "")]
    words.append("Baseline: S, P and O written in the format, its softmax inside in FP32 where nothing else is said")
    words += [f"{name} = {span(values.unique())}" for name, values in values_of.items() if values is not None]
    words.append(f"{table.seed.nunique()} seeds")
    if "golden" in set(table.against):
        when = "after" if table.golden_inputs.iloc[0] == "rounded" else "before"
        words.append(f"golden value from inputs {when} rounding")
    if table.nonfinite.any():
        words.append(f"{(table.nonfinite > 0).sum()} results with NaN or infinite values")
    if "FP64" in set(table.fmt):
        longest = table.n[table.fmt == "FP64"].max()
        where = f" (N to {longest})" if longest < table.n.max() else ""
        words.append(f"in FP64{where} a dot product is rounded once too, from a sum in double-double")
    return "; ".join(words) + "."


def span(values: Iterable) -> str:
    """Write the only value, or "least to largest"."""
    values = sorted(values)
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def seeds_of(table: pd.DataFrame) -> str:
    """Write how many seeds the pairs of a table of `study.study` have, without "rerun", which needs only one."""
    return f"{span(table[table.pair != 'rerun'].groupby('pair').seed.nunique().unique())} seeds"


POINTS, BANDS = " Small points: seeds; large ones: their mean.", " Lines: mean over seeds; bands: min to max."


def captioned(figure: Figure, title: str, caption: str) -> Figure:
    """Put a figure's message above it, and its caption below, and return the figure."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(wrapped(figure, caption), x=0.01, ha="left", fontsize=7, color="#555555")
    return figure


def wrapped(figure: Figure, caption: str) -> str:
    """Break a caption into lines of a figure's width."""
    return textwrap.fill(caption, width=int(17 * figure.get_figwidth()), break_on_hyphens=False)
