"""What makes an error that is no rounding's, and inputs on which no error can be judged, in words."""

from fa_lib.check.kernel_words import sentence
from fa_lib.check.tensors import CHANGES, RAN

KERNELS = {RAN: "the kernel that ran"}


def _overflows(f, at):
    said = (
        f"Baseline itself overflows: its output is NaN or infinite in {_heads(at)}, so that there the rule has no "
        "error to hold a kernel to."
    )
    if f.number is None:
        return said
    kernel = KERNELS.get(at["kernel"], at["kernel"])
    allowed = f"; from {f.limit:g} on it is another answer than attention's"
    return f"{said} There the error of {kernel} is {f.number:.2g} of the golden value's root mean square{allowed}."


def _undefined(f, at):
    return (
        f"The golden value itself is not finite in {_heads(at)}: scores are infinite or beyond FP64 (a mask of +inf, a "
        "scale too large), so that no answer is right there."
    )


def _heads(at):
    return f"head{'' if len(at['heads']) == 1 else 's'} {', '.join(map(str, at['heads']))}"


def _finite_change(f, at):
    change = CHANGES[at["change"]]
    return f"The cheapest change that makes the output of {at['base']} finite: {change.label} (it costs {change.cost})."


def _scale(f, at):
    return (
        f"Its outputs are {f.number:.4g} times attention's: this one factor makes most of its error in all "
        f"{at['settings']} settings of format, inputs and N. What to change: look for a factor that is left out or "
        "multiplied in twice, in the scale of V or in the division by the row sum."
    )


def _noise(f, at):
    return (
        f"It gives other results on each call: in {at['runs']} calls on the same tensors outputs are up to "
        f"{f.number:.1f} ulp apart, where another order of FP32 sums makes 1. What to change: look for memory that is "
        "read before it is written, a race, or random numbers."
    )


SAY = {
    "scale": sentence(_scale), "noise": sentence(_noise),
    "baseline_overflows": sentence(_overflows), "baseline_undefined": sentence(_undefined),
    "finite_change": sentence(_finite_change),
}  # fmt: skip
