"""A process that imports once, and forks another for each call: what a call crashes, hangs or spoils is a process of
its own, and the seconds that imports and compilations take are spent once."""

import io
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_SERVE = [sys.executable, "-c", "from fa_lib.execution.forks import serve; serve()"]


class Forks:
    """Calls in processes of their own, one after the other. A context: on leaving, its process ends.

    Args:
        prepare: called once: what it and its module import and compile, every call finds ready. It may leave no thread
            behind.
        environment: of all these processes.
    """

    def __init__(self, prepare: Callable[[], None], environment: Mapping[str, str]):
        self.prepare, self.environment = prepare, dict(environment)
        self.server: subprocess.Popen[bytes] | None = None  # from the first call on
        self.running = 0  # the process, and group of processes, of the call that runs
        self.interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(signal.SIGKILL)
        if self.server is not None:
            self.server.terminate()
            self.server.communicate()

    def call(self, fn: Callable, *args: Any, limit_s: float) -> tuple[int, str]:
        """Call fn(*args) in a new process.

        Args:
            fn, args: that pickle can send. limit_s: seconds after which the process is killed, with all that it has
                started.

        Returns:
            (code, text): the exit status, 1 after an exception and -n after signal n, and all that was printed.

        Raises:
            TimeoutError: it took longer.
            RuntimeError: the process that forks has ended.
        """
        if self.interrupted:  # a signal to a process that has just begun may come before what it is to end waits for it
            return -signal.SIGINT, ""
        if begins := self.server is None:  # unbuffered: else one number that is read hides the next
            self.server = subprocess.Popen(
                _SERVE, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        server = self.server
        assert server.stdin and server.stdout
        if begins:
            pickle.dump(self.prepare, server.stdin)
        with tempfile.NamedTemporaryFile(prefix="fa_lib-call-") as printed:
            pickle.dump((fn, args, printed.name), server.stdin)
            self.running = _number(server.stdout)
            if self.interrupted:  # since
                self._end(signal.SIGINT)
            try:
                code = _number(server.stdout, limit_s)
            except TimeoutError:
                self._end(signal.SIGKILL)
                _number(server.stdout)
                self.running = 0
                raise
            self._end(signal.SIGKILL)  # what it has left behind
            self.running = 0
            return code, Path(printed.name).read_text(errors="backslashreplace")

    def interrupt(self) -> None:
        """Interrupt the call that runs, with all that it has started, and every later one. (Ctrl-C in a terminal does
        not reach them.)"""
        self.interrupted = True
        self._end(signal.SIGINT)

    def _end(self, number):
        """Send a signal to the call that runs, and to all that it has started."""
        if self.running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.running, number)


def _number(stream, limit_s=None):
    """The next one that the process which forks says."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        if not selector.select(limit_s):
            raise TimeoutError
    line = stream.readline()
    if not line:
        raise RuntimeError("forks: the process that forks has ended")
    return int(line)


def serve() -> None:
    """What the process of `Forks` does: prepare, and fork for each call that it reads, until there are no more."""
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that is imported may print between the numbers
    calls = io.BufferedReader(io.FileIO(0))
    pickle.load(calls)()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # it is for the call, which a fork lets through
    while calls.peek(1):
        fn, args, printed = pickle.load(calls)
        pid = os.fork()
        if not pid:
            say.close()
            os.setpgid(0, 0)
            _end(_call(fn, args, printed))
        with suppress(PermissionError, ProcessLookupError):  # the child may have been faster
            os.setpgid(pid, pid)
        print(pid, file=say, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=say, flush=True)


def _call(fn, args, printed):
    """In the forked process: the exit status of a call."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for target in (1, 2):
        os.dup2(os.open(printed, os.O_WRONLY | os.O_APPEND), target)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # one that came before is an interruption, too
        fn(*args)
    except KeyboardInterrupt:
        return -signal.SIGINT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code):
    """End this process, without what its parent has registered for its own end."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)
