"""A kernel that is checked: how it is called, on what and how thoroughly."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from attention_check.measure.capability import ALL_CAPABILITIES, CAUSAL_FEWER, FEWER, Capabilities
from attention_check.measure.carry import QUERIES
from attention_check.measure.plan import CheckPlan, of_one_query
from attention_check.measure.reference_cache import ORDINARY, Inputs
from attention_check.measure.way import ONE_QUERY, USUAL, Way
from fa_lib import kernels
from fa_lib.execution.sweep import sweep
from fa_lib.kernels.kernel_ref import KernelRef

FEW = (1, 16)  # queries that errors are measured at, beside as many as keys: decoding takes other paths


@dataclass(frozen=True)
class CheckedKernel:
    """A kernel that is checked.

    Attributes:
        way: how it is called, and what it can do.
        plan: how thoroughly it is checked.
        judged: the formats that its errors are judged in: BF16 and FP16, else FP32; none where it has none of them.
        device: torch's. cache: of `sweep`.
        distributions, queries: of the inputs over lengths; with fewer queries than keys, and as many.
        sum_queries: of the sums that it may carry in low precision. cast_formats: of the inputs that show its casts.
        kept: tables that several checks share.
    """

    way: Way
    plan: CheckPlan
    judged: tuple[str, ...]
    device: str = "cpu"
    cache: str = ""
    distributions: Sequence[str] = ORDINARY
    queries: Sequence[int] = FEW
    sum_queries: Sequence[int] = QUERIES
    cast_formats: Sequence[str] = ()
    kept: dict[tuple, pd.DataFrame] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, way: Way, plan: CheckPlan, **settings: Any) -> "CheckedKernel":
        """Choose formats and numbers of queries by what a kernel can do; settings: device, cache."""
        answered, one_query = way.formats, ONE_QUERY in way.conventions
        judged = [fmt for fmt in answered if fmt in ("BF16", "FP16")] or [fmt for fmt in answered if fmt == "FP32"]
        if not isinstance(way.kernel, (str, KernelRef)):
            way = replace(way, kernel=partial(way.kernel))  # a function may be a dataclass, which is several columns
        if plan.arithmetic:  # Baseline's has no backward pass
            way = replace(way, able=replace(way.able, gradients=False))
        checked = cls(way, of_one_query(plan) if one_query else plan, tuple(judged), **settings)
        few = () if checked.top_left else FEW[:1] if one_query else FEW  # aligned top-left they would see few keys
        casts = tuple(fmt for fmt in answered if fmt != "FP64")
        return replace(checked, queries=few, sum_queries=QUERIES[:1] if one_query else QUERIES, cast_formats=casts)

    @classmethod
    def likely(cls, kernel: KernelRef | Callable, plan: CheckPlan, **settings: Any) -> "CheckedKernel":
        """What it will be for most kernels, before it is known what this one can do."""
        return cls(Way(kernel, (), pd.DataFrame(), USUAL[0], ALL_CAPABILITIES), plan, ("BF16", "FP16"), **settings)

    @property
    def kernel(self) -> KernelRef | str | Callable:
        return self.way.kernel

    @property
    def able(self) -> Capabilities:
        return self.way.able

    @property
    def top_left(self) -> bool:
        """Whether it always masks causally, aligned top-left."""
        if not self.able.causal:
            return False
        asked = self.way.asked
        return bool((asked.note[asked.asked.isin((FEWER, CAUSAL_FEWER))] == "top_left").any())

    @property
    def call(self) -> dict[str, Any]:
        """The arguments that most cells share."""
        return dict(kernel=self.kernel, head_dim=self.way.head_dim, device=self.device)

    def sweep(self, cell: Callable, grid: dict, **fixed: Any) -> pd.DataFrame:
        """Measure the cells of a grid, as `sweep`."""
        return sweep(cell, grid, fixed=fixed, uses=[kernels.get(self.kernel)], cache=self.cache)

    def inputs_for(
        self, distributions: Sequence[str], n: int, queries: Sequence[int | None], seeds: int, first: int | None = None
    ) -> list[Inputs]:
        """Make the Inputs of n keys, the formats of one draw next to each other.

        Args:
            queries: None is as many as keys. seeds: draws of each. first: the first seed; None is the plan's.
        """
        settings: dict[str, Any] = dict(head_dim=self.way.head_dim, causal=self.able.causal, device=self.device)
        settings |= dict(arithmetic=self.plan.arithmetic)
        first = self.plan.first_seed if first is None else first
        return [
            Inputs(fmt, distribution, n, seed, n_q, **settings)
            for distribution in distributions for n_q in queries
            for seed in range(first, first + seeds) for fmt in self.judged
        ]  # fmt: skip

    def over_lengths(self) -> tuple[list[Inputs], list[int]]:
        """Make the Inputs of the first draw over lengths, of the plan and drawn at random; and the order in which the
        kernel is called on them: drawn at random too, but that the formats of one draw stay together."""
        plan, rng = self.plan, random.Random(self.plan.drawn_seed)
        random_lengths = [] if plan.drawn_seed is None else [rng.randint(*ends) for ends in plan.drawn]
        settings = [(n, plan.first_seed) for n in plan.lengths]
        settings += [(n, plan.drawn_seed or 0) for n in random_lengths]
        inputs = []
        for n, seed in settings:
            queries = (*self.queries, None) if n <= plan.square else self.queries
            inputs += self.inputs_for(self.distributions, n, queries, 1, seed)
        size = len(self.judged)
        blocks = [range(start, start + size) for start in range(0, len(inputs), size)]
        if plan.drawn_seed is not None:
            rng.shuffle(blocks)
        return inputs, [i for block in blocks for i in block]
