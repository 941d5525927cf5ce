"""A command's table below data/, and where it came from."""

from pathlib import Path

import pandas as pd

from fa_lib.execution.results import provenance, write_json, write_table


def save_table(path: Path, table: pd.DataFrame, grid: dict, about: dict, digits: int = 5) -> None:
    """Write a table as `path`.csv, numbers with so many digits, and where it came from as `path`.provenance.json.

    Args:
        grid: its parameters. about: what else a reader must know.
    """
    write_table(path.with_suffix(".csv"), table, digits)
    write_json(path.with_suffix(".provenance.json"), about | provenance(grid))
