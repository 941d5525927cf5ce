"""What theory says of an attention's error: the law, and inputs that make most of it."""

from fa_lib.theory.bounds import bound
from fa_lib.theory.law import bits, bits_for, expected, expected_gradients, largest_over_baseline, repeated
from fa_lib.theory.recurrence import simulated

__all__ = [
    "bits", "bits_for", "bound", "expected", "expected_gradients", "largest_over_baseline", "repeated", "simulated",
]  # fmt: skip
