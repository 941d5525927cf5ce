"""The site: `make docs` builds it from docs/, from docstrings, and from the notebooks as `make figures` ran them."""

import csv
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import typer

from attention_check.checks.relations import RELATIONS
from attention_gallery.commands import pages
from fa_lib import BF16, Precision, theory
from fa_lib.commands.cli import app
from fa_lib.execution import ledger
from fa_lib.execution.paths import RESULTS
from fa_lib.experiments.law import ratios_of
from fa_lib.kernels.shipped import torch_cpu

ROOT = Path(__file__).parent.parent
EXECUTED, SHOWN = ROOT / "build", ROOT / "docs" / "notebooks"  # git ignores the second

project = "Is Flash Attention stable?"
author = "The fa_lib authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "jupyter_execute"]
html_theme = "furo"
html_title = "fa_lib"
nb_execution_mode = "off"  # papermill has run them
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "none"  # docstrings have the shapes
autodoc_member_order = "bysource"
napoleon_use_ivar = True
napoleon_use_rtype = False

V_OF = dict(uniform="one_sign", normal="zero_mean")  # inputs -> the values of V that the law knows
INJECTED = "injected-parameters"  # papermill's tag of a cell that it adds: folders of this machine among it


def as_run(committed: Path) -> nbformat.NotebookNode:
    """Return a notebook as it was run at the paper's scale; or the committed one, without figures, where its cells were
    not run."""
    notebook, executed = nbformat.read(committed, as_version=4), EXECUTED / committed.name
    if not executed.exists():
        return notebook
    run = nbformat.read(executed, as_version=4)
    added = [cell for cell in run.cells if INJECTED in cell.metadata.get("tags", [])]
    if [cell.source for cell in run.cells if cell not in added] != [cell.source for cell in notebook.cells]:
        return notebook
    for cell in added:
        lines = [line for line in cell.source.splitlines() if not line.startswith(("cache =", "out ="))]
        cell.source = "\n".join(lines)
    return run


shutil.rmtree(SHOWN, ignore_errors=True)
for path in sorted((ROOT / "notebooks").rglob("[!.]*.ipynb")):
    shown = SHOWN / path.relative_to(ROOT / "notebooks")
    shown.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(as_run(path), shown)


pages.write(ROOT / "docs" / "gallery")  # a page for each kernel; git ignores them


def rows_of(name: str) -> list[dict[str, str]]:
    """Read the rows of a file of data/."""
    with open(ROOT / "data" / name, newline="") as file:
        return list(csv.DictReader(file))


def ledgers_tables() -> str:
    """Return the ledger's tables."""
    return ledger.sections(ledger.ledger())


def columns() -> str:
    """Return data/columns.csv as a section for each notebook and folder."""
    parts = []
    for section, group in itertools.groupby(rows_of("columns.csv"), key=lambda row: row["section"]):
        parts.append(f"## {section}")
        for is_column, lines in itertools.groupby(group, key=lambda row: row["column"] != ""):
            if is_column:
                names = ("column", "table", "meaning")
                cells = ([row[name] for name in names] for row in lines)
                parts.append(ledger.markdown_table(["column", "table(s)", "meaning, unit"], cells))
            else:
                parts += [row["meaning"] for row in lines]
    return "\n\n".join(parts)


def mutants() -> str:
    """Return data/mutants.csv as a table for each kind."""
    rows = rows_of("mutants.csv")
    for row in rows:
        page = row["source"].replace("arXiv ", "arxiv.org/abs/")
        row["defect"] += f" ([{row['source']}](https://{page}))" if page else ""
    parts = []
    for kind, group in itertools.groupby(rows, key=lambda row: row["kind"]):
        names = ["kernel", "defect", "ours", "by", "reported", "assert_close", "rule_of_two", "needs"]
        head = ["kernel", "defect", "ours", "by", "reported", "`assert_close`", "rule of two", "needs"]
        lines = ([row[column] for column in names] for row in group)
        parts += [f"### {kind.capitalize()}s", ledger.markdown_table(head, lines)]
    return "\n\n".join(parts)


def commands(group, words: str) -> Iterator[tuple[str, Any]]:
    """Yield the words of each command below a group, and the command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


def options(words: str) -> str:
    """Return a table of a command's arguments and options, in the words of its --help."""
    lines = []
    for each in dict(commands(typer.main.get_command(app), "fa-lib"))[words].params:
        default = "" if each.default in (None, "", False) else f" ({each.default})"
        lines.append([", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)), f"{each.help}{default}"])
    return ledger.markdown_table(["name", "meaning (default)"], lines)


def findings(kind: str) -> str:
    """Return the findings of a kind and subject, as "counts kernel"."""
    rows = [row for row in rows_of("findings.csv") if f"{row['kind']} {row['about']}" == kind]
    lines = ([f"`{row['name']}`", row["wrong"], row["change"]] for row in rows)
    return ledger.markdown_table(["name", "what is wrong, or what it reports", "what to change"], lines)


def relations() -> str:
    """Return each relation: what must hold, where it was broken, and why it breaks."""
    lines = []
    for row in rows_of("relations.csv"):
        each = RELATIONS[row["name"]]
        lines.append([f"`{each.key}`", each.says, each.source, row["cause"], row["limit"]])
    return ledger.markdown_table(["relation", "what must hold", "source", "usual cause of a break", "limit"], lines)


def law_ratios() -> str:
    """Return the law's error over the measured one: uniform inputs in 8, 10 and 12 bits, the others in 8."""
    lines, law = [], ratios_of(pd.read_csv(RESULTS / "13_theory.csv")).predicted.unstack("tiles")
    for (inputs, algorithm, bits), row in law.iterrows():
        if bits == 8 or (inputs == "uniform" and bits in (10, 12)):
            lines.append([f"{inputs}, {algorithm.upper()}, {bits} bits", *(f"{ratio:.2f}" for ratio in row)])
    return ledger.markdown_table(["predicted / measured, tiles T", *map(str, law.columns)], lines)


def laws_of_others() -> str:
    """Return the law's prediction for kernels of other projects, and what was measured."""
    lines = []
    table = pd.read_csv(pages.TABLES / "torch_backward.csv").query("who == 'kernel' and tensor == 'dv'")
    for rows, own in table.query("distribution == 'normal' and n == 256").groupby("queries"):
        kernel = torch_cpu(BF16, rows)
        tiles = rows // kernel["tiling"].block_q
        law = theory.expected_gradients(kernel["precision"], tiles=tiles)
        lines.append([f"torch's CPU dV, {rows:,} rows", "normal", f"{tiles}", law, own.relative.mean()])
    table = pd.read_csv(pages.TABLES / "ringattention.csv").query("who == 'kernel'")
    for (inputs, n), own in table.groupby(["distribution", "n"], sort=False):
        call = dict(tiles=n // 512, algorithm="fa2", block_kv=512)
        law = theory.expected(Precision.uniform(BF16), values=V_OF[inputs], **call)
        lines.append([f"ringattention, {n:,} keys", inputs, f"{n // 512}", law, own.relative.mean()])
    cells = ([*words, f"{law:.4f}", f"{measured:.4f}"] for *words, law, measured in lines)
    return ledger.markdown_table(["kernel", "inputs", "tiles", "predicted", "measured"], cells)


def reports() -> str:
    """Return the first columns of data/reports.csv as a table."""
    head = ["thread", "what was seen", "made by", "right answer", "`explain`", "assert_close", "rule of two"]
    return ledger.markdown_table(head, ([*row.values()][: len(head)] for row in rows_of("reports.csv")))


def tolerances() -> str:
    """Return data/tolerances.csv as two tables: right kernels by format, wrong ones by format and inputs."""
    table, parts = pd.read_csv(ROOT / "data" / "tolerances.csv", dtype=str), []
    for name, over, names in (("right", "fmt", ["kernel"]), ("wrong", "inputs", ["kernel", "fmt"])):
        own = table[table.set == name]
        wide = own.pivot(index=names, columns=over, values="times").reindex(own.set_index(names).index.unique())
        wide = wide[list(own[over].unique())].fillna("–").reset_index()
        parts.append(ledger.markdown_table([f"a {name} kernel", *wide.columns[1:]], wide.to_numpy().tolist()))
    return "\n\n".join(parts)


INSERTED = dict(  # name -> a function that makes Markdown of the words behind the name
    ledger=ledgers_tables, columns=columns, mutants=mutants, gallery=pages.judged, numbers=pages.numbers,
    options=options, findings=findings, relations=relations, law=law_ratios, others=laws_of_others,
    reports=reports, tolerances=tolerances,
)  # fmt: skip


def inserted(app, docname, source):
    """Put generated tables into the pages that name them; the repository has their data alone."""
    mark = r"<!-- the site inserts: (\w+) ?([\w -]*?) -->"
    source[0] = re.sub(mark, lambda match: INSERTED[match[1]](*filter(None, [match[2]])), source[0])


def bars(app, what, name, obj, options, lines):
    """|x| is a magnitude in a docstring, and a substitution in reStructuredText."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def linked(app, docname, source):
    """Pages and notebooks link to each other and to figures where the repository has them; the site has notebooks in
    docs/notebooks."""
    up = "../" * docname.count("/")
    source[0] = source[0].replace(f"](../{up}notebooks/", f"]({up}notebooks/")
    if docname.startswith("notebooks/"):
        source[0] = source[0].replace(f"]({up}figures/", f"](../{up}figures/").replace(f"]({up}docs/", f"]({up}")


def setup(app):
    app.connect("autodoc-process-docstring", bars)
    app.connect("source-read", inserted)
    app.connect("source-read", linked)
