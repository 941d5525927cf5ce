"""One training run: `python -m fa_lib.training.run --arm flash --steps 200 --out build/flash`.

A run is killed and started again without a trace: it ends with the same bits. On Lightning Fabric, so that the same
script runs on one CPU, one GPU, or several of them by DDP or FSDP, also under torchrun and srun.
"""

import argparse
import hashlib
import io
import json
import logging
import math
import time
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.strategies import ModelParallelStrategy
from safetensors.torch import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map
from tqdm import tqdm

from fa_lib.paths import replacing
from fa_lib.sweep import digest
from fa_lib.training import data
from fa_lib.training.half import HalfProducts
from fa_lib.training.model import Config, TextToImage, noised
from fa_lib.training.settings import NODES, PRECISIONS, STARTED, able, checksum, describe, finished, same, weights

_QK = ("attn1.to_q.weight", "attn1.to_k.weight")
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces each run's precision
warnings.filterwarnings("ignore", "The `srun` command is available")  # wherever Slurm is installed


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
            run or a damaged checkpoint; before the first step.
    """
    settings = describe(arm, seed, config, steps, every, source, streaming, device, devices, strategy)
    folder = Path(folder)
    held = finished(folder, settings)
    if held:
        return held
    with _repeatable(device):
        fabric = _fabric(arm.precision, device, devices, strategy)
        run = _Run(fabric, arm, seed, config, settings, folder)
        if source == "shapes":
            images = data.shapes(config.images, config.image_size, seed)
        else:
            images = data.load(source, config.image_size, streaming=streaming)
        images.check(config.batch)
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
            if all(p.isfinite().all() for p in self.weights().values()):
                self.save()
            else:  # the loss was finite, what it moved the weights to is not
                self.status = f"diverged at step {self.step}"

    def zero_gradients(self):
        """Share of exactly zero gradients in the transformer, and in the Q and K projections of its self-attention."""
        gradients = {n: _whole(p.grad) for n, p in self.model.transformer.named_parameters()}
        everywhere, inside = gradients.values(), [g for n, g in gradients.items() if n.endswith(_QK)]
        return [torch.cat([g.reshape(-1) for g in of]).eq(0).double().mean().item() for of in (everywhere, inside)]

    def weights(self):
        return {n: _whole(p.detach()).contiguous() for n, p in self.model.named_parameters()}

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
        held, whole = self.weights(), tree_map(_whole, self.state())  # on every process; the first one writes them
        if self.fabric.global_rank == 0:
            with replacing(weights(self.folder, self.step)) as path:
                path.write_bytes(save(held, {"sha256": checksum(held)}))
            state = io.BytesIO()
            torch.save(whole, state)
            with replacing(self.folder / "resume.ckpt") as path:  # torch.load checks nothing: a checksum at the end
                path.write_bytes(state.getvalue() + hashlib.sha256(state.getvalue()).digest())
        self.fabric.barrier()

    def resume(self):
        path = self.folder / "resume.ckpt"
        if not self.fabric.broadcast(path.exists()):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.save()
            return
        try:
            state = path.read_bytes()
            if hashlib.sha256(state[:-32]).digest() != state[-32:]:
                raise ValueError("its checksum does not fit")
            held = torch.load(io.BytesIO(state[:-32]), map_location="cpu", weights_only=True)
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
            for path in [self.folder / "resume.ckpt", *self.folder.glob(".*")]:  # what a killed one left half-written
                path.unlink(missing_ok=True)
        self.fabric.barrier()
        return result


def _whole(x):
    """All of a tensor of which FSDP has a part here; every process must ask."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def _shard(model, mesh):
    for part in (*model.transformer.transformer_blocks, model):
        fully_shard(part, mesh=mesh["data_parallel"])
    return model


def _fabric(precision, device, devices, strategy):
    # Fabric's own "16-mixed" becomes BF16 on a CPU, without a word
    plugin = None
    if precision in ("16-mixed", "16-mixed-unscaled"):
        scaler = torch.amp.GradScaler(device, enabled=precision == "16-mixed")
        plugin = MixedPrecision("16-mixed", device=device, scaler=scaler)
    sizes = dict(data_parallel_size=devices, tensor_parallel_size=1)
    sharded = ModelParallelStrategy(_shard, save_distributed_checkpoint=False, **sizes)
    fabric = Fabric(
        accelerator=device,
        devices=devices // NODES,
        num_nodes=NODES,
        strategy=sharded if strategy == "fsdp" else "ddp" if devices > 1 else "auto",
        precision=None if plugin else precision,
        plugins=plugin,
    )
    fabric.launch()
    return fabric


@contextmanager
def _repeatable(device):
    """The same bits again: one thread on a CPU (results differ between one and two), deterministic code on a GPU."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # FP32 is FP32, and products of 16-bit formats are summed in it
    flags = [(cudnn, "allow_tf32"), (matmul, "allow_tf32")]
    flags += [(matmul, f"allow_{fmt}_reduced_precision_reduction") for fmt in ("fp16", "bf16")]
    before = [getattr(of, name) for of, name in flags]
    if device == "cpu":
        torch.set_num_threads(1)
    else:
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
