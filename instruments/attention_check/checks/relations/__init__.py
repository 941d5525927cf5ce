"""Relations that no attention kernel may break: asked of a black box, exact or to a derived bound."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pandas as pd

from attention_check.checks.relations import batch
from attention_check.checks.relations import gradients as gradient
from attention_check.checks.relations import masks as mask
from attention_check.checks.relations import values as value
from attention_check.checks.relations.subject import (
    BREAKS,
    BROKEN,
    CONVENTION,
    NOT_ASKED,
    ROUNDING,
    KernelUnderTest,
)
from attention_check.conventions.low_bits import baseline_in
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import ALL_CAPABILITIES, Capabilities, kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.measurements import Measurements
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.formats import Format


@dataclass(frozen=True)
class Relation:
    """What must hold.

    Attributes:
        key: as tables hold it.
        says: one sentence: what must hold.
        source: the public thread or paper that shows why it is asked.
        ask: a generator of rows (`subject.cases`) from a KernelUnderTest; its docstring derives the bound.
        bits: the mathematics says the same bits: a difference within rounding is reported.
        nan_is_told: NaN in the answer is reported, and not counted.
    """

    key: str
    says: str
    source: str
    ask: Callable[[KernelUnderTest], Iterator[dict]]
    bits: bool = False
    nan_is_told: bool = False


RELATIONS = {each.key: each for each in (
    Relation("batch_invariance", "A row of Q has the same bits alone and in a batch.",
             "vllm-project/vllm#51902", batch.batch_invariance, bits=True),
    Relation("strides", "Inputs give the same bits however they lie in memory.",
             "Dao-AILab/flash-attention#2670", batch.strides, bits=True),
    Relation("constant_values", "If every key has the same value, the output is that value.",
             "modular/modular#6591", value.constant_values),
    Relation("powers_of_two", "V times a power of two gives O times that power, bit for bit.",
             "NVIDIA/TransformerEngine#3248", value.powers_of_two, bits=True),
    Relation("tiny_values", "Very small values and weights are not taken as 0.",
             "olcf/olcf-user-docs#478", value.tiny_values),
    Relation("every_key", "A query that matches one key gets that key's value.",
             "NVIDIA/cudnn-frontend#861", value.every_key),
    Relation("score_shift", "A constant added to all scores of a row changes nothing.",
             "arXiv:1805.02867", value.score_shift),
    Relation("causality", "Later keys and values do not change earlier outputs.",
             "NVIDIA/TransformerEngine#3248", mask.causality, bits=True),
    Relation("prefill_decode", "Decoding token by token and in chunks gives what prefill gives.",
             "flashinfer-ai/flashinfer#4382", mask.prefill_decode),
    Relation("masked_values", "Hidden keys and values change nothing.",
             "tenstorrent/tt-metal#54833", mask.masked_values, bits=True),
    Relation("low_scores", "Hidden keys stay hidden if all scores are far below 0.",
             "TransformerLensOrg/TransformerLens#318", mask.low_scores),
    Relation("masked_nan", "Hidden keys and values may be NaN or infinite.",
             "unslothai/unsloth#9848", mask.masked_nan, bits=True, nan_is_told=True),
    Relation("hidden_row", "A row that sees no key is 0.",
             "huggingface/transformers#38690", mask.hidden_row, bits=True),
    Relation("window", "A window of all keys hides none; a window of 0 keys shows a row its own key only.",
             "huggingface/transformers#35691", mask.window),
    Relation("window_edges", "A window shows its last key, and hides the one behind.",
             "huggingface/transformers#39408", mask.window_edges, bits=True),
    Relation("sinks", "A sink takes exactly its share of the weight, and gives no value.",
             "modular/modular#6591", value.sinks),
    Relation("splits", "Parts of the keys merged by their log-sum-exp give the whole.",
             "arXiv:2501.01005", value.splits),
    Relation("dv_sum", "The sum of dV over keys is the sum of dO over rows.",
             "Dao-AILab/flash-attention#2552", gradient.dv_sum),
    Relation("hidden_gradients", "Keys that no row sees have gradients of 0.",
             "Dao-AILab/flash-attention#2698", gradient.hidden_gradients, bits=True),
    Relation("hidden_row_gradients", "A row that sees no key changes no gradient.",
             "Dao-AILab/flash-attention#1947", gradient.hidden_row_gradients),
    Relation("constant_gradients", "If every key has the same value, dQ and dK are 0.",
             "Dao-AILab/flash-attention#2896", gradient.constant_gradients),
)}  # fmt: skip


def relate(
    kernel: KernelRef | str | Callable, key: str, fmt: str, head_dim: int = 64, device: str = "cpu",
    able: Capabilities = ALL_CAPABILITIES, seed: int = 0, n: int = 256, arithmetic: str = "",
) -> list[dict]:  # fmt: skip
    """A cell: one relation, asked of one kernel.

    Args:
        kernel: as `kernels.plain` takes it. key: of RELATIONS. fmt: name of the inputs' format.
        able: what `contract` found. n: keys of most cases.
        arithmetic: of Baseline, as of `low_bits.baseline_in`. Scales that all keys share break relations, too: what
            Baseline itself is off by, ALLOWED times, is within the limit.

    Returns:
        rows: relation, case, outcome, number, limit, problem. outcome: "bitwise" (the difference is 0), "rounding" (it
        is within the limit), "breaks", "not_asked" (the kernel raises, or has no such option) or "broken" (it returns
        something of no use), "convention" (another answer, which many kernels give; problem names it). number,
        limit: of `subject.Found`.

    Raises:
        ValueError: there is no such kernel, relation or format.
    """
    relation, fn = lookup("key", key, RELATIONS), kernel_fn(kernel, able.causal)
    subject = KernelUnderTest(fn, Format.of(fmt), head_dim, device, able, seed, n, arithmetic)
    rows = [dict(relation=key) | row for row in relation.ask(subject)]
    if arithmetic:
        baseline = relation.ask(replace(subject, fn=baseline_in(arithmetic, fmt)))
        limits = {row["case"]: ALLOWED["o"] * row["number"] for row in baseline}
        for row in rows:
            if row["outcome"] == BREAKS and row["number"] <= limits[row["case"]]:
                row |= dict(outcome=ROUNDING, limit=limits[row["case"]])
    return rows


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Ask for what every kernel keeps: rows of `relate`."""
    plan, formats = checked.plan, checked.judged[: checked.plan.related_formats]
    keys = RELATIONS if plan.relations is None else plan.relations
    settings = [dict(key=key, fmt=fmt) for key in keys for fmt in formats]
    fixed = dict(seed=plan.first_seed, n=plan.related_n, arithmetic=plan.arithmetic, able=checked.way.able)
    return checked.table(relate, settings, **fixed, **checked.call)


def judged(related: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each relation that does not hold, of its gravest case, and how many cases do. A difference within
    rounding is reported where the mathematics says the same bits, and so is what many kernels give by convention, and
    NaN where the relation says so. related: table of `relations.relate`, with columns key and fmt."""
    if not len(related):
        return
    answered = related[related.outcome != NOT_ASKED]
    kept_cases = 0
    for key, rows in answered.groupby("key", sort=False):
        relation = RELATIONS[key]
        reported = rows.outcome.eq(ROUNDING) & relation.bits
        reported |= rows.outcome.eq(CONVENTION) | rows.outcome.eq(BREAKS) & rows.number.isna() & relation.nan_is_told
        failed = rows.outcome.isin((BREAKS, BROKEN)) & ~reported
        kept_cases += int((~rows.outcome.isin((BREAKS, BROKEN)) | reported).sum())
        if not (failed | reported).any():
            continue
        bad = rows[failed] if failed.any() else rows[reported]
        over = bad.number / bad.limit.where(bad.limit > 0, 1)  # the worst in its own limits
        worst = bad.loc[over.idxmax()] if over.notna().any() else bad.iloc[0]
        where = dict(relation=key, cases=[*dict.fromkeys(bad.case)], case=worst.case, fmt=worst.fmt)
        where |= dict(outcome=worst.outcome, problem=worst.problem)
        severity = Severity.FAILS if failed.any() else Severity.REPORTED
        yield Finding("relation", severity, where, worst.number, worst.limit)
    if len(answered):
        counts = dict(held=kept_cases, of=len(answered), not_asked=len(related) - len(answered))
        yield Finding("relations", Severity.PASSES if kept_cases == len(answered) else Severity.REPORTED, counts)
