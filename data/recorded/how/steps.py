"""The steps of a recording: `python -m fa_lib.commands.record.steps <key> <device> <scale> <folder>`."""

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as xml
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd

from fa_lib.commands.record.plan import STEPS
from fa_lib.execution.notebooks import run_all
from fa_lib.execution.paths import CHECKOUT, NOTEBOOKS, build
from fa_lib.execution.results import save

EMULATOR = ("02_precision", "03_golden_value", "04_sequence_length", "05_algorithm_changes")
STUDY = (
    "07_weight_divergence", "08_weights_in_context", "08b_training_health", "08c_samples_and_speed",
    "06_inside_a_model",
)  # fmt: skip


def tests(device: str, scale: str, out: Path) -> None:
    """Run every test that is marked `cuda`, and write the table tests: test, outcome, seconds, said. Failed tests are
    in the table, and the step ends well.

    Raises:
        RuntimeError: there is no checkout, or pytest itself failed.
    """
    if CHECKOUT is None:
        raise RuntimeError("tests: there is no checkout here")
    _tested("tests", ["tests/test_cuda.py", "-m", "cuda"], out)


def hardware(device: str, scale: str, out: Path) -> None:
    """Measure how the hardware computes; on a CPU, the same of an H100's model and of torch's functions."""
    from fa_lib.experiments.hardware.gather import gather

    gather(device, out)


def launches(device: str, scale: str, out: Path) -> None:
    """Run the launches of build/launches, and write the table launches: the columns of `launched.results`, outcome.

    Raises:
        RuntimeError: `make launches` has not written them.
    """
    from fa_lib.experiments.hardware.launched import FOLDER, on_gpu

    if device != "cuda":
        print("launches: they need a CUDA device")
        return
    if not FOLDER.exists():
        raise RuntimeError(f"launches: there is no {FOLDER}; `make launches` writes it")
    table = on_gpu(FOLDER)
    print(table.outcome.value_counts().to_string())
    save(out, "launches", {}, table)


def gpu_machine(device: str, scale: str, out: Path) -> None:
    """Compare FlashAttention-2's outputs on the device with the GPU machine's."""
    from fa_lib.commands.record.gpu_machine import compared

    compared(device, out)


def validation(device: str, scale: str, out: Path) -> None:
    """Run notebook 01."""
    _notebooks(("01_kernels",), scale, out)


def backends(device: str, scale: str, out: Path) -> None:
    """Judge torch's other kernels."""
    from fa_lib.commands.record.backends import judged

    judged(device, out, cache=str(_build() / "cache"))


def gallery(device: str, scale: str, out: Path) -> None:
    """Judge the kernels of the gallery's catalogue for this device; flash-attn's too, where its step has built it."""
    from fa_lib.commands.record.flash_attn_build import EXTENSION
    from fa_lib.commands.record.gallery import judged

    if (_flash_attn_target() / f"{EXTENSION}.so").exists():
        _to_path(_flash_attn_target())
    judged(device, out, f"{_build() / 'cache'}")


def speed(device: str, scale: str, out: Path) -> None:
    """Time forward and backward of the model with Flash and with Baseline in turn, where the paper has 14 %, in a few
    processes one after another; the first passes of each do not count."""
    from fa_lib.training.config import Config
    from fa_lib.training.study import faster, timing

    sizes, repeats = (("small", "large"), 50) if device == "cuda" else (("tiny",), 5)
    processes, tables = 3 if device == "cuda" else 1, []
    for process in range(processes):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            for size in sizes:
                table = pool.submit(timing, Config.load(size), repeats=repeats, device=device).result()
                tables.append(table.assign(size=size, process=process))
    table = pd.concat(tables)
    table = table[table.repeat >= repeats // 5]  # a GPU's clocks take some passes to rise
    print("Flash / Baseline:", faster(table).to_string(), sep="\n")
    save(out, "speed", dict(sizes=sizes, repeats=repeats, processes=processes, precision="bf16-mixed"), table)


def flash_attn(device: str, scale: str, out: Path) -> None:
    """Build flash-attn, where it is not installed, from its source package; then run its tests and judge its kernels.

    Raises:
        RuntimeError: there is no source package in build/wheelhouse, or pytest itself failed.
    """
    if device != "cuda":
        print("flash-attn needs a CUDA device: nothing is built in a rehearsal")
        return
    if importlib.util.find_spec("flash_attn") is None:
        from fa_lib.commands.record.flash_attn_build import build as compiled

        sources = sorted((build() / "wheelhouse").glob("flash_attn-*.tar.gz"))
        if not sources:
            raise RuntimeError("flash_attn: no source package in build/wheelhouse; `make wheelhouse` takes it along")
        _to_path(compiled(sources[-1], _flash_attn_target(), max(len(os.sched_getaffinity(0)) // 2, 1)))
    _tested("flash_attn", ["tests/test_cuda.py", "-m", "cuda", "-k", "flash_attn"], out)
    from fa_lib.commands.record import backends, gallery

    backends.judged(device, out, cache=f"{_build() / 'cache'}", names=[backends.FLASH_ATTN])
    gallery.judged(device, out, f"{_build() / 'cache'}", ("flash_attn", "flash_attn_triton"))


def emulator(device: str, scale: str, out: Path) -> None:
    """Time the emulator on the device and on the CPU, and run the notebooks of figures 3 to 6 on the device."""
    from fa_lib.commands.record.backends import emulator_speed

    save(out, "emulator_speed", dict(device=device), emulator_speed(device))
    _notebooks(EMULATOR, scale, out)


def study(device: str, scale: str, out: Path) -> None:
    """Run the notebooks that train; when they were ended, they go on from their checkpoints."""
    _notebooks(STUDY, scale, out)


def _build():
    return build() / "record"


def _flash_attn_target():
    return _build() / "flash_attn"


def _to_path(folder):
    """Let this process, and those that it starts, import the packages of a folder."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def _notebooks(names, scale, out):
    run_all([NOTEBOOKS / f"{name}.ipynb" for name in names], scale, _build(), into=out)


def _tested(name, words, out):
    """Run pytest, and write the table `name`: test, outcome, seconds, said (the end of its message).

    Raises:
        RuntimeError: pytest itself failed.
    """
    report = out / "log" / f"{name}.xml"
    options = ["--override-ini", "addopts=-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-rA"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words, *options], cwd=CHECKOUT)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{name}: pytest ended with {done.returncode}")
    rows = []
    for case in xml.parse(report).iter("testcase"):
        found = {child.tag: child for child in case}
        outcome = next((tag for tag in ("failure", "error", "skipped") if tag in found), "passed")
        message = (found[outcome].get("message") or "")[-500:] if outcome in found else ""
        rows.append(dict(test=case.get("name"), outcome=outcome, seconds=float(case.get("time") or 0), said=message))
    report.unlink()
    save(out, name, {}, pd.DataFrame(rows))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # by which a session ends a step; ignored under `nohup`
    key, device, scale, out = sys.argv[1:]
    {name: globals()[name] for name in STEPS}[key](device, scale, Path(out))
