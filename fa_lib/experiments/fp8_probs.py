"""P in E4M3: small values of P become 0 where a sink, or a peaked row, has its maximum far above the other scores."""

import math
from dataclasses import replace
from typing import Any

import torch

from fa_lib.execution.lookup import lookup
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import Scheme
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, E4M3, FP32, FP64

LOST = 10 * math.log(2)  # 6.93: exp(-LOST) is half of E4M3's smallest number, and what is smaller rounds to 0
SINK_KEYS = 4
KINDS = {"keys": SINK_KEYS, "logit": 0}  # what the sink is -> keys that it takes
CASTS = {  # (last tile first, offset of P in powers of two) of `sink_cast`
    "forward": (False, 0),
    "reversed": (True, 0),
    "forward_256": (False, 8),
    "reversed_256": (True, 8),
}


def sink_cast(
    strength: float, kind: str, seed: int, *, n: int = 4096, rows: int = 64, head_dim: int = 64, block_kv: int = 128
) -> list[dict]:
    """A cell: measure what a cast of P to E4M3 loses beside a sink (arXiv 2606.06521); all else is in FP32.

    The scores of each row are N(0, 1): queries are normalised to length sqrt(head_dim). The paper's sink is the first
    `SINK_KEYS` keys, whose scores are `strength` higher.

    Args:
        strength: what is added to the scores of a sink's keys; of a learned sink, its logit.
        kind: a key of KINDS: "keys", or "logit", a learned sink, which has no key and no value.
        seed: of the draw. n: keys. rows: queries. block_kv: keys of a tile.

    Returns:
        rows: cast, a key of CASTS; lost, the share of the other keys' P that are 0 in E4M3; mse, the mean square error
        of O.

    Raises:
        ValueError: there is no such kind.
    """
    sink_keys = lookup("kind", kind, KINDS)
    q, k, v = draw("normal", seed, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    q = q / q.norm(dim=-1, keepdim=True) * head_dim**0.5
    sink: dict[str, Any] = dict(sinks=torch.tensor([strength], dtype=torch.float64))
    if sink_keys:
        added = torch.zeros(n, dtype=torch.float64)
        added[:sink_keys] = strength
        sink = dict(mask=added)
    problem, results = Problem(q, k, v, options=sink), []
    for cast, (reverse, offset) in CASTS.items():
        zeros: list[int] = []

        def counted(x, zeros=zeros, offset=offset):
            P = torch.exp(x)
            zeros.append(int((E4M3(P * 2.0**offset) == 0).sum()))
            return P

        algorithm = Algorithm("fa2", exp=counted, p_exponent_offset=offset, reverse=reverse)
        precision = replace(Precision.kernel(FP32), probs=E4M3)
        mse = problem.deviation(problem.tiled(Tiling(64, block_kv), precision, algorithm), FP32).rmse ** 2
        results.append(dict(cast=cast, lost=sum(zeros) / (rows * (n - sink_keys)), mse=mse))
    return results


def lost_share(strength: float, scale: float, delta: float = 1.0) -> float:
    """Compute the share of P that the paper predicts to be 0, for tiles in order: the share of scores N(0, 1) that lie
    more than LOST + ln(scale) below the sink.

    Args:
        strength: of the sink. scale: the factor of P before the cast.
        delta: by how much the largest of the sink's own scores exceeds `strength`; in the paper about 1 for four keys.
    """
    return 0.5 * (1 + math.erf((strength + delta - LOST - math.log(scale)) / math.sqrt(2)))


def row_mass(spread: float, n: int, seed: int, *, rows: int = 1024, head_dim: int = 128) -> list[dict]:
    """A cell: measure the output where V, and so the right output, is 1 everywhere (FlyDSL's pull request 1020).

    The row sum takes P before its cast, and the output P after it. Q and K are in BF16, and for FP8 in E4M3 with one
    scale each. That kernel replaces m at every rise ("eager"), or where it has risen by more than 2**8
    ("lazy"); which one gave the numbers is not stated. The change raises P by 2 to the power of log2(448) less the
    threshold, and lowers the threshold from 8 to 6, above 4,096 keys to 4. (Here P is raised by whole powers of two,
    2**2 and 2**4.)

    Args:
        spread: standard deviation of the scores; 2 in the test that came with the change. n: keys. rows: queries.

    Returns:
        rows: kernel, "bf16", "fp8_eager", "fp8_lazy" or "fp8_raised"; smallest and mean output; short, the share of
        outputs below 0.99.
    """
    q, k, v = draw("normal", seed, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    q, k, ones = BF16(q * spread), BF16(k), torch.ones_like(v[..., :1])
    scaled = Scheme(E4M3).apply(q), Scheme(E4M3).apply(k)
    fp8 = replace(Precision.kernel(BF16), inputs=FP64, probs=E4M3)
    threshold = 6 if n <= 4096 else 4
    raised = Algorithm("fa4", threshold=threshold, p_exponent_offset=math.floor(math.log2(E4M3.max)) - threshold)
    calls = dict(
        bf16=((q, k), Precision.kernel(BF16), Algorithm("fa4", threshold=8)),
        fp8_eager=(scaled, fp8, Algorithm("fa2")),
        fp8_lazy=(scaled, fp8, Algorithm("fa4", threshold=8)),
        fp8_raised=(scaled, fp8, raised),
    )
    results = []
    for name, ((loaded_q, loaded_k), precision, algorithm) in calls.items():
        o = Problem(loaded_q, loaded_k, ones).tiled(Tiling(64, 64), precision, algorithm)
        short = (o < 0.99).double().mean().item()
        results.append(dict(kernel=name, smallest=o.min().item(), mean=o.mean().item(), short=short))
    return results
