"""What a training run runs on: Lightning Fabric on one CPU or GPU or several, repeatable to the bit."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fa_lib.training.preflight import nodes


def begin(precision: str, device: str, devices: int, strategy: str) -> Fabric:
    """Launch the Fabric of a run. With several devices, it starts the other processes too.

    Args:
        precision: a key of `spec.PRECISIONS`.
        device, devices, strategy: as of a RunSpec.
    """
    # Fabric's own "16-mixed" becomes BF16 on a CPU, without a word
    plugin = None
    if precision in ("16-mixed", "16-mixed-unscaled"):
        scaler = torch.amp.GradScaler(device, enabled=precision == "16-mixed")
        plugin = MixedPrecision("16-mixed", device=device, scaler=scaler)
    sharded = ModelParallelStrategy(
        _shard, data_parallel_size=devices, tensor_parallel_size=1, save_distributed_checkpoint=False
    )
    own_precision: Any = None if plugin else precision  # one of the literals that Fabric names
    with _quiet():
        fabric = Fabric(
            accelerator=device,
            devices=devices // nodes(),
            num_nodes=nodes(),
            strategy=sharded if strategy == "fsdp" else "ddp" if devices > 1 else "auto",
            precision=own_precision,
            plugins=plugin,
        )
        fabric.launch()
    return fabric


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Make a computation repeat its bits: one thread on a CPU (results differ between one and two), deterministic code
    on a GPU.

    Args:
        device: "cpu" or "cuda".
    """
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # FP32 is FP32, and products of 16-bit formats are summed in it
    flags = [(cudnn, "allow_tf32"), (matmul, "allow_tf32")]
    flags += [(matmul, f"allow_{fmt}_reduced_precision_reduction") for fmt in ("fp16", "bf16")]
    before = [getattr(of, name) for of, name in flags]
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        # torch reads it once, at the process's first product on a GPU, and refuses to go on where it came too late
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        for of, name in flags:
            setattr(of, name, False)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
        if device != "cpu":
            for (of, name), value in zip(flags, before):
                setattr(of, name, value)


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the shard of a tensor that this process holds: all of it, of any shape, where it is not a DTensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def reduced(fabric: Fabric, x: torch.Tensor, how: str = "mean") -> torch.Tensor:
    """Combine a tensor of any shape over the processes of a run, each of which must call this.

    Args:
        fabric: of `begin`.
        x: this process's tensor.
        how: "mean", "sum" or "min".

    Returns:
        Tensor of x's shape, the same on every process.
    """
    out = fabric.all_reduce(x, reduce_op=how)
    assert isinstance(out, torch.Tensor)  # a tensor gives a tensor, a collection of tensors its like
    return out


def gathered(x, first: bool):
    """Gather a tensor's shards. Every process must call this: FSDP gathers one tensor at a time.

    Args:
        x: a tensor of any shape, or anything else.
        first: whether this is the first process.

    Returns:
        The complete tensor, on the CPU, in the first process, and None in the others; what is no tensor, as it is.
    """
    if not isinstance(x, torch.Tensor):
        return x
    x = x.full_tensor() if isinstance(x, DTensor) else x
    return x.cpu() if first else None


def _shard(model, mesh):
    for module in (*model.transformer.transformer_blocks, model):
        fully_shard(module, mesh=mesh["data_parallel"])
    return model


@contextmanager
def _quiet():
    """Fabric announces each run's precision, and warns wherever Slurm is installed."""
    logger = logging.getLogger("lightning_fabric")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The `srun` command is available")
            yield
    finally:
        logger.setLevel(level)
