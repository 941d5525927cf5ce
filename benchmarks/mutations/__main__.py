"""What our judge, and two others, say of the defects of mutations.csv, on one draw of inputs. first_look.csv has what
was said before ours was changed for them (`--first-look`). `make mutations` judges again what was not failed then, into
docs/reference/mutants.md, and into not_failed.csv what is only reported or passed. What is done stays in build/mutants,
and an interrupted run resumes.
"""

import argparse
import os
import sys
from importlib import invalidate_caches

import pandas as pd

from attention_check.judge.findings import Verdict
from benchmarks.judge import PAGE, table
from benchmarks.judged import judged
from benchmarks.mutations import AUTHORS, FOLDER, author_of, text
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.paths import build
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep

MARKS = "<!-- begin: make mutations -->", "<!-- end: make mutations -->"
FIRST_LOOK = FOLDER / "first_look.csv"
NOT_FAILED = FOLDER / "not_failed.csv"
SLIGHT = 10  # times the right kernel's error
KINDS = {  # of what random calls say, in words
    "raises": "an exception",
    "no number": "another shape, NaN or an infinite value",
    "wrong": "an error above 100 times the right kernel's",
    "less exact": f"{SLIGHT} to 100 times",
    "slightly less exact": f"2 to {SLIGHT} times",
    "as exact": "at most twice",
    "same bits": "the same bits",
}


def mutations() -> pd.DataFrame:
    """The rows of mutations.csv; kind is told by `above`."""
    rows = pd.read_csv(FOLDER / "mutations.csv", keep_default_na=False).set_index("number")
    return rows.assign(kind=[_kind(row) for row in rows.itertuples()])


def _kind(row):
    if row.kind in ("raises", "same bits"):
        return row.kind
    if row.above > 1e300:
        return "no number"
    return "wrong" if row.above > 100 else "less exact" if row.above > SLIGHT else (
        "slightly less exact" if row.above > 2 else "as exact"
    )  # fmt: skip


def first_look() -> pd.DataFrame:
    """What judges said of all before ours was changed for them."""
    return pd.read_csv(FIRST_LOOK, keep_default_na=False).set_index("number")


def judge(rows: pd.DataFrame, jobs: int) -> pd.DataFrame:
    """Each mutation's verdict and findings (of `judged`, seed 0), less the notes that its right kernel has, too."""
    folder = build() / "mutations"
    folder.mkdir(parents=True, exist_ok=True)
    for author in AUTHORS:
        (folder / f"right_{author}.py").write_text(text(None, author))
    for number, row in rows.iterrows():
        (folder / f"m{number}.py").write_text(text(row.to_dict(), author_of(row)))
    names = [f"m{number}:{row.kernel}" for number, row in rows.iterrows()]
    right = {row.kernel: f"right_{author_of(row)}:{row.kernel}" for _, row in rows.iterrows()}
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])  # of the workers
    invalidate_caches()
    cache = str(build() / "mutants")
    with workers(jobs) as executor:
        found = sweep(judged, dict(seed=0, kernel=[*right.values(), *names]), fixed=dict(cache=cache), cache=cache,
                      executor=executor)  # fmt: skip
    found = found.set_index("kernel")
    usual = {kernel: {_named(each) for each in found.tells[name]} for kernel, name in right.items()}
    wrong = {kernel: found.verdict[name] for kernel, name in right.items() if found.verdict[name] != Verdict.PASSES}
    assert not wrong, wrong
    of = found.loc[names].set_axis(rows.index)
    told = [
        [*dict.fromkeys(name for name in map(_named, tells) if name not in usual[kernel])]
        for tells, kernel in zip(of.tells, rows.kernel)
    ]
    return pd.DataFrame(dict(
        verdict=of.verdict, by=["; ".join(dict.fromkeys(map(_named, each))) for each in of.fails],
        told=["; ".join(each) for each in told], assert_close=of.assert_close.map(bool),
        rule_of_two=of.rule_of_two.map(bool),
    ))  # fmt: skip


def _named(finding):
    what, of, _ = finding
    return f"{what}: {of}" if of else what


def score(rows: pd.DataFrame, seen: pd.DataFrame) -> str:
    """A line for each kind: how many each judge fails. seen: of `judge`."""
    lines = []
    for kind, words in KINDS.items():
        own = seen[rows.kind == kind]
        fails = own.verdict == Verdict.FAILS
        others = [int(own[judge].astype(bool).sum()) for judge in ("assert_close", "rule_of_two")]
        lines.append([words, len(own), int(fails.sum()), int((~fails & (own.told != "")).sum()), *others])
    head = ["random calls show", "defects", "ours fails", "ours reports only", "`assert_close`", "rule of two"]
    return table(head, lines)


def missed(rows: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    """The defects above SLIGHT that ours does not fail."""
    slight = rows.kind.isin(("slightly less exact", "as exact", "same bits"))
    return rows[~slight & (seen.verdict.reindex(rows.index) != Verdict.FAILS)]


def listed(rows: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    """A row for each defect: what is changed, what random calls show, what ours reports."""
    lines = []
    for number, row in rows.iterrows():
        change = f"`{_short(row.before)}` is `{_short(row.after)}`"
        shown = (
            row["where"].split(": ")[-1] if row.kind == "raises" else f"{row.above:,.0f} x, {row['where'].split()[-1]}"
        )
        lines.append([row.kernel, f"{row.file}, {row.line}", change, shown, seen.told[number]])
    return pd.DataFrame(lines, columns=["kernel", "line", "change", "random calls show", "ours reports"])


def _short(code):
    return " ".join(code.split()).replace("|", "\\|")


def document(rows: pd.DataFrame, first: pd.DataFrame, now: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """What the page has between its marks, and `listed` of what is only reported, then of what is passed. now: of
    `judge`, of those that were missed at first."""
    before, after = missed(rows, first), missed(rows.loc[now.index], now)
    told = after[now.told[after.index] != ""]
    silent = after.drop(told.index)
    sums = (
        f"Of the {len(before)} above {SLIGHT} times, or with an exception or no number, that were not failed, ours now "
        f"fails {len(before) - len(after)}, and reports {len(told)} (`benchmarks/mutations/{NOT_FAILED.name}`). "
        f"It passes {len(silent)} without a word: the rows with an empty last cell."
    )
    return f"{score(rows, first)}\n\n{sums}", listed(pd.concat([told, silent]), now)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--first-look", action="store_true", help="judge all, into first_look.csv")
    given = parser.parse_args()
    rows = mutations()
    if given.first_look:
        judge(rows, given.jobs).to_csv(FIRST_LOOK)
        return
    first = first_look()
    now = judge(missed(rows, first), given.jobs)
    text_of, not_failed = document(rows, first, now)
    not_failed.to_csv(NOT_FAILED, index=False)
    with replacing(PAGE) as path:
        path.write_text(renewed(PAGE.read_text(), *MARKS, text_of, PAGE.name))


if __name__ == "__main__":
    main()
