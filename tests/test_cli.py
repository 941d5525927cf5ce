"""The command: pages of help, exit codes, words on what cannot be done."""

import os
import subprocess
import sys

import pytest
from in_a_folder import command

from fa_lib.commands.cli_dev import notebooks_of
from fa_lib.execution import reader_modules
from fa_lib.execution.notebooks import parameters
from fa_lib.execution.paths import NOTEBOOKS, ROOT

pytestmark = pytest.mark.slow


def test_no_file_of_the_readers_stands_in_for_a_librarys(tmp_path):
    """They are looked for behind all that is installed; in the process where their own code runs, in front."""
    for name in ("token", "yaml", "jinja2", "html"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "mine.py").write_text("import beside\n\ndef attention(q, k, v):\n    return beside.f(q, k, v)")
    (tmp_path / "beside.py").write_text("from torch.nn.functional import scaled_dot_product_attention as f")
    program = [sys.executable, "-P", "-c", "from fa_lib.commands.cli import main; main()"]  # as the installed command
    env = os.environ | dict(PYTHONPATH=str(ROOT), TQDM_DISABLE="1")
    for words in (["compare", "mine:attention", "flash", "-n", "64"], ["dev", "figures", "none"]):
        done = subprocess.run([*program, *words], cwd=tmp_path, capture_output=True, text=True, env=env)
        assert "the wrong one" not in done.stdout + done.stderr and done.returncode == 2 * ("none" in words)
    assert reader_modules.path()[: len(reader_modules._FOLDERS)] == reader_modules._FOLDERS[::-1]


def test_the_ledger_of_one_paper():
    done = command("dev", "claims", "--paper", "2407.08608")
    assert done.exit_code == 0 and "1.7 x nearer" in done.stdout and "roughly 10 x" not in done.stdout


@pytest.mark.parametrize(
    "words, message",
    [
        (("dev", "claims", "--results", "nowhere"), "results: got 'nowhere'; accepted is a folder"),
        (("dev", "claims", "--paper", "1706.03762"), "paper: got '1706.03762'; accepted are 2405.02803, 2407.08608"),
        (("dev", "train", "--arm", "flesh", "--out", "no"), "arm: got 'flesh'; accepted are baseline, fp32"),
        (("dev", "figures", "99_nothing"), "names: got '99_nothing'; accepted are"),
        (("dev", "figures", "--scale", "huge"), "scale: got 'huge'; accepted are gpu, paper, quick"),
        (("dev", "figures", "13_theory", "--scale", "gpu"), "13_theory: the scale gpu"),
        (("check", "kernel", "no/where.py:f"), "kernel: got 'no/where.py:f'; there is no file"),
        (("dev", "gallery", "nobody"), "kernel: got 'nobody'; accepted are ggml_prefill"),
        (("check", "kernel", "gallery:nothing"), "no kernel 'nothing'; accepted are ggml_prefill"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_with_code_2(words, message):
    done = command(*words)
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert message in done.stderr and done.stdout == "", done.output


def test_a_pipe_that_nobody_reads_further_is_no_error():
    words = f"{sys.executable} -m fa_lib dev claims | sleep 0; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_command_that_is_interrupted_says_so_in_a_line(monkeypatch):
    def interrupted(*words):
        raise KeyboardInterrupt

    monkeypatch.setattr("fa_lib.execution.ledger.ledger", interrupted)
    done = command("dev", "claims")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "\nfa-lib: interrupted; nothing is kept\n")


@pytest.mark.parametrize(
    "name, notebook",
    [("4", "03_golden_value"), ("9b", "09_why_ten_times"), ("inside_a_model", "06_inside_a_model"),
     ("02_precision", "02_precision"), ("02_precision.ipynb", "02_precision")],
)  # fmt: skip
def test_a_figure_is_named_by_its_number(name, notebook):
    assert [path.stem for path in notebooks_of(NOTEBOOKS, [name])] == [notebook]


def test_the_tutorials_figures_are_drawn_when_they_are_named():
    assert {path.parent.name for path in notebooks_of(NOTEBOOKS, [])} == {"notebooks", "beyond"}
    assert {path.parent.name for path in notebooks_of(NOTEBOOKS, ["tutorials"])} == {"tutorials"}
    assert all(parameters(path, "paper") is not None for path in notebooks_of(NOTEBOOKS, ["tutorials"]))


ONE, TWO = ["03_golden_value"], ["02_precision", "03_golden_value"]


@pytest.mark.parametrize(
    "cores, given, fresh, due",
    [
        (2, "--jobs 2", (), dict(jobs=2, executor=0)),  # notebooks with a core each start no processes of their own
        (8, "--jobs 2", (), dict(jobs=2, executor=None)),
        (2, "--jobs 2 --executor 3", (), dict(jobs=2, executor=3)),
        (2, "", (), dict(jobs=2)),
        (1, "", (), dict(jobs=1)),
        (8, "--executor 3", (), dict(jobs=1)),
        (8, "--scale gpu", (), dict(jobs=1)),
        (2, "", ONE, dict(jobs=1)),  # what is up to date has no kernel made for it
        (2, "", TWO, dict(jobs=1)),
        (2, "--jobs 2", TWO, dict(jobs=2)),  # as the reader says
    ],
)
def test_how_two_notebooks_are_run(cores, given, fresh, due, monkeypatch):
    asked = {}
    monkeypatch.setattr("fa_lib.execution.notebooks.is_fresh", lambda path, *_: path.stem in fresh)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("fa_lib.commands.cli_dev.end_as_interrupted", lambda: None)
    monkeypatch.setattr("fa_lib.execution.notebooks.run_all", lambda *_, **options: asked.update(options))
    done = command("dev", "figures", "3", "4", *given.split())
    assert done.exit_code == 0 and due.items() <= asked.items(), done.output
