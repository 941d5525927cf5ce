"""Captured tensors, examined: every table that `judge.captured` reads."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from attention_check.isolation.calls import Answer
from attention_check.isolation.worker import Outcome
from attention_check.measure.captured import deviations, risks
from attention_check.measure.closeness import closeness
from attention_check.measure.measurements import TensorMeasurements


def examine_tensors(
    q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any], answers: Mapping[str, Answer], judged: str
) -> TensorMeasurements:  # fmt: skip
    """Measure what kernels make of captured tensors.

    Args:
        q, k, v: (1, heads, n_q, head_dim), (1, kv_heads, n_kv, head_dim) and (1, kv_heads, n_kv, d_v), in one format.
        options: of the call: causal, mask, scale ...
        answers: of `captured.answered`, by kernel. judged: the kernel whose output is held to its own bound.
    """
    own, options = answers[judged], dict(options)
    return TensorMeasurements(
        deviations=pd.DataFrame(deviations(q, k, v, options, answers)),
        risks=pd.DataFrame(risks(q, k, v, options)),
        bound=pd.DataFrame(closeness(own.output, q, k, v, options) if own.outcome == Outcome.ANSWERED else []),
    )
