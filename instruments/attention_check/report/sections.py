"""The tables of a page: their headings, and how each is read."""

from dataclasses import replace

import pandas as pd

from attention_check.checks import TABLES
from attention_check.measure.captured import BEARS, CACHES
from attention_check.measure.measurements import Measurements, TensorMeasurements
from attention_check.report import tables
from attention_check.report.labels import named
from attention_check.report.page import Section


def kernel_sections(kernel: str, found: Measurements) -> list[Section]:
    """Of a kernel: the tables of `checks.TABLES`."""
    lengths = found.lengths[found.lengths.kernel == kernel] if len(found.lengths) else found.lengths
    found = replace(found, lengths=lengths)
    return [
        Section(table.key or name, table.heading, table.rows(getattr(found, name)), table.reads)
        for name, table in TABLES.items() if table.heading
    ]  # fmt: skip


def tensors_sections(found: TensorMeasurements) -> list[Section]:
    """Of captured tensors."""
    return [
        Section("heads", "How far each kernel is from the golden value", tables.by_kernel(found.deviations, named),
                "The largest error over Baseline's, head by head; the kernel that is judged in front. At most 2."),
        Section("bound", "The judged output beside its own bound", tables.by_bound(found.bound)),
        Section("gradients", "Its gradients, for the dO that was captured", tables.by_gradient(found.gradients)),
        Section("conduct", "What it does beside its work", tables.by_conduct(found.conduct)),
        Section("risky", "How risky each head is", tables.by_head(found.risks)),
        Section("better", "Which change lowers the error", tables.by_change(found.changes),
                "Root mean square error, before / after."),
        Section("caches", "Which KV cache each head would bear", tables.by_cache(found.caches, CACHES),
                f"Root mean square error over that of O, K and V quantised; {BEARS:.0%} is asked."),
    ]  # fmt: skip


def model_sections(layers: pd.DataFrame) -> list[Section]:
    """Of a model, from the table of its Probe."""
    return [
        Section("by_layer", "Layer by layer", tables.by_layer(layers),
                "The largest error over Baseline's largest; the rule allows 2.")
    ]  # fmt: skip
