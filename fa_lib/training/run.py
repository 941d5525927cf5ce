"""One training run, on one CPU thread or one CUDA device. Killed and started again, it ends with the same bits."""

import hashlib
import importlib.metadata
import io
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save
from tqdm import tqdm

from fa_lib import kernels
from fa_lib.execution import files, folder_lock
from fa_lib.execution.fingerprint import code_version
from fa_lib.training import data
from fa_lib.training.config import OPTIMIZERS, PRECISIONS, Config, RunSpec
from fa_lib.training.half_products import half_products
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

LIBRARIES = ("diffusers", "transformers")

Watch = Callable[[int], Callable | None]


def settings_of(spec: RunSpec) -> dict:
    """Build the settings that a run's folder keeps.

    Returns:
        dict: the fields of the RunSpec, of its Arm and of its Config side by side, and version: of the libraries and of
        the code, that is of this module, of what it imports, and of the kernel.

    Raises:
        ValueError: there is no such kernel, or an argument does not fit; it is named, with what is accepted.
    """
    if spec.arm.precision not in PRECISIONS:
        raise ValueError(f"precision: got {spec.arm.precision!r}; accepted are {', '.join(PRECISIONS)}")
    for name in ("steps", "every"):
        value = getattr(spec, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: got {value!r}; accepted is a whole number from 1")
    if spec.device not in (accepted := ["cpu", *["cuda"] * torch.cuda.is_available()]):
        raise ValueError(f"device: got {spec.device!r}; accepted here is {' or '.join(accepted)}")
    code = code_version(train, [dict(device=spec.device)], uses=[kernels.get(spec.arm.kernel)])[:16]
    version = " ".join([code, *map(importlib.metadata.version, LIBRARIES)])
    rest = dict(seed=spec.seed, steps=spec.steps, every=spec.every, device=spec.device, version=version)
    return asdict(spec.arm) | asdict(spec.config) | rest


def check_kernel(name: str, kernel: Callable, config: Config, dtype: torch.dtype, device: str | torch.device) -> None:
    """Refuse a kernel that cannot do what the model will ask: self- and cross-attention, forward and backward.

    It is called on zeros: q (2, heads, tokens, head_dim); k and v the same, or (2, heads, text_bytes, head_dim).

    Raises:
        ValueError: the kernel raised; with the kernel's message.
    """
    for kind, keys in (("self", config.tokens), ("cross", config.text_bytes)):
        q, k, v = (
            torch.zeros(2, config.heads, n, config.head_dim, dtype=dtype, device=device, requires_grad=True)
            for n in (config.tokens, keys, keys)
        )
        try:
            kernel(q, k, v).backward(torch.ones_like(q))
        except Exception as error:
            call = f"{kind}-attention of {config.tokens} queries, {keys} keys, head_dim {config.head_dim}"
            raise ValueError(
                f"kernel: {name!r} cannot do what the model asks, {call}, {dtype} on {device}, no mask: {error}"
            ) from error


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Make a computation repeat its bits: one thread on a CPU (results differ between one and two), deterministic code
    on a GPU. device: "cpu" or "cuda".
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


def train(spec: RunSpec, folder: str | Path, *, watch: Watch | None = None, progress: bool = False) -> dict:
    """Train one model, from where an interrupted run in `folder` stopped.

    The batch, its noise and its timesteps are those of (seed, step), whatever the arm and the device.

    Args:
        spec: what to train, and on what.
        folder: for weights-<step>.safetensors, at the steps of `run_folder.checkpoints`; run.json when it has ended;
            meanwhile resume.ckpt.
        watch: called with each step's number before it; gives a probe for its attention calls, or None.
        progress: show a bar.

    Returns:
        dict, as in run.json: settings, status ("done" or "diverged at step n"), losses, skipped (steps that the loss
        scaler left out), dtype (attention's), seconds. The weights files of a run that diverged are finite.

    Raises:
        ValueError: an argument does not fit, the kernel cannot do what the model asks, or the folder holds another
            run or a damaged checkpoint, or is in use; before the first step.
    """
    folder, settings = Path(folder), settings_of(spec)
    if result := finished(folder, settings):
        return result
    with repeatable(spec.device):
        run = Run(spec, settings, folder)
        images, captions = data.shapes(spec.config.images, spec.config.image_size, spec.seed)
        with folder_lock.locked_folder(folder):
            if result := finished(folder, settings):  # by the process that held it
                return result
            run.resume()
            order = data.mixed(spec.seed, spec.arm.order)
            batches = data.batches(images, captions, spec.config.batch, order, start=run.step)
            bar = tqdm(total=spec.steps, initial=run.step, unit="step", disable=not progress)
            with half_products(spec.dtype, spec.device), bar:
                while run.step < spec.steps and not run.status:
                    run.advance(*next(batches), watch)
                    bar.update()
            return run.end()


class Run:
    """The state of a run, and what one step does to it.

    Args:
        spec: what to train. settings: of `settings_of`. folder: of the run.

    Raises:
        ValueError: the kernel cannot do what the model asks.
    """

    def __init__(self, spec: RunSpec, settings: dict, folder: Path):
        self.spec, self.config, self.dtype = spec, spec.config, spec.dtype
        self.settings, self.folder, self.started = settings, folder, time.monotonic()
        self.checkpoints = frozenset(checkpoints(spec.steps, spec.every))
        arm, kernel = spec.arm, kernels.get(spec.arm.kernel)
        check_kernel(arm.kernel, kernel, self.config, self.dtype, spec.device)
        self.model = TextToImage(self.config, kernel, data.mixed(spec.seed, arm.init))
        if arm.perturb:
            draw = data.generator(spec.seed, 1)
            for p in self.model.parameters():
                factor = 1 + arm.perturb * torch.randn(p.shape, generator=draw, dtype=torch.float64)
                p.data.copy_(p.detach().double() * factor)
        self.model.to(spec.device, torch.float64 if arm.precision == "64-true" else torch.float32)
        optimizer = OPTIMIZERS[self.config.optimizer]
        self.optimizer = optimizer(self.model.parameters(), lr=self.config.lr, weight_decay=self.config.weight_decay)
        self.scaler = torch.amp.GradScaler(spec.device, enabled=arm.precision == "16-mixed")
        self.step, self.losses, self.skipped, self.status, self.before = 0, [], 0, "", 0.0
        torch.manual_seed(spec.seed)

    def advance(self, images: torch.Tensor, captions: list[str], watch: Watch | None) -> None:
        """Make one step on a batch: images, uint8 (batch, 3, size, size), and captions. Raise a RuntimeError where
        attention ran in another dtype than the run's."""
        config, model = self.config, self.model
        tensors = *noised(images, self.spec.seed, self.step, config.noise), model.tokens(captions)
        inputs = [x.to(self.spec.device) for x in tensors]
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * min(1, (self.step + 1) / (config.warmup + 1))
        model.attention.probe = watch(self.step) if watch else None
        loss = self.loss(*inputs)
        if model.attention.dtypes != {self.dtype}:
            raise RuntimeError(f"attention ran in {model.attention.dtypes}, and not in {self.dtype}")
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            self.status = f"diverged at step {self.step}"
            return
        self.scaler.scale(loss).backward()
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < scale
        self.optimizer.zero_grad()
        self.step += 1
        if self.step in self.checkpoints:
            if all(p.isfinite().all() for p in model.parameters()):
                self.save()
            else:  # the loss was finite, what it moved the weights to is not
                self.status = f"diverged at step {self.step}"

    def loss(self, noisy, timesteps, velocity, tokens) -> torch.Tensor:
        """Compute the mean square error of the model's velocity, a tensor of one number; of `forward`'s inputs."""
        with torch.autocast(self.spec.device, dtype=self.dtype, enabled="mixed" in self.spec.arm.precision):
            predicted = self.model(noisy.to(self.dtype), timesteps, tokens)
        return (predicted.float() - velocity).square().mean()

    def save(self) -> None:
        """Write the weights and resume.ckpt, all that a resumed run needs: each file is complete or not there."""
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.model.named_parameters()}
        with files.replacing(weights(self.folder, self.step)) as path:
            path.write_bytes(save(tensors, {"sha256": checksum(tensors)}))
        states = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler")}
        rng = {"cpu": torch.get_rng_state()}
        if self.spec.device == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()
        numbers = dict(step=self.step, losses=self.losses, skipped=self.skipped)
        numbers |= dict(settings=self.settings, seconds=self.before + time.monotonic() - self.started)
        file = io.BytesIO()
        torch.save(states | dict(rng=rng, numbers=numbers), file)
        file.write(hashlib.sha256(file.getbuffer()).digest())  # torch.load checks nothing
        with files.replacing(self.folder / "resume.ckpt") as path:
            path.write_bytes(file.getbuffer())

    def resume(self) -> None:
        """Go on from the folder's checkpoint; where there is none, write the first one.

        Raises:
            ValueError: it is damaged, or of another run; or weights from before it are gone.
        """
        path = self.folder / "resume.ckpt"
        if not path.exists():
            self.save()
            return
        try:
            content = path.read_bytes()
            if hashlib.sha256(content[:-32]).digest() != content[-32:]:
                raise ValueError("its checksum does not fit")
            checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            numbers, rng = checkpoint["numbers"], checkpoint["rng"]
        except Exception as error:
            raise ValueError(f"folder: {path} is damaged or no checkpoint; remove it to start anew: {error}") from error
        refuse_another(numbers["settings"], self.settings, path)
        if sentence := missing_of(self.folder, numbers | dict(status="interrupted")):
            raise ValueError(sentence)
        for name in ("model", "optimizer", "scaler"):
            getattr(self, name).load_state_dict(checkpoint[name])
        torch.set_rng_state(rng["cpu"])
        if "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"])
        self.step, self.losses, self.skipped = (numbers[k] for k in ("step", "losses", "skipped"))
        self.before = numbers["seconds"]

    def end(self) -> dict:
        """Write run.json, and remove what only an unfinished run needs.

        Raises:
            ValueError: weights that it wrote are gone.
        """
        result = dict(settings=self.settings, status=self.status or "done", losses=self.losses, skipped=self.skipped)
        result |= dict(dtype=str(self.dtype).removeprefix("torch."))
        result |= dict(seconds=round(self.before + time.monotonic() - self.started, 2))
        if missing := missing_of(self.folder, result):
            raise ValueError(missing)
        with files.replacing(self.folder / "run.json") as path:
            write_result(path, result)
        for path in [*self.folder.glob(".*"), self.folder / "resume.ckpt"]:
            path.unlink(missing_ok=True)  # what a killed run left half-written too
        return result
