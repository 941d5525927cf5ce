"""One training run: its kernel, its folder, what is refused, and when a run of changed code goes on."""

import importlib
import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from in_a_folder import command
from runs import QUICK, TINY, run

from benchmarks.mutants.gradients import Altered
from fa_lib import kernels
from fa_lib.execution.folder_lock import locked_folder
from fa_lib.training import run as of_run
from fa_lib.training.arm import ARMS, arm_named
from fa_lib.training.config import Arm, RunSpec
from fa_lib.training.distances import Job, compare
from fa_lib.training.run import train
from fa_lib.training.run_folder import load_weights, weights
from fa_lib.training.study import StudySpec, study

CALLS = []


def counted(q, k, v):
    CALLS.append((tuple(q.shape), tuple(k.shape), q.dtype))
    return kernels.unfused(q, k, v)


def blown(q, k, v):
    """A kernel whose output overflows from its 9th call on: 2 in the check before, 2 a step with one layer."""
    CALLS.append(1)
    return kernels.unfused(q, k, v) * (float("inf") if len(CALLS) > 8 else 1)


def stopped(folder, at=2, **options):
    """A run that ends before step `at` as by Ctrl-C, and leaves its checkpoint."""

    def stop(step):
        if step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, watch=stop, **options)


def test_every_attention_call_of_the_transformer_goes_through_the_kernel(tmp_path):
    CALLS.clear()
    run(tmp_path, Arm(kernel="test_training_run:counted"), steps=3, every=3)
    calls = CALLS[4 // 2 :]  # the check before makes one of each kind
    assert len(calls) == 3 * 2 * TINY.layers
    queries = (TINY.batch, TINY.heads, TINY.tokens, TINY.head_dim)
    keys = (TINY.batch, TINY.heads, TINY.text_bytes, TINY.head_dim)
    assert set(calls) == {(queries, queries, torch.bfloat16), (queries, keys, torch.bfloat16)}


def test_damaged_and_foreign_checkpoints_are_refused_with_their_path(tmp_path):
    spec = RunSpec(Arm(), 0, QUICK, steps=4, every=1)
    again = partial(train, spec, tmp_path)
    stopped(tmp_path, config=QUICK, every=1)
    path = tmp_path / "resume.ckpt"
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"resume\.ckpt is .*kernel = 'unfused' and not 'flash'"):
        train(replace(spec, arm=Arm(kernel="flash")), tmp_path)
    path.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        again()
    assert path.read_bytes() == before[: len(before) // 2]  # nothing is lost by refusing
    for at in range(100, len(before), len(before) // 20):  # one bit: torch.load itself takes most of them
        path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        with pytest.raises(ValueError, match=f"{path} is damaged .*checksum does not fit"):
            again()
    path.write_bytes(before)
    assert again()["status"] == "done"
    with pytest.raises(ValueError, match=r"run\.json is .*seed = 0 and not 1"):
        train(replace(spec, seed=1), tmp_path)
    ended = tmp_path / "run.json"
    right = ended.read_text()
    ended.write_text(right.replace('"skipped": 0', '"skipped": 1'))
    with pytest.raises(ValueError, match=f"{ended} is damaged"):
        again()
    ended.write_text(right)
    flipped = weights(tmp_path, 3)
    undamaged = flipped.read_bytes()
    flipped.write_bytes(undamaged[:-1] + bytes([undamaged[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{flipped} is damaged"):
        load_weights(flipped)
    flipped.write_bytes(undamaged)
    cut = weights(tmp_path, 4)
    cut.write_bytes(cut.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{cut} is damaged"):
        compare(Job("rerun", 0, tmp_path, tmp_path))


def test_weights_that_are_deleted_meanwhile_are_missed(tmp_path):
    folder, other = tmp_path / "run", tmp_path / "other"
    stopped(folder, at=4, config=QUICK, steps=5)
    missed = weights(folder, 2)
    held = missed.read_bytes()
    missed.unlink()
    with pytest.raises(ValueError, match=f"folder: {missed} is gone;"):
        run(folder, config=QUICK, steps=5)
    missed.write_bytes(held)
    with pytest.raises(ValueError, match="weights-000002.safetensors is gone"):
        run(other, config=QUICK, steps=5, watch=lambda step: weights(other, 2).unlink() if step == 3 else None)
    assert not (folder / "run.json").exists() and not (other / "run.json").exists()
    assert run(folder, config=QUICK, steps=5)["status"] == "done"


def test_a_comparison_leaves_no_step_out(tmp_path):
    for name in "ab":
        run(tmp_path / name, config=QUICK, steps=5)
    job = Job("rerun", 0, tmp_path / "a", tmp_path / "b")
    assert [row["step"] for row in compare(job)] == [0, 1, 2, 4, 5]
    for step in (0, 4, 5):
        missed = weights(tmp_path / "b", step)
        missed.rename(tmp_path / "elsewhere")
        with pytest.raises(ValueError, match=f"b/{missed.name} is gone"):
            compare(job)
        (tmp_path / "elsewhere").rename(missed)


def test_a_folder_in_use_is_refused_and_one_that_lacks_weights_is_trained_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr("fa_lib.execution.folder_lock.locked_folder", partial(locked_folder, seconds=1))
    with locked_folder(folder), pytest.raises(ValueError, match=f"^folder: {folder} is in use"):
        run(folder, config=QUICK)
    run(folder, config=QUICK)
    before = weights(folder, 2).read_bytes()
    weights(folder, 2).unlink()
    run(folder, config=QUICK)
    assert weights(folder, 2).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {"run", ".run.lock"}


def test_a_run_that_another_process_ends_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    @contextmanager
    def waited(folder):
        monkeypatch.setattr("fa_lib.execution.folder_lock.locked_folder", locked_folder)
        run(tmp_path, config=QUICK)  # the process that holds the folder ends while this one waits
        with locked_folder(folder):
            yield

    monkeypatch.setattr("fa_lib.execution.folder_lock.locked_folder", waited)
    run(tmp_path, config=QUICK, watch=(steps := []).append)
    assert steps == []


def test_an_edit_of_what_a_run_depends_on_stops_it_and_no_other_edit_does(edited, tmp_path):
    edited(of_run, {})
    stopped(tmp_path / "run", config=QUICK, every=1)
    for name in ("training/model", "training/run", "kernels/eager", "kernels/rows", "numerics/formats"):
        edited(of_run, {f"{name}.py": "\n# edited\n"})
        with pytest.raises(ValueError, match=r"resume\.ckpt is .*version = .* and not "):
            run(tmp_path / "run", config=QUICK, every=1)
    others = ("plots/training", "training/study", "training/arm", "execution/sweep", "numerics/metrics")
    edited(of_run, {f"{name}.py": '\n"""Edited."""\n' for name in others})
    went_on = []
    assert run(tmp_path / "run", config=QUICK, every=1, watch=went_on.append)["status"] == "done"
    assert went_on == [2, 3]


def test_an_edit_of_a_readers_own_kernel_stops_a_run(tmp_path, monkeypatch):
    source = tmp_path / "kernel_of_a_reader.py"
    source.write_text("from fa_lib import kernels\n\n\ndef mine(q, k, v):\n    return kernels.unfused(q, k, v)\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = dict(arm=Arm(kernel="kernel_of_a_reader:mine"), config=QUICK, every=1)
    stopped(tmp_path / "run", **options)
    source.write_text(source.read_text().replace("(q, k, v)\n", "(q, k, v) * 1\n"))
    importlib.reload(sys.modules["kernel_of_a_reader"])
    with pytest.raises(ValueError, match="resume.ckpt is of another run, version = "):
        run(tmp_path / "run", **options)


def test_a_loss_that_is_not_finite_ends_the_arm_and_is_recorded(tmp_path, monkeypatch):
    CALLS.clear()
    result = run(tmp_path, Arm(kernel="test_training_run:blown"), config=QUICK, steps=20)
    assert result["status"] == "diverged at step 3" and len(result["losses"]) == 4
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "diverged at step 3"
    assert [int(p.stem[-6:]) for p in sorted(tmp_path.glob("weights-*"))] == [0, 1, 2]
    monkeypatch.setitem(ARMS, "rerun", Arm(kernel="test_training_run:blown"))
    CALLS.clear()
    table, runs = study(["rerun"], StudySpec(1, 6, 2, replace(TINY, layers=1)), tmp_path / "study")
    assert runs.set_index("arm").status.to_dict() == {"baseline": "done", "rerun": "diverged at step 2"}
    assert table.step.tolist() == [0, 1, 2]


def blown_backward(q, k, v):
    """A kernel whose gradients are NaN from the 7th call on, those of the third step."""
    CALLS.append(1)
    o = kernels.unfused(q, k, v)
    return Altered.apply(o, lambda dO: dO * float("nan")) if len(CALLS) > 6 else o


@pytest.mark.parametrize("every", [1, 4])
def test_weights_that_are_not_finite_are_not_kept_and_the_command_says_so(every, tmp_path):
    """They are seen when they are to be saved, after the third step, or else by the next loss."""
    CALLS.clear()
    (tmp_path / "x.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in vars(QUICK).items()))
    words = ["--kernel", "test_training_run:blown_backward", "--config", f"{tmp_path}/x.yaml", "--steps", "20"]
    words += ["--save-every", f"{every}", "--out", f"{tmp_path}/out"]
    done = command("dev", "train", *words)
    assert done.exit_code == 2, done.output
    assert "fa-lib: diverged at step 3; its last weights are those of step 2" in done.stderr
    assert [int(p.stem[-6:]) for p in sorted((tmp_path / "out").glob("weights-*"))] == [0, 1, 2]


NO_BACKWARD = "fa_lib.kernels.compiled:_flash_attn"
REFUSED = {
    "precision: got 'fp4'; accepted are 64-true, 32-true": dict(arm=Arm(precision="fp4")),
    "kernel: got 'warp'; accepted are reference": dict(arm=Arm(kernel="warp")),
    rf"^kernel: '{NO_BACKWARD}' cannot do .*self-attention of 64 queries": dict(arm=Arm(kernel=NO_BACKWARD)),
    "steps: got 0; accepted": dict(steps=0),
    "device: got 'tpu'; accepted here is cpu": dict(device="tpu"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_arguments_are_refused_before_the_first_step(message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "no", **REFUSED[message])
    assert not (tmp_path / "no").exists()


def test_bad_arguments_of_a_study_are_refused_before_the_first_run(tmp_path):
    spec = StudySpec(1, 3, 1, TINY)
    with pytest.raises(ValueError, match="pair: got 'flesh'; accepted are rerun, flash"):
        study(["flesh"], spec, tmp_path / "no")
    with pytest.raises(ValueError, match="kernel: got 'warp'"):
        study(["flash"], replace(spec, kernel_of={"flash": "warp"}), tmp_path / "no")
    with pytest.raises(ValueError, match="arm: got 'flesh'; accepted are baseline"):
        arm_named("baseline", {"flesh": "flash"})
    assert not (tmp_path / "no").exists()
