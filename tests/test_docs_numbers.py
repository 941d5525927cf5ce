"""Numbers of README and docs, computed from the data. `stands(page, words)` names where the numbers that a function
gives stand: in a paragraph that has these words. The sentence around them is free."""

import contextlib
import io
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from attention_check.judge.findings import Verdict
from benchmarks.mutations import __main__ as mutations
from benchmarks.pretrained import DRAWN
from fa_lib import BF16, Precision, theory
from fa_lib.execution import ledger
from fa_lib.execution.paths import RECORDED, RESULTS, ROOT
from fa_lib.experiments.law import ratios_of
from fa_lib.kernels.shipped import torch_cpu
from fa_lib.numerics.confidence import interval
from fa_lib.theory.law import expected
from fa_lib.training import campaign

H100 = RECORDED / "NVIDIA_H100_80GB_HBM3" / "data" / "results"
GALLERY = ROOT / "data" / "gallery"
CLAIMS, FINDINGS, BACKWARD = (f"docs/paper/{name}.md" for name in ("claims", "findings", "backward"))
LAW = "docs/law/theory.md"
PLACES = []


def stands(page, words):
    def placed(numbers):
        PLACES.append((page, words, numbers))
        return numbers

    return placed


def paragraphs(page):
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n- |\n\d\. ", (ROOT / page).read_text())]


def lacking(page, words, numbers):
    """Those of some numbers, as they are written, that no paragraph with some words has; None: there is none."""
    text = [part for part in paragraphs(page) if words in part]
    return (
        [x for x in numbers if not re.search(rf"(?<![\w.,]){re.escape(x)}(?!\d|[.,]\d)", " ".join(text))]
        if text
        else None
    )


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


@stands(FINDINGS, "two trained BERTs")
def of_trained_heads():
    table = pd.read_csv(ROOT / "data" / "heads" / "heads.csv")
    heads = table[table.tiles == table.tiles.max()].groupby("name")
    assert {*heads.n.unique().loc[[*DRAWN]].explode()} == {128}
    middle = heads.times_rms.median()
    return [f"{x:.1f}" for x in middle[["AntiBERTy", "rxnfp", "uniform"]]]


@stands("README.md", "A law predicts")
def of_the_law():
    ratios = ratios_of(pd.read_csv(RESULTS / "13_theory.csv"))
    low = 100 * (1 - ratios.law.loc["uniform", "fa1", 8])
    return [f"{low[32]:.0f}"]


@stands(LAW, "ringattention")
def of_other_projects_kernels():
    found = []
    table = pd.read_csv(GALLERY / "torch_backward.csv").query("who == 'kernel' and tensor == 'dv'")
    for rows, own in table.query("distribution == 'normal' and n == 256").groupby("queries"):
        kernel = torch_cpu(BF16, rows)
        law = theory.expected_gradients(kernel["precision"], tiles=rows // kernel["tiling"].block_q)
        found += [f"{law:.4f}", f"{own.relative.mean():.4f}"]
    table = pd.read_csv(GALLERY / "ringattention.csv").query("who == 'kernel'")
    for (inputs, n), own in table.groupby(["distribution", "n"]):
        values = dict(uniform="one_sign", normal="zero_mean")[inputs]
        kernel = dict(tiles=n // 512, algorithm="fa2", values=values, block_kv=512)
        found += [f"{expected(Precision.uniform(BF16), **kernel):.4f}", f"{own.relative.mean():.4f}"]
    return found


def without_rescale(order):
    """The error with the maximum known beforehand over that with the maximum found; by algorithm, means over seeds."""
    table = pd.read_csv(RESULTS / "09_why_ten_times.rescaling.csv").query("order == @order")
    wide = table.pivot(index=["distribution", "tiles", "seed"], columns=["algorithm", "maximum"], values="relative")
    return {
        fa: (wide[fa, "known"] / wide[fa, "online"]).groupby(["distribution", "tiles"]).mean() for fa in ("fa1", "fa2")
    }


@stands(FINDINGS, "To divide and multiply back")
@stands(CLAIMS, "The rescaling factors")
def of_the_rescaling():
    fa1 = without_rescale("as_drawn")["fa1"]
    return [f"{fa1.min():.2f} to {fa1.max():.2f}", "{:.0f} to {:.0f}".format(*of_dividing((8, 32)))]


@stands(CLAIMS, "The rescaling factors")
@stands(FINDINGS, "it is not the rescaling")
def of_the_worst_order():
    fa2, least = without_rescale("as_drawn")["fa2"], without_rescale("every_tile")
    return [f"{fa2.min():.2f} to {fa2.max():.2f}", f"{1 / least['fa2'].min():.2f}", f"{1 / least['fa1'].min():.2f}"]


def of_dividing(tiles):
    """What dividing O at every tile costs, in %, least and most."""
    table = pd.read_csv(RESULTS / "09_why_ten_times.rescaling.csv").query("order == 'as_drawn' and maximum == 'known'")
    wide = table.pivot(index=["tiles", "distribution", "seed"], columns="algorithm", values="relative")
    costs = 100 * (wide.fa1 / wide.fa2 - 1).groupby(["tiles", "distribution"]).mean().loc[[*tiles]]
    return costs.min(), costs.max()


@stands("README.md", "factor of ten")
def of_the_ten_times():
    return of_the_ten_times_in_both_measures()[:2]


@stands(FINDINGS, "relative* error")
def of_the_ten_times_in_both_measures():
    table = pd.read_csv(RESULTS / "03_golden_value.csv").query("fmt == 'BF16' and n == 2048")
    wide = table.pivot(index=["distribution", "seed"], columns="kernel", values=["max", "rmse"])
    largest, rms = ((wide[of].flash / wide[of].baseline).groupby("distribution").mean() for of in ("max", "rmse"))
    return [f"{largest.uniform:.0f}", f"{largest.normal:.1f}", f"{rms.uniform:.1f}"]


@stands(FINDINGS, "The ladder below")
def of_the_ladder():
    table = pd.read_csv(RESULTS / "09_why_ten_times.csv").query("start == 'shipped' and n == 2048")
    times = table.groupby(["distribution", "algorithm", "step"]).times_max
    means = times.mean().drop(["accumulator", "row_sum"], level="step")
    assert means.max() < 1  # "no other step takes a kernel past Baseline's error"
    return [f"{x:.1f}" for x in means.xs("scores", level="step").normal] + [
        f"{times.max().xs('scores', level=2).max():.2f}"
    ]


@stands("README.md", "In our training study")
@stands(CLAIMS, "Training")
def of_the_weights():
    return [spread(ratio("main", "flash", "perturb", "relative_wasserstein"))]


@stands("docs/threats.md", "A judge knows its own mutants")
@stands("docs/reference/mutants.md", "fails all")
def of_the_judge_at_first_sight():
    rows, first = mutations.mutations(), mutations.first_look()
    high = rows.kind.isin(("no number", "wrong", "less exact"))
    severe, failed = high | (rows.kind == "raises"), first.verdict.reindex(rows.index) == Verdict.FAILS
    assert first.assert_close.reindex(rows.index).astype(bool)[high].all()  # "fails all"
    k, n = (failed & severe).sum(), severe.sum()
    low, most = binomtest(int(k), int(n)).proportion_ci()
    share = [f"{100 * k / n:.0f}", f"{100 * low:.0f} to {100 * most:.0f}"]
    return [f"{k} of {n}", *share, f"{high.sum()}", f"{(failed & high).sum()}"]


@stands("docs/threats.md", "Bonferroni")
def of_many_verdicts():
    table = ledger.ledger()
    tested = table[table.verdict.isin(("reproduced", "not reproduced", "not at this setting", "undecided"))]
    stays = []
    for row in tested[(tested.verdict != "undecided") & (tested.seeds > 1)].itertuples():
        values = pd.Series(np.array(row.values.split(), dtype=float))
        ends = interval(np.log(values) if row.average else values, 1 - 0.05 / len(tested))[1:]
        low, high = np.exp(ends) if row.average else ends
        stays.append(row.low <= low and high <= row.high or high < row.low or row.high < low)
    assert np.mean(stays) == pytest.approx(0.75, abs=0.03)
    return ["three quarters"]


def of_dq(path):
    """How many of dQ's calls on uniform inputs are beyond the rule, of how many; their median and largest ratio."""
    table = pd.read_csv(path / "01_kernels.rule.csv").query("kernel == 'flash'")
    normal = table.query("distribution == 'normal' and tensor == 'dq'")
    assert normal.passed.all() and normal.ratio.max() < 1.35  # "at most 1.3 times as far off"
    assert table.query("distribution == 'uniform' and tensor == 'o'").passed.all()
    dq = table.query("distribution == 'uniform' and tensor == 'dq'")
    return [f"{(~dq.passed).sum()} of {len(dq)}", f"{dq.ratio.median():.1f}", f"{dq.ratio.max():.1f}"]


@stands(CLAIMS, "Gradients")
@stands(BACKWARD, "dQ beyond 3 times")
def of_dq_on_both():
    return of_dq(H100) + of_dq(RESULTS)


@pytest.mark.slow
@pytest.mark.parametrize("page, words, numbers", PLACES, ids=lambda x: getattr(x, "__name__", x))
def test_the_numbers_of_a_page_are_those_of_the_data(page, words, numbers):
    assert lacking(page, words, numbers()) == []


def test_another_number_is_noticed():
    numbers = of_the_weights()
    assert lacking(CLAIMS, "Training", numbers) == [] != lacking(CLAIMS, "Training", [numbers[0].replace("0.9", "0.8")])
    assert lacking(CLAIMS, "no such words", numbers) is None


def test_the_script_on_the_backward_pass_prints_what_the_page_says():
    script, printed = re.findall(r"```(?:python|text)\n(.*?)```", (ROOT / BACKWARD).read_text(), re.S)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(script, {})
    number = r"\d\.\de-\d\d"
    ours, theirs = (re.findall(number, text) for text in (out.getvalue(), printed))
    assert re.sub(number, "", out.getvalue()) == re.sub(number, "", printed)
    assert [float(x) for x in ours] == pytest.approx([float(x) for x in theirs], rel=0.1)  # another machine's sums


def test_no_page_names_a_machine():
    """Where somebody's checkout lies, or who he is on that machine."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/**/*.ipynb")]:
        if "_build" not in path.parts:
            assert not re.findall(r"/(?:home|Users|root|work)/\w+", path.read_text()), path
