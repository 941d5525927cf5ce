"""What theory says of an attention's error: the law, and inputs that make most of it."""

from fa_lib.theory.bounds import bound
from fa_lib.theory.carried_bits import bits, bits_for
from fa_lib.theory.law import bias, expected, expected_gradients, largest_over_baseline
from fa_lib.theory.simulation import simulated

__all__ = [
    "bias", "bits", "bits_for", "bound", "expected", "expected_gradients", "largest_over_baseline", "simulated",
]  # fmt: skip
