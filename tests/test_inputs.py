"""Inputs: the same everywhere, what their names say, and read without pickle."""

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fa_lib import draw, load

DIGESTS = {"uniform": "84e56a574f5dcd73", "normal": "83e3ac8676b03226", "outliers": "72bdb2ea2ed4eeb5"}


def digest(tensors):
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in tensors)).hexdigest()[:16]


@pytest.mark.parametrize("distribution", DIGESTS)
def test_a_seed_gives_the_same_values_on_every_platform(distribution):
    assert digest(draw(distribution, 7, (2, 3, 500, 16))) == DIGESTS[distribution]


def test_q_k_and_v_are_different_draws_of_their_own_shapes():
    q, k, v = draw("normal", 0, (1, 4, 10, 8), (1, 2, 12, 8))
    assert q.shape == (1, 4, 10, 8) and k.shape == v.shape == (1, 2, 12, 8)
    assert not torch.equal(k, v)


@pytest.mark.parametrize(
    "call, message",
    [
        (("gaussian", 0, (2, 2)), "distribution: got 'gaussian'; accepted are uniform, normal, outliers"),
        (("normal", -1, (2, 2)), "seed: got -1"),
        (("normal", 1.5, (2, 2)), "seed: got 1.5"),
        (("normal", 0, (2, 0)), "shape: got"),
    ],
)
def test_bad_draws_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        draw(*call)


def test_files_are_read_without_pickle(tmp_path):
    tensors = dict(zip("qkv", (x.half() for x in draw("normal", 0, (1, 2, 5, 4)))))
    save_file(tensors, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **{name: x.numpy() for name, x in tensors.items()})
    torch.save(tensors, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.npz", "a.pt"):
        assert all(torch.equal(x, y) for x, y in zip(load(tmp_path / name), tensors.values()))


def test_files_that_cannot_be_read_are_refused_with_their_path(tmp_path):
    class Trap:
        def __reduce__(self):
            return print, ("this must never run",)

    torch.save({"q": Trap()}, tmp_path / "trap.pt")
    np.savez(tmp_path / "trap.npz", q=np.array([Trap()], dtype=object))
    np.savez(tmp_path / "short.npz", q=np.zeros(2), k=np.zeros(2))
    whole = tmp_path / "whole.safetensors"
    save_file({"q": torch.zeros(100)}, whole)
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-50])
    (tmp_path / "other.bin").write_bytes(b"")
    for name in ("trap.pt", "trap.npz", "short.npz", "cut.safetensors", "other.bin"):
        with pytest.raises(ValueError, match=name):
            load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.npz")
