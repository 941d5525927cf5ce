"""What `compare` has found, in words."""

import math
from functools import partial

from attention_check.explain.compare import Compared
from attention_check.explain.emulations import changed, emulation_text
from attention_check.measure.mistakes import EXPLAINED
from attention_check.probe.skipped import place
from attention_check.report.sentence import as_times
from attention_check.report.sentences_cause import has_this_error
from fa_lib.kernels.kernel_ref import label_of


def comparison_lines(found: Compared) -> list[str]:
    """A short list for a terminal."""
    distance = found.apart
    how = ", token by token" if found.question.decode else ""
    lines = [f"A is {label_of(found.a)}, B is {label_of(found.b)}{how}."]
    if "layer" in found.about:
        lines.append(f"The inputs were captured at {place(found.about)}.")
    for side, errors in found.errors.items():
        over = f"{as_times(errors['times_max'])} times Baseline's, rms {errors['rmse']:.3g}"
        lines.append(f"{side.upper()} to the golden value: at most {errors['max']:.3g}, {over}.")
    if found.blind:
        lines.append(f"{found.blind:,} rows see no key. What a kernel gives there is a convention: they are left out.")
    lines += _bounds_in_words(found)
    if not distance["max"]:
        return [*lines, "A and B give the same bits."]
    over = f"{as_times(distance['times_max'])} times Baseline's largest error, rms {distance['rmse']:.3g}"
    lines += [
        f"A to B: at most {distance['max']:.3g}, {over}; {distance['differing']:.1%} of the outputs differ.",
    ]
    for side, fit in found.fits.items():
        share = _share(fit["explained"])
        lines.append(f"{side.upper()} is most like: {emulation_text(fit)}; that makes {share} of its squared error.")
    sides = [found.fits[side] for side in ("a", "b")]
    changes = [f"  {line}" for line in map(partial(changed, *sides), found.changes)]
    if found.is_explained:
        made = changes or ["  one kernel called in two ways: no step differs"]
        return [*lines, f"What makes the difference ({_share(found.explained)} of its square):", *made]
    lines.append(f"Not explained: no emulation that was tried makes {EXPLAINED:.0%} of the squared difference.")
    return [*lines, f"The nearest makes {_share(found.explained)}:", *changes] if changes else lines


def _bounds_in_words(found):
    """Whether both are right, each to its own bound, and of one that is not what has its error."""
    if found.is_rounding:
        which = "Both are" if found.apart["max"] else "They are"
        return [f"{which} within their own bounds, which are derived for these inputs: any difference is rounding."]
    return [
        f"{side.upper()} is beyond its own bound, {as_times(row['times'], 1)} times: {has_this_error(row)}."
        for side, row in found.bounds.items()
        if row["times"] > 1
    ]


def _share(x):
    return "none" if x is None or not math.isfinite(x) or x <= 0 else f"{x:.1%}"
