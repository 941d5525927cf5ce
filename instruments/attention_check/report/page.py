"""A judgement as one HTML page that needs no other file and asks the network for nothing."""

import base64
import io
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from attention_check.judge.findings import Judgement, Severity
from attention_check.report import sentences
from attention_check.report.page_files import PageFiles
from attention_check.report.tables import Section
from fa_lib.execution.machine import date, installed, package, processor
from fa_lib.execution.results import provenance, versions
from fa_lib.execution.untrusted import Untrusted
from fa_lib.kernels.kernel_ref import KernelRef

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attention_check.plots.page_style import Panel

QUESTIONS = {
    "kernel": "Is this kernel numerically safe?",
    "tensors": "Are these tensors safe with this kernel?",
    "model": "Is attention safe in this model?",
}
COUNTS = {Severity.FAILS: "against it", Severity.REPORTED: "reported, not counted", Severity.PASSES: "in order"}


@dataclass(frozen=True)
class Report:
    """A check that has been made.

    Attributes:
        judgement: what was found. page: the HTML file; its tables are CSV files in the folder of the same name.
        record: findings, settings and versions, as JSON can hold them.
    """

    judgement: Judgement
    page: Path
    record: dict


def write_report(
    files: PageFiles, judgement: Judgement, sections: Sequence[Section], panels: "Sequence[Panel]",
    tables: Iterable[tuple[str, pd.DataFrame]], about: Mapping[str, Any], settings: Mapping[str, Any],
) -> Report:  # fmt: skip
    """Write the tables, the record and the page of a judgement.

    Args:
        sections: tables of the page. panels: its pictures.
        tables: name -> table, for a CSV file each. about: name -> value, for the heading: kernel, versions, date.
        settings: name -> value, for the end, and for the record.
    """
    text = page(judgement, sections, panels, about, settings)
    record = judgement.record() | provenance(dict(settings))
    files.write(text, record, tables)
    return Report(judgement, files.page, record)


def page(
    judgement: Judgement, sections: Sequence[Section], panels: "Sequence[Panel]" = (),
    about: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The page of a judgement; arguments as of `write_report`."""
    sections = [section for section in sections if len(section.table)]
    groups, headline = sentences.sentences_of(judgement), sentences.headline(judgement)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_finalize,
    )  # fmt: skip
    environment.filters["breaking"] = _breaking
    return environment.get_template("page.html.jinja").render(
        judgement=judgement, question=QUESTIONS[judgement.kind], headline=headline,
        counts=[(severity.value, len(group), COUNTS[severity]) for severity, group in groups.items()],
        groups=[(severity.value, sentences.HEADINGS[severity], sentences.folded(group))
                for severity, group in groups.items()],
        pictures=[dict(png=picture(panel.figure()), title=panel.title, shows=panel.shows) for panel in panels],
        sections=sections, about=_texts(about or {}), settings=_texts(settings or {}),
    )  # fmt: skip


def _finalize(value):
    """Every text of the page, but its markup, as if a stranger had written it."""
    return Untrusted(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breaking(text):
    """A name may go on in the next line after a dot, a colon or an underscore."""
    return Markup(re.sub(r"([.:_])(?=[^\W\d])", r"\1<wbr>", str(escape(Untrusted(text)))))


def picture(figure: "Figure") -> str:
    """A figure of the page as PNG in base64; it is closed. The names of strangers in its legends are neither formulas
    nor control characters."""
    import matplotlib.pyplot as plt  # a page of pictures that are drawn already does without

    legends = (legend for ax in figure.axes if (legend := ax.get_legend()))
    for text in (*figure.texts, *(each for legend in legends for each in legend.get_texts())):
        text.set_text("\n".join(map(Untrusted, text.get_text().split("\n"))))
        text.set_parse_math(False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return base64.b64encode(content.getvalue()).decode()


def _texts(named):
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in named.items()}
    return {name: ", ".join(map(str, values)) for name, values in lists.items()}


def package_of(kernel: KernelRef) -> str:
    """Write the package that a kernel is of, with its version."""
    for source in entry_points(group="fa_lib.kernel_packages", name=kernel.module.partition(".")[0] or kernel.function):
        if project := source.load()(kernel):
            return project
    return (package(kernel.module) or "none that is installed") if kernel.module else "fa_lib, built in"


def circumstances(device: str) -> dict[str, str]:
    """Versions, the date and the device."""
    on_gpu, count = torch.device(device).type == "cuda", torch.get_num_threads()
    name = torch.cuda.get_device_name(device) if on_gpu else processor()
    threads = "" if on_gpu else f", {count} thread{'' if count == 1 else 's'}"
    own = f"fa_lib {installed('fa_lib') or 'of a checkout'}"
    libraries = f"{own}, torch {versions()['torch']}, Python {platform.python_version()}"
    return {"Judged by": libraries, "Date": date(), "Device": f"{name}{threads}"}
