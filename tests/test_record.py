"""A session of recording: its plan, its order, steps that fail or take too long, and how it goes on."""

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import torch

from attention_check.judge.findings import Judgement
from attention_gallery import entry
from attention_gallery.catalogue import CATALOGUES, ON_CUDA
from attention_gallery.commands import judging
from fa_lib.commands.record import gallery, session, steps
from fa_lib.commands.record.flash_attn_build import name_package
from fa_lib.commands.record.plan import LIMIT, STEPS, chosen, fits
from fa_lib.execution import results
from fa_lib.execution.paths import RECORDED, ROOT
from fa_lib.experiments.hardware.tensor_cores import EXPECTED

SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
key = sys.argv[1]
print("this is", key)
if key == "hardware":
    raise RuntimeError("no luck")
if key == "validation":
    time.sleep(60)
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """made(**options): a session on a CPU whose steps are SCRIPT."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = []

    def instead(key, *_):
        run.append(key)
        return [sys.executable, str(script), key]

    monkeypatch.setattr(session, "command", instead)
    monkeypatch.setattr(session, "described", lambda: {"gpu": "none"})

    def make(**options):
        run.clear()
        said = []
        state = session.record(on="cpu", out=tmp_path / "out", say=said.append, **options)
        return state, list(run), said

    return make


def test_a_step_that_fails_or_takes_too_long_stops_no_other_and_what_is_done_is_not_made_again(
    made, monkeypatch, tmp_path
):
    monkeypatch.setattr(session, "LIMIT", 3 / 60)
    state, run, said = made()
    assert run == list(STEPS)
    status = {key: step["status"] for key, step in state["steps"].items()}
    assert status.pop("hardware") == "failed" and status.pop("validation") == "out of time"
    assert set(status.values()) == {"done"} and len(status) == len(STEPS) - 2
    assert "no luck" in state["steps"]["hardware"]["words"] and 3 <= state["steps"]["validation"]["seconds"] < 60
    assert json.loads((tmp_path / "out/record.json").read_text()) == state and state["device"] == {"gpu": "none"}
    assert (tmp_path / "out/log/tests.txt").read_text() == "this is tests\n"
    _, run, said = made(names=("speed", "hardware"))
    assert run == ["hardware", "speed"]
    _, run, said = made()
    assert run == ["hardware", "validation"] and any("speed" in line and "done" in line for line in said)


def test_no_step_is_begun_that_does_not_fit(made, monkeypatch):
    monkeypatch.setattr(session, "LIMIT", 3 / 60)
    state, run, said = made(budget=3)
    assert run[:1] == ["hardware"] and any(line.startswith("tests: not begun, 3 minutes") for line in said)
    assert "speed" not in run and "study" in run


def test_a_dry_run_makes_nothing(made, tmp_path):
    state, run, said = made(dry_run=True, budget=30)
    assert run == [] and state == {"steps": {}} and not (tmp_path / "out").exists()
    assert [line.split()[0] for line in said[1:]] == list(STEPS)


def test_a_plan_needs_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = []
    assert session.record(dry_run=True, say=said.append) == {"steps": {}}
    assert said[0] == f"results go to {RECORDED / '<the GPU>'}" and len(said) == 1 + len(STEPS)
    with pytest.raises(ValueError, match="^device: no CUDA device here"):
        session.record(say=said.append)


def test_the_plan(tmp_path):
    assert all(step.minutes <= LIMIT for step in STEPS.values())
    assert [step.key for step in chosen((), ["tests"])] == list(STEPS)[1:]
    assert fits(STEPS["study"], 2.5) and not fits(STEPS["speed"], 3.9) and not fits(STEPS["study"], 1.5)
    assert all(callable(getattr(steps, key)) for key in STEPS)
    (tmp_path / "record.json").write_text('{"steps": ')
    with pytest.raises(ValueError, match=r"^out: .*record\.json is damaged"):
        session.read(tmp_path)


def test_the_gallery_s_table_has_every_kernel_whenever_one_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(entry, "installed", lambda name: None if name == "sageattention" else "1.0")
    monkeypatch.setattr(results, "described", dict)
    monkeypatch.setattr(gallery, "JOBS", {"cuda": 1})
    path, seen = tmp_path / "data/results/14_gallery.csv", []

    def judged(keys, manner, *_):
        for key in keys:
            if path.exists():
                seen.append(pd.read_csv(path).set_index("key").verdict)
            record = Judgement("kernel", key, ()).record() | dict(verdict="passes", problem="")
            record |= dict(key=judging._fingerprint(manner.entry(key), manner), numbers=dict(times_1=1.5))
            judging._write(manner, key, record)
            yield judging.EndedCall(key, 0, "")

    monkeypatch.setattr(judging, "call_each", judged)
    gallery.judged("cuda", tmp_path, keys=["flash_attn", "flash_attn_triton"])
    assert seen[-1].index.tolist() == list(ON_CUDA) and seen[-1]["torch_cudnn"] == "not_judged"
    runs = len(seen)
    table = gallery.judged("cuda", tmp_path).set_index("key")
    assert len(seen) - runs == len(ON_CUDA) - 3, "two were done before, and one cannot run here"
    assert table.verdict.drop("sageattention").eq("passes").all() and table.verdict["sageattention"] == "cannot_run"
    assert pd.read_csv(path).set_index("key").verdict.equals(table.verdict)


def test_the_step_of_the_gallery_finds_the_package_that_was_built(tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    monkeypatch.setattr(steps, "_build", lambda: tmp_path)
    monkeypatch.setattr(gallery, "judged", lambda *given: found.append((*given, entry.installed("flash-attn"))))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "before")
    found = []
    name_package(tmp_path / "flash_attn", "flash_attn-2.8.9")
    steps.gallery("cuda", "gpu", tmp_path / "out")  # a build that was ended is none
    (tmp_path / "flash_attn/flash_attn_2_cuda.so").touch()
    steps.gallery("cuda", "gpu", tmp_path / "out")
    assert found == [("cuda", tmp_path / "out", f"{tmp_path / 'cache'}", version) for version in (None, "2.8.9")]
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "flash_attn"), "before"])


def test_the_gallery_of_each_device_is_in_its_catalogue():
    assert all(device in CATALOGUES and set(keys) <= CATALOGUES[device].keys() for device, keys in gallery.KEYS.items())


def test_a_table_says_which_tests_failed(tmp_path, monkeypatch):
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0, 'not so'\ndef test_c(): pytest.skip('no card')\n"
    )
    monkeypatch.setattr(steps, "CHECKOUT", tmp_path)
    (tmp_path / "log").mkdir()
    steps._tested("tests", ["test_it.py"], tmp_path)
    table = pd.read_csv(tmp_path / "data/results/tests.csv").set_index("test")
    assert table.outcome.to_dict() == {"test_a": "passed", "test_b": "failure", "test_c": "skipped"}
    assert "not so" in table.said.test_b and "no card" in table.said.test_c


SMI = """#!/bin/sh
echo "$1" > "$0.asked"
echo "NVIDIA H200, 575.57.08, 345, 1980, 3201, 700.00, 31"
"""


def test_the_provenance_of_a_table_names_device_driver_and_clocks(tmp_path, monkeypatch):
    def held():
        results.save(tmp_path, "a_table", {}, pd.DataFrame({"x": [1]}))
        return json.loads((tmp_path / "data/results/a_table.provenance.json").read_text())["device"]

    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert not set(results.QUERY) & held().keys()  # no nvidia-smi
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    found = held()
    assert results.device().items() <= found.items()
    assert (found["name"], found["driver_version"]) == ("NVIDIA H200", "575.57.08")
    assert (found["clocks.sm"], found["clocks.max.sm"], found["clocks.mem"]) == ("345", "1980", "3201")
    assert (tmp_path / "nvidia-smi.asked").read_text().strip() == f"--query-gpu={','.join(results.QUERY)}"
    smi.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")  # as where the driver is not loaded
    assert not set(results.QUERY) & held().keys()


@pytest.mark.slow
def test_a_rehearsal_in_short_without_a_network(tmp_path):
    alone = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"]).returncode:
        pytest.skip("a namespace without a network is refused here")
    words = [
        sys.executable,
        "-m",
        "fa_lib",
        "dev",
        "record",
        "--device",
        "cpu",
        "--step",
        "hardware",
        "--out",
        tmp_path,
    ]
    done = subprocess.run([*alone, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "hardware: done" in done.stdout, done.stdout + done.stderr
    results = tmp_path / "data/results"
    table = pd.read_csv(results / "hardware.products.csv").set_index("instruction")
    assert set(table.index) == set(EXPECTED) and (table.expected_model == 1).all() and table.problem.isna().all()
    assert table.loc["wgmma_e4m3", ["block", "fraction_bits"]].tolist() == [32, 13]
    assert json.loads((tmp_path / "record.json").read_text())["device"]["threads"] >= 1
    assert pd.read_csv(results / "hardware.row_sums.csv").groups.notna().all()
