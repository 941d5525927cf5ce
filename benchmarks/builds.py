"""Does the judge fail a right kernel? `python -m benchmarks.builds` judges 120 right builds of FlashAttention-2, at ten
draws of inputs each, and writes which fail, and by what, into benchmarks/mutations/builds.csv. What is done stays in
build/builds."""

import argparse
import math
import os
from itertools import product

import pandas as pd
import torch

from attention_check.judge.findings import Verdict
from benchmarks.judge import named
from benchmarks.judged import judged
from benchmarks.mutants.controls import power_of_2
from benchmarks.mutants.skeleton import Steps, changed, scale_of
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep

MODULE = "benchmarks.builds"  # also where this file is run
TABLE = ROOT / "benchmarks" / "mutations" / "builds.csv"
LOG2E = math.log2(math.e)
RIGHT = Steps()


def lazily(m, S):
    """The maximum so far; one that rises by at most 4 is not worth a rescale."""
    new = RIGHT.maximum(m, S)
    return m.where(new - m <= 4, new)


def coarse(m, S):
    """The maximum so far, up to the next multiple of 1/2: no larger weight than 1."""
    return torch.maximum(m, (RIGHT.maximum(m, S) * 2).ceil() / 2)


def every_other(n, tile):
    """Every other tile, then those between."""
    each = RIGHT.tiles(n, tile)
    return each[::2] + each[1::2]


EXPONENTIALS = (
    {},
    dict(exp=lambda x: torch.exp2(x * LOG2E), factor=lambda x: torch.exp2(x * LOG2E)),
    dict(exp=lambda x: power_of_2(x * LOG2E)),
    dict(exp=lambda x: power_of_2(x * LOG2E), factor=lambda x: power_of_2(x * LOG2E)),
    dict(exp=lambda x: x.double().exp().to(x.dtype)),
)
ORDERS = {}, dict(tiles=lambda n, tile: RIGHT.tiles(n, tile)[::-1]), dict(tiles=every_other)
OTHERS = (  # by turns
    {},
    dict(probs=lambda P, dtype: P),
    dict(maximum=lazily),
    dict(probs=lambda P, dtype: RIGHT.probs(P, torch.float16 if dtype == torch.bfloat16 else dtype)),
    dict(maximum=coarse),
    dict(scale=lambda d, scale: 2 * scale_of(d, scale), read=lambda q, k, v: (q / 2, k, v)),
    dict(clear=lambda v, seen: RIGHT.clear(v, seen).contiguous()),
)
TILES = 16, 32, 48, 64, 100, 128, 256, 512
BUILDS = []
for order, exponential, tile in product(ORDERS, EXPONENTIALS, TILES):
    key, other = f"build_{len(BUILDS)}", OTHERS[len(BUILDS) % len(OTHERS)]
    globals()[key] = changed(key, MODULE, tile=tile, **order | exponential | other)  # found by its name
    BUILDS.append(f"{MODULE}:{key}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="draws of inputs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    given = parser.parse_args()
    cache, grid = str(build() / "builds"), dict(kernel=BUILDS, seed=range(given.seeds))
    with workers(given.jobs) as executor:
        rows = sweep(judged, grid, fixed=dict(quick=True), cache=cache, executor=executor)
    lines = []
    for kernel, own in rows.groupby(rows.kernel.str.split(":").str[1], sort=False):
        failed = own[own.verdict == Verdict.FAILS]
        lines.append(dict(kernel=kernel, draws=len(own), fails=len(failed), by=", ".join(named(failed.fails))))
    table = pd.DataFrame(lines)
    with replacing(TABLE) as path:
        table.to_csv(path, index=False)
    print(f"{(table.fails > 0).sum()} of {len(table)} fail, at {table.fails.sum()} of {table.draws.sum()} draws")


if __name__ == "__main__":
    main()
