"""What the cluster's tests run in jobs."""

import os
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
    """`train_arm`, and a line in a file for each time it began: the job's name for Slurm. The first time, each step
    takes a fifth of a second more, so that the run does not end before it is preempted."""
    from fa_lib.training.run import Run  # here: it takes longer than most jobs
    from fa_lib.training.study import train_arm

    if not Path(begun).exists():
        advance = Run.advance
        Run.advance = lambda *args: (time.sleep(0.2), advance(*args))[1]
    with open(begun, "a") as file:
        file.write(f"{submitit.JobEnvironment().job_id}\n")
    return train_arm(**cell)


def sometimes(a):
    if a == 1:
        raise ValueError("no luck")
    return dict(square=a * a)


def forever(begun):
    Path(begun).touch()
    time.sleep(600)
