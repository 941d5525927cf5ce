"""The repository agrees with itself: environments, versions, ledger, published statements, provenance; and it is as
small as pyproject.toml says, and light to import. `make lint` holds who may import whom."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from attention_check.checks.relations import RELATIONS
from attention_check.judge.findings import GONE
from attention_check.report.wordings import WORDINGS
from attention_gallery.catalogue import pins
from benchmarks import sizes
from fa_lib.execution import claims, ledger, results
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import PUBLISHED, RESULTS, ROOT
from fa_lib.execution.results import save
from install_locked import hashed

PLOTS = ("fa_lib.plots", "attention_check.plots", "attention_gallery")
PARTS = dict(cccl="nvidia-cuda-cccl", crt="nvidia-cuda-crt", cudart="nvidia-cuda-runtime", nvcc="nvidia-cuda-nvcc",
             nvvm="nvidia-nvvm")  # of a release of CUDA: extra of cuda-toolkit -> its package  # fmt: skip
CONDA = {
    "torch": {"environment.yml": "pytorch-cpu", "environment-cuda.yml": "pytorch-gpu"},
    "matplotlib": "matplotlib-base",
}


def requirements(specs):
    return {re.match(r"[\w.-]+", s)[0]: re.sub(r"^[\w.-]+(\[.*?\])? *", "", s) for s in specs}


@pytest.fixture
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["environment.yml", "environment-cuda.yml"])
def test_conda_environments_ask_for_what_pyproject_asks(name, project):
    extras = project["optional-dependencies"]
    wanted = requirements([*project["dependencies"], *extras["notebooks"], *extras["train"], *extras["test"]])
    wanted["python"] = project["requires-python"]
    if "cuda" in name:
        wanted |= requirements(extras["cuda"]) | {"cuda-version": ">=12.9"}
    renamed = {package: CONDA.get(package, package) for package in wanted}
    wanted = {(new if isinstance(new, str) else new[name]): wanted[package] for package, new in renamed.items()}
    assert requirements(yaml.safe_load((ROOT / name).read_text())["dependencies"]) == wanted


def test_every_direct_requirement_has_an_exact_version(project):
    extras = project["optional-dependencies"]
    others = (specs for name, specs in extras.items() if name not in ("cuda", "gallery", "gpu"))
    direct = [*project["dependencies"], *(spec for specs in others for spec in specs)]
    assert requirements(direct).keys() <= hashed().keys()


def test_the_extra_gallery_asks_for_what_make_gallery_pins(project):
    bounds = requirements(project["optional-dependencies"]["gallery"])
    assert bounds.keys() == pins().keys()
    assert all(SpecifierSet(bounds[name]).contains(pin) for name, pin in pins().items())


def test_the_extra_gpu_asks_for_what_make_test_gpu_pins(project):
    text = (ROOT / "instruments" / "ptx_machine" / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    asked = {each.name: each for each in map(Requirement, project["optional-dependencies"]["gpu"])}
    toolkit = asked.pop("cuda-toolkit")
    assert toolkit.extras == PARTS.keys()
    (release,) = {pinned[part].rpartition(".")[0] for part in PARTS.values()}
    assert toolkit.specifier.contains(release) and hashed()["cuda-toolkit"].startswith(f"cuda-toolkit=={release}.")
    assert asked.keys() < pinned.keys()
    assert all(each.specifier.contains(pinned[name]) for name, each in asked.items())


def test_published_statements_are_whole():
    table = pd.read_csv(PUBLISHED)
    assert table.id.is_unique and table[["id", "figure", "statement", "quantity"]].notna().all(axis=None)
    stated = table[table.low.notna()]
    assert stated[["source", "published", "high"]].notna().all(axis=None) and (stated.low < stated.high).all()
    assert set(table.figure.str[0]) >= set("3456789")


def test_pages_hold_the_ledger_as_it_is():
    text = ledger.PAPER.read_text()
    assert ledger.with_headlines(text, ledger.ledger()) == text, "stale: run `make claims`"
    assert ledger.LEDGER.read_text() == ledger.rows(ledger.ledger()), "stale: run `make claims`"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(((?!http)[^)#]+)[^)]*\)", path.read_text()):
        assert (path.parent / link).exists(), link


def test_every_statement_has_a_result_and_every_table_its_provenance():
    assert not (ledger.ledger().verdict == "not run").any()
    for path in RESULTS.glob("*.csv"):
        record = json.loads((RESULTS / f"{path.name.split('.')[0]}.provenance.json").read_text())
        assert {"parameters", "versions", "device", "commit", "seconds"} <= record.keys()


def test_every_provenance_that_names_no_commit_of_its_code_is_on_the_page_of_tables():
    """Those of notebooks are mended by `make publish`."""
    text = (ROOT / "docs" / "reference" / "tables.md").read_text()
    for path in (ROOT / "data").rglob("*provenance.json"):
        if path.parent != RESULTS and not re.fullmatch("[0-9a-f]{40}", json.loads(path.read_text())["commit"]):
            assert f"`{path.name.removesuffix('.provenance.json')}`" in text or path.name in text, path


def test_committed_notebooks_can_fail():
    """Executed, without images, and with text in every checked cell: else nbval compares nothing."""
    for path in sorted((ROOT / "notebooks").rglob("[!.]*.ipynb")):
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        checked = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
        assert checked or path.stem == "panel", path
        assert all(c.execution_count for c in cells), path
        assert all(c.outputs and c.outputs[0].output_type == "stream" for c in checked), path
        assert not any("data" in output for c in cells for output in c.outputs), path
        assert not any(output.get("name") == "stderr" for c in cells for output in c.outputs), path


def test_verdicts():
    assert claims.verdict([1, 1.1, 1.2], 0, 3) == "reproduced"
    assert claims.verdict([1, 2], 0, 3) == "undecided"  # two seeds that differ say little: 1.5 +- 6.4
    assert claims.verdict([4, 4.1, 4.2], 0, 3) == "not reproduced"
    assert claims.verdict([4, 5], np.nan, np.nan) == "ours"
    assert claims.verdict([3], 0, 3) == "reproduced" and claims.verdict([3.1], 0, 3) == "not reproduced"


def test_more_seeds_of_the_same_spread_make_no_verdict_harder():
    """Before, one seed outside was enough against "reproduced", and among many seeds one is outside sooner or later."""
    random = np.random.default_rng(0)
    few, many = random.normal(1, 0.4, 5), random.normal(1, 0.4, 200)
    assert many.min() < 0.5 < 1.5 < many.max()
    assert claims.verdict(few, 0.5, 1.5) == claims.verdict(many, 0.5, 1.5) == "reproduced"


def test_bad_claims_are_refused():
    with pytest.raises(ValueError, match="id: got 'fig99'; accepted are"):
        claims.claim("fig99", "", [1])
    for values in ([], [np.nan]):
        with pytest.raises(ValueError, match="values: got"):
            claims.claim("fig4-ten-times", "", values)
    with pytest.raises(ValueError, match=r"claims\.md: the marks"):
        ledger.with_headlines("no marks", ledger.ledger())


def test_files_appear_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("seco")
        raise RuntimeError
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"), replacing(path):
        Path("/dev/full").write_text("second")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_where_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("", "name", {}, pd.DataFrame())
    assert not list(tmp_path.iterdir())


def test_every_figure_is_on_the_page_of_figures_with_its_notebook_and_its_function():
    lines = (ROOT / "docs" / "paper" / "figures.md").read_text().splitlines()
    rows = [re.match(r"\| \[(\w+)\]\(\S+\) \| (.+?) \| .+ \| `(\w+)\.(\w+)` \|", line) for line in lines]
    found = {row[1]: row for row in rows if row}
    drawn = {path.stem for path in (ROOT / "figures").glob("*.png")} - {"explore", "probe"}  # of no paper's scale
    assert set(found) == drawn
    for row in found.values():
        (home,) = (package for package in PLOTS if find_spec(f"{package}.{row[3]}"))
        assert callable(getattr(importlib.import_module(f"{home}.{row[3]}"), row[4]))
        for notebook in re.findall(r"notebooks/(\S+?)\.ipynb", row[2]):
            assert row[1] in (ROOT / "notebooks" / f"{notebook}.ipynb").read_text()


def test_every_finding_and_every_relation_is_explained_by_name():
    found, relations = (pd.read_csv(ROOT / "data" / f"{name}.csv") for name in ("findings", "relations"))
    assert {*found.name} >= {*WORDINGS} and [*relations.name] == [*RELATIONS]
    assert not GONE & {*WORDINGS, *RELATIONS}  # else a record loses them
    marks = {f"<!-- the site inserts: findings {kind} {about} -->" for kind, about in zip(found.kind, found.about)}
    page = (ROOT / "docs" / "reference" / "findings_by_name.md").read_text()
    assert {*re.findall("<!-- .* -->", page)} == marks | {"<!-- the site inserts: relations -->"}


SMI = """#!/bin/sh
echo "$1" > "$0.asked"
echo "NVIDIA H200, 575.57.08, 345, 1980, 3201, 700.00, 31"
"""


def test_the_provenance_of_a_table_names_device_driver_and_clocks(tmp_path, monkeypatch):
    def held():
        results.save(tmp_path, "a_table", {}, pd.DataFrame({"x": [1]}))
        return json.loads((tmp_path / "data/results/a_table.provenance.json").read_text())["device"]

    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert not set(results.QUERY) & held().keys()  # no nvidia-smi
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    found = held()
    assert results.device().items() <= found.items()
    assert (found["name"], found["driver_version"]) == ("NVIDIA H200", "575.57.08")
    assert (found["clocks.sm"], found["clocks.max.sm"], found["clocks.mem"]) == ("345", "1980", "3201")
    assert (tmp_path / "nvidia-smi.asked").read_text().strip() == f"--query-gpu={','.join(results.QUERY)}"
    smi.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")  # as where the driver is not loaded
    assert not set(results.QUERY) & held().keys()


def test_no_package_and_no_notebook_outgrows_its_budget():
    budgets, now = sizes.budgets(), sizes.sizes()
    assert now.keys() == budgets.keys()
    assert not {name: f"{lines} of {budgets[name]}" for name, lines in now.items() if lines > budgets[name]}


def test_to_import_fa_lib_brings_neither_notebooks_nor_training_and_changes_nothing():
    script = """
import os, sys, torch, warnings
before = dict(os.environ), list(warnings.filters)
import fa_lib
unwanted = "papermill nbformat IPython diffusers transformers lightning_fabric pandas matplotlib"
assert not set(unwanted.split()) & set(sys.modules)
assert dict(os.environ) == before[0]
import matplotlib
style = dict(matplotlib.rcParams)
import attention_check, fa_lib.execution.results, fa_lib.plots.microbenchmark, fa_lib.plots.ablation
assert dict(matplotlib.rcParams) == style and dict(os.environ) == before[0]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
