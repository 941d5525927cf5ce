"""Flash attention in CUDA C++, as a torch extension: judge it without a GPU by

fa-lib check kernel examples/torch_extension/attention.py:attention --gpu A100 --quick
"""

from pathlib import Path

from torch.utils.cpp_extension import load_inline

SOURCE = (Path(__file__).parent / "flash.cu").read_text()
extension = load_inline(
    name="flash_example",
    cpp_sources="torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal, double scale);",
    cuda_sources=SOURCE,
    functions=["forward"],
    extra_cuda_cflags=["-O3"],
)


def attention(q, k, v, *, causal=False, scale=None):
    """(batch, heads, n, head_dim), in FP32, FP16 or BF16, of head_dim 32, 64 or 128; no gradients."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return extension.forward(q.contiguous(), k.contiguous(), v.contiguous(), causal, scale)
