"""Slurm as an executor for `sweep`: submitit sends and requeues jobs, this file waits for them (docs/cluster.md)."""

import hashlib
import itertools
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import submitit
import torch
import yaml

from fa_lib.execution import results
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import CORE, own_files
from fa_lib.paths import ROOT

# Of a job: minutes, GB, and for `retries` how often it is begun again when it was killed or its time ran out. An empty
# partition or account is Slurm's default; sbatch: more of its options, by their long names.
SETTINGS = dict(partition="", account="", time=60, memory=4, cpus=1, gpus=0, at_once=16, retries=2, sbatch={})


NAME = os.environ.setdefault("FA_LIB_JOB_NAME", f"fa_lib-{socket.gethostname()}-{os.getpid()}")  # kernels inherit it


OURS = (  # of sbatch's options: they have a setting of their own, or submitit sets them
    "partition", "account", "time", "mem", "cpus_per_task", "gpus", "gpus_per_node",
    "job_name", "array", "output", "error", "open_mode", "signal", "wrap",
)  # fmt: skip


ASK = 5  # seconds between two questions to Slurm; a job that both did not find, and that left no result, was killed


ARRAY = 1000  # jobs of one array: Slurm's default limit


LOADED = hashlib.sha256("\0".join(CORE).encode()).digest()


def settings():
    """SETTINGS, changed by cluster.yaml at the root of the repository, or by the file that FA_LIB_CLUSTER names.

    Raises:
        ValueError: the named file does not exist, or has a key or a value that does not fit.
    """
    named = os.environ.get("FA_LIB_CLUSTER")
    path = Path(named or ROOT / "cluster.yaml")
    if named and not path.exists():
        raise ValueError(f"FA_LIB_CLUSTER: got {named!r}, which does not exist; accepted is a YAML file")
    text = path.read_text() if path.exists() else ""
    try:
        given, raw = (yaml.load(text, loader) or {} for loader in (yaml.SafeLoader, yaml.BaseLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: no YAML: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{path}: got {given!r}; accepted is a mapping of {', '.join(SETTINGS)}")
    given = {key: "" if value is None and SETTINGS.get(key) == "" else value for key, value in given.items()}
    for key, value in given.items():
        if key not in SETTINGS:
            raise ValueError(f"{path}: got {key!r}; accepted are {', '.join(SETTINGS)}")
        least, kind = int(key not in ("gpus", "retries")), type(SETTINGS[key])
        # for YAML 2:00:00 is the number 7200
        if type(value) is not kind or (kind is int and (value < least or not raw[key].isdigit())):
            words = f"a whole number from {least}" if kind is int else "a text" if kind is str else "a mapping"
            raise ValueError(f"{path}: {key}: got {raw[key] if kind is int else repr(value)}; accepted is {words}")
    for option in given.get("sbatch", {}):
        if not isinstance(option, str) or option.replace("-", "_") in OURS:
            raise ValueError(f"{path}: sbatch: got {option!r}; accepted are options without a setting here")
    return SETTINGS | given


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
        self.given = given = settings()
        if os.environ.get("FA_LIB_CLUSTER"):  # a notebook's kernel runs in another folder
            os.environ["FA_LIB_CLUSTER"] = str(Path(os.environ["FA_LIB_CLUSTER"]).resolve())
        (ROOT / "build" / "slurm").mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=ROOT / "build" / "slurm"))
        self._sender = submitit.SlurmExecutor(self.folder, max_num_timeout=given["retries"])
        options = {key: given[key] for key in ("partition", "account") if given[key]}
        options |= dict(job_name=NAME, time=given["time"], mem=f"{given['memory']}GB", cpus_per_task=given["cpus"])
        options |= dict(gpus_per_node=given["gpus"] or None, array_parallelism=given["at_once"])
        # since 22.05 srun does not take the number of CPUs from sbatch
        options |= dict(srun_args=[f"--cpus-per-task={given['cpus']}"], stderr_to_stdout=True)
        self._sender.update_parameters(additional_parameters=dict(requeue=True) | given["sbatch"], **options)
        self._queue, self._jobs, self._count = SimpleQueue(), {}, itertools.count()
        self._closed = self._cancelled = self._failed = False
        self._broken, self._lock = None, threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, fn, /, *args, **kwargs):
        call = _Call((fn, args, kwargs, _code(fn, kwargs)), self.folder / f"call{next(self._count)}.pkl")
        with self._lock:
            if self._closed:
                raise self._broken or RuntimeError("submitted after shutdown")
            self._queue.put(call)
        return call.future

    def shutdown(self, wait=True, *, cancel_futures=False):
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
        asked, absent, calls = time.monotonic(), set(), []
        try:
            while not (self._closed and self._queue.empty() and not self._jobs):
                time.sleep(0.5)  # what is submitted together goes together
                calls = self._waiting()
                if self._cancelled:
                    for call in calls + sum(self._jobs.values(), []):
                        call.future.cancel()
                self._send([call for call in calls if not call.future.cancelled()])
                lost = set()
                if self._jobs and time.monotonic() - asked > ASK:
                    before, absent, asked = absent, self._absent(), time.monotonic()
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
        size = max(1, -(-len(fresh) // (4 * self.given["at_once"])))
        groups = [fresh[i : i + size] for i in range(0, len(fresh), size)] + [[call] for call in calls if call.lost]
        for i in range(0, len(groups), ARRAY):
            array = groups[i : i + ARRAY]
            kept = {name: v for name, v in os.environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")}
            with submitit.helpers.clean_env():  # in a job, sbatch would take options from that job's variables
                os.environ |= kept
                jobs = self._sender.map_array(_Calls(), [[(call.work, call.path) for call in group] for group in array])
            self._jobs |= zip(jobs, array)

    def _absent(self):
        """The jobs that Slurm does not hold as waiting or running; none where it does not answer."""
        words = ["squeue", "--me", f"--name={NAME}", "--noheader", "--array", "--format=%i"]
        try:
            held = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return set()
        return {job for job in self._jobs if job.job_id not in held}

    def _collect(self, lost):
        """Fulfil the futures of calls that have ended, and send the other calls of lost jobs again."""
        if lost:
            os.chmod(self.folder, 0o700)  # has a network file system look again
        there = set(os.listdir(self.folder))
        ended = {job for job in self._jobs if job.paths.result_pickle.name in there}
        there = set(os.listdir(self.folder))  # again: whatever those jobs left is there by now
        for job, calls in list(self._jobs.items()):
            for call in calls:
                if call.path.name in there and not call.future.done():
                    self._end(job, call, *_outcome(call.path))
            left = [call for call in calls if not call.future.done()]
            if not (job in ended | lost or (not left and any(call.future.cancelled() for call in calls))):
                continue
            del self._jobs[job]
            for call in left:
                if call.lost < self.given["retries"]:
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


def _outcome(path):
    """(exception, result) of a call; where it ran goes to the provenance."""
    try:
        error, result, device = submitit.core.utils.pickle_load(path)
    except Exception as error:
        return RuntimeError(f"its result cannot be read here: {type(error).__name__}: {error}"), None
    if device not in results.ELSEWHERE:
        results.ELSEWHERE.append(device)
    return error, result


def _end_of(job):
    """What submitit says of a job that ended outside its calls."""
    try:
        return f"the job {job.job_id} ended without a result: {job.result()}"
    except Exception as error:
        return str(error)


def _fulfil(call, error, result=None):
    if not call.future.done() and call.future.set_running_or_notify_cancel():
        call.future.set_result(result) if error is None else call.future.set_exception(error)


class _Calls(submitit.helpers.Checkpointable):
    """What a job does: its calls, one after the other, on one thread as in `workers`. What came out of each is kept at
    once: a job that is begun again after it was preempted goes on."""

    def __call__(self, calls):
        torch.set_num_threads(1)
        for (fn, args, kwargs, code), path in calls:
            if path.exists():
                continue
            try:
                if _code(fn, kwargs) != code:
                    raise RuntimeError("its code was changed after this job was sent; run it again")
                _keep((None, fn(*args, **kwargs)), path)
            except Exception as error:
                if _of_the_job(error):
                    if len(calls) == 1 and isinstance(error, submitit.core.utils.UncompletedJobError):
                        _keep((RuntimeError(f"out of time: {error}"), None), path)  # it alone took it
                    raise
                traceback.print_exc()  # to the log
                _keep((_portable(error), None), path)


def _code(fn, cell):
    """SHA-256 of the library, as this process loaded it, of the function's module, and of the files that the cell
    names: a sweep keeps what a job finds as what its own code finds, so both have to be the same."""
    module = getattr(fn, "__module__", None)
    file = getattr(sys.modules.get(module), "__file__", None)
    own = Path(file).read_bytes() if file and module != "__main__" else b""  # from there a function is sent whole
    return hashlib.sha256(LOADED + own + "\0".join(own_files([cell])).encode()).hexdigest()


def _of_the_job(error):
    """Whether submitit raised it, in the middle of a call: out of time too often, or not to be begun again."""
    failed = (subprocess.CalledProcessError, subprocess.TimeoutExpired)
    requeue = isinstance(error, failed) and error.cmd[0] == "scontrol"
    return requeue or isinstance(error, submitit.core.utils.UncompletedJobError)


def _keep(outcome, path):
    with replacing(path) as temporary:
        submitit.core.utils.cloudpickle_dump((*outcome, results.device()), temporary)


def _portable(error):
    """The exception where it survives the way back, else its words."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def cancel_all():
    """End the jobs of this process, and those of the kernels it started."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", "--me", f"--name={NAME}"], capture_output=True, timeout=60)
