"""GPU kernels, run on a CPU in the GPU's own arithmetic: PTX in, a machine, compilers. docs/gpu/machine.md says how.

`triton("H100")` is in triton_driver, `Kernel` in launch, `compile_cuda` in nvcc, FlashAttention-2 in flash_attn.
`kernels.get("package.module:function", gpu="H100")` is in on.
"""

from ptx_machine.device import GPU
from ptx_machine.launch import Kernel, Structure
from ptx_machine.memory import Fault
from ptx_machine.nvcc import compile_cuda
from ptx_machine.triton_driver import triton

__all__ = ["GPU", "Fault", "Kernel", "Structure", "compile_cuda", "triton"]
