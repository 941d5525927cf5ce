"""A process that ends with the one that started it, `make` or another of ours."""

import multiprocessing
import os
import select
import signal
import threading
import time

SECONDS = 0.5


NAME = "FA_LIB_PARENT"


def end_with_parent() -> None:
    """Interrupt this process, as `kill` does, when its starter has ended, even by SIGKILL.

    The starter is the process that started this one through multiprocessing, or else the one whose id the environment
    holds (FA_LIB_PARENT); a shell may stand between the two. Without either, this process may outlive its parent.
    """
    pid, starter = os.environ.pop(NAME, ""), multiprocessing.parent_process()
    if not starter and not pid.isdigit():
        return

    def follow():
        if starter:
            starter.join()
        else:
            _wait(int(pid))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def _wait(pid):
    """Wait until a process has ended; it need not be this one's parent."""
    try:
        descriptor = os.pidfd_open(pid)  # Linux; no later process of that id is meant
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        while _is_alive(pid):
            time.sleep(SECONDS)
    else:
        select.select([descriptor], [], [])


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another's
        pass
    return True


def end_as_interrupted() -> None:
    """Treat a closed terminal and `kill` as Ctrl-C, so that the processes which this one started end with it. A signal
    that is ignored, as the closed terminal under `nohup`, stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
