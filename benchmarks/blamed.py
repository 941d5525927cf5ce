"""Which step of a GPU kernel adds how much to its error: kernels blamed line by line, and what they would be with the
coarse lines in FP32. `make blame` writes data/blame, in some ten minutes of two cores; finished cells stay in
build/blamed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from attention_check.gpu.blame import Blame, blame, what_if
from attention_check.gpu.flash_attn import forward
from benchmarks.tables import save_table
from fa_lib import kernels, sweep
from fa_lib.execution.paths import ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import FP32, Format
from fa_lib.numerics.metrics import over_baseline
from ptx_machine.device import GPU
from ptx_machine.shadow.policy import Line


def fa2_forward(q: Tensor, k: Tensor, v: Tensor, *, gpu: str | GPU = "A100") -> Tensor:
    """FlashAttention-2's plain kernel, whose blocks each see all keys; q, k, v, o: (batch, heads, n, head_dim)."""
    return forward(q, k, v, gpu=gpu, splits=1)[0]


@dataclass(frozen=True)
class Call:
    """A call of a kernel that is blamed.

    Attributes:
        kernel: its name, for `kernels.get`.
        fmt: of the inputs. n_q, n: queries, keys.
        steps: words for a step -> a file's name, and numbers of lines in it. What has no words is "other".
        coarse: the steps that the kernel has in 16 bits and could have in FP32.
    """

    kernel: str
    fmt: str
    n_q: int
    n: int
    steps: Mapping[str, list]
    coarse: Sequence[str] = ()

    def step_of(self, line: Line) -> str:
        """Return the words of a line's step: of the innermost call that has any."""
        for file, number in line.frames:
            for words, (name, *numbers) in self.steps.items():
                if Path(file).name == name and number in numbers:
                    return words
        return "other"


CALLS = {key: Call(**call) for key, call in yaml.safe_load(Path(__file__).with_name("blamed.yaml").read_text()).items()}


def blamed(call: str, distribution: str, seed: int) -> list[dict[str, Any]]:
    """A cell: a row for each step of a kernel: step, share (of the squared error), lines (as file:number); and of the
    kernel: relative (its error, root mean square), times (its largest error over Baseline's), times_fixed (the same
    with its coarse steps in FP32; its own where it has none), distance (of its numbers without errors to the golden
    value)."""
    given = CALLS[call]
    fmt = Format.of(given.fmt)
    q, k, v = draw(distribution, seed, (1, 1, given.n_q, 64), (1, 1, given.n, 64))
    q, k, v = (x.to(fmt.dtype) for x in (q, k, v))
    found = blame(given.kernel, q, k, v)
    golden = kernels.golden(q, k, v, inputs=fmt)
    baseline = kernels.reference(*(x.double() for x in (q, k, v)), precision=Precision.materialized(fmt))
    bound = (baseline - golden).abs().max().item()
    steps: dict[str, list[Line]] = {}
    for line in found.added:
        steps.setdefault(given.step_of(line), []).append(line)
    coarse = [line for step in given.coarse for line in steps.get(step, ())]
    whole = dict(
        relative=found.relative, distance=found.distance, times=over_baseline(found.error.abs().max().item(), bound),
        times_fixed=over_baseline(_without(found, coarse, given.kernel, (q, k, v)), bound),
    )  # fmt: skip
    return [
        whole | dict(step=step, share=found.share(lines), lines=" ".join(sorted({line.name for line in lines})))
        for step, lines in steps.items()
    ]  # fmt: skip


def _without(found: Blame, coarse: list[Line], kernel: str, tensors: tuple[Tensor, Tensor, Tensor]) -> float:
    """The largest error with lines in FP32."""
    if not coarse:
        return found.error.abs().max().item()
    (error,) = what_if(kernel, *tensors, [dict.fromkeys(coarse, FP32)])
    return error.abs().max().item()


GRID = dict(call=[*CALLS], distribution=["normal", "uniform"], seed=range(3))


def main():
    with workers(os.cpu_count() or 1) as pool:
        table = sweep(blamed, GRID, cache=build() / "blamed", executor=pool)
    save_table(ROOT / "data" / "blame" / "steps", table, GRID, dict(gpu="A100", head_dim=64, torch=torch.__version__))


if __name__ == "__main__":
    main()
