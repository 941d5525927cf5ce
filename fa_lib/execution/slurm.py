"""Slurm as an executor for `sweep`: submitit sends and requeues jobs, this file waits (docs/operate/cluster.md)."""

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import submitit  # pyright: ignore[reportMissingImports]  # of the extra `cluster`

from fa_lib.execution.fingerprint import code_version
from fa_lib.execution.paths import build
from fa_lib.execution.slurm_job import Calls, cancel_all, job_name, outcome
from fa_lib.execution.slurm_settings import settings

ASK = 5  # seconds between two questions to Slurm; a job that both did not find, and that left no result, was killed
ARRAY = 1000  # jobs of one array: Slurm's default limit


@dataclass(eq=False)
class _Call:
    work: tuple  # function, arguments, named arguments, and the function's code when it was submitted
    path: Path  # its (exception, result)
    future: Future = field(default_factory=Future)
    lost: int = 0  # jobs that were killed with it


class Slurm(Executor):
    """Calls as Slurm jobs, a concurrent.futures.Executor.

    What is submitted at one time becomes one job array; calls that would take more than four rounds of jobs share
    jobs. A preempted job is begun again by Slurm. The calls of a job that was killed, or that held several and was out
    of time too often, are sent again, each in a job of its own. Neither makes a call again that has ended. An exception
    has a note with the path of its job's log.
    """

    def __init__(self):
        self.settings = job = settings()
        self.devices = []  # what the jobs ran on
        if os.environ.get("FA_LIB_CLUSTER"):  # a notebook's kernel runs in another folder
            os.environ["FA_LIB_CLUSTER"] = str(Path(os.environ["FA_LIB_CLUSTER"]).resolve())
        folder = build() / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{job_name()}-", dir=folder))
        self._sender = submitit.SlurmExecutor(self.folder, max_num_timeout=job.retries)
        options = {key: getattr(job, key) for key in ("partition", "account") if getattr(job, key)}
        options |= dict(job_name=job_name(), time=job.time, mem=f"{job.memory}GB", cpus_per_task=job.cpus)
        options |= dict(gpus_per_node=job.gpus or None, array_parallelism=job.at_once)
        # since 22.05 srun does not take the number of CPUs from sbatch
        options |= dict(srun_args=[f"--cpus-per-task={job.cpus}"], stderr_to_stdout=True)
        self._sender.update_parameters(additional_parameters=dict(requeue=True) | job.sbatch, **options)
        self._queue, self._jobs, self._count, self._codes = SimpleQueue(), {}, itertools.count(), {}
        self._closed = self._cancelled = self._failed = False
        self._broken, self._lock = None, threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, fn, /, *args, **kwargs) -> Future:
        """Queue a call fn(*args, **kwargs) for the next jobs.

        Raises:
            RuntimeError: the executor was shut down; BrokenExecutor where Slurm failed.
            ValueError: an argument names code that cannot be found.
        """
        call = _Call((fn, args, kwargs, self._code(fn, kwargs)), self.folder / f"call{next(self._count)}.pkl")
        with self._lock:
            if self._closed:
                raise self._broken or RuntimeError("submitted after shutdown")
            self._queue.put(call)
        return call.future

    def _code(self, fn, kwargs):
        """Compute a digest of what the call depends on. A sweep stores a job's result as that of its own code, so a job
        whose code has another digest refuses the call."""
        names = tuple(sorted(x for x in kwargs.values() if isinstance(x, str)))
        if (fn, names) not in self._codes:
            self._codes[fn, names] = code_version(fn, [kwargs])
        return self._codes[fn, names]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: whether to wait until all calls have ended. cancel_futures: whether to cancel those that have not.
        """
        self._closed, self._cancelled = True, cancel_futures
        if wait:
            self._thread.join()

    def __exit__(self, kind, *_):
        well = False
        try:
            self.shutdown(cancel_futures=kind is not None)
            well = kind is None
        finally:
            if not well:
                cancel_all()

    def _work(self):
        last_query, absent, calls = time.monotonic(), set(), []
        try:
            while not (self._closed and self._queue.empty() and not self._jobs):
                time.sleep(0.5)  # what is submitted together goes together
                calls = self._waiting()
                if self._cancelled:
                    for call in calls + sum(self._jobs.values(), []):
                        call.future.cancel()
                self._send([call for call in calls if not call.future.cancelled()])
                lost = set()
                if self._jobs and time.monotonic() - last_query > ASK:
                    before, absent, last_query = absent, self._absent(), time.monotonic()
                    lost = before & absent
                self._collect(lost)
        except BaseException as error:
            broken = BrokenExecutor(f"{type(error).__name__}: {error}; the jobs' logs: {self.folder}")
            with self._lock:
                self._closed = self._failed = True
                self._broken = broken
            for call in calls + self._waiting() + sum(self._jobs.values(), []):
                _fulfil(call, broken)
            cancel_all()
        if not self._failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _waiting(self):
        return [self._queue.get() for _ in range(self._queue.qsize())]

    def _send(self, calls):
        fresh = [call for call in calls if not call.lost]
        size = max(1, -(-len(fresh) // (4 * self.settings.at_once)))
        groups = [fresh[i : i + size] for i in range(0, len(fresh), size)] + [[call] for call in calls if call.lost]
        for i in range(0, len(groups), ARRAY):
            array = groups[i : i + ARRAY]
            variables = {
                name: v for name, v in os.environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")
            }
            with submitit.helpers.clean_env():  # in a job, sbatch would take options from that job's variables
                os.environ |= variables
                jobs = self._sender.map_array(Calls(), [[(call.work, call.path) for call in group] for group in array])
            self._jobs |= zip(jobs, array)

    def _absent(self):
        """Return the jobs that Slurm lists neither as waiting nor as running; none where it does not answer."""
        words = ["squeue", "--me", f"--name={job_name()}", "--noheader", "--array", "--format=%i"]
        try:
            ids = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return set()
        return {job for job in self._jobs if job.job_id not in ids}

    def _collect(self, lost):
        """Fulfil the futures of calls that have ended, and send the other calls of lost jobs again."""
        if lost:
            os.chmod(self.folder, 0o700)  # has a network file system look again
        files = set(os.listdir(self.folder))
        ended = {job for job in self._jobs if job.paths.result_pickle.name in files}
        files = set(os.listdir(self.folder))  # again: whatever those jobs left is there by now
        for job, calls in list(self._jobs.items()):
            for call in calls:
                if call.path.name in files and not call.future.done():
                    error, result, device = outcome(call.path)
                    if device and device not in self.devices:
                        self.devices.append(device)
                    self._end(job, call, error, result)
            left = [call for call in calls if not call.future.done()]
            if not (job in ended | lost or (not left and any(call.future.cancelled() for call in calls))):
                continue
            del self._jobs[job]
            for call in left:
                if call.lost < self.settings.retries:
                    call.lost += 1
                    self._queue.put(call)
                else:
                    words = _end_of(job) if job in ended else f"the job {job.job_id} was killed"
                    self._end(job, call, RuntimeError(words))

    def _end(self, job, call, error, result=None):
        if error is not None:
            self._failed = True
            error.add_note(f"its log: {job.paths.stdout}")
        _fulfil(call, error, result)


def _end_of(job):
    """Say why a job ended outside its calls, in submitit's words."""
    try:
        return f"the job {job.job_id} ended without a result: {job.result()}"
    except Exception as error:
        return str(error)


def _fulfil(call, error, result=None):
    if not call.future.done() and call.future.set_running_or_notify_cancel():
        call.future.set_result(result) if error is None else call.future.set_exception(error)
