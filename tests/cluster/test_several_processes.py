"""One run of several processes, by DDP and FSDP, begun by torchrun or by the command itself. These need no Slurm."""

import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from runs import TINY, begun, command, ended, kill_when, run, same_weights
from safetensors.torch import load_file

from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.training.distances import distances
from fa_lib.training.run_folder import read_result, weights
from fa_lib.training.spec import Arm

CALLS = []
OF_TWO = ("--arm", "fp32", "--steps", 24, "--save-every", 4, "--devices", 2, "--strategy", "fsdp", "--out")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A run of two processes that torchrun started, with a share of the model each."""
    folder = tmp_path_factory.mktemp("sharded") / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    ended(begun([*torchrun, *command(*OF_TWO, folder)[1:]]))
    settings = json.loads((folder / "run.json").read_text())["settings"]
    assert settings["devices"] == 2 and settings["batch"] == TINY.batch and settings["strategy"] == "fsdp"
    return folder


def test_two_processes_match_one_by_ddp_and_fsdp(sharded, tmp_path):
    """Gradients are added up in another order, which is no more than the smallest change of the initial weights: one
    process moved by 1e-7 drifts as far, and ten times that is the bound."""
    options = ("--arm", "fp32", "--steps", 8, "--save-every", 4, "--out")
    by_ddp = begun([*command("--devices", 2, *options), str(tmp_path / "ddp")])
    run(tmp_path / "one", Arm(precision="32-true"), steps=8, every=4)
    run(tmp_path / "moved", Arm(precision="32-true", perturb=1e-7), steps=8, every=8)
    ended(by_ddp)
    folders = (tmp_path / "one", tmp_path / "ddp", sharded, tmp_path / "moved")
    one, ddp, fsdp, moved = (load_file(weights(folder, 8)) for folder in folders)
    bound = distances(moved, one)
    for found in (distances(ddp, one), distances(fsdp, one)):
        assert 0 < found["relative_l2"] < 10 * bound["relative_l2"]
        assert 0 < found["wasserstein"] < 10 * bound["wasserstein"]
    assert json.loads((tmp_path / "ddp" / "run.json").read_text())["settings"]["strategy"] == "ddp"


def test_a_killed_run_of_two_processes_with_a_share_of_the_model_each_ends_with_the_same_bits(sharded, tmp_path):
    """It starts its second process itself, and is one run with what torchrun started."""
    killed = tmp_path / "killed"
    kill_when([weights(killed, 8)], [begun(command(*OF_TWO, killed), start_new_session=True)])
    assert (killed / "resume.ckpt").exists() and not (killed / "run.json").exists()
    early = weights(killed, 4).stat().st_mtime_ns
    ended(begun(command(*OF_TWO, killed)))
    assert weights(killed, 4).stat().st_mtime_ns == early and same_weights(sharded, killed, 24)


def blown(q, k, v):
    """NaN from the 9th call on, in the second process alone: 2 in the check before, then 4 a step with two layers."""
    CALLS.append(1)
    second = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
    return kernels.unfused(q, k, v) * (math.nan if second and len(CALLS) > 8 else 1)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_nan_in_the_second_process_is_found(strategy, tmp_path):
    words = (
        "--arm",
        "fp32",
        "--kernel",
        "test_several_processes:blown",
        "--steps",
        4,
        "--save-every",
        1,
        "--devices",
        2,
    )
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent, Path(__file__).parents[1])))
    process = begun([*command(*words), "--strategy", strategy, "--out", str(tmp_path / "run")],
                    env=os.environ | dict(PYTHONPATH=path))  # fmt: skip
    _, error = process.communicate(timeout=240)
    assert process.returncode == 2 and "fa-lib: diverged at step 1: transformer.transformer_blocks.0.attn1 is" in error
    assert read_result(tmp_path / "run/run.json")["divergence"] == dict(
        step=1, weights=None, repeated=True, module="transformer.transformer_blocks.0.attn1",
        attention=dict(layer=0, kind="self", tensor="o"), last_good="weights-000001.safetensors",
    )  # fmt: skip
