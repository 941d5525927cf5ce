"""Finished cells of a sweep, one JSON file each: what was computed, by which code, and a checksum over both."""

import json
import warnings
from pathlib import Path

from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import digest


class Cells:
    """The finished cells of one function.

    Args:
        folder: the cache's folder; the cells lie in its subfolder `name`.
        name: the function's name. code: a digest of what its results depend on (`fingerprint.code_version`).
    """

    def __init__(self, folder, name: str, code: str):
        self.folder, self.code = Path(folder) / name, code

    def get(self, cell: dict) -> list[dict] | None:
        """Read the rows of a cell.

        Args:
            cell: parameter -> value.

        Returns:
            rows: a dict, column -> value, for each. None where the cell is absent, cut short, damaged or of other code.
        """
        try:
            text = self._path(cell).read_text()
            rows = json.loads(text)["rows"]
            return rows if text == self._text(cell, rows) else None  # to the letter: a changed bit anywhere is seen
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def put(self, cell: dict, rows: list[dict]) -> None:
        """Write the rows of a cell: its file is whole or absent. Where a folder has its path, warn and write nothing.

        Args:
            cell: parameter -> value. rows: a dict, column -> value, for each.
        """
        if self._path(cell).is_dir():
            return warnings.warn(f"cache: {self._path(cell)} is a folder; this cell is not kept", stacklevel=2)
        with replacing(self._path(cell)) as path:
            path.write_text(self._text(cell, rows))

    def _path(self, cell):
        return self.folder / f"{digest([self.code, cell])[:24]}.json"

    def _text(self, cell, rows):
        cell = dict(sorted(cell.items()))  # as its path has it
        checksum = digest([self.code, cell, rows])
        return json.dumps({"code": self.code, "cell": cell, "rows": rows, "checksum": checksum})
