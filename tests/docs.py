"""Every block of README.md, docs/start and docs/gpu, as a reader runs it: in order, by `bash -e`, in a fresh clone and
a fresh environment. `make test-docs`. (Not collected by `make test`.)

Lines of a sh block are commands, and so is what a yaml block runs. A python block is one program. Other blocks, and
lines that begin with "> ", quote what a command of the page prints."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fa_lib.execution.paths import ROOT
from install_locked import hashed, versions

START = ("docs/start/install.md", "docs/start/page.md", "docs/start/mend.md", "docs/start/ci.md")
GPU = ("docs/gpu/machine.md", "docs/gpu/blame.md", "docs/gpu/recorded.md")
PAGES = ("README.md", *START, *GPU)

LONG_GPU = "minutes of two cores; .github/workflows/weekly.yml runs the README's command"
HOURS_OF_NVCC = "nvcc compiles for more than five minutes; tests/gpu compiles what a test needs"
GIVEN = "the same command as the one on a file below it, and a longer one"
GPU_NEEDED = "needs a GPU; make test-record rehearses it"
SKIPPED = {  # a command, or a part of a python block -> why it does not run here
    "make figures": "nightly.yml",
    "make figure4": "nightly.yml makes every figure",
    "make test": "make test",
    "make lab": "make test-browser",
    "fa-lib check kernel examples/triton_attention.py:attention --gpu H100 --quick": LONG_GPU,
    "fa-lib check kernel my_package.attention:flash --gpu H100 --quick --exit-code --seed 0": LONG_GPU,
    "fa-lib check kernel my_package/attention.py:flash --gpu A100 --quick --exit-code --seed 0": LONG_GPU,
    "fa-lib check kernel fa2 --gpu A100 --timeout 300": "25 minutes; " + HOURS_OF_NVCC,
    "fa-lib blame fa2 --gpu A100 -n 256": HOURS_OF_NVCC,
    "fa-lib check kernel my_package.attention:flash": GIVEN,
    "fa-lib check kernel path/to/file.py:flash": GIVEN,
    'pip install . "fa_lib[gpu] @ git+ADDRESS-OF-THIS-REPOSITORY@COMMIT"': "README installs the same extra",
    "pip install torch --index-url https://download.pytorch.org/whl/cpu": "another index; pip installs torch, too",
    "@parametrize_with_checks": "its kernel and its fault are the reader's; tests/attention_check/test_testing.py",
    "python3 -m benchmarks.record": GPU_NEEDED,
}

PACKAGE = '[project]\nname = "my_package"\nversion = "1"\n[build-system]\nrequires = ["hatchling==1.33.0"]\n' + (
    'build-backend = "hatchling.build"\n[tool.hatch.build.targets.wheel]\npackages = ["my_package"]\n'
)
FLASH = "from torch.nn.functional import scaled_dot_product_attention as flash\n"
MODEL = """import torch


def run():
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, dtype=torch.bfloat16)
    layer(torch.randn(2, 48, 64, dtype=torch.bfloat16))
"""
NAMES = '''"""Names that blocks take from the reader."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def kernel(q, k, v, causal=False):
    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def my_triton_function(x):
    from examples.triton_attention import attention

    attention(x, x, x)


q, k, v = torch.randn(3, 1, 2, 64, 64, generator=torch.manual_seed(0)).bfloat16()
S = q @ k.mT / 8
x, y = q, torch.zeros_like(q)
blocks, threads, shared_bytes = 1, 32, 0
text = 'extern "C" __global__ void f(const short* x, short* y, int n, float a) { y[threadIdx.x] = x[threadIdx.x]; }'
'''


def blocks(page):
    """(language, text) of each block of a page, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def command(line):
    """A line of a shell without its comment."""
    return re.sub(r"(^|\s)\s*#.*", "", line).strip()


def runs(language, block):
    """The lines of a sh block, or what the steps of a yaml block run: of a job, or of a whole workflow."""
    if language == "sh":
        return block.splitlines()
    steps = yaml.safe_load(block)
    if isinstance(steps, dict):
        steps = [step for job in steps["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def script(page, home):
    """What a reader types who follows a page, for bash. Commands `fa-lib` of README that a page below it has run there
    alone."""
    lines, below = [], set()
    if page == PAGES[0]:
        every = (run for other in PAGES[1:] for language, block in blocks(other) if language == "sh"
                 for run in runs(language, block))  # fmt: skip
        below = {command(run).removesuffix(" --seed 0") for run in every if run.startswith("fa-lib ")}
    for language, block in blocks(page):
        if language == "python":
            if any(part in block for part in SKIPPED):
                continue
            if "return" in block:  # the inside of a function
                block = f"def inside():\n{textwrap.indent(block, '    ')}\nassert inside().shape == q.shape\n"
            tested = "def test_" in block
            block = f"from names import *\n{block}"
            lines += [f"cat > block.py <<'PYTHON'\n{block}PYTHON"]
            lines += ["pip install pytest", "pytest block.py"] if tested else ["python block.py"]
        if language in ("sh", "yaml"):
            lines += [run for run in runs(language, block) if command(run) not in {*SKIPPED, *below}]
            if "git clone" in block:
                lines += ['cp -r "$READER"/. .  # what the reader has']
    address = {
        "@COMMIT": "",
        "git+ADDRESS-OF-THIS-REPOSITORY": f"file://{home}/fa-lib",
        "ADDRESS-OF-THIS-REPOSITORY": f"file://{ROOT}",
    }
    text = "\n".join(lines) + "\n"
    for placeholder, local in address.items():  # pip knows no git+file:///
        text = text.replace(placeholder, local)
    return text


def test_what_is_left_out_is_on_a_page():
    every = [(language, block) for page in PAGES for language, block in blocks(page)]
    commands = {
        command(line) for language, block in every if language in ("sh", "yaml") for line in runs(language, block)
    }
    programs = [block for language, block in every if language == "python"]
    assert [x for x in SKIPPED if x not in commands and not any(x in block for block in programs)] == []


@pytest.fixture(scope="class")
def reader(tmp_path_factory):
    """reader(page, folder): what bash prints that runs a page's blocks in a folder of the reader's home."""
    home = tmp_path_factory.mktemp("home")
    own = home / "own"
    for name, text in (("my_package/attention.py", FLASH), ("path/to/file.py", FLASH), ("my_model.py", MODEL),
                       ("names.py", NAMES)):  # fmt: skip
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    (home / "mine").mkdir()
    (home / "mine/pyproject.toml").write_text(PACKAGE)
    subprocess.run(["cp", "-r", *own.iterdir(), home / "mine"], check=True)
    q, k, v = torch.randn(3, 1, 2, 64, 64, generator=torch.manual_seed(0)).bfloat16().float().numpy()
    o = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v))).numpy()
    np.savez(own / "call.npz", q=q, k=k, v=v, o=o, o_ref=o * 1.01)
    (home / "versions.txt").write_text(versions(hashed() | hashed(ROOT / "instruments/ptx_machine")))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TQDM", "OMP"))}
    elsewhere = [each for each in env["PATH"].split(os.pathsep) if Path(each) != Path(sys.executable).parent]
    env |= dict(PIP_CONSTRAINT=str(home / "versions.txt"), READER=str(own), PIP_QUIET="1")

    def run(page, folder="fa-lib", environment=None):
        """environment: of Python, below the home; None is no other than this one."""
        there = [str(home / environment / "bin")] if environment else []
        path = os.pathsep.join([*there, str(Path(sys._base_executable).parent), *elsewhere])
        done = subprocess.run(
            ["bash", "-ev"], input=script(page, home), cwd=home / folder, env=env | dict(PATH=path), text=True,
            capture_output=True,
        )  # fmt: skip
        print(page, done.returncode, done.stdout, done.stderr[-9000:], sep="\n")
        assert done.returncode == 0, f"{page}: {done.stderr[-3000:]}"
        return done.stdout

    run.home = home
    return run


class TestReadmeAndGpu:
    def test_readme(self, reader):
        subprocess.run([sys.executable, "-m", "venv", reader.home / "venv"], check=True)
        reader("README.md", ".", "venv")

    @pytest.mark.parametrize("page", GPU)
    def test_gpu(self, page, reader):
        quotes_are_printed(page, reader(page, environment="venv"))


class TestStart:
    @pytest.mark.parametrize("page", START)
    def test_start(self, page, reader):
        first = page == START[0]
        folder = "." if first else "mine" if page.endswith("ci.md") else "fa-lib"
        printed = reader(page, folder, None if first else "fa-lib/.venv")
        if not page.endswith("page.md"):  # its long quotation has a processor's digits
            quotes_are_printed(page, printed)


def quotes_are_printed(page, printed):
    quotes = [block for language, block in blocks(page) if language in ("", "text")]
    quotes += re.findall(r"^> (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    for line in "\n".join(quotes).splitlines():
        assert line.rstrip() in printed, line
