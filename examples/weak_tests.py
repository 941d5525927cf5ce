"""Weak tests of cuda_attention.py: one length, no mask, one tolerance for everything. From this folder:

fa-lib dev mutate cuda_attention.py:attention --gpu A100 -- pytest weak_tests.py
"""

import torch
import torch.nn.functional as F
from cuda_attention import attention


def test_it_is_attention():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 32, 16).half() for _ in range(3))
    torch.testing.assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-2, rtol=1e-2)
