"""Small files that become many bytes: what is read has a limit, which is looked at before anything is unpacked."""

import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from in_a_folder import command

from attention_check.probe import tensor_files
from attention_check.probe.capture import captured
from fa_lib.execution.paths import ROOT


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
