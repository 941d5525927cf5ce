"""From findings to sentences, for terminal, page and figures' titles. Nothing reads them back."""

import math
from collections.abc import Callable
from dataclasses import replace

from fa_lib.check.isolation.untrusted import Untrusted
from fa_lib.check.judge.findings import Finding, Judgement, Severity, Verdict
from fa_lib.check.measure.capability import NAMED_OPTIONS
from fa_lib.check.measure.captured import CHANGES, RAN, ROUNDED
from fa_lib.check.measure.kv_cache import CACHES
from fa_lib.check.measure.relations import RELATIONS
from fa_lib.check.probe.skipped import first_nonfinite, place, reason_sentence
from fa_lib.check.report import sentences_conduct, sentences_gross_errors
from fa_lib.check.report.capability_labels import label
from fa_lib.check.report.sentence import Sentence, as_times, each, folded, gravity, times
from fa_lib.check.report.sentences_cause import has_this_error, subject
from fa_lib.check.report.sentences_kernel import CASTS, NAMES, SUMS, noted
from fa_lib.check.report.sentences_kernel import WORDINGS as OF_KERNELS

VERDICTS = {Verdict.PASSES: "passes", Verdict.FAILS: "fails", Verdict.NOT_JUDGED: "is not judged"}
KERNELS = {ROUNDED: "the golden value, rounded", RAN: "the kernel that ran"}
HEADINGS = {  # of findings, by what they mean for the verdict
    Severity.FAILS: "Counts against it", Severity.REPORTED: "Reported, not counted", Severity.PASSES: "Holds",
}  # fmt: skip


def headline(judgement: Judgement) -> Untrusted:
    """The verdict, with its cause where one is known, and, of a kernel, what could not be asked: "flash passes. Not
    asked, since it takes no option that is called so: softcap, sinks."."""
    on = {"tensors": " on these tensors"}.get(judgement.kind, "")
    judged = judgement.subject
    if judgement.kind == "tensors" and judged in KERNELS:
        judged = KERNELS[judged].capitalize()
    found = cause(judgement)
    why = f": {BECAUSE[found[0].what](found[0], found)}" if found else ""
    said = f"{judged} {VERDICTS[judgement.verdict]}{on}{why}."
    if judgement.kind == "model" and any(f.what == "sees_later" for f in judgement.findings) and judgement.passed:
        said += " Its rows see later keys: it was not judged as a decoder."
    left = not_asked(judgement)
    said += f" Not asked, since it takes no option that is called so: {', '.join(left)}." if left else ""
    return Untrusted(said)


def cause(judgement: Judgement) -> list[Finding]:
    """The findings that the headline gives as the cause of a failure: those of the first of BECAUSE, the gravest
    first; empty where there are none. What fails comes before a rounding that is only reported, and has its error."""
    if judgement.verdict != Verdict.FAILS:
        return []
    failing = sorted((f for f in judgement.findings if f.severity == Severity.FAILS), key=gravity)
    rounded = [f for f in judgement.findings if f.severity == Severity.REPORTED and f.what in ROUNDED_BY]
    known = [f for f in rounded if f.where.get("same", True)]
    found = [[f for f in some if f.what == what] for some in (failing, known) for what in BECAUSE]
    return next(filter(None, found), [])


def not_asked(judgement: Judgement) -> list[str]:
    """Options that a kernel was not judged on, because it does not take them; of a kernel that fails none are named."""
    if judgement.kind != "kernel" or judgement.verdict == Verdict.FAILS:
        return []
    refused = [asked for f in judgement.findings if f.what == "unsupported" for asked in f.where["asked"]]
    return [label(asked) for asked in refused if asked in NAMED_OPTIONS]


def title(judgement: Judgement) -> str:
    """Of a figure: the headline, and of a kernel the sums that it carries in low precision, of a model its error."""
    known = cause(judgement)
    if judgement.kind == "kernel" and not any(f.what == "carry" for f in known):
        carries = judgement.carries
        sums = "not seen" if carries is None else _sums(carries) or "no"
        splits = any(f.what == "rounded_splits" for f in judgement.findings)
        also = "; it rounds partial results" if splits and not known else ""
        return f"{headline(judgement)} Low precision carried from tile to tile: {sums}{also}"
    if judgement.kind == "model":
        own = [f.number for f in judgement.findings if f.what == "layer_error" and f.where["kernel"] == "ran"]
        finite = [number for number in own if number is not None]
        if own and len(finite) == len(own):
            error = f"attention's largest error is at most {as_times(max(finite))} × Baseline's"
            return f"{headline(judgement)} In each layer, over all its heads, {error}"
    return headline(judgement).removesuffix(".")


def judgement_text(judgement: Judgement) -> str:
    """The headline and every sentence, as one text."""
    said = [
        text for group in sentences_of(judgement).values() for one in group for text in (one.line, one.more, one.remedy)
    ]
    return " ".join([headline(judgement), *filter(None, said)])


def judgement_lines(
    judgement: Judgement, heading: Callable[[Severity, str], str] = lambda severity, text: text
) -> list[str]:
    """The headline, then a line for each finding and for what to change; of what holds one line for all.

    Args:
        heading: gives the heading of the findings of a severity as it is to be shown.
    """
    lines: list[str] = [headline(judgement)]
    for severity, group in sentences_of(judgement).items():
        top = heading(severity, f"{HEADINGS[severity]}:")
        if severity == Severity.PASSES:
            lines += ["", f"{top} {'. '.join(one.text for one in group)}."]
            continue
        lines += ["", top]
        for seen, more in folded(group):
            lines += [f"  {text}" for one in seen for text in (one.line, one.remedy) if text]
            lines += [f"  and {len(more)} more like these"] if more else []
    return lines


def sentences_of(judgement: Judgement) -> dict[Severity, list[Sentence]]:
    """Every finding in words, by what it means for the verdict. What fails stands first, and what counts for a verdict
    of "passes" before what is only told; in each the gravest first."""
    groups: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        groups.setdefault(finding.what, []).append(finding)
    said = [one for what, findings in groups.items() for one in WORDINGS[what](findings)]
    order = [Severity.FAILS, Severity.REPORTED, Severity.PASSES]
    if judgement.passed:
        order = [Severity.PASSES, Severity.REPORTED]
    found = {severity: [one for one in said if one.severity == severity] for severity in order}
    return {severity: group for severity, group in found.items() if group}


def _refused(f, at):
    return Sentence(f"{KERNELS.get(at['kernel'], at['kernel'])} {at['problem']}")


def _captured(f, at):
    of = f" of {at['model']}" if at.get("model") else ""
    return Sentence(f"The tensors were captured at {place(at)}{of}")


def _nonfinite(f, at):
    words = first_nonfinite(at)
    made = "attention made it of finite inputs" if at["tensor"] == "o" else "it came so to attention"
    return Sentence(f"{words[0].upper()}{words[1:]}: {made}")


def _head_error(f, at):
    kernel = KERNELS.get(at["kernel"], at["kernel"])
    rule = {Severity.FAILS: " breaks the rule", Severity.PASSES: " is within the rule"}.get(f.severity, "")
    return Sentence(f"Over {at['heads']} heads the largest error of {kernel}{rule} (head {at['head']})", *times(f))


def _bound(f, at):
    on = f" on {at['distribution']} inputs in {at['judged']}" if "judged" in at else ""
    kernel = KERNELS.get(at["kernel"], at["kernel"])
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
    kernel: str = KERNELS.get(at["kernel"], at["kernel"])
    text = f"{kernel[0].upper()}{kernel[1:]} computes another attention: {subject(at)} has this very error{on}"
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
        off = "not finite" if f.number is None else f"{f.number:.0%} off"
        return Sentence(f"{name} is not attention's gradient for the dO that was captured", off, f"{f.limit:.0%}")
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
        return Sentence(f"{kernel} could not be held against Baseline")
    worst = worst or max(seen, key=lambda f: f.number)
    where = " ".join(name for name in (worst.where["model"], worst.where["layer"]) if name) or "outside of a module"
    if kernel != "ran":
        return Sentence(f"On the same inputs {kernel} has its largest error at {where}", *times(worst))
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


def _own_hidden(f, at):
    text = f"Rows do not see their own key in {at['calls']} of {at['of']} calls (the first: {place(at)})"
    return Sentence(text, f"{f.number:.0%} of the rows", "", "A boolean mask of the other polarity does this.")


def _skipped(f, at):
    of = "Calls not compared" if at["kernel"] == "all" else f"Calls that {at['kernel']} was not compared at"
    return Sentence(f"{of}: {f.number:.0f} ({reason_sentence(at['why'])})")


def _asked_for(at):
    return f"asked for {label(at['asked'], at['dim'])} it {noted(at['outcome'], at['note'], at['problem'])}"


def _sums(names):
    return " and ".join(says for name, says in SUMS.items() if name in names)


BECAUSE: dict[str, Callable[[Finding, list[Finding]], str]] = {  # what of findings -> the cause, by the gravest and all
    "sees_later": lambda f, _: "its rows see later keys, which a causal model may not",
    "mistake": lambda f, _: f"{subject(f.where)} has its very error",
    "coarse": lambda f, _: f"for {f.where['fmt']} it computes in a coarser format ({f.number:.0f} significant bits)",
    "scale": lambda f, _: f"its outputs are attention's times {f.number:.4g}",
    "noise": lambda f, _: "its outputs differ from call to call",
    "answer": lambda f, _: _asked_for(f.where),
    "carry": lambda _, found: (
        f"it carries its {_sums({f.where['sum'] for f in found})} in low precision from tile to tile"
    ),
    "rounded_splits": lambda f, _: f"it rounds partial results to {f.where['fmt']}",
    "rounding_mode": lambda f, _: f"its casts of {CASTS[f.where['what']]} drop bits",
    "bound": lambda f, _: f"{subject(f.where)} has its very error",
    "relation": lambda f, _: (
        f'what holds of every attention kernel does not hold: "{RELATIONS[f.where["relation"]].says.removesuffix(".")}"'
    ),
}
ROUNDED_BY = ("rounded_splits", "bound")  # of BECAUSE: reported, and not counted
WORDINGS = {
    **OF_KERNELS, **sentences_conduct.WORDINGS, **sentences_gross_errors.WORDINGS, "refused": each(_refused),
    "head_error": each(_head_error), "bound": each(_bound), "mistake": each(_mistake), "cache": each(_cache),
    "biased_output": _heads(
        "Rounding O to 16 bits is biased", "Several keys attain the maximum, and V has mostly one sign."),
    "one_signed": _heads("V has mostly one sign", "The errors of a 16-bit carry add up with N."),
    "underflow": _heads("Small P are lost", "More than a thousandth of a row's probability underflows."),
    "change": each(_change), "layer_error": _layers, "nothing_compared": each(_nothing_compared),
    "skipped": each(_skipped), "blind_rows": each(_blind_rows), "sees_later": each(_sees_later),
    "own_hidden": each(_own_hidden), "later_unknown": each(_later_unknown), "captured": each(_captured),
    "captured_gradients": each(_captured_gradients), "nonfinite": each(_nonfinite),
}  # fmt: skip
