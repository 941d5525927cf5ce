"""An Explanation in words: the verdict in a line, its evidence, and what to do."""

import math
from collections.abc import Mapping
from dataclasses import replace

from attention_check.conventions.conventions import what
from attention_check.conventions.reading import spread
from attention_check.conventions.search import NEAR
from attention_check.conventions.seen_keys import Sees
from attention_check.conventions.solved_weights import LEAST_DROPOUT, Rule
from attention_check.explain.arithmetic import ALL_OF_IT, SMOOTH
from attention_check.explain.verdict import Explanation, Verdict, WrongRegions, runs
from attention_check.measure.mistakes import Cause
from attention_check.report.labels import subject

FOREIGN = 1e3  # times a gradient's size: an error that a wrong gradient has not
LEFT = 0.25  # of the residual as believed, and of the size: a dialect that leaves less is called the nearest
MOST_TIMES = 1e4  # Baseline's error: with more it makes none of this kind
SPAN = 0.25  # of the largest: numbers that differ by less are one number
SAME_FACTOR = 0.01  # apart, of two factors that are one
MOST_SHOWN = 1e6  # times the largest that is rounding: of larger numbers none says more
SHOWN = 3  # rows in wrong places
SAME = 1.1  # times the other's error: two outputs that are as near
LESS_MEAN = "INT8, K less its mean over keys"  # SMOOTH, of a Cause
BLIND = {
    "zero": "Rows that see no key are 0.", "nan": "Rows that see no key are NaN.",
    "mean": "Rows that see no key are the mean of v.", "other": "Rows that see no key hold other values.",
}  # fmt: skip
CHANGES = {  # of an OtherOutput -> what it is
    "heads_last": "right, with heads after the sequence",
    "for_each_query_head": "right, one for each query head: sum those of the heads that share one of k and v",
    "base_2": "right, as the logarithm to base 2: multiply it by ln 2",
    "negative": "right, with the opposite sign", "maximum": "the largest score of each row alone",
    "without_maximum": "right, without the largest score of each row: add it",
    "base_2_sum": "right, had it the natural logarithm of the sum of exp(score - largest): it has that to base 2",
    "ln_2_more": "right times ln 2, as if it had been to base 2: divide it by ln 2",
    "smoothed_k": "that of k less its mean over keys, as SageAttention smooths k: add the scale times q · mean(k)",
    "blind": "right, but finite in rows that see no key, where -inf is due: a merge with other keys counts them",
    "other_order": "right, but in memory its axes have another order than (batch, heads, rows)",
    "unscaled_maximum": "right, had the largest score of each row been scaled: it was added unscaled",
    "not_divided": "the gradient of P that is not divided by its row sum",
    "sum": "the sum of exp(score - largest): its log and the largest score are to be added",
    "mean_of_heads": "the mean over the query heads that share its keys, where their sum is due",
    "of_one_head": "the gradient of one query head alone, of those that share its keys",
    "of_other_heads": "the sum over query heads h modulo the number of key heads, where neighbours share their keys",
    "exchanged": "the gradient that is due as the other one of dk and dv",
    "softcap_0": "the gradient without the softcap's derivative",
    "softcap_2": "the gradient with the softcap's derivative twice",
    "unscaled": "the gradient without the scale: {factor:.4g} times what it should be",
    "scaled_twice": "the gradient with the scale twice: {factor:.4g} times what it should be",
    "factor": "{factor:.4g} times the gradient", "without_delta": "the gradient with rowsum(dO * o) left out",
    "delta_times": "the gradient with {factor:.4g} times rowsum(dO * o)",
    "another_delta": "right but for rowsum(dO * o){rows}: each row has another number for it, as if it were read "
    "elsewhere, or a gradient flowed into lse too (dlse in the file)",
    "no_delta": "the gradient without rowsum(dO * o){rows}",
    "part_of_features": "the gradient with the first {features} features of dO and v alone in dP = dO Vᵀ",
    "not_finite": "not finite in {where}, and right elsewhere", "zero": "0 in {where}, and right elsewhere",
    "not_zero": "not 0 in {where}, {unseen}, and right elsewhere",
    "dialect": "the {kind} of {of}; {o}",
    "saved": "the gradient of {of}, but with the log-sum-exp and rowsum(dO * o) of o; {o}",
    "saved_delta": "the gradient of {of}, but with rowsum(dO * o) of o; {o}",
    "parts": "right, were each part added once: {counts}",
    "of_ones": "the gradient for a dO of ones: the one that came in is not used",
    "without_dlse": "the gradient without what flows into lse (dlse)",
    "scores": "the gradient of P recomputed from scores, before the scale, that were rounded to {fmt}",
    "lse_as_base_2": "the gradient with a natural log-sum-exp that is taken for one to base 2",
    "lse_as_natural": "the gradient with a log-sum-exp to base 2 that is taken for a natural one",
    "of_the_other": "{other}: dq and dk may be exchanged",
    "dO_in_memory_order": "the gradient for another dO: the same numbers in another order of heads and sequence",
}  # fmt: skip
OVERFLOWS = {  # of `explanation.OVERFLOWS` -> what it is
    "products": "q kᵀ before the scale is beyond 65,504, FP16's largest",
    "scores": "a score is beyond 88.7, where exp(score) is beyond FP32's largest",
    "capped": "the size of a score over the softcap is beyond 88.7, where an exponential of tanh overflows FP32",
    "capped_twice": "a score over the softcap is beyond 44.4, where exp(2 x) of tanh is beyond FP32's largest",
    "sums": "the sum of exp(score - largest) v, not yet divided by the row sum, is beyond 65,504, FP16's largest",
}
TILES = {  # of a Rule -> what is wrong
    Rule.ROW_SUM: "rows are multiplied by factors",
    Rule.BEFORE_MASK: "its softmax comes before the mask: keys that are hidden count in the row sum",
    Rule.MISSING: "{tiles} are missing",
    Rule.ZEROS: "{tiles} are zeros: they count in the row sum, and have no values",
    Rule.COUNTED: "{tiles} count more than once",
    Rule.MAXIMUM: "{tiles} are not rescaled where a later one raises the maximum",
    Rule.EQUAL: "parts of keys are merged without their log-sum-exp: each counts alike",
    Rule.BASE_2: "parts of keys are merged as if their natural log-sum-exp were one to base 2",
    Rule.BASE_E: "parts of keys are merged as if their log-sum-exp to base 2 were a natural one",
    Rule.PARTIAL: "{tiles} are each divided by the row sum up to them, and not by that of all keys",
    Rule.DIVIDED: "it is divided by the row sum so far after every {size} keys, and not once at the end",
    Rule.OTHER: "{tiles} have wrong weights",
}
OUT_OF_SIGHT = (
    "Out of sight here: what was done to q and k before (a norm with weights, RoPE in another way), and to o after. "
    "Compare q, k and v of both sides first."
)
SHORT_CALL = """\
Next: save a call of the same kernel with at most {keys} keys, half as many as v has features: they show its weights.
    n = {keys}
    q, k, v = q[:, :, -n:], k[:, :, :n], v[:, :, :n]  # and the mask, if there is one
    np.savez("short.npz", q=q, k=k, v=v, o=kernel(q, k, v))  # then: fa-lib explain short.npz
Where Python can call the kernel, `fa-lib explain --kernel file.py:function` measures its weights at any length."""


def groups(found: Explanation, name: str = "o") -> list[tuple[Verdict | None, list[str]]]:
    """An Explanation in words: on the output, of that name, then on its log-sum-exp and its gradients, each a verdict,
    None where they were not judged, and its lines, the first of which says what it is."""
    said = dict(rounding=_rounding, convention=_convention, precision=_precision, bug=_bug)
    verdict = said[found.verdict](found, name)
    return [(found.verdict, [*verdict, *_shared(found)]), *_beside(found)]


def lines(found: Explanation, name: str = "o") -> list[str]:
    """As `groups`, a line each: the verdict, and under it its reasons."""
    return [
        f"{'NOT JUDGED' if verdict is None else verdict.name}: {line}" if i == 0 else f"  {line}"
        for verdict, group in groups(found, name) for i, line in enumerate(group)
    ]  # fmt: skip


def nearer(found: Mapping[str, Explanation]) -> str:
    """Which of two outputs is nearer to attention as believed; found: its name -> its Explanation."""
    first, other = sorted(found, key=lambda name: (bool(found[name].nan_rows + found[name].hidden_nan),
                                                   found[name].believed))  # fmt: skip
    a, b = (found[name] for name in (first, other))
    if a.believed == math.inf:
        return "As you describe the call neither is one of attention."
    nan = {name: " where it is finite" if found[name].nan_rows else "" for name in found}
    off = {name: f"{found[name].believed:.2g} of its size{nan[name]}" for name in found}
    if a.verdict == b.verdict == Verdict.ROUNDING:
        both = f"Both are rounding, {first} off by {off[first]}, {other} by {off[other]}"
        blind = "" if a.blind_rows == b.blind_rows else " Rows that see no key differ: that is a convention."
        return f"{both}: two right implementations differ so.{blind}"
    if not b.nan_rows and b.believed <= SAME * a.believed:
        return f"As you describe the call both are as near to attention: off by {off[first]}, and by {off[other]}."
    return f"As you describe the call {first} is nearer to attention: off by {off[first]}, {other} by {off[other]}."


def _beside(found):
    """What came with the output and is right, in one group, then one for each that is not."""
    right = [each for each in found.others if each.verdict == Verdict.ROUNDING]
    if right:
        names, verb = ", ".join(each.name for each in right), "is" if len(right) == 1 else "are"
        of = f" for {what(found.dialect)}" if found.dialect else ""
        near = "as near as plain attention that rounds S and P to {}" if any(each.times > 1 for each in right) else ""
        text = f"{names} {verb} right{of}, {(near or 'as exact as {} allows').format(found.fmt)}."
        yield Verdict.ROUNDING, [text, *dict.fromkeys(line for each in right for line in _coverage(each))]
    unnamed = {each.name for each in found.others if each.verdict == Verdict.BUG and not each.change}
    is_dS = unnamed >= {"dq", "dk"} and "dv" in [each.name for each in right]
    look = "dv is right, and so are P and dO: look at dS = P (dO Vᵀ - rowsum(dO o))."
    for each in found.others:
        if each.verdict != Verdict.ROUNDING:
            more = [look] * (is_dS and each.name == "dk")
            yield each.verdict, [f"{each.name} is {_other(each, found)}.", *_coverage(each), *more]
    if found.not_judged:
        yield None, [f"{found.not_judged}."]


def _coverage(each):
    looked_at, of = each.looked_at
    if looked_at < of:
        yield f"{looked_at:,} of {of:,} {'rows' if each.name == 'lse' else 'heads of k and v'} were looked at."


def _other(each, found):
    where = _where(each.where) if each.where is not None else ""
    known = each.where is not None and each.where.is_known
    if each.change:
        return CHANGES[each.change].format(
            fmt=found.fmt, factor=each.factor, features=each.features, other={"dq": "dk", "dk": "dq"}.get(each.name),
            kind="log-sum-exp" if each.name == "lse" else "gradient", of=what(each.dialect), counts=_counts(each),
            o=f"o is {what(found.dialect)}{'' if found.dialect else ' as you believe it'}",
            where=where, rows=f" in {where}" if known or each.where and each.where.share < 1 else "",
            unseen="where no key is seen" if each.name == "dq" else "keys that no row sees",
        )  # fmt: skip
    size = "(root mean square)" if each.name == "lse" else "of its size"
    off = f"off by {each.residual:.2g} {size}" if math.isfinite(each.residual) else "not finite where it should be"
    if each.times < MOST_SHOWN:
        off += f"; its largest error is {each.times:.2g} times the largest that is rounding"
    if each.verdict == Verdict.PRECISION:
        return f"in coarser arithmetic: {off}"
    if known:
        foreign = ", with values of no relation, as of memory that nobody wrote"
        return f"wrong in {where}{foreign * (FOREIGN < each.residual < math.inf)}: {off}"
    return f"not that of {what(found.dialect)}: {off}"


def _counts(each):
    """How often parts count in a gradient, where that is not once."""
    rows, parts = ("rows", "keys") if each.name == "dq" else ("keys", "rows")
    said = (
        f"in {rows} {first} to {last} " + ", ".join(f"{parts} {a} to {b} count {c} times" for a, b, c in counts)
        for (first, last), counts in each.counts if counts
    )  # fmt: skip
    return "; ".join(said)


def _rounding(found, name):
    if found.times_bound is not None and found.times_bound > 1:
        yield f"{name} is attention of q, k and v, as near as plain attention that rounds S and P to {found.fmt}."
        yield from _bound(found)
        yield "If it is plain attention, nothing is to fix. A fused kernel, which keeps S and P in FP32, is nearer."
    else:
        exact = f"as exact as {found.fmt} allows.{' Nothing to fix.' * found.is_rounding}"
        yield from (f"{name} is attention of q, k and v, {exact}", *_bound(found))


def _convention(found, name):
    if found.zero:
        yield f"{name} is {what(found.dialect)}, and 0 in rows of padding, whose own keys the mask hides."
    else:
        yield f"{name} is right under another convention: it is {what(found.dialect)}."
        yield from (*_believed(found), *_bound(found), *_selects(found))


def _precision(found, name):
    arithmetic = f": {_computation(found.arithmetic)}" if found.arithmetic else ""
    yield f"{name} is {what(found.dialect)}, in coarser arithmetic than its {found.fmt} inputs allow{arithmetic}."
    yield from _believed(found) if found.dialect else ()
    yield f"Its error is {found.residual:.2g} of its size."
    yield from _bound(found)
    if found.arithmetic is None:
        yield "It is about the same in every row, and no computation that was tried has it: it may be another function."


BUGS = {  # a field of an Explanation -> what is said where it has a value, in their order
    "hidden_nan": "{name} hides NaN: {nan} finite, though their q, or a key or value that they see, is not.{they}",
    "nan_rows": "{name} is wrong: {nan} NaN or infinite, though all that they read of q, k and v is finite.{they}",
    "dropout": "{name} is {what} with dropout left on, of about {found.dropout:.0%} of the weights.\n"
    "Solved for its weights, each is 0, or the same multiple of what it should be.",
    "bits": "{name} is {what}{inputs}, but its bits are those of {found.bits}, not of its stated format.",
    "constant": "Every value of {name} is {found.constant:g}; attention of these q, k and v is not constant.",
    "elsewhere": "{name} is {what}, but its rows are in wrong places, in {where}.\n{elsewhere}.",
    "zero": "{name} is {what}, but 0 in {where}{sees}.",
    "moved": "{name} is {what}, but {moved}. With them all that was looked at is right to rounding.",
    "seen": "{name} is {what}, but {rows}{places}.",
    "inside": "{name} is {what}, but wrong in {where}.",
    "tiles": "{name} is {what}, but {rule}.",
    "where": "{name} is {what}, but wrong in {where}.\n"
    "Its error is {found.residual:.2g} of its size (root mean square of all rows).",
}


def _bug(found, name):
    kind = next((kind for kind in BUGS if getattr(found, kind) != getattr(Explanation, kind)), "")
    if not kind:
        yield from _everywhere(found, name)
        return
    where, tiles, count = found.where, found.tiles, found.hidden_nan or found.nan_rows
    said = BUGS[kind].format(
        found=found, name=name, what=what(found.dialect), where=where and _where(where),
        rule=tiles and TILES[tiles.rule].format(tiles=_tiles_of(tiles), size=tiles.size), moved=_moved(found.moved),
        nan="1 row is" if count == 1 else f"{count:,} rows are",
        inputs=f" of q, k and v read as {found.bits}" * found.bits_of_all,
        sees=", which see keys" * (found.zero in ("rows", "underflow")), elsewhere=_elsewhere(found),
        they=f"\nThey are in {_where(where)}." if where and where.is_known else "",
        rows=SEEN[{each.sees for each in found.seen} == {Sees.SCALED}],
        places=f", in {_where(where)}" if where and where.is_known else "",
    )  # fmt: skip
    more = dict(zero=_zero, seen=_seen, inside=_inside, tiles=_tiles, nan_rows=_overflow, where=_in_places)
    yield from (*said.splitlines(), *(more[kind](found) if kind in more else ()))


def _zero(found):
    if found.residual > NEAR:
        of = found.zero if found.zero == "features" else "rows"
        yield f"Without these {of} it is off by {found.residual:.2g} of its size."
    if found.zero == "underflow":
        instead = "where nothing, or 0, is subtracted in place of the row's largest score"
        yield f"All their scores are below -103: exp(score) is 0 in FP32 {instead}."


def _in_places(found):
    if found.sequence is not None:
        yield f"That is in sequence {found.sequence} of cu_seqlens alone."


def _elsewhere(found):
    """The first places, and whose rows they have."""
    several = found.where is not None and found.where.of[0] > 1
    lines = []
    for places in found.elsewhere[:SHOWN]:
        at, of = (f"{f'entry {entry}, ' * several}head {head}, row {row}" for entry, head, row in places)
        lines.append(f"At {at} it has what is due at {of}")
    return ". ".join([*lines, *["The other wrong rows are 0"] * (found.zero == "others")])


def _overflow(found):
    if found.overflow:
        yield f"In each of them, and in no other, {OVERFLOWS[found.overflow]}: an overflow."
    elif found.hides == "nan":
        yield "k or v is not finite at keys that these rows do not see: 0 times NaN is NaN."
    elif found.hides == "each":
        yield "They have hidden keys, and no other row has: what hides a key makes NaN, as +inf in place of -inf does."
    elif found.hides:
        yield "No overflow separates them. Where a whole block of keys is hidden, exp(-inf + inf) makes NaN."


def _inside(found):
    """What a wrong part is by itself."""
    entry, heads, inner = found.inside
    several, some = found.where.of[0] > 1, len(heads) < found.where.of[1]
    of_heads = f"head{'s' * (len(heads) > 1)} {_listed(runs(heads))}"
    place = [f"entry {entry}"] * several + [of_heads] * (some or several)
    alone = replace(inner, blind_rows="") if found.blind_rows else inner
    yield from (*_bug(inner, f"There ({', '.join(place)}) it" if place else "There it"), *_shared(alone))


def _everywhere(found, name):
    """Of an output that is another one in all rows."""
    if (found.dialect or found.arithmetic) and found.residual <= NEAR:
        yield f"{name} is {what(found.dialect)}."
        yield from (*_lost(found), *_doubled(found), *_believed(found), *_bound(found))
        if isinstance(found.dialect.get("scale"), float) and not {"factor", "part"} & found.dialect.keys():
            yield f"If you mean this scale, pass --scale {found.scale:.4g}."
        if found.arithmetic:
            yield f"What has its error: {_computation(found.arithmetic)}."
        hides = found.dialect == dict(causal="bottom_right")
        yield from ["It hides keys that your mask shows."] if hides else _selects(found)
    elif found.residual <= NEAR:
        yield f"{name} is {what(found.dialect)}, but not to rounding: it is off by {found.residual:.2g} of its size."
        yield from (*_bound(found), *_noise(found), *_nearest(found))
    else:
        size = f"{found.residual:.0%} of" if found.residual < 10 else f"{found.residual:.2g} times"
        yield f"{name} is no attention of these q, k and v that was tried: it is off by {size} its size."
        yield from (*_noise(found), *_nearest(found), OUT_OF_SIGHT)
        yield from SHORT_CALL.format(keys=found.short).splitlines() if found.short else ()


def _moved(pages):
    """Keys in whose place others were read, in words."""
    several = any(each.entry or each.of_entry for each in pages)
    said = []
    for each in pages:
        places = (each.entry, each.first), (each.of_entry, each.of_first)
        of = [f"keys {at} to {at + each.size - 1}{f' of entry {entry}' * several}" for entry, at in places]
        of[1] += f" of head {each.of_head} of k" if each.of_head is not None else ""
        own, other = ("the values of ", "those of ") if each.values else ("", "")
        said.append(f"in place of {own}{of[0]} it reads {other}{of[1]}")
    return "; ".join(said)


SEEN = "of other keys than its rows should see", "rows have scales of their own"
SEES = {  # what a row sees
    Sees.ALONE: "{keys}", Sees.MISSED: "all but {keys}", Sees.ADDED: "{keys}, too", Sees.BUT: "all keys but {keys}",
    Sees.EMPTY: "zeros, of keys and values, in place of {keys}",
}  # fmt: skip


def _seen(found):
    """The keys of some rows."""
    several = found.where is not None and found.where.of[0] > 1
    for i in spread(len(found.seen), SHOWN).tolist():
        each = found.seen[i]
        keys, due = (_listed([(at, end - 1)]) if end > at else "none" for at, end in (each.keys, each.due))
        due = f"keys {due}" if each.count else due
        due = f"{each.count} of {due}" if each.count < each.due[1] - each.due[0] else due
        row = f"{f'Entry {each.entry}, row' if several else 'Row'} {each.row}"
        if each.sees == Sees.SCALED:
            yield f"{row} has {each.times:.4g} times its scale."
        else:
            yield f"{row} should see {due}, and sees {SEES[each.sees].format(keys=keys)}."


def _tiles_of(tiles):
    return f"some of every {tiles.period} keys" if tiles.period else f"tiles of {tiles.size} keys"


def _tiles(found):
    share = f"{found.tiles.share:.0%} of the rows"
    rule, rows = found.tiles.rule, f"in {_where(found.where) if found.where.is_known else share}"
    for first, last, least, largest in found.tiles.tiles:
        one = f"{largest:.1f}" if abs(largest) > SPAN else f"{largest:.2g}"
        span = f"{least:.2g} to {largest:.2g}" if largest - least > SPAN * max(abs(largest), 1) else one
        keys = f"Keys {_listed([(first, last)])}{f' of every {found.tiles.period}' * bool(found.tiles.period)}"
        if rule == Rule.ROW_SUM:
            yield f"The factor is {span}, {rows}. The weights of a row are right among themselves: its sum is wrong."
        elif rule == Rule.MISSING:
            yield f"{keys} are missing, {rows}."
        elif rule == Rule.COUNTED:
            yield f"{keys} count {largest:.0f} times, {rows}."
        elif rule != Rule.BEFORE_MASK:
            yield f"{keys} have {span} times their weight, {rows}."
    yield f"With these weights o is right to rounding; as attention it is off by {found.residual:.2g} of its size."


def _noise(found):
    if found.noise is not None:
        yield "Its error is like noise, in the scores or in the output: without bias, and alike in every head."
    if found.noise and found.noise >= LEAST_DROPOUT:
        tells = "o of a call with at most half as many keys as v has features tells them apart"
        yield f"Dropout of {found.noise:.0%} of the weights may make it too: {tells}."


def _nearest(found):
    """What came nearest, where it came near and is not what the caller believes."""
    dialect, left = min(found.tried, key=lambda each: each[1], default=({}, math.inf))
    if dialect and left < LEFT * min(found.residual, 1):
        yield f"The nearest that was tried is {what(dialect)}, which leaves {left:.2g} of its size: it does not hold."


def _believed(found):
    off = f"it is off by {found.believed:.2g} of its size; in this reading, by {found.residual:.2g}"
    yield f"As you describe the call {off if math.isfinite(found.believed) else 'the shapes do not fit'}."


def _lost(found):
    """The scales in 8 bits that a number of the dialect undoes, or exchanges."""
    if found.swapped:
        yield "So k_scale and v_scale are exchanged."
    of_scores, of_v = ([name for name in found.lost if (name == "v_scale") == is_v] for is_v in (False, True))
    if found.lost:
        yield f"So it is without {' and '.join([' or '.join(of_scores)] * bool(of_scores) + of_v)}."


def _doubled(found):
    """Where k and v have one factor, which nothing else explains."""
    factor, scale = (found.dialect.get(name) for name in ("factor", "scale"))
    numbers = isinstance(scale, float) and isinstance(factor, float) and not found.lost
    if numbers and abs(scale / factor - 1) < SAME_FACTOR:
        bytes_of = ": bytes of E4M3FNUZ that are read as E4M3 have 2" if abs(factor - 2) < 2 * SAME_FACTOR else ""
        yield f"So it is with k and v that are {factor:.4g} times as large{bytes_of}."


def _selects(found):
    for convention in found.conventions:
        for library, option in convention.selects.items():
            yield f"{library}: {option}."


def _bound(found):
    if found.times_bound is not None:
        rule = f", and {found.times_rule:.2g} times that of Baseline (plain attention in {found.fmt})"
        rule = rule if found.times_rule < MOST_TIMES else ""
        yield f"Its largest error is {found.times_bound:.2g} of what a right {found.fmt} kernel may have{rule}."


def _computation(found: Cause) -> str:
    text = subject(vars(found) | dict(fmt=found.fmt.replace(SMOOTH, LESS_MEAN)))
    rest = "; the rest is of another order of sums, or of something else" if found.share < ALL_OF_IT else ""
    return f"{text} ({found.share:.0%} of the squared error{rest})"


def _where(where: WrongRegions) -> str:
    if where.start:
        entry, head, row = where.start
        place = f"{f'entry {entry}, ' * (where.of[0] > 1)}head {head}, row {row}"
        return f"all rows from {place} on ({where.share:.0%} of the rows)"
    parts = []
    for one, several in dict(entry="entries", head="heads", row="rows", feature="features").items():
        if ranges := getattr(where, several):
            parts.append(f"{one if len(ranges) == 1 and len({*ranges[0]}) == 1 else several} {_listed(ranges)}")
    if where.share == 1 and not parts:
        return "every head, perhaps in each in another way"
    share = "under 1%" if where.share < 0.005 else f"{where.share:.0%}"
    return f"{', '.join(parts) or 'places without a pattern'} ({share} of the rows)"


def _listed(ranges):
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in ranges)


def _shared(found):
    if found.blind_rows:
        yield BLIND[found.blind_rows]
    if found.zero_rows and not found.dialect:
        yield f"{found.zero_rows:,} rows that see keys are 0."
    looked_at, of = found.rows
    if looked_at < of:
        yield f"{looked_at:,} of {of:,} rows were looked at."
