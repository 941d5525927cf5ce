"""Where an output is wrong: which entries of the batch, heads, rows and features."""

from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 4  # ranges that are listed; more are no pattern
IN, OUT = 0.5, 0.05  # of the values: so many are wrong in the one part, and at most so many in the other


@dataclass(frozen=True)
class Whereabouts:
    """The parts of an output that are wrong, where they lie apart from those that are right.

    Attributes:
        share: of the rows, that are wrong.
        entries, heads, rows, features: (first, last) of each range of indices that is wrong, the others being right;
            () where the wrong ones do not lie apart along that axis.
        of: how many indices each axis has: entries, heads, rows, features.
    """

    share: float
    entries: tuple[tuple[int, int], ...]
    heads: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, int], ...]
    features: tuple[tuple[int, int], ...]
    of: tuple[int, int, int, int]

    @property
    def is_known(self) -> bool:
        """Whether the wrong ones lie apart along some axis."""
        return bool(self.entries or self.heads or self.rows or self.features)


def whereabouts(wrong: Tensor, places: tuple[Tensor, ...], shape: tuple[int, int, int, int]) -> Whereabouts:
    """Where the wrong values lie.

    Args:
        wrong: bool (entries, heads, rows, features) of sampled rows.
        places: the indices that were sampled of the first three axes. shape: of the whole output.
    """
    axes = (*places, torch.arange(shape[3]))
    ranges = [_ranges(wrong, axis, at) for axis, at in enumerate(axes)]
    entries, heads, rows, features = ranges
    return Whereabouts(wrong.any(-1).double().mean().item(), entries, heads, rows, features, shape)


def _ranges(wrong, axis, at):
    """The ranges of the indices `at` along an axis in which most values are wrong, where hardly any other is."""
    others = [i for i in range(4) if i != axis]
    share = wrong.double().mean(others)  # of the values at each index
    largest = share.max()
    bad = share > IN * largest
    if not largest or bad.all() or share[~bad].mean() > OUT * largest:
        return ()
    found: list[list[int]] = []
    for i, is_bad in enumerate(bad.tolist()):
        if not is_bad:
            continue
        if found and i and bad[i - 1]:
            found[-1][1] = int(at[i])
        else:
            found.append([int(at[i]), int(at[i])])
    return tuple((first, last) for first, last in found) if len(found) <= MOST else ()
