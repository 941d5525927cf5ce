"""One training run: `python -m fa_lib.training.run --arm flash --steps 200 --out build/flash`.

A run is killed and started again without a trace: it ends with the same bits. On Lightning Fabric, so that the same
script runs on one CPU, one GPU, or several of them by DDP or FSDP, also under torchrun and srun.
"""

import argparse
import hashlib
import io
import json
import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch.utils._pytree import tree_map
from tqdm import tqdm

from fa_lib.execution.files import held as alone
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import digest
from fa_lib.training import data
from fa_lib.training.arm import PRECISIONS
from fa_lib.training.devices import begin, here, repeatable, whole
from fa_lib.training.fp16_cpu import HalfProducts
from fa_lib.training.model import Config, TextToImage, noised
from fa_lib.training.preflight import STARTED, able, describe
from fa_lib.training.run_folder import checksum, finished, same, weights

_QK = ("attn1.to_q.weight", "attn1.to_k.weight")


def train(arm, seed, config, steps, folder, *, every, source="shapes", streaming=False, device="cpu", devices=1,
          strategy="ddp", watch=None, progress=False):  # fmt: skip
    """Train one model, from where an interrupted run in `folder` stopped.

    The batch, its noise and its timesteps are those of (seed, step), whatever the arm, the device and the number of
    processes. On a CPU a run takes one thread.

    Args:
        arm: an Arm. seed: of data, noise and initial weights. config: a Config. steps: of the optimizer.
        folder: for weights-<step>.safetensors, every `every` steps and at 0 and the end; run.json when it has ended;
            meanwhile resume.ckpt.
        source: "shapes", or a data set as `data.load` takes it, then with streaming.
        device: "cpu" or "cuda". devices: processes; each takes its part of the batch. Where torchrun or srun started
            several, their number. strategy: of several, "ddp" or, for a model that fits no device, "fsdp".
        watch: called with each step's number before it; gives a probe for its attention calls, or None.
        progress: show a bar.

    Returns:
        dict, as in run.json: settings, status ("done" or "diverged at step n"), losses, skipped (steps that the loss
        scaler left out), zero_gradients (rows of step, share of exactly zero gradients in the transformer, the same in
        its self-attention's Q and K projections), dtype (attention's), seconds.

    Raises:
        ValueError: an argument does not fit, the kernel cannot do what the model asks, or the folder holds another
            run or a damaged checkpoint, or is in use; before the first step.
    """
    settings = describe(arm, seed, config, steps, every, source, streaming, device, devices, strategy)
    folder = Path(folder)
    held = finished(folder, settings)
    if held:
        return held
    with repeatable(device), ExitStack() as stack:
        fabric = begin(arm.precision, device, devices, strategy)
        run = _Run(fabric, arm, seed, config, settings, folder)
        if source == "shapes":
            images = data.shapes(config.images, config.image_size, seed)
        else:
            images = data.load(source, config.image_size, streaming=streaming)
        images.check(config.batch)
        refused = ""
        if fabric.global_rank == 0:
            try:
                stack.enter_context(alone(folder))
                held = finished(folder, settings)  # by the process that held it
            except ValueError as error:
                refused = str(error)
        refused, held = fabric.broadcast((refused, held))
        if refused:
            raise ValueError(refused)
        if held:
            return held
        run.resume()
        batches = images.batches(config.batch, data.mixed(seed, arm.order), start=run.step)
        halves = HalfProducts() if device == "cpu" and run.dtype == torch.float16 else nullcontext()
        bar = tqdm(total=steps, initial=run.step, unit="step", disable=not progress or fabric.global_rank > 0)
        with halves, bar:
            while run.step < steps and not run.status:
                run.advance(*next(batches), watch)
                bar.update()
        return run.end()


class _Run:
    """The state of a run, and what one step does to it."""

    def __init__(self, fabric, arm, seed, config, settings, folder):
        self.fabric, self.seed, self.config, self.settings, self.folder = fabric, seed, config, settings, folder
        self.dtype, self.started = PRECISIONS[arm.precision], time.monotonic()
        able(arm.kernel, config, self.dtype, fabric.device)
        self.model = TextToImage(config, arm.kernel, data.mixed(seed, arm.init))
        if arm.perturb:
            draw = data.generator(seed, 1)
            for p in self.model.parameters():
                factor = 1 + arm.perturb * torch.randn(p.shape, generator=draw, dtype=torch.float64)
                p.data.copy_(p.detach().double() * factor)
        self.parallel = fabric.setup_module(self.model)  # first: FSDP puts other parameters in
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.optimizer = fabric.setup_optimizers(optimizer)
        self.scaler = getattr(fabric._precision, "scaler", None)
        self.step, self.losses, self.skipped, self.zeros, self.status, self.before = 0, [], 0, [], "", 0.0
        torch.manual_seed(seed)

    def advance(self, images, captions, watch):
        """One step on its part of a batch."""
        config, fabric = self.config, self.fabric
        part = slice(fabric.global_rank, None, fabric.world_size)
        tensors = *noised(images, self.seed, self.step), *self.model.tokens(captions)
        noisy, timesteps, velocity, tokens, mask = (fabric.to_device(x[part]) for x in tensors)
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * min(1, (self.step + 1) / (config.warmup + 1))
        self.model.attention.probe = watch(self.step) if watch else None
        loss = (self.parallel(noisy, timesteps, tokens, mask) - velocity.to(noisy.dtype)).square().mean()
        if self.model.attention.dtypes != {self.dtype}:
            raise RuntimeError(f"attention ran in {self.model.attention.dtypes}, and not in {self.dtype}")
        self.losses.append(fabric.all_reduce(loss.detach()).item())
        if not math.isfinite(self.losses[-1]):
            self.status = f"diverged at step {self.step}"
            return
        fabric.backward(loss)
        if self.step % self.settings["every"] == 0:
            self.zeros.append([self.step, *self.zero_gradients()])
        scale = self.scaler.get_scale() if self.scaler else 1.0
        self.optimizer.step()
        self.skipped += bool(self.scaler and self.scaler.get_scale() < scale)
        self.optimizer.zero_grad()
        self.step += 1
        if self.step % self.settings["every"] == 0 or self.step == self.settings["steps"]:
            if not self.sum([(~here(p).isfinite()).sum() for p in self.model.parameters()]):
                self.save()
            else:  # the loss was finite, what it moved the weights to is not
                self.status = f"diverged at step {self.step}"

    def zero_gradients(self):
        """Share of exactly zero gradients in the transformer, and in the Q and K projections of its self-attention."""
        gradients = {n: here(p.grad) for n, p in self.model.transformer.named_parameters()}
        both = gradients.values(), [g for n, g in gradients.items() if n.endswith(_QK)]
        return [self.sum([(g == 0).sum() for g in of]) / self.sum([g.numel() for g in of]) for of in both]

    def sum(self, counts):
        """Of counts, over the processes too."""
        counted = torch.tensor(sum(map(int, counts)), device=self.fabric.device)
        return self.fabric.all_reduce(counted, reduce_op="sum").item()

    def state(self):
        rng = {"cpu": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()
        scaler = self.scaler.state_dict() if self.scaler else {}
        rest = dict(step=self.step, losses=self.losses, skipped=self.skipped, zeros=self.zeros)
        rest |= dict(settings=self.settings, seconds=self.before + time.monotonic() - self.started)
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        return dict(model=model, optimizer=optimizer, scaler=scaler, rng=rng, rest=rest)

    def save(self):
        """The weights, and what it takes to go on: each file whole or not there."""
        state = tree_map(partial(whole, first=self.fabric.global_rank == 0), self.state())
        if self.fabric.global_rank == 0:
            held = {n: state["model"][n].contiguous() for n, _ in self.model.named_parameters()}
            with replacing(weights(self.folder, self.step)) as path:
                path.write_bytes(save(held, {"sha256": checksum(held)}))
            file = io.BytesIO()
            torch.save(state, file)
            file.write(hashlib.sha256(file.getbuffer()).digest())  # torch.load checks nothing
            with replacing(self.folder / "resume.ckpt") as path:
                path.write_bytes(file.getbuffer())
        self.fabric.barrier()

    def resume(self):
        path = self.folder / "resume.ckpt"
        if not self.fabric.broadcast(path.exists()):
            self.save()
            return
        try:
            state = np.memmap(path, mode="r")
            if hashlib.sha256(state[:-32]).digest() != state[-32:].tobytes():
                raise ValueError("its checksum does not fit")
            held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            rest, rng = held["rest"], held["rng"]
        except Exception as error:
            raise ValueError(f"folder: {path} is damaged or no checkpoint; remove it to start anew: {error}") from error
        same(rest["settings"], self.settings, path)
        if rest["step"]:  # at 0 there is no optimizer's state, and asked to load none, FSDP makes one
            self.fabric.load(path, dict(model=self.parallel, optimizer=self.optimizer), weights_only=True)
        if self.scaler:
            self.scaler.load_state_dict(held["scaler"])
        torch.set_rng_state(rng["cpu"])
        if "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"])
        self.step, self.losses, self.skipped, self.zeros = (rest[k] for k in ("step", "losses", "skipped", "zeros"))
        self.before = rest["seconds"]

    def end(self):
        result = dict(settings=self.settings, status=self.status or "done", losses=self.losses, skipped=self.skipped)
        result |= dict(zero_gradients=self.zeros, dtype=str(self.dtype).removeprefix("torch."))
        result |= dict(seconds=round(self.before + time.monotonic() - self.started, 2))
        if self.fabric.global_rank == 0:
            with replacing(self.folder / "run.json") as path:
                path.write_text(json.dumps(result | dict(checksum=digest(result))))
            for path in [*self.folder.glob(".*"), self.folder / "resume.ckpt"]:
                path.unlink(missing_ok=True)  # what a killed run left half-written too
        self.fabric.barrier()
        return result


def main():
    from fa_lib.training.study import ARMS, arm_named

    parser = argparse.ArgumentParser(description="train one arm of the study")
    parser.add_argument("--arm", default="baseline", help=f"one of {', '.join(ARMS)}")
    parser.add_argument("--kernel", help="instead of the arm's: a registered name or package.module:function")
    parser.add_argument("--precision", help=f"instead of the arm's: one of {', '.join(PRECISIONS)}")
    parser.add_argument("--config", default="small", help="a file of fa_lib/training, or a path that ends in .yaml")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=25, help="steps between weights written")
    parser.add_argument(
        "--data", default="shapes", help="shapes, a folder of captioned images or shards, or a hub name"
    )
    parser.add_argument("--streaming", action="store_true", help="never hold the data")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--devices", type=int, default=STARTED, help="processes; torchrun and srun tell it")
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"], help="of several processes")
    parser.add_argument(
        "--out", required=True, type=Path, help="folder for weights and checkpoint; an interrupted run goes on"
    )
    given = parser.parse_args()
    changes = {k: v for k, v in (("kernel", given.kernel), ("precision", given.precision)) if v}
    try:
        result = train(
            replace(arm_named(given.arm), **changes), given.seed, Config.load(given.config), given.steps, given.out,
            every=given.every, source=given.data, streaming=given.streaming, device=given.device, devices=given.devices,
            strategy=given.strategy, progress=True,
        )  # fmt: skip
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from error
    loss, seconds = result["losses"][-1], result["seconds"]
    print(f"{result['status']}, loss {loss:.4f}, {seconds:.0f} s, attention in {result['dtype']}")


if __name__ == "__main__":
    main()
