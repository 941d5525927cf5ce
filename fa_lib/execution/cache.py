"""Finished cells of a sweep, one JSON file each."""

import json
from pathlib import Path

from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version, digest


class _Store:
    """Finished cells, one JSON file each: what was computed, by which code, and a checksum over both."""

    def __init__(self, folder, fn, cells):
        self.folder = Path(folder) / fn.__name__
        self.code = code_version(fn, cells)
        try:
            digest(cells)
        except TypeError as error:
            raise ValueError(f"grid: {error}; accepted with a cache are numbers, texts, True, False and None") from None

    def _path(self, cell):
        return self.folder / f"{digest([self.code, cell])[:24]}.json"

    def get(self, cell):
        try:
            text = self._path(cell).read_text()
            rows = json.loads(text)["rows"]
            return rows if text == self._text(cell, rows) else None  # to the letter: a changed bit anywhere is seen
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent, cut short or not ours: computed again, and replaced

    def _text(self, cell, rows):
        checksum = digest([self.code, cell, rows])
        cell = dict(sorted(cell.items()))  # as its path has it
        return json.dumps({"code": self.code, "cell": cell, "rows": rows, "checksum": checksum})

    def put(self, cell, rows):
        with replacing(self._path(cell)) as path:
            path.write_text(self._text(cell, rows))
