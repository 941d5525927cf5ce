"""A judgement as one HTML page that needs no other file and asks the network for nothing."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fa_lib.check import words
from fa_lib.check.attempt import shown
from fa_lib.check.findings import Judgement

TEMPLATE = Path(__file__).with_name("report.html.jinja")
HEADINGS = {
    "kernel": "Is this kernel numerically safe?",
    "tensors": "Are these tensors safe with this kernel?",
    "model": "Is attention safe in this model?",
}


@dataclass(frozen=True)
class Section:
    """A table under a heading. table: text in every cell, as `tables` makes it."""

    heading: str
    table: pd.DataFrame
    text: str = ""

    @property
    def columns(self) -> list[str]:
        return [*self.table.columns]

    @property
    def rows(self) -> list[list[str]]:
        return [[shown(f"{cell}") for cell in row] for row in self.table.itertuples(index=False, name=None)]


def page(
    judgement: Judgement, sections: Sequence[Section], figure: Any = None, settings: Mapping[str, Any] | None = None
) -> str:
    """The page of a judgement.

    Args:
        figure: a matplotlib Figure, drawn into the page; None where there is none.
        settings: name -> value, for the last line.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE.name).render(
        judgement=judgement, heading=HEADINGS[judgement.kind], headline=shown(words.headline(judgement)),
        sentences=[(severity.value, shown(text)) for severity, text in words.sentences(judgement)],
        figure=figure and png(figure), sections=sections,
        settings={name: _listed(value) for name, value in (settings or {}).items()},
    )  # fmt: skip


def png(figure) -> str:
    """A figure as PNG in base64."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130, bbox_inches="tight", metadata={"Software": None})
    return base64.b64encode(drawn.getvalue()).decode()


def _listed(value):
    return shown(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value}")
