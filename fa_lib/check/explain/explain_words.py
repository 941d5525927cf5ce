"""An Explanation in words: the verdict in a line, its evidence, and what to do."""

from fa_lib.check.dialect.conventions import what
from fa_lib.check.dialect.search import NEAR
from fa_lib.check.explain.arithmetic import NOT_ARITHMETIC, Computation
from fa_lib.check.explain.verdict import Explanation, Verdict
from fa_lib.check.explain.whereabouts import Whereabouts
from fa_lib.check.report.sentences_cause import subject

COMPUTATIONS = {  # key of a Computation -> what has these errors
    "kernel": "a {fmt} kernel: q, k, v, P and the answer in {fmt}, sums in FP32",
    "products": "{fmt} products: q, k, v and P rounded to {fmt}, all else in FP32",
    "cut": "{fmt} products that cut bits off: q, k, v and P truncated to {fmt}",
    "written": "{fmt} products, written out: q, k, v and P over its sum rounded to {fmt}, all else in FP32",
    "written_k_scaled": "{fmt} products, written out: q, k times the scale, v and P over its sum rounded to {fmt}",
    "quantized": "q, k, v and P in {fmt}",
    "quantized_qkv": "q, k and v in {fmt}",
    "quantized_kv": "k and v in {fmt}, as in a quantised cache",
    "quantized_qk": "q and k in {fmt}",
}
MEANINGS = {  # of a verdict, for who reads it first
    Verdict.ROUNDING: "The output is attention, as exact as its precision allows: nothing to fix.",
    Verdict.CONVENTION: "The output is right under another convention than yours: choose one of the two.",
    Verdict.PRECISION: "The output is the right function in coarser arithmetic: decide whether that is wanted.",
    Verdict.BUG: "The output is another function than anybody means, or wrong in places: look there.",
}
BLIND = {
    "zero": "Rows that see no key are 0.", "nan": "Rows that see no key are NaN.",
    "mean": "Rows that see no key are the mean of v.", "other": "Rows that see no key hold other values.",
}  # fmt: skip
CHANGES = {  # of an OtherOutput -> what it is
    "heads_last": "right, with heads after the sequence",
    "for_each_query_head": "right, one for each query head: sum those of the heads that share one of k and v",
    "base_2": "right in powers of 2: times ln 2 it is the natural one",
    "negative": "right but for its sign", "maximum": "the largest score of each row alone",
    "without_maximum": "right but for the largest score of each row, which is to be added",
    "sum": "the sum of exp(score - largest): its log and the largest score are to be added",
    "unscaled": "the gradient without the scale: {factor:.4g} times what it should be",
    "scaled_twice": "the gradient with the scale twice: {factor:.4g} times what it should be",
    "factor": "{factor:.4g} times the gradient", "without_delta": "the gradient with rowsum(dO * o) left out",
    "of_the_other": "the gradient of the other one of q and k",
    "dO_in_memory_order": "the gradient for another dO: the same numbers in another order of heads and sequence",
}  # fmt: skip
OUT_OF_SIGHT = (
    "Out of sight here: what was done to q and k before (RoPE missing or applied twice, a norm), and to o after. "
    "Compare q, k and v of both sides first."
)


def lines(found: Explanation, name: str = "o") -> list[str]:
    """The verdict, and its evidence, in a line each."""
    verdict = {
        Verdict.ROUNDING: _rounding, Verdict.CONVENTION: _convention, Verdict.PRECISION: _precision,
        Verdict.BUG: _bug,
    }[found.verdict](found, name)  # fmt: skip
    first, *evidence = [*verdict, *_shared(found)]
    return [f"{found.verdict.name}: {first}", *(f"  {line}" for line in evidence), *_others(found)]


def _others(found):
    """A line for what came with the output and is right, then one for each that is not."""
    right = [each.name for each in found.others if each.verdict == Verdict.ROUNDING]
    if right:
        verb = "is" if len(right) == 1 else "are"
        yield f"ROUNDING: {', '.join(right)} {verb} {what(found.dialect)}'s, as exact as {found.fmt} allows."
    for each in found.others:
        if each.verdict != Verdict.ROUNDING:
            yield f"{each.verdict.name}: {each.name} is {_other(each, found)}."
            if each.groups[0] < each.groups[1]:
                yield f"  {each.groups[0]} of {each.groups[1]} heads of k and v were looked at."
    if found.not_judged:
        yield f"Not judged: {found.not_judged}."


def _other(each, found):
    if each.change == "dialect":
        kind = "log-sum-exp" if each.name == "lse" else "gradient"
        believed = "" if found.dialect else " as you believe it"
        return f"the {kind} of {what(each.dialect)}; o is {what(found.dialect)}{believed}"
    if each.change:
        return CHANGES[each.change].format(factor=each.factor)
    size = "in its sum" if each.name == "lse" else "of its size"
    off = f"off by {each.residual:.2g} {size}, at most {each.times:.2g} times what a right {found.fmt} kernel makes"
    if each.verdict == Verdict.PRECISION:
        return f"in coarser arithmetic: {off}"
    if each.where is not None and (each.where.heads or each.where.rows or each.where.entries or each.where.features):
        return f"wrong in {_where(each.where)}: {off}"
    return f"not {what(found.dialect)}'s: {off}"


def _rounding(found, name):
    yield f"{name} is attention of q, k and v, as exact as {found.fmt} allows. Nothing to fix."
    yield from _bound(found)


def _convention(found, name):
    yield f"{name} is right under another convention: it is {what(found.dialect)}."
    yield from _believed(found)
    yield from _bound(found)
    yield from _selects(found)


def _precision(found, name):
    arithmetic = f": {_computation(found.arithmetic)}" if found.arithmetic else ""
    yield f"{name} is {what(found.dialect)}, in coarser arithmetic than its {found.fmt} inputs allow{arithmetic}."
    if found.dialect:
        yield from _believed(found)
    yield f"Its error is {found.residual:.2g} of its size."
    yield from _bound(found)
    if found.arithmetic is None:
        yield "It is about the same in every row, and no computation that was tried has it: it may be another function."


def _bug(found, name):
    if found.hidden_nan:
        yield f"{name} hides NaN: {_rows(found.hidden_nan)} finite, though q, or what is seen of k and v, is not."
        yield from _they(found)
        return
    if found.nan_rows:
        yield f"{name} is wrong in its NaN: {_rows(found.nan_rows)} not finite, though all that is seen is."
        yield from _they(found)
        yield "Where whole blocks of keys are hidden, exp(-inf + inf) makes NaN; else look for an overflow."
        return
    if found.dropout:
        yield f"{name} is {what(found.dialect)} with dropout left on, of about {found.dropout:.0%} of the weights."
        return
    if found.constant is not None:
        yield f"{name} is {found.constant:g} everywhere, which attention of these q, k and v is not."
        return
    if found.where is not None:
        yield f"{name} is {what(found.dialect)}, but wrong in {_where(found.where)}."
        if found.part:
            yield f"There it is {what(found.part)}."
        yield f"Over all rows that were tried it is off by {found.residual:.2g} of its size."
        return
    if (found.dialect or found.arithmetic) and found.residual <= NEAR:
        wrong = found.arithmetic and found.arithmetic.key in NOT_ARITHMETIC
        yield f"{name} is {_computation(found.arithmetic) if wrong else what(found.dialect)}."
        yield from _believed(found)
        yield from _bound(found)
        if found.arithmetic and not wrong:
            yield f"What has its error: {_computation(found.arithmetic)}."
        yield from _selects(found)
        return
    if found.residual <= NEAR:
        yield f"{name} is {what(found.dialect)}, but not to rounding: it is off by {found.residual:.2g} of its size."
        yield from _bound(found)
        return
    size = f"{found.residual:.0%} of" if found.residual < 10 else f"{found.residual:.2g} times"
    yield f"{name} is no attention of these q, k and v that was tried: it is off by {size} its size."
    yield OUT_OF_SIGHT


def _believed(found):
    if found.believed == float("inf"):
        yield "Under your options the shapes do not fit."
    else:
        yield f"Under your options it is off by {found.believed:.2g} of its size; read so, by {found.residual:.2g}."


def _selects(found):
    for convention in found.conventions:
        for library, option in convention.selects.items():
            yield f"{library}: {option}."


def _bound(found):
    if found.times_bound is not None:
        rule = f", and {found.times_rule:.2g} times Baseline's largest" if found.times_rule < 1e300 else ""
        yield f"Its largest error is {found.times_bound:.2g} of what a right {found.fmt} kernel may have{rule}."


def _computation(found: Computation) -> str:
    words = COMPUTATIONS.get(found.key)
    text = words.format(fmt=found.fmt) if words else subject(vars(found))
    return f"{text} ({found.share:.0%} of the squared error)"


def _where(where: Whereabouts) -> str:
    axes = ("entry", "entries", where.entries), ("head", "heads", where.heads), ("row", "rows", where.rows), (
        "feature", "features", where.features)  # fmt: skip
    parts = [f"{one if _is_one(ranges) else many} {_listed(ranges)}" for one, many, ranges in axes if ranges]
    share = "under 1%" if where.share < 0.005 else f"{where.share:.0%}"
    return f"{', '.join(parts) or 'places without a pattern'} ({share} of the rows)"


def _is_one(ranges):
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _they(found):
    """Where rows are that are finite and should not be, or the other way."""
    if found.where is not None and (found.where.entries or found.where.heads or found.where.rows):
        yield f"They are in {_where(found.where)}."


def _rows(count):
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _listed(ranges):
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in ranges)


def _shared(found):
    if found.blind_rows:
        yield BLIND[found.blind_rows]
    looked_at, of = found.rows
    if looked_at < of:
        yield f"{looked_at:,} of {of:,} rows were looked at."
