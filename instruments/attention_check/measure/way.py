"""How a kernel is called: at which head_dim, under which convention, one query at a time or all of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from attention_check.isolation.calls import FAULTS
from attention_check.isolation.worker import Outcome
from attention_check.measure.capability import GRADIENTS, UNMASKED, Capabilities, parameters
from attention_check.measure.contract import OTHER_LAYOUT, adapted, contract, formats, reads_other_layout
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef

USUAL, UNUSUAL = (64, 128, 32), (256, 192, 96, 80, 40)  # head_dims that are tried
ONE_QUERY = "one_query"
NARROW = {  # conventions of a kernel that takes few calls -> the head_dims they are tried at
    (): UNUSUAL, (ONE_QUERY,): (*USUAL, *UNUSUAL), ("v_512",): (576,), ("v_128",): (192,), ("v_512", ONE_QUERY): (576,),
    ("v_128", ONE_QUERY): (192,),
}  # fmt: skip
QUERIES = 16  # of a call, for a kernel that is called for one after the other


@dataclass(frozen=True)
class Way:
    """Attributes:
    kernel: adapted to its conventions. conventions: their keys. asked: the table of `contract`. head_dim: of most
        calls. able: what it can do.
    """

    kernel: KernelRef | str | Callable
    conventions: tuple[str, ...]
    asked: pd.DataFrame
    head_dim: int
    able: Capabilities

    @property
    def formats(self) -> list[str]:
        """The formats that it has at its head_dim."""
        return formats(self.asked[self.asked.head_dim == self.head_dim])


def way_of(
    kernel: KernelRef | str | Callable, device: str = "cpu", queries: int | None = None,
    head_dims: Iterable[int] | None = (),
) -> Way:  # fmt: skip
    """How a kernel is called. One that reads the other layout is judged so. One that raises at every call is tried at
    other head_dims, with one query at a time, and with a V of another head_dim, before it is given up.

    Args:
        queries, head_dims: as of `contract`.
    """
    way = Way(kernel, (), *probe_capabilities(kernel, device, queries, head_dims))
    if reads_other_layout(way.asked):
        own = adapted(way.kernel, [OTHER_LAYOUT])
        way = Way(own, (OTHER_LAYOUT,), *probe_capabilities(own, device, queries, head_dims))
    if head_dims is None or not (way.asked.outcome == Outcome.REFUSED).all():
        return way
    for more, tried_at in NARROW.items():
        own, few = adapted(way.kernel, more), QUERIES if ONE_QUERY in more else queries
        found = Way(own, (*way.conventions, *more), *probe_capabilities(own, device, few, head_dims, tried_at))
        if formats(found.asked):
            return found
    return way


def probe_capabilities(
    kernel: KernelRef | str | Callable, device: str, queries: int | None = None, head_dims: Iterable[int] | None = (),
    tried_at: Iterable[int] = USUAL,
) -> tuple[pd.DataFrame, int, Capabilities]:  # fmt: skip
    """The table of `contract`, the head_dim it is of, and its Capabilities. head_dim is the first that the kernel has
    in some format, without a mask or else causally. What it broke or got wrong at others before stands in the table
    too, also without a mask (UNMASKED) where it has a parameter `causal`: else it masks always. Where it has none, the
    first of those that it broke or got wrong is told, and not that it refuses another."""
    tried, told = [], "causal" in (parameters(kernels.plain(kernel)) or {})
    for head_dim in tried_at:
        for causal in (False, True):
            asked = pd.DataFrame(contract(kernel, head_dim, device, causal, queries, head_dims))
            if formats(asked):
                faults = [other[other.outcome.isin(FAULTS)] for was, other in tried if was == causal]
                if causal and told:
                    faults += [rows[rows.outcome.isin(FAULTS)][:1].assign(asked=UNMASKED) for _, rows in tried[-1:]]
                gradients = (asked.outcome[asked.asked == GRADIENTS] == Outcome.ANSWERED).any()
                able = Capabilities(bool(gradients), causal, bool((asked.note == "top_left").any()))
                return pd.concat([asked, *faults], ignore_index=True), head_dim, able
            tried.append((causal, asked))
    telling = [asked for _, asked in tried if asked.outcome.isin(FAULTS).any()]
    asked = (telling or [tried[0][1]])[0]
    return asked, int(asked.head_dim.iloc[0]), Capabilities()
