"""Files of the reader's: who may read what is written, links in its place, a style of the reader's,
small files that become many bytes."""

import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from in_a_folder import command

from attention_check.probe import tensor_files
from attention_check.probe.capture import Capture, captured
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


def capture(path, n=64):
    held = {name: torch.zeros(1, 1, n, 8) for name in "qkv"}
    np.savez_compressed(path, **held) if path.suffix == ".npz" else torch.save(held, path)
    return path


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """Three arrays of 128 MiB in 2 MB, where 256 MiB are accepted."""
    block = bytes(1 << 24)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in "qkv":
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                shape = (1, 1, 1 << 19, 64)
                np.lib.format.write_array_header_1_0(file, dict(descr="<f4", fortran_order=False, shape=shape))
                for _ in range(8):
                    file.write(block)
    assert (tmp_path / "bomb.npz").stat().st_size < 3e6
    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "from attention_check.probe import tensor_files; tensor_files.LARGE = 1 << 28\n"
        "import resource; before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    tensor_files.tensors(sys.argv[1])\nexcept ValueError as error:\n    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "bomb.npz"], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    words, grown = done.stdout.splitlines()
    assert "bomb.npz: holds 0.4 GiB of tensors; accepted are 0.25 GiB; --allow-large" in words
    assert int(grown) < 100_000  # KiB


def test_a_view_of_one_number_counts_as_the_numbers_it_has(tmp_path):
    """q of 8 GiB, in a file of a kilobyte."""
    held = {name: torch.zeros(1).expand(1, 1, 1 << 25, 64) for name in "qkv"}
    torch.save(held, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 5000
    with pytest.raises(ValueError, match="a.pt: holds 24.0 GiB of tensors"):
        captured(tmp_path / "a.pt")


def test_the_commands_know_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "LARGE", 4000)
    path = str(capture(tmp_path / "a.npz"))
    same = ["compare", "flash", "flash", "--tensors", path]
    for words in (["check", "tensors", path], ["shrink", path, "--kernel", "flash"], same):
        refused = command(*words)
        assert refused.exit_code == 2 and "--allow-large" in refused.stderr
    assert command(*same, "--allow-large").exit_code == 0
