"""Defects made by machine: each is where mutations.csv says."""

import pandas as pd
import pytest
import torch

from benchmarks.judge import PAGE
from benchmarks.mutations import AUTHORS, __main__, author_of, kernel, text
from benchmarks.second_mutants import numerics_right


def test_every_change_is_made_where_it_was_found():
    rows = __main__.mutations()
    assert len(rows) == 390 and not rows.duplicated(["kernel", "file", "line", "column", "operator", "after"]).any()
    unchanged = {author: text(None, author) for author in AUTHORS}
    for _, row in rows.iterrows():
        author = author_of(row)
        changed = text(row.to_dict(), author)
        assert changed != unchanged[author] and row.after in changed
        compile(changed, row.file, "exec")
    row = rows.iloc[0].to_dict()
    with pytest.raises(
        ValueError, match=rf"^{row['file']}, line {row['line']}: got .*; mutations.csv has 'no such text'"
    ):
        text(row | dict(before="no such text"), author_of(row))


def test_one_text_has_the_bits_of_the_two_modules():
    q, k, v = torch.randn(3, 1, 2, 100, 32, generator=torch.manual_seed(0)).bfloat16()
    changed = kernel("right_two_pass", "numerics")(q, k, v, causal=True)
    assert torch.equal(changed, numerics_right.right_two_pass(q, k, v, causal=True))


def test_the_page_says_what_the_tables_hold():
    rows, first = __main__.mutations(), __main__.first_look()
    assert list(first.index) == list(rows.index) and set(first.verdict) == {"passes", "fails"}
    assert __main__.score(rows, first) in PAGE.read_text()
    missed = __main__.missed(rows, first)
    assert {*missed.kind} == {"raises", "wrong", "less exact"} and (missed.above > __main__.SLIGHT).all()
    now = first.loc[missed.index].assign(told="")
    now.iloc[0, now.columns.get_loc("verdict")] = "fails"
    now.iloc[1, now.columns.get_loc("told")] = "bound: scores"
    said, not_failed = __main__.document(rows, first, now)
    assert "ours now fails 1, and reports 1 (`benchmarks/mutations/not_failed.csv`)" in said
    assert f"It passes {len(missed) - 2} without a word:" in said
    line, *silent = not_failed.to_numpy().tolist()
    assert len(silent) == len(missed) - 2 and {each[-1] for each in silent} == {""}
    assert line[0] == missed.kernel.iloc[1] and line[-1] == "bound: scores"
    assert line[1] == f"{missed.file.iloc[1]}, {missed.line.iloc[1]}"
    reported = pd.read_csv(__main__.NOT_FAILED)["ours reports"].notna()
    assert f"reports {reported.sum()} (" in PAGE.read_text()
    assert f"passes {(~reported).sum()} without a word" in PAGE.read_text()
