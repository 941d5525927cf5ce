"""What a wrong answer looks like: attention under another convention, found by trying them."""

import math

import pandas as pd
from torch import Tensor

from attention_check.conventions.conventions import keys_of
from attention_check.conventions.reading import CapturedCall
from fa_lib.execution.process_settings import give_back

FAR = 0.2  # of the golden value's root mean square: 50 times what BF16 costs, a fifth of what another answer is off


def distance(o: Tensor, golden: Tensor) -> float:
    """The root mean square of a difference, over the golden value's; FAR and more is another answer. Infinite where the
    shapes differ."""
    if o.shape != golden.shape:
        return math.inf
    return ((o.double() - golden).square().mean().sqrt() / golden.square().mean().sqrt()).item()


def diagnose(call: CapturedCall) -> str:
    """What a wrong answer is: the keys of `conventions.CONVENTIONS` that it is right in, with "+" between them, or
    numbers that are fitted; else "other"."""
    from attention_check.explain.explanation import explanation  # a tenth of a second, for kernels that are wrong

    found = keys_of(explanation(call).dialect) or "other"
    give_back()
    return found


def furthest(rows: pd.DataFrame) -> pd.Series:
    """Return the row whose column `relative` is the largest; NaN, which is no answer, is larger than any number."""
    return rows.loc[rows.relative.fillna(math.inf).idxmax()]
