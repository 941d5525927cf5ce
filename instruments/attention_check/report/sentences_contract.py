"""What a kernel can do and how it is called, in words: findings of the calls that `contract` asks for."""

from attention_check.conventions.conventions import of_keys
from attention_check.measure.contract import BY_DEFAULT
from attention_check.measure.plan import FEW
from attention_check.report.capability_labels import labels
from attention_check.report.sentence import Sentence, as_times, each


def _convention(f, at):
    if at["keys"] == "layout_all_bshd":
        return Sentence(
            "It reads (batch, sequence, heads, head_dim), and was judged so",
            more="Called with (batch, heads, sequence, head_dim), it gave attention over heads. --layout bshd says so.",
        )  # fmt: skip
    return Sentence(
        f"It computes {of_keys(at['keys'])}, which was not asked for",
        more="All else was judged as if that had been asked for.",
    )  # fmt: skip


def _takes(f, at):
    if at["key"] == "one_query":
        return Sentence(
            "It takes one query a call: it was called for one after the other",
            more="Under a causal mask each got the keys up to its own. "
            f"Up to {FEW} queries and no gradients were asked for.",
        )
    width = at["key"].removeprefix("v_")
    return Sentence(f"It takes {width} values of V, fewer than features of Q: it was called for so many at a time")


def _top_left(f, at):
    return Sentence(
        "Where queries are fewer than keys, its causal mask is aligned top-left, as torch's is_causal",
        more="The rule over shapes leaves these calls out.",
    )  # fmt: skip


def _alignment(f, at):
    several, one = ("top-left" if at[name] == "top_left" else "bottom-right" for name in ("several", "one"))
    return Sentence(
        f"Where queries are fewer than keys its causal mask has two alignments: {several} for several queries, "
        f"{one} for one", more="A chunk of a prompt and a single token then see other keys.",
        change="choose one alignment",
    )  # fmt: skip


def _causal_only(f, at):
    return Sentence("It has a causal mask and no other way: all of it was judged causally")


def _by_default(f, at):
    return Sentence("Where `causal` is not given it masks causally: it was judged with causal=False and causal=True")


def _raises(f, at):
    return Sentence(
        f"It raises an error that is no refusal, so not judged: {'; '.join(labels(zip(at['asked'], at['dims'])))}; "
        f"the first {at['problem'].rstrip('.:')}",
        change="mend it, or raise NotImplementedError or ValueError where the kernel lacks an option",
    )


def _less_than_format(f, at):
    return Sentence(
        f"Of inputs in {at['fmt']} its error is not that of {at['fmt']}",
        f"{as_times(f.number, f.limit)} × that of plain sums", f"{f.limit:g} ×",
        "A step in a shorter format does this, as TF32 does in products, or an exponential that is made for one. "
        "All other errors are judged in other formats.",
    )  # fmt: skip


def _unsupported(f, at):
    return Sentence(f"Not supported, so not judged: {'; '.join(labels(zip(at['asked'], at['dims'])))}")


WORDINGS = {
    "convention": each(_convention), "takes": each(_takes), "top_left": each(_top_left), "alignment": each(_alignment),
    "causal_only": each(_causal_only), BY_DEFAULT: each(_by_default), "raises": each(_raises),
    "less_than_format": each(_less_than_format), "unsupported": each(_unsupported),
}  # fmt: skip
