"""A kernel that works on parts of the keys and writes each part's result in low precision: told by its errors."""

from collections.abc import Callable, Iterator

import pandas as pd
import torch
from torch import Tensor

from attention_check.checks.carry import carried
from attention_check.checks.errors import inputs_of, place
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.draws import OF_LENGTHS, worst_draws
from attention_check.measure.measurements import Measurements
from attention_check.measure.mistakes import EXPLAINED, explained_share
from attention_check.measure.reference_cache import Inputs, reference_values
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.formats import FP64, Format, FormatLike
from fa_lib.numerics.metrics import deviation, over_baseline

SPLITS = (1, 2, 4, 8, 16, 32)  # that are tried


def in_splits(
    q: Tensor, k: Tensor, v: Tensor, *, splits: int, fmt: FormatLike, low_merge: bool = False,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention over parts of the keys, merged at the end, exact but for one rounding: each part's sum of P V, not
    divided by its row sum, is rounded to `fmt`, as where a kernel for decoding writes it out for another one to merge.

    Args:
        splits: parts, of neighbouring keys. mask: boolean (n_q, n_kv), True where a key is seen.
        low_merge: the parts are merged in fmt, too: factors, products, their sum and the row sum are rounded.

    Returns:
        o: float64 (..., n_q, head_dim), rounded to fmt.
    """
    fmt, q, k, v = Format.of(fmt), q.double(), k.double(), v.double()
    S = q @ k.mT * q.shape[-1] ** -0.5  # (..., n_q, n_kv)
    S = S if mask is None else S.masked_fill(~mask, -torch.inf)
    size = -(-k.shape[-2] // splits)
    m_all, merging = S.amax(-1, keepdim=True), fmt if low_merge else FP64
    l, O = torch.zeros_like(m_all), torch.zeros_like(v[..., :1, :])
    for S_i, v_i in zip(S.split(size, -1), v.split(size, -2)):
        m = S_i.amax(-1, keepdim=True)
        m = m.where(m != -torch.inf, 0.0)  # of a row that sees no key of the part
        P = torch.exp(S_i - m)
        a = torch.exp(m - m_all)
        l, O = l + a * P.sum(-1, keepdim=True), O + merging(merging(a) * fmt(P @ v_i))
    return fmt(merging(O) / merging(l))


def rounded_splits(kernel: KernelRef | str | Callable, splits: int, low_merge: bool, inputs: Inputs) -> dict:
    """A cell: whether a kernel makes the errors of `in_splits`.

    Returns:
        dict: queries, emulated (the emulation's largest error over Baseline's), times_max (the kernel's), explained:
        of `mistakes.explained_share`.
    """
    fmt, (q, k, v) = Format.of(inputs.fmt), inputs.tensors()
    reference = reference_values(inputs)
    golden, baseline = reference["golden"], reference["baseline"][0].item()
    answer = call_kernel(kernel_fn(kernel, inputs.causal), q, k, v)
    emulated = inputs.compared(in_splits, q, k, v, splits=splits, fmt=fmt, low_merge=low_merge).cpu()
    found = dict(queries=q.shape[-2], emulated=over_baseline(deviation(emulated, golden, fmt).max, baseline))
    if answer.outcome != Outcome.ANSWERED:
        return found | dict(times_max=None, explained=None)
    o = answer.output[..., inputs.rows(), :].double().cpu()
    times = over_baseline(deviation(o, golden, fmt).max, baseline)
    return found | dict(times_max=times, explained=explained_share(o, golden, emulated))


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Emulate rounded splits where the kernel is at its worst, if that needs a cause: rows of `rounded_splits`."""
    calls = worst_draws(found.lengths[found.lengths.fmt != "FP32"], OF_LENGTHS, ALLOWED["o"])
    clean = all(one["low"] is not True for one in carried(found.sums))
    if not clean or not len(calls) or not (calls.times_max > ALLOWED["o"]).any():
        return pd.DataFrame()
    inputs = inputs_of(calls.loc[calls.times_max.idxmax()])
    settings = [dict(splits=count, low_merge=low, inputs=inputs) for count in SPLITS for low in (False, True)]
    return checked.table(rounded_splits, settings, kernel=checked.kernel)


def judged(splits: pd.DataFrame) -> Iterator[Finding]:
    """The cause of a large error without a carry: an emulation with rounded splits makes the same one."""
    if len(splits) and splits.explained.notna().any():
        best = splits.loc[splits.explained.astype(float).idxmax()]
        if best.explained >= EXPLAINED:
            where = place(best) | dict(splits=int(best.splits), low_merge=bool(best.low_merge))
            yield Finding("rounded_splits", Severity.REPORTED, where, best.explained, EXPLAINED)
