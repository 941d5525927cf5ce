"""A judgement as one HTML page that needs no other file and asks the network for nothing."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from attention_check.judge.findings import Judgement, Severity
from attention_check.report import sentences
from attention_check.report.anchors import PICTURES, SOURCES, alternative_text
from attention_check.report.sentence import folded
from attention_check.report.tables import BROKE, TEXTS
from fa_lib.execution.untrusted import Untrusted

TEMPLATES = Path(__file__).parent
QUESTIONS = {
    "kernel": "Is this kernel numerically safe?",
    "tensors": "Are these tensors safe with this kernel?",
    "model": "Is attention safe in this model?",
}
COUNTS = {Severity.FAILS: "against it", Severity.REPORTED: "reported, not counted", Severity.PASSES: "in order"}


@dataclass(frozen=True)
class Section:
    """A table under a heading.

    Attributes:
        key: its anchor, of `anchors.SOURCES`.
        table: text in every cell, as `tables` makes it; a column `breaks` of truth values becomes a word.
        text: how it is read.
    """

    key: str
    heading: str
    table: pd.DataFrame
    text: str = ""

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Names, and whether they hold numbers."""
        return [(name, name not in TEXTS) for name in self.table if name != BROKE]

    @property
    def broke(self) -> list[bool] | None:
        """Of each row, whether it breaks the rule; None where none does."""
        broke = self.table[BROKE].astype(bool).tolist() if BROKE in self.table else []
        return broke if any(broke) else None

    @property
    def rows(self) -> list[list[str]]:
        cells = self.table.drop(columns=BROKE, errors="ignore")
        return [[f"{cell}" for cell in row] for row in cells.itertuples(index=False, name=None)]


def page(
    judgement: Judgement, sections: Sequence[Section], panels: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None, settings: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The page of a judgement.

    Args:
        panels: key of `anchors.PICTURES` -> matplotlib Figure, drawn into the page.
        about: name -> value, for the heading: kernel, versions, date, device.
        settings: name -> value, for the end.
    """
    panels, sections = panels or {}, [section for section in sections if len(section.table)]
    anchors = {key: f"picture-{key}" for key in panels} | {each.key: f"table-{each.key}" for each in sections}
    groups = sentences.sentences_of(judgement)
    return rendered(
        TEMPLATES / "page.html.jinja", judgement=judgement, question=QUESTIONS[judgement.kind],
        headline=sentences.headline(judgement),
        counts=[(severity.value, len(group), COUNTS[severity]) for severity, group in groups.items()],
        groups=[(each.value, sentences.HEADINGS[each], _rows(group, anchors)) for each, group in groups.items()],
        pictures=[dict(key=key, png=png(figure), alt=alternative_text(key, judgement), words=PICTURES[key])
                  for key, figure in panels.items()],
        sections=sections, about=_texts(about), settings=_texts(settings),
    )  # fmt: skip


def rendered(template: Path, **values: Any) -> str:
    """A page of a template, which may extend those of TEMPLATES.

    Args:
        values: by the names that the template has for them. What is no markup is escaped.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_finalize,
    )  # fmt: skip
    environment.filters["breaking"] = _breaking
    return environment.get_template(template.name).render(values)


def _finalize(value):
    """Every text of the page, but its markup, as if a stranger had written it."""
    return Untrusted(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breaking(text):
    """A name may go on in the next line after a dot, a colon or an underscore."""
    return Markup(re.sub(r"([.:_])(?=[^\W\d])", r"\1<wbr>", str(escape(Untrusted(text)))))


def png(figure) -> str:
    """A figure as PNG in base64."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200, bbox_inches="tight", metadata={"Software": None})
    return base64.b64encode(content.getvalue()).decode()


def _rows(group, anchors):
    return [[[_row(one, anchors) for one in run] for run in like] for like in folded(group)]


def _row(said, anchors):
    found = [anchors[key] for key in SOURCES.get(said.what, ()) if key in anchors]
    links = [("picture" if anchor.startswith("picture-") else "table", anchor) for anchor in found]
    texts = {name: getattr(said, name) for name in ("text", "number", "limit", "more", "remedy")}
    return texts | dict(links=links, beyond=said.beyond)


def _texts(named):
    return {name: _listed(value) for name, value in (named or {}).items()}


def _listed(value):
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value}"
