"""Which relations between a kernel's outputs hold, in words."""

from attention_check.measure.relations import RELATIONS
from attention_check.measure.relations.subject import BROKEN, CONVENTION, ROUNDING
from attention_check.report.sentence import Sentence, each


def _relation(f, at):
    relation = RELATIONS[at["relation"]]
    says = relation.says.removesuffix(".")
    also = "" if len(at["cases"]) == 1 else f", and {len(at['cases']) - 1} more"
    place = f"{at['case']}, {at['fmt']}{also}"
    if at["outcome"] == BROKEN:
        return Sentence(f"{says}: asked for that, it {at['problem']} ({place})")
    if at["outcome"] == CONVENTION:
        return Sentence(f"{says}: here it is {at['problem']}, which is a convention ({place})")
    if f.number is None:
        return Sentence(f"{says}: not here, where it gives NaN ({place})")
    if at["outcome"] == ROUNDING:
        return Sentence(f"{says}: to rounding, not bit for bit ({place})", f"{f.number:.2g} apart")
    because = f", {at['problem']}" if at["problem"] else ""
    return Sentence(f"{says}: not here{because} ({place})", *_either_side(f.number, f.limit, relation.unit))


def _either_side(number, limit, unit):
    """A number beyond its limit, and the limit, in as many digits as tell them apart; no limit where it has none."""
    if limit is None:
        return f"{number:.2g} {unit}", ""
    digits = next((n for n in range(2, 17) if f"{number:.{n}g}" != f"{limit:.{n}g}"), 17)
    return f"{number:.{digits}g} {unit}", f"{limit:.{digits}g}"


def _relations(f, at):
    more = f"{at['not_asked']} more were not asked: the kernel lacks the option." if at["not_asked"] else ""
    held = f"Relations that every attention kernel should keep hold in {at['held']} of {at['of']} cases"
    return Sentence(held, more=more)


WORDINGS = {"relation": each(_relation), "relations": each(_relations)}
