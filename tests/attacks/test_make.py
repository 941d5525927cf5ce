"""`make`: it runs what changed and publishes it; what is given to it is data; a `make` that is killed leaves nothing
running and nothing lying about."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from processes import lives, wait_until

from fa_lib.execution.paths import PACKAGE, ROOT

SHELL = "'; touch {0}; '\"; touch {0}; \" $(touch {0}) `touch {0}` ; touch {0} #"
NAMES = {"KERNEL": ["report"], "FORMAT": ["report", "QKV=a.npz"], "SCALE": ["figures"], "SEEDS": ["mutants"]}


def environment(**more):
    return {name: value for name, value in os.environ.items() if "MAKE" not in name} | more


@pytest.mark.parametrize("name", NAMES)
def test_a_value_given_to_make_is_no_command(name, tmp_path):
    """It reaches the command as one word: on make's command line, from the environment, and as a function of make's."""
    touched, printed = tmp_path / "touched", tmp_path / "python"
    printed.write_text("#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\n")
    printed.chmod(0o755)
    words = ["make", "--no-print-directory", f"PYTHON={printed}", *NAMES[name]]
    shell, function = SHELL.format(touched), f"$(shell touch {touched})"
    for value, given, env in ((shell, [f"{name}={shell}"], {}), (function, [], {name: function})):
        done = subprocess.run([*words, *given], cwd=ROOT, capture_output=True, text=True, env=environment(**env))
        assert done.returncode == 0, done.stderr
        assert not touched.exists() and any(line.endswith(value) for line in done.stdout.splitlines()), done.stdout


def test_a_folder_with_a_colon_is_refused(tmp_path):
    (tmp_path / "a:b").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path / "a:b")
    done = subprocess.run(["make"], cwd=tmp_path / "a:b", capture_output=True, text=True, env=environment())
    assert done.returncode and "a colon in the path is two folders to Python" in done.stderr


def make(folder, *words):
    command = ["make", f"PYTHON={sys.executable}", "--no-print-directory", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment())


def test_make_figures_runs_what_changed_and_leaves_the_checkout_as_it_was(tmp_path):
    """In a copy of the repository at a small scale: all, then what was damaged; then they are published."""
    for name in ("fa_lib", "notebooks", "data", "Makefile", "README.md", "pyproject.toml", ".gitignore"):
        source = ROOT / name
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "results", "0[0149]*", "0[5-8]*", "1*", "20*")
        shutil.copytree(source, tmp_path / name, ignore=ignored) if source.is_dir() else shutil.copy(source, tmp_path)
    scale = "02_precision: {n: 128, seeds: 2}\n03_golden_value: {n: 128, seeds: 2, lengths: [128]}\n"
    (tmp_path / "notebooks/scales/paper.yaml").write_text(scale)
    (tmp_path / "data/results").mkdir()
    (tmp_path / "docs/paper").mkdir(parents=True)
    shutil.copy(ROOT / "docs/paper/claims.md", tmp_path / "docs/paper")
    subprocess.run("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm a", shell=True,
                   cwd=tmp_path, check=True)  # fmt: skip
    first = make(tmp_path, "figures", "JOBS=2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count(f"figures are in {tmp_path}/build/figures") == 1
    assert first.stdout.count("(1 of 2)") == first.stdout.count("(2 of 2)") == 1 and "IPKernelApp" not in first.stderr
    figures = sorted(p.name for p in (tmp_path / "build/figures").iterdir())
    assert figures == [f"{n}.{s}" for n in ("figure3_precision", "figure4_golden_value") for s in ("png", "svg")]
    status = ["git", "status", "--porcelain"]
    assert subprocess.run(status, cwd=tmp_path, capture_output=True, text=True).stdout == ""
    readme = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("changed")
    refused = publish(tmp_path)
    assert refused.returncode == 2 and "publish: not committed: README.md; accepted is a clean tree" in refused.stderr
    assert not (tmp_path / "figures").exists() and not [*(tmp_path / "data/results").iterdir()]
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "data/ledger.csv").write_text("what publish writes itself is no reason")
    (tmp_path / "build/data/results/03_golden_value.csv").write_text("")
    published = make(tmp_path, "publish")
    assert published.returncode == 0, published.stderr
    assert "02_precision.ipynb is up to date" in published.stdout
    assert "03_golden_value.ipynb at scale paper" in published.stdout
    assert (tmp_path / "figures/figure3_precision.png").exists()
    assert "N = 128" in (tmp_path / "data/ledger.csv").read_text()
    page = (tmp_path / "docs/paper/claims.md").read_text()
    (tmp_path / "build/figures/figure3_precision.png").unlink()
    refused = publish(tmp_path)
    assert refused.returncode == 2 and "02_precision.ipynb is not up to date" in refused.stderr
    assert (tmp_path / "docs/paper/claims.md").read_text() == page


def publish(folder):
    words = [sys.executable, "-m", "fa_lib", "dev", "publish"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


CELLS = (
    "seconds = 60\nout = ''",
    "import os, sys, time\nfrom pathlib import Path\nprint('begun', file=sys.stderr)\n"
    "Path('../started').write_text(str(os.getpid()))\nwith open('../ran', 'a') as ran:\n    ran.write('x')\n"
    "time.sleep(seconds)\n"
    "figure = Path(out) / 'figures/a.png'\nfigure.parent.mkdir(parents=True)\nfigure.write_text('drawn')",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout with one notebook that sleeps."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, folder / "fa_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "notebooks/scales").mkdir(parents=True)
    cells = [new_code_cell(CELLS[0], metadata=dict(tags=["parameters"])), new_code_cell(CELLS[1])]
    kernel = dict(kernelspec=dict(name="python3", display_name="Python 3", language="python"))
    nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / "notebooks/01_small.ipynb")
    return folder


def make_figures(checkout, *before):
    words = [*before, "make", "figures", f"PYTHON={sys.executable}"]
    return subprocess.Popen(words, cwd=checkout, start_new_session=True, env=environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip


def begun(checkout, seconds, *words):
    """`make figures`, and the process id of the notebook's kernel once its cell sleeps."""
    (checkout / "notebooks/scales/paper.yaml").write_text(f"01_small: {{seconds: {seconds}}}\n")
    started = checkout / "started"
    started.unlink(missing_ok=True)
    make = make_figures(checkout, *words)
    wait_until(lambda: started.exists() and started.read_text() or make.poll() is not None)
    assert make.poll() is None, make.stdout.read()
    return make, int(started.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_killed_leaves_no_notebook_running(number, checkout):
    """The command, and not make, is killed: what it started ends, and nothing is half-written."""
    make, kernel = begun(checkout, 30)
    (command,) = psutil.Process(make.pid).children()
    started = [child.pid for child in command.children()]
    command.send_signal(number)
    wait_until(lambda: not any(map(lives, [kernel, command.pid, *started])), seconds=25)
    make.communicate()
    assert started and make.returncode and not (checkout / "build/figures").exists()
    assert not list(checkout.glob("build/*.outcome.json"))


def pressed(words, cwd, when):
    """The exit code and all that a terminal shows of a command at which Ctrl-C is pressed once it shows `when`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # the tests may run by make themselves
            os.environ.pop(name, None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test that was started in the background ignores it
        os.execvp(words[0], words)
    shown = b""
    with open(terminal, "r+b", buffering=0) as keys, suppress(OSError):  # the terminal ends with an error
        while got := keys.read(1 << 16):
            shown += got
            if when and when.encode() in shown:
                keys.write(b"\x03")
                when = ""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode().replace("\r\n", "\n")


def test_ctrl_c_ends_in_one_line_that_says_what_is_kept(checkout):
    """`make figures` in a terminal, with a notebook that is done and one that runs."""
    done, slow = checkout / "notebooks/01_small.ipynb", checkout / "notebooks/02_slow.ipynb"
    slow.write_text(done.read_text().replace("../ran", "../slow").replace("a.png", "b.png"))
    (checkout / "notebooks/scales/paper.yaml").write_text("01_small: {seconds: 0}\n02_slow: {seconds: 100}\n")
    try:
        command = [sys.executable, "-m", "fa_lib", "dev", "figures", "01_small"]
        own = dict(cwd=checkout, env=environment(PYTHONPATH=str(checkout)), capture_output=True, text=True)
        assert subprocess.run(command, **own).returncode == 0
        code, shown = pressed(["make", f"PYTHON={sys.executable}", "figures"], checkout, "begun")
        assert code != 0
        after = [line for line in shown[shown.index("^C") :].splitlines()[1:] if line]
        assert after[0].startswith("fa-lib: interrupted; ") and " build/" in after[0]
        assert len(after) == 2 and after[1].startswith("make: ***")
        assert "Traceback" not in shown and "IPKernelApp" not in shown
        assert "01_small.ipynb is up to date" in subprocess.run(command, **own).stdout
    finally:
        slow.unlink()
