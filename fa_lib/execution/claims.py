"""What was published, what we get with its spread over seeds, and the verdict.

`data/published.csv` holds the statements with the interval [low, high] in which a value agrees with the words.
The notebooks write `<notebook>.claims.csv`. `execution.ledger` joins the two.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fa_lib.execution.paths import PUBLISHED
from fa_lib.numerics.confidence import interval


def published() -> pd.DataFrame:
    """Read the published statements.

    Returns:
        table: indexed by id; figure, paper (of `ledger.PAPERS`), source, statement, quantity, published (the value, as
        a text), low and high (the interval in which a value agrees), average ("geometric" for ratios that training
        multiplies, else ""), open (what the paper leaves open and a setting chooses, or ""), untested (why our numbers
        cannot judge it, or "").
    """
    texts = ("paper", "source", "published", "average", "open", "untested")
    return pd.read_csv(PUBLISHED, index_col="id", dtype=dict.fromkeys(texts, str)).fillna(dict.fromkeys(texts, ""))


def verdict(
    values: Sequence[float] | np.ndarray, low: float, high: float, average: str = "", open: str = "", untested: str = ""
) -> str:  # fmt: skip
    """Compare the 95 % confidence interval of a mean over seeds with a statement's interval.

    Args:
        values: ours, one a seed. low, high: the ends of the statement's interval. average: as of `bounds`.
        open, untested: as of `published`.

    Returns:
        "reproduced": the mean's interval lies within [low, high], the ends included; "not reproduced": it lies outside;
        "not at this setting": so, of a statement that leaves it open; "undecided": it lies partly inside; "ours":
        nothing was published (low is NaN); "not tested": of one that is untested.
    """
    if untested:
        return "not tested"
    if np.isnan(low):
        return "ours"
    _, first, last = bounds(values, average)
    if low <= first and last <= high:
        return "reproduced"
    if low <= last and first <= high:
        return "undecided"
    return "not at this setting" if open else "not reproduced"


def bounds(values: Sequence[float] | np.ndarray, average: str = "") -> tuple[float, float, float]:
    """Compute a mean over seeds and the ends of its 95 % confidence interval (Student's t): (mean, first, last), three
    times the value where there is only one.

    average: "" is the arithmetic mean; for "geometric" mean and interval are those of the logarithms.
    """
    each = pd.Series(values, dtype=float)
    found = np.exp(interval(np.log(each))) if average else np.array(interval(each))
    mean, first, last = (float(x) for x in found)
    return (mean, first, last) if len(values) > 1 else (mean, mean, mean)


def claim(id: str, setting: str, values: Sequence[float] | pd.Series) -> dict[str, str]:
    """Make one row of the ledger: id, setting, values (numbers in one text, separated by blanks). A ValueError: an id
    that data/published.csv lacks, no values, or values that are not finite.

    setting: the choices that the paper leaves open, in words. values: ours, one a seed.
    """
    table = published()
    if id not in table.index:
        raise ValueError(f"id: got {id!r}; accepted are {', '.join(table.index)}")
    values = np.asarray(values, dtype=float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"values: got {values}; accepted are finite numbers, one a seed")
    return {"id": id, "setting": setting, "values": " ".join(f"{value:.6g}" for value in values)}


def by_distribution(id: str, setting: str, values: pd.Series) -> list[dict[str, str]]:
    """Make a `claim` for each distribution of inputs, with which its setting begins; values: indexed by (distribution,
    seed)."""
    groups = values.groupby("distribution", sort=False)
    return [claim(id, f"{distribution} inputs, {setting}", group) for distribution, group in groups]
