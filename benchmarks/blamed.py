"""Which line of a GPU kernel loses the digits: `make blame` writes data/blame, in some ten minutes of two cores.
Finished cells stay in build/blamed."""

import os

from attention_gallery.experiments.blamed import CALLS, blamed, settings
from fa_lib import sweep
from fa_lib.execution.paths import ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.results import save_table

GRID = dict(call=[*CALLS], distribution=["normal", "uniform"], seed=range(3))


def main():
    with workers(os.cpu_count() or 1) as pool:
        table = sweep(blamed, GRID, cache=build() / "blamed", executor=pool)
    save_table(ROOT / "data" / "blame" / "steps", table, GRID, settings())


if __name__ == "__main__":
    main()
