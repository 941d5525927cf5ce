"""A kernel's answers to the calls of `contract`: what is wrong, what is not supported, what it follows instead."""

from collections.abc import Iterator

import pandas as pd

from attention_check.conventions.conventions import keys_of
from attention_check.isolation.calls import FAULTS
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import CAPABILITIES, CAUSAL_FEWER, CAUSAL_ONE, FEWER
from attention_check.measure.contract import BY_DEFAULT, NAMED, OUTSIDE, formats
from attention_check.measure.measurements import Measurements

ROUGH = 20  # times the error of plain sums in FP32 or FP64: another order of additions makes a few, TF32 hundreds
EVEN = [each.key for each in CAPABILITIES if each.call.n_q == each.call.n_kv]  # as many queries as keys
KEYS_OF_Q = keys_of(dict(keys=(0, next(each.call.n_q for each in CAPABILITIES if each.key == FEWER))))
NOT_JUDGED = {"raises": NAMED, "outside": OUTSIDE, "unsupported": ""}  # findings of what is refused -> its note


def conventions(found: Measurements) -> Iterator[Finding]:
    """Which calls it takes, and in which layout: a caller has to know that anyway."""
    for key in found.conventions:
        yield Finding("takes", Severity.REPORTED, dict(key=key))


def not_attention(asked: pd.DataFrame) -> Iterator[Finding]:
    """Say why a kernel that has no format is not judged."""
    if formats(asked):
        return
    bad = asked[asked.outcome.isin((Outcome.WRONG, Outcome.MALFORMED))]
    ended = asked[asked.outcome == Outcome.ENDED]
    worst = next(rows for rows in (bad, ended, asked) if len(rows)).iloc[0]
    yield Finding("not_attention" if len(bad) else "not_run", Severity.FAILS, _asked_of(worst))


def answers(asked: pd.DataFrame) -> Iterator[Finding]:
    """Calls that are answered, and not with attention; with the head_dim where it is not that which is judged. Before
    them: that the kernel takes the number of keys from q."""
    faults = asked[asked.outcome.isin(FAULTS)]
    if not faults.asked.isin(EVEN).any() and (asked.note[asked.asked == FEWER] == KEYS_OF_Q).any():
        yield Finding("keys_of_q", Severity.FAILS)
    for _, row in faults.iterrows():
        other = None if row.head_dim == asked.head_dim.iloc[0] else int(row.head_dim)
        yield Finding("answer", Severity.FAILS, _asked_of(row) | dict(head_dim=other))


def _asked_of(row: pd.Series) -> dict:
    """Of a row of `contract`."""
    return {name: row[name] for name in ("asked", "outcome", "note", "problem")} | dict(dim=int(row.dim))


def unsupported(asked: pd.DataFrame) -> Iterator[Finding]:
    """Calls that the kernel refuses, those that it raises at though its parameters are for them, and those for which it
    reads outside of its tensors: not judged."""
    for what, note in NOT_JUDGED.items():
        if len(rows := asked[(asked.outcome == Outcome.REFUSED) & (asked.note == note)]):
            where = dict(asked=[*rows.asked], dims=[*map(int, rows.dim)])
            where |= dict(problem=rows.problem.iloc[0]) if what != "unsupported" else {}
            yield Finding(what, Severity.REPORTED, where)


def less_than_format(found: Measurements) -> Iterator[Finding]:
    """Formats in which an answer is further off than plain sums, of those in which errors are not judged; or the
    shorter one in which the kernel is known to compute."""
    if found.arithmetic:
        yield Finding("arithmetic", Severity.REPORTED, dict(arithmetic=found.arithmetic))
        return
    judged = {*found.lengths.fmt}
    for row in found.asked[found.asked.times > ROUGH].itertuples():
        if row.asked not in judged:
            yield Finding("less_than_format", Severity.REPORTED, dict(fmt=row.asked), row.times, ROUGH)


def causal(found: Measurements) -> Iterator[Finding]:
    """How it masks, where that decides what is judged."""
    asked = found.asked
    if (asked.note == "causal_only").any():
        yield Finding("causal_only", Severity.REPORTED)
    if (asked.note == BY_DEFAULT).any():
        yield Finding(BY_DEFAULT, Severity.REPORTED)
    if found.top_left and len(found.shapes):
        yield Finding("top_left", Severity.REPORTED)


def alignment(asked: pd.DataFrame) -> Iterator[Finding]:
    """A causal mask that is aligned otherwise for one query than for several, where queries are fewer than keys: chunks
    of a prompt and single tokens then see other keys. asked: table of `contract`."""
    right = asked[asked.outcome == Outcome.ANSWERED]
    notes = [*(right.note[right.asked == each] for each in (CAUSAL_FEWER, CAUSAL_ONE))]
    if all(map(len, notes)) and len({each.iloc[0] for each in notes}) > 1:
        yield Finding("alignment", Severity.FAILS, dict(several=notes[0].iloc[0], one=notes[1].iloc[0]))
