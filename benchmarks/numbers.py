"""Numbers of README and docs, computed from the data: `python -m benchmarks.numbers` renews the pages.

A page holds each number between marks that no reader sees: <!--sgd.0-->1.15 (0.77 to 1.73)<!--/--> is the first number
of `of_sgd`. The sentence around it is free."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from attention_check.judge.findings import Verdict
from benchmarks.pretrained import DRAWN
from fa_lib import FP32, Precision, Tiling, deviation
from fa_lib.execution import ledger
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import RECORDED, RESULTS, ROOT
from fa_lib.experiments.law import ratios_of
from fa_lib.kernels import tiled
from fa_lib.kernels.rule import ALLOWED, Case, exact
from fa_lib.numerics.confidence import interval
from fa_lib.training import campaign, spike_record
from fa_lib.training.distances import LOW_PRECISION, MEASURES, by_measure
from fa_lib.training.growth import geometric
from fa_lib.training.spikes import MAIN, REPLAYS

H100 = RECORDED / "NVIDIA_H100_80GB_HBM3" / "data" / "results"
MARK = re.compile(r"<!--(\w+)\.(\d+)-->(.*?)<!--/-->", re.DOTALL)  # a function, which of its numbers, the number
NUMBERS: dict[str, Callable[[], list[str]]] = {}  # name -> a function that gives numbers as a page has them


def number(function: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """Enter a function into NUMBERS, under its name without "of_"."""
    return NUMBERS.setdefault(function.__name__.removeprefix("of_"), cache(function))


def pages() -> list[Path]:
    """List README and the pages of docs/ that hold a number between marks."""
    return [path for path in (ROOT / "README.md", *ROOT.glob("docs/*/*.md"), *ROOT.glob("docs/*.md"))
            if MARK.search(path.read_text())]  # fmt: skip


def with_numbers(text: str) -> str:
    """Renew the numbers of a page's text. A number that is right keeps its line breaks."""

    def renewed(found):
        name, at, written = found.groups()
        due = NUMBERS[name]()[int(at)]
        return found[0] if " ".join(written.split()) == due else f"<!--{name}.{at}-->{due}<!--/-->"

    return MARK.sub(renewed, text)


def spread(x):
    return "{:.2f} ({:.2f} to {:.2f})".format(*x)


@cache
def differences(part=None):
    table = campaign.recorded_tables()["differences"]
    return campaign.select_study(table, part) if part else campaign.same_recipe(table)


def ratio(part, pair, other, measure="relative_l2", step=300):
    """Two pairs' distances over each other after a step: geometric mean, low and high."""
    wide = differences(part).query("step == @step").pivot(index="seed", columns="pair", values=measure)
    return np.exp(interval(np.log(wide[pair] / wide[other]).dropna()))


@number
def of_trained_heads():
    table = pd.read_csv(ROOT / "data" / "heads" / "heads.csv")
    heads = table[table.tiles == table.tiles.max()].groupby("name")
    assert {*heads.n.unique().loc[[*DRAWN]].explode()} == {128}
    middle = heads.times_rms.median()
    return [f"{x:.1f}" for x in middle[["AntiBERTy", "rxnfp", "uniform"]]]


@number
def of_the_law():
    ratios = ratios_of(pd.read_csv(RESULTS / "13_theory.csv")).sort_index()
    off = (ratios - 1).abs()
    near = off < 0.1
    assert ((off.predicted - off.counted) < 0.025).all()  # nowhere much further off than counted roundings
    places = near.predicted.sum(), len(off), near.counted.sum()
    furthest = off.predicted.loc["uniform"].max(), off.predicted.max(), off.simulated.max()
    return [*map(str, places), *(f"{np.ceil(100 * x):.0f}" for x in furthest)]


@number
def of_the_law_by_tile_size():
    table = pd.read_csv(RESULTS / "13_theory.blocks.csv")
    off, rows = (table.predicted / table.simulated - 1).abs(), []
    for _, own in table.query("algorithm == 'fa2' and bits == 8 and tiles >= 128").groupby("tiles"):
        for errors, means in ((own.simulated, own.simulated_drift), (own.predicted, own["drift"])):
            rows.append(" | ".join(f"{x:.1f} ({mean:+.1f})" for x, mean in zip(errors, means)))
    return [f"{(off < 0.1).sum()}", f"{len(off)}", f"{100 * off.max():.1f}", *rows]


def without_rescale(order):
    """The error with the maximum known beforehand over that with the maximum found; by algorithm, means over seeds."""
    table = pd.read_csv(RESULTS / "09_why_ten_times.rescaling.csv").query("order == @order")
    wide = table.pivot(index=["distribution", "tiles", "seed"], columns=["algorithm", "maximum"], values="relative")
    return {
        fa: (wide[fa, "known"] / wide[fa, "online"]).groupby(["distribution", "tiles"]).mean() for fa in ("fa1", "fa2")
    }


@number
def of_the_rescaling():
    fa1 = without_rescale("as_drawn")["fa1"]
    return [f"{fa1.min():.2f} to {fa1.max():.2f}", "{:.0f} to {:.0f}".format(*of_dividing((8, 32)))]


@number
def of_the_worst_order():
    fa2, least = without_rescale("as_drawn")["fa2"], without_rescale("every_tile")
    return [f"{fa2.min():.2f} to {fa2.max():.2f}", f"{1 / least['fa2'].min():.2f}", f"{1 / least['fa1'].min():.2f}"]


def of_dividing(tiles):
    """What dividing O at every tile costs, in %, least and most."""
    table = pd.read_csv(RESULTS / "09_why_ten_times.rescaling.csv").query("order == 'as_drawn' and maximum == 'known'")
    wide = table.pivot(index=["tiles", "distribution", "seed"], columns="algorithm", values="relative")
    costs = 100 * (wide.fa1 / wide.fa2 - 1).groupby(["tiles", "distribution"]).mean().loc[[*tiles]]
    return costs.min(), costs.max()


@number
def of_the_ten_times_in_both_measures():
    table = pd.read_csv(RESULTS / "03_golden_value.csv").query("fmt == 'BF16' and n == 2048")
    wide = table.pivot(index=["distribution", "seed"], columns="kernel", values=["max", "rmse"])
    largest, rms = ((wide[of].flash / wide[of].baseline).groupby("distribution").mean() for of in ("max", "rmse"))
    return [f"{largest.uniform:.0f}", f"{largest.normal:.1f}", f"{rms.uniform:.1f}"]


@number
def of_the_ladder():
    table = pd.read_csv(RESULTS / "09_why_ten_times.csv").query("start == 'shipped' and n == 2048")
    times = table.groupby(["distribution", "algorithm", "step"]).times_max
    means = times.mean().drop(["accumulator", "row_sum"], level="step")
    assert means.max() < 1  # "no other step takes a kernel past Baseline's error"
    scores = (of.xs("scores", level="step").normal.max() for of in (means, times.max()))
    return [f"{next(scores):.1f}", f"{next(scores):.2f}"]


@number
def of_the_measures_of_fp16():
    ratios = by_measure(differences())
    first = ratio("first_recipe", "fp16", "flash", "wasserstein")
    return [spread(geometric(ratios.loc[name, "fp16"])) for name in ("max", "wasserstein_by_size")] + [spread(first)]


@number
def of_all_measures():
    ratios = by_measure(differences())
    return [
        spread(geometric(ratios.loc[name, pair].dropna())) for name in MEASURES for pair in (*LOW_PRECISION, "flash")
    ]


@number
def of_sgd():
    runs = campaign.recorded_tables()["runs"].groupby(["part", "arm"]).loss.mean()
    flash, nudge = ratio("sgd", "flash", "perturb"), ratio("sgd", "perturb_1e-3", "perturb")
    assert not all(abs(x - 1) <= campaign.MARGIN for x in flash[1:])  # "not shown to be within 10 %"
    return [spread(flash), spread(nudge), *(f"{runs[part, 'baseline']:.2f}" for part in ("sgd", "main"))]


@number
def of_other_orders_of_the_keys():
    orders = [ratio(None, pair, "flash") for pair in ("reversed_keys", "shuffled_keys", "shuffled_again")]
    assert all(abs(x - 1) <= campaign.MARGIN for order in orders for x in order[1:])
    return [spread(order) for order in orders]


@number
def of_fp32():
    steps = [ratio(None, "flash_fp32", "perturb_fp32_1e-8", step=step) for step in (250, 300)]
    return [spread(x) for x in [ratio("fp32", "reversed_keys_fp32", "flash_fp32"), *steps]]


@number
def of_the_judge_at_first_sight():
    rows, first = (pd.read_csv(ROOT / "benchmarks" / "mutations" / f"{name}.csv", index_col="number")
                   for name in ("mutations", "first_look"))  # fmt: skip
    high = (rows.above > 10) & ~rows.kind.isin(("raises", "same bits"))
    severe, failed = high | (rows.kind == "raises"), first.verdict.reindex(rows.index) == Verdict.FAILS
    assert first.assert_close.reindex(rows.index)[high].all()  # "fails all"
    k, n = (failed & severe).sum(), severe.sum()
    low, most = binomtest(int(k), int(n)).proportion_ci()
    share = [f"{100 * k / n:.0f}", f"{100 * low:.0f} to {100 * most:.0f}"]
    return [f"{k} of {n}", *share, f"{high.sum()}", f"{(failed & high).sum()}"]


def score(rows):
    """Of changes of GPU kernels, by kind and of all: how many severe ones were judged, how many of them failed, and the
    95 % interval of the share."""
    severe, found = rows[(rows.effect.astype(float) > 10) & (rows.verdict != "")], []
    for kind, own in [*severe.groupby("kind"), ("all", severe)]:
        failed = int((own.verdict == Verdict.FAILS).sum())
        low, high = binomtest(failed, len(own)).proportion_ci(method="wilson")
        found.append(dict(kind=kind, severe=len(own), failed=failed, low=low, high=high))
    return pd.DataFrame(found)


@number
def of_the_gpu_changes():
    rows = pd.read_csv(ROOT / "benchmarks" / "mutations" / "gpu.csv", keep_default_na=False)
    launched = rows[rows.launched != "0"]
    (every, ran), now = (score(each) for each in (rows, launched)), (rows.now == Verdict.FAILS).sum()
    counts = [(each.failed, each.severe, each.low, each.high) for each in (every.iloc[-1], ran.iloc[-1])]
    (k, n, *_), (seen, of, *_) = counts
    shares = [f"{100 * a / b:.0f} % ({100 * low:.0f} to {100 * high:.0f})" for a, b, low, high in counts]
    kernels = [f"{own.failed} of {own.severe}" for name in ("cuda", "triton", "flashinfer", "llama", "flash_attn")
               for _, own in score(rows[rows.of == name]).tail(1).iterrows()]  # fmt: skip
    kinds = ", ".join(f"{own.kind} {own.failed} of {own.severe}" for own in ran.iloc[:-1].itertuples())
    found = [f"{len(rows)}", f"{k} of {n}", shares[0], f"{n - k}", f"{now} of the {n - k}"]
    today = [f"{k + now} of {n}", f"{seen + (launched.now == Verdict.FAILS).sum()} of {of}"]
    return [*found, f"{n - k - of + seen}", f"{seen} of {of}", shares[1], *kernels[:4], kinds, *kernels[4:], *today]


@number
def of_many_verdicts():
    table = ledger.ledger()
    tested = table[table.verdict.isin(("reproduced", "not reproduced", "not at this setting", "undecided"))]
    stays = []
    for row in tested[(tested.verdict != "undecided") & (tested.seeds > 1)].itertuples():
        values = pd.Series(np.array(row.values.split(), dtype=float))
        ends = interval(np.log(values) if row.average else values, 1 - 0.05 / len(tested))[1:]
        low, high = np.exp(ends) if row.average else ends
        stays.append(row.low <= low and high <= row.high or high < row.low or row.high < low)
    assert abs(np.mean(stays) - 0.75) < 0.03
    return ["three quarters"]


@cache
def of_dq(path):
    """How many of dQ's calls on uniform inputs are beyond the rule, of how many; their median and largest ratio."""
    table = pd.read_csv(path / "01_kernels.rule.csv").query("kernel == 'flash'")
    normal = table.query("distribution == 'normal' and tensor == 'dq'")
    assert normal.passed.all() and normal.ratio.max() < 1.35  # "at most 1.3 times as far off"
    assert table.query("distribution == 'uniform' and tensor == 'o'").passed.all()
    dq = table.query("distribution == 'uniform' and tensor == 'dq'")
    return [f"{(~dq.passed).sum()} of {len(dq)}", f"{dq.ratio.median():.1f}", f"{dq.ratio.max():.1f}"]


@number
def of_an_fp32_o_in_delta():
    """By the emulation, at the calls that the H100 ran."""

    def wide(q, k, v, **options):
        precision = replace(Precision.kernel(q.dtype), output=FP32)
        x = (t.float() for t in (q, k, v))
        return tiled(*x, tiling=Tiling(64, 64), precision=precision, **options).to(q.dtype)

    table, times = pd.read_csv(H100 / "01_kernels.rule.csv"), []
    for call in table.query("kernel == 'as_shipped' and distribution == 'uniform' and tensor == 'dq'").itertuples():
        case = Case(call.shape, call.head_dim, call.distribution, call.fmt, call.seed)
        truth = exact(case)
        baseline = dict(zip(ALLOWED, truth["baseline"].tolist()))["dq"]
        times.append(deviation(case.results(wide)["dq"], truth["dq"]).max / baseline)
    assert max(times) <= ALLOWED["dq"]
    return [f"{len(times)}", f"{np.median(times):.2f}", f"{max(times):.2f}"]


@number
def of_spikes():
    """Seeds in which each arm spikes, of how many; with sums of 3 bits; Baseline's spikes that each change averts, of
    how many; the difference of Baseline's and Flash's rates in points, and its interval; the smallest p."""
    runs, replays = spike_record.recorded().values()
    spiked = spike_record.rates(runs).set_index("arm")["count"]
    averted = spike_record.rates(replays, "change").set_index("change")
    paired = spike_record.paired(runs).set_index("arm")
    points = (100 * paired.loc["baseline", ["difference", "low", "high"]]).astype(float)
    counts = [*spiked[[*MAIN]], runs.seed.nunique(), spiked.sums_3, *averted["count"][[*REPLAYS]], averted["of"].max()]
    p = paired[["spikes_p", "rises_p"]].min()
    return [*map(str, counts), *(f"{x:+.0f}".replace("-", "−") for x in points), *(f"{x:.2f}" for x in p)]


NUMBERS |= {
    "the_ten_times": lambda: of_the_ten_times_in_both_measures()[:2],
    "the_weights": lambda: [spread(ratio("main", "flash", "perturb", "relative_wasserstein"))],
    "dq_on_both": lambda: of_dq(H100) + of_dq(RESULTS),
    "the_largest_dq": lambda: of_dq(H100)[2:],
    "dq_on_the_h100": lambda: of_dq(H100)[::2],
}


def main():
    for path in pages():
        with replacing(path) as to:
            to.write_text(with_numbers(path.read_text()))


if __name__ == "__main__":
    main()
