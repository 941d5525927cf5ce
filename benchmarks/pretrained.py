"""The paper's kernel inside the heads of trained models: `make heads` writes data/heads, in half a minute. Two packages
are fetched for it, 170 MB."""

import json
import os

from fa_lib import sweep
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.execution.results import provenance
from fa_lib.experiments.pretrained import DRAWN, MODELS, heads_of

OUT = ROOT / "data" / "heads"
GRID = dict(name=[*MODELS, *DRAWN], text=range(4), tiles=[2, 8, 32])


def main():
    with workers(os.cpu_count() or 1) as pool:
        table = sweep(heads_of, GRID, executor=pool)
    OUT.mkdir(parents=True, exist_ok=True)
    with replacing(OUT / "heads.csv") as path:
        table.to_csv(path, index=False, float_format="%.5g")
    packages = {name: f"{of.package.name} {of.package.version}" for name, of in MODELS.items()}
    with replacing(OUT / "heads.provenance.json") as path:
        path.write_text(json.dumps(dict(packages=packages) | provenance(GRID), indent=1) + "\n")


if __name__ == "__main__":
    main()
