"""Files of the reader's: who may read what is written, links in its place, damaged cells, a style of the reader's."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from attention_check.probe.capture import Capture
from attention_check.probe.probe import Probe
from fa_lib.execution.files import replacing
from fa_lib.execution.folder_lock import locked_folder
from fa_lib.execution.paths import ROOT


@pytest.mark.parametrize("umask, mode", [(0o077, 0o600), (0o027, 0o640), (0o022, 0o644)])
def test_the_umask_says_who_may_read(umask, mode, tmp_path):
    x = torch.zeros(1, 1, 4, 8)
    before = os.umask(umask)
    try:
        Capture.of(x, x, x, {}, x, {}).write(tmp_path / "a.safetensors")
        with replacing(tmp_path / "a.txt") as path:
            path.write_text("a")
    finally:
        os.umask(before)
    for name in ("a.safetensors", "a.txt"):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


def test_a_link_in_the_place_of_a_lock_is_not_emptied(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".run.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"\.run\.lock: is a symbolic link"), locked_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_link_in_the_place_of_a_file_is_neither_followed_nor_replaced(tmp_path):
    (tmp_path / "mine").write_text("mine")
    link = tmp_path / "worst.safetensors"
    link.symlink_to(tmp_path / "mine")
    x = torch.randn(1, 2, 16, 8)
    with pytest.warns(UserWarning, match="worst.safetensors: is a symbolic link"), Probe(save=link):
        F.scaled_dot_product_attention(x, x, x)
    assert link.is_symlink() and (tmp_path / "mine").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", link.name]


DRAWS = """
import sys, hashlib
import pandas as pd
from pathlib import Path
from fa_lib.execution.results import save_figure
from fa_lib.plots.style import styled
import matplotlib.pyplot as plt

@styled
def figure():
    made, ax = plt.subplots(figsize=(3, 2))
    ax.plot([1, 2, 3], [3, 1, 2], label="a")
    ax.set(title="title", xlabel="x")
    ax.legend()
    return made

save_figure(figure(), Path(sys.argv[1]) / "a")
print(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(sys.argv[1]).iterdir())))
"""
RC = "lines.linestyle: --\naxes.facecolor: red\nfont.weight: bold\npath.sketch: 3, 100, 2\nlegend.loc: lower left\n"


def test_the_readers_matplotlibrc_and_backend_change_no_figure(tmp_path):
    (tmp_path / "matplotlibrc").write_text(RC)
    settings = [{}, dict(MATPLOTLIBRC=str(tmp_path), MPLBACKEND="pdf")]
    digests = []
    for i, setting in enumerate(settings):
        (tmp_path / str(i)).mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MPL", "MATPLOTLIB"))}
        env |= setting | dict(MPLCONFIGDIR=str(tmp_path / "config"))
        words = [sys.executable, "-c", DRAWS, tmp_path / str(i)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        digests.append(done.stdout)
    assert digests[0] == digests[1] and len(digests[0].split()) == 2
