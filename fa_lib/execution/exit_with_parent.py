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
    """This process is interrupted, as by `kill`, when the one that started it through multiprocessing has ended, by
    SIGKILL too; or the process that the environment names (FA_LIB_PARENT, its id): whether a shell stands between the
    two or not. Started otherwise, it may outlive its parent."""
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
    """Until a process, of which this one need not be the child, has ended."""
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
    """Take a closed terminal and `kill` as Ctrl-C: what this process started then ends with it. What is ignored, as the
    closed terminal under `nohup`, stays so."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
