"""A command's table below data/, and where it came from."""

import json
from pathlib import Path

import pandas as pd

from fa_lib.execution.files import replacing
from fa_lib.execution.results import provenance


def save_table(path: Path, table: pd.DataFrame, grid: dict, about: dict, digits: int = 5) -> None:
    """Write a table as `path`.csv, numbers with so many digits, and where it came from as `path`.provenance.json.

    Args:
        grid: its parameters. about: what else a reader must know.
    """
    with replacing(path.with_suffix(".csv")) as to:
        table.to_csv(to, index=False, float_format=f"%.{digits}g")
    with replacing(path.with_suffix(".provenance.json")) as to:
        to.write_text(json.dumps(about | provenance(grid), indent=1) + "\n")
