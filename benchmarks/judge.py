"""How good is our judge of attention kernels? It judges mutants and right kernels, and so do two others:
`make mutants` writes the score into docs/reference/mutants.md and each kernel's line into data/mutants.csv,
`make mutants-quick` prints those of one seed."""

import argparse
import os
import sys

import pandas as pd

from attention_check.judge.findings import Verdict
from benchmarks.judged import judged
from benchmarks.mutants import CONTROLS, MUTANTS
from benchmarks.other_judges import JUDGES
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.ledger import markdown_table
from fa_lib.execution.paths import ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep

PAGE, KERNELS = ROOT / "docs" / "reference" / "mutants.md", ROOT / "data" / "mutants.csv"
MARKS = "<!-- begin: make mutants -->", "<!-- end: make mutants -->"
SKELETON = next(each.name for each in CONTROLS if each.key == "fa2")
SEEDS = 6
EVERY = (*CONTROLS, *MUTANTS)


def score(seeds: int, jobs: int, quick: bool = False) -> pd.DataFrame:
    """Rows of `judged` of every kernel, without the reported findings that the mutants' right skeleton has on the same
    draw. What is done stays in build/mutants: a change to one theme's file makes that theme's kernels be judged again.

    Args:
        quick: every third kernel, by `judged`'s quick form.
    """
    cache, found = str(build() / "mutants"), []
    gallery = [each for i, each in enumerate(EVERY) if not quick or i % 3 == 0 or each.name == SKELETON]
    themes = dict.fromkeys(each.kernel.__module__ for each in gallery)
    with workers(jobs) as executor:
        for theme in themes:
            names = [each.name for each in gallery if each.kernel.__module__ == theme]
            print(f"{theme}: {len(names)} kernels", file=sys.stderr)
            grid = dict(seed=range(seeds), kernel=names)
            found.append(sweep(judged, grid, fixed=dict(quick=quick), cache=cache, executor=executor))
    rows = pd.concat(found, ignore_index=True)
    usual = {seed: own.tells.iloc[0] for seed, own in rows[rows.kernel == SKELETON].groupby("seed")}
    tells = [[f for f in row.tells if f not in usual[row.seed]] for row in rows.itertuples()]
    return rows.assign(tells=pd.Series(tells, dtype=object))


def alarms(rows: pd.DataFrame) -> dict[str, int]:
    """Judge -> how many rows it fails; "told": how many ours fails or has a note of."""
    ours = rows.verdict == Verdict.FAILS
    found = dict(ours=int(ours.sum()), told=int((ours | rows.tells.map(bool)).sum()))
    return found | {judge: int(rows[judge].map(bool).sum()) for judge in JUDGES if judge in rows}


def by_kernel(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each kernel: at how many seeds it fails by each judge, and by what ours does."""
    lines = []
    for each in _judged(rows, EVERY):
        own = rows[rows.kernel == each.name]
        count, kind = alarms(own), "right kernel" if each in CONTROLS else "mutant"
        told = "; ".join(filter(None, [", ".join(named(own.tells)), each.unseen, each.told]))
        ours = dict(ours=count["ours"], by=", ".join(named(own.fails)), reported=told)
        others = {judge: count.get(judge, "") for judge in JUDGES} | dict(needs=each.needs)
        lines.append(dict(kind=kind, kernel=each.key, defect=each.defect, source=each.source) | ours | others)
    return pd.DataFrame(lines)


def _judged(rows, gallery):
    """Those kernels that there are rows of."""
    return [each for each in gallery if each.name in set(rows.kernel)]


def named(findings) -> list[str]:
    """Of lists of findings: each once, the most frequent first."""
    every = [f"{what}: {of}" if of else what for each in findings for what, of, _ in each]
    return list(pd.Series(every, dtype=object).value_counts().index)


def totals(rows: pd.DataFrame) -> str:
    """A line for each judge: how many mutants it fails at every seed, at some, at none; how many right kernels."""
    seeds, lines = rows.seed.nunique(), []
    labels = dict(ours="ours", told="ours, with what it only reports", assert_close="`assert_close`",
                  rule_of_two="rule of two")  # fmt: skip
    for judge, label in labels.items():
        if judge in JUDGES and judge not in rows:
            continue
        fails = {name: alarms(own)[judge] for name, own in rows.groupby("kernel")}
        wrong, right = ([fails[each.name] for each in _judged(rows, kernels)] for kernels in (MUTANTS, CONTROLS))
        every, none = wrong.count(seeds), wrong.count(0)
        false = [f"{sum(right)} of {len(right) * seeds}", f"{sum(map(bool, right))} of {len(right)}"]
        lines.append([label, f"{every} of {len(wrong)}", len(wrong) - every - none, none, *false])
    head = ["judge", "mutants that fail at every seed", "at some", "at none", "right kernels that fail, of all seeds"]
    return markdown_table([*head, "of all kernels"], [map(str, line) for line in lines])


def missed(rows: pd.DataFrame) -> list[str]:
    """What must not be: mutants that ours neither fails nor reports at some seed, except those that are out of
    sight; right kernels that it fails."""
    seeds, found = rows.seed.nunique(), []
    for each in _judged(rows, EVERY):
        count = alarms(rows[rows.kernel == each.name])
        right = each in CONTROLS
        if not right and not each.unseen and count["told"] < seeds:
            found.append(f"{each.key}: not seen at {seeds - count['told']} of {seeds} seeds")
        if right and count["ours"]:
            found.append(f"{each.key}: right, and failed at {count['ours']} of {seeds} seeds")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="draws of inputs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--quick", action="store_true", help="every third kernel, one seed, ours alone; no page")
    given = parser.parse_args()
    rows = score(1 if given.quick else given.seeds, given.jobs, given.quick)
    bad = missed(rows)
    if given.quick:
        print(by_kernel(rows)[["kernel", "ours", "by", "reported"]].to_string(index=False))
    else:
        with replacing(KERNELS) as path:
            by_kernel(rows).to_csv(path, index=False)
        with replacing(PAGE) as path:
            found = f"Draws of inputs: {rows.seed.nunique()}.\n\n{totals(rows)}"
            path.write_text(renewed(PAGE.read_text(), *MARKS, found, PAGE.name))
    print("", totals(rows), "", *bad, sep="\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
