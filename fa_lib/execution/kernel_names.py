"""Names of kernels as texts: with the GPU whose arithmetic a kernel runs in, and as readers see them."""

import re

ON_GPU = "attention_check.gpu.on"  # the module that finds kernels of such names


def on_gpu(name: str, gpu: str) -> str:
    """Return a name for `kernels.get` of the kernel `kernels.get(name, gpu)`, for workers and notebooks."""
    return f"{ON_GPU}:{gpu}:{name}" if gpu else name


def without_gpu(name: str) -> tuple[str, str]:
    """Return a kernel's own name and its GPU, "" for none: of a name of `on_gpu`, or of another."""
    _, gpu, own = name.split(":", 2) if name.startswith(f"{ON_GPU}:") else ("", "", name)
    return own, gpu


def kernel_label(name: str) -> str:
    """Write a kernel's name for readers: "gallery:fa2_cuda on A100", "my_file:attention on H100", "flash"."""
    own, gpu = without_gpu(name)
    own = re.sub(r"^fa_lib\.gallery(\.\w+)?:", "gallery:", own)
    return f"{own} on {gpu}" if gpu else own
