"""Every finding in words: a sentence for each, by its key. Nothing reads the words back."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attention_check.checks.relations import RELATIONS
from attention_check.checks.relations.subject import BROKEN, CONVENTION, ROUNDING
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import RACES
from attention_check.measure.contract import BY_DEFAULT, OTHER_LAYOUT
from attention_check.measure.plan import FEW
from attention_check.probe.skipped import first_nonfinite, place, reason_sentence
from attention_check.report.labels import (
    CASTS,
    NAMES,
    SUMS,
    WAYS,
    has_this_error,
    label,
    labels,
    listed,
    named,
    noted,
    plural,
    queries_in_words,
    subject,
)
from fa_lib.execution.untrusted import Untrusted
from fa_lib.numerics.formats import Format

ONE_TILE = 0.1  # of what a sum kept from tile to tile loses: 64 of 1,024 terms, which a tile holds, are less
UNSEEN = {  # findings that hide a carry
    "scale": "its outputs are off by a factor, which has to go first",
    "noise": "its outputs differ from call to call, which has to end first",
    "coarse": "its outputs are numbers of a coarser format",
}
DROPS = "drop bits: its errors point towards zero, and add up from layer to layer"
GRAVEST_FIRST = (Severity.FAILS, Severity.REPORTED, Severity.PASSES)


@dataclass(frozen=True)
class Sentence:
    """What is said of a finding. Its texts may hold a stranger's, and are `Untrusted`.

    Attributes:
        text: a sentence without its full stop.
        number: what was measured, with its unit; limit: up to which that passes. "" where there is none.
        more: whole sentences: how it is known. change: what to change, "hold O in FP32".
        severity: what it means for the judgement. what: the finding's.
    """

    text: str
    number: str = ""
    limit: str = ""
    more: str = ""
    change: str = ""
    severity: Severity = Severity.REPORTED
    what: str = ""

    def __post_init__(self):
        for name in ("text", "number", "limit", "more", "change"):
            object.__setattr__(self, name, Untrusted(getattr(self, name)))

    @property
    def remedy(self) -> str:
        """What to change, as a sentence; "" where nothing is known."""
        return f"What to change: {self.change}." if self.change else ""

    @property
    def line(self) -> str:
        """Sentence, number and limit as one sentence."""
        limit = f", limit {self.limit}" if self.limit else ""
        return f"{self.text}{': ' if self.number else ''}{self.number}{limit}."


def gravity(finding: Finding) -> tuple[int, float]:
    """What sorts findings, the gravest first: what counts against it, then by how far it is beyond its limit."""
    over = 0.0
    if finding.limit is not None:
        over = math.inf if finding.number is None else finding.number / (finding.limit or 1)
    return GRAVEST_FIRST.index(finding.severity), -over


def worded(findings: Iterable[Finding]) -> list[Sentence]:
    """What is said of the findings of one kind, the gravest first: a sentence for each, or fewer where several are of
    one cause."""
    found = sorted(findings, key=gravity)
    what = found[0].what
    if what in TOGETHER:
        return [replace(one, what=what) for one in TOGETHER[what](found)]
    return [replace(WORDINGS[what](f, f.where), severity=f.severity, what=what) for f in found]


def times(finding: Finding) -> tuple[str, str]:
    """Number and limit of an error over Baseline's: "2.4 × Baseline's", "2 ×"; "" where nothing is limited."""
    limit = "" if finding.limit is None else f"{finding.limit:g} ×"
    if finding.number is None:
        return "not finite", limit
    return f"{as_times(finding.number, finding.limit)} × Baseline's", limit


def as_times(number: float, limit: float | None = None) -> str:
    """How many times something is something else, with as many digits as show that it is not 0, and on which side of a
    limit it is: "2.4", "0.03", "2.001"; from 100 on in three digits, from 10,000 on in two and a power of ten: "461",
    "1,230", "4.4e8"."""
    if number >= 9995:
        return f"{number:.1e}".replace("e+0", "e").replace("e+", "e")
    if number >= 99.95:
        return f"{float(f'{number:.3g}'):,.0f}"
    digits = 1
    while number > 0 and not round(number, digits) and digits < 4:
        digits += 1
    while limit and round(number, digits) == limit != number and digits < 6:
        digits += 1
    if number > 0 and not round(number, digits):
        return f"less than {10.0**-digits:g}"
    return f"{number:.{digits}f}"


def _fails(f: Finding, words: str, otherwise: str = "") -> str:
    return words if f.severity == Severity.FAILS else otherwise


def _setting(at: Mapping[str, Any]) -> str:
    if "shape" in at:
        return f"shape {at['shape']}, head_dim {at['head_dim']}, {at['fmt']}"
    few = "" if at["queries"] is None else f", {queries_in_words(at['queries'])}"
    return f"{at['distribution']} inputs, {at['fmt']}, N = {at['n']}{few}"


def _answered(at: Mapping[str, Any]) -> str:
    """ "Asked for head_dim 40 it raises ..." """
    asked = "Watched for" if at["asked"] == RACES else "Asked for"
    where = f" at head_dim {at['head_dim']}" if at.get("head_dim") else ""
    return f"{asked} {label(at['asked'], at['dim'])}{where} it {noted(at['outcome'], at['note'], at['problem'])}"


def lower(text: str) -> str:
    """A sentence as one goes on: its first letter small."""
    return f"{text[:1].lower()}{text[1:]}"


def _calls(at: Mapping[str, Any]) -> str:
    if at["on_import"] and at["times"] == 1:
        return "when it was imported"
    return f"in {at['times']} call{plural(at['times'], '')} (the first: {at['at']})"


def _of_calls(at: Mapping[str, Any]) -> str:
    return f"in {at['calls']} of {at['of']} calls (the first: {place(at)})"


def _heads(at: Mapping[str, Any]) -> str:
    return f"head{plural(len(at['heads']), '')} {', '.join(map(str, at['heads']))}"


def _on_inputs(at: Mapping[str, Any]) -> str:
    return f" on {at['distribution']} inputs in {at['judged']}" if "judged" in at else ""


def _off_by(relative: float | None) -> str:
    """Write a distance over a root mean square: "25% off", "off by 4.4e8 times its size"."""
    if relative is None:
        return "not finite"
    return f"{relative:.0%} off" if relative < 10 else f"off by {as_times(relative)} times its size"


def _bound(f, at):
    far = f"{as_times(f.number, f.limit)} × its bound"
    if f.severity == Severity.PASSES:
        nearest = f"; it is nearest{_on_inputs(at)}" if _on_inputs(at) else ""
        text = f"Every output of {named(at['kernel'])} is within its own bound, which is derived for these inputs"
        return Sentence(f"{text}{nearest}", far, "1")
    rows = f"{at['rows']:,} of {at['of']:,} rows{', furthest' if 'judged' in at else ''}{_on_inputs(at)}"
    text = f"Outputs of {named(at['kernel'])} are beyond their own bound in {rows}; {has_this_error(at)}"
    more = "The bound is that of a kernel which rounds P and the output to the inputs' format, and all else to FP32."
    return Sentence(text, far, "1", more)


def _carry(findings: list[Finding]) -> Iterator[Sentence]:
    """One sentence for all sums, formats and numbers of queries."""
    low = [f for f in findings if f.severity == Severity.FAILS]
    unseen = next((f.where for f in findings if f.severity == Severity.REPORTED), None)
    if low:
        yield _carried(low)
    elif unseen is not None:
        why = f"it {unseen['problem']}" if unseen["problem"] else "this was not run"
        if unseen.get("blind"):
            why = "it does not return small terms right without a large one, either"
        why = UNSEEN.get(unseen.get("because", ""), why)
        yield Sentence(f"Whether it keeps sums in low precision from tile to tile was not seen: {why}")
    else:
        most = max(findings, key=lambda f: f.number or 0.0)
        queries = listed(map(queries_in_words, most.where["queries"]))
        more = f"Sums of up to 4,096 terms, for {queries} at a time. A kernel that keeps sums in BF16 or FP16, in "
        more += "tiles of up to 512 keys, loses 3 ulp to hundreds."
        text, lost = "It keeps no sum in low precision from tile to tile", f"{most.number:.1f} ulp lost"
        yield Sentence(text, lost, f"{most.limit:g} ulp", more, severity=Severity.PASSES)


def _carried(low: list[Finding]) -> Sentence:
    """Of findings of sums that are carried in low precision."""
    most = max(low, key=lambda f: math.inf if f.number is None else f.number)
    sums = " and ".join(name for key, name in SUMS.items() if key in {f.where["sum"] for f in low})
    formats = listed(sorted({f.where["fmt"] for f in low}))
    more = [f"Of a sum of {most.where['terms']:,} terms, in {formats}; one with sums in FP32 loses half an ulp."]
    tiles = {f.where["tile"]: f.where["fmt"] for f in low if f.where["tile"]}
    if tiles:
        sizes = " or ".join(f"{tile} keys, if it keeps {fmt}" for tile, fmt in sorted(tiles.items()))
        sizes = f"{min(tiles)} keys" if len(tiles) == 1 else sizes
        more.append(f"All is lost in tiles of up to {sizes}: this is its tile.")
    if len(most.where["queries"]) < most.where["queries_of"]:
        more.append(f"It does so for {listed(map(queries_in_words, most.where['queries']))} at a time.")
    text = f"It keeps its {sums} in low precision from tile to tile"
    change = "hold the accumulator O and the row sum l in FP32 (docs/law/theory.md says how many bits are enough)"
    if all(f.number is not None and f.number < ONE_TILE * f.where.get("all", 0) for f in low):
        text = f"A part of a tile is summed in low precision, into its {sums}"
        more[0] += f" A sum kept in {formats} from tile to tile would lose {most.where['all']:,.0f}."
        change = "add up the matrix product P V of a tile in FP32"
    lost = "infinitely many" if most.number is None else f"{most.number:,.0f}"
    limit = f"{most.limit:g} ulp"
    return Sentence(text, f"{lost} ulp lost", limit, " ".join(more), change, severity=Severity.FAILS)


def _coarse(f, at):
    fmt = Format.of(at["fmt"])
    text, bits = f"For inputs in {fmt} its outputs are numbers of a coarser format", f"{f.number:.0f} significant bits"
    change = "look for a conversion of the inputs or of a result, or a processor without the format"
    return Sentence(text, bits, f"{f.limit:.0f} at least", f"{fmt} holds {fmt.precision} bits.", change)


def _layers(findings: list[Finding]) -> Iterator[Sentence]:
    """One sentence for what ran, one for each other kernel."""
    for kernel in sorted(dict.fromkeys(f.where["kernel"] for f in findings), key="ran".__ne__):
        own = [f for f in findings if f.where["kernel"] == kernel]
        yield _layer_errors(kernel, own)


def _layer_errors(kernel, own):
    seen = [f for f in own if f.number is not None]
    worst = next((f for f in own if f.severity == Severity.FAILS and f.number is None), None)
    if worst is None and not seen:
        return Sentence(f"{named(kernel)} could not be held against Baseline")
    worst = worst or max(seen, key=lambda f: f.number)
    where = " ".join(filter(None, (worst.where["model"], worst.where["layer"]))) or "outside of a module"
    if kernel != "ran":
        return Sentence(f"On the same inputs {named(kernel)} has its largest error at {where}", *times(worst))
    failed = sum(f.severity == Severity.FAILS for f in own)
    words = f"In all of {len(own)} layers attention is within the rule"
    if failed:
        words = f"In {failed} of {len(own)} layers attention breaks the rule"
    elif worst.severity == Severity.REPORTED:
        words = "There are too few rows for the rule, so that attention is judged by its bound"
    return Sentence(f"{words}; the worst is {where}", *times(worst), severity=worst.severity)


def _nonfinite(f, at):
    words = first_nonfinite(at)
    made = "attention made it of finite inputs" if at["tensor"] == "o" else "it came so to attention"
    return Sentence(f"{words[0].upper()}{words[1:]}: {made}")


def _not_attention(f, at):
    recognised = at["note"] not in ("", "other")
    says = "It was not judged further" if recognised else "It is no attention kernel"
    return Sentence(f"{says}: {lower(_answered(at))}")


def _on_gpu(f, at):
    name, wobbles, _ = at["gpu"].partition("~")
    more = "Approximate instructions were off by any amount within their documented bounds. " if wobbles else ""
    gpu = f"{'an' if name[0] in 'AHL' else 'a'} {name}"
    text = f"It ran on a CPU, instruction by instruction, in the arithmetic of {gpu}"
    return Sentence(text, more=f"{more}How exact that is: docs/gpu/machine.md.")


def _outwards(f, at):
    sign, side = (1, "away from") if f.number > 0 else (-1, "towards")
    low, high = sorted((sign * at["low"], sign * at["high"]))
    whose = "Baseline's do too" if abs(f.number - at["baseline"]) < f.limit else "Baseline's there"
    text = f"Its errors are biased and point {side} zero, on {at['distribution']} in {at['fmt']}"
    more = f"{low:.2f} to {high:.2f}. {whose}, by {round(sign * at['baseline'], 2) + 0.0:.2f}."
    return Sentence(text, f"{abs(f.number):.2f} ulp in the mean", more=more)


def _overflows(f, at):
    text = f"Baseline itself overflows: its output is NaN or infinite in {_heads(at)}"
    more = "There the rule has no error to hold a kernel to."
    if f.number is None:
        return Sentence(text, more=more)
    far = f"{f.number:.2g} of the golden value's root mean square"
    limit = "" if f.limit is None else f"{f.limit:g}: from there on it is another answer than attention's"
    return Sentence(f"{text}; the error of {named(at['kernel'])} there", far, limit, more)


def _problem(f, at):
    if "shape" in at:
        return Sentence(f"At the shape {at['shape']} in {at['fmt']} it {at['problem']}")
    judged = _fails(f, "On", "Not judged: on")
    return Sentence(f"{judged} {_setting(at)} it {at['problem']}")


def _relation(f, at):
    relation = RELATIONS[at["relation"]]
    also = "" if len(at["cases"]) == 1 else f", and {len(at['cases']) - 1} more"
    says, where = relation.says.removesuffix("."), f"({at['case']}, {at['fmt']}{also})"
    if at["outcome"] == BROKEN:
        return Sentence(f"{says}: here it {at['problem']} {where}")
    if at["outcome"] == CONVENTION:
        return Sentence(f"{says}: here it is {at['problem']}, which is a convention {where}")
    if f.number is None:
        return Sentence(f'It gives NaN, and breaks "{says}" {where}')
    if at["outcome"] == ROUNDING:
        return Sentence(f"{says}: to rounding, not bit for bit {where}", f"{f.number:.2g} apart")
    return Sentence(f'It breaks "{says}" {where}', *_either_side(f.number, f.limit))


def _either_side(number, limit):
    """A number beyond its limit, and the limit, in as many digits as tell them apart; no limit where it has none."""
    if limit is None:
        return f"{number:.2g} apart", ""
    digits = next((n for n in range(2, 17) if f"{number:.{n}g}" != f"{limit:.{n}g}"), 17)
    return f"{number:.{digits}g} apart", f"{limit:.{digits}g}"


def _relations(f, at):
    more = f"{at['not_asked']} more were not run: the kernel lacks the option." if at["not_asked"] else ""
    held = f"Relations that every attention kernel should keep hold in {at['held']} of {at['of']} cases"
    return Sentence(held, more=more)


def _repeats(f, at):
    if f.number == 1:
        return Sentence(f"Its {at['of']} have the same bits in all of {at['runs']} runs")
    return Sentence(f"Its {at['of']} differ in {at['runs']} runs of one call", f"{f.number:.0f} different {at['of']}")


def _shapes(f, at):
    if not at["failed"]:
        all_of = "" if at["of"] == 1 else f"all {at['of']} "
        return Sentence(f"Over shapes and masks {all_of}{f.what} are within the rule", *times(f))
    where = f"the worst: {NAMES.get(at['tensor'], 'O')}, {at['shape']}, {at['fmt']}"
    return Sentence(f"Over shapes and masks {at['failed']} of {at['of']} {f.what} break the rule ({where})", *times(f))


def _skipped(f, at):
    of = "Calls not compared" if at["kernel"] == "all" else f"Calls that {named(at['kernel'])} was not compared at"
    return Sentence(f"{of}: {f.number:.0f} ({reason_sentence(at['why'])})")


def _takes(f, at):
    if at["key"] == OTHER_LAYOUT:
        more = "Called with (batch, heads, sequence, head_dim), it gave attention over heads. --layout bshd says so."
        return Sentence("It reads (batch, sequence, heads, head_dim), and was judged so", more=more)
    if at["key"] == "one_query":
        more = "Under a causal mask each got the keys up to its own. "
        more += f"Up to {FEW} queries and no gradients were asked for."
        return Sentence("It takes one query a call: it was called for one after the other", more=more)
    width = at["key"].removeprefix("v_")
    return Sentence(f"It takes {width} values of V, fewer than features of Q: it was called for so many at a time")


def _way(f, at):
    if f.severity == Severity.PASSES:
        ways = dict.fromkeys(WAYS[row["way"]].format(entry=row["entry"]) for row in at["ways"])
        return Sentence(f"It answers alike: {'; '.join(ways)}", *_as_far(f))
    way, where = WAYS[at["way"]].format(entry=at["entry"]), at["layer"] or "outside of a module"
    if at["why"]:
        return Sentence(f"Not compared: {way}", more=f"{at['why']}.")
    number, limit = _as_far(f)
    random = "Something in it is random, such as dropout." if at["way"] == "again" else ""
    first = "its output" if at["tensor"] == "output" else f"{at['tensor']} at {where}"
    text = f"The model differs, first in {first}"
    if at["tensor"] == "o":
        text = f"Attention, first at {where}, gives another o for the same q, k and v"
    return Sentence(f"{text}: {way}", number, limit, random)


def _as_far(f):
    far = as_times(math.inf if f.number is None else f.number)
    return f"{far} times as far as two right runs differ", f"{f.limit:g}"


EMULATED = {  # kernels that captured tensors are judged with, too
    "as_shipped": "an emulated flash kernel with sums in FP32",
    "every_step": "one with every step in the inputs' format",
}  # fmt: skip
IN_DECODER = "That is right in an encoder or in a model of images; in a decoder no causal mask has reached these calls."
TOGETHER: dict[str, Callable[[list[Finding]], Iterator[Sentence]]] = {"carry": _carry, "layer_error": _layers}
WORDINGS: dict[str, Callable[[Finding, dict], Sentence]] = {
    **dict.fromkeys(TOGETHER, lambda f, at: next(iter(TOGETHER[f.what]([f])))),
    # of a kernel: its answers
    "keys_of_q": lambda f, at: Sentence(
        "It is right where there are as many queries as keys; with fewer queries it sees as many keys only: it seems "
        "to take the number of keys from q", change="take the number of keys from k"),
    "mistake": lambda f, at: Sentence(
        f"It computes another attention: {subject(at)} has this very error{_on_inputs(at)}",
        f"{as_times(f.number or 0.0, f.limit)} times the bound", "1",
        f"{at['share']:.1%} of the squared error, in {at['rows']:,} of {at['of']:,} rows beyond their bound."),
    "coarse": _coarse,
    "scale": lambda f, at: Sentence(
        "Its outputs are attention's times a factor", f"{f.number:.4g}", "1",
        f"This one factor makes most of its error in all {at['settings']} settings of format, inputs and N.",
        "look for a factor left out or multiplied in twice, in the scale of V or in the division by the row sum"),
    "noise": lambda f, at: Sentence(
        "It gives other results on each call",
        "not finite in some" if f.number is None else f"{as_times(f.number)} ulp apart", f"{f.limit:g} ulp",
        f"In {at['runs']} calls on the same tensors; another order of FP32 sums makes 1 ulp.",
        "look for memory that is read before it is written, a race, or random numbers"),
    "answer": lambda f, at: Sentence(_answered(at)),
    "rounding_mode": lambda f, at: Sentence(
        f"Its casts of {CASTS[at['what']]} to {' and '.join(at['into'])} "
        f"{_fails(f, DROPS, 'round to nearest')}", change=_fails(f, "round to nearest even")),
    "bound": _bound,
    "relation": _relation,
    "relations": _relations,
    # a kernel that could not be judged, or not as it was called
    "not_run": lambda f, at: Sentence(f"It could not be run: {lower(_answered(at))}"),
    "not_attention": _not_attention,
    "takes": _takes,
    "causal_only": lambda f, at: Sentence("It has a causal mask and no other way: all of it was judged causally"),
    BY_DEFAULT: lambda f, at: Sentence(
        "Where `causal` is not given it masks causally: it was judged with causal=False and causal=True"),
    "top_left": lambda f, at: Sentence(
        "Where queries are fewer than keys, its causal mask is aligned top-left, as torch's is_causal",
        more="The rule over shapes leaves these calls out."),
    "alignment": lambda f, at: Sentence(
        "Where queries are fewer than keys its causal mask has two alignments: "
        f"{'top-left' if at['several'] == 'top_left' else 'bottom-right'} for several queries, "
        f"{'top-left' if at['one'] == 'top_left' else 'bottom-right'} for one",
        more="A chunk of a prompt and a single token then see other keys.", change="choose one alignment"),
    "raises": lambda f, at: Sentence(
        f"It raises an error that is no refusal, so not judged: {labels(at)}; the first {at['problem'].rstrip('.:')}",
        change="mend it, or raise NotImplementedError or ValueError where the kernel lacks an option"),
    "outside": lambda f, at: Sentence(
        "It does not refuse a shape that it is not made for, and reads outside of K or V, so not judged: "
        f"{labels(at)}; the first {at['problem'].rstrip('.:')}",
        more="A GPU gives wrong numbers then, or an illegal memory access.",
        change="raise ValueError for the shapes that the kernel does not take"),
    "less_than_format": lambda f, at: Sentence(
        f"Of inputs in {at['fmt']} its error is not that of {at['fmt']}",
        f"{as_times(f.number or 0.0, f.limit)} × that of plain sums", f"{f.limit:g} ×",
        "A step in a shorter format does this, as TF32 does in products, or an exponential that is made for one. "
        "All other errors are judged in other formats."),
    "arithmetic": lambda f, at: Sentence(
        f"Baseline rounds Q, K, V and P to {at['arithmetic']}; gradients and bounds were not judged"),
    "unsupported": lambda f, at: Sentence(f"Not supported, so not judged: {labels(at)}"),
    "coverage": lambda f, at: Sentence(
        f"How much was judged: {at['settings']} of {at['settings_of']} settings of format, inputs, N and queries, and "
        f"{at['shapes']} of {at['shapes_of']} calls over shapes and masks"),
    "on_gpu": _on_gpu,
    # errors
    "growth": lambda f, at: Sentence(
        f"Its largest error is {as_times(at['from_number'])} × Baseline's at N = {at['from_n']:,}, and at N = "
        f"{at['n']:,} ({at['distribution']} inputs, {at['fmt']}, {queries_in_words(at['queries'])})", times(f)[0]),
    "error": lambda f, at: Sentence(
        f"Its largest error {_fails(f, 'breaks', 'is within')} the rule ({_setting(at)})", *times(f)),
    "chance": lambda f, at: Sentence(
        f"In one of {at['draws']} draws its largest error is beyond the rule ({_setting(at)})", *times(f),
        f"In no other draw of this call is it more than {as_times(at['second'])} × Baseline's; that number counts."),
    "problem": _problem,
    "outputs": _shapes,
    "gradients": _shapes,
    "wrong_gradient": lambda f, at: Sentence(
        f"{NAMES[at['tensor']]} is not attention's gradient ({at['shape']}, head_dim {at['head_dim']}, {at['fmt']})",
        _off_by(f.number), f"{f.limit:.0%}"),
    "worst_input": lambda f, at: Sentence(
        f"Of the inputs that make trouble, {at['distribution']} in {at['fmt']} is the worst", *times(f)),
    "outwards": _outwards,
    "repeats": _repeats,
    # how it behaves in its process
    "hangs": lambda f, at: Sentence(f"It hangs: no answer within {f.number:g} s, {_calls(at)}"),
    "crashes": lambda f, at: Sentence(
        f"It crashes: {', '.join(filter(None, at['details'])) or 'its process no longer answered'}, {_calls(at)}"),
    "exits": lambda f, at: Sentence(
        f"It ends its process: with {listed(each or f'exit code {f.number:.0f}' for each in at['details'])}, "
        f"{_calls(at)}", change="raise an error that says what is wrong"),
    "unasked": lambda f, at: Sentence(
        f"Its process ended {f.number:.0f} times; {at['times']} calls after that were not made"),
    "prints": lambda f, at: Sentence(f"It prints: up to {f.number:,.0f} bytes on {listed(at['details'])}"),
    "state": lambda f, at: Sentence(
        f"It changes what other code of the program computes by: {listed(at['details'])}, {_calls(at)}",
        change="put it back before the kernel returns"),
    # captured tensors
    "refused": lambda f, at: Sentence(f"{named(at['kernel'])} {at['problem']}"),
    "beside": lambda f, at: Sentence(
        f"Not judged here, though the file has it: {at['tensors']}. `fa-lib explain` judges that"),
    "head_error": lambda f, at: Sentence(
        f"Over {at['heads']} heads the largest error of {EMULATED.get(at['kernel']) or named(at['kernel'])}"
        f"{'' if f.limit is None else _fails(f, ' breaks the rule', ' is within the rule')} (head {at['head']})",
        *times(f)),
    "biased_output": lambda f, at: Sentence(
        f"Rounding O to 16 bits is biased: {_heads(at)}",
        more="Several keys attain the maximum, and V has mostly one sign."),
    "one_signed": lambda f, at: Sentence(
        f"V has mostly one sign: {_heads(at)}", more="The errors of a 16-bit carry add up with N."),
    "underflow": lambda f, at: Sentence(
        f"Small P are lost: {_heads(at)}", more="More than a thousandth of a row's probability underflows."),
    "blind_rows": lambda f, at: Sentence(
        f"{at['rows']:,} rows see no key. What a kernel gives there is a convention, and was not judged"),
    "baseline_overflows": _overflows,
    "captured": lambda f, at: Sentence(
        f"The tensors were captured at {' of '.join(filter(None, (place(at), at.get('model'))))}"),
    "explained": lambda f, at: Sentence(
        f"`fa-lib explain` calls the {at['tensor']} of the file {at['verdict']}",
        f"{as_times(f.number, f.limit)} × the largest that is rounding"
        if f.number is not None and f.limit is not None and f.number > f.limit else ""),
    "not_explained": lambda f, at: Sentence(at["why"]),
    # a model
    "sees_later": lambda f, at: Sentence(
        f"Rows see later keys than their own {_of_calls(at)}", f"{f.number:.0%} of the rows", more=IN_DECODER,
        change=_fails(f, "pass the mask")),
    "nonfinite": _nonfinite,
    "nothing_compared": lambda f, at: Sentence(
        "No attention call was compared with Baseline, so nothing was judged"),
    "skipped": _skipped,
    **dict.fromkeys(("way_of_attention", "way_differs", "way_not_run"), _way),
    "own_hidden": lambda f, at: Sentence(
        f"Rows do not see their own key {_of_calls(at)}", f"{f.number:.0%} of the rows",
        more="A boolean mask of the other polarity does this."),
    "idle_mask": lambda f, at: Sentence(
        f"A mask is given and does nothing {_of_calls(at)}",
        more="It hides no key and adds nothing: right where no place is padded, and wrong otherwise."),
    "later_unknown": lambda f, at: Sentence(
        f"Whether rows see later keys was not judged in {at['calls']} of {at['of']} calls: "
        "queries and keys differ in number, and which key is a row's own is not known"),
}  # fmt: skip
