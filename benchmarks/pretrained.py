"""The paper's kernel inside the heads of trained models: `make heads` writes data/heads, in half a minute. Two packages
are fetched for it, 170 MB."""

import os

from fa_lib import sweep
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.execution.results import save_table
from fa_lib.experiments.pretrained import DRAWN, MODELS, heads_of

GRID = dict(name=[*MODELS, *DRAWN], text=range(4), tiles=[2, 8, 32])


def main():
    with workers(os.cpu_count() or 1) as pool:
        table = sweep(heads_of, GRID, executor=pool)
    packages = {name: f"{of.package.name} {of.package.version}" for name, of in MODELS.items()}
    save_table(ROOT / "data" / "heads" / "heads", table, GRID, dict(packages=packages))


if __name__ == "__main__":
    main()
