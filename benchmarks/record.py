"""What only a GPU can show: `python -m benchmarks.record` measures it, on a machine with a CUDA GPU.

It writes data/recorded/<the GPU>, whose tables the notebooks draw. Each step is a process that ends within ten minutes;
a step whose table exists is not made again, so the same command resumes. `--device cpu` rehearses all steps in small,
into build/recorded/cpu. docs/gpu/recorded.md says what each step shows.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pandas as pd
import torch
import yaml
from safetensors.torch import load_file

from attention_check.checks.shapes import measure_shapes
from attention_check.isolation.calls import call_kernel
from fa_lib import Format, draw, kernels, round_to, sweep
from fa_lib.execution.paths import GPU, NOTEBOOKS, RECORDED, ROOT, build
from fa_lib.execution.pools import workers
from fa_lib.execution.results import save
from fa_lib.experiments.validation import agree
from fa_lib.kernels.rule import REFERENCE_KERNELS, rule

LIMIT_S = 600  # of a step
FORMATS, INPUTS = ["BF16", "FP16"], ["uniform", "normal"]
FLASH = ["attention_gallery.torch_kernels:torch_flash"]
FLASH += ["attention_gallery.flash_attn_kernels:flash_attn"] if importlib.util.find_spec("flash_attn") else []
OTHERS = [f"attention_gallery.torch_kernels:torch_{name}" for name in ("cudnn", "efficient", "math", "varlen")]
SHAPES = ["97", "113 x 203", "causal 203", "GQA 384", "1024", "causal 2048"]
FA2_BITS = GPU / "fa2_bits.safetensors"  # what the machine gave for FlashAttention-2: written by `make original`
FA2_CALLS = [*product(FORMATS, INPUTS, (False, True))]  # format, inputs, causal
FA2_SHAPE, HEADS = (1, 1, 512, 64), 32  # of one head; all heads are equal, and too many for keys to be split
MODELLED = {(8, 0): "A100", (9, 0): "H100"}  # by compute capability


def validation(device: str, out: Path) -> None:
    """Write 01_kernels, torch's flash kernel against its model, and 01_kernels.rule, its errors by the rule."""
    scale = NOTEBOOKS / "scales" / f"{dict(cuda='gpu', cpu='quick')[device]}.yaml"
    given = dict(heads=1, seeds=1, long_shapes=["97"]) | yaml.safe_load(scale.read_text())["01_kernels"]
    shared = dict(distribution=INPUTS, device=device)
    sizes = shared | dict(n=given["lengths"], head_dim=64, heads=given["heads"], fmt=given["formats"])
    sizes |= dict(seed=range(given["seeds"]))
    of_rule = shared | dict(fmt=FORMATS, seed=0, shape=given["shapes"], head_dim=given["head_dims"])
    of_long = of_rule | dict(shape=given["long_shapes"], head_dim=given["long_head_dims"], gradients=False)
    names = dict(names=["flash", *REFERENCE_KERNELS])
    table = pd.concat([sweep(rule, of_rule, fixed=names), sweep(rule, of_long, fixed=names)])
    save(out, "01_kernels", sizes | dict(rule=of_rule), sweep(agree, sizes), more=dict(rule=table))


def backends(device: str, out: Path) -> None:
    """Write backends_rule: errors of torch's kernels and of flash-attn's by the rule, with gradients."""
    grid = dict(kernel=FLASH + OTHERS, head_dim=[64, 128, 256], shape=SHAPES, fmt=FORMATS, seed=range(3))
    if device == "cpu":
        grid |= dict(kernel=FLASH + OTHERS[2:3], head_dim=64, shape=["97"], fmt="BF16", seed=0)
    fixed = dict(distribution="normal", device=device)
    with workers(8 if device == "cuda" else 0) as pool:
        save(out, "backends_rule", grid | fixed, sweep(measure_shapes, grid, fixed=fixed, executor=pool))


def fa2_inputs(fmt: str, distribution: str) -> list[torch.Tensor]:
    """Draw Q, K, V of one head, of FA2_SHAPE each, in a format's dtype."""
    return [round_to(x, fmt).to(Format.of(fmt).dtype) for x in draw(distribution, 0, FA2_SHAPE)]


def fa2_key(gpu: str, fmt: str, distribution: str, causal: bool) -> str:
    """Return the name of a call's output in FA2_BITS: "H100 BF16 normal causal"."""
    return f"{gpu} {fmt} {distribution}{' causal' if causal else ''}"


def gpu_machine(device: str, out: Path) -> None:
    """Write gpu_machine: whether FlashAttention-2 gives here the bits that the PTX machine gave for its CUDA code."""
    gpu = MODELLED.get(torch.cuda.get_device_capability(), "H100") if device == "cuda" else "H100"
    outputs, rows = load_file(FA2_BITS), []
    for kernel, (fmt, distribution, causal) in product(FLASH, FA2_CALLS):
        q, k, v = (x.expand(1, HEADS, *FA2_SHAPE[2:]).contiguous().to(device) for x in fa2_inputs(fmt, distribution))
        answer = call_kernel(kernels.plain(kernel), q, k, v, **(dict(causal=True) if causal else {}))
        row = dict(kernel=kernel, fmt=fmt, distribution=distribution, causal=causal, gpu=gpu, outcome=answer.outcome)
        if answer.o is not None:
            machine = outputs[fa2_key(gpu, fmt, distribution, causal)].double()
            difference = (answer.o[:, :1].cpu().double() - machine).abs()
            row |= dict(different=(difference > 0).double().mean().item(), largest=difference.max().item())
        rows.append(row | dict(problem=answer.problem))
    save(out, "gpu_machine", dict(shape=FA2_SHAPE, heads=HEADS), pd.DataFrame(rows))


def gallery(device: str, out: Path) -> None:
    """Write 14_gallery, verdicts on the kernels of other projects that are installed; findings go to <out>/gallery."""
    from attention_gallery.catalogue import ON_CUDA
    from attention_gallery.commands.judging import JudgingSettings, judge_all

    keys, depth = ([*ON_CUDA], "gpu") if device == "cuda" else (["torch_math"], "rehearsal")
    settings = JudgingSettings(f"{out / 'gallery'}", depth, device, limit_s=240)
    save(out, "14_gallery", dict(device=device, depth=depth), judge_all(keys, settings, print, jobs=6))


def speed(device: str, out: Path) -> None:
    """Write speed: seconds of forward and backward of the text-to-image model, with Flash and with Baseline in turn."""
    from fa_lib.training.config import Config
    from fa_lib.training.study import timing

    sizes, repeats = (["small", "large"], 50) if device == "cuda" else (["tiny"], 5)
    tables = [timing(Config.load(size), repeats=repeats, device=device).assign(size=size, process=0) for size in sizes]
    table = pd.concat(tables).query("repeat >= @repeats // 5")  # a GPU's clocks take some passes to rise
    save(out, "speed", dict(sizes=sizes, repeats=repeats, precision="bf16-mixed"), table)


STEPS = {  # table -> the step that writes it
    "gpu_machine": gpu_machine, "01_kernels": validation, "backends_rule": backends, "speed": speed,
    "14_gallery": gallery,
}  # fmt: skip


def main() -> int:
    """Make the steps whose tables are missing; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, help="folder; else data/recorded/<the GPU>, or build/recorded/cpu")
    parser.add_argument("--step", choices=STEPS, help="make this step alone, in this process")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu rehearses")
    name = re.sub(r"\W+", "_", torch.cuda.get_device_name()) if given.device == "cuda" else ""
    out = (given.out or (RECORDED / name if name else build() / "recorded" / "cpu")).resolve()
    if given.step:
        STEPS[given.step](given.device, out)
        return 0
    failed = 0
    command = [sys.executable, "-m", "benchmarks.record", "--device", given.device, "--out", f"{out}", "--step"]
    for step in [step for step in STEPS if not (out / "data" / "results" / f"{step}.csv").exists()]:
        try:
            problem = subprocess.run([*command, step], cwd=ROOT, timeout=LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            problem = f"not done after {LIMIT_S} s"
        print(f"{step}: {f'failed: {problem}' if problem else 'done'}", flush=True)
        failed += bool(problem)
    return failed


if __name__ == "__main__":
    sys.exit(main())
