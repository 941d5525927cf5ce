"""Which line of a GPU kernel loses the digits: `make blame` writes data/blame, in some ten minutes of two cores.
Finished cells stay in build/blamed."""

import json
import os

from fa_lib import sweep
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.results import provenance
from fa_lib.experiments.blamed import CALLS, blamed, settings

OUT = ROOT / "data" / "blame"
GRID = dict(call=[*CALLS], distribution=["normal", "uniform"], seed=range(3))


def main():
    with workers(os.cpu_count() or 1) as pool:
        table = sweep(blamed, GRID, cache=build() / "blamed", executor=pool)
    OUT.mkdir(parents=True, exist_ok=True)
    with replacing(OUT / "steps.csv") as path:
        table.to_csv(path, index=False, float_format="%.5g")
    with replacing(OUT / "steps.provenance.json") as path:
        path.write_text(json.dumps(settings() | provenance(GRID), indent=1) + "\n")


if __name__ == "__main__":
    main()
