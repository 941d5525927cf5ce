"""The tables on the pages of captured tensors and of a model, as `tables` has those of a kernel."""

from collections.abc import Mapping, Sequence

import pandas as pd

from attention_check.explain.explain_words import groups
from attention_check.explain.verdict import Explanation
from attention_check.isolation.worker import Outcome
from attention_check.measure.measurements import ROUNDED, TensorMeasurements
from attention_check.probe.probe import summary
from attention_check.probe.replays import TIMES
from attention_check.report.labels import NAMES, WAYS, named
from attention_check.report.tables import (
    BROKE,
    Section,
    by_bound,
    by_conduct,
    gravest_first,
    number_text,
    numbers_text,
)
from fa_lib.kernels.kernel_ref import label_of
from fa_lib.kernels.rule import ALLOWED


def tensors_sections(found: TensorMeasurements, explained: Explanation | None = None) -> list[Section]:
    """Of captured tensors, and of what is said of the output among them."""
    said = [] if explained is None else groups(explained)
    return [
        Section("explained", "What fa-lib explain says", pd.DataFrame([
            {"verdict": verdict.name if verdict else "not judged", "what it is": " ".join(words)}
            for verdict, words in said])),
        Section("heads", "How far each kernel is from the golden value", by_kernel(found.deviations),
                "The largest error over Baseline's, head by head; the kernel that is judged in front. At most 2."),
        Section("bound", "The judged output and its own bound", by_bound(found.bound)),
        Section("gradients", "Its gradients, for the dO that was captured", by_gradient(found.gradients)),
        Section("conduct", "Side effects of its calls", by_conduct(found.conduct)),
        Section("risky", "How risky each head is", found.risks.round(4).astype(str)),
    ]  # fmt: skip


def model_sections(layers: pd.DataFrame, ways: Sequence[Mapping] = ()) -> list[Section]:
    """Of a model, from the table of its Probe and rows of `replays.compared`."""
    far = f"Times as far as two right runs differ, at most {TIMES}, of the first tensor that differs or the furthest."
    return [
        Section("by_layer", "Layer by layer", by_layer(layers),
                "The largest error over Baseline's largest; the rule allows 2."),
        Section("ways", "The same prompt in other ways", by_way(ways), far),
    ]  # fmt: skip


def by_way(ways: Sequence[Mapping]) -> pd.DataFrame:
    """A table of `replays.compared`: a line for each way."""
    return pd.DataFrame([
        {
            BROKE: bool(row["differs"]), "distance": "not run" if row["why"] else number_text(row["times"]),
            "tensor": row["tensor"], "layer": row["layer"], "way": WAYS[row["way"]].format(entry=row["entry"]),
        }
        for row in ways
    ])  # fmt: skip


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


def by_gradient(found: pd.DataFrame) -> pd.DataFrame:
    """A table of `captured.gradients`: a line for each gradient."""
    ran = found[found.outcome == Outcome.ANSWERED] if len(found) else found
    columns = ("largest error / Baseline's", "root mean square, of its own", "gradient")
    lines = [(number_text(row.times_max), f"{row.relative:.2g}", NAMES[row.tensor]) for row in ran.itertuples()]
    return pd.DataFrame(lines, columns=columns if lines else None)


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
