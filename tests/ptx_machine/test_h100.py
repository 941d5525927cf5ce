"""The machine against an H100: special functions, matrix units and whole kernels, as it computed them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from small_ptx import elementwise

from fa_lib.numerics.tensor_cores import TensorCore
from ptx_machine import Kernel, Structure
from ptx_machine.special_unit import SHORT, short

RESULTS = Path(__file__).parents[2] / "data" / "recorded" / "NVIDIA_H100_80GB_HBM3" / "data" / "results"
LAUNCHES = Path(__file__).with_name("h100")
WORDS = {  # keys of the samples, and PTX
    "ex2_ftz": "ex2.approx.ftz.f32", "ex2": "ex2.approx.f32", "lg2_ftz": "lg2.approx.ftz.f32",
    "lg2_f32": "lg2.approx.f32", "rcp_ftz": "rcp.approx.ftz.f32", "rcp_f32": "rcp.approx.f32",
    "rsqrt_ftz": "rsqrt.approx.ftz.f32", "rsqrt_f32": "rsqrt.approx.f32", "sqrt_ftz": "sqrt.approx.ftz.f32",
    "sqrt_f32": "sqrt.approx.f32", "div_ftz": "div.approx.ftz.f32", "div_f32": "div.approx.f32",
    "div_full_ftz": "div.full.ftz.f32", "div_full": "div.full.f32",
}  # fmt: skip
THREADS = 512
SAMPLES = 1 << 16
PRODUCTS = {"fp16": "FP16", "bf16": "BF16", "tf32": "TF32", "e4m3": "E4M3", "e5m2": "E5M2"}


def sampled_operands(count):
    """The operands that the H100 was given, float32 (2 SAMPLES,) each: first any bits, then sizes 2^-30 to 2^30."""
    chance, drawn = np.random.default_rng(0), []
    for _ in range(count):
        anything = chance.integers(0, 1 << 32, SAMPLES, dtype=np.uint32)
        sizes = np.ldexp(chance.uniform(1, 2, SAMPLES), chance.integers(-30, 30, SAMPLES)).astype(np.float32)
        usual = sizes * chance.choice([-1, 1], SAMPLES).astype(np.float32)
        drawn.append(np.concatenate([anything.view(np.float32), usual]))
    return drawn


def ran(words, operands, compiled, gpu="H100"):
    """An instruction on the machine: bits of its results, uint32 (n,), n a multiple of THREADS."""
    places = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    return elementwise(f"{words} {{out}}, {places}", operands, np.uint32, gpu, compiled, THREADS)


@pytest.mark.parametrize("key", WORDS)
def test_special_functions_have_its_bits_whatever_the_operand(key):
    with np.load(RESULTS / "hardware.samples.npz") as samples:
        kept, due = samples["kept"], samples[key]
    operands = [x[kept] for x in sampled_operands(2 if key.startswith("div") else 1)]
    assert np.array_equal(ran(WORDS[key], operands, compiled=True), due)
    few = [x[:THREADS] for x in operands]
    assert np.array_equal(ran(WORDS[key], few, compiled=False), due[:THREADS])


def test_only_a_gpu_that_was_measured_has_them():
    x = np.linspace(-8, 8, THREADS, dtype=np.float32)
    h100, a100 = (ran("ex2.approx.ftz.f32", [x], True, gpu) for gpu in ("H100", "A100"))
    assert 0 < (h100 != a100).mean() < 0.6 and np.abs(h100.astype(int) - a100.astype(int)).max() <= 2


def test_powers_of_two_are_exact_at_whole_numbers():
    x = np.arange(-126, 128, dtype=np.float32)  # below, an H100 squares 2^(x / 2)
    x = np.pad(x, (0, THREADS - x.size))
    found = ran("ex2.approx.f32", [x], True).view(np.float32)
    assert np.array_equal(found, np.exp2(x.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("name, kind", sorted(SHORT))
def test_functions_of_16_bits_have_its_bits(name, kind):
    """Every operand's result was recorded."""
    every = np.arange(1 << 16, dtype=np.uint16)
    words = f"{name}.approx{'.ftz' if (name, kind) == ('ex2', 'bf16') else ''}.{kind}"
    out = elementwise(f"{words} {{out}}, {{0}}", [every], np.uint16, "H100", threads=THREADS)
    assert np.array_equal(out, short(f"{name}_{kind}"))


@pytest.mark.parametrize("key", [path.stem for path in sorted(RESULTS.glob("hardware.*mma_*.npz"))])
def test_matrix_units_have_its_sums(key):
    with np.load(RESULTS / f"{key}.npz") as file:
        a, b, c, d = (torch.from_numpy(file[name]).double() for name in "abcd")
    unit, fmt, *result = key.removeprefix("hardware.").split("_")
    if unit == "mma" and fmt in ("e4m3", "e5m2"):  # two instructions of FP16: bytes 0, 1 of each 4, then bytes 2, 3
        pairs = [k for first in (0, 2) for k in range(32) if k % 4 in (first, first + 1)]
        sums = TensorCore.of("H100", "FP16")(a[:, pairs], b[:, pairs], torch.zeros_like(c))
        sums = sums.float() + c.float()  # c is added at the end
    else:
        sums = TensorCore.of("H100", PRODUCTS[fmt], result=PRODUCTS[result[0]] if result else None)(a, b, c)
    assert len(d) >= 1000 and torch.equal(sums.double(), d)


def run_on_machine(path):
    """Run a launch that was written down, and return the bytes of its memory afterwards."""
    with np.load(path) as file:
        about, parameters = json.loads(str(file["words"])), file["parameters"]
        memory = [torch.from_numpy(file[f"memory{i}"].copy()) for i in range(len(about["dtypes"]))]
    launched = Kernel((path.parent / f"{about['text']}.ptx").read_text(), about["entry"], gpu="H100")
    pointers = {place: memory[which][byte:] for place, which, byte in about["pointers"]}
    arguments = []
    for each in launched.entry.parameters:
        place = slice(each.offset, each.offset + each.size)
        value = pointers.get(each.offset, int.from_bytes(parameters[place].tobytes(), "little"))
        arguments.append(Structure({"": (0, each.size)}, each.size, {"": value}))
    launched(about["grid"], about["block"], about["shared"], *arguments, unwritten=about["unwritten"])
    return memory


@pytest.mark.parametrize("what", sorted({*pd.read_csv(LAUNCHES / "results.csv").what}))
def test_whole_kernels_leave_its_bytes(what):
    due = pd.read_csv(LAUNCHES / "results.csv").query("what == @what")
    after = run_on_machine(LAUNCHES / f"{due.launch.iloc[0]}.npz")
    for row in due.itertuples():
        assert hashlib.sha256(after[row.memory].numpy().tobytes()).hexdigest()[:16] == row.sha
