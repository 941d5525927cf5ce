"""From findings to sentences, for terminal, page and figures' titles. Nothing reads them back."""

from collections.abc import Iterator

from fa_lib.check.findings import Finding, Judgement, Severity
from fa_lib.check.tensors import CHANGES, ROUNDED

SUMS = {"accumulator": "accumulator O", "row_sum": "row sum l"}
NOTES = {  # of `contract`
    "top_left": "is aligned top-left, as torch's is_causal",
    "unmasked": "takes causal=True and does not mask",
    "other": "answers with something else than attention's output",
}
KERNELS = {ROUNDED: "the golden value, rounded"}
ADVICE = (
    "What to change: hold the accumulator O and the row sum l in FP32 (docs/theory.md says how many bits are enough)."
)


def headline(judgement: Judgement) -> str:
    """One sentence: "flash passes."."""
    on = {"tensors": " on these tensors"}.get(judgement.kind, "")
    return f"{judgement.subject} {'passes' if judgement.passed else 'fails'}{on}."


def title(judgement: Judgement) -> str:
    """Of a figure: the headline, and of a kernel the sums that it carries in low precision, of a model its error."""
    if judgement.kind == "kernel":
        carries = judgement.carries
        sums = "not seen" if carries is None else " and ".join(SUMS[each] for each in carries) or "no"
        return f"{headline(judgement)} Low precision carried from tile to tile: {sums}"
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


def noted(outcome: str, note: str, problem: str) -> str:
    """What a kernel did with a call, in words; "" where it answered as it should."""
    return NOTES.get(note, "") if outcome in ("yes", "wrong") else problem


def _sentence(wording):
    """The sentence of one finding, said of each finding of a kind."""

    def say(findings) -> Iterator[tuple[Severity, str]]:
        for f in findings:
            yield f.severity, wording(f, f.where)

    return say


def _times(finding):
    if finding.number is None:
        return "is not finite"
    digits = 1
    while finding.limit and round(finding.number, digits) == finding.limit != finding.number and digits < 6:
        digits += 1  # no "2.0, where 2 is allowed" of what fails
    return f"is {finding.number:.{digits}f} times Baseline's"


def _rule(finding):
    return "" if finding.limit is None else f"; the rule allows {finding.limit:g}"


def _not_run(f, at):
    return f"It could not be run: asked for {at['asked']} it {noted(at['outcome'], at['note'], at['problem'])}."


def _not_attention(f, at):
    return f"It is no attention kernel: asked for {at['asked']} it {noted(at['outcome'], at['note'], at['problem'])}."


def _only_fp64(f, at):
    return "It runs in FP64 only, the golden value's own format: there is nothing to judge it by."


def _carry(findings):
    low = [f for f in findings if f.severity == Severity.FAILS]
    unseen = [f for f in findings if f.severity == Severity.NOTES]
    if low:
        most, sums = max(low, key=lambda f: f.number), dict.fromkeys(SUMS[f.where["sum"]] for f in low)
        each = ", ".join(f"{f.number:.0f} ulp of {f.where['fmt']} in its {SUMS[f.where['sum']]}" for f in low)
        said = (
            f"It carries low precision from tile to tile: yes, in its {' and '.join(sums)}. How we know: of a sum of "
            f"{most.where['terms']:,} terms it loses {each}; a kernel that carries FP32 loses half an ulp."
        )
        if most.where["tile"]:
            said += f" All is lost in tiles of up to {most.where['tile']} keys: this is its tile."
        yield Severity.FAILS, said
    elif unseen:
        problem = unseen[0].where["problem"]
        why = f"it {problem}" if problem else "it was not asked for"
        yield Severity.NOTES, f"Whether it carries low precision from tile to tile could not be seen: {why}."
    else:
        most = max(findings, key=lambda f: f.number)
        said = (
            f"It carries low precision from tile to tile: no. How we know: of sums of {most.where['terms']:,} terms it "
            f"loses at most {most.number:.1f} ulp; a kernel that carries BF16 or FP16, in tiles of up to 512 keys, "
            "loses 3 to hundreds."
        )
        yield Severity.PASSES, said


def _growth(f, at):
    to = "something not finite" if f.number is None else f"{f.number:.1f}"
    return (
        f"On {at['distribution']} inputs its largest error over Baseline's goes from {at['from_number']:.1f} at "
        f"N = {at['from_n']} to {to} at N = {at['n']} ({at['fmt']})."
    )


def _answer(f, at):
    return f"Asked for {at['asked']} it {noted(at['outcome'], at['note'], at['problem'])}."


def _error(f, at):
    return f"Its largest error {_times(f)} ({at['distribution']} inputs, {at['fmt']}, N = {at['n']}){_rule(f)}."


def _sum_error(f, at):
    return (
        f"Its {SUMS[at['sum']]} is {f.number:.1f} ulp of {at['fmt']} off where P is small, but it loses no whole tile: "
        "this error is of its scores or of its exponential, not of a carried sum."
    )


def _problem(f, at):
    words = f"n {at['distribution']} inputs in {at['fmt']} at N = {at['n']} it {at['problem']}."
    return f"Not judged: o{words}" if f.severity == Severity.NOTES else f"O{words}"


def _top_left(f, at):
    return (
        "Where queries are fewer than keys, its causal mask is aligned top-left, as torch's is_causal: the rule over "
        "shapes leaves these calls out."
    )


def _shapes(f, at):
    if not at["failed"]:
        return f"Over shapes and masks all {at['of']} {f.what} are within the rule."
    return (
        f"Over shapes and masks {at['failed']} of {at['of']} {f.what} break the rule: the worst error {_times(f)} "
        f"({at['tensor']}, {at['shape']}, {at['fmt']}){_rule(f)}."
    )


def _worst_input(f, at):
    return (
        f"Of the inputs that make trouble, {at['distribution']} in {at['fmt']} is the worst: its largest error there "
        f"{_times(f)}."
    )


def _outwards(f, at):
    sign, side = (1, "away from") if f.number > 0 else (-1, "towards")
    low, high = sorted((sign * at["low"], sign * at["high"]))
    return (
        f"Its errors are biased: on {at['distribution']} in {at['fmt']} they point {side} zero, by {abs(f.number):.2f} "
        f"ulp in the mean ({low:.2f} to {high:.2f})."
    )


def _repeats(f, at):
    if f.number == 1:
        return f"Its {at['of']} have the same bits in all of {at['runs']} runs."
    return f"Its {at['of']} are {f.number:.0f} different ones in {at['runs']} runs."


def _unsupported(f, at):
    return f"Not supported, so not judged: {', '.join(at['asked'])}."


def _refused(f, at):
    return f"{at['kernel']} {at['problem']}."


def _head_error(f, at):
    return f"Over {at['heads']} heads the largest error of {at['kernel']} {_times(f)} (head {at['head']}){_rule(f)}."


def _heads(words):
    return _sentence(lambda f, at: f"{words}: head {', '.join(map(str, at['heads']))}.")


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
                f"On the same inputs the largest error of {kernel} in a layer {_times(worst)} ({where}).",
            )
            continue
        failed = sum(f.severity == Severity.FAILS for f in own)
        words = f"In {failed} of {len(own)} layers attention breaks the rule" if failed else (
            f"In all of {len(own)} layers attention is within the rule"
        )  # fmt: skip
        yield worst.severity, f"{words}: the largest error in a layer {_times(worst)} ({where}){_rule(worst)}."


def _nothing_compared(f, at):
    return "No attention call was compared with Baseline, so nothing was judged."


def _skipped(f, at):
    of = "Calls not compared" if at["kernel"] == "all" else f"Calls that {at['kernel']} was not compared at"
    return f"{of}: {f.number:.0f} ({at['why']})."


_SAY = {
    "not_run": _sentence(_not_run), "not_attention": _sentence(_not_attention), "only_fp64": _sentence(_only_fp64),
    "carry": _carry, "growth": _sentence(_growth), "answer": _sentence(_answer), "error": _sentence(_error),
    "sum_error": _sentence(_sum_error), "problem": _sentence(_problem), "top_left": _sentence(_top_left),
    "outputs": _sentence(_shapes), "gradients": _sentence(_shapes), "worst_input": _sentence(_worst_input),
    "outwards": _sentence(_outwards), "repeats": _sentence(_repeats), "unsupported": _sentence(_unsupported),
    "refused": _sentence(_refused), "head_error": _sentence(_head_error),
    "biased_output": _heads(
        "Several keys attain the maximum and V has mostly one sign, so rounding O to 16 bits is biased"),
    "one_signed": _heads("V has mostly one sign, so the errors of a 16-bit carry add up with N"),
    "underflow": _heads("More than a thousandth of a row's probability is lost to underflow of P"),
    "change": _sentence(_change), "layer_error": _layers, "nothing_compared": _sentence(_nothing_compared),
    "skipped": _sentence(_skipped),
}  # fmt: skip
