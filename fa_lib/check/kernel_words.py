"""What is found of a kernel, in words."""

from collections.abc import Callable, Iterable, Iterator

from fa_lib.check.findings import Finding, Severity
from fa_lib.check.relations import RELATIONS
from fa_lib.check.subject import BROKEN, ROUNDING

NAMES = {"dq": "dQ", "dk": "dK", "dv": "dV"}
SUMS = {"accumulator": "accumulator O", "row_sum": "row sum l"}
NOTES = {  # of `contract`
    "causal_only": "masks causally, and only so",
    "top_left": "is aligned top-left, as torch's is_causal",
    "unmasked": "takes causal=True and does not mask",
    "other": "answers with something else than attention's output",
    "bshd": "reads (batch, sequence, heads, head_dim), by the look of its answer: say --layout bshd",
    "output_bshd": "returns O as (batch, sequence, heads, head_dim), where (batch, heads, sequence, head_dim) is due",
    "output_reshaped": "returns O in the order (batch, sequence, heads, head_dim), reshaped and not transposed",
    "heads_reversed": "gives the heads in the reverse order, by the look of its answer",
    "heads_interleaved": "gives query head h the key head h modulo their number, where neighbours share one",
    "causal": "masks causally without being asked, by the look of its answer",
    "scale_ignored": "takes a scale and uses 1 / sqrt(head_dim)",
    "scale_1": "has the scale 1, by the look of its answer",
    "scale_1_over_d": "has the scale 1 / head_dim, by the look of its answer",
    "scale_sqrt_d": "has the scale sqrt(head_dim), by the look of its answer",
    "scale_log2_e": "multiplies the scores by log2(e) once too often, by the look of its answer",
    "scale_ln_2": "takes 2 to the power of the scores, without log2(e), by the look of its answer",
    "mask_ignored": "takes a mask and does not mask",
    "softcap_ignored": "takes a softcap and does not cap",
    "sinks_ignored": "takes sinks and leaves them out",
    "factor": "returns a multiple of attention's output, by the look of its answer",
    "over_queries": "takes the softmax over queries, where one over keys is due, by the look of its answer",
}

CASTS = {"output": "the output", "probs": "P", "inputs": "V, which is FP32,"}
UNSEEN = {  # findings that hide a carry
    "scale": "its outputs are off by a factor, which has to go first",
    "noise": "its outputs differ from call to call, which has to end first",
}
MODES = {  # of `rounding_mode`
    "nearest_even": "round to nearest, ties to even",
    "nearest_away": "round to nearest, ties away from zero",
    "nearest": "round to nearest (its ties could not be seen)",
    "truncates": "drop bits: its errors point towards zero, and add up from layer to layer",
}


def noted(outcome: str, note: str, problem: str) -> str:
    """What a kernel did with a call, in words; "" where it answered as it should."""
    return NOTES.get(note, "" if outcome in ("yes", "wrong") else problem)


def sentence(wording: Callable[[Finding, dict], str]) -> Callable[[Iterable[Finding]], Iterator]:
    """The sentence of one finding, said of each finding of a kind."""

    def say(findings) -> Iterator[tuple[Severity, str]]:
        for f in findings:
            yield f.severity, wording(f, f.where)

    return say


def queries_in_words(queries: int | None) -> str:
    """Of a number of queries at a time; None: as many as keys."""
    return "as many queries as keys" if queries is None else f"{queries} quer{'y' if queries == 1 else 'ies'}"


def _few(at):
    """What is said of the number of queries where they are fewer than keys."""
    return "" if at.get("queries") is None else f", {queries_in_words(at['queries'])}"


def times(finding: Finding) -> str:
    """Of an error over Baseline's: "is 2.4 times Baseline's"."""
    if finding.number is None:
        return "is not finite"
    digits = 1
    while finding.limit and round(finding.number, digits) == finding.limit != finding.number and digits < 6:
        digits += 1  # no "2.0, where 2 is allowed" of what fails
    return f"is {finding.number:.{digits}f} times Baseline's"


def allowed(finding: Finding) -> str:
    """What the rule allows, where it allows anything."""
    return "" if finding.limit is None else f"; the rule allows {finding.limit:g}"


def _not_run(f, at):
    return f"It could not be run: asked for {at['asked']} it {noted(at['outcome'], at['note'], at['problem'])}."


def _not_attention(f, at):
    told = f"asked for {at['asked']} it {noted(at['outcome'], at['note'], at['problem'])}."
    return f"It is no attention kernel: {told}" if at["note"] in ("", "other") else f"It was not judged further: {told}"


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
        tiles = {f.where["tile"]: f.where["fmt"] for f in low if f.where["tile"]}
        if len(tiles) == 1:
            said += f" All is lost in tiles of up to {min(tiles)} keys: this is its tile."
        elif tiles:
            each = [f"{tile} keys, if it carries {fmt}" for tile, fmt in sorted(tiles.items())]
            said += f" All is lost in tiles of up to {' or '.join(each)}: this is its tile."
        if len(most.where["queries"]) < most.where["queries_of"]:
            said += f" It does so when asked for {listed(map(queries_in_words, most.where['queries']))} at a time."
        yield Severity.FAILS, said
    elif unseen:
        where = unseen[0].where
        why = f"it {where['problem']}" if where["problem"] else "it was not asked for"
        if where.get("because"):
            why = UNSEEN[where["because"]]
        elif where.get("blind"):
            why = (
                "small terms alone, without a large one, are not returned right either, so that their loss says nothing"
            )
        yield Severity.NOTES, f"Whether it carries low precision from tile to tile could not be seen: {why}."
    else:
        most = max(findings, key=lambda f: f.number)
        said = (
            "It carries low precision from tile to tile: no. How we know: of sums of up to 4,096 terms it loses at "
            f"most {most.number:.1f} ulp, asked for {listed(map(queries_in_words, most.where['queries']))} at a time; "
            "a kernel that carries BF16 or FP16, in tiles of up to 512 keys, loses 3 to hundreds."
        )
        yield Severity.PASSES, said


def listed(texts: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _growth(f, at):
    to = "something not finite" if f.number is None else f"{f.number:.1f}"
    return (
        f"On {at['distribution']} inputs its largest error over Baseline's goes from {at['from_number']:.1f} at "
        f"N = {at['from_n']} to {to} at N = {at['n']} ({at['fmt']}, {queries_in_words(at['queries'])})."
    )


def _answer(f, at):
    at_dim = "" if at["head_dim"] is None else f" at head_dim {at['head_dim']}"
    return f"Asked for {at['asked']}{at_dim} it {noted(at['outcome'], at['note'], at['problem'])}."


def _error(f, at):
    place = f"{at['distribution']} inputs, {at['fmt']}, N = {at['n']}{_few(at)}"
    return f"Its largest error {times(f)} ({place}){allowed(f)}."


def _rounded_splits(f, at):
    parts = "the keys as one part" if at["splits"] == 1 else f"{at['splits']} parts of the keys"
    return (
        f"It rounds partial results: an emulation that computes {parts} exactly and rounds each part's output, not yet "
        f"divided by its row sum, to {at['fmt']}{'; merges them in it, too,' if at['low_merge'] else ''} has the same "
        f"errors (they explain {f.number:.0%} of the kernel's, squared). What to change: write and merge partial "
        "results in FP32."
    )


def _sum_error(f, at):
    return (
        f"Its {SUMS[at['sum']]} is {f.number:.1f} ulp of {at['fmt']} off where P is small, but it loses no whole tile: "
        "this error is of its scores or of its exponential, not of a carried sum."
    )


def _problem(f, at):
    words = f"n {at['distribution']} inputs in {at['fmt']} at N = {at['n']}{_few(at)} it {at['problem']}."
    return f"Not judged: o{words}" if f.severity == Severity.NOTES else f"O{words}"


def _top_left(f, at):
    return (
        "Where queries are fewer than keys, its causal mask is aligned top-left, as torch's is_causal: the rule over "
        "shapes leaves these calls out."
    )


def _causal_only(f, at):
    return "It has a causal mask and no other way: all of it was judged causally."


def _coverage(f, at):
    return (
        f"How much was judged: {at['settings']} of {at['settings_of']} settings of format, inputs, N and queries, and "
        f"{at['shapes']} of {at['shapes_of']} calls over shapes and masks."
    )


def _shapes(f, at):
    if not at["failed"]:
        return f"Over shapes and masks all {at['of']} {f.what} are within the rule."
    return (
        f"Over shapes and masks {at['failed']} of {at['of']} {f.what} break the rule: the worst error {times(f)} "
        f"({at['tensor']}, {at['shape']}, {at['fmt']}){allowed(f)}."
    )


def _wrong_gradient(f, at):
    return (
        f"{NAMES[at['tensor']]} is not attention's gradient: it is {f.number:.0%} off ({at['shape']}, head_dim "
        f"{at['head_dim']}, {at['fmt']}); accepted is up to {f.limit:.0%}."
    )


def _worst_input(f, at):
    return (
        f"Of the inputs that make trouble, {at['distribution']} in {at['fmt']} is the worst: its largest error there "
        f"{times(f)}."
    )


def _outwards(f, at):
    sign, side = (1, "away from") if f.number > 0 else (-1, "towards")
    low, high = sorted((sign * at["low"], sign * at["high"]))
    same = abs(f.number - at["baseline"]) < f.limit
    whose = "Baseline's do too" if same else "Baseline's there"
    return (
        f"Its errors are biased: on {at['distribution']} in {at['fmt']} they point {side} zero, by {abs(f.number):.2f} "
        f"ulp in the mean ({low:.2f} to {high:.2f}). {whose}, by {round(sign * at['baseline'], 2) + 0.0:.2f}."
    )


def _repeats(f, at):
    if f.number == 1:
        return f"Its {at['of']} have the same bits in all of {at['runs']} runs."
    return f"Its {at['of']} are {f.number:.0f} different ones in {at['runs']} runs."


def _relation(f, at):
    says = RELATIONS[at["relation"]].says.removesuffix(".")
    also = "" if len(at["cases"]) == 1 else f", and {len(at['cases']) - 1} more"
    place = f"{at['case']}, {at['fmt']}{also}"
    if at["outcome"] == BROKEN:
        return f"{says}: asked for that, it {at['problem']} ({place})."
    if f.number is None:
        return f"{says}: not here, where it gives NaN ({place})."
    if at["outcome"] == ROUNDING:
        return f"{says}: to rounding, not bit for bit ({place}: {f.number:.2g} apart)."
    allowed = f", where {f.limit:.2g} is allowed" if f.limit else ""
    return f"{says}: not here ({place}: {f.number:.2g} apart{allowed})."


def _relations(f, at):
    asked = f"; {at['not_asked']} more were not asked, for want of the option" if at["not_asked"] else ""
    return f"Relations that every attention kernel keeps hold in {at['held']} of {at['of']} cases{asked}."


def _rounding_mode(f, at):
    said = f"Its casts of {CASTS[at['what']]} to {' and '.join(at['into'])} {MODES[at['mode']]}."
    return f"{said} What to change: round to nearest even." if f.severity == Severity.FAILS else said


def _unsupported(f, at):
    return f"Not supported, so not judged: {', '.join(at['asked'])}."


SAY = {
    "not_run": sentence(_not_run), "not_attention": sentence(_not_attention), "only_fp64": sentence(_only_fp64),
    "carry": _carry, "growth": sentence(_growth), "answer": sentence(_answer), "error": sentence(_error),
    "rounded_splits": sentence(_rounded_splits), "causal_only": sentence(_causal_only),
    "coverage": sentence(_coverage), "sum_error": sentence(_sum_error), "problem": sentence(_problem),
    "top_left": sentence(_top_left), "outputs": sentence(_shapes), "gradients": sentence(_shapes),
    "wrong_gradient": sentence(_wrong_gradient),
    "worst_input": sentence(_worst_input), "outwards": sentence(_outwards), "repeats": sentence(_repeats),
    "rounding_mode": sentence(_rounding_mode), "relation": sentence(_relation), "relations": sentence(_relations),
    "unsupported": sentence(_unsupported),
}  # fmt: skip
