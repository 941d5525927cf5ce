"""The numbers that a drawn figure holds, for tests that compare them with the table it was drawn from."""

import numpy as np


def numbers(*axes):
    """Every finite x and y of the lines, points, bands, bars and cells of heat maps in some axes, sorted."""
    found = []
    for ax in axes:
        for line in ax.lines:
            found += [line.get_xdata(orig=False), line.get_ydata(orig=False)]
        for marks in ax.collections:
            found += [path.vertices for path in marks.get_paths()] + [marks.get_offsets(), marks.get_array()]
        found += [image.get_array() for image in ax.images]
        found += [bar.get_bbox().get_points() for bar in ax.patches if hasattr(bar, "get_bbox")]
    flat = [np.ma.filled(np.ma.asarray(each, dtype=float), np.nan).ravel() for each in found if each is not None]
    every = np.concatenate(flat)
    return np.unique(every[np.isfinite(every)])


def missing(values, *axes):
    """Those of some values that no mark in the axes has. (Infinite ones and NaN cannot be drawn.)"""
    values = np.asarray(values, dtype=float).ravel()
    values, drawn = values[np.isfinite(values)], numbers(*axes)
    assert values.size, "nothing to look for"
    at = np.searchsorted(drawn, values).clip(1, len(drawn) - 1)
    near = np.minimum(abs(drawn[at - 1] - values), abs(drawn[at] - values))
    return values[near > 1e-9 * abs(values)]


def texts(ax):
    """The words in an axes, beside its labels."""
    return [words.get_text().replace("\n", " ") for words in ax.texts]


def message(figure):
    return figure._suptitle.get_text()


def caption(figure):
    return figure._supxlabel.get_text().replace("\n", " ")


def title(ax):
    """Of an axes, on whichever side the style puts it."""
    return "".join(ax.get_title(loc=side) for side in ("left", "center", "right"))


def is_named(axis):
    """Whether an axis says what it shows: by a label, or by ticks with words."""
    ticks = [tick.get_text() for tick in axis.get_ticklabels()]
    return bool(axis.get_label_text()) or any(letter.isalpha() for text in ticks for letter in text)
