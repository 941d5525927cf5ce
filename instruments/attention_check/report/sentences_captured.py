"""What is found on captured tensors and in a model, in words."""

import math
from dataclasses import replace

from attention_check.judge.findings import Severity
from attention_check.measure.captured import CHANGES, RAN, ROUNDED
from attention_check.measure.kv_cache import CACHES
from attention_check.probe.skipped import first_nonfinite, place, reason_sentence
from attention_check.report.sentence import Sentence, as_times, each, times
from attention_check.report.sentences_cause import has_this_error, subject
from attention_check.report.sentences_kernel import NAMES, off_by
from fa_lib.kernels.kernel_ref import label_of

KERNELS = {ROUNDED: "the golden value, rounded", RAN: "the kernel that ran"}


def named(kernel: str) -> str:
    """Write the name of a kernel, of RAN or of ROUNDED in a sentence."""
    return KERNELS.get(kernel) or label_of(kernel)


def _refused(f, at):
    return Sentence(f"{named(at['kernel'])} {at['problem']}")


def _captured(f, at):
    of = f" of {at['model']}" if at.get("model") else ""
    return Sentence(f"The tensors were captured at {place(at)}{of}")


def _beside(f, at):
    return Sentence(f"Not judged here, though the file has it: {at['tensors']}. `fa-lib explain` judges that")


def _nonfinite(f, at):
    words = first_nonfinite(at)
    made = "attention made it of finite inputs" if at["tensor"] == "o" else "it came so to attention"
    return Sentence(f"{words[0].upper()}{words[1:]}: {made}")


def _head_error(f, at):
    kernel = named(at["kernel"])
    rule = {Severity.FAILS: " breaks the rule", Severity.PASSES: " is within the rule"}.get(f.severity, "")
    return Sentence(f"Over {at['heads']} heads the largest error of {kernel}{rule} (head {at['head']})", *times(f))


def _bound(f, at):
    on = f" on {at['distribution']} inputs in {at['judged']}" if "judged" in at else ""
    kernel = named(at["kernel"])
    if f.severity == Severity.PASSES:
        text = f"Every output of {kernel} is within its own bound, which is derived for these inputs"
        text += f"; it is nearest{on}" if on else ""
        return Sentence(text, f"{as_times(f.number)} of it", "1")
    rows = f"{at['rows']:,} of {at['of']:,} rows{f', furthest{on}' if on else ''}"
    text = f"Outputs of {kernel} are beyond their own bound in {rows}; {has_this_error(at)}"
    more = "The bound is that of a kernel which rounds P and the output to the inputs' format, and all else to FP32."
    return Sentence(text, f"{as_times(f.number, f.limit)} of it", "1", more)


def _mistake(f, at):
    on = f" ({at['distribution']}, {at['judged']})" if "judged" in at else ""
    kernel = named(at["kernel"])
    kernel = kernel.capitalize() if at["kernel"] in KERNELS else kernel
    text = f"{kernel} computes another attention: {subject(at)} has this very error{on}"
    more = f"{at['share']:.1%} of the squared error, in {at['rows']:,} of {at['of']:,} rows beyond their bound."
    return Sentence(text, f"{as_times(f.number, f.limit)} times the bound", "1", more)


def _captured_gradients(f, at):
    if "problem" in at:
        fails = f.severity == Severity.FAILS
        return Sentence(f"Its gradients {'cannot be had' if fails else 'were not judged'}: the kernel {at['problem']}")
    if "without" in at:
        names = ", ".join(NAMES[tensor] for tensor in at["without"])
        return Sentence(
            f"Baseline's own {names} is not finite for the dO that was captured: there is no error to hold it to"
        )
    name = NAMES[at["tensor"]]
    if at.get("wrong"):
        text = f"{name} is not attention's gradient for the dO that was captured"
        return Sentence(text, off_by(f.number), f"{f.limit:.0%}")
    rule = f"{'is within' if f.number <= f.limit else 'breaks'} the rule of three"
    return Sentence(f"For the dO that was captured, the largest error of its gradients {rule} ({name})", *times(f))


def _blind_rows(f, at):
    return Sentence(f"{at['rows']:,} rows see no key. What a kernel gives there is a convention, and was not judged")


def _heads(words, why):
    return each(lambda f, at: Sentence(f"{words}: head {', '.join(map(str, at['heads']))}", more=why))


def _change(f, at):
    if at["change"] is None:
        return Sentence(f"No change that was tried makes the error of {at['base']} clearly smaller")
    change = CHANGES[at["change"]]
    return Sentence(
        f"The cheapest change that makes the error of {at['base']} smaller: {change.label}",
        f"{f.number:.1f} × smaller", more=f"It costs {change.cost}.",
    )  # fmt: skip


def _cache(f, at):
    heads, count = ", ".join(map(str, at["heads"])), len(at["heads"])
    words = f"A KV cache in {CACHES[at['cache']]} moves O by more than {f.limit:.0%}"
    where = f"on {count} of {at['of']} heads (head {heads})" if heads else "on no head"
    finite = f.number is not None and math.isfinite(f.number)
    most = f"at most {f.number:.1%} of O" if finite else "O is not finite"
    return Sentence(f"{words} {where}", most, more="Root mean square, Q and P not quantised.")


def _layers(findings):
    """One sentence for what ran, one for each other kernel."""
    kernels = dict.fromkeys(f.where["kernel"] for f in findings)
    for kernel in sorted(kernels, key="ran".__ne__):
        own = [f for f in findings if f.where["kernel"] == kernel]
        yield replace(_layer_errors(kernel, own), what="layer_error")


def _layer_errors(kernel, own):
    seen = [f for f in own if f.number is not None]
    worst = next((f for f in own if f.severity == Severity.FAILS and f.number is None), None)
    if worst is None and not seen:
        return Sentence(f"{named(kernel)} could not be held against Baseline")
    worst = worst or max(seen, key=lambda f: f.number)
    where = " ".join(name for name in (worst.where["model"], worst.where["layer"]) if name) or "outside of a module"
    if kernel != "ran":
        return Sentence(f"On the same inputs {named(kernel)} has its largest error at {where}", *times(worst))
    failed = sum(f.severity == Severity.FAILS for f in own)
    words = f"In all of {len(own)} layers attention is within the rule"
    if failed:
        words = f"In {failed} of {len(own)} layers attention breaks the rule"
    elif worst.severity == Severity.REPORTED:
        words = "There are too few rows for the rule, so that attention is judged by its bound"
    return Sentence(f"{words}; the worst is {where}", *times(worst), severity=worst.severity)


def _nothing_compared(f, at):
    return Sentence("No attention call was compared with Baseline, so nothing was judged")


def _sees_later(f, at):
    text = f"Rows see later keys than their own in {at['calls']} of {at['of']} calls (the first: {place(at)})"
    more = "That is right in an encoder or in a model of images; in a decoder no causal mask has reached these calls."
    return Sentence(
        text, f"{f.number:.0%} of the rows", "", more, "" if f.severity == Severity.REPORTED else "pass the mask"
    )


def _later_unknown(f, at):
    why = "queries and keys differ in number, and which key is a row's own is not known"
    return Sentence(f"Whether rows see later keys was not judged in {at['calls']} of {at['of']} calls: {why}")


def _idle_mask(f, at):
    text = f"A mask is given and does nothing in {at['calls']} of {at['of']} calls (the first: {place(at)})"
    return Sentence(text, more="It hides no key and adds nothing: right where no place is padded, and wrong otherwise.")


def _own_hidden(f, at):
    text = f"Rows do not see their own key in {at['calls']} of {at['of']} calls (the first: {place(at)})"
    return Sentence(text, f"{f.number:.0%} of the rows", "", "A boolean mask of the other polarity does this.")


def _skipped(f, at):
    of = "Calls not compared" if at["kernel"] == "all" else f"Calls that {named(at['kernel'])} was not compared at"
    return Sentence(f"{of}: {f.number:.0f} ({reason_sentence(at['why'])})")


WORDINGS = {
    "refused": each(_refused), "beside": each(_beside),
    "head_error": each(_head_error), "bound": each(_bound), "mistake": each(_mistake), "cache": each(_cache),
    "biased_output": _heads(
        "Rounding O to 16 bits is biased", "Several keys attain the maximum, and V has mostly one sign."),
    "one_signed": _heads("V has mostly one sign", "The errors of a 16-bit carry add up with N."),
    "underflow": _heads("Small P are lost", "More than a thousandth of a row's probability underflows."),
    "change": each(_change), "layer_error": _layers, "nothing_compared": each(_nothing_compared),
    "skipped": each(_skipped), "blind_rows": each(_blind_rows), "sees_later": each(_sees_later),
    "own_hidden": each(_own_hidden), "idle_mask": each(_idle_mask), "later_unknown": each(_later_unknown),
    "captured": each(_captured), "captured_gradients": each(_captured_gradients), "nonfinite": each(_nonfinite),
}  # fmt: skip
