"""What an output is, with its evidence: the answer of `explanation`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attention_check.conventions.conventions import BY_CHOICE, Convention
from attention_check.conventions.other_keys import Page
from attention_check.conventions.search import NEAR
from attention_check.conventions.seen_keys import SeenKeys
from attention_check.conventions.solved_weights import WrongTiles
from attention_check.measure.mistakes import Cause

if TYPE_CHECKING:  # which imports this module
    from attention_check.explain.other_outputs import OtherOutput

MOST, MOST_HEADS = 4, 16  # ranges that are listed, of rows or features, and of entries or heads; more are no pattern
IN, OUT = 0.5, 0.05  # of the values: so many are wrong in the one part, and at most so many in the other

DENSE = 0.8  # of one range of rows, at least, that are wrong; and of all rows, at most, that are in it


@dataclass(frozen=True)
class WrongRegions:
    """The parts of an output that are wrong, where they lie apart from those that are right.

    Attributes:
        share: of the rows, that are wrong.
        entries, heads, rows, features: (first, last) of each range of indices that is wrong, the others being right;
            () where the wrong ones do not lie apart along that axis.
        of: how many indices each axis has: entries, heads, rows, features.
        start: entry, head and row from which on all is wrong, in this order of memory, and nothing before; () if none.
    """

    share: float
    entries: tuple[tuple[int, int], ...]
    heads: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, int], ...]
    features: tuple[tuple[int, int], ...]
    of: tuple[int, int, int, int]
    start: tuple[int, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the wrong ones lie apart along some axis."""
        return bool(self.entries or self.heads or self.rows or self.features or self.start)


def wrong_regions(wrong: Tensor, places: tuple[Tensor, ...], shape: tuple[int, int, int, int]) -> WrongRegions:
    """Where the wrong values lie, bool (entries, heads, rows, features) of sampled rows.

    Args:
        places: the indices that were sampled of the first three axes. shape: of the whole output.
    """
    axes = enumerate((*places, torch.arange(shape[3])))
    entries, heads, rows, features = (_ranges(wrong, axis, at) for axis, at in axes)
    of_rows, start = wrong.any(-1), ()
    first = int(of_rows.flatten().int().argmax())
    entry, rest = divmod(first, of_rows[0].numel())
    head, row = divmod(rest, of_rows.shape[2])
    after = of_rows.flatten()[first:]
    if of_rows.shape == shape[:3] and row and len(after) > 1 and after.double().mean() > 1 - OUT and not features:
        start = entry, head, row
    return WrongRegions(of_rows.double().mean().item(), entries, heads, rows, features, shape, start)


def _ranges(wrong, axis, at):
    """The ranges of the indices `at` along an axis in which most values are wrong, where hardly any other is."""
    others = [i for i in range(4) if i != axis]
    share = wrong.double().mean(others)  # of the values at each index
    largest = share.max()
    bad = share > IN * largest
    if not largest or bad.all():
        return ()
    found = runs(bad.nonzero().flatten().tolist())
    first, last = share.nonzero().flatten()[[0, -1]].tolist()
    dense = wrong.any(-1, keepdim=True).double().mean(others)[first : last + 1].mean() > DENSE if axis < 3 else False
    if len(found) > MOST and dense and last - first < DENSE * len(share):  # one range, with a few right ones in it
        found = [(first, last)]
    elif share[~bad].mean() > OUT * largest:
        return ()
    most = MOST if axis > 1 else MOST_HEADS
    return tuple((int(at[first]), int(at[last])) for first, last in found) if len(found) <= most else ()


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of numbers that follow each other."""
    found = [[*run] for _, run in groupby(enumerate(numbers), key=lambda each: each[1] - each[0])]
    return [(run[0][1], run[-1][1]) for run in found]


class Verdict(StrEnum):
    """What an output is, the best first."""

    ROUNDING = "rounding"  # within what its precision gives: nothing to fix
    CONVENTION = "convention"  # right, under another convention
    PRECISION = "precision"  # the right function, in coarser arithmetic
    BUG = "bug"  # another function than anybody means, or wrong in places


@dataclass(frozen=True)
class Explanation:
    """What an output is, with its evidence.

    Attributes:
        dialect: the conventions under which it was read in the end; {} is as the caller believes.
        fmt: of the inputs. times_bound: the largest error over its derived bound (`attention_check.tolerance`) in that
            dialect; None where the function has none. times_rule: over Baseline's largest. residual: root mean square
            of the error over that of the output.
        believed: the residual in the believed dialect; infinite where the shapes do not fit.
        arithmetic: the computation that has these errors; None where none was found, or none looked for.
        where: the parts that are wrong; None where none are, or all.
        dropout: the share of weights that dropout took, where the weights show it. noise: the share whose dropout would
            make an error of this size, where it is like noise: no other cause can be told from it.
        zero_rows: rows of 0 that see keys, of an output that is wrong in others, too.
        nan_rows: rows with NaN or infinite values, though they see finite keys. blind_rows: rows that see no key, and
            what they hold: "zero", "nan", "mean" of V or "other"; "" where there is none.
        constant: the number that all of the output is; None where it is several.
        tiles: the weights of tiles of keys, where these alone are wrong; else None.
        moved: keys in whose place others were read, or the values of others. seen: rows that see another range of keys
            than they should, of those that were looked at. inside: entry and heads of a wrong part,
            and what it is by itself.
        elsewhere: rows, and the places whose right rows they are: (entry, head, row) each.
        zero: "rows", "features": those in `where` are 0, the others are as `dialect` says; "underflow": rows, and the
            exponentials of all their scores are 0; "padding": rows whose own keys a mask hides are 0; "others": what is
            wrong beside `elsewhere`. lost: the scales of 8 bits whose inverse a number of the dialect is.
        swapped: k_scale and v_scale are each in the other's place. bits: the format of the output's bits, where they
            were read as another one's; "". bits_of_all: those of q, k and v, too. sequence: of packed ones, the one
            that is wrong.
        overflow: what of `explanation.OVERFLOWS` is too large in the rows that are not finite alone; "" if nothing is.
            hides: "keys" where some are hidden, "each" where these rows and no other have hidden keys, "nan" where
            what they hold is not finite.
        hidden_nan: rows that are finite, though what they see is not.
        short: keys of a call of which more can be seen, where there is no cause; 0 where this one has as few.
        rows: how many were looked at, of how many. scale: of the scores, in the dialect.
        tried: the nearest dialects, and the residual of some rows in each; () where the believed one is right.
        others: the log-sum-exp and the gradients, where they came. not_judged: why some of them were not looked at; "".
    """

    verdict: Verdict
    dialect: dict[str, Any]
    fmt: str
    times_bound: float | None
    times_rule: float
    residual: float
    believed: float
    arithmetic: Cause | None = None
    where: WrongRegions | None = None
    dropout: float | None = None
    noise: float | None = None
    constant: float | None = None
    tiles: WrongTiles | None = None
    moved: tuple[Page, ...] = ()
    seen: tuple[SeenKeys, ...] = ()
    inside: "tuple[int, tuple[int, ...], Explanation] | None" = None
    elsewhere: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    zero: str = ""
    lost: tuple[str, ...] = ()
    swapped: bool = False
    bits: str = ""
    bits_of_all: bool = False
    sequence: int | None = None
    overflow: str = ""
    hides: str = ""
    nan_rows: int = 0
    zero_rows: int = 0
    hidden_nan: int = 0
    blind_rows: str = ""
    short: int = 0
    rows: tuple[int, int] = (0, 0)
    scale: float = 1.0
    tried: tuple[tuple[dict[str, Any], float], ...] = ()
    others: "tuple[OtherOutput, ...]" = ()
    not_judged: str = ""

    def __str__(self) -> str:
        """As `fa-lib explain` prints it."""
        from attention_check.explain.explain_words import lines  # which imports this module

        return "\n".join(lines(self))

    @property
    def verdicts(self) -> list[tuple[str, Verdict, float | None]]:
        """Of the output, its log-sum-exp and its gradients: name, verdict, the largest error over its bound."""
        others = [(each.name, each.verdict, each.times) for each in self.others]
        return [("o", self.verdict, self.times_bound), *others]

    @property
    def worst(self) -> Verdict:
        """The worst of `verdicts`."""
        return max((verdict for _, verdict, _ in self.verdicts), key=[*Verdict].index)

    @property
    def is_rounding(self) -> bool:
        """Whether the output, its log-sum-exp and its gradients all are."""
        return self.worst == Verdict.ROUNDING

    @property
    def has_cause(self) -> bool:
        """Whether it is known what the output is: right, or which other function or arithmetic."""
        dialect = self.dialect and self.residual <= NEAR and self.where is None
        places = (self.nan_rows, self.hidden_nan, self.zero, self.moved, self.seen, self.inside, self.elsewhere)
        named = (dialect, self.arithmetic, self.dropout, self.bits, self.tiles, *places)
        return self.verdict == Verdict.ROUNDING or any(map(bool, named)) or self.constant is not None

    @property
    def conventions(self) -> list[Convention]:
        """Those of the dialect that have a name."""
        return [BY_CHOICE[change] for change in self.dialect.items() if change in BY_CHOICE]


def finite(x: Any) -> Any:
    """A record as JSON can hold it: numbers that are not finite are None."""
    if isinstance(x, dict):
        return {name: finite(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
