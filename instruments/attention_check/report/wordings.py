"""Every finding in words: one table, by its key. Nothing reads the words back."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attention_check.conventions.conventions import of_keys
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import FIRST, RACES
from attention_check.measure.contract import BY_DEFAULT
from attention_check.measure.plan import FEW
from attention_check.measure.relations import RELATIONS
from attention_check.measure.relations.subject import BROKEN, CONVENTION, ROUNDING
from attention_check.probe.skipped import first_nonfinite, place, reason_sentence
from attention_check.report.labels import (
    CASTS,
    KERNELS,
    MODES,
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
from fa_lib.numerics.formats import BF16, E4M3, FP16, Format

ONE_TILE = 0.1  # of what a sum kept from tile to tile loses: 64 of 1,024 terms, which a tile holds, are less
UNSEEN = {  # findings that hide a carry
    "scale": "its outputs are off by a factor, which has to go first",
    "noise": "its outputs differ from call to call, which has to end first",
    "coarse": "its outputs are numbers of a coarser format",
}
GRAVEST_FIRST = (Severity.FAILS, Severity.REPORTED, Severity.PASSES)
RULE: dict[str, Any] = dict(number="{times}", limit="{times_limit}")  # of an error over Baseline's


@dataclass(frozen=True)
class Sentence:
    """What is said of a finding. Its texts may hold a stranger's, and are `Untrusted`.

    Attributes:
        text: a sentence without its full stop.
        number: what was measured, with its unit; limit: up to which that passes. "" where there is none.
        more: whole sentences: how it is known. change: what to change, "hold O in FP32".
        severity: what it means for the judgement. what: the finding's.
        beyond: it is reported alone, and its number is beyond a limit.
    """

    text: str
    number: str = ""
    limit: str = ""
    more: str = ""
    change: str = ""
    severity: Severity = Severity.REPORTED
    what: str = ""
    beyond: bool = False

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


def beyond(finding: Finding) -> bool:
    """Whether it does not count, though it is beyond its limit or not finite."""
    over = finding.limit is not None and (finding.number is None or finding.number > finding.limit)
    return over and finding.severity == Severity.REPORTED


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


class _Values(dict):
    """The values of a Finding that templates name: its number and limit, what `where` holds, and VALUES."""

    def __init__(self, finding: Finding):
        super().__init__(finding.where, number=finding.number, limit=finding.limit)
        self.finding = finding

    def __missing__(self, name: str) -> str:
        return VALUES[name](self.finding, self.finding.where)


@dataclass(frozen=True)
class Wording:
    """What is said of each finding of a kind, the gravest first.

    Attributes:
        text, number, limit, more, change: templates of a Sentence's; they name `_Values`.
        because: a template of the cause in a headline; "" where it is none.
        sentence: what says it instead, where it takes more than templates; together: of all findings of a kind.
    """

    text: str = ""
    number: str = ""
    limit: str = ""
    more: str = ""
    change: str = ""
    because: str = ""
    sentence: Callable[[Finding, dict], Sentence] | None = None
    together: Callable[[list[Finding]], Iterator[Sentence]] | None = None

    def __call__(self, findings: Iterable[Finding]) -> Iterator[Sentence]:
        if self.together:
            yield from self.together([*findings])
            return
        for f in sorted(findings, key=gravity):
            one = self.sentence(f, f.where) if self.sentence else self._filled(f)
            yield replace(one, severity=f.severity, what=f.what, beyond=beyond(f))

    def _filled(self, finding: Finding) -> Sentence:
        values = _Values(finding)
        parts = (self.text, self.number, self.limit, self.more, self.change)
        text, number, limit, more, change = (part.format_map(values) for part in parts)
        return Sentence(text, number, limit, more, change)

    def cause(self, findings: Sequence[Finding]) -> str:
        """Fill the template `because` by the first of findings of a kind; `sums` are those of all."""
        values, sums = _Values(findings[0]), {f.where.get("sum") for f in findings}
        values["sums"] = " and ".join(name for key, name in SUMS.items() if key in sums)
        return self.because.format_map(values)


def _setting(f: Finding, at: dict) -> str:
    if "shape" in at:
        return f"shape {at['shape']}, head_dim {at['head_dim']}, {at['fmt']}"
    return f"{at['distribution']} inputs, {at['fmt']}, N = {at['n']}{_few(at)}"


def _few(at):
    """The number of queries where they are fewer than keys."""
    return "" if at.get("queries") is None else f", {queries_in_words(at['queries'])}"


def _answered(f: Finding, at: dict, where: str = "") -> str:
    """ "asked for head_dim 40 it raises ..." """
    asked = "watched for" if at["asked"] == RACES else "asked for"
    return f"{asked} {label(at['asked'], at['dim'])}{where} it {noted(at['outcome'], at['note'], at['problem'])}"


def _calls(f: Finding, at: dict) -> str:
    if at["on_import"] and at["times"] == 1:
        return "when it was imported"
    return f"in {at['times']} call{plural(at['times'], '')} (the first: {at['at']})"


def _narrower(f: Finding, at: dict) -> str:
    fmt = Format.of(at["fmt"])
    return " and ".join(f"{each} ({each.precision})" for each in (E4M3, BF16, FP16) if each.precision < fmt.precision)


def _side(alignment: str) -> str:
    return "top-left" if alignment == "top_left" else "bottom-right"


VALUES: dict[str, Callable[[Finding, dict], Any]] = {
    "the_way": lambda f, at: WAYS[at["way"]].format(entry=at["entry"]),
    "answered": _answered,
    "apart": lambda f, at: "not finite in some" if f.number is None else f"{as_times(f.number)} ulp apart",
    "bits": lambda f, at: Format.of(at["fmt"]).precision,
    "breaks": lambda f, at: "breaks" if f.severity == Severity.FAILS else "is within",
    "calls": _calls,
    "cast": lambda f, at: CASTS[at["what"]],
    "cause": lambda f, at: subject(at),
    "crash": lambda f, at: ", ".join(filter(None, at["details"])) or "its process no longer answered",
    "details_all": lambda f, at: listed(at["details"]),
    "exit": lambda f, at: f"exit code {f.number:.0f}",
    "first": lambda f, at: place(at),
    "from_times": lambda f, at: as_times(at["from_number"]),
    "head_list": lambda f, at: ", ".join(map(str, at["heads"])),
    "heads_words": lambda f, at: f"head{plural(len(at['heads']), '')} {VALUES['head_list'](f, at)}",
    "into_all": lambda f, at: " and ".join(at["into"]),
    "Kernel_name": lambda f, at: KERNELS.get(at["kernel"], "").capitalize() or named(at["kernel"]),
    "kernel_name": lambda f, at: named(at["kernel"]),
    "labels": lambda f, at: "; ".join(labels(zip(at["asked"], at["dims"]))),
    "megabytes": lambda f, at: (f.number or 0) / 1e6,
    "merges": lambda f, at: "; merges them in it, too," if at["low_merge"] else "",
    "mode_words": lambda f, at: MODES[at["mode"]],
    "narrower": _narrower,
    "of_model": lambda f, at: f" of {at['model']}" if at.get("model") else "",
    "of_times": lambda f, at: as_times(f.number or 0.0, f.limit),
    "off": lambda f, at: off_by(f.number),
    "on_inputs": lambda f, at: f" ({at['distribution']}, {at['judged']})" if "judged" in at else "",
    "one_side": lambda f, at: _side(at["one"]),
    "parts": lambda f, at: "the keys as one part" if at["splits"] == 1 else f"{at['splits']} parts of the keys",
    "queries_words": lambda f, at: queries_in_words(at["queries"]),
    "rule": lambda f, at: "" if f.severity == Severity.REPORTED else f" {VALUES['breaks'](f, at)} the rule",
    "says": lambda f, at: RELATIONS[at["relation"]].says.removesuffix("."),
    "second_times": lambda f, at: as_times(at["second"]),
    "setting": _setting,
    "several_side": lambda f, at: _side(at["several"]),
    "sum_name": lambda f, at: SUMS[at["sum"]],
    "tensor_name": lambda f, at: NAMES[at["tensor"]],
    "the_mask": lambda f, at: "" if f.severity == Severity.REPORTED else "pass the mask",
    "the_problem": lambda f, at: at["problem"].rstrip(".:"),
    "times": lambda f, at: times(f)[0],
    "times_limit": lambda f, at: times(f)[1],
    "to_nearest": lambda f, at: "round to nearest even" if f.severity == Severity.FAILS else "",
}


def off_by(relative: float | None) -> str:
    """Write a distance over a root mean square: "25% off", "off by 4.4e8 times its size"."""
    if relative is None:
        return "not finite"
    return f"{relative:.0%} off" if relative < 10 else f"off by {as_times(relative)} times its size"


def _answer(f, at):
    text = _answered(f, at, "" if at["head_dim"] is None else f" at head_dim {at['head_dim']}")
    return Sentence(f"A{text[1:]}")


def _bound(f, at):
    inputs = f" on {at['distribution']} inputs in {at['judged']}" if "judged" in at else ""
    kernel = named(at["kernel"])
    if f.severity == Severity.PASSES:
        text = f"Every output of {kernel} is within its own bound, which is derived for these inputs"
        text += f"; it is nearest{inputs}" if inputs else ""
        return Sentence(text, f"{as_times(f.number)} × its bound", "1")
    rows = f"{at['rows']:,} of {at['of']:,} rows{f', furthest{inputs}' if inputs else ''}"
    text = f"Outputs of {kernel} are beyond their own bound in {rows}; {has_this_error(at)}"
    more = "The bound is that of a kernel which rounds P and the output to the inputs' format, and all else to FP32."
    return Sentence(text, f"{as_times(f.number, f.limit)} × its bound", "1", more)


def _carry(findings):
    low = [f for f in findings if f.severity == Severity.FAILS]
    unseen = [f for f in findings if f.severity == Severity.REPORTED]
    if low:
        yield replace(_carried(low), severity=Severity.FAILS, what="carry")
    elif unseen:
        where = unseen[0].where
        why = f"it {where['problem']}" if where["problem"] else "this was not run"
        if where.get("because"):
            why = UNSEEN[where["because"]]
        elif where.get("blind"):
            why = "it does not return small terms right without a large one, either"
        yield Sentence(f"Whether it keeps sums in low precision from tile to tile was not seen: {why}", what="carry")
    else:
        most = max(findings, key=lambda f: f.number)
        queries = listed(map(queries_in_words, most.where["queries"]))
        yield Sentence(
            "It keeps no sum in low precision from tile to tile", f"{most.number:.1f} ulp lost", f"{most.limit:g} ulp",
            f"Sums of up to 4,096 terms, for {queries} at a time. A kernel that keeps sums in BF16 or FP16, in tiles "
            "of up to 512 keys, loses 3 ulp to hundreds.", severity=Severity.PASSES, what="carry",
        )  # fmt: skip


def _carried(low):
    """Of findings of sums that are carried in low precision."""
    most = max(low, key=lambda f: math.inf if f.number is None else f.number)
    sums = " and ".join(dict.fromkeys(SUMS[f.where["sum"]] for f in low))
    formats = listed(dict.fromkeys(f.where["fmt"] for f in low))
    more = [f"Of a sum of {most.where['terms']:,} terms, in {formats}; one with sums in FP32 loses half an ulp."]
    tiles = {f.where["tile"]: f.where["fmt"] for f in low if f.where["tile"]}
    if tiles:
        sizes = [f"{tile} keys, if it keeps {fmt}" for tile, fmt in sorted(tiles.items())]
        sizes = f"{min(tiles)} keys" if len(tiles) == 1 else " or ".join(sizes)
        more.append(f"All is lost in tiles of up to {sizes}: this is its tile.")
    if len(most.where["queries"]) < most.where["queries_of"]:
        more.append(f"It does so for {listed(map(queries_in_words, most.where['queries']))} at a time.")
    lost = "infinitely many" if most.number is None else f"{most.number:,.0f}"
    text = f"It keeps its {sums} in low precision from tile to tile"
    change = "hold the accumulator O and the row sum l in FP32 (docs/law/theory.md says how many bits are enough)"
    if all(f.number is not None and f.number < ONE_TILE * f.where.get("all", 0) for f in low):
        text = f"A part of a tile is summed in low precision, into its {sums}"
        more[0] += f" A sum kept in {formats} from tile to tile would lose {most.where['all']:,.0f}."
        change = "add up the matrix product P V of a tile in FP32"
    return Sentence(text, f"{lost} ulp lost", f"{most.limit:g} ulp", " ".join(more), change)


def _captured_gradients(f, at):
    if "problem" in at:
        fails = f.severity == Severity.FAILS
        return Sentence(f"Its gradients {'cannot be had' if fails else 'were not judged'}: the kernel {at['problem']}")
    if "without" in at:
        own = f"Baseline's own {', '.join(NAMES[tensor] for tensor in at['without'])}"
        return Sentence(f"{own} is not finite for the dO that was captured: there is no error to hold it to")
    name = NAMES[at["tensor"]]
    if at.get("wrong"):
        text = f"{name} is not attention's gradient for the dO that was captured"
        return Sentence(text, off_by(f.number), f"{f.limit:.0%}")
    rule = f"{'is within' if f.number <= f.limit else 'breaks'} the rule of three"
    return Sentence(f"For the dO that was captured, the largest error of its gradients {rule} ({name})", *times(f))


def _explained(f, at):
    bound = "" if f.number is None else f"{as_times(f.number, f.limit)} × the largest that is rounding"
    return Sentence(f"`fa-lib explain` calls the {at['tensor']} of the file {at['verdict']}", bound)


def _convention(f, at):
    if at["keys"] == "layout_all_bshd":
        more = "Called with (batch, heads, sequence, head_dim), it gave attention over heads. --layout bshd says so."
        return Sentence("It reads (batch, sequence, heads, head_dim), and was judged so", more=more)
    text = f"It computes {of_keys(at['keys'])}, which was not asked for"
    return Sentence(text, more="All else was judged as if that had been asked for.")


def _layers(findings):
    """One sentence for what ran, one for each other kernel."""
    for kernel in sorted(dict.fromkeys(f.where["kernel"] for f in findings), key="ran".__ne__):
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


def _nonfinite(f, at):
    words = first_nonfinite(at)
    made = "attention made it of finite inputs" if at["tensor"] == "o" else "it came so to attention"
    return Sentence(f"{words[0].upper()}{words[1:]}: {made}")


def _not_attention(f, at):
    recognised, right = at["note"] not in ("", "other"), [f"{n}" for n in at.get("right_at", ())]
    if right:
        text = f"It is no attention kernel at N = {FIRST.n_kv}, where {_answered(f, at)}"
        return Sentence(f"{text}; at N = {listed(right)} it is right")
    says = "It was not judged further" if recognised else "It is no attention kernel"
    return Sentence(f"{says}: {_answered(f, at)}")


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
    text = f"Baseline itself overflows: its output is NaN or infinite in {VALUES['heads_words'](f, at)}"
    more = "There the rule has no error to hold a kernel to."
    if f.number is None:
        return Sentence(text, more=more)
    far = f"{f.number:.2g} of the golden value's root mean square"
    limit = "" if f.limit is None else f"{f.limit:g}: from there on it is another answer than attention's"
    return Sentence(f"{text}; the error of {named(at['kernel'])} there", far, limit, more)


def _problem(f, at):
    if "shape" in at:
        return Sentence(f"At the shape {at['shape']} in {at['fmt']} it {at['problem']}")
    words = f"n {at['distribution']} inputs in {at['fmt']} at N = {at['n']}{_few(at)} it {at['problem']}"
    return Sentence(f"Not judged: o{words}" if f.severity == Severity.REPORTED else f"O{words}")


def _relation(f, at):
    says = VALUES["says"](f, at)
    also = "" if len(at["cases"]) == 1 else f", and {len(at['cases']) - 1} more"
    where = f"{at['case']}, {at['fmt']}{also}"
    if at["outcome"] == BROKEN:
        return Sentence(f"{says}: here it {at['problem']} ({where})")
    if at["outcome"] == CONVENTION:
        return Sentence(f"{says}: here it is {at['problem']}, which is a convention ({where})")
    if f.number is None:
        return Sentence(f'Broken, it gives NaN: "{says}" ({where})')
    if at["outcome"] == ROUNDING:
        return Sentence(f"{says}: to rounding, not bit for bit ({where})", f"{f.number:.2g} apart")
    because = f", {at['problem']}" if at["problem"] else ""
    unit = RELATIONS[at["relation"]].unit
    return Sentence(f'Broken{because}: "{says}" ({where})', *_either_side(f.number, f.limit, unit))


def _either_side(number, limit, unit):
    """A number beyond its limit, and the limit, in as many digits as tell them apart; no limit where it has none."""
    if limit is None:
        return f"{number:.2g} {unit}", ""
    digits = next((n for n in range(2, 17) if f"{number:.{n}g}" != f"{limit:.{n}g}"), 17)
    return f"{number:.{digits}g} {unit}", f"{limit:.{digits}g}"


def _relations(f, at):
    more = f"{at['not_asked']} more were not run: the kernel lacks the option." if at["not_asked"] else ""
    held = f"Relations that every attention kernel should keep hold in {at['held']} of {at['of']} cases"
    return Sentence(held, more=more)


def _repeats(f, at):
    if f.number == 1:
        return Sentence(f"Its {at['of']} have the same bits in all of {at['runs']} runs")
    return Sentence(f"Its {at['of']} differ in {at['runs']} runs of one call", f"{f.number:.0f} different {at['of']}")


def _shapes(f, at):
    if not at["failed"] and at["of"] == 1:
        return Sentence(f"The {f.what.removesuffix('s')} is within the rule", *times(f))
    if not at["failed"]:
        return Sentence(f"Over shapes and masks all {at['of']} {f.what} are within the rule", *times(f))
    where = f"the worst: {NAMES.get(at['tensor'], 'O')}, {at['shape']}, {at['fmt']}"
    return Sentence(f"Over shapes and masks {at['failed']} of {at['of']} {f.what} break the rule ({where})", *times(f))


def _skipped(f, at):
    of = "Calls not compared" if at["kernel"] == "all" else f"Calls that {named(at['kernel'])} was not compared at"
    return Sentence(f"{of}: {f.number:.0f} ({reason_sentence(at['why'])})")


def _takes(f, at):
    if at["key"] == "one_query":
        most = f"Up to {FEW} queries and no gradients were asked for."
        more = f"Under a causal mask each got the keys up to its own. {most}"
        return Sentence("It takes one query a call: it was called for one after the other", more=more)
    width = at["key"].removeprefix("v_")
    return Sentence(f"It takes {width} values of V, fewer than features of Q: it was called for so many at a time")


def _way(f: Finding, at: dict) -> Sentence:
    if f.severity == Severity.PASSES:
        ways = dict.fromkeys(WAYS[row["way"]].format(entry=row["entry"]) for row in at["ways"])
        return Sentence(f"It answers alike: {'; '.join(ways)}", *_as_far(f))
    way, where = VALUES["the_way"](f, at), at["layer"] or "outside of a module"
    if at["why"]:
        return Sentence(f"Not compared: {way}", more=f"{at['why']}.")
    number, limit = _as_far(f)
    random = "Something in it is random, such as dropout." if at["way"] == "again" else ""
    first = "its output" if at["tensor"] == "output" else f"{at['tensor']} at {where}"
    text = f"The model differs, first in {first}"
    if at["tensor"] == "o":
        text = f"Attention, first at {where}, gives another o for the same q, k and v"
    return Sentence(f"{text}: {way}", number, limit, random)


def _as_far(f: Finding) -> tuple[str, str]:
    far = as_times(math.inf if f.number is None else f.number)
    return f"{far} times as far as two right runs differ", f"{f.limit:g}"


IN_DECODER = "That is right in an encoder or in a model of images; in a decoder no causal mask has reached these calls."
WORDINGS: dict[str, Wording] = {  # those with a cause first: a headline gives the first of them
    "sees_later": Wording(
        "Rows see later keys than their own in {calls} of {of} calls (the first: {first})", "{number:.0%} of the rows",
        more=IN_DECODER, change="{the_mask}", because="its rows see later keys, which a causal model may not",
    ),
    "keys_of_q": Wording(
        "It is right where there are as many queries as keys; with fewer queries it sees as many keys only",
        change="take the number of keys from k",
        because="right where there are as many queries as keys; it seems to take the number of keys from q",
    ),
    "mistake": Wording(
        "{Kernel_name} computes another attention: {cause} has this very error{on_inputs}",
        "{of_times} times the bound", "1",
        "{share:.1%} of the squared error, in {rows:,} of {of:,} rows beyond their bound.",
        because="{cause} has its very error",
    ),
    "coarse": Wording(
        "For inputs in {fmt} its outputs are numbers of a coarser format", "{number:.0f} significant bits",
        "{limit:.0f} at least", "{fmt} holds {bits} bits; {narrower} less.",
        "look for a conversion of the inputs or of a result: a hint of precision, or a processor without the format",
        "for {fmt} it computes in a coarser format ({number:.0f} significant bits)",
    ),
    "scale": Wording(
        "Its outputs are attention's times a factor", "{number:.4g}", "1",
        "This one factor makes most of its error in all {settings} settings of format, inputs and N.",
        "look for a factor left out or multiplied in twice, in the scale of V or in the division by the row sum",
        "its outputs are attention's times {number:.4g}",
    ),
    "noise": Wording(
        "It gives other results on each call", "{apart}", "{limit:g} ulp",
        "In {runs} calls on the same tensors; another order of FP32 sums makes 1 ulp.",
        "look for memory that is read before it is written, a race, or random numbers",
        "its outputs differ from call to call",
    ),
    "answer": Wording(because="{answered}", sentence=_answer),
    "carry": Wording(together=_carry, because="it keeps its {sums} in low precision from tile to tile"),
    "rounded_splits": Wording(
        "It rounds partial results to {fmt}", "{number:.0%} of its error explained",
        more="An emulation that computes {parts} exactly and rounds each part's output, not yet divided by its row "
        "sum, to {fmt}{merges} has the same errors (squared).",
        change="write and merge partial results in FP32", because="it rounds partial results to {fmt}",
    ),
    "rounding_mode": Wording(
        "Its casts of {cast} to {into_all} {mode_words}", change="{to_nearest}", because="its casts of {cast} drop bits"
    ),
    "bound": Wording(because="{cause} has its very error", sentence=_bound),
    "relation": Wording(because='what should hold of every attention kernel does not: "{says}"', sentence=_relation),
    "relations": Wording(sentence=_relations),
    # a kernel that could not be judged, or not as it was called
    "not_run": Wording("It could not be run: {answered}", because="nothing of it was judged: {answered}"),
    "not_attention": Wording(sentence=_not_attention),
    "only_fp64": Wording("It runs in FP64 only, the golden value's own format: there is nothing to judge it by"),
    "convention": Wording(sentence=_convention),
    "takes": Wording(sentence=_takes),
    "causal_only": Wording("It has a causal mask and no other way: all of it was judged causally"),
    BY_DEFAULT: Wording(
        "Where `causal` is not given it masks causally: it was judged with causal=False and causal=True"
    ),
    "top_left": Wording(
        "Where queries are fewer than keys, its causal mask is aligned top-left, as torch's is_causal",
        more="The rule over shapes leaves these calls out.",
    ),
    "alignment": Wording(
        "Where queries are fewer than keys its causal mask has two alignments: {several_side} for several queries, "
        "{one_side} for one", more="A chunk of a prompt and a single token then see other keys.",
        change="choose one alignment",
    ),
    "raises": Wording(
        "It raises an error that is no refusal, so not judged: {labels}; the first {the_problem}",
        change="mend it, or raise NotImplementedError or ValueError where the kernel lacks an option",
    ),
    "outside": Wording(
        "It does not refuse a shape that it is not made for, and reads outside of K or V, so not judged: {labels}; the "
        "first {the_problem}", more="A GPU gives wrong numbers then, or an illegal memory access.",
        change="raise ValueError for the shapes that the kernel does not take",
    ),
    "less_than_format": Wording(
        "Of inputs in {fmt} its error is not that of {fmt}", "{of_times} × that of plain sums", "{limit:g} ×",
        "A step in a shorter format does this, as TF32 does in products, or an exponential that is made for one. "
        "All other errors are judged in other formats.",
    ),
    "arithmetic": Wording("Baseline rounds Q, K, V and P to {arithmetic}; gradients and bounds were not judged"),
    "unsupported": Wording("Not supported, so not judged: {labels}"),
    "coverage": Wording(
        "How much was judged: {settings} of {settings_of} settings of format, inputs, N and queries, and "
        "{shapes} of {shapes_of} calls over shapes and masks"
    ),
    "on_gpu": Wording(sentence=_on_gpu),
    # errors
    "growth": Wording(
        "Its largest error is {from_times} × Baseline's at N = {from_n:,}, and at N = {n:,} "
        "({distribution} inputs, {fmt}, {queries_words})", "{times}",
    ),
    "error": Wording("Its largest error {breaks} the rule ({setting})", **RULE),
    "chance": Wording(
        "In one of {draws} draws its largest error is beyond the rule ({setting})", **RULE,
        more="In no other draw of this call is it more than {second_times} × Baseline's; that number counts.",
    ),
    "sum_error": Wording(
        "Its {sum_name} is off where P is small, but loses no whole tile", "{number:.1f} ulp of {fmt}",
        more="This error is of its scores or of its exponential, not of a sum kept from tile to tile.",
    ),
    "problem": Wording(sentence=_problem),
    "outputs": Wording(sentence=_shapes),
    "gradients": Wording(sentence=_shapes),
    "wrong_gradient": Wording(
        "{tensor_name} is not attention's gradient ({shape}, head_dim {head_dim}, {fmt})", "{off}", "{limit:.0%}"
    ),
    "worst_input": Wording("Of the inputs that make trouble, {distribution} in {fmt} is the worst", **RULE),
    "outwards": Wording(sentence=_outwards),
    "repeats": Wording(sentence=_repeats),
    # how it behaves in its process
    "hangs": Wording("It hangs: no answer within {number:g} s, {calls}", because="it hangs, {calls}"),
    "crashes": Wording("It crashes: {crash}, {calls}", because="it crashes, by {crash}, {calls}"),
    "exits": Wording(
        "It ends its process: with {exit}, {calls}", change="raise an error that says what is wrong",
        because="it ends its process with {exit}, {calls}",
    ),
    "unasked": Wording("Its process ended {number:.0f} times; {times} calls after that were not made"),
    "prints": Wording("It prints: up to {number:,.0f} bytes on {details_all}"),
    "leaks": Wording("It leaks memory: over {times} equal calls its process grew", "{megabytes:.2f} MB a call"),
    "state": Wording(
        "It changes what other code of the program computes by: {details_all}, {calls}",
        change="put it back before the kernel returns",
    ),
    "draws": Wording("It draws from {details_all}, so that code after it draws others"),
    # captured tensors
    "refused": Wording("{kernel_name} {problem}"),
    "beside": Wording("Not judged here, though the file has it: {tensors}. `fa-lib explain` judges that"),
    "head_error": Wording("Over {heads} heads the largest error of {kernel_name}{rule} (head {head})", **RULE),
    "biased_output": Wording(
        "Rounding O to 16 bits is biased: head {head_list}",
        more="Several keys attain the maximum, and V has mostly one sign.",
    ),
    "one_signed": Wording(
        "V has mostly one sign: head {head_list}", more="The errors of a 16-bit carry add up with N."
    ),
    "underflow": Wording(
        "Small P are lost: head {head_list}", more="More than a thousandth of a row's probability underflows."
    ),
    "blind_rows": Wording("{rows:,} rows see no key. What a kernel gives there is a convention, and was not judged"),
    "baseline_overflows": Wording(sentence=_overflows),
    "baseline_undefined": Wording(
        "The golden value itself is not finite in {heads_words}",
        more="Scores are infinite or beyond FP64 (a mask of +inf, a scale too large), "
        "so that no answer is right there.",
    ),
    "captured": Wording("The tensors were captured at {first}{of_model}"),
    "captured_gradients": Wording(sentence=_captured_gradients),
    "explained": Wording(sentence=_explained, because="`fa-lib explain` calls its {tensor} {verdict}"),
    "not_explained": Wording("{why}"),
    # a model
    "nonfinite": Wording(sentence=_nonfinite),
    "layer_error": Wording(together=_layers),
    "nothing_compared": Wording("No attention call was compared with Baseline, so nothing was judged"),
    "skipped": Wording(sentence=_skipped),
    "way_of_attention": Wording(sentence=_way, because="attention gives another o for the same q, k and v: {the_way}"),
    "way_differs": Wording(sentence=_way),
    "way_not_run": Wording(sentence=_way),
    "own_hidden": Wording(
        "Rows do not see their own key in {calls} of {of} calls (the first: {first})", "{number:.0%} of the rows",
        more="A boolean mask of the other polarity does this.",
    ),
    "idle_mask": Wording(
        "A mask is given and does nothing in {calls} of {of} calls (the first: {first})",
        more="It hides no key and adds nothing: right where no place is padded, and wrong otherwise.",
    ),
    "later_unknown": Wording(
        "Whether rows see later keys was not judged in {calls} of {of} calls: "
        "queries and keys differ in number, and which key is a row's own is not known"
    ),
}  # fmt: skip
