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
    """Run the calls of one job, on one thread as in `pools.workers`. A preempted job that is begun again skips the
    calls that have ended."""

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
    """Read the outcome of a call that has ended.

    Args:
        path: the call's file.

    Returns:
        exception (None where the call succeeded), result, and the device it ran on, as of `results.device`. Of a file
        that cannot be read: a RuntimeError, None and None.
    """
    try:
        return submitit.core.utils.pickle_load(path)
    except Exception as error:
        return RuntimeError(f"its result cannot be read here: {type(error).__name__}: {error}"), None, None


def job_name() -> str:
    """Return the name of this process's jobs, which the notebook kernels that it starts inherit."""
    return os.environ.setdefault("FA_LIB_JOB_NAME", f"fa_lib-{socket.gethostname()}-{os.getpid()}")


def cancel_all() -> None:
    """End the jobs of this process, and those of the notebook kernels that it started."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", "--me", f"--name={job_name()}"], capture_output=True, timeout=60)


def _of_the_job(error):
    """Say whether submitit raised an error, in the middle of a call: the job ran out of time too often, or it cannot be
    begun again."""
    failed = (subprocess.CalledProcessError, subprocess.TimeoutExpired)
    requeue = isinstance(error, failed) and error.cmd[0] == "scontrol"
    return requeue or isinstance(error, submitit.core.utils.UncompletedJobError)


def _keep(result, path):
    with replacing(path) as temporary:
        submitit.core.utils.cloudpickle_dump((*result, device()), temporary)


def _portable(error):
    """Return the exception where pickle can send it, else a RuntimeError with its words."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
