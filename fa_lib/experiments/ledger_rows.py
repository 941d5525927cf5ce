"""What the tables of the notebooks say to the statements of the ledger: rows of `claims.claim`, one function a topic.

Apart from the experiments, since a cell may be a job of its own, which need not wait for pandas.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from fa_lib.execution.claims import by_distribution, claim
from fa_lib.experiments.biased_rounding import CURES
from fa_lib.experiments.fp8_probs import LOST
from fa_lib.experiments.newer_kernels import FP8_KERNELS
from fa_lib.kernels.equal_maxima import SIGNS

Rows = list[dict[str, str]]


def by_level(id: str, setting: str, values: pd.Series) -> Rows:
    """Make a `claim` for each place of a Series, by all levels of its index but seed.

    Args:
        id: as of `claim`. setting: with the names of the levels in braces. values: indexed by levels and seed.
    """
    levels = [name for name in values.index.names if name != "seed"]
    groups = values.groupby(levels, sort=False)
    return [claim(id, setting.format(**dict(zip(levels, place))), group) for place, group in groups]


def of_tiles(effects: Mapping[str, Mapping[str, pd.Series]], by_rows: Sequence[float], setting: str) -> Rows:
    """Of figure 6.

    Args:
        effects: format -> "swapped", "square" or "exponent" -> values indexed by (distribution, seed).
        by_rows: differences of a square of more rows over those of the tile, in BF16. setting: in words.
    """
    ids, rows = dict(swapped="fig6a-swapped-larger", square="fig6b-square-same", exponent="fig6c-larger-smaller"), []
    for (name, id), fmt in product(ids.items(), effects):
        rows += by_distribution(id, f"{fmt}, {setting}", effects[fmt][name])
    return [*rows, claim("fig6b-square-rows", f"BF16, {setting}", by_rows)]


def of_ladder(table: pd.DataFrame, n: int) -> Rows:
    """Of a table of `ablation.ladder` of one distribution and n keys: which step in BF16 costs what."""
    where = f"{table.distribution.iloc[0]} inputs, N = {n}, d = 64, B_c = 64"
    times = table.set_index(["start", "step", "algorithm"]).sort_index().times_max
    steps = {
        "fig9-shipped": "output", "fig9-accumulator": "accumulator", "fig9-row-sum": "row_sum",
        "fig9-products": "scores", "fig9-maximum": "maximum", "fig9-factors": "factors",
    }  # fmt: skip
    places = product(("fa1", "fa2"), steps.items())
    return [claim(id, f"{where}, {name}", times.loc[("shipped", step, name)]) for name, (id, step) in places]


def of_rescaling(table: pd.DataFrame, n: int) -> Rows:
    """Of a table of `rescaling.rescaling`: the error with the maximum known beforehand, over that with it found tile by
    tile; and FA1's error, which divides O by l at every tile and multiplies it back, over FA2's; neither rescales."""
    rows, where = [], f"N = {n} in {{tiles}} tiles, BF16"
    for keys, id in (("as_drawn", "fig9-rescale"), ("every_tile", "fig9-forced")):
        rows += by_level(id, "{distribution} inputs, {algorithm}, " + where, without_rescaling(table, keys))
    drawn = table[(table.order == "as_drawn") & (table.maximum == "known")]
    both = drawn.pivot(index=["tiles", "distribution", "seed"], columns="algorithm", values="relative")
    return [*rows, *by_level("fig9-divided", "{distribution} inputs, " + where, both["fa1"] / both["fa2"])]


def without_rescaling(table: pd.DataFrame, keys: str) -> pd.Series:
    """Of the same table and an order of its keys: the error with the maximum known over that with it found tile by
    tile, indexed by (algorithm, tiles, distribution, seed)."""
    index = ["algorithm", "tiles", "distribution", "seed"]
    errors = table[table.order == keys].pivot(index=index, columns="maximum", values="relative")
    return errors["known"] / errors["online"]


def of_outliers(table: pd.DataFrame) -> Rows:
    """Of a table of `newer_kernels.outliers`: FlashAttention-3's errors in FP16."""
    rows = []
    for (inputs, d, length), each in table.groupby(["golden_inputs", "head_dim", "n"]):
        when = "before" if inputs == "exact" else "after"
        where = f"N = {length}, d = {d}, golden value from inputs {when} rounding"
        rows.append(claim("fa3-flash", where, each.flash))
        for words, name in (("", "baseline"), (", K scaled first", "scaled_first")):
            if name == "baseline" or math.frexp(d**-0.5)[0] != 0.5:  # of a power of two it is the same experiment
                rows.append(claim("fa3-baseline", where + words, each[name]))
                rows.append(claim("fa3-times", where + words, each[name] / each.flash))
    return rows


def of_fp8(fp8: pd.DataFrame, raised: pd.DataFrame, options: pd.DataFrame) -> Rows:
    """Of tables of `newer_kernels.fp8_table`, `fp8_offset` and `options`: FlashAttention-3 and 4 in E4M3."""
    rows, errors = [], fp8.set_index(["n", "seed"])
    for key in FP8_KERNELS:
        rows += by_level(f"fa3-fp8-{key.replace('_', '-')}", "N = {n}, d = 128, E4M3", errors[key])
    for id, offset, spread in (("8", 8, 2), ("8-flat", 8, 0.25), ("4", 4, 2)):
        each = raised[(raised.offset == offset) & (raised.spread == spread)]
        where = f"N = {raised.n.iloc[0]}, d = 128, B_c = 128, threshold 4, scores of standard deviation {spread}"
        rows.append(claim(f"fa4-fp8-offset-{id}", where, each.relative))
    ours = options[(options.distribution == "outliers") & (options.carry == "FP32")]
    ours = ours.pivot(index="seed", columns="name", values="rmse")
    where = f"outliers, N = {options.n.iloc[0]}, d = 64, E4M3"
    return [*rows, claim("fa3-fp8", where, ours["fp8_tensor"] / ours["fp8_block_rotated"])]


def of_biased_rounding(by_repeats: pd.DataFrame, steps: pd.DataFrame, score: pd.DataFrame, trained: Mapping) -> Rows:
    """Of figure 10.

    Args:
        by_repeats: of `biased_rounding.bias`, by the number of keys at the maximum.
        steps: the same by step, with the columns cure and run.
        score: how alike a pair's steps are in direction, with the columns pair, seed and score.
        trained: config and steps of the runs of `score`.
    """
    two = by_repeats[by_repeats.repeats == 2].set_index(["sign", "seed"]).outwards
    where = "two keys at the maximum"
    rows = [claim("fig10-bias", f"{where}, {SIGNS[key].label}", two[key]) for key in ("positive", "negative")]
    rows.append(claim("fig10-no-bias", f"{where}, V of both signs", two["both"]))
    total = steps.groupby(["cure", "run"]).delta.sum()
    for cure in list(CURES.values())[1:]:
        share = (total[cure.key] / total["carried_bf16"]).abs()
        id = "fig10-cures" if "maximum" in cure.algorithm else "fig10-other-cures"  # the paper's own cure, or another
        rows.append(claim(id, cure.label, share))
    by_pair = score.set_index(["pair", "seed"]).score
    where = f"every step in BF16; {trained['config']}, {trained['steps']} steps"
    return [*rows, claim("fig10-direction", where, (by_pair["flash_emulated"] / by_pair["perturb"]).dropna())]


def of_sinks(cast: pd.DataFrame, n: int) -> Rows:
    """Of a table of `fp8_probs.sink_cast` of n keys: where half of P is lost, and what each change gains."""
    where, rows = f"scores N(0, 1), N = {n}, d = 64, B_c = 128", []
    for kind, id in (("keys", "pcast-threshold"), ("logit", "pcast-threshold-logit")):
        for name, scale in (("forward", 1), ("forward_256", 256)):
            one = cast[(cast.kind == kind) & (cast.cast == name)]
            lost = one.pivot(index="strength", columns="seed", values="lost")
            if lost.iloc[-1].min() > 0.5 > lost.iloc[0].max():
                half = np.array([np.interp(0.5, shares, shares.index) for _, shares in lost.items()])
                rows.append(claim(id, f"{where}, S = {scale}", LOST + np.log(scale) - half))
    for (kind, strength), gained in gains(cast).groupby(["kind", "strength"]):
        end = "-logit" if kind == "logit" else ""
        for name, id in (("reversed", "pcast-reversed"), ("forward_256", "pcast-scaled")):
            if 4 <= strength <= 8:
                rows.append(claim(id + end, f"{where}, sink of strength {strength}", gained[name]))
    both = cast[(cast.kind == "keys") & (cast.cast == "reversed_256")]
    for strength, one in both[both.strength % 2 == 0].groupby("strength"):
        rows.append(claim("pcast-none-lost", f"{where}, sink of strength {strength}", one.lost))
    return rows


def gains(cast: pd.DataFrame) -> pd.DataFrame:
    """Of a table of `fp8_probs.sink_cast`: by kind, strength and seed the mean square error over that with each change
    alone, in the columns reversed and forward_256."""
    errors = cast.pivot(index=["kind", "strength", "seed"], columns="cast", values="mse")
    return errors[["forward"]].to_numpy() / errors[["reversed", "forward_256"]]


def of_mass(mass: pd.DataFrame, rows: int) -> Rows:
    """Of a table of `fp8_probs.row_mass` of so many rows: the weight that P in FP8 loses."""
    found = []
    for n, each in mass.groupby("n"):
        own = {name: one for name, one in each.groupby("kernel")}
        where = f"N = {n}, d = 128, B_c = 64, {rows} rows, scores of standard deviation 2"
        found.append(claim("flydsl-bf16", f"{where}, mean", own["bf16"]["mean"]))
        for name, words in (("fp8_eager", "m replaced at every rise"), ("fp8_lazy", "m replaced above 2^8")):
            found.append(claim("flydsl-fp8", f"{where}, {words}", own[name].smallest))
            found.append(claim("flydsl-short", f"{where}, {words}", own[name].short))
        found.append(claim("flydsl-fixed", where, own["fp8_raised"].smallest))
    return found


def of_sink_gradients(table: pd.DataFrame, n: int) -> Rows:
    """Of a table of `sink_gradients.sink_gradient` of n keys: the error with each term rounded, over that with only the
    sum rounded."""
    found = []
    for _, rows in table.groupby("kept", sort=False):
        each = rows.pivot(index="seed", columns="rounded", values=["stored", "golden", "left"])
        where = f"N = {n}, d = 128, 8 heads, |sum| / sum of |terms| = {each.left['sum'].mean():.0e}"
        for id, against in (("jax-dsinks", "stored"), ("jax-dsinks-golden", "golden")):
            found.append(claim(id, where, each[against]["terms"] / each[against]["sum"]))
    return found


def of_overflow(table: pd.DataFrame, rows: int) -> Rows:
    """Of a table of `overflow.overflow` of so many rows."""
    where, claims = f"uniform inputs, N = 1407, d = 128, {rows} rows", []
    for (mean, amplitude), each in table.groupby(["mean", "amplitude"]):
        id = "pasa-mean" if mean == 30 else "pasa-amplitude" if (mean, amplitude) == (20, 20) else "pasa-others"
        claims.append(claim(id, f"{where}, mean {mean}, amplitude {amplitude:g}", each.unscaled))
    return [*claims, claim("pasa-scaled", where, table.groupby("seed").scaled.max())]


def of_polynomials(table: pd.DataFrame) -> Rows:
    """Of a table of `polynomials.polynomial_error`."""
    rows = []
    for row, (end, fmt) in product(table.to_dict("records"), (("", "fp32"), ("-bf16", "bf16"))):
        rows.append(claim(f"fa4-exp2-{row['degree']}{end}", "2^20 fractions in [0, 1)", [row[fmt]]))
    return rows
