"""fa_lib: is an attention kernel numerically safe? Reference, tiled-emulated and real kernels, and their deviation."""

from fa_lib.execution import collecting, environment

environment.in_commands()  # before torch is imported

with collecting.put_off():
    import torch

    # The first multi-threaded torch.exp of a process can return wrong values on CPU, off by 1e-4 relative: a race in
    # how MKL picks its code (pytorch issue 188792). One single-threaded call per dtype settles the pick, and what
    # measures errors of 1e-4 makes it before anything else.
    for _dtype in (torch.float32, torch.float64):
        torch.exp(torch.zeros(64, dtype=_dtype))

    from fa_lib import kernels
    from fa_lib.kernels.inputs import draw, load
    from fa_lib.kernels.precision import Precision
    from fa_lib.kernels.tiling import Tiling
    from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format, round_to
    from fa_lib.numerics.metrics import deviation, wasserstein

collecting.in_commands()

__all__ = [
    "BF16", "E4M3", "E5M2", "FP16", "FP32", "FP64", "TF32", "Format", "Precision", "Tiling",
    "deviation", "draw", "kernels", "load", "round_to", "sweep", "wasserstein",
]  # fmt: skip


def __getattr__(name):
    """`fa_lib.sweep`, which brings pandas, when it is first asked for."""
    if name != "sweep":
        raise AttributeError(f"module 'fa_lib' has no attribute {name!r}")
    from fa_lib.execution.sweep import sweep

    return sweep
