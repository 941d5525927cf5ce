"""The emulator against torch's kernel, and the rule of the field."""

import pandas as pd
import pytest

from fa_lib import sweep
from fa_lib.experiments.rule import SHAPES, rule
from fa_lib.experiments.validation import agree, exponential
from fa_lib.kernels.known import vectorised as is_vectorised

BITS = dict(head_dim=64, heads=1, seed=0, distribution=["uniform", "normal"])
vectorised = pytest.mark.skipif(not is_vectorised(), reason="its exponential is of the AVX2 and AVX512 code")


@vectorised
@pytest.mark.parametrize("n", [1024, 4096])
def test_the_model_is_torchs_cpu_kernel(n):
    table = sweep(agree, BITS | dict(n=n, fmt=["BF16", "FP64"])).set_index(["fmt", "distribution", "choice"])
    bf16 = table.loc["BF16"]
    assert bf16.loc["uniform", "model"].identical > 0.99 and bf16.loc["normal", "model"].identical > 0.97
    for distribution in ("uniform", "normal"):
        model = bf16.loc[distribution, "model"]
        assert 0.98 < model.rmse / model.rmse_real < 1.02
        for choice in ("exponential exact", "P not rounded", "row sums of rounded P", "tile of 64 keys"):
            assert bf16.loc[distribution, choice].identical < model.identical
        assert table.loc["FP64", distribution, "model"].max_difference < 1e-14
    assert bf16.loc["normal", "exponential exact"].identical < 0.9  # what was missing before


@vectorised
def test_the_kernels_exponential_is_seen_and_modelled():
    """64 additions in FP32 leave exp(x) >= exp(-4) right to 64 * 2**-24 * 2.2 / 1.2 = 7e-6."""
    x, measured, modelled = exponential()
    assert len(x) == 1537 and 0.9e-4 < measured.abs().max() < 1.1e-4
    assert (measured - modelled).abs().max() < 1e-5 < measured.abs().mean()


@pytest.mark.parametrize("shape", ["97", "causal 113 x 203", "GQA 384", "causal window 512"])
@pytest.mark.parametrize("fmt", ["BF16", "FP16"])
def test_kernels_that_carry_fp32_pass_the_rule(shape, fmt):
    table = pd.DataFrame(rule(shape, 59, "normal", fmt, seed=3))
    assert set(table.tensor) == {"o", "dq", "dk", "dv"}
    assert table[table.kernel == "as shipped"].passed.all()
    assert table[(table.kernel == "flash") & (table.tensor == "o")].passed.all()


def test_the_rule_catches_what_the_paper_saw():
    table = pd.DataFrame(rule("4096", 64, "uniform", "BF16", seed=0, gradients=False)).set_index("kernel")
    assert table.passed.to_dict() == {"flash": True, "as shipped": True, "every step": False}
    assert table.ratio["every step"] > 10


def test_shapes_are_known():
    assert any(o.get("window") for *_, o in SHAPES.values()) and max(n for n, *_ in SHAPES.values()) == 4096
    with pytest.raises(ValueError, match="shape: got '98'; accepted are 97, 113 x 203"):
        rule("98", 64, "normal", "BF16", 0)
