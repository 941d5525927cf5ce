"""The tables of a page: their headings, and how each is read."""

import pandas as pd

from attention_check.measure.kv_cache import BEARS, CACHES
from attention_check.measure.measurements import Measurements, TensorMeasurements
from attention_check.report import tables
from attention_check.report.page import Section
from attention_check.report.sentences_captured import named


def kernel_sections(kernel: str, found: Measurements) -> list[Section]:
    """Of a kernel. Their keys are those of `anchors.SOURCES`."""
    return [
        Section("asked", "What it can do", tables.by_call(found.asked)),
        Section("conduct", "What it does beside its work", tables.by_conduct(found.conduct)),
        Section("lengths", "How far it is from the golden value", tables.by_length(found.lengths, kernel),
                "Errors over Baseline's on the same outputs, the largest of the seeds and their mean; then the mean of "
                "the largest error and of the root mean square. The largest decides: at most 2."),
        Section("splits", "Which emulation makes the same errors", tables.by_splits(found.splits),
                "Parts of the keys computed exactly, their outputs rounded: the share of the squared error explained."),
        Section("inputs", "Inputs that make trouble", tables.by_input(found.inputs),
                "The largest error over Baseline's, mean over seeds, and the mean signed error away from zero with its "
                "95 % interval, beside Baseline's. They are reported, and not counted, unless an answer is at fault."),
        Section("bound", "Its outputs beside their own bounds", tables.by_bound(found.bounds),
                "The bound is derived for the inputs at hand (docs/reference/testing.md). The inputs on which it is "
                "nearest."),
        Section("shapes", "Shapes and masks", tables.by_shape(found.shapes),
                "The largest error over Baseline's; ! is beyond what is allowed, 2 for the output and 3 for gradients, "
                "which are reported, and counted only where they are wrong by more than 20 %."),
        Section("relations", "Relations that every kernel should keep", tables.by_relation(found.relations),
                "How far two answers are apart, and how far two right ones may be (docs/reference/checks.md)."),
        Section("rounding", "How its casts round", tables.by_rounding(found.rounding)),
        Section("repeats", "One call, again and again", tables.by_repeats(found.repeats)),
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
