"""How good is our judge of attention kernels? It judges mutants and right kernels, and so do two others: `make mutants`
writes the score into docs/mutants.md, `make mutants-quick` prints that of one seed."""

import argparse
import io
import os
import sys
from contextlib import redirect_stderr
from dataclasses import replace

import pandas as pd
import torch

from benchmarks.mutants import CONTROLS, MUTANTS
from benchmarks.other_judges import JUDGES, condemned
from fa_lib import kernels
from fa_lib.check.findings import Severity, Verdict
from fa_lib.check.judge import SIDE, judge_kernel
from fa_lib.check.kernel import Depth, examine
from fa_lib.check.relations import RELATIONS
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep
from fa_lib.paths import ROOT, build

PAGE = ROOT / "docs" / "mutants.md"
MARKS = "<!-- begin: make mutants -->", "<!-- end: make mutants -->"
SKELETON = next(each.name for each in CONTROLS if each.key == "fa2")
SEEDS = 20
APART = 1000  # between first seeds: more than a judgement draws
DEPTH = Depth(  # a few seconds
    lengths=(1024,), seeds=1, shapes=("causal 113 x 203", "GQA 384", "causal window 512"), head_dims=(96,),
    troubled_n=128, bias_seeds=3, runs=3, relations=(*RELATIONS,),
)  # fmt: skip


def judged(seed: int, kernel: str, cache: str) -> dict:
    """A cell: what judges say of a kernel on one draw of inputs.

    Returns:
        dict: verdict (ours); fails and tells (of our findings: [what, of what, cases]); what each of JUDGES condemns.
    """
    torch.manual_seed(seed)  # of kernels that leave something to chance
    with redirect_stderr(io.StringIO()):  # bars of progress
        tables = examine(kernel, replace(DEPTH, first_seed=APART * seed), cache=cache, beside=())
    judgement = judge_kernel(kernel, tables)
    by = {Severity.FAILS: [], Severity.NOTES: []}
    for finding in judgement.findings:
        if finding.severity == Severity.FAILS or tells(finding):
            by[finding.severity].append([finding.what, detail(finding), finding.where.get("cases", [])])
    found = dict(verdict=judgement.verdict.value, fails=by[Severity.FAILS], tells=by[Severity.NOTES])
    return found | condemned(kernels.plain(kernel), APART * seed)


def tells(finding) -> bool:
    """Whether a note says that something is amiss, though it does not count."""
    at, number = finding.where, finding.number
    amiss = dict(
        gradients=at.get("failed"), repeats=number is not None and number > 1, problem=True, rounded_splits=True,
        outwards=number is not None and abs(number - at.get("baseline", 0)) >= SIDE, sum_error=True, top_left=True,
        relation=True,
    )  # fmt: skip
    return finding.severity == Severity.NOTES and bool(amiss.get(finding.what))


def detail(finding) -> str:
    """What a finding is of."""
    names = ("relation", "asked", "sum", "what", "of", "tensor")
    return str(next((finding.where[name] for name in names if finding.where.get(name)), ""))


def score(seeds: int, jobs: int) -> pd.DataFrame:
    """Rows of `judged` of every kernel, without the notes that the mutants' right skeleton has on the same draw. What
    is done stays in build/mutants."""
    cache = str(build() / "mutants")
    grid = dict(seed=range(seeds), kernel=[each.name for each in (*CONTROLS, *MUTANTS)])
    with workers(jobs) as executor:
        rows = sweep(judged, grid, fixed=dict(cache=cache), cache=cache, executor=executor)
    usual = {seed: own.tells.iloc[0] for seed, own in rows[rows.kernel == SKELETON].groupby("seed")}
    tells = [[f for f in row.tells if f not in usual[row.seed]] for row in rows.itertuples()]
    return rows.assign(tells=pd.Series(tells, dtype=object))


def alarms(rows: pd.DataFrame) -> dict[str, int]:
    """Judge -> how many rows it condemns; "told": how many ours condemns or has a telling note of."""
    ours = rows.verdict == Verdict.FAILS
    found = dict(ours=int(ours.sum()), told=int((ours | rows.tells.map(bool)).sum()))
    return found | {judge: int(rows[judge].map(bool).sum()) for judge in JUDGES}


def table(head, lines) -> str:
    """As Markdown has it."""
    return "\n".join(f"| {' | '.join(map(str, each))} |" for each in (head, ["---"] * len(head), *lines))


def by_kernel(rows: pd.DataFrame, gallery) -> str:
    """A line for each kernel: at how many seeds each judge condemns it, and by what ours does."""
    lines = []
    for each in gallery:
        own = rows[rows.kernel == each.name]
        count, source = alarms(own), f" ({linked(each.source)})" if each.source else ""
        told = "; ".join(filter(None, [", ".join(named(own.tells)), each.unseen]))
        ours = [count["ours"], ", ".join(named(own.fails)), told]
        lines.append([f"`{each.key}`", each.defect + source, *ours, *(count[judge] for judge in JUDGES)])
    return table(["kernel", "defect", "ours", "by", "only told", "`assert_close`", "rule of two"], lines)


def named(findings) -> list[str]:
    """Of lists of findings: each once, the most frequent first."""
    every = [f"{what}: {of}" if of else what for each in findings for what, of, _ in each]
    return list(pd.Series(every, dtype=object).value_counts().index)


def linked(source: str) -> str:
    """A source as Markdown has it."""
    if source.startswith("arXiv "):
        return f"[{source}](https://arxiv.org/abs/{source.removeprefix('arXiv ')})"
    _, owner, repository, _, number = source.split("/")
    return f"[{owner}/{repository} {number}](https://{source})"


def totals(rows: pd.DataFrame) -> str:
    """A line for each judge: how many mutants it condemns at every seed, at some, at none; how many right kernels."""
    seeds, lines = rows.seed.nunique(), []
    labels = dict(ours="ours", told="ours, with what it only tells", assert_close="`assert_close`",
                  rule_of_two="rule of two")  # fmt: skip
    for judge, label in labels.items():
        of = {name: alarms(own)[judge] for name, own in rows.groupby("kernel")}
        mutants, controls = ([of[each.name] for each in gallery] for gallery in (MUTANTS, CONTROLS))
        every, none = mutants.count(seeds), mutants.count(0)
        false = [f"{sum(controls)} of {len(controls) * seeds}", f"{sum(map(bool, controls))} of {len(controls)}"]
        lines.append([label, f"{every} of {len(mutants)}", len(mutants) - every - none, none, *false])
    head = ["judge", "mutants condemned at every seed", "at some", "at none", "right kernels condemned, of all seeds"]
    return table([*head, "of all kernels"], lines)


def missed(rows: pd.DataFrame) -> list[str]:
    """What must not be: mutants that ours neither condemns nor tells of at some seed, but for those that are out of
    sight; right kernels that it condemns."""
    seeds, found = rows.seed.nunique(), []
    for each in (*MUTANTS, *CONTROLS):
        count = alarms(rows[rows.kernel == each.name])
        if each in MUTANTS and not each.unseen and count["told"] < seeds:
            found.append(f"{each.key}: not seen at {seeds - count['told']} of {seeds} seeds")
        if each in CONTROLS and count["ours"]:
            found.append(f"{each.key}: right, and condemned at {count['ours']} of {seeds} seeds")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--print", action="store_true", help="print the score, and leave docs/mutants.md as it is")
    given = parser.parse_args()
    rows = score(given.seeds, given.jobs)
    parts = ["", f"Seeds: {given.seeds}.", totals(rows), "### Mutants", by_kernel(rows, MUTANTS), "### Right kernels",
             by_kernel(rows, CONTROLS), ""]  # fmt: skip
    text = "\n\n".join(parts)
    if given.print:
        print(text)
    else:
        with replacing(PAGE) as path:
            path.write_text(renewed(PAGE.read_text(), *MARKS, text.strip("\n"), PAGE.name))
        print(f"{totals(rows)}\n\n{PAGE}")
    print("\n".join(missed(rows)))
    sys.exit(bool(missed(rows)))


if __name__ == "__main__":
    main()
