"""The files of a judgement: an old one's go before a new one begins."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fa_lib.execution.files import replacing
from fa_lib.execution.paths import reports

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

RECORD = "judgement.json"


@dataclass(frozen=True)
class PageFiles:
    """Attributes:
    page: the HTML file, written last. folder: of the tables and of RECORD, beside it.
    """

    page: Path

    @classmethod
    def of(cls, out: str | Path, name: str) -> "PageFiles":
        """The files of a judgement of `name`, a label, whatever characters it has, in the folder `out`; empty:
        `paths.reports`.

        Raises:
            ValueError: out is named as a page is.
        """
        if Path(out).suffix in (".html", ".htm"):
            raise ValueError(f"out: got {out}; accepted is a folder: the page in it is named after what was judged")
        name = re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "unnamed"  # "..": the folder above
        return cls((Path(out) if out else reports()).resolve() / f"{name}.html")

    @property
    def folder(self) -> Path:
        return self.page.with_suffix("")

    def clear(self) -> None:
        """Remove an old page of this name, its tables and its record: none stands for a check that fails to end."""
        for old in (self.page, self.folder / RECORD, *self.folder.glob("*.csv")):
            old.unlink(missing_ok=True)

    def write(self, page: str, record: dict, tables: "Iterable[tuple[str, pd.DataFrame]]") -> None:
        """Write the tables of a judgement that are not empty, its record, then its page."""
        for name, table in tables:
            if not table.empty:
                with replacing(self.folder / f"{name}.csv") as path:
                    table.to_csv(path, index=False, float_format="%.7g")
        with replacing(self.folder / RECORD) as path:
            path.write_text(json.dumps(record, indent=1) + "\n")
        with replacing(self.page) as path:
            path.write_text(page, encoding="utf-8")


def save_picture(figure: "Figure", out: str, name: str) -> Path:
    """Write a figure as NAME.png into a folder; returns its path."""
    path = PageFiles.of(out, name).page.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
