"""One setting of everything that notebook 00 has a control for: Flash and Baseline held against the golden value."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import EXACT, SEQUENTIAL, Dot
from fa_lib.numerics.formats import BF16, FP32, Format, FormatLike
from fa_lib.numerics.metrics import Deviation, deviation, over_baseline
from fa_lib.numerics.tensor_cores import UNITS, TensorCore

STEPS = (  # of a forward pass
    "inputs", "scores", "exponent", "probs", "maximum", "factors", "row_sum", "accumulator", "output",
)  # fmt: skip
PRESETS = {"every_step": Precision.uniform, "as_shipped": Precision.kernel}


def products_for(inputs: FormatLike, probs: FormatLike) -> dict[str, Dot]:
    """The ways to sum Q Kᵀ and P V that notebook 00 offers for Q, K, V and P in these formats: "exact"; "wide" and
    "narrow", in order, every product and addition in FP32 (or a wider format of theirs) and in their own format where
    it is narrower; and the tensor core of each GPU that takes them, by the GPU's name."""
    fmt, other = Format.of(inputs), Format.of(probs)
    widest = max(fmt, other, FP32, key=lambda each: each.precision)
    found: dict[str, Dot] = dict(exact=EXACT, wide=SEQUENTIAL(widest))
    if fmt == other:
        found |= dict(narrow=SEQUENTIAL(fmt)) if fmt.precision < FP32.precision else {}
        found |= {unit.unit: TensorCore.of(unit.unit, fmt) for unit in UNITS if unit.inputs == fmt}
    return found


@dataclass(frozen=True)
class ExplorerSettings:
    """One position of all controls. The defaults are figure 4's, at half its N.

    Attributes:
        fmt: Format of Baseline, and of the units of an error. precision: Flash's; its products are Baseline's too.
            (The golden value takes the inputs as the kernel does.)
        tiling: B_r rows are worked on at once, against B_c keys at a time. n, head_dim: of Q, K, V; one head.
        algorithm, causal: as `tiled`. distribution, seed: as `draw`.
    """

    fmt: Format = BF16
    precision: Precision = Precision.uniform(BF16)
    algorithm: str = "fa1"
    tiling: Tiling = Tiling(128, 64)
    n: int = 1024
    head_dim: int = 64
    distribution: str = "uniform"
    seed: int = 0
    causal: bool = False

    @property
    def preset(self) -> str:
        """The key of the preset that Flash's steps are, or "custom"."""
        nearest, changed = self.nearest_preset
        return "custom" if changed else nearest

    @property
    def nearest_preset(self) -> tuple[str, dict[str, str]]:
        """The preset that differs from Flash in the fewest steps, and the formats of those steps."""
        own = formats_of_steps(self.precision)
        changed = {}
        for key, preset in PRESETS.items():
            theirs = formats_of_steps(preset(self.fmt))
            changed[key] = {step: name for step, name in own.items() if name != theirs[step]}
        nearest = min(PRESETS, key=lambda key: len(changed[key]))
        return nearest, changed[nearest]


def formats_of_steps(precision: Precision) -> dict[str, str]:
    """step -> the name of its format, for the steps of a forward pass."""
    return {step: getattr(precision, step).name for step in STEPS}


@dataclass(frozen=True)
class Found:
    """What `compare` finds. In dicts by key: "flash", "baseline".

    Attributes:
        errors: out - golden, float64 (n, head_dim). deviations: the Deviation of each.
        rescales: tiles that raised a row's maximum, mean over rows. tiles: of K and V.
    """

    errors: dict[str, torch.Tensor]
    deviations: dict[str, Deviation]
    rescales: float
    tiles: int

    @property
    def times(self) -> float:
        """Flash's largest error over Baseline's, as `metrics.over_baseline`."""
        return over_baseline(self.deviations["flash"].max, self.deviations["baseline"].max)

    @property
    def measured(self) -> bool:
        """Whether Baseline is a measure: its errors are finite, and it is not the golden value itself."""
        baseline = self.deviations["baseline"].max
        return math.isfinite(baseline) and baseline > 0

    @property
    def verdict(self) -> str:
        """By the rule of the field: "passes", "fails" (as NaN does), or "silent" where Baseline is no measure."""
        if not self.measured:
            return "silent"
        return "passes" if self.times <= ALLOWED["o"] else "fails"


def compare(setting: ExplorerSettings) -> Found:
    """Flash and Baseline of ExplorerSettings held against the golden value."""
    s = setting
    drawn = s.distribution, s.seed, s.n, s.head_dim
    q, k, v = _drawn(*drawn)
    options: dict[str, Any] = dict(tiling=s.tiling, precision=s.precision, causal=s.causal)
    flash = kernels.tiled(q, k, v, algorithm=s.algorithm, rows=s.tiling.block_q, **options)
    outs = {
        "flash": (flash, s.precision.inputs),
        "baseline": (_baseline(*drawn, s.causal, s.fmt, s.precision.products), s.fmt),
    }
    golden = {key: _golden(*drawn, s.causal, inputs) for key, (_, inputs) in outs.items()}
    return Found(
        {key: (out - golden[key])[0, 0] for key, (out, _) in outs.items()},
        {key: deviation(out, golden[key], s.fmt) for key, (out, _) in outs.items()},
        kernels.rescales(q, k, **options).double().mean().item(),
        -(-k.shape[-2] // s.tiling.block_kv),
    )


# A control that is moved back and forth finds here what the others leave unchanged.


@lru_cache(4)
def _drawn(distribution, seed, n, head_dim):
    return draw(distribution, seed, (1, 1, n, head_dim))


@lru_cache(4)
def _golden(distribution, seed, n, head_dim, causal, inputs):
    return kernels.golden(*_drawn(distribution, seed, n, head_dim), inputs=inputs, causal=causal)


@lru_cache(4)
def _baseline(distribution, seed, n, head_dim, causal, fmt, products):
    drawn = _drawn(distribution, seed, n, head_dim)
    return kernels.reference(*drawn, precision=replace(Precision.materialized(fmt), products=products), causal=causal)
