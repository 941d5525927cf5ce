"""For everybody's pytest: `assert_attention_close`, with a bound derived for the inputs at hand, and
`parametrize_with_checks`, which makes a test of every check of a kernel. docs/reference/testing.md shows both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from attention_check.explain.explanation import cause_of
from attention_check.measure.mistakes import Cause
from attention_check.report.labels import has_this_error
from attention_check.testing.checks import CHECKS, result_of
from attention_check.tolerance import BLOCK, Tolerance, declared, tolerance
from fa_lib.kernels.kernel_ref import label_of
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import FormatLike

__all__ = ["assert_attention_close", "parametrize_with_checks"]

WORST = 3  # rows that are listed


def assert_attention_close(
    o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    precision: Precision | FormatLike,
    tiles: int | None = None,
    algorithm: str = "fa2",
    false_alarm: float = 1e-6,
    **options,
) -> None:
    """Assert that a kernel's output is attention's, as exactly as the kernel declares.

    Each output, and each row of outputs, has its own bound, `tolerance.tolerance`, computed for these inputs from the
    declared formats; no tolerance is chosen. A kernel that does what it declares exceeds a bound in one call of
    1 / false_alarm.

    Args:
        o: (batch, heads, n_q, d_v), the kernel's output. q: (batch, heads, n_q, head_dim). k: (batch, kv_heads, n_kv,
            head_dim). v: (batch, kv_heads, n_kv, d_v). Any number of leading dimensions.
        precision: what the kernel declares: a Precision; or the format (a name, a dtype) of a kernel that keeps its
            sums in FP32, for `Precision.kernel`.
        tiles: how many tiles the keys are cut into; None: tiles of 64 keys. It counts where less than FP32 is declared
            for the sums.
        algorithm: "fa2", "fa1", or "baseline" for a kernel that normalises P before it rounds it.
        false_alarm: the share of calls in which a right kernel may fail.
        options: those that the kernel was called with: causal, scale, mask, window, softcap, keep, dropout_p, sinks.

    Raises:
        AssertionError: rows exceed their bounds (the error says which, by how much, and which mistake has this error);
            or o has another shape or dtype, values that are not finite, or rows that see no key and are not 0.
        ValueError: another argument does not fit.
    """
    precision = declared(precision)
    if not isinstance(o, Tensor):
        raise AssertionError(f"o: got {type(o).__name__}; due is a tensor")
    about = tolerance(
        q, k, v, precision=precision, tiles=tiles, algorithm=algorithm, false_alarm=false_alarm, **options
    )
    due, dtypes = tuple(about.golden.shape), dict.fromkeys((q.dtype, precision.output.dtype or q.dtype))
    if tuple(o.shape) != due:
        raise AssertionError(f"o: got shape {tuple(o.shape)}; due is {due}: q's, with v's last dimension")
    if o.dtype not in dtypes:
        raise AssertionError(f"o: got {o.dtype}; due is {' or '.join(map(str, dtypes))}")
    outputs = o.detach().double().to(about.golden.device)  # (*lead, n_q, d_v)
    if (bad := ~outputs.isfinite().all(-1)).any():
        blind = bad & ~about.seen.squeeze(-1)
        which = f"; {_count(blind)} of these see no key, and are due to be 0" if blind.any() else ""
        raise AssertionError(f"o: NaN or infinite in {_count(bad)}, the first {_first(bad)}{which}")
    times = torch.cat(about.times(outputs), -1)  # of every output, and of the row along golden (*lead, n_q, d_v + 1)
    unseen = ~about.seen & (outputs != 0)
    if unseen.any():
        rows = unseen.any(-1)
        raise AssertionError(f"o: not 0 in {_count(rows)} that see no key, the first {_first(rows)}; due is 0")
    over = (times > 1).any(-1)  # (*lead, n_q)
    if over.any():
        block = BLOCK if tiles is None else -(-k.shape[-2] // tiles)
        raise AssertionError(_message(times, over, about, cause_of(outputs, q, k, v, options, precision, block)))


def _count(rows: Tensor) -> str:
    return f"{int(rows.sum())} of {rows.numel()} rows"


def _first(rows: Tensor) -> tuple[int, ...]:
    return tuple(rows.nonzero()[0].tolist())


def _message(times: Tensor, over: Tensor, about: Tolerance, found: Cause | None) -> str:
    """Write an AssertionError's message; its first line says by how much, where, and why."""
    by_row, bounds = times.amax(-1), torch.cat([about.bound, about.of_row], -1)
    worst = by_row.flatten().topk(min(WORST, int(over.sum()))).indices
    places = [tuple(int(i) for i in torch.unravel_index(at, by_row.shape)) for at in worst]
    first = places[0]
    why = has_this_error(dict(key="") if found is None else asdict(found))
    lines = [f"o: {by_row[first]:.3g} times the bound in {_count(over)}, worst {first}: {why}"]
    for place in places:
        at = int(times[place].argmax())
        bound, where, what = bounds[place][at].item(), f"feature {at}", "|o - golden|"
        if at == about.golden.shape[-1]:
            where, what = "all features", "|(o - golden) . golden| / |golden|"
        lines.append(f"  row {place}, {where}: {what} = {times[place][at].item() * bound:.3g}, bound {bound:.3g}")
    return "\n".join(lines)


def assert_check_passes(kernel: str | Callable, name: str) -> None:
    """Run a check, a key of CHECKS; pytest skips the test where the kernel lacks what the check needs.

    Raises:
        AssertionError: the kernel fails the check.
    """
    import pytest

    found = result_of(name, kernel)
    if found.passed is None:
        pytest.skip(found.why)
    if not found.passed:
        raise AssertionError(f"{name}: {found.why}")


def parametrize_with_checks(
    kernels: Sequence[str | Callable], *, expected_failures: Mapping[str, str] | None = None
) -> Callable:
    """Make a decorator for `def test_kernel(kernel, check): check(kernel)`, by which every check of every kernel is a
    test with the id "kernel-check".

    Args:
        kernels: functions f(q, k, v, causal=..., scale=...), or names for `kernels.get`. A check whose option a kernel
            lacks is skipped.
        expected_failures: check -> reason, for checks that are known to fail. Such a check fails the tests only where
            it passes.

    Raises:
        ValueError: a check is not known; the accepted ones are listed.
    """
    import pytest

    expected = dict(expected_failures or {})
    if unknown := [name for name in expected if name not in CHECKS]:
        raise ValueError(f"expected_failures: got {unknown[0]!r}; accepted are {', '.join(CHECKS)}")
    fails = partial(pytest.mark.xfail, raises=AssertionError, strict=True)
    cases = [
        pytest.param(
            kernel, partial(assert_check_passes, name=name), id=f"{_kernel_name(kernel)}-{name}",
            marks=[fails(reason=expected[name])] if name in expected else [],
        ) for kernel in kernels for name in CHECKS
    ]  # fmt: skip
    return pytest.mark.parametrize(("kernel", "check"), cases)


def _kernel_name(kernel: str | Callable) -> str:
    """Return a kernel's name for a test's id."""
    while isinstance(kernel, partial):
        kernel = kernel.func
    return label_of(kernel) if isinstance(kernel, str) else getattr(kernel, "__name__", type(kernel).__name__)
