"""A report as one HTML page: `python -m fa_lib.report --kernel package.module:function`, or `--qkv file.safetensors`.

The page is notebook 11 or 12, run through papermill at the scale "report", without its code; it needs no other file.
"""

import argparse
import json
import os
import re
import sys
from html import escape
from pathlib import Path

import nbformat
import papermill
from nbconvert import HTMLExporter
from nbformat.v4 import new_markdown_cell

from fa_lib import kernels
from fa_lib.check.tensors import read
from fa_lib.execution.files import replacing
from fa_lib.execution.notebook import run
from fa_lib.paths import ROOT

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.2rem }}
h1 {{ font-size: 1.7rem; line-height: 1.2 }} h2 {{ font-size: 1.15rem; margin-top: 2.2rem }}
.verdict {{ border-left: .4rem solid {color}; background: #f6f6f4; padding: .8rem 1.1rem; font-size: 1.02rem }}
img {{ max-width: 100%; height: auto }} .anchor-link {{ display: none }}
pre {{ font: 12.5px/1.5 ui-monospace, monospace; overflow-x: auto; background: #f6f6f4; padding: .8rem 1rem }}
code {{ font-size: .92em }} footer {{ color: #777; font-size: .8rem; margin-top: 3rem }}
</style>
{body}
</html>
"""


def page(executed, title, passed=None):
    """An executed notebook as one HTML page that asks the network for nothing.

    Args:
        executed: path. passed: True, False or None, the colour of the verdict: what the cell tagged "verdict" prints.
            Cells that check the notebook are left out.
    """
    notebook, cells = nbformat.read(executed, as_version=4), []
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        if "verdict" in tags:
            first, stop, rest = escape("".join(output.get("text", "") for output in cell.outputs)).partition(". ")
            cell = new_markdown_cell(f'<div class="verdict"><b>{first}{stop}</b>{rest}</div>')
        if "nbval-check-output" not in tags:
            cells.append(cell)
    notebook.cells = cells
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True, embed_images=True)
    body, _ = exporter.from_notebook_node(notebook)
    color = {True: "#029e73", False: "#d55e00", None: "#0173b2"}[passed]
    return PAGE.format(title=escape(title), color=color, body=body)


def report(notebook, name, folder, scale="report", **parameters):
    """Run a notebook of a report, and write `folder`/<name>.html and the tables beside it.

    Returns:
        the page's path, and what the notebook left in verdict.json: dict of passed and words.
    """
    folder = Path(folder).resolve() / name
    if "kernel" in parameters:
        parameters["cache"] = ""  # what a kernel calls elsewhere may have changed
    executed = run(ROOT / "notebooks" / f"{notebook}.ipynb", scale, into=folder, **parameters)
    found = json.loads((folder / "data" / "results" / f"{notebook}.verdict.json").read_text())
    path = folder.with_name(f"{name}.html")
    with replacing(path) as temporary:
        temporary.write_text(page(executed, name, found["passed"]))
    return path, found


def main():
    parser = argparse.ArgumentParser(description="a report on a kernel or on captured tensors, as one HTML page")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kernel", help="a registered kernel, or package.module:function")
    what.add_argument("--qkv", type=Path, help="a .safetensors, .npz or .pt file of tensors named q, k and v")
    parser.add_argument("--format", default="", help="of the file's tensors: rounded to it first")
    parser.add_argument("--out", default="build/reports", help="folder for the page")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", default="report", help="a file of notebooks/scales")
    parser.add_argument("--gate", action="store_true", help="exit with 1 where the verdict is that it fails")
    given = parser.parse_args()
    here = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)  # the notebook finds what the caller finds
    sys.path.insert(0, os.getcwd())
    try:
        if given.kernel:
            kernels.get(given.kernel)
            name, notebook, parameters = given.kernel, "11_your_kernel", dict(kernel=given.kernel)
        else:
            read(given.qkv, given.format)
            qkv = dict(qkv=str(given.qkv.resolve()), fmt=given.format)
            name, notebook, parameters = given.qkv.stem, "12_your_tensors", qkv
        name = re.sub(r"[^\w.-]+", "_", name)
        path, found = report(notebook, name, given.out, given.scale, device=given.device, **parameters)
    except papermill.PapermillExecutionError as error:
        sys.exit(f"{notebook}: {error.ename}: {error.evalue}; with its traceback in build/{notebook}.failed.ipynb")
    except (ValueError, OSError) as error:
        sys.exit(f"report: {error}")
    print(f"{found['words']}\n\n{path}")
    sys.exit(1 if given.gate and found["passed"] is False else 0)


if __name__ == "__main__":
    main()
