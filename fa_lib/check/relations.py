"""Relations that no attention kernel may break: asked of a black box, exact or to a derived bound."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fa_lib import kernels
from fa_lib.check import relations_batch, relations_value
from fa_lib.check.contract import ABLE, Ability, causally
from fa_lib.check.subject import Subject
from fa_lib.experiments.variant import known
from fa_lib.formats import Format


@dataclass(frozen=True)
class Relation:
    """What must hold.

    Attributes:
        key: as tables hold it.
        says: one sentence: what must hold.
        source: the public thread or paper that shows why it is asked.
        ask: a generator of rows (`subject.cases`) from a Subject; its docstring derives the bound.
        bits: the mathematics says the same bits: a difference within rounding is told.
        nan_is_told: NaN in the answer is told, and not counted.
    """

    key: str
    says: str
    source: str
    ask: Callable[[Subject], Iterator[dict]]
    bits: bool = False
    nan_is_told: bool = False


RELATIONS = {each.key: each for each in (
    Relation("batch_invariance", "A row of Q alone has the bits that it has in a batch.", "vllm-project/vllm#40193",
             relations_batch.batch_invariance, bits=True),
    Relation("constant_values", "V that is the same for every key is the output.", "modular/modular#6198",
             relations_value.constant_values),
    Relation("powers_of_two", "V times a power of two gives O times it, bit for bit.", "NVIDIA/TransformerEngine#3248",
             relations_value.powers_of_two, bits=True),
)}  # fmt: skip


def relate(
    kernel: str | Callable, key: str, fmt: str, head_dim: int = 64, device: str = "cpu", able: Ability = ABLE,
    seed: int = 0, n: int = 256,
) -> list[dict]:  # fmt: skip
    """A cell: one relation, asked of one kernel.

    Args:
        kernel: as `kernels.plain` takes it. key: of RELATIONS. fmt: name of the inputs' format.
        able: what `contract` found. n: keys of most cases.

    Returns:
        rows: relation, case, outcome, number, limit, problem. outcome: "bitwise" (the difference is 0), "rounding" (it
        is within the limit), "breaks", "not_asked" (the kernel raises, or has no such option) or "broken" (it returns
        something of no use). number, limit: of `subject.Found`.

    Raises:
        ValueError: there is no such kernel, relation or format.
    """
    relation, fn = known("key", key, RELATIONS), kernels.plain(kernel)
    fn = causally(fn) if able.causal else fn
    subject = Subject(fn, Format.of(fmt), head_dim, device, able, seed, n)
    return [dict(relation=key) | row for row in relation.ask(subject)]
