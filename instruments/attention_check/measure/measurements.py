"""What was measured of a kernel, or on captured tensors: a table for each question, which `judge` reads."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import pandas as pd

from attention_check.measure.contract import formats

ROUNDED = "golden_rounded"  # in the column of kernels: the golden value rounded to q's dtype
RAN = "ran"  # there, too: the kernel that ran when the tensors were captured


def _table() -> pd.DataFrame:
    return field(default_factory=pd.DataFrame)


@dataclass(frozen=True)
class _Tables:
    """Tables by name."""

    def items(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Each table with its name."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ((name, table) for name, table in values if isinstance(table, pd.DataFrame))


@dataclass(frozen=True)
class Measurements(_Tables):
    """The tables of `examine.examine`, in the order in which they are measured. One is empty where its question was not
    asked.

    Attributes:
        conventions: keys of `contract.ADAPTED` that it was adapted to: its layout, the few calls that it takes.
        asked: what the kernel can do: rows of `contract.contract`.
        lengths: its errors over N, formats, numbers of queries and seeds: rows of `errors.measure`.
        sums: what it carries from tile to tile: rows of `carry.carry`.
        shapes: its errors over shapes and masks: rows of `shapes.measure_shapes`.
        inputs: its errors on inputs that make trouble: rows of `errors.measure`.
        bounds: its outputs and their own bounds: rows of `bounds.bounds`.
        repeats: one call again and again: rows of `repeats.repeats`.
        relations: what every kernel keeps: rows of `relations.relate`.
        rounding: how its casts round: rows of `rounding_mode.rounding_mode`.
        conduct: what it did beside its work, of one in a separate process: rows of `IsolatedKernel.conduct`.
        kernel: its name in findings. arithmetic: of Baseline, as of `low_bits.baseline_in`.
    """

    conventions: tuple[str, ...] = ()
    asked: pd.DataFrame = _table()
    lengths: pd.DataFrame = _table()
    sums: pd.DataFrame = _table()
    shapes: pd.DataFrame = _table()
    inputs: pd.DataFrame = _table()
    bounds: pd.DataFrame = _table()
    repeats: pd.DataFrame = _table()
    relations: pd.DataFrame = _table()
    rounding: pd.DataFrame = _table()
    conduct: pd.DataFrame = _table()
    kernel: str = ""
    arithmetic: str = ""

    @property
    def top_left(self) -> bool:
        """Whether a causal mask is aligned top-left in some call."""
        return "note" in self.asked and bool((self.asked.note == "top_left").any())

    @property
    def has_format(self) -> bool:
        """Whether the kernel answers in some format. Formats come first in `asked`."""
        return bool(formats(self.asked))


@dataclass(frozen=True)
class TensorMeasurements(_Tables):
    """The tables of captured tensors. One is empty where its question was not asked.

    Attributes:
        deviations: errors of each kernel, head by head: rows of `captured.deviations`.
        risks: how risky each head is: rows of `captured.risks`.
        bound: the judged output beside its own bound: rows of `closeness.closeness`.
        conduct: what the judged kernel did beside its work: rows of `IsolatedKernel.conduct`.
    """

    deviations: pd.DataFrame = _table()
    risks: pd.DataFrame = _table()
    bound: pd.DataFrame = _table()
    conduct: pd.DataFrame = _table()
