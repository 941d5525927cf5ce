"""The tables on the pages of captured tensors and of a model, as `tables` has those of a kernel."""

import pandas as pd

from attention_check.explain.explain_words import groups
from attention_check.explain.verdict import Explanation
from attention_check.isolation.worker import Outcome
from attention_check.measure.measurements import ROUNDED, TensorMeasurements
from attention_check.probe.probe import summary
from attention_check.report.labels import named
from attention_check.report.tables import (
    BROKE,
    Section,
    gravest_first,
    numbers_text,
)
from fa_lib.kernels.kernel_ref import label_of
from fa_lib.kernels.rule import ALLOWED


def tensors_sections(found: TensorMeasurements, explained: Explanation | None = None) -> list[Section]:
    """Of captured tensors, and of what is said of the output among them."""
    said = [] if explained is None else groups(explained)
    return [
        Section("What fa-lib explain says", pd.DataFrame([
            {"verdict": verdict.name if verdict else "not judged", "what it is": " ".join(words)}
            for verdict, words in said])),
        Section("How far each kernel is from the golden value", by_kernel(found.deviations),
                "The largest error over Baseline's, head by head; the kernel that is judged in front. At most 2."),
    ]  # fmt: skip


def model_sections(layers: pd.DataFrame) -> list[Section]:
    """Of a model, from the table of its Probe."""
    reads = "The largest error over Baseline's largest; the rule allows 2."
    return [Section("Layer by layer", by_layer(layers), reads)]


def by_kernel(far: pd.DataFrame) -> pd.DataFrame:
    """A table of `captured.deviations`: for each head every kernel's largest error over Baseline's, the kernel that is
    judged in front."""
    ran = far[far.outcome == Outcome.ANSWERED]
    if not len(ran):
        return far[[]]
    names = sorted(dict.fromkeys(ran.kernel), key=ROUNDED.__eq__)
    wide = ran.pivot(index="head", columns="kernel", values="times_max")[names].rename_axis(columns=None)
    found = numbers_text(wide).rename(columns=named).assign(head=[f"{int(head)}" for head in wide.index])
    return gravest_first(found.reset_index(drop=True), wide[names[0]].to_numpy())


def by_layer(table: pd.DataFrame) -> pd.DataFrame:
    """A table of a Probe: for each layer the largest error of every kernel over Baseline's, that which ran in front."""
    worst = summary(table)
    if not len(worst):
        return worst
    front = sorted(worst.columns, key="ran".__ne__)
    broke = {BROKE: worst.ran > ALLOWED["o"]} if "ran" in worst else {}
    found = numbers_text(worst[front]).assign(**broke).rename_axis(columns=None)
    found = found[[*broke, *front]].rename(columns=label_of).reset_index()
    return found[[*found.columns.drop(["model", "layer"]), "model", "layer"]]
