"""What the tests of training share: small configurations, the command line, processes that end or are killed, the
comparison of two runs' weights."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import torch
from safetensors.torch import load_file

from fa_lib.execution.paths import ROOT
from fa_lib.training.config import Arm, Config, RunSpec
from fa_lib.training.run import train
from fa_lib.training.run_folder import weights

TINY = Config.load("tiny")
QUICK = replace(TINY, images=32, layers=1)


def run(folder, arm=None, seed=0, config=TINY, steps=4, every=2, watch=None, **more):
    """`train`, of Baseline where no arm is given."""
    return train(RunSpec(arm or Arm(), seed, config, steps, every, **more), folder, watch=watch)


def same_weights(a, b, step):
    """True where two runs have the same bits after a step."""
    a, b = (load_file(weights(folder, step)) for folder in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def command(*words):
    """One training run, as a process of its own."""
    return [sys.executable, "-m", "fa_lib", "dev", "train", "--config", "tiny", *map(str, words)]


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
