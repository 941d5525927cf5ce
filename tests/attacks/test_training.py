"""Training runs whose weights are deleted, or whose loss is no number: never "done", never JSON that is none."""

import json
import math
import os
import subprocess
import sys

import pytest

from fa_lib.execution.paths import ROOT
from fa_lib.training.config import Arm, Config, RunSpec
from fa_lib.training.distances import Job, compare
from fa_lib.training.run import train
from fa_lib.training.run_folder import weights

CONFIG = Config.load("tiny", images=8, layers=1, text_layers=1, image_size=8)
CALLS = []


def blown(q, k, v):
    """A kernel whose output is NaN from its 9th call on: 2 in the check before, 2 a step with one layer."""
    from fa_lib import kernels

    CALLS.append(1)
    return kernels.unfused(q, k, v) * (math.nan if len(CALLS) > 8 else 1)


def run(folder, kernel="unfused", watch=None):
    return train(RunSpec(Arm(kernel), 0, CONFIG, steps=5, every=2), folder, watch=watch)


def strict(text):
    """JSON as everybody else reads it: NaN and Infinity are none."""

    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_weights_deleted_while_a_run_is_interrupted_are_missed(tmp_path):
    def stop(step):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", watch=stop)
    held = weights(tmp_path / "a", 2).read_bytes()
    weights(tmp_path / "a", 2).unlink()
    with pytest.raises(ValueError, match=f"folder: {weights(tmp_path / 'a', 2)} is gone;"):
        run(tmp_path / "a")
    assert not (tmp_path / "a/run.json").exists()
    weights(tmp_path / "a", 2).write_bytes(held)
    assert run(tmp_path / "a")["status"] == "done"


def test_weights_deleted_while_a_run_goes_on_are_missed(tmp_path):
    def delete(step):
        if step == 3:
            weights(tmp_path / "a", 2).unlink()

    with pytest.raises(ValueError, match="weights-000002.safetensors is gone"):
        run(tmp_path / "a", watch=delete)
    assert not (tmp_path / "a/run.json").exists()


@pytest.mark.parametrize("step", [0, 1, 2, 4, 5])
def test_a_comparison_leaves_no_step_out(step, tmp_path):
    for name in ("a", "b"):
        run(tmp_path / name)
    job = Job("rerun", 0, str(tmp_path / "a"), str(tmp_path / "b"))
    assert [row["step"] for row in compare(job)] == [0, 1, 2, 4, 5]
    weights(tmp_path / "b", step).unlink()
    with pytest.raises(ValueError, match=f"b/weights-{step:06d}.safetensors is gone"):
        compare(job)


def test_a_loss_that_is_no_number_is_null(tmp_path):
    CALLS.clear()
    result = run(tmp_path, "test_training:blown")
    assert result["status"] == "diverged at step 3" and math.isnan(result["losses"][3])
    held = strict((tmp_path / "run.json").read_text())
    assert held["losses"][3] is None and held["status"] == "diverged at step 3"
    again = run(tmp_path, "test_training:blown")  # read back, not trained again
    assert math.isnan(again["losses"][3]) and again["losses"][:3] == result["losses"][:3]


def test_a_run_that_diverges_does_not_end_well(tmp_path):
    config = tmp_path / "x.yaml"
    config.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in vars(CONFIG).items()))
    words = ["--kernel", "test_training:blown", "--config", config, "--steps", "5", "--out", tmp_path / "out"]
    path = os.pathsep.join([str(ROOT), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "fa_lib", "dev", "train", *words], cwd=ROOT, capture_output=True,
                          text=True, env=os.environ | dict(PYTHONPATH=path))  # fmt: skip
    assert done.returncode == 2 and "fa-lib: diverged at step 3" in done.stderr, done.stderr
    assert "layer 0, self, o " in done.stderr
    assert f"last good weights are {tmp_path}/out/weights-000002.safetensors" in done.stderr
    assert strict((tmp_path / "out/run.json").read_text())["losses"][3] is None
