"""What is found of a kernel, in words."""

import math
from collections.abc import Iterable
from dataclasses import replace

from attention_check.conventions.conventions import is_of_keys, of_keys
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Severity
from attention_check.measure.capability import FIRST
from attention_check.report.capability_labels import label
from attention_check.report.sentence import Sentence, as_times, each, times

NAMES = {"dq": "dQ", "dk": "dK", "dv": "dV"}
SUMS = {"accumulator": "accumulator O", "row_sum": "row sum l"}
NOTES = {  # of `contract`
    "causal_only": "masks causally, and only so",
    "top_left": "is aligned top-left, as torch's is_causal",
    "other": "answers with something else than attention's output",
    "layout_all_bshd": "reads (batch, sequence, heads, head_dim), by the look of its answer: say --layout bshd",
    "bhsd": "reads (batch, heads, sequence, head_dim), by the look of its answer: leave out --layout bshd",
    "layout_o_bshd": "returns O as (batch, sequence, heads, head_dim), where (batch, heads, sequence, head_dim) is due",
    "factor": "returns a multiple of attention's output, by the look of its answer",
}

CASTS = {"output": "the output", "probs": "P", "inputs": "V, which is FP32,"}
ONE_TILE = 0.1  # of what a sum kept from tile to tile loses: 64 of 1,024 terms, which a tile holds, are less
UNSEEN = {  # findings that hide a carry
    "scale": "its outputs are off by a factor, which has to go first",
    "noise": "its outputs differ from call to call, which has to end first",
    "coarse": "its outputs are numbers of a coarser format",
}
MODES = {  # of `rounding_mode`
    "nearest_even": "round to nearest, ties to even",
    "nearest_away": "round to nearest, ties away from zero",
    "nearest": "round to nearest (its ties could not be seen)",
    "truncates": "drop bits: its errors point towards zero, and add up from layer to layer",
}


def noted(outcome: str, note: str, problem: str) -> str:
    """What a kernel did with a call, in words; "" where it answered as it should."""
    if note not in NOTES and is_of_keys(note):
        return f"answers with {of_keys(note)}"
    return NOTES.get(note, "" if outcome == Outcome.ANSWERED else problem)


def queries_in_words(queries: int | None) -> str:
    """Of a number of queries at a time; None: as many as keys."""
    return "as many queries as keys" if queries is None else f"{queries} quer{'y' if queries == 1 else 'ies'}"


def _few(at):
    """What is said of the number of queries where they are fewer than keys."""
    return "" if at.get("queries") is None else f", {queries_in_words(at['queries'])}"


def _answered(at, at_dim=""):
    """ "asked for head_dim 40 it raises ..." """
    return f"asked for {label(at['asked'], at['dim'])}{at_dim} it {noted(at['outcome'], at['note'], at['problem'])}"


def _not_run(f, at):
    return Sentence(f"It could not be run: {_answered(at)}")


def _not_attention(f, at):
    recognised, right = at["note"] not in ("", "other"), [f"{n}" for n in at.get("right_at", ())]
    if right:
        text = f"It is no attention kernel at N = {FIRST.n_kv}, where {_answered(at)}"
        return Sentence(f"{text}; at N = {listed(right)} it is right")
    return Sentence(f"{'It was not judged further' if recognised else 'It is no attention kernel'}: {_answered(at)}")


def _only_fp64(f, at):
    return Sentence("It runs in FP64 only, the golden value's own format: there is nothing to judge it by")


def _carry(findings):
    low = [f for f in findings if f.severity == Severity.FAILS]
    unseen = [f for f in findings if f.severity == Severity.REPORTED]
    if low:
        yield replace(_carried(low), severity=Severity.FAILS, what="carry")
    elif unseen:
        where = unseen[0].where
        why = f"it {where['problem']}" if where["problem"] else "it was not asked for"
        if where.get("because"):
            why = UNSEEN[where["because"]]
        elif where.get("blind"):
            why = "it does not return small terms alone, without a large one, right either"
        yield Sentence(f"Whether it carries low precision from tile to tile could not be seen: {why}", what="carry")
    else:
        most = max(findings, key=lambda f: f.number)
        queries = listed(map(queries_in_words, most.where["queries"]))
        yield Sentence(
            "It carries no low precision from tile to tile", f"{most.number:.1f} ulp lost", f"{most.limit:g} ulp",
            f"Sums of up to 4,096 terms, asked for {queries} at a time. A kernel that carries BF16 or FP16, in tiles "
            "of up to 512 keys, loses 3 ulp to hundreds.", severity=Severity.PASSES, what="carry",
        )  # fmt: skip


def _carried(low):
    """Of findings of sums that are carried in low precision."""
    most, sums = (
        max(low, key=lambda f: math.inf if f.number is None else f.number),
        dict.fromkeys(SUMS[f.where["sum"]] for f in low),
    )
    formats = listed(dict.fromkeys(f.where["fmt"] for f in low))
    more = [f"Of a sum of {most.where['terms']:,} terms, in {formats}; a kernel that carries FP32 loses half an ulp."]
    tiles = {f.where["tile"]: f.where["fmt"] for f in low if f.where["tile"]}
    if tiles:
        sizes = [f"{tile} keys, if it carries {fmt}" for tile, fmt in sorted(tiles.items())]
        sizes = f"{min(tiles)} keys" if len(tiles) == 1 else " or ".join(sizes)
        more.append(f"All is lost in tiles of up to {sizes}: this is its tile.")
    if len(most.where["queries"]) < most.where["queries_of"]:
        more.append(f"It does so when asked for {listed(map(queries_in_words, most.where['queries']))} at a time.")
    if all(f.number is not None and f.number < ONE_TILE * f.where.get("all", 0) for f in low):
        text = f"A part of a tile is summed in low precision, into its {' and '.join(sums)}"
        more[0] += f" A sum kept in {formats} from tile to tile would lose {most.where['all']:,.0f}."
        change = "add up the matrix product P V of a tile in FP32"
        return Sentence(text, f"{most.number:,.0f} ulp lost", f"{most.limit:g} ulp", " ".join(more), change)
    change = "hold the accumulator O and the row sum l in FP32 (docs/law/theory.md says how many bits are enough)"
    text = f"It carries low precision from tile to tile, in its {' and '.join(sums)}"
    lost = "infinitely many" if most.number is None else f"{most.number:,.0f}"
    return Sentence(text, f"{lost} ulp lost", f"{most.limit:g} ulp", " ".join(more), change)


def listed(texts: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _growth(f, at):
    to = "not finite" if f.number is None else f"{as_times(f.number)} × Baseline's"
    return Sentence(
        f"With N, its largest error goes from {as_times(at['from_number'])} × Baseline's at N = {at['from_n']:,} to "
        f"that at N = {at['n']:,} ({at['distribution']} inputs, {at['fmt']}, {queries_in_words(at['queries'])})", to,
    )  # fmt: skip


def _answer(f, at):
    text = _answered(at, "" if at["head_dim"] is None else f" at head_dim {at['head_dim']}")
    return Sentence(f"A{text[1:]}")


def _rule(f):
    return "breaks the rule" if f.severity == Severity.FAILS else "is within the rule"


def _error(f, at):
    place = f"{at['distribution']} inputs, {at['fmt']}, N = {at['n']}{_few(at)}"
    return Sentence(f"Its largest error {_rule(f)} ({place})", *times(f))


def _chance(f, at):
    if "shape" in at:
        place = f"shape {at['shape']}, head_dim {at['head_dim']}, {at['fmt']}"
    else:
        place = f"{at['distribution']} inputs, {at['fmt']}, N = {at['n']}{_few(at)}"
    return Sentence(
        f"In one of {at['draws']} draws its largest error is beyond the rule ({place})", *times(f),
        f"In no other draw of this call is it more than {as_times(at['second'])} × Baseline's; that number counts.",
    )  # fmt: skip


def _rounded_splits(f, at):
    parts = "the keys as one part" if at["splits"] == 1 else f"{at['splits']} parts of the keys"
    return Sentence(
        f"It rounds partial results to {at['fmt']}", f"{f.number:.0%} of its error explained",
        more=f"An emulation that computes {parts} exactly and rounds each part's output, not yet divided by its row "
        f"sum, to {at['fmt']}{'; merges them in it, too,' if at['low_merge'] else ''} has the same errors (squared).",
        change="write and merge partial results in FP32",
    )  # fmt: skip


def _sum_error(f, at):
    return Sentence(
        f"Its {SUMS[at['sum']]} is off where P is small, but loses no whole tile", f"{f.number:.1f} ulp of {at['fmt']}",
        more="This error is of its scores or of its exponential, not of a carried sum.",
    )  # fmt: skip


def _problem(f, at):
    if "shape" in at:
        return Sentence(f"At the shape {at['shape']} in {at['fmt']} it {at['problem']}")
    words = f"n {at['distribution']} inputs in {at['fmt']} at N = {at['n']}{_few(at)} it {at['problem']}"
    return Sentence(f"Not judged: o{words}" if f.severity == Severity.REPORTED else f"O{words}")


def _coverage(f, at):
    return Sentence(
        f"How much was judged: {at['settings']} of {at['settings_of']} settings of format, inputs, N and queries, and "
        f"{at['shapes']} of {at['shapes_of']} calls over shapes and masks"
    )


def _on_gpu(f, at):
    name, wobbles, _ = at["gpu"].partition("~")
    more = "Approximate instructions were off by any amount within their documented bounds. " if wobbles else ""
    return Sentence(
        f"It ran on a CPU, instruction by instruction, in the arithmetic of {'an' if name[0] in 'AHL' else 'a'} {name}",
        more=f"{more}How exact that is: docs/gpu/machine.md.",
    )  # fmt: skip


def _shapes(f, at):
    if not at["failed"] and at["of"] == 1:
        return Sentence(f"The {f.what.removesuffix('s')} is within the rule", *times(f))
    if not at["failed"]:
        return Sentence(f"Over shapes and masks all {at['of']} {f.what} are within the rule", *times(f))
    place = f"the worst: {NAMES.get(at['tensor'], 'O')}, {at['shape']}, {at['fmt']}"
    return Sentence(f"Over shapes and masks {at['failed']} of {at['of']} {f.what} break the rule ({place})", *times(f))


def _wrong_gradient(f, at):
    place = f"{at['shape']}, head_dim {at['head_dim']}, {at['fmt']}"
    return Sentence(f"{NAMES[at['tensor']]} is not attention's gradient ({place})", off_by(f.number), f"{f.limit:.0%}")


def off_by(relative: float | None) -> str:
    """A distance over a root mean square: "25% off", "off by 4.4e8 times its size"."""
    if relative is None:
        return "not finite"
    return f"{relative:.0%} off" if relative < 10 else f"off by {as_times(relative)} times its size"


def _worst_input(f, at):
    return Sentence(f"Of the inputs that make trouble, {at['distribution']} in {at['fmt']} is the worst", *times(f))


def _outwards(f, at):
    sign, side = (1, "away from") if f.number > 0 else (-1, "towards")
    low, high = sorted((sign * at["low"], sign * at["high"]))
    alike = abs(f.number - at["baseline"]) < f.limit
    whose = "Baseline's do too" if alike else "Baseline's there"
    return Sentence(
        f"Its errors are biased and point {side} zero, on {at['distribution']} in {at['fmt']}",
        f"{abs(f.number):.2f} ulp in the mean",
        more=f"{low:.2f} to {high:.2f}. {whose}, by {round(sign * at['baseline'], 2) + 0.0:.2f}.",
    )  # fmt: skip


def _repeats(f, at):
    if f.number == 1:
        return Sentence(f"Its {at['of']} have the same bits in all of {at['runs']} runs")
    return Sentence(f"Its {at['of']} differ in {at['runs']} runs of one call", f"{f.number:.0f} different {at['of']}")


def _rounding_mode(f, at):
    change = "round to nearest even" if f.severity == Severity.FAILS else ""
    return Sentence(
        f"Its casts of {CASTS[at['what']]} to {' and '.join(at['into'])} {MODES[at['mode']]}", change=change
    )


WORDINGS = {
    "not_run": each(_not_run), "not_attention": each(_not_attention), "only_fp64": each(_only_fp64), "carry": _carry,
    "growth": each(_growth), "answer": each(_answer), "error": each(_error), "rounded_splits": each(_rounded_splits),
    "chance": each(_chance), "coverage": each(_coverage), "sum_error": each(_sum_error), "problem": each(_problem),
    "outputs": each(_shapes), "gradients": each(_shapes),
    "wrong_gradient": each(_wrong_gradient), "worst_input": each(_worst_input), "outwards": each(_outwards),
    "repeats": each(_repeats), "rounding_mode": each(_rounding_mode), "on_gpu": each(_on_gpu),
}  # fmt: skip
