"""The emulator against torch's kernel."""

import pytest

from fa_lib import sweep
from fa_lib.execution import claims
from fa_lib.experiments.validation import CHOICES, agree, exponential
from fa_lib.kernels.shipped import vectorised as is_vectorised

pytestmark = pytest.mark.slow

BITS = dict(head_dim=64, heads=1, seed=0, distribution=["uniform", "normal"])
vectorised = pytest.mark.skipif(not is_vectorised(), reason="its exponential is of the AVX2 and AVX512 code")


@vectorised
def test_the_model_is_torchs_cpu_kernel():
    """At two of its tiles of keys; the ledger has N = 4096."""
    table = sweep(agree, BITS | dict(n=1024, fmt=["BF16", "FP16", "FP64"])).set_index(["fmt", "distribution", "choice"])
    bf16 = table.loc["BF16"]
    validated = claims.published().loc["fig2-validated"].low
    assert bf16.loc["uniform", "model"].identical > 0.99 and bf16.loc["normal", "model"].identical > validated >= 0.97
    for distribution in ("uniform", "normal"):
        model = bf16.loc[distribution, "model"]
        assert 0.98 < model.rmse / model.rmse_real < 1.02
        assert set(bf16.loc[distribution].index) == set(CHOICES)
        for choice in set(CHOICES) - {"model"}:
            assert bf16.loc[distribution, choice].identical < model.identical
        assert table.loc["FP64", distribution, "model"].max_difference < 1e-14
    assert bf16.loc["normal", "exact_exp"].identical < 0.9  # what was missing before
    fp16 = table.loc["FP16"]
    assert fp16.loc["uniform", "model"].identical > 0.99 and fp16.loc["normal", "model"].identical > 0.95


@vectorised
def test_the_kernels_exponential_is_seen_and_modelled():
    """64 additions in FP32 leave exp(x) >= exp(-4) right to 64 * 2**-24 * 2.2 / 1.2 = 7e-6."""
    x, measured, modelled = exponential()
    assert len(x) == 1537 and 0.9e-4 < measured.abs().max() < 1.1e-4
    assert (measured - modelled).abs().max() < 1e-5 < measured.abs().mean()
