"""Figure 10: biased rounding."""

import matplotlib.pyplot as plt

from fa_lib.plots.ablation import GREY
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.style import BASELINE, FLASH, band


def mechanism(by_repeats, steps, caption):
    """Biased rounding: the error of O by the number of keys at the maximum; delta's over steps; and the cures."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.9))
    for sign, color, marker in (("V > 0", FLASH, "o"), ("V < 0", BASELINE, "s"), ("both signs", GREY, "D")):
        rows = by_repeats[by_repeats.sign == sign].groupby("repeats").error
        mean, half = rows.mean(), 1.96 * rows.std() / rows.count() ** 0.5
        axes[0].errorbar(range(len(mean)), mean, half, color=color, marker=marker, ms=5, lw=1.3, capsize=3, label=sign)
    axes[0].set_xticks(range(len(mean)), labels=mean.index)
    axes[0].axhline(0, color="#333333", lw=0.9)
    axes[0].set(
        xlabel="keys that attain the row's maximum", ylabel="mean error of O (ulp of BF16)", title="O is biased"
    )
    axes[0].legend()
    for cure, color, marker, line in CURE_STYLE:
        rows = steps[steps.cure == cure].sort_values("step")
        sums = rows.pivot(index="step", columns="run", values="delta").cumsum()
        sums.index += 1
        if "beta = 8" not in cure:  # a thousand times further
            band(axes[1], sums, color, "", cure, ls=line)
        each = rows.groupby("run")[["delta", "delta_rmse"]].mean()
        shape = dict(marker=marker, color=color, mfc="none" if line == "--" else color, ls="")
        axes[2].plot(each.delta.abs(), each.delta_rmse, **shape, ms=4, alpha=0.4)
        size = 11 if "torch" in cure else 7  # around the one it equals
        axes[2].plot(abs(each.delta.mean()), each.delta_rmse.mean(), **shape, ms=size, label=cure)
    axes[1].set(
        xlabel="steps",
        ylabel="sum of delta's errors\n(units of u · rowsum |dO ∘ O|)",
        title="delta drifts; colours as at the right",
    )
    axes[2].set(xscale="log", yscale="log", xlabel="|bias of delta| a step", ylabel="rms error of delta", title="cures")
    axes[2].legend(fontsize=6.5, loc="upper left")
    words = (
        caption
        + " Left: mean and 95 % interval over seeds. Middle: mean and range over runs. Right: small points are runs."
    )
    title = "Ties that round away from zero bias O, and delta drifts; carrying O in FP32 is no cure by itself"
    return captioned(figure, title, words)


CURE_STYLE = (
    ("O carried in BF16", FLASH, "o", "-"),
    ("FP32, torch's exponential", FLASH, "D", "--"),
    ("O carried in FP32", BASELINE, "o", "-"),
    ("dynamic maximum, beta = 8", "#222222", "X", "-."),
    ("dynamic maximum, beta = 2", BASELINE, "s", "--"),
    ("stochastic rounding of O", GREY, "D", "-"),
    ("O in FP32 to the end", GREY, "v", "--"),
    ("delta from P and dP", BASELINE, "^", "--"),
)


def directions(table, caption):
    """How far the steps that part two training runs point the same way, by pair of the study."""
    figure, ax = plt.subplots(figsize=(6.6, 3.4))
    pairs = list(dict.fromkeys(table.pair))
    for y, pair in zip(range(len(pairs))[::-1], pairs):
        rows = table[table.pair == pair]
        ax.plot(rows.score, [y] * len(rows), "o", color=FLASH if "flash" in pair else GREY, ms=3.5, alpha=0.5, mew=0)
        ax.plot(rows.score.mean(), y, "o", color=FLASH if "flash" in pair else GREY, ms=7)
    ax.set_yticks(range(len(pairs)), labels=[table[table.pair == pair].label.iloc[0] for pair in pairs][::-1])
    for x, words in ((1, "unrelated steps"), (table.steps.iloc[0] ** 0.5, "all in one direction")):
        ax.axvline(x, color="#333333", lw=0.9, ls=":")
        ax.annotate(words, (x, len(pairs) - 0.45), (3, 0), textcoords="offset points", fontsize=7)
    ax.set(xlabel="A = |sum of steps| / root of the sum of their squares", xlim=(0, None), ylim=(-0.6, len(pairs)))
    ax.grid(axis="x")
    title = "The direction in which two runs part: Flash's is that of any small nudge"
    return captioned(figure, title, caption + POINTS)
