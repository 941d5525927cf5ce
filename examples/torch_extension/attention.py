"""Flash attention in CUDA C++, as a torch extension. Judge it without a GPU by

fa-lib check kernel examples/torch_extension/attention.py:attention --gpu A100 --quick
"""

from pathlib import Path

from torch import Tensor
from torch.utils.cpp_extension import load

HERE = Path(__file__).resolve().parent
extension = load(
    "flash_example",
    [str(HERE / "main.cpp"), str(HERE / "flash.cu")],
    extra_cuda_cflags=["-O3", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__"],
)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """(batch, heads, n, head_dim), in FP16 or BF16, of head_dim 32, 64 or 128; no gradients."""
    if q.dtype != k.dtype or q.shape[1] != k.shape[1] or k.shape != v.shape:
        raise NotImplementedError("this kernel takes one dtype, as many heads of K as of Q, and V of K's shape")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return extension.forward(q.contiguous(), k.contiguous(), v.contiguous(), causal, scale)
