"""The checks of a kernel: one table, which measuring, judging, the page and pytest go through."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from attention_check.judge import tables as judged
from attention_check.judge.findings import Finding
from attention_check.measure import tables as measured
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.contract import BY_DEFAULT
from attention_check.measure.measurements import Measurements
from attention_check.report import tables


@dataclass(frozen=True)
class Table:
    """A table of `Measurements`.

    Attributes:
        run: measures it, of a kernel and of what was measured of it before; None for one that comes with the kernel.
        heading: on the page; "" for a table that is drawn there, and not shown.
        rows: the table as a reader wants it. reads: how it is read.
        key: of its anchor on the page; "" is its name.
    """

    run: Callable[[CheckedKernel, Measurements], pd.DataFrame] | None = None
    heading: str = ""
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    reads: str = ""
    key: str = ""


@dataclass(frozen=True)
class Check:
    """A question that is asked of a kernel.

    Attributes:
        judge: what was measured -> findings.
        finds: keys of its findings, of `wordings.WORDINGS` -> keys of the pictures and tables that show them.
        tables: names in TABLES of what it judges.
    """

    judge: Callable[[Measurements], Iterable[Finding]]
    tables: tuple[str, ...]
    finds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


TABLES = {  # in the order of the page
    "asked": Table(heading="What it can do", rows=tables.by_call),
    "conduct": Table(heading="Side effects of its calls", rows=tables.by_conduct),
    "launches": Table(
        heading="On the GPU", rows=tables.by_launch,
        reads="In all calls but those that ended its process. An unwritten read is a fault if the output depends "
        "on it. Races are looked for in one small call. The grid is the largest; block, shared memory, registers of a "
        "thread and blocks of a multiprocessor are of the launch with the most shared memory.",
    ),
    "lengths": Table(
        measured.over_lengths, "How far it is from the golden value",
        tables.by_length,
        "Errors over Baseline's on the same outputs, the largest of the seeds and their mean; then the mean of "
        "the largest error and of the root mean square. The largest decides: at most 2.",
    ),
    "sums": Table(measured.sums),
    "splits": Table(
        measured.splits, "Which emulation makes the same errors", tables.by_splits,
        "Parts of the keys computed exactly, their outputs rounded: the share of the squared error explained.",
    ),
    "inputs": Table(
        measured.on_trouble, "Inputs that make trouble", tables.by_input,
        "The largest error over Baseline's, mean over seeds, and the mean signed error away from zero with its "
        "95 % interval, and Baseline's. They are reported, and not counted, unless an answer is at fault.",
    ),
    "bounds": Table(
        measured.within_bounds, "Its outputs and their own bounds", tables.by_bound,
        "The bound is derived for the inputs at hand (docs/reference/testing.md). The inputs on which it is nearest.",
        key="bound",
    ),
    "shapes": Table(
        measured.over_shapes, "Shapes and masks", tables.by_shape,
        "The largest error over Baseline's; ! is beyond what is allowed, 2 for the output and 3 for gradients, "
        "which are reported, and counted only where they are wrong by more than 20 %.",
    ),
    "relations": Table(
        measured.relations, "Relations that every kernel should keep",
        tables.by_relation,
        "How far two answers are apart, and how far two right ones may be (docs/reference/checks.md).",
    ),
    "rounding": Table(measured.casts, "How its casts round", tables.by_rounding),
    "repeats": Table(measured.same_call, "One call, again and again", tables.by_repeats),
}  # fmt: skip
ASKED, GROWTH, RULE, SIDES = ("asked",), ("growth", "lengths"), ("rule", "shapes"), ("sides", "inputs")
CONDUCT = ("hangs", "crashes", "exits", "unasked", "prints", "leaks", "state", "draws")
CHECKS = {  # in the order of their findings
    "conventions": Check(judged.conventions, ("asked",), {"convention": ASKED, "takes": ASKED}),
    "conduct": Check(
        lambda found: judged.of_conduct(found.conduct), ("conduct",), dict.fromkeys(CONDUCT, ("conduct",))
    ),
    "gross_errors": Check(
        lambda found: judged.of_wrong(found.lengths, found.repeats), ("lengths", "repeats"),
        {"noise": ("repeats",), "scale": ("lengths",), "coarse": ("lengths",)},
    ),
    "carry": Check(judged.of_sums, ("sums", "lengths", "repeats"), {"carry": ("sums",)}),
    "growth": Check(lambda found: judged.growth(found.lengths), ("lengths",), {"growth": GROWTH}),
    "answer": Check(
        lambda found: judged.answers(found.asked), ("asked",), {"answer": ASKED, "keys_of_q": ASKED}
    ),
    "error": Check(lambda found: judged.largest(found.lengths), ("lengths",), {"error": GROWTH, "chance": GROWTH}),
    "splits": Check(
        lambda found: judged.rounded_splits(found.splits), ("splits",), {"rounded_splits": ("splits",)}
    ),
    "sum_error": Check(judged.row_sum, ("sums", "lengths", "repeats"), {"sum_error": ("sums",)}),
    "problem": Check(lambda found: judged.problems(found.lengths), ("lengths",), {"problem": ("lengths",)}),
    "trouble": Check(lambda found: judged.problems(found.inputs), ("inputs",), {"problem": ("inputs",)}),
    "causal": Check(judged.causal, ("asked",), {"causal_only": ASKED, BY_DEFAULT: ASKED, "top_left": ASKED}),
    "alignment": Check(lambda found: judged.alignment(found.asked), ("asked",), {"alignment": ASKED}),
    "precision": Check(judged.less_than_format, ("asked", "lengths"), {"less_than_format": ASKED, "arithmetic": ASKED}),
    "bound": Check(
        lambda found: judged.of_bound(found.bounds, found.kernel), ("bounds",),
        dict.fromkeys(("bound", "mistake"), ("bound", "heads")),
    ),
    "rule": Check(
        lambda found: judged.over_shapes(judged.counted_shapes(found)), ("shapes", "asked"),
        dict.fromkeys(("chance", "outputs", "gradients", "wrong_gradient"), RULE),
    ),
    "relations": Check(
        lambda found: judged.of_relations(found.relations), ("relations",),
        dict.fromkeys(("relation", "relations"), ("relations",)),
    ),
    "bias": Check(
        lambda found: judged.on_trouble(found.inputs), ("inputs",), {"worst_input": SIDES, "outwards": SIDES}
    ),
    "repeats": Check(lambda found: judged.repeats(found.repeats), ("repeats",), {"repeats": ("repeats",)}),
    "rounding": Check(judged.of_casts, ("rounding", "sums", "lengths", "repeats"), {"rounding_mode": ("rounding",)}),
    "on_gpu": Check(judged.on_gpu, (), {"on_gpu": ASKED}),
    "only_fp64": Check(judged.only_fp64, ("lengths",), {"only_fp64": ASKED}),
    "coverage": Check(judged.coverage, ("lengths", "shapes", "asked"), {"coverage": ("lengths",)}),
    "unsupported": Check(
        lambda found: judged.unsupported(found.asked), ("asked",), dict.fromkeys(judged.NOT_JUDGED, ASKED)
    ),
    "not_attention": Check(
        lambda found: judged.not_attention(found.asked), ("asked",), {"not_attention": ASKED, "not_run": ASKED}
    ),
}  # fmt: skip
NO_ATTENTION = ("conventions", "conduct", "not_attention")  # what is judged of a kernel that has no format
NO_ERRORS = ("conventions", "conduct", "answer", "only_fp64", "unsupported")  # and of one that has FP64 alone


def sections(kernel: str, found: Measurements) -> list[tables.Section]:
    """The tables of a kernel's page."""
    own = replace(found, lengths=found.lengths[found.lengths.kernel == kernel]) if len(found.lengths) else found
    return [
        tables.Section(table.key or name, table.heading, table.rows(getattr(own, name)), table.reads)
        for name, table in TABLES.items() if table.heading
    ]  # fmt: skip
