"""What a kernel beside a model may not leave behind: random numbers drawn, and settings of torch that change bits."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch

TINY = 5e-324  # the smallest float64, which flushing makes zero
MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
FLAGS = [
    (MATMUL, "fp32_precision"), (MATMUL, "allow_fp16_reduced_precision_reduction"),
    (MATMUL, "allow_bf16_reduced_precision_reduction"), (torch.backends.mkldnn, "enabled"),
    (CUDNN, "benchmark"), (CUDNN, "deterministic"), (CUDNN, "enabled"),
]  # fmt: skip


@contextmanager
def restored() -> Iterator[None]:
    """Whatever is done inside, after it are as before: the states of numpy's and Python's random numbers; torch's
    default dtype, number of threads, flushing of subnormal numbers, deterministic algorithms, precision of matrix
    products, and the backends of attention that are allowed. (torch's own generators: `torch.random.fork_rng`.)"""
    numbers, python = np.random.get_state(), random.getstate()
    before = []
    for get, put in _settings():
        with suppress(RuntimeError, AttributeError):  # one that this torch has not, or cannot tell
            before.append((get, put, get()))
    try:
        yield
    finally:
        np.random.set_state(numbers)
        random.setstate(python)
        for get, put, value in before:
            if _told(get) != value:
                put(value)


def _told(get):
    with suppress(RuntimeError):
        return get()


def _settings() -> list[tuple[Callable, Callable]]:
    """How each setting is read, and how it is set."""
    backends = torch.backends.cuda
    return [
        (torch.get_default_dtype, torch.set_default_dtype), (torch.get_num_threads, torch.set_num_threads),
        (lambda: TINY * 1.0 == 0.0, torch.set_flush_denormal), (_deterministic, _set_deterministic),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
        (backends.flash_sdp_enabled, backends.enable_flash_sdp),
        (backends.mem_efficient_sdp_enabled, backends.enable_mem_efficient_sdp),
        (backends.math_sdp_enabled, backends.enable_math_sdp),
        (backends.cudnn_sdp_enabled, backends.enable_cudnn_sdp),
        (backends.fp16_bf16_reduction_math_sdp_allowed, backends.allow_fp16_bf16_reduction_math_sdp),
        *((lambda of=of, name=name: getattr(of, name), lambda x, of=of, name=name: setattr(of, name, x))
          for of, name in FLAGS),
    ]  # fmt: skip


def _deterministic():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value):
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])
