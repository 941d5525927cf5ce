"""Which source line of a GPU kernel loses the digits? `blame` runs a kernel once more with shadows beside its numbers
and says, for each line, how much of the output's error is its own.

A line's rounding errors are kept as they were made, and left out of one variant of the run: the variant's output lacks
what this line has added to the error. What all lines add sums up to the error, but for terms of second order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from attention_check.gpu import on
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.reference import golden
from fa_lib.numerics.formats import Format
from ptx_machine.device import GPU
from ptx_machine.shadow.observer import shadowed
from ptx_machine.shadow.policy import Line, Policy, Tally

MOST = 40  # lines that have a variant of their own: those that make the largest errors
FAR = 1e-6  # of the golden value: beyond it the shadows without errors are not what attention computes


@dataclass(frozen=True)
class Blame:
    """What the lines of a kernel add to its output's error.

    Attributes:
        kernel: its name. gpu: of the arithmetic.
        error: o - exact, float64, as o.
        exact: o without any rounding error, float64.
        added: line -> its part of `error`, float64, as o.
        coarse: line -> the error if this line rounded to `coarse_format`, relative to now.
        coarse_format: the format of q.
        tallies: line -> Tally of its rounding errors.
        lost: as Policy.lost: where the shadows of numbers ended.
        distance: of `exact` from the golden value: root mean square, over that of the golden value.
    """

    kernel: str
    gpu: str
    error: Tensor
    exact: Tensor
    added: dict[Line, Tensor]
    coarse: dict[Line, float]
    coarse_format: Format
    tallies: dict[Line, Tally]
    lost: dict[Line, dict[str, int]]
    distance: float

    @property
    def relative(self) -> float:
        """The error: root mean square, over that of the exact output."""
        return float(self.error.norm() / self.exact.norm())

    @property
    def complete(self) -> bool:
        """Whether the shadows without errors are what attention computes, so that no step was missed."""
        return self.distance < FAR

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each line, the largest share first: file, number, text (the source's), within (the line that calls
        it, as file:line), share (of the squared error; all shares add up to 1, and one that undoes others' errors is
        negative), without (the error if it were exact, relative to now), coarse (if it rounded to `coarse_format`), own
        (its errors, root mean square, relative to the numbers), count (of numbers), what (its instructions)."""
        rows = [self._row(line, part) for line, part in self.added.items()]
        columns = ["file", "number", "text", "within", "share", "without", "coarse", "own", "count", "what", "line"]
        table = pd.DataFrame(rows, columns=columns)
        return table.sort_values("share", ascending=False, kind="stable").reset_index(drop=True)

    def _row(self, line: Line, part: Tensor) -> dict:
        tally, ((file, number), *callers) = self.tallies[line], line.frames or [("", 0)]
        return dict(
            file=file, number=number, text=source_text(file).get(number, "").strip(), line=line,
            within="".join(f"{caller}:{at}" for caller, at in callers[:1]), share=self.share([line]),
            without=float((self.error - part).norm() / self.size), coarse=self.coarse[line], own=tally.relative,
            count=tally.count, what=", ".join(tally.what),
        )  # fmt: skip

    @property
    def size(self) -> Tensor:
        """The norm of the error."""
        return self.error.norm()

    def share(self, lines: Sequence[Line]) -> float:
        """Return the share of the squared error that these lines add together."""
        part = sum((self.added[line] for line in lines), torch.zeros_like(self.error))
        return float((part * self.error).sum() / self.size**2)


def blame(
    kernel: KernelRef | str | Callable, q: Tensor, k: Tensor, v: Tensor, *, gpu: str | GPU = "A100", **options,
) -> Blame:  # fmt: skip
    """Find what each source line of a kernel adds to the error of its output.

    Args:
        kernel, gpu: as of `on.kernel`: "fa2", or a function that launches Triton or CUDA kernels, or its name.
        q, k, v: (batch, heads, n, head_dim), BF16 or FP16 on the CPU. options: of the call: causal, scale.

    Raises:
        ValueError: the kernel's output has no shadows: it is no float that a kernel here has written.
    """
    fmt, tensors, first = Format.of(q.dtype), (q, k, v), Policy()
    _shadows(kernel, gpu, first, tensors, options)
    lines = sorted(first.tallies, key=lambda line: -first.tallies[line].squares)[:MOST]
    policy = Policy([[line] for line in lines], [{line: fmt} for line in lines])
    shadows = _shadows(kernel, gpu, policy, tensors, options)
    exact, kept, *variants = shadows
    added, error = {line: kept - each for line, each in zip(lines, variants)}, kept - exact
    coarsened = zip(lines, variants[len(lines) :])
    coarser = {line: float((each - exact).norm() / error.norm()) for line, each in coarsened}
    wanted = golden(q, k, v, inputs=fmt, **options)
    distance = float((exact - wanted).norm() / wanted.norm())
    return Blame(
        _name(kernel), GPU.of(gpu).name, error, exact, added, coarser, fmt, policy.tallies, policy.lost, distance
    )


def what_if(
    kernel: KernelRef | str | Callable, q: Tensor, k: Tensor, v: Tensor,
    changes: Sequence[Mapping[Line, Format | None]], *, gpu: str | GPU = "A100", **options,
) -> list[Tensor]:  # fmt: skip
    """Compute the error of a kernel whose lines round to other formats, for each of several changes.

    Args:
        kernel, q, k, v, gpu, options: as of `blame`.
        changes: each line -> the format that its results are rounded to; None: not at all.

    Returns:
        The errors, float64, as o: without a change they are Blame.error.

    Raises:
        ValueError: as `blame`.
    """
    shadows = _shadows(kernel, gpu, Policy(formats=changes), (q, k, v), options)
    return [each - shadows[0] for each in shadows[2:]]


@contextmanager
def _compiled_anew() -> Iterator[None]:
    """Let Triton compile kernels that it has stored: their lines may be those of a copy of the file elsewhere."""
    if find_spec("triton") is None:
        yield
        return
    from triton import knobs  # pyright: ignore[reportMissingImports]

    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        yield


def _shadows(kernel, gpu, policy, tensors, options) -> Tensor:
    """Run a kernel, and return the shadows of its output, float64 (variants, *o.shape)."""
    fn = on.kernel(kernel, gpu)
    with torch.no_grad(), _compiled_anew(), shadowed(policy) as run:
        shadows = run.of(fn(*tensors, **options))
    if shadows is None:
        accepted = "accepted is one that launches Triton or CUDA kernels"
        raise ValueError(f"kernel: got {_name(kernel)!r}, whose output no kernel here has written; {accepted}")
    return shadows


def _name(kernel: KernelRef | str | Callable) -> str:
    return f"{kernel}" if isinstance(kernel, (KernelRef, str)) else getattr(kernel, "__name__", "kernel")


def source_text(file: str) -> dict[int, str]:
    """Read number -> line of a source file; empty where it is not there.

    Triton keeps what it compiled, with the path of then. If the folder was moved since, the same path below the working
    folder is read.
    """
    parts = Path(file).parts
    for path in (Path(file), *(Path(*parts[i:]) for i in range(1, len(parts) - 1))):
        if path.is_file():
            return dict(enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1))
    return {}
