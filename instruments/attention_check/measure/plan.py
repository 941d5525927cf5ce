"""How thoroughly a kernel is examined."""

from dataclasses import dataclass, replace

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.quantization_schemes import SCHEMES
from fa_lib.kernels.rule import CALLS

FEW = 128  # queries of a call, for a kernel that takes one at a time


@dataclass(frozen=True)
class CheckPlan:
    """How thoroughly a kernel is examined.

    Attributes:
        lengths: N, for the growth of the error; seeds: draws of each.
        shapes: of the rule over shapes and masks, keys of `rule.CALLS`; head_dims: of each, beside the kernel's own, in
            one format and the next by turns.
        troubled_n: N of the inputs that make trouble; bias_seeds: draws of each.
        runs: of one call, for determinism.
        asked_queries, asked_head_dims: as `contract` has them.
        square: the largest N that is measured with as many queries as keys; above it, with FEW. Nor are carries asked
            for with more queries.
        first_seed: of all inputs that are drawn: others are other draws.
        relations: keys of `relations.RELATIONS`, None is all; related_n: keys of most of their cases; related_formats:
            so many formats they are asked for, BF16 before FP16.
        drawn: ranges of N, from each of which one is drawn beside `lengths`; drawn_seed: of these, of the inputs there
            and of the order in which lengths are asked for, so that no kernel knows the calls of a judgement before;
            None draws nothing and keeps the order.
        arithmetic: of Baseline, as of `low_bits.baseline_in`; a kernel in fewer bits is then judged without its
            gradients and without the bounds that are derived for its format.

    Raises:
        ValueError: a shape or an arithmetic is not known.
    """

    lengths: tuple[int, ...]
    seeds: int
    shapes: tuple[str, ...]
    head_dims: tuple[int, ...]
    troubled_n: int
    bias_seeds: int
    runs: int
    asked_queries: int | None = None
    asked_head_dims: tuple[int, ...] | None = ()
    square: int = 2**16
    first_seed: int = 0
    relations: tuple[str, ...] | None = ()
    related_n: int = 256
    related_formats: int = 2
    drawn: tuple[tuple[int, int], ...] = ()
    drawn_seed: int | None = None
    arithmetic: str = ""

    def __post_init__(self):
        for shape in self.shapes:
            lookup("shape", shape, CALLS)
        if self.arithmetic:
            lookup("arithmetic", self.arithmetic, SCHEMES)


QUICK = CheckPlan(  # seconds
    lengths=(128, 1024), seeds=1, shapes=("97", "256", "causal 384", "causal GQA 203"), head_dims=(32,),
    troubled_n=128, bias_seeds=3, runs=3,
    relations=("batch_invariance", "strides", "constant_values", "low_scores", "causality", "dv_sum", "splits",
               "tiny_values"),
    square=1024, drawn=((4097, 6144),),
)  # fmt: skip
REPORT = CheckPlan(  # 20 to 40 seconds for a kernel of torch's
    lengths=(128, 512, 1500, 4096), seeds=3,
    shapes=("97", "113 x 203", "256 x 97", "causal 203", "causal 113 x 203", "128 x 384", "causal 384",
            "causal GQA 203", "GQA 384", "causal MQA 384", "window 512", "causal window 512", "1500"),
    head_dims=(64, 128), troubled_n=512, bias_seeds=5, runs=100, relations=None,
    square=8192, drawn=((129, 4095), (4097, 8192)), asked_head_dims=(*range(8, 257, 8),),
)  # fmt: skip
PLANS = {"quick": QUICK, "report": REPORT}


def of_one_query(plan: CheckPlan) -> CheckPlan:
    """The plan for a kernel that is called for one query after the other: fewer queries a call."""
    shapes = tuple(shape for shape in plan.shapes if CALLS[shape].n_q <= FEW)
    fewer = {name: min(getattr(plan, name), FEW) for name in ("square", "troubled_n", "related_n")}
    return replace(plan, shapes=shapes, **fewer)
