"""One setting of everything that notebook 00 has a control for: Flash and Baseline held against the golden value."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from fa_lib.experiments.problem import Problem
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
    """List the ways to sum Q Kᵀ and P V that notebook 00 offers.

    Args:
        inputs: the format of Q, K and V. probs: that of P.

    Returns:
        dict: "exact"; "wide", one product after the other in FP32 (or in a wider format of the two); where the two
        formats are the same, "narrow", the same in that format if it is narrower than FP32, and each GPU whose tensor
        core takes it, by the GPU's name.
    """
    fmt, other = Format.of(inputs), Format.of(probs)
    widest = max(fmt, other, FP32, key=lambda f: f.precision)
    ways: dict[str, Dot] = dict(exact=EXACT, wide=SEQUENTIAL(widest))
    if fmt == other:
        ways |= dict(narrow=SEQUENTIAL(fmt)) if fmt.precision < FP32.precision else {}
        ways |= {unit.unit: TensorCore.of(unit.unit, fmt) for unit in UNITS if unit.inputs == fmt}
    return ways


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
        """The key of the preset whose formats Flash's steps have; "custom" where there is none."""
        nearest, changed = self.nearest_preset
        return "custom" if changed else nearest

    @property
    def nearest_preset(self) -> tuple[str, dict[str, str]]:
        """The key of the preset that differs from Flash in the fewest steps, and step -> Flash's format of those."""
        formats = formats_of_steps(self.precision)
        changed = {}
        for key, preset in PRESETS.items():
            theirs = formats_of_steps(preset(self.fmt))
            changed[key] = {step: name for step, name in formats.items() if name != theirs[step]}
        nearest = min(PRESETS, key=lambda key: len(changed[key]))
        return nearest, changed[nearest]


def formats_of_steps(precision: Precision) -> dict[str, str]:
    """Return step -> the name of its format, for the steps of a forward pass."""
    return {step: getattr(precision, step).name for step in STEPS}


@dataclass(frozen=True)
class Comparison:
    """The results of `compare`. The keys of the dicts are "flash" and "baseline".

    Attributes:
        errors: key -> out - golden, float64 (n, head_dim). deviations: key -> the Deviation.
        rescales: how many tiles raised a row's maximum, mean over rows. tiles: how many K and V are cut into.
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
        """Whether Baseline is a measure: its errors are finite and not all 0."""
        baseline = self.deviations["baseline"].max
        return math.isfinite(baseline) and baseline > 0

    @property
    def verdict(self) -> str:
        """The rule's verdict on Flash: "passes", "fails" (NaN fails too), or "silent" where Baseline is no measure."""
        if not self.measured:
            return "silent"
        return "passes" if self.times <= ALLOWED["o"] else "fails"


def compare(setting: ExplorerSettings) -> Comparison:
    """Compute the errors of Flash and Baseline to the golden value."""
    s = setting
    problem = _problem(s.distribution, s.seed, s.n, s.head_dim, s.causal)
    flash = problem.tiled(s.tiling, s.precision, s.algorithm, rows=s.tiling.block_q)  # (1, 1, n, head_dim)
    baseline = problem.reference(replace(Precision.materialized(s.fmt), products=s.precision.products))
    golden = {"flash": problem.golden_of(s.precision.inputs), "baseline": problem.golden_of(s.fmt)}
    outs = {"flash": flash, "baseline": baseline}
    return Comparison(
        {key: (out - golden[key])[0, 0] for key, out in outs.items()},
        {key: deviation(out, golden[key], s.fmt) for key, out in outs.items()},
        problem.rescales(s.tiling, s.precision),
        -(-problem.k.shape[-2] // s.tiling.block_kv),
    )


@lru_cache(4)  # where one control is moved back and forth, a problem keeps what the control does not change
def _problem(distribution, seed, n, head_dim, causal):
    return Problem.drawn(distribution, seed, n, n, head_dim=head_dim, causal=causal)
