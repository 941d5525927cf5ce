"""On a CUDA device: the same emulated bits as on CPU, and real kernels against their model and the rule."""

import os

import pytest
import torch

from fa_lib import BF16, FP16, Precision, Tiling, draw, kernels, round_to
from fa_lib.training.config import Arm, Config, RunSpec
from fa_lib.training.run import train
from fa_lib.training.run_folder import load_weights, weights

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for the runs below: read at the first product on a GPU
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "toward_zero"])
def test_round_to_is_the_cpus(fmt, mode):
    x = torch.randn(100_000, dtype=torch.float64) * 2.0 ** torch.randint(-150, 150, (100_000,))
    assert torch.equal(round_to(x.cuda(), fmt, mode).cpu(), round_to(x, fmt, mode))


@pytest.mark.parametrize("algorithm", ["fa1", "fa2"])
def test_emulated_bits_are_the_cpus(algorithm):
    q, k, v = draw("uniform", 0, (1, 2, 500, 64))
    call = dict(tiling=Tiling(64, 64), precision=Precision.uniform(BF16), algorithm=algorithm, causal=True)
    on_gpu = kernels.tiled(*(x.cuda() for x in (q, k, v)), **call)
    assert torch.equal(on_gpu.cpu(), kernels.tiled(q, k, v, **call))


@pytest.mark.parametrize("kernel", ["unfused", "flash", "stepwise"])
def test_a_training_run_is_the_same_run_again(kernel, tmp_path):
    config = Config.load("tiny")
    for name in ("a", "b"):
        result = train(RunSpec(Arm(kernel=kernel), 0, config, steps=10, every=10, device="cuda"), tmp_path / name)
        assert result["status"] == "done" and result["dtype"] == "bfloat16"
    a, b = (load_weights(weights(tmp_path / name, 10)) for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_flash_on_cuda_cannot_do_is_refused_before_training(tmp_path):
    spec = RunSpec(Arm(kernel="flash", precision="32-true"), 0, Config.load("tiny"), steps=3, every=1, device="cuda")
    with pytest.raises(ValueError, match=r"^kernel: 'flash' cannot do .*float32"):
        train(spec, tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name, emulated", [("unfused", "materialized"), ("stepwise", "uniform")])
def test_attention_in_torchs_operations_is_what_is_emulated(name, emulated):
    q, k, v = (x.bfloat16().cuda() for x in draw("normal", 0, (2, 300, 32)))
    precision = getattr(Precision, emulated)(BF16)
    more = dict(tiling=Tiling(300, 64), algorithm="fa1") if name == "stepwise" else {}
    theirs = kernels.get("tiled" if more else "reference")(q, k, v, precision=precision, **more)
    assert (kernels.get(name)(q, k, v) == theirs).double().mean() > 0.95
