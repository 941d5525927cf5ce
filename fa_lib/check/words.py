"""From findings to sentences, for terminal, page and figures' titles. Nothing reads them back."""

from fa_lib.check import conduct_words, wrong_words
from fa_lib.check.findings import Finding, Judgement, Severity, Verdict
from fa_lib.check.kernel_words import SAY, SUMS, allowed, sentence, times
from fa_lib.check.skipped import first_nonfinite, place, told
from fa_lib.check.tensors import CHANGES, RAN, ROUNDED

VERDICTS = {Verdict.PASSES: "passes", Verdict.FAILS: "fails", Verdict.NOT_JUDGED: "is not judged"}
KERNELS = {ROUNDED: "the golden value, rounded", RAN: "the kernel that ran"}
ADVICE = (
    "What to change: hold the accumulator O and the row sum l in FP32 (docs/theory.md says how many bits are enough)."
)


def headline(judgement: Judgement) -> str:
    """One sentence: "flash passes."."""
    on = {"tensors": " on these tensors"}.get(judgement.kind, "")
    subject = judgement.subject
    if judgement.kind == "tensors" and subject in KERNELS:
        subject = KERNELS[subject].capitalize()
    return f"{subject} {VERDICTS[judgement.verdict]}{on}."


def title(judgement: Judgement) -> str:
    """Of a figure: the headline, and of a kernel the sums that it carries in low precision, of a model its error."""
    if judgement.kind == "kernel":
        carries = judgement.carries
        sums = "not seen" if carries is None else " and ".join(SUMS[each] for each in carries) or "no"
        splits = any(f.what == "rounded_splits" for f in judgement.findings)
        also = "; it rounds partial results" if splits else ""
        return f"{headline(judgement)} Low precision carried from tile to tile: {sums}{also}"
    if judgement.kind == "model":
        own = [f.number for f in judgement.findings if f.what == "layer_error" and f.where["kernel"] == "ran"]
        if own and None not in own:
            error = f"attention's largest error is at most {max(own):.1f} × Baseline's"
            return f"{headline(judgement)} In each layer, over all its heads, {error}"
    return headline(judgement).removesuffix(".")


def in_words(judgement: Judgement) -> str:
    """The headline and every sentence, as one text."""
    return " ".join([headline(judgement), *(sentence for _, sentence in sentences(judgement))])


def sentences(judgement: Judgement) -> list[tuple[Severity, str]]:
    """Every finding in words, the gravest first, with what it means for the judgement."""
    groups: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        groups.setdefault(finding.what, []).append(finding)
    said = [pair for what, findings in groups.items() for pair in _SAY[what](findings)]
    return said + ([(Severity.NOTES, ADVICE)] if judgement.carries else [])


def _refused(f, at):
    return f"{KERNELS.get(at['kernel'], at['kernel'])} {at['problem']}."


def _captured(f, at):
    of = f" of {at['model']}" if at.get("model") else ""
    return f"The tensors were captured at {place(at)}{of}."


def _nonfinite(f, at):
    words = first_nonfinite(at)
    made = "attention made it of finite inputs" if at["tensor"] == "o" else "it came so to attention"
    return f"{words[0].upper()}{words[1:]}: {made}."


def _head_error(f, at):
    kernel = KERNELS.get(at["kernel"], at["kernel"])
    return f"Over {at['heads']} heads the largest error of {kernel} {times(f)} (head {at['head']}){allowed(f)}."


def _heads(words):
    return sentence(lambda f, at: f"{words}: head {', '.join(map(str, at['heads']))}.")


def _change(f, at):
    if at["change"] is None:
        return f"No change that was tried makes the error of {at['base']} clearly smaller."
    change = CHANGES[at["change"]]
    return (
        f"The cheapest change that makes the error of {at['base']} smaller: {change.label} (it costs {change.cost}), "
        f"{f.number:.1f} times smaller."
    )


def _layers(findings):
    """One sentence for what ran, one for each other kernel."""
    kernels = dict.fromkeys(f.where["kernel"] for f in findings)
    for kernel in sorted(kernels, key="ran".__ne__):
        own = [f for f in findings if f.where["kernel"] == kernel]
        seen = [f for f in own if f.number is not None]
        worst = next((f for f in own if f.severity == Severity.FAILS and f.number is None), None)
        if worst is None and not seen:
            yield Severity.NOTES, f"{kernel} could not be held against Baseline."
            continue
        worst = worst or max(seen, key=lambda f: f.number)
        where = " ".join(name for name in (worst.where["model"], worst.where["layer"]) if name) or "outside of a module"
        if kernel != "ran":
            yield (
                Severity.NOTES,
                f"On the same inputs the largest error of {kernel} in a layer {times(worst)} ({where}).",
            )
            continue
        failed = sum(f.severity == Severity.FAILS for f in own)
        words = f"In {failed} of {len(own)} layers attention breaks the rule" if failed else (
            f"In all of {len(own)} layers attention is within the rule"
        )  # fmt: skip
        yield worst.severity, f"{words}: the largest error in a layer {times(worst)} ({where}){allowed(worst)}."


def _nothing_compared(f, at):
    return "No attention call was compared with Baseline, so nothing was judged."


def _skipped(f, at):
    of = "Calls not compared" if at["kernel"] == "all" else f"Calls that {at['kernel']} was not compared at"
    return f"{of}: {f.number:.0f} ({told(at['why'])})."


_SAY = {
    **SAY, **conduct_words.SAY, **wrong_words.SAY, "refused": sentence(_refused), "head_error": sentence(_head_error),
    "biased_output": _heads(
        "Several keys attain the maximum and V has mostly one sign, so rounding O to 16 bits is biased"),
    "one_signed": _heads("V has mostly one sign, so the errors of a 16-bit carry add up with N"),
    "underflow": _heads("More than a thousandth of a row's probability is lost to underflow of P"),
    "change": sentence(_change), "layer_error": _layers, "nothing_compared": sentence(_nothing_compared),
    "skipped": sentence(_skipped), "captured": sentence(_captured), "nonfinite": sentence(_nonfinite),
}  # fmt: skip
