"""One training run, on Lightning Fabric: on one CPU, one GPU, or several of them by DDP or FSDP, also under torchrun
and srun. A killed run can be started again and ends with the same bits.
"""

import hashlib
import io
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from safetensors.torch import save
from torch.utils._pytree import tree_map
from tqdm import tqdm

from fa_lib import kernels
from fa_lib.execution import files
from fa_lib.execution.fingerprint import code_version
from fa_lib.training import data, nonfinite, preflight
from fa_lib.training.devices import begin, gathered, local, reduced, repeatable
from fa_lib.training.half_products import HalfProducts, slow
from fa_lib.training.model import TextToImage, noised
from fa_lib.training.run_folder import (
    checkpoints,
    checksum,
    finished,
    missing_of,
    refuse_another,
    weights,
    write_result,
)
from fa_lib.training.spec import OPTIMIZERS, RunSpec

_QK = ("attn1.to_q.weight", "attn1.to_k.weight")

Watch = Callable[[int], Callable | None]


@dataclass(frozen=True)
class Prepared:
    """A run whose arguments were accepted.

    Attributes:
        spec: of the run.
        kernel: the function that its arm names.
        settings: of `preflight.settings`, which its folder keeps.
    """

    spec: RunSpec
    kernel: Callable
    settings: dict


def prepare(spec: RunSpec) -> Prepared:
    """Find the kernel of a run, and the version of the code: of this module, of what it imports, and of the kernel.

    Raises:
        ValueError: there is no such kernel, or an argument does not fit.
    """
    preflight.check(spec)
    kernel = kernels.get(spec.arm.kernel)
    code = code_version(train, [dict(device=spec.device)], uses=[kernel])[:16]
    return Prepared(spec, kernel, preflight.settings(spec, code))


def train(spec: RunSpec, folder: str | Path, *, watch: Watch | None = None, progress: bool = False) -> dict:
    """Train one model, from where an interrupted run in `folder` stopped.

    The batch, its noise and its timesteps are those of (seed, step), whatever the arm, the device and the number of
    processes. On a CPU a run takes one thread.

    Args:
        spec: what to train, and on what.
        folder: for weights-<step>.safetensors, at the steps of `run_folder.checkpoints`; run.json when it has ended;
            meanwhile resume.ckpt.
        watch: called with each step's number before it; gives a probe for its attention calls, or None.
        progress: show a bar.

    Returns:
        dict, as in run.json: settings, status ("done" or "diverged at step n"), losses, skipped (steps that the loss
        scaler left out), zero_gradients (rows of step, share of exactly zero gradients in the transformer, the same in
        its self-attention's Q and K projections), dtype (attention's), seconds, divergence (None, or why the loss was
        not finite, a dict: step; weights, the name of a tensor of weights that was not finite before the step; of the
        step made again what `nonfinite.traced` tells; last_good, the name of the last weights file that is finite).

    Raises:
        ValueError: an argument does not fit, the kernel cannot do what the model asks, or the folder holds another
            run or a damaged checkpoint, or is in use; before the first step.
    """
    return run_training(prepare(spec), folder, watch=watch, progress=progress)


def run_training(prepared: Prepared, folder: str | Path, *, watch: Watch | None = None, progress: bool = False) -> dict:
    """Train one model as `train` does, from a run of `prepare`; arguments, result and errors are those of `train`."""
    spec, folder = prepared.spec, Path(folder)
    if result := finished(folder, prepared.settings):
        return result
    with repeatable(spec.device), ExitStack() as stack:
        fabric = begin(spec.arm.precision, spec.device, spec.devices, spec.strategy)
        run = Run(fabric, prepared, folder)
        images = _images(spec)
        problem = ""
        if fabric.global_rank == 0:
            try:
                stack.enter_context(files.locked_folder(folder))
                result = finished(folder, prepared.settings)  # by the process that held it
            except ValueError as error:
                problem = str(error)
        problem, result = fabric.broadcast((problem, result))
        if problem:
            raise ValueError(problem)
        if result:
            return result
        run.resume()
        batches = images.batches(spec.config.batch, data.mixed(spec.seed, spec.arm.order), start=run.step)
        halves = HalfProducts(spec.dtype) if spec.device == "cpu" and slow(spec.dtype) else nullcontext()
        silent = not progress or fabric.global_rank > 0
        bar = tqdm(total=spec.steps, initial=run.step, unit="step", disable=silent)
        with halves, bar:
            while run.step < spec.steps and not run.status:
                run.advance(*next(batches), watch)
                bar.update()
        return run.end()


def _images(spec):
    """The data of a run, of at least a batch."""
    if spec.source == "shapes":
        images = data.shapes(spec.config.images, spec.config.image_size, spec.seed)
    else:
        images = data.load(spec.source, spec.config.image_size, streaming=spec.streaming)
    images.check(spec.config.batch, spec.steps, data.mixed(spec.seed, spec.arm.order))
    return images


class Run:
    """The state of a run, and what one step does to it."""

    def __init__(self, fabric: Fabric, prepared: Prepared, folder: Path):
        spec, kernel, self.settings = prepared.spec, prepared.kernel, prepared.settings
        self.fabric, self.folder, self.started = fabric, folder, time.monotonic()
        self.seed, self.config, self.dtype, arm = spec.seed, spec.config, spec.dtype, spec.arm
        self.checkpoints = frozenset(checkpoints(spec.steps, spec.every))
        preflight.check_kernel(arm.kernel, kernel, self.config, self.dtype, fabric.device)
        self.model = TextToImage(self.config, kernel, data.mixed(self.seed, arm.init))
        if arm.perturb:
            draw = data.generator(self.seed, 1)
            for p in self.model.parameters():
                factor = 1 + arm.perturb * torch.randn(p.shape, generator=draw, dtype=torch.float64)
                p.data.copy_(p.detach().double() * factor)
        self.parallel = fabric.setup_module(self.model)  # first: FSDP puts other parameters in
        of, lr, decay = OPTIMIZERS[self.config.optimizer], self.config.lr, self.config.weight_decay
        bare = of(self.model.parameters(), lr=lr, weight_decay=decay)
        self.optimizer: Any = fabric.setup_optimizers(bare)  # Any: its type is a tuple's too, of several optimizers
        self.scaler = getattr(fabric._precision, "scaler", None)
        self.step, self.losses, self.skipped, self.zeros, self.status, self.before = 0, [], 0, [], "", 0.0
        self.divergence = None
        torch.manual_seed(self.seed)

    def advance(self, images: torch.Tensor, captions: list[str], watch: Watch | None) -> None:
        """Make one step on this process's share of a batch: images, uint8 (batch, 3, size, size), and captions.
        Raise a RuntimeError where attention ran in another dtype than the run's."""
        config, fabric = self.config, self.fabric
        own = slice(fabric.global_rank, None, fabric.world_size)
        tensors = *noised(images, self.seed, self.step, config.noise), *self.model.tokens(captions)
        inputs = [fabric.to_device(x[own]) for x in tensors]
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * min(1, (self.step + 1) / (config.warmup + 1))
        self.model.attention.probe = watch(self.step) if watch else None
        loss = self.loss(*inputs)
        if self.model.attention.dtypes != {self.dtype}:
            raise RuntimeError(f"attention ran in {self.model.attention.dtypes}, and not in {self.dtype}")
        self.losses.append(reduced(fabric, loss.detach()).item())
        if not math.isfinite(self.losses[-1]):
            del loss  # and what its backward pass would have needed
            self.diverge(lambda: reduced(fabric, self.loss(*inputs).detach()))
            return
        fabric.backward(loss)
        if self.step % self.settings["every"] == 0:
            self.zeros.append([self.step, *self.zero_gradients()])
        scale = self.scaler.get_scale() if self.scaler else 1.0
        self.optimizer.step()
        self.skipped += bool(self.scaler and self.scaler.get_scale() < scale)
        self.optimizer.zero_grad()
        self.step += 1
        if self.step in self.checkpoints:
            if not self.sum([(~local(p).isfinite()).sum() for p in self.model.parameters()]):
                self.save()
            else:  # the loss was finite, what it moved the weights to is not
                self.diverge()

    def loss(self, noisy, timesteps, velocity, tokens, mask) -> torch.Tensor:
        """Compute the mean square error of the model's velocity, a tensor of one number; of `forward`'s inputs."""
        return (self.parallel(noisy, timesteps, tokens, mask) - velocity.to(noisy.dtype)).square().mean()

    def diverge(self, loss: Callable[[], torch.Tensor] | None = None) -> None:
        """End the run at this step, and find out why. loss: makes the step's forward pass again."""
        self.status = f"diverged at step {self.step}"
        weights = nonfinite.bad_weights(self.model, self.least)
        trace = nonfinite.traced(self.model, loss, self.least) if loss else {}
        self.divergence = nonfinite.divergence(self.folder, self.step, weights, trace)

    def least(self, number: int) -> int:
        """Return the least of a whole number over the processes."""
        return int(reduced(self.fabric, torch.tensor(number, device=self.fabric.device), "min"))

    def zero_gradients(self) -> list[float]:
        """Shares of exactly zero gradients: in the transformer, and in its self-attention's Q and K projections."""
        parameters: Any = self.model.transformer.named_parameters()  # after a backward pass: each has a gradient
        gradients = {n: local(p.grad) for n, p in parameters}
        groups = gradients.values(), [g for n, g in gradients.items() if n.endswith(_QK)]
        return [self.sum([(g == 0).sum() for g in group]) / self.sum([g.numel() for g in group]) for group in groups]

    def sum(self, counts) -> int:
        """Sum counts, over the processes too."""
        own = torch.tensor(sum(map(int, counts)), device=self.fabric.device)
        return int(reduced(self.fabric, own, "sum"))

    def state(self) -> dict:
        """Collect what a resumed run needs: model, optimizer, scaler, rng (state dicts), rest (numbers)."""
        rng = {"cpu": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()
        scaler = self.scaler.state_dict() if self.scaler else {}
        numbers = dict(step=self.step, losses=self.losses, skipped=self.skipped, zeros=self.zeros)
        numbers |= dict(settings=self.settings, seconds=self.before + time.monotonic() - self.started)
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        return dict(model=model, optimizer=optimizer, scaler=scaler, rng=rng, rest=numbers)

    def save(self) -> None:
        """Write the weights and resume.ckpt: each file is complete or not there."""
        state = tree_map(partial(gathered, first=self.fabric.global_rank == 0), self.state())
        if self.fabric.global_rank == 0:
            tensors = {n: state["model"][n].contiguous() for n, _ in self.model.named_parameters()}
            with files.replacing(weights(self.folder, self.step)) as path:
                path.write_bytes(save(tensors, {"sha256": checksum(tensors)}))
            file = io.BytesIO()
            torch.save(state, file)
            file.write(hashlib.sha256(file.getbuffer()).digest())  # torch.load checks nothing
            with files.replacing(self.folder / "resume.ckpt") as path:
                path.write_bytes(file.getbuffer())
        self.fabric.barrier()

    def resume(self) -> None:
        """Go on from the folder's checkpoint; where there is none, write the first one.

        Raises:
            ValueError: it is damaged, or of another run; or weights from before it are gone.
        """
        path = self.folder / "resume.ckpt"
        if not self.fabric.broadcast(path.exists()):
            self.save()
            return
        try:
            state = np.memmap(path, mode="r")
            if hashlib.sha256(state[:-32].data).digest() != state[-32:].tobytes():
                raise ValueError("its checksum does not fit")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            numbers, rng = checkpoint["rest"], checkpoint["rng"]
        except Exception as error:
            raise ValueError(f"folder: {path} is damaged or no checkpoint; remove it to start anew: {error}") from error
        refuse_another(numbers["settings"], self.settings, path)
        if sentence := missing_of(self.folder, numbers | dict(status="interrupted")):
            raise ValueError(sentence)
        if numbers["step"]:  # at 0 there is no optimizer's state, and asked to load none, FSDP makes one
            self.fabric.load(path, dict(model=self.parallel, optimizer=self.optimizer), weights_only=True)
        if self.scaler:
            self.scaler.load_state_dict(checkpoint["scaler"])
        torch.set_rng_state(rng["cpu"])
        if "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"])
        self.step, self.losses, self.skipped, self.zeros = (numbers[k] for k in ("step", "losses", "skipped", "zeros"))
        self.before = numbers["seconds"]

    def end(self) -> dict:
        """Write run.json, and remove what only an unfinished run needs.

        Raises:
            ValueError: weights that it wrote are gone.
        """
        result = dict(settings=self.settings, status=self.status or "done", losses=self.losses, skipped=self.skipped)
        result |= dict(zero_gradients=self.zeros, dtype=str(self.dtype).removeprefix("torch."))
        result |= dict(seconds=round(self.before + time.monotonic() - self.started, 2), divergence=self.divergence)
        missing = self.fabric.broadcast(missing_of(self.folder, result))
        if missing:
            raise ValueError(missing)
        if self.fabric.global_rank == 0:
            with files.replacing(self.folder / "run.json") as path:
                write_result(path, result)
            for path in [*self.folder.glob(".*"), self.folder / "resume.ckpt"]:
                path.unlink(missing_ok=True)  # what a killed run left half-written too
        self.fabric.barrier()
        return result
