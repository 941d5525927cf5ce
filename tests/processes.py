"""What tests of processes share: whether one lives, and waiting for what another one does."""

import time

import psutil


def lives(pid):
    """Whether there is such a process, and it is no zombie that nobody has asked for."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition, seconds=180):  # a loaded machine is no error
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def written(path):
    """The text of a file, once it has one."""
    wait_until(lambda: path.exists() and path.read_text())
    return path.read_text()
