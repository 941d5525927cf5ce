"""What the cluster's tests run in jobs."""

import os
import signal
import time
from pathlib import Path

import submitit

from fa_lib.experiments.microbenchmark import BenchmarkSettings, compare


def on_a_node(folder, **cell):
    """`compare`, and a file that says on which node."""
    with open(Path(folder) / os.environ.get("SLURMD_NODENAME", "here"), "a") as file:
        file.write(f"{cell}\n")
    return compare(n=64, block_kv=[32], distribution="normal", setup=BenchmarkSettings(head_dim=16), **cell)


def begun_again(begun, **cell):
    """`train_arm`, and a line in a file for each time it began: the job's name for Slurm, which for the last one of an
    array is not SLURM_JOB_ID: that is the name of the whole array."""
    from fa_lib.training.study import train_arm  # here: it takes longer than most jobs

    with open(begun, "a") as file:
        file.write(f"{submitit.JobEnvironment().job_id}\n")
    return train_arm(**cell)


def stopped(folder, i):
    """1 and 3 wait, the first time, for what is done to their job; a line in the file i for each time it began."""
    path = Path(folder) / str(i)
    first = not path.exists()
    with open(path, "a") as file:
        file.write(f"{submitit.JobEnvironment().job_id}\n")
    if first and i in (1, 3):
        time.sleep(600)
    return dict(square=i * i)


def out_of_time(folder):
    """Raises, the first time, what submitit raises in the middle of a call."""
    begun = Path(folder) / "begun"
    if not begun.exists():
        begun.parent.mkdir(exist_ok=True)
        begun.touch()
        raise submitit.core.utils.UncompletedJobError("timed out too many times")
    return dict(square=4)


def sometimes(a, how):
    """Two of these cells fail for good."""
    if how and a == 1:
        raise ValueError("no luck")
    if how and a == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return dict(square=a * a)


def forever(begun):
    Path(begun).touch()
    time.sleep(600)
