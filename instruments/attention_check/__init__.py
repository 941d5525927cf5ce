"""Is this attention kernel numerically safe, and if two outputs differ, why? Kernels are called, never read.

What is named here is imported when it is first asked for: README.md beside this file has a line on each.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attention_check.commands.captured_reports import check_model, check_tensors
    from attention_check.commands.reports import check_kernel
    from attention_check.explain.compare import compare
    from attention_check.explain.explain import explain
    from attention_check.explain.shrink import shrink
    from attention_check.gpu.blame import blame
    from attention_check.measure.weights import weights
    from attention_check.probe.probe import Probe
    from attention_check.testing import assert_attention_close, parametrize_with_checks

__all__ = [
    "Probe", "assert_attention_close", "blame", "check_kernel", "check_model", "check_tensors", "compare", "explain",
    "parametrize_with_checks", "shrink", "weights",
]  # fmt: skip
_HOMES = {
    "check_kernel": "commands.reports", "check_model": "commands.captured_reports",
    "check_tensors": "commands.captured_reports",
    "compare": "explain.compare", "explain": "explain.explain", "shrink": "explain.shrink", "blame": "gpu.blame",
    "Probe": "probe.probe", "assert_attention_close": "testing", "parametrize_with_checks": "testing",
    "weights": "measure.weights",
}  # fmt: skip


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'attention_check' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"attention_check.{_HOMES[name]}"), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
