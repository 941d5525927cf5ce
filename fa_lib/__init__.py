"""fa_lib: is an attention kernel numerically safe? Reference, tiled-emulated and real kernels, and their deviation.

What is named here is imported when it is first asked for, and torch with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ptx_machine as gpu
    from attention_check import testing
    from attention_check.explain.explain import explain
    from attention_check.measure.weights import weights
    from attention_check.probe.tensor_files import load
    from fa_lib import kernels, theory
    from fa_lib.execution.sweep import sweep
    from fa_lib.kernels.inputs import draw
    from fa_lib.kernels.precision import Precision
    from fa_lib.kernels.tiling import Tiling
    from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format, round_to
    from fa_lib.numerics.metrics import deviation
    from fa_lib.numerics.wasserstein import wasserstein

__all__ = [
    "BF16", "E4M3", "E5M2", "FP16", "FP32", "FP64", "TF32", "Format", "Precision", "Tiling",
    "deviation", "draw", "explain", "gpu", "kernels", "load", "round_to", "sweep", "testing", "theory", "wasserstein",
    "weights",
]  # fmt: skip
_FORMATS = ("BF16", "E4M3", "E5M2", "FP16", "FP32", "FP64", "TF32", "Format", "round_to")
_HOMES = dict.fromkeys(_FORMATS, "numerics.formats") | {
    "deviation": "numerics.metrics", "wasserstein": "numerics.wasserstein", "Precision": "kernels.precision",
    "Tiling": "kernels.tiling", "draw": "kernels.inputs", "sweep": "execution.sweep",
}  # fmt: skip
_INSTRUMENTS = {
    "gpu": "ptx_machine",
    "testing": "attention_check.testing",
    "explain": "attention_check.explain.explain",
    "load": "attention_check.probe.tensor_files",
    "weights": "attention_check.measure.weights",
}


def __getattr__(name: str):
    if name in _HOMES:
        found = getattr(import_module(f"fa_lib.{_HOMES[name]}"), name)
    elif name in _INSTRUMENTS:
        instrument = import_module(_INSTRUMENTS[name])
        found = getattr(instrument, name, instrument)
    elif name in __all__:
        found = import_module(f"fa_lib.{name}")
    else:
        raise AttributeError(f"module 'fa_lib' has no attribute {name!r}")
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
