"""How sure a mean over seeds is."""

import pandas as pd
from scipy import special


def interval(values: pd.Series, level: float = 0.95) -> tuple[float, float, float]:
    """Compute the mean of one number per seed and its confidence interval (Student's t), as (mean, low, high); NaNs are
    dropped. low and high are NaN for fewer than two seeds."""
    values = values.dropna()
    mean, error = values.mean(), values.sem()
    half = error * special.stdtrit(len(values) - 1, (1 + level) / 2) if len(values) > 1 else float("nan")
    return mean, mean - half, mean + half
