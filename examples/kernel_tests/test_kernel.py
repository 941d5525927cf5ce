"""The tests of kernel.py: `pytest` in this folder."""

import pytest
import torch
from kernel import attention, carried_in_16_bits

from attention_check.testing import assert_attention_close, parametrize_with_checks


def inputs(dtype, keys=512):
    torch.manual_seed(0)
    return (torch.rand(1, 2, n, 64).to(dtype) for n in (64, keys, keys))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_the_output_is_attention(dtype, causal):
    q, k, v = inputs(dtype)
    assert_attention_close(attention(q, k, v, causal=causal), q, k, v, precision=dtype, causal=causal)


def test_sums_of_16_bits_are_seen():
    q, k, v = inputs(torch.bfloat16)
    with pytest.raises(AssertionError, match="times the bound in 128 of 128 rows"):
        assert_attention_close(carried_in_16_bits(q, k, v), q, k, v, precision="BF16")


@parametrize_with_checks([attention])
def test_kernel(kernel, check):
    check(kernel)


@parametrize_with_checks(
    [carried_in_16_bits],
    expected_failures={
        "error": "O and l are carried in the inputs' format",
        "carry": "O and l are carried in the inputs' format",
        "constant_values": "O and l lose different terms",
        "dv_sum": "the weights of the backward pass do not sum to one",
        "constant_gradients": "dP and its row sum lose different terms",
    },
)
def test_kernel_of_16_bits(kernel, check):
    check(kernel)
