"""GPU kernels, run on a CPU in the GPU's own arithmetic: PTX in, a machine, compilers. docs/gpu_machine.md says how.

`triton("H100")` is in triton_driver, `Kernel` in launch, `compile_cuda` in nvcc, FlashAttention-2 in flash_attn.
`kernels.get("package.module:function", gpu="H100")` is in by_name, which also knows the name as one text,
"fa_lib.gpu:H100:package.module:function".
"""

from fa_lib.gpu.device import GPU
from fa_lib.gpu.launch import Kernel, Structure
from fa_lib.gpu.memory import Fault
from fa_lib.gpu.nvcc import compile_cuda
from fa_lib.gpu.triton_driver import triton

__all__ = ["GPU", "Fault", "Kernel", "Structure", "compile_cuda", "triton"]


def named(kernel, gpu):
    """`kernels.get(kernel, gpu)`: see fa_lib.gpu.by_name.kernel."""
    from fa_lib.gpu import by_name  # it knows fa_lib.kernels, which the machine does not

    return by_name.kernel(kernel, gpu)


def __getattr__(name):
    """The kernel of a name GPU:KERNEL.

    Raises:
        AttributeError, ImportError, ValueError: there is none, and why.
    """
    gpu, colon, kernel = name.partition(":")
    if not colon:
        raise AttributeError(f"fa_lib.gpu has no {name!r}")
    return named(kernel, gpu)
