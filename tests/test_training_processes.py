"""Training in processes of its own: killed and started again, several processes on one run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import TINY, command, run, same_weights
from safetensors.torch import load_file

from fa_lib.paths import ROOT
from fa_lib.training.distances import distances
from fa_lib.training.run_folder import weights
from fa_lib.training.spec import Arm

OF_TWO = ("--arm", "fp32", "--steps", 24, "--every", 4, "--devices", 2, "--strategy", "fsdp", "--out")


def begun(words, **options):
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def ended(process):
    """What a process printed; it must end well."""
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    return out


def kill_when(files, processes):
    """Kill the group of each process when its file is there."""
    left = dict(zip(files, processes))
    while left:
        for file, process in list(left.items()):
            assert file.exists() or process.poll() is None, process.communicate()[1]
            if file.exists():
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                assert process.returncode == -signal.SIGKILL
                del left[file]
        time.sleep(0.005)


def test_killed_runs_end_with_the_same_bits(tmp_path):
    precisions = ("bf16-mixed", "16-mixed")
    killed = [tmp_path / f"killed {precision}" for precision in precisions]
    words = [
        command("--precision", precision, "--steps", 60, "--every", 5, "--out", folder)
        for precision, folder in zip(precisions, killed)
    ]
    kill_when([weights(folder, 10) for folder in killed], [begun(each, start_new_session=True) for each in words])
    early = []
    for folder in killed:
        assert not (folder / "run.json").exists() and (folder / "resume.ckpt").exists()
        early.append(weights(folder, 5).stat().st_mtime_ns)
    by_command = begun(words[0])
    run(killed[1], Arm(precision=precisions[1]), steps=60, every=5)
    assert ended(by_command).startswith("done, loss")
    for precision, folder, before in zip(precisions, killed, early):
        assert weights(folder, 5).stat().st_mtime_ns == before  # it went on, and did not begin again
        undisturbed = tmp_path / precision
        run(undisturbed, Arm(precision=precision), steps=60, every=5)
        assert all(same_weights(undisturbed, folder, step) for step in (25, 60))
        a, b = (json.loads((each / "run.json").read_text()) for each in (undisturbed, folder))
        assert a["losses"] == b["losses"] and a["zero_gradients"] == b["zero_gradients"]


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\n"
        "from fa_lib.execution.pools import workers\n"
        "if __name__ == '__main__':\n"
        "    with workers(1) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        pool.submit(time.sleep, 600).result()\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
    options = ("--arm", "fp32", "--steps", 8, "--every", 4, "--out")
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
