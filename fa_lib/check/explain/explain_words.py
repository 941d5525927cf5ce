"""An Explanation in words: the verdict in a line, its evidence, and what to do."""

from fa_lib.check.dialect.conventions import BY_CHOICE
from fa_lib.check.dialect.search import NEAR
from fa_lib.check.explain.arithmetic import NOT_ARITHMETIC, Computation
from fa_lib.check.explain.verdict import Explanation, Verdict
from fa_lib.check.explain.whereabouts import Whereabouts
from fa_lib.check.report.sentences_cause import subject

COMPUTATIONS = {  # key of a Computation -> what has these errors
    "kernel": "a {fmt} kernel: q, k, v, P and the answer in {fmt}, sums in FP32",
    "products": "{fmt} products: q, k, v and P rounded to {fmt}, all else in FP32",
    "cut": "{fmt} products that cut bits off: q, k, v and P truncated to {fmt}",
    "quantized": "q, k, v and P in {fmt}",
    "quantized_qkv": "q, k and v in {fmt}",
    "quantized_kv": "k and v in {fmt}, as in a quantised cache",
}
BLIND = {
    "zero": "Rows that see no key are 0.", "nan": "Rows that see no key are NaN.",
    "mean": "Rows that see no key are the mean of v.", "other": "Rows that see no key hold other values.",
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
    return [f"{found.verdict.name}: {first}", *(f"  {line}" for line in evidence)]


def what(dialect: dict) -> str:
    """A dialect in words: "attention without the mask, with the scale 1"."""
    names = [BY_CHOICE[change].label for change in dialect.items() if change in BY_CHOICE]
    if "keys" in dialect:
        first, end = dialect["keys"]
        names.append(f"of keys {first} to {end - 1} alone")
    text = " ".join(["attention", ", ".join(names)]).rstrip()
    return f"{dialect['factor']:.4g} times {text}" if "factor" in dialect else text


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
        return
    if found.nan_rows:
        yield f"{name} is wrong in its NaN: {_rows(found.nan_rows)} not finite, though all that is seen is."
        yield "Where whole blocks of keys are hidden, exp(-inf + inf) makes NaN; else look for an overflow."
        return
    if found.dropout:
        yield f"{name} is {what(found.dialect)} with dropout left on, of about {found.dropout:.0%} of the weights."
        return
    if found.where is not None:
        yield f"{name} is {what(found.dialect)}, but wrong in {_where(found.where)}."
        if found.part:
            yield f"There it is {what(found.part)}."
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
    yield f"{name} is no attention of these q, k and v that was tried: it is off by {found.residual:.0%} of its size."
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
    parts = [
        f"{axis} {_listed(ranges)}" for axis, ranges in (
            ("entries of the batch", where.entries), ("heads", where.heads), ("rows", where.rows),
            ("features", where.features),
        ) if ranges
    ]  # fmt: skip
    return f"{' and '.join(parts) or 'places without a pattern'} ({where.share:.0%} of the rows)"


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
