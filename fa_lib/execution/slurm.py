"""Slurm as an executor for `sweep`: submitit sends jobs and begins preempted ones again (docs/operate/cluster.md)."""

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit  # pyright: ignore[reportMissingImports]  # of the extra `cluster`
import torch
import yaml

from fa_lib.execution import process_settings
from fa_lib.execution.fingerprint import code_version
from fa_lib.execution.paths import ROOT, build
from fa_lib.execution.results import device

DEFAULTS = dict(time=60, mem="4GB", at_once=16, stderr_to_stdout=True, additional_parameters=dict(requeue=True))


class Slurm(ThreadPoolExecutor):
    """Calls as Slurm jobs, a concurrent.futures.Executor: each is sent, and waited for, by a thread of this process.

    Left by an error, it ends its jobs. A call that fails raises submitit's error, with traceback and log.

    Attributes:
        devices: descriptions (`results.device`) of the machines that the jobs ran on.
    """

    def __init__(self):
        parameters = settings()
        super().__init__(parameters.pop("at_once"))
        self.devices: list[dict] = []
        self._lock, self._interrupted = threading.Lock(), threading.Event()
        (build() / "slurm").mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{job_name()}-", dir=build() / "slurm")  # another cluster may count alike
        self._sender = submitit.SlurmExecutor(folder)
        self._sender.update_parameters(**parameters | dict(job_name=job_name()))

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        """Queue a call fn(*args, **kwargs).

        Raises:
            RuntimeError: the executor was shut down.
            ValueError: an argument names code that cannot be found.
        """
        return super().submit(self._run, fn, args, kwargs, code_version(fn, [kwargs]))

    def _run(self, *call):
        """Send a call and wait for its result."""
        with self._lock:
            job = self._sender.submit(_Call(), *call)
        while not job.done():
            if self._interrupted.wait(1):
                job.cancel(check=False)
                raise CancelledError
        result, where = job.result()
        if where not in self.devices:
            self.devices.append(where)
        return result

    def __exit__(self, kind, *_):
        if kind is not None:
            self._interrupted.set()
        self.shutdown(cancel_futures=kind is not None)


class _Call(submitit.helpers.Checkpointable):
    """What a job does: one call, on one thread as in `pools.workers`. A preempted job is begun again with it."""

    def __call__(self, fn, args, kwargs, code):
        torch.set_num_threads(1)
        process_settings.keep_memory()
        if code_version(fn, [kwargs]) != code:  # the sender would keep its result as that of the older code
            raise RuntimeError("its code was changed after this job was sent; run it again")
        return fn(*args, **kwargs), device()


def settings() -> dict[str, Any]:
    """Read what each job requests from the file that FA_LIB_CLUSTER names, or from cluster.yaml of the checkout:
    parameters of submitit.SlurmExecutor, and at_once, the number of jobs at a time; DEFAULTS where the file says
    nothing. A ValueError: the named file does not exist, or it holds no mapping."""
    path = Path(os.environ.get("FA_LIB_CLUSTER") or ROOT / "cluster.yaml")
    if "FA_LIB_CLUSTER" in os.environ and not path.is_file():
        raise ValueError(f"FA_LIB_CLUSTER: got {str(path)!r}, which does not exist; accepted is a YAML file")
    given = yaml.safe_load(path.read_text()) or {} if path.exists() else {}
    if not isinstance(given, dict):
        raise ValueError(f"{path}: got {given!r}; accepted is a mapping of submitit's parameters and at_once")
    return DEFAULTS | given


def job_name() -> str:
    """Return the name of this process's jobs, which the notebook kernels that it starts inherit."""
    return os.environ.setdefault("FA_LIB_JOB_NAME", f"fa_lib-{socket.gethostname()}-{os.getpid()}")


def cancel_all() -> None:
    """End the jobs of this process, and those of the notebook kernels that it started."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", "--me", f"--name={job_name()}"], capture_output=True, timeout=60)
