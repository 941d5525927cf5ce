"""What tests of kernels of their own share: tensors, names for them, and what a judgement found."""

from dataclasses import replace

import torch

from attention_check.isolation.isolated_kernel import isolated, wait
from attention_check.testing.checks import result_of
from fa_lib import Precision, Tiling, kernels


def draw(n=8, d=16):
    return [*torch.randn(3, 1, 2, n, d, generator=torch.Generator().manual_seed(0))]


def results(kernel, *checks):
    """Whether a KernelRef passes some checks, in a process of its own."""
    with isolated(kernel) as subject:
        wait(subject)
        return {check: result_of(check, subject).passed for check in checks}


def own_name(name, fn):
    if name not in kernels.available():
        kernels.register(name, fn)
    return name


def emulated(q, k, v, steps=(), block_kv=64, algorithm="fa2", **options):
    precision = replace(Precision.kernel(q.dtype), **dict.fromkeys(steps, q.dtype))
    return kernels.tiled(q, k, v, tiling=Tiling(64, block_kv), precision=precision, algorithm=algorithm, **options)


def found(judgement, what):
    return [finding for finding in judgement.findings if finding.what == what]
