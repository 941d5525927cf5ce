"""Memory that is freed stays with the process. By default glibc gives every large block back to the system, which has
to fill each new one with zeros: a sixth of the time in which a kernel is judged."""

import ctypes

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h


def keep() -> None:
    """For this process, which then holds on to the most that it ever used; nothing where the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
