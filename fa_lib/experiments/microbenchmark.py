"""The paper's microbenchmark: the golden value, Baseline and Flash of one draw of Q, K, V."""

import inspect
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fa_lib import kernels
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import DOUBLE_DOUBLE, EXACT
from fa_lib.numerics.formats import FP64, Format
from fa_lib.numerics.metrics import deviation

if TYPE_CHECKING:  # a cell, which may be a job of its own, makes no table, and need not wait for pandas
    import pandas as pd

PAIRS = (  # kernel, against
    ("flash", "golden"),
    ("baseline", "golden"),
    ("baseline_in_format", "golden"),
    ("flash", "baseline"),
    ("flash", "baseline_in_format"),
)


@dataclass(frozen=True)
class BenchmarkSettings:
    """The settings that all cells of a figure share.

    Attributes:
        head_dim, heads: of Q, K and V, in one batch.
        algorithm: the emulated kernel's.
        flash: a registered kernel, or package.module:function. One that takes a Precision is called with every step in
            the cell's format; another one is called on inputs of that dtype, and then tiles and algorithm are its own.
        golden_inputs: "rounded": the golden value takes the inputs after their rounding to the format; "exact": before.
        device: torch's, for all that is computed; with FP64 only for a kernel that is not emulated.

    Raises:
        ValueError: golden_inputs is another text.
    """

    head_dim: int = 64
    heads: int = 1
    algorithm: str = "fa1"
    flash: str = "tiled"
    golden_inputs: str = "rounded"
    device: str = "cpu"

    def __post_init__(self):
        if self.golden_inputs not in ("rounded", "exact"):
            raise ValueError(f"golden_inputs: got {self.golden_inputs!r}; accepted are rounded, exact")


def grid(n, block_kv, distributions, formats, seeds: int, setup: BenchmarkSettings, pairs=PAIRS) -> dict:
    """Make the arguments of `sweep(compare, **grid(...))` for a figure.

    Args:
        n, distributions, formats: a value, or a list of values: the axes. seeds: how many, from 0.
        block_kv: a size of tiles, or a list of sizes, all of which each cell tries. pairs: as of `compare`.

    Returns:
        dict: grid, fixed and uses, as of `sweep`.
    """
    tiles = [block_kv] if isinstance(block_kv, int) else list(block_kv)
    return dict(
        grid=dict(n=n, distribution=distributions, fmt=formats, seed=range(seeds)),
        fixed=dict(block_kv=tiles, setup=setup, pairs=pairs),
        uses=[kernels.get(setup.flash)],
    )


def compare(n: int, block_kv, distribution: str, fmt, seed: int, setup: BenchmarkSettings, pairs=PAIRS) -> list[dict]:
    """A cell: compute the deviations of Flash and of the two Baselines in one format from the golden value, and from
    each other.

    One cell tries several sizes of tiles on the same draw, Baselines and golden value. In FP64 dot products are summed
    in double-double and the golden value is `golden_pair`: the same bits on any machine.

    Args:
        n: sequence length.
        block_kv: sizes B_c of the emulated kernel's tiles. (B_r cannot change a result.)
        distribution, seed: as of `inputs.draw`.
        fmt: the format of every step of Flash, and of the Baselines. pairs: those of PAIRS to compare.

    Returns:
        rows: block_kv, kernel and against (of pairs), the fields of Deviation, tiles (how many K and V are cut into)
        and rescales (how many of them raised a row's maximum, mean over rows).

    Raises:
        ValueError: an unknown name, or a format that torch has no dtype for with a kernel that needs one.
    """
    fmt, flash = Format.of(fmt), kernels.get(setup.flash)
    in_fp64 = fmt.precision >= FP64.precision
    products = DOUBLE_DOUBLE if in_fp64 else EXACT
    uniform, materialized = (replace(of(fmt), products=products) for of in (Precision.uniform, Precision.materialized))
    tensors = draw(distribution, seed, (1, setup.heads, n, setup.head_dim))
    q, k, v = (x.to("cpu" if in_fp64 else setup.device) for x in tensors)  # (1, heads, n, head_dim)
    problem = Problem(q, k, v, inputs=fmt if setup.golden_inputs == "rounded" else FP64)
    compute = {
        "baseline": lambda: (problem.reference(materialized), None),
        "baseline_in_format": lambda: (problem.reference(uniform), None),
        "golden": lambda: kernels.golden_pair(q, k, v, inputs=problem.inputs) if in_fp64 else (problem.golden, None),
    }
    outputs = {name: compute[name]() for name in compute if any(name in pair for pair in pairs)}  # as high + low
    rows = []
    for keys in block_kv:
        tiling = Tiling(keys, keys)
        if kernels.emulates(flash):
            choices = dict(tiling=tiling, precision=uniform, algorithm=setup.algorithm, q_k=problem.q_k(uniform))
            accepted = inspect.signature(flash).parameters
            o = flash(q, k, v, **{name: choices[name] for name in choices if name in accepted})
        elif fmt.dtype is None:
            words = f"which torch has no dtype for; {setup.flash!r} runs in torch's dtypes only"
            raise ValueError(f"fmt: got {fmt}, {words}")
        else:
            o = flash(*(fmt(x).to(setup.device, fmt.dtype) for x in (q, k, v)))
        outputs["flash"] = o.double().to(q.device), None
        counts = dict(tiles=-(-n // keys), rescales=problem.rescales(tiling, uniform))
        for a, b in pairs:
            differences = asdict(deviation(outputs[a][0], outputs[b][0], fmt, outputs[b][1]))
            rows.append(dict(block_kv=keys, kernel=a, against=b) | differences | counts)
    return rows


def pivot(table: "pd.DataFrame", value: str, columns: str, **where) -> "pd.DataFrame":
    """Pivot the rows of a table that have certain values.

    Args:
        table: of `compare`, with distribution and seed. value: the column whose values are shown.
        columns: the column whose values become columns. where: column -> the value that rows must have.

    Returns:
        table: a line for each (distribution, seed), a column for each value of `columns`.
    """
    for column, required in where.items():
        table = table[table[column] == required]
    return table.pivot_table(index=["distribution", "seed"], columns=columns, values=value, sort=False)


def factors(table: "pd.DataFrame") -> "pd.DataFrame":
    """Divide each column of a table of `pivot` by the next one; the quotient has the first one's name."""
    return table.iloc[:, :-1] / table.iloc[:, 1:].to_numpy()


def exponent(table: "pd.DataFrame") -> "pd.Series":
    """Fit value = a * column**b to each line of a table of `pivot`, by least squares of logarithms; return each b."""
    x = np.log(table.columns.to_numpy(dtype=float))
    return table.apply(lambda line: np.polyfit(x, np.log(line.to_numpy(dtype=float)), 1)[0], axis=1)
