"""Run GPU kernels on a CPU, in the GPU's own arithmetic. README.md beside this file says how.

- `GPU.of("H100")`: the GPU whose arithmetic is used; A100, L40S, H100, H200 and B200.
- `Kernel(ptx, gpu="H100")`: a kernel of a PTX text. `kernel(grid, block, shared_bytes, *arguments)` runs it on torch's
  CPU tensors, in place. `Structure` is an argument that a kernel takes by value.
- `compile_cuda(text)`: CUDA C++ to PTX, by nvcc from its package.
- `with triton("H100"):` kernels of @triton.jit run here.
- `with torch_extensions("A100"):` torch's CUDA extensions that are loaded here run here.
- `Fault`: a kernel did what it may not, such as reading out of bounds; with the line, the thread and the address.

The machine knows no attention, and of fa_lib it needs `fa_lib.numerics` alone.
"""

from ptx_machine.device import GPU
from ptx_machine.extension import torch_extensions
from ptx_machine.launch import Kernel, Structure
from ptx_machine.memory import Fault
from ptx_machine.nvcc import compile_cuda
from ptx_machine.triton_driver import triton

__all__ = ["GPU", "Fault", "Kernel", "Structure", "compile_cuda", "torch_extensions", "triton"]
