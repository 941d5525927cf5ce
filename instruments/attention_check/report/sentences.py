"""From findings to sentences, for terminal, page and figures' titles. Nothing reads them back."""

from collections.abc import Callable, Iterable
from itertools import groupby

from attention_check.judge.findings import Finding, Judgement, Severity, Verdict
from attention_check.measure.capability import NAMED_OPTIONS
from attention_check.report.labels import KERNELS, label, named
from attention_check.report.wordings import GRAVEST_FIRST, TOGETHER, Sentence, gravity, lower, worded
from fa_lib.execution.untrusted import Untrusted

CAUSES = (  # of what a judgement fails: a headline gives the first of them
    "sees_later", "keys_of_q", "mistake", "coarse", "scale", "noise", "answer", "carry", "rounding_mode", "relation",
    "not_run", "hangs", "crashes", "exits", "way_of_attention",
)  # fmt: skip
LIKE = 3  # findings of a kind that are shown; the others are folded
WHY_NOT_JUDGED = {
    "unsupported": "Not run, since it does not take them",
    "raises": "Not judged, since it raises an error that is no refusal",
    "outside": "Not judged, since it reads outside of K or V",
}
VERDICTS = {Verdict.PASSES: "passes", Verdict.FAILS: "fails", Verdict.NOT_JUDGED: "is not judged"}
HEADINGS = {  # of findings, by what they mean for the verdict
    Severity.FAILS: "Counts against it", Severity.REPORTED: "Reported, not counted", Severity.PASSES: "Holds",
}  # fmt: skip


def headline(judgement: Judgement) -> Untrusted:
    """The verdict, with the sentence of what fails first, and, of a kernel, what could not be run: "flash passes. Not
    run, since it does not take them: softcap, sinks."."""
    judged, on = judgement.label, " on these tensors" if judgement.kind == "tensors" else ""
    if on and judgement.subject in KERNELS:
        judged = named(judgement.subject).capitalize()
    found = cause(judgement)
    if found and found[0].what in TOGETHER:
        found = [f for f in judgement.findings if f.what == found[0].what]
    why = f": {lower(worded(found)[0].text)}" if found else ""
    text = f"{judged} {VERDICTS[judgement.verdict]}{on}{why}."
    if judgement.kind == "model" and any(f.what == "sees_later" for f in judgement.findings) and judgement.passed:
        text += " Its rows see later keys: it was not judged as a decoder."
    for what, why in WHY_NOT_JUDGED.items():
        if options := not_judged(judgement, what):
            text += f" {why}: {', '.join(options)}."
    return Untrusted(text)


def cause(judgement: Judgement) -> list[Finding]:
    """The findings that the headline gives as the cause of a failure, of one kind, the gravest first; empty where there
    are none. Of CAUSES; else a rounding that is only reported, and has its error; else what fails, the gravest."""
    failing = [f for f in judgement.findings if f.severity == Severity.FAILS]
    failing.sort(
        key=lambda f: (f.what != "explained", gravity(f), f.where.get("note") == "other")
    )  # what is known first
    known = sorted((f for f in failing if f.what in CAUSES), key=lambda f: CAUSES.index(f.what))
    bounds = [f for f in judgement.findings if f.what == "bound" and f.severity == Severity.REPORTED]
    found = known or [f for f in bounds if failing and f.where.get("same", True)] or failing
    return [f for f in found if f.what == found[0].what]


def not_judged(judgement: Judgement, what: str) -> list[str]:
    """Options that a kernel was not judged on, by findings of one kind; of a kernel that fails none are named."""
    if judgement.kind != "kernel" or judgement.verdict == Verdict.FAILS:
        return []
    refused = [asked for f in judgement.findings if f.what == what for asked in f.where["asked"]]
    return [label(asked) for asked in refused if asked in NAMED_OPTIONS]


def judgement_text(judgement: Judgement) -> str:
    """The headline and every sentence, as one text."""
    sentences = (one for group in sentences_of(judgement).values() for one in group)
    texts = (text for one in sentences for text in (one.line, one.more, one.remedy) if text)
    return " ".join([headline(judgement), *texts])


def judgement_lines(
    judgement: Judgement, heading: Callable[[Severity, str], str] = lambda severity, text: text
) -> list[str]:
    """The headline, then a line for each finding and for what to change; of what holds one line for all. heading: gives
    the heading of the findings of a severity as it is to be shown."""
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
    of "passes" before what does not count; in each the gravest first."""
    groups: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        groups.setdefault(finding.what, []).append(finding)
    sentences = [one for findings in groups.values() for one in worded(findings)]
    order = (Severity.PASSES, Severity.REPORTED) if judgement.passed else GRAVEST_FIRST
    found = {severity: [one for one in sentences if one.severity == severity] for severity in order}
    return {severity: group for severity, group in found.items() if group}


def folded(group: Iterable[Sentence]) -> list[tuple[list[Sentence], list[Sentence]]]:
    """Findings of each kind: those that are shown, the gravest; and those that are folded, none where it is one."""
    kinds = [[*like] for _, like in groupby(group, key=lambda one: one.what)]
    return [(like[:LIKE], like[LIKE:]) if len(like) > LIKE + 1 else (like, []) for like in kinds]
