"""Figure 2c: FlashAttention-2's own CUDA kernel beside the emulator."""

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, GREEN, ORANGE, styled

LEAST = 2e-7  # drawn for no difference, on a logarithmic axis
CHOICES = {  # of the tables, in the order shown -> label
    "model": "model",
    "other": "the other GPU's sums",
    "exact": "sums exact",
    "exact_exp2": "2^x rounded correctly",
    "divided": "S scaled first, O divided by l",
    "forwards": "first tile first",
    "not_rounded": "P not rounded",
}
CALLS = {
    "uneven": "113 queries, 203 keys",
    "uneven causal": "the same, causal",
    "shared": "4 heads share 1 of K and V",
    "window": "window of 100 keys to the left, 20 to the right",
    "softcap": "softcap 20",
    "split": "split-KV, 1 query, 2,048 keys in 4 parts",
    "split causal": "the same, 64 queries, causal",
}


@styled
def original_kernel(table: pd.DataFrame, calls: pd.DataFrame, caption: str) -> Figure:
    """Draw figure 2c: the share of outputs whose bits are not the emulator's, by modelling choice, and by call.

    Args:
        table: data/gpu/original.csv, made by `python -m benchmarks.original`.
        calls: data/gpu/calls.csv, by the same.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10.6, 4.8), width_ratios=(1, 1.15))
    table, calls = (rows.assign(shown=rows.different.clip(lower=LEAST)) for rows in (table, calls))  # on a log axis
    longest = table[table.n == table.n.max()]
    first = longest[(longest.fmt == "BF16") & (longest.head_dim == 64) & ~longest.causal & (longest.gpu == "H100")]
    inputs = {"uniform": Mark("uniform inputs", FLASH, "o"), "normal": Mark("normal inputs", BASELINE, "s")}
    points(axes[0], first, "shown", ("choice", CHOICES), ("distribution", inputs), legend="upper right")
    setting = f"(BF16, N = {longest.n.max()}, head_dim 64, no mask, H100)"
    axes[0].set_title(f"each row undoes one choice of the model\n{setting}")
    model_rows, labels = _every_call(longest[longest.choice == "model"], calls)
    marks = {
        f"{distribution} {gpu}": Mark(f"{distribution}, {gpu}", color, marker)
        for (distribution, gpu), color, marker in zip(
            (("uniform", "A100"), ("uniform", "H100"), ("normal", "A100"), ("normal", "H100")),
            (FLASH, ORANGE, BASELINE, GREEN), "oDs^",
        )
    }  # fmt: skip
    kinds = model_rows.assign(kind=model_rows.distribution + " " + model_rows.gpu)
    points(axes[1], kinds, "shown", ("call", labels), ("kind", marks), legend="upper right")
    axes[1].set_title(f"the whole model, by call, inputs and GPU\n(N = {longest.n.max()} where none is named)")
    powers = range(-6, 1)
    for ax in axes:
        ax.set(xscale="log", xlabel="share of outputs whose bits differ", xlim=(LEAST / 1.6, 1))
        ax.set_xticks([LEAST, *(10.0**k for k in powers)], labels=["none", "", *(f"$10^{{{k}}}$" for k in powers[1:])])
        ax.axvspan(LEAST / 1.6, 1.6 * LEAST, color="#eeeeee", zorder=0, lw=0)
    least = 1 - model_rows.groupby(["call", "gpu", "distribution", "fmt"]).different.mean().max()
    share = math.floor(1000 * least) / 10
    words = f"FlashAttention-2's CUDA kernel has the emulator's bits in {share:g} % of outputs or more, mean over seeds"
    return captioned(figure, f"Figure 2c. {words}", caption + POINTS + ' At "none" no output differs.')


def _every_call(model: pd.DataFrame, calls: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Concatenate the rows of both tables; and return the labels of their calls, key -> label."""
    words = model.fmt + ", head_dim " + model.head_dim.astype(str) + model.causal.map({True: ", causal", False: ""})
    labels = {word: word for word in sorted(words.unique())}
    labels |= {key: label for key, label in CALLS.items() if key in {*calls.call}}
    return pd.concat([model.assign(call=words), calls]), labels
