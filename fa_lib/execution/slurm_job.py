"""What a Slurm job does: its calls, one after the other, the outcome of each kept at once."""

import os
import pickle
import socket
import subprocess
import traceback
from contextlib import suppress
from pathlib import Path

import submitit  # pyright: ignore[reportMissingImports]  # of the extra `cluster`
import torch

from fa_lib.execution import process_settings
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version
from fa_lib.execution.results import device


class Calls(submitit.helpers.Checkpointable):
    """The calls of one job, on one thread as in `pools.workers`. A job that is begun again after it was preempted goes
    on where it was."""

    def __call__(self, calls):
        torch.set_num_threads(1)
        process_settings.keep_memory()
        for (fn, args, kwargs, code), path in calls:
            if path.exists():
                continue
            try:
                if code_version(fn, [kwargs]) != code:
                    raise RuntimeError("its code was changed after this job was sent; run it again")
                _keep((None, fn(*args, **kwargs)), path)
            except Exception as error:
                if _of_the_job(error):
                    if len(calls) == 1 and isinstance(error, submitit.core.utils.UncompletedJobError):
                        _keep((RuntimeError(f"out of time: {error}"), None), path)  # it alone took it
                    raise
                traceback.print_exc()  # to the log
                _keep((_portable(error), None), path)


def outcome(path: Path) -> tuple:
    """(exception, result, device) of a call that has ended."""
    try:
        return submitit.core.utils.pickle_load(path)
    except Exception as error:
        return RuntimeError(f"its result cannot be read here: {type(error).__name__}: {error}"), None, None


def job_name() -> str:
    """The name of this process's jobs, which the kernels that it starts inherit."""
    return os.environ.setdefault("FA_LIB_JOB_NAME", f"fa_lib-{socket.gethostname()}-{os.getpid()}")


def cancel_all() -> None:
    """End the jobs of this process, and those of the kernels it started."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", "--me", f"--name={job_name()}"], capture_output=True, timeout=60)


def _of_the_job(error):
    """Whether submitit raised it, in the middle of a call: out of time too often, or not to be begun again."""
    failed = (subprocess.CalledProcessError, subprocess.TimeoutExpired)
    requeue = isinstance(error, failed) and error.cmd[0] == "scontrol"
    return requeue or isinstance(error, submitit.core.utils.UncompletedJobError)


def _keep(result, path):
    with replacing(path) as temporary:
        submitit.core.utils.cloudpickle_dump((*result, device()), temporary)


def _portable(error):
    """The exception where it survives the way back, else its words."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
