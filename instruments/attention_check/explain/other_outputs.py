"""What the log-sum-exp and the gradients are that came with an output, under the output's dialect."""

from dataclasses import replace

from attention_check.conventions.attention import Dialect
from attention_check.conventions.conventions import CONVENTIONS
from attention_check.conventions.derivatives import GRADIENTS
from attention_check.conventions.evidence import Evidence
from attention_check.conventions.reading import Unfit
from attention_check.explain.gradients import RightGradients, gradient
from attention_check.explain.log_sum_exp import judged_log_sum_exp
from attention_check.explain.verdict import Explanation

SHARED = ("layout", "roles", "heads", "softmax")  # aspects that they have as the output has them: no other is tried


def with_other_outputs(evidence: Evidence, found: Explanation) -> Explanation:
    """An Explanation with what its log-sum-exp and its gradients are, and why some were not judged."""
    dialect, others, reasons = Dialect(**found.dialect), [], []
    choices = [each for each in CONVENTIONS if each.aspect not in (*SHARED, *found.dialect) and each.fits(evidence)]
    right = None  # of all gradients, computed for the first one
    for name in ("lse", *GRADIENTS):
        if name not in evidence.others:
            continue
        try:
            if name == "lse":
                others.append(judged_log_sum_exp(evidence, dialect, choices))
            elif "dO" not in evidence.others:
                raise Unfit("dO is needed beside it")
            elif name == "dv" and found.blind_rows == "mean":
                raise Unfit("rows that see no key are the mean of v, and have gradients that are not computed here")
            else:
                right = right or RightGradients.of(evidence, dialect)
                others.append(gradient(right, name, choices))
        except Unfit as error:
            reasons.append(f"{name}: {error}")
    return replace(found, others=tuple(others), not_judged="; ".join(reasons))
