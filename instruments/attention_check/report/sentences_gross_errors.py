"""What makes an error that is no rounding's, and inputs on which no error can be judged, in words."""

from attention_check.measure.captured import CHANGES
from attention_check.report.sentence import Sentence, as_times, each
from attention_check.report.sentences_captured import named
from fa_lib.numerics.formats import BF16, E4M3, FP16, Format


def _overflows(f, at):
    text = f"Baseline itself overflows: its output is NaN or infinite in {_heads(at)}"
    more = "There the rule has no error to hold a kernel to."
    if f.number is None:
        return Sentence(text, more=more)
    kernel = named(at["kernel"])
    far = f"{f.number:.2g} of the golden value's root mean square"
    limit = "" if f.limit is None else f"{f.limit:g}: from there on it is another answer than attention's"
    return Sentence(f"{text}; the error of {kernel} there", far, limit, more)


def _undefined(f, at):
    more = "Scores are infinite or beyond FP64 (a mask of +inf, a scale too large), so that no answer is right there."
    return Sentence(f"The golden value itself is not finite in {_heads(at)}", more=more)


def _heads(at):
    return f"head{'' if len(at['heads']) == 1 else 's'} {', '.join(map(str, at['heads']))}"


def _finite_change(f, at):
    change = CHANGES[at["change"]]
    return Sentence(f"The cheapest change that makes {at['base']} finite: {change.label} (it costs {change.cost})")


def _scale(f, at):
    return Sentence(
        "Its outputs are attention's times a factor", f"{f.number:.4g}", "1",
        f"This one factor makes most of its error in all {at['settings']} settings of format, inputs and N.",
        "look for a factor left out or multiplied in twice, in the scale of V or in the division by the row sum",
    )  # fmt: skip


def _noise(f, at):
    apart = "not finite in some" if f.number is None else f"{as_times(f.number)} ulp apart"
    return Sentence(
        "It gives other results on each call", apart, f"{f.limit:g} ulp",
        f"In {at['runs']} calls on the same tensors; another order of FP32 sums makes 1 ulp.",
        "look for memory that is read before it is written, a race, or random numbers",
    )  # fmt: skip


def _coarse(f, at):
    fmt = Format.of(at["fmt"])
    narrower = [f"{each} ({each.precision})" for each in (E4M3, BF16, FP16) if each.precision < fmt.precision]
    return Sentence(
        f"For inputs in {fmt} its outputs are numbers of a coarser format", f"{f.number:.0f} significant bits",
        f"{f.limit:.0f} at least", f"{fmt} holds {fmt.precision} bits; {' and '.join(narrower)} less.",
        "look for a conversion of the inputs or of a result: a hint of precision, or a processor without the format",
    )  # fmt: skip


WORDINGS = {
    "scale": each(_scale), "noise": each(_noise), "coarse": each(_coarse), "baseline_overflows": each(_overflows),
    "baseline_undefined": each(_undefined), "finite_change": each(_finite_change),
}  # fmt: skip
