"""GPU kernels, run on a CPU in the GPU's own arithmetic: PTX in, a machine, compilers. docs/gpu/machine.md says how.

`triton("H100")` is in triton_driver, `Kernel` in launch, `compile_cuda` in nvcc, FlashAttention-2 in flash_attn.
`kernels.get("package.module:function", gpu="H100")` is in on.
"""

from fa_lib.gpu.device import GPU
from fa_lib.gpu.launch import Kernel, Structure
from fa_lib.gpu.memory import Fault
from fa_lib.gpu.nvcc import compile_cuda
from fa_lib.gpu.triton_driver import triton

__all__ = ["GPU", "Fault", "Kernel", "Structure", "compile_cuda", "triton"]
