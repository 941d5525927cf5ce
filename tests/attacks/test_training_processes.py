"""Training in processes of its own, killed and started again."""

import json
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from runs import begun, command, ended, run, same_weights

from fa_lib.execution.paths import ROOT
from fa_lib.training.arm import ARMS
from fa_lib.training.run_folder import weights


def test_killed_runs_end_with_the_same_bits(tmp_path):
    """Of the study's arms: one by default, by the command line; and one with loss scaling, one that carries BF16, one
    nudged, in processes that are forked."""
    names = ("baseline", "fp16_scaled", "flash_small_tiles", "perturb_1e-5")
    killed, size = {name: tmp_path / f"killed {name}" for name in names}, dict(steps=20, every=5)
    words = command("--arm", "baseline", "--steps", 20, "--save-every", 5, "--out", killed["baseline"])
    context = get_context("forkserver")
    context.set_forkserver_preload(["fa_lib.training.run"])
    started = {name: context.Process(target=run, args=(killed[name], ARMS[name]), kwargs=size) for name in names[1:]}
    for process in started.values():
        process.start()
    first, since = begun(words), time.monotonic()
    alive = started | dict(baseline=first)
    try:
        while alive:
            assert time.monotonic() - since < 240, f"no weights of step 10: {[*alive]}"
            for name in list(alive):
                if weights(killed[name], 10).exists():
                    alive.pop(name).kill()
            time.sleep(0.005)
    finally:
        for process in started.values():
            process.kill()
            process.join()
        first.kill()
    assert first.wait() == -signal.SIGKILL and all(p.exitcode == -signal.SIGKILL for p in started.values())
    early = {}
    for name, folder in killed.items():
        assert not (folder / "run.json").exists() and (folder / "resume.ckpt").exists()
        early[name] = weights(folder, 5).stat().st_mtime_ns
    by_command = begun(words)
    for name in names[1:]:
        run(killed[name], ARMS[name], **size)
    assert ended(by_command).startswith("done, loss")
    for name, folder in killed.items():
        assert weights(folder, 5).stat().st_mtime_ns == early[name]  # it went on, and did not begin again
        undisturbed = tmp_path / name
        run(undisturbed, ARMS[name], **size)
        assert all(same_weights(undisturbed, folder, step) for step in (15, 20))
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
