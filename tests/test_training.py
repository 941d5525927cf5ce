"""The training study: the model's attention, arms that differ in one thing, interrupted runs, comparisons."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fa_lib import kernels
from fa_lib.execution.files import held as alone
from fa_lib.execution.pools import workers
from fa_lib.paths import ROOT
from fa_lib.plots import training as of_plots
from fa_lib.training import study as of_study
from fa_lib.training.arm import Arm
from fa_lib.training.distances import at_end, compare, direction, distances, slopes, times_less
from fa_lib.training.fp16_cpu import HalfProducts
from fa_lib.training.model import Config, TextToImage, noised
from fa_lib.training.run import train
from fa_lib.training.run_folder import load_weights, weights
from fa_lib.training.study import ARMS, PAIRS, arm_named, samples, study, timing, watch

TINY = Config.load("tiny")
QUICK = replace(TINY, images=32, layers=1)
CALLS = []


def counted(q, k, v):
    CALLS.append((tuple(q.shape), tuple(k.shape), q.dtype))
    return kernels.unfused(q, k, v)


def blown(q, k, v):
    """A kernel whose output overflows from its 9th call on: 2 in the check before, 2 a step with one layer."""
    CALLS.append(1)
    return kernels.unfused(q, k, v) * (float("inf") if len(CALLS) > 8 else 1)


def same_weights(a, b, step):
    a, b = (load_file(weights(folder, step)) for folder in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def command(*words):
    return [sys.executable, "-m", "fa_lib.training.run", "--config", "tiny", *map(str, words)]


def test_every_attention_call_of_the_transformer_goes_through_the_kernel(tmp_path):
    CALLS.clear()
    train(Arm(kernel="test_training:counted"), 0, TINY, 3, tmp_path, every=3)
    calls = CALLS[4 // 2 :]  # the check before makes one of each kind
    assert len(calls) == 3 * 2 * TINY.layers
    queries = (TINY.batch, TINY.heads, TINY.tokens, TINY.head_dim)
    keys = (TINY.batch, TINY.heads, TINY.text_bytes, TINY.head_dim)
    assert set(calls) == {(queries, queries, torch.bfloat16), (queries, keys, torch.bfloat16)}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_differs_in_one_thing(name):
    a, b = (asdict(ARMS[arm]) for arm in (PAIRS[name].arm, PAIRS[name].twin))
    assert sum(a[field] != b[field] for field in a) == (0 if name == "rerun" else 1)


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    options = dict(seeds=1, steps=12, every=4, config="tiny", folder=folder)
    with workers(2) as pool:
        table, runs = study(list(PAIRS), executor=pool, **options)
    return table, runs, folder, options


def test_the_study_compares_every_pair(small_study):
    table, runs, _, _ = small_study
    assert set(runs.arm) == set(ARMS) and (runs.status == "done").all()
    assert (
        set(table.pair) == set(PAIRS)
        and (table.groupby("pair").step.unique().map(list).map(tuple) == (0, 4, 8, 12)).all()
    )
    end = at_end(table, "wasserstein")[:, 0]
    assert end["rerun"] == 0 and (table[table.pair == "rerun"].drop(columns=["pair", "seed", "step"]) == 0).all(
        axis=None
    )
    others = end.drop("rerun")
    assert (others > 0).all() and end["flash_fp32"] == others.min() and end["init"] == others.max()
    assert end["flash_fp32"] < end["flash"] / 100
    dtypes = runs.set_index("arm").dtype
    assert dtypes.fp32 == dtypes.flash_fp32 == "float32" and dtypes.fp16 == dtypes.fp16_scaled == "float16"
    start = table[table.step == 0].set_index("pair").wasserstein
    assert start.perturb > 0 and start.init > 0 and (start.drop(["perturb", "init"]) == 0).all()


def test_what_is_finished_is_not_trained_again_and_processes_change_nothing(small_study, monkeypatch):
    table, runs, folder, options = small_study
    written = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    again, _ = study(["flash", "bf16"], **options)
    pd.testing.assert_frame_equal(again, table[table.pair.isin(["flash", "bf16"])].reset_index(drop=True))
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == written
    alone = folder / "alone"
    train(ARMS["flash"], 0, TINY, 12, alone, every=4)
    assert same_weights(alone, runs.set_index("arm").loc["flash", "at"], 12)


def test_a_watched_run_is_the_same_run(small_study, monkeypatch, tmp_path):
    _, runs, _, _ = small_study
    monkeypatch.setattr(of_study.tempfile, "TemporaryDirectory", lambda: nullcontext(tmp_path))
    rows = pd.DataFrame(watch(0, "tiny", 12, "0 5 11", "flash stepwise"))
    assert same_weights(tmp_path, runs.set_index("arm").loc["baseline", "at"], 12)
    assert len(rows) == 3 * 2 * TINY.layers * TINY.heads * 5 and set(rows.kind) == {"self", "cross"}
    assert set(zip(rows.kernel, rows.against)) == {
        ("ran", "golden"), ("flash", "golden"), ("stepwise", "golden"), ("flash", "ran"), ("stepwise", "ran"),
    }  # fmt: skip
    error = rows[rows.against == "golden"].groupby("kernel").rmse.mean()
    assert 0.5 < error.flash / error.ran < 1.1 < error.stepwise / error.ran
    assert (rows["max"] > 0).all() and (rows.rmse < rows.scale / 100).all()


def test_trained_models_draw_and_the_same_weights_draw_the_same(small_study):
    _, runs, _, _ = small_study
    drawn = samples(runs[runs.arm.isin(["baseline", "rerun", "init"])], ["large red circle top left"] * 2, TINY)
    assert drawn["baseline"].shape == (2, 3, 16, 16) and drawn["baseline"].dtype == torch.uint8
    assert torch.equal(drawn["baseline"], drawn["rerun"]) and not torch.equal(drawn["baseline"], drawn["init"])
    assert drawn["baseline"].float().std() > 1


def test_kernels_are_timed_in_turn():
    table = timing(TINY, repeats=2)
    assert table.groupby("kernel").size().to_dict() == {"flash": 2, "unfused": 2} and (table.seconds > 0).all()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_killed_run_ends_with_the_same_bits(precision, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ("--precision", precision, "--steps", 120, "--every", 5)
    with subprocess.Popen(command(*options, "--out", killed), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not weights(killed, 20).exists():
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "run.json").exists() and (killed / "resume.ckpt").exists()
    train(Arm(precision=precision), 0, TINY, 120, whole, every=5)
    early = weights(killed, 5).stat().st_mtime_ns
    resumed = subprocess.run(command(*options, "--out", killed), cwd=ROOT, capture_output=True, text=True)
    assert resumed.returncode == 0 and resumed.stdout.startswith("done, loss"), resumed.stderr
    assert weights(killed, 5).stat().st_mtime_ns == early  # it went on, and did not begin again
    for step in (25, 120):
        assert same_weights(whole, killed, step)
    a, b = (json.loads((folder / "run.json").read_text()) for folder in (whole, killed))
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


def test_damaged_and_foreign_checkpoints_are_refused_with_their_path(tmp_path):
    def interrupted(folder):
        with pytest.raises(KeyboardInterrupt):
            train(Arm(), 0, QUICK, 4, folder, every=1, watch=lambda step: None if step < 2 else raise_())

    def raise_():
        raise KeyboardInterrupt

    interrupted(tmp_path / "a")
    held = tmp_path / "a" / "resume.ckpt"
    before = held.read_bytes()
    with pytest.raises(ValueError, match="resume.ckpt is of another run, kernel = 'unfused' and not 'flash'"):
        train(Arm(kernel="flash"), 0, QUICK, 4, tmp_path / "a", every=1)
    held.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match=f"{held} is damaged"):
        train(Arm(), 0, QUICK, 4, tmp_path / "a", every=1)
    assert held.read_bytes() == before[: len(before) // 2]  # nothing is lost by refusing
    for at in range(100, len(before), len(before) // 20):  # one bit: torch.load itself takes most of them
        held.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        with pytest.raises(ValueError, match=f"{held} is damaged .*checksum does not fit"):
            train(Arm(), 0, QUICK, 4, tmp_path / "a", every=1)
    held.write_bytes(before)
    assert train(Arm(), 0, QUICK, 4, tmp_path / "a", every=1)["status"] == "done"
    with pytest.raises(ValueError, match="run.json is of another run, seed = 0 and not 1"):
        train(Arm(), 1, QUICK, 4, tmp_path / "a", every=1)
    ended = tmp_path / "a" / "run.json"
    right = ended.read_text()
    ended.write_text(right.replace('"skipped": 0', '"skipped": 1'))
    with pytest.raises(ValueError, match=f"{ended} is damaged"):
        train(Arm(), 0, QUICK, 4, tmp_path / "a", every=1)
    ended.write_text(right)
    flipped = weights(tmp_path / "a", 3)
    whole = flipped.read_bytes()
    flipped.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{flipped} is damaged"):
        load_weights(flipped)
    flipped.write_bytes(whole)
    cut = weights(tmp_path / "a", 4)
    cut.write_bytes(cut.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{cut} is damaged"):
        compare(("rerun", 0, tmp_path / "a", tmp_path / "a"))


def test_a_folder_in_use_is_refused_and_one_that_lacks_weights_is_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fa_lib.training.run.alone", partial(alone, seconds=1))
    with alone(tmp_path), pytest.raises(ValueError, match=f"folder: {tmp_path} is in use by another process"):
        train(Arm(), 0, TINY, 4, tmp_path, every=2)
    train(Arm(), 0, TINY, 4, tmp_path, every=2)
    held = weights(tmp_path, 2).read_bytes()
    weights(tmp_path, 2).unlink()
    train(Arm(), 0, TINY, 4, tmp_path, every=2)
    assert weights(tmp_path, 2).read_bytes() == held and not (tmp_path / "lock").exists()


def test_a_run_that_another_process_ends_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    @contextmanager
    def waited(folder):
        monkeypatch.setattr("fa_lib.training.run.alone", alone)
        train(Arm(), 0, TINY, 4, tmp_path, every=2)  # what holds the folder ends while this one waits
        with alone(folder):
            yield

    monkeypatch.setattr("fa_lib.training.run.alone", waited)
    train(Arm(), 0, TINY, 4, tmp_path, every=2, watch=(steps := []).append)
    assert steps == []


def test_a_lock_that_its_holder_removes_while_one_waits_is_not_taken(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def late(*words):
        if not calls:
            (tmp_path / "lock").unlink()  # opened, and not yet held
        calls.append(words)
        flock(*words)

    monkeypatch.setattr(fcntl, "flock", late)
    with alone(tmp_path), pytest.raises(ValueError, match="in use by another process"), alone(tmp_path, seconds=0.3):
        pass
    assert not (tmp_path / "lock").exists()


def test_a_run_with_one_checkpoint_has_no_direction(tmp_path):
    train(Arm(), 0, TINY, 2, tmp_path, every=2)
    assert direction(("rerun", 0, tmp_path, tmp_path)) != []
    weights(tmp_path, 2).unlink()
    assert direction(("rerun", 0, tmp_path, tmp_path)) == []


def test_a_loss_that_is_not_finite_ends_the_arm_and_is_recorded(tmp_path, monkeypatch):
    CALLS.clear()
    result = train(Arm(kernel="test_training:blown"), 0, QUICK, 20, tmp_path, every=2)
    assert result["status"] == "diverged at step 3" and len(result["losses"]) == 4
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "diverged at step 3"
    assert [int(p.stem[-6:]) for p in sorted(tmp_path.glob("weights-*"))] == [0, 2]
    monkeypatch.setitem(ARMS, "rerun", Arm(kernel="test_training:blown"))
    CALLS.clear()
    table, runs = study(["rerun"], 1, 6, 2, config="tiny", changes=dict(layers=1), folder=tmp_path / "study")
    assert runs.set_index("arm").status.to_dict() == {"baseline": "done", "rerun": "diverged at step 2"}
    assert table.step.tolist() == [0, 2]


def test_arms_that_diverged_are_left_out_of_what_is_compared():
    rows = [
        dict(pair=pair, seed=seed, step=step, relative_wasserstein=x * (step + 1), relative_l2=x)
        for pair, x in (("flash", 1.0), ("fp16", 3.0), ("bf16", 2.0))
        for seed in (0, 1)
        for step in (0, 10, 20)
        if not (pair == "fp16" or (pair == "bf16" and seed == 1)) or step < 20
    ]
    less = times_less(pd.DataFrame(rows), 0)
    assert less.index.tolist() == [("bf16", 0)] and less.ratio.tolist() == [2.0]
    figure = of_plots.in_context({"here": pd.DataFrame(rows)}, "", 0)
    assert len(figure.axes) == 3


def test_what_cannot_be_watched_is_refused_before_training():
    with pytest.raises(ValueError, match="at: got '0 3'; accepted are steps from 0 to 2"):
        watch(0, "tiny", 3, "0 3", "flash")
    with pytest.raises(ValueError, match="kernel: 'fa_lib.kernels.flash:_flash_attn' cannot do what the model asks"):
        watch(0, "tiny", 3, "0 2", "fa_lib.kernels.flash:_flash_attn")


def test_two_processes_match_one_by_ddp_torchrun_and_fsdp(tmp_path):
    """Gradients are added up in another order, which is no more than the smallest change of the initial weights: one
    process moved by 1e-7 drifts as far, and ten times that is the bound."""
    options = ("--arm", "fp32", "--steps", 8, "--every", 4)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    for name, start, how in (
        ("one", command(), ("--devices", 1)),
        ("ddp", command(), ("--devices", 2)),
        ("torchrun", [*torchrun, *command()[1:]], ()),
        ("fsdp", command(), ("--devices", 2, "--strategy", "fsdp")),
    ):
        words = [*start, *map(str, (*options, *how)), "--out", tmp_path / name]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    train(Arm(precision="32-true", perturb=1e-7), 0, TINY, 8, tmp_path / "moved", every=8)
    one, ddp, fsdp, moved = (load_file(weights(tmp_path / name, 8)) for name in ("one", "ddp", "fsdp", "moved"))
    bound = distances(moved, one)
    for apart in (distances(ddp, one), distances(fsdp, one)):
        assert 0 < apart["relative_l2"] < 10 * bound["relative_l2"]
        assert 0 < apart["wasserstein"] < 10 * bound["wasserstein"]
    assert same_weights(tmp_path / "ddp", tmp_path / "torchrun", 8)
    settings = json.loads((tmp_path / "torchrun" / "run.json").read_text())["settings"]
    assert settings["devices"] == 2 and settings["batch"] == TINY.batch and settings["strategy"] == "ddp"


def test_a_killed_run_of_two_processes_with_a_part_of_the_model_each_ends_with_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = command("--steps", 40, "--every", 5, "--devices", 2, "--strategy", "fsdp", "--out")
    with subprocess.Popen([*words, killed], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        while not weights(killed, 10).exists():
            assert process.poll() is None
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    assert (killed / "resume.ckpt").exists() and not (killed / "run.json").exists()
    early = weights(killed, 5).stat().st_mtime_ns
    for folder in (whole, killed):
        done = subprocess.run([*words, folder], cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    assert weights(killed, 5).stat().st_mtime_ns == early and same_weights(whole, killed, 40)


def test_half_products_are_rounded_once():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator).half().requires_grad_() for _ in range(2))
    with HalfProducts():
        out = a @ b
        out.sum().backward()
    for got, exact in ((out, a.double() @ b.double()), (a.grad, b.double().sum(1).expand(64, 64))):
        assert got.dtype == torch.float16
        assert (got == exact.detach().half()).double().mean() > 0.999


def test_the_check_of_bad_arguments_comes_first(tmp_path):
    arm = Arm()
    for wrong, message in {
        "precision": (replace(arm, precision="fp4"), "precision: got 'fp4'; accepted are 64-true, 32-true"),
        "kernel": (replace(arm, kernel="warp"), "kernel: got 'warp'; accepted are reference"),
        "device": (
            replace(arm, kernel="fa_lib.kernels.flash:_flash_attn"),
            "cannot do what the model asks, self-attention of 64 queries",
        ),
    }.values():
        with pytest.raises(ValueError, match=message):
            train(wrong, 0, TINY, 3, tmp_path / "no", every=1)
    with pytest.raises(ValueError, match="'stepwise' cannot do .* cross-attention .* a mask: mask: got"):
        train(replace(arm, kernel="stepwise"), 0, replace(TINY, text_mask=True), 3, tmp_path / "no", every=1)
    with pytest.raises(ValueError, match="devices: got 3; accepted are divisors of the batch, 4"):
        train(arm, 0, TINY, 3, tmp_path / "no", every=1, devices=3)
    with pytest.raises(ValueError, match="strategy: got 'fsdp' with devices = 1, bf16-mixed; accepted: ddp, and fsdp"):
        train(arm, 0, TINY, 3, tmp_path / "no", every=1, strategy="fsdp")
    with pytest.raises(ValueError, match="steps: got 0; accepted"):
        train(arm, 0, TINY, 0, tmp_path / "no", every=1)
    with pytest.raises(ValueError, match="device: got 1 of 'tpu'"):
        train(arm, 0, TINY, 1, tmp_path / "no", every=1, device="tpu")
    with pytest.raises(ValueError, match="pair: got 'flesh'; accepted are rerun, flash"):
        study(["flesh"], 1, 3, 1, config="tiny", folder=tmp_path / "no")
    with pytest.raises(ValueError, match="kernel: got 'warp'"):
        study(["flash"], 1, 3, 1, config="tiny", kernel_of={"flash": "warp"}, folder=tmp_path / "no")
    with pytest.raises(ValueError, match="arm: got 'flesh'; accepted are baseline"):
        arm_named("baseline", {"flesh": "flash"})
    assert not (tmp_path / "no").exists()
    done = subprocess.run(command("--arm", "flesh", "--out", tmp_path / "no"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip().startswith("arm: got 'flesh'; accepted are baseline, rerun")
    words, two = command("--devices", 1, "--out", tmp_path / "no"), os.environ | dict(WORLD_SIZE="2")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=two)
    assert done.returncode and "devices: got 1; accepted is 2, the processes that torchrun or srun" in done.stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(layrs=2), "config: layrs: missing or too many; accepted are attention_bias, batch"),
        (dict(layers=0), "config: layers: got 0; accepted is at least 1"),
        (dict(heads=2.5), "config: heads: got 2.5; accepted is int"),
        (dict(image_size=15), "config: image_size: got 15; accepted are multiples of patch_size"),
    ],
)
def test_bad_configurations_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Config.load("tiny", **changes)
    with pytest.raises(ValueError, match="config: got 'huge'; accepted are large, small, tiny, xlarge, or a path"):
        Config.load("huge")
    (tmp_path / "own.yaml").write_text((ROOT / "fa_lib/training/tiny.yaml").read_text())
    assert Config.load(tmp_path / "own.yaml") == TINY


def test_masked_padding_reaches_no_image_and_noise_is_that_of_seed_and_step():
    model = TextToImage(replace(TINY, text_mask=True), "unfused", 0)
    images = torch.randint(256, (2, 3, 16, 16), dtype=torch.uint8)
    noisy, timesteps, velocity = noised(images, 0, 5)
    assert timesteps.dtype == torch.int64 and all(
        torch.equal(a, b) for a, b in zip(noised(images, 0, 5), (noisy, timesteps, velocity))
    )
    assert not torch.equal(noised(images, 0, 6)[0], noisy)
    sigma = (timesteps.double() / 1000)[:, None, None, None]
    x = images.double() / 127.5 - 1
    # the timestep is handed on as a whole number
    assert ((noisy.double() - x - sigma * velocity.double()).abs() <= velocity.double().abs() * 1e-3 + 1e-5).all()
    tokens, mask = model.tokens(["red", "a large blue square"])
    other = tokens.masked_fill(mask == 0, 77)
    assert torch.equal(model(noisy, timesteps, tokens, mask), model(noisy, timesteps, other, mask))
    assert not torch.equal(model(noisy, timesteps, tokens, mask), model(noisy, timesteps, tokens.flip(0), mask.flip(0)))


def test_distances_and_slopes():
    b = {"one": torch.tensor([1.0, -1.0]), "two.to_k.bias": torch.tensor([[0.0, 2.0], [4.0, 6.0]])}
    a = {"one": torch.tensor([-1.0, 1.0]), "two.to_k.bias": torch.tensor([[1.0, 3.0], [5.0, 7.0]])}
    d = distances(a, b)
    assert d["wasserstein"] == 0.5  # 0 where two weights change places, 1
    assert d["wasserstein_by_size"] == pytest.approx(4 / 6) and d["key_bias"] == 1
    assert d["relative_wasserstein"] == 0.5 / np.mean([1, 3])
    assert d["max"] == 2 and d["mean"] == pytest.approx(8 / 6)
    assert d["relative_l2"] == pytest.approx((12 / 58) ** 0.5)
    assert d["wasserstein_all"] == pytest.approx(
        np.mean(np.abs(np.sort([-1, 1, 1, 3, 5, 7]) - np.sort([1, -1, 0, 2, 4, 6])))
    )
    with pytest.raises(ValueError, match="other names or shapes"):
        distances(a, {"one": a["one"]})
    rows = [dict(pair="p", seed=s, step=t, x=(s + 1) * max(t, 10)) for s in (0, 1) for t in (0, 10, 20, 30)]
    assert slopes(pd.DataFrame(rows), "x", 10)["p"].tolist() == pytest.approx([1, 2])


def test_the_model_has_no_key_bias_and_the_warning_one_has():
    names = [n for n, _ in TextToImage(TINY, "unfused", 0).named_parameters()]
    biased = [n for n, _ in TextToImage(replace(TINY, attention_bias=True), "unfused", 0).named_parameters()]
    assert not any(n.endswith("to_k.bias") for n in names)
    assert sum(n.endswith("to_k.bias") for n in biased) == 2 * TINY.layers
    assert Path(ROOT / "fa_lib/training/small.yaml").read_text().count("attention_bias: false") == 1
