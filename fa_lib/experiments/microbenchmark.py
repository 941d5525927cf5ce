"""The paper's microbenchmark: one draw of Q, K, V through the golden value, Baseline and Flash."""

import inspect
from dataclasses import asdict
from functools import lru_cache

import numpy as np
import pandas as pd

from fa_lib import kernels
from fa_lib.formats import FP64, Format
from fa_lib.inputs import draw
from fa_lib.metrics import deviation
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling


def compare(
    n,
    head_dim,
    heads,
    block_kv,
    distribution,
    fmt,
    seed,
    algorithm="fa1",
    flash="tiled",
    golden_inputs="rounded",
    device="cpu",
):
    """Deviations of Flash and of the two Baselines in one format from the golden value, and from each other.

    Args:
        n: sequence length. head_dim, heads: of Q, K and V, in one batch.
        block_kv: B_c of the emulated kernel. (B_r cannot change a result.)
        distribution, seed: as `inputs.draw`.
        fmt: format of Flash, every step of it, and of the Baselines.
        algorithm: of the emulated kernel.
        flash: a registered kernel. One that takes a Precision is called with every step in `fmt`; another one is
            called on inputs of that dtype, and then block_kv and algorithm are its own.
        device: of torch, where all of it is computed.
        golden_inputs: "rounded": the golden value takes the inputs after their rounding to fmt; "exact": before.

    Returns:
        rows: kernel, against, the columns of Deviation, tiles (of K and V per row of Q) and rescales (that raised a
        row's maximum, mean over rows).
    """
    if golden_inputs not in ("rounded", "exact"):
        raise ValueError(f"golden_inputs: got {golden_inputs!r}; accepted are rounded, exact")
    fmt = Format.of(fmt)
    q, k, v, references = _references(n, head_dim, heads, distribution, fmt, seed, golden_inputs, device)
    uniform, tiling = Precision.uniform(fmt), Tiling(block_kv, block_kv)
    fn = kernels.get(flash)
    if kernels.emulates(fn):
        choices = dict(tiling=tiling, precision=uniform, algorithm=algorithm)
        out = fn(q, k, v, **{name: choices[name] for name in choices if name in inspect.signature(fn).parameters})
    else:
        if fmt.dtype is None:
            raise ValueError(f"fmt: got {fmt}, which torch has no dtype for; {flash!r} runs in torch's dtypes only")
        out = fn(*(fmt(x).to(fmt.dtype) for x in (q, k, v)))
    outputs = {"flash": out.double()} | references
    counts = {
        "tiles": -(-n // block_kv),
        "rescales": kernels.rescales(q, k, tiling=tiling, precision=uniform).double().mean().item(),
    }
    return [{"kernel": a, "against": b} | asdict(deviation(outputs[a], outputs[b], fmt)) | counts for a, b in PAIRS]


@lru_cache(maxsize=1)  # of cells that differ in their tiles alone
def _references(n, head_dim, heads, distribution, fmt, seed, golden_inputs, device):
    """Q, K, V, and what Flash is compared with."""
    q, k, v = (x.to(device) for x in draw(distribution, seed, (1, heads, n, head_dim)))
    uniform, materialized = Precision.uniform(fmt), Precision.materialized(fmt)
    baseline = kernels.reference(q, k, v, precision=materialized)
    in_format = baseline if materialized == uniform else kernels.reference(q, k, v, precision=uniform)
    golden = kernels.golden(q, k, v, inputs=fmt if golden_inputs == "rounded" else FP64)
    return q, k, v, {"baseline": baseline, "baseline, softmax in format": in_format, "golden": golden}


PAIRS = (
    ("flash", "golden"),
    ("baseline", "golden"),
    ("baseline, softmax in format", "golden"),
    ("flash", "baseline"),
    ("flash", "baseline, softmax in format"),
)


def wide(table, value, columns, **where):
    """Rows of `table` that equal `where`, as one line per (distribution, seed) and one column per `columns`."""
    for column, wanted in where.items():
        table = table[table[column] == wanted]
    return table.pivot_table(index=["distribution", "seed"], columns=columns, values=value, sort=False)


def exponent(wide):
    """b of the power law value = a * column**b that fits each line best (least squares of the logarithms)."""
    x = np.log(wide.columns.to_numpy(dtype=float))
    return wide.apply(lambda line: np.polyfit(x, np.log(line.to_numpy(dtype=float)), 1)[0], axis=1)


def shapes(sram, head_dim):
    """The tiles of figure 6: for each SRAM size M the paper's formula, its dimensions swapped, and a square.

    Returns:
        DataFrame: sram, variant ("as given", "swapped", "square"), block_q, block_kv, area (of the tile as given).
    """
    rows = []
    for elements in sram:
        given = Tiling.from_sram(elements, head_dim)
        for variant, t in (("as given", given), ("swapped", given.swapped()), ("square", given.square())):
            tile = {"block_q": t.block_q, "block_kv": t.block_kv, "area": given.area}
            rows.append({"sram": elements, "variant": variant} | tile)
    return pd.DataFrame(rows)
