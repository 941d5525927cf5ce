"""Defects made by machine: each is where mutations.csv says, and random calls tell what it does."""

import pandas as pd
import pytest
import torch

from benchmarks.judge import PAGE
from benchmarks.mutations import AUTHORS, __main__, author_of, kernel, text
from benchmarks.mutations.fuzz import compared, first_call
from benchmarks.second_mutants import numerics_right

RIGHT = numerics_right.right_two_pass


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
    assert compared(RIGHT, kernel("right_two_pass", "numerics"), calls=8) == dict(same=True, worst=0, where="", above=0)


def nan(q, k, v, **options):
    return RIGHT(q, k, v, **options) * (float("nan") if k.shape[2] == 1100 else 1)


def raises(q, k, v, mask=None, **options):
    return RIGHT(q, k, v, **options) if mask is None else mask.nothing


@pytest.mark.parametrize(
    "changed, least, most, where",
    [
        (lambda q, *a, **o: RIGHT(q, *a, **o) * (1 + torch.finfo(q.dtype).eps), 1, 8, ""),
        (lambda *a, **o: RIGHT(*a, **o) * 1.5, 100, 1e9, ""),
        (nan, float("inf"), float("inf"), ""),
        (raises, float("inf"), float("inf"), "AttributeError"),
        (lambda *a, **o: RIGHT(*a, **o).double(), 0, 1, "the dtype of o"),
    ],
)
def test_random_calls_say_what_a_change_does(changed, least, most, where):
    found = compared(RIGHT, changed, calls=24)
    assert not found["same"] and least <= found["above"] <= most and where in found["where"], found


def test_a_first_call_is_looked_at():
    assert first_call(RIGHT) < 0.02 < first_call(lambda *a, **o: RIGHT(*a, **o) * 1.1)
    assert first_call(raises) < 0.02 and first_call(lambda q, k, v, causal: q.nothing) == "AttributeError"
    assert first_call(lambda q, k, v, causal: q[0]) == "no output of finite values"


def test_the_page_says_what_the_tables_hold():
    rows, first = __main__.mutations(), __main__.first_look()
    assert list(first.index) == list(rows.index) and set(first.verdict) == {"passes", "fails"}
    assert __main__.score(rows, first) in PAGE.read_text()
    missed = __main__.missed(rows, first)
    assert {*missed.kind} == {"raises", "wrong", "less exact"} and (missed.above > __main__.SLIGHT).all()
    now = first.loc[missed.index].assign(told="")
    now.iloc[0, now.columns.get_loc("verdict")] = "fails"
    now.iloc[1, now.columns.get_loc("told")] = "bound: scores"
    said, reported = __main__.document(rows, first, now)
    assert "ours now fails 1, and reports 1 (`benchmarks/mutations/reported.csv`)" in said
    assert f"It passes {len(missed) - 2} without a word:" in said
    (line,) = reported.to_numpy().tolist()
    assert line[0] == missed.kernel.iloc[1] and line[-1] == "bound: scores"
    assert line[1] == f"{missed.file.iloc[1]}, {missed.line.iloc[1]}"
    assert f"reports {len(pd.read_csv(__main__.REPORTED))} (" in PAGE.read_text()
