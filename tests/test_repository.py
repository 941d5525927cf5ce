"""The repository agrees with itself: environments, lock, ledger, published statements, provenance."""

import importlib.util
import io
import json
import re
import tomllib
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml

from fa_lib import claims, plots, plots_report, plots_why
from fa_lib.check.judge import judge
from fa_lib.execution import results
from fa_lib.execution.files import replacing
from fa_lib.execution.results import save
from fa_lib.experiments.microbenchmark import shapes
from fa_lib.paths import PUBLISHED, RESULTS, ROOT
from fa_lib.plots import training as of_study
from fa_lib.plots.captions import settings

CONDA = {
    "torch": {"environment.yml": "pytorch-cpu", "environment-cuda.yml": "pytorch-gpu"},
    "matplotlib": "matplotlib-base",
    "lightning-fabric": "pytorch-lightning",  # which holds it; conda-forge has no package of its own for it
}


def requirements(specs):
    return {re.match(r"[\w.-]+", s)[0]: re.sub(r"^[\w.-]+ *", "", s) for s in specs}


@pytest.fixture
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["environment.yml", "environment-cuda.yml"])
def test_conda_environments_ask_for_what_pyproject_asks(name, project):
    wanted = requirements(project["dependencies"] + project["optional-dependencies"]["test"])
    wanted["python"] = project["requires-python"]
    if "cuda" in name:
        wanted |= requirements(project["optional-dependencies"]["cuda"]) | {"cuda-version": ">=12.9"}
    renamed = {package: CONDA.get(package, package) for package in wanted}
    wanted = {(new if isinstance(new, str) else new[name]): wanted[package] for package, new in renamed.items()}
    assert requirements(yaml.safe_load((ROOT / name).read_text())["dependencies"]) == wanted


def test_the_lock_holds_every_direct_requirement_exactly(project):
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in lines)
    locked = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}
    extras = project["optional-dependencies"]
    assert requirements(project["dependencies"] + extras["test"] + extras["browser"]).keys() <= locked


def test_published_statements_are_whole():
    table = pd.read_csv(PUBLISHED)
    assert table.id.is_unique and table[["id", "figure", "statement", "quantity"]].notna().all(axis=None)
    stated = table[table.low.notna()]
    assert stated[["source", "published", "high"]].notna().all(axis=None) and (stated.low < stated.high).all()
    assert set(table.figure.str[0]) >= set("3456789")


def test_readme_holds_the_ledger_as_it_is():
    text = (ROOT / "README.md").read_text()
    assert claims.in_readme(text, claims.ledger()) == text, "stale: run `make claims`"
    for path in re.findall(r"\]\(((?!http)[^)]+)\)", text):
        assert (ROOT / path).exists(), path


def test_every_statement_has_a_result_and_every_table_its_provenance():
    assert not (claims.ledger().verdict == "not run").any()
    for path in RESULTS.glob("*.csv"):
        record = json.loads((RESULTS / f"{path.name.split('.')[0]}.provenance.json").read_text())
        assert {"parameters", "versions", "device", "commit", "seconds"} <= record.keys()


def test_verdicts():
    assert claims.verdict([1, 2], 0, 3) == "reproduced"
    assert claims.verdict([1, 4], 0, 3) == "consistent"
    assert claims.verdict([4, 5], 0, 3) == "not reproduced"
    assert claims.verdict([4, 5], np.nan, np.nan) == "not stated"


def test_bad_claims_are_refused():
    with pytest.raises(ValueError, match="id: got 'fig99'; accepted are"):
        claims.claim("fig99", "", [1])
    for values in ([], [np.nan]):
        with pytest.raises(ValueError, match="values: got"):
            claims.claim("fig4-ten-times", "", values)
    with pytest.raises(ValueError, match="README: the marks"):
        claims.in_readme("no marks", claims.ledger())


def test_a_stale_readme_is_noticed():
    text = (ROOT / "README.md").read_text()
    altered = claims.ledger().assign(mean=lambda t: t["mean"] * 2)
    assert claims.in_readme(text, altered) != text


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


@pytest.mark.parametrize(
    "name, draw",
    [
        ("02_precision", plots.precision),
        ("03_golden_value", plots.golden_value),
        ("04_sequence_length", plots.sequence_length),
        ("05_algorithm_changes", plots.algorithm_changes),
    ],
)
def test_figures_draw_every_setting_and_name_their_axes(name, draw):
    table = pd.read_csv(RESULTS / f"{name}.csv")
    shown = table.query("kernel == 'flash' and against == 'baseline'") if name.startswith("05") else table
    figure = draw(shown, settings(table))
    caption = figure._supxlabel.get_text().replace("\n", " ")
    assert all(words in caption for words in ("N = ", "d = 64", "B_c = ", " seeds", "softmax inside in FP32"))
    assert figure.axes[0].get_ylabel() and figure.axes[-1].get_xlabel()
    assert table.seed.nunique() >= 5
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    plt.close(figure)
    committed = next((ROOT / "figures").glob(f"figure{int(name[:2]) + 1}_*.svg")).read_text()
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    assert words.findall(drawn.getvalue()) == words.findall(committed), "stale: run `make figures`"


def texts(figure):
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    plt.close(figure)
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn.getvalue())


def read(name):
    return pd.read_csv(RESULTS / f"{name}.csv")


def reported():
    names = dict(lengths="", asked=".asked", shapes=".shapes", inputs=".inputs", sums=".sums", repeats=".repeats")
    tables = {name: read(f"11_your_kernel{suffix}") for name, suffix in names.items()}
    tables = {name: table.fillna(dict(problem="", detail="")) for name, table in tables.items()}
    return plots_report.kernel_report(judge("every_step", **tables), tables, "")


DRAWN = {
    "figure11_report": reported,
    "inside_a_model": lambda: of_study.inside(read("06_inside_a_model"), ""),
    "figure7_weight_divergence": lambda: of_study.divergence({"here": read("07_weight_divergence")}, ""),
    "figure8_weights_in_context": lambda: of_study.in_context({"here": read("08_weights_in_context")}, "", 20),
    "figure8b_key_bias": lambda: of_study.key_bias(read("08_weights_in_context.bias"), ""),
    "figure9_ladder": lambda: plots_why.ladder(read("09_why_ten_times"), ""),
    "figure9b_rescaling": lambda: plots_why.rescaling(read("09_why_ten_times.rescaling"), ""),
    "figure9c_map": lambda: plots_why.bits_and_tiles(read("09_why_ten_times.map"), ""),
    "figure9d_verdicts": lambda: plots_why.verdicts(read("09_why_ten_times.verdicts"), ""),
    "figure9e_options": lambda: plots_why.options(read("09_why_ten_times.options"), ""),
    "figure10_mechanism": lambda: plots_why.mechanism(read("10_biased_rounding"), read("10_biased_rounding.steps"), ""),
    "figure10b_directions": lambda: plots_why.directions(read("10_biased_rounding.directions"), ""),
}


@pytest.mark.parametrize("figure", DRAWN)
def test_figures_are_those_of_the_committed_tables(figure):
    """All but the caption, of which the notebook words a part."""
    committed = re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / "figures" / f"{figure}.svg").read_text())
    captions = (
        "Lines: mean",
        "Small points",
        "a point for each",
        "Left: mean",
        "Right: small",
        "Range over seeds",
        "inputs that make",
    )
    drawn = [words for words in texts(DRAWN[figure]()) if not any(part in words for part in captions)]
    assert set(drawn) <= set(committed) and len(drawn) > 10, "stale: run `make figures`"
    assert any("seeds" in words for words in committed), "the caption names the seeds"


def test_recorded_runs_are_drawn_beside_the_one_here(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    assert results.recorded("07_weight_divergence") == {}
    folder = tmp_path / "Some_GPU" / "data" / "results"
    folder.mkdir(parents=True)
    table = pd.read_csv(RESULTS / "08_weights_in_context.csv")
    table.to_csv(folder / "08_weights_in_context.csv", index=False)
    tables = {"here": table, **results.recorded("08_weights_in_context")}
    assert list(tables) == ["here", "Some GPU"]
    for figure, panels in ((of_study.divergence(tables, ""), 4), (of_study.in_context(tables, "", 20), 6)):
        assert len(figure.axes) == panels
        assert {"here", "Some GPU"} <= set(texts(figure))


def test_shapes_follow_the_papers_formula():
    table = shapes([4 * 64 * 16, 4 * 64 * 256], 64)
    assert table[["block_q", "block_kv"]].to_numpy().tolist() == [
        [16, 16], [16, 16], [16, 16], [64, 256], [256, 64], [128, 128],
    ]  # fmt: skip
    assert table.area.tolist() == [256] * 3 + [64 * 256] * 3


def test_the_recorded_campaign_of_faults_lost_nothing():
    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    table = pd.DataFrame(rows[1:], columns=rows[0])
    sums = table.kills[:-1].astype(int).sum(), table.lost.astype(int).sum()
    assert table.fault.iloc[-1] == "**all**" and int(table.kills.iloc[-1]) == sums[0] >= 200 and sums[1] == 0
    for counted in [*table["equal bit for bit"], *table.noticed[table.noticed != ""]]:
        done, of = counted.split(" of ")  # a fault that could not be tried has none
        assert done == of != "0"


def test_the_plan_counts_what_the_code_does():
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks" / "scale.py")
    spec.loader.exec_module(scale := importlib.util.module_from_spec(spec))
    rows = scale.counted({name: scale.count(name) for name in ("small", "large")}).splitlines()[2:]
    assert len(rows) == 2 and set(rows) <= set((ROOT / "docs" / "scale.md").read_text().splitlines())
