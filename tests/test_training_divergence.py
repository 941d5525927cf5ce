"""A loss that is not finite: the run says at which step, where the first NaN or infinity came up, and which weights are
still good."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from runs import QUICK, TINY, run
from safetensors.torch import save
from typer.testing import CliRunner

from fa_lib import kernels
from fa_lib.commands.cli import app
from fa_lib.training import nonfinite
from fa_lib.training.config import Arm
from fa_lib.training.model import TextToImage, noised
from fa_lib.training.run_folder import checksum, last_good, load_weights, weights

CALLS = []


def blown(q, k, v):
    """NaN from the 9th call on: 2 in the check before, 2 a step with one layer. The 9th is self-attention's."""
    CALLS.append(1)
    return kernels.unfused(q, k, v) * (math.nan if len(CALLS) > 8 else 1)


def blown_once(q, k, v):
    CALLS.append(1)
    return kernels.unfused(q, k, v) * (math.nan if len(CALLS) == 9 else 1)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o):
        return o.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


def blown_backward(q, k, v):
    """A kernel whose gradients are NaN from the 7th call on, those of the third step: after it weights are left where
    every = 1, and not where every = 4."""
    CALLS.append(1)
    o = kernels.unfused(q, k, v)
    return Backward.apply(o) if len(CALLS) > 6 else o


def of(kernel, folder, **options):
    CALLS.clear()
    return run(folder, Arm(kernel=f"test_training_divergence:{kernel}"), config=QUICK, steps=20, **options)


def test_run_json_names_step_layer_tensor_and_the_last_good_weights(tmp_path):
    result = of("blown", tmp_path)
    attention = "transformer.transformer_blocks.0.attn1"
    assert result["status"] == "diverged at step 3"
    assert result["divergence"] == dict(
        step=3, weights=None, repeated=True, module=attention, attention=dict(layer=0, kind="self", tensor="o"),
        last_good="weights-000002.safetensors",
    )  # fmt: skip
    held = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)  # JSON has no NaN
    assert held["divergence"] == result["divergence"] and held["losses"][3] is None
    again = of("blown", tmp_path)  # read back
    assert again["divergence"] == result["divergence"] and math.isnan(again["losses"][3])
    said = nonfinite.divergence_sentence(tmp_path)
    places = (f"diverged at step 3: {attention} ", "layer 0, self, o ", f"{tmp_path}/weights-000002.safetensors")
    assert all(place in said for place in places), said


def test_the_command_of_a_run_that_diverges_does_not_end_well(tmp_path):
    CALLS.clear()
    (tmp_path / "x.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in vars(QUICK).items()))
    words = ["--kernel", "test_training_divergence:blown", "--config", f"{tmp_path}/x.yaml", "--steps", "5"]
    done = CliRunner().invoke(app, ["dev", "train", *words, "--out", f"{tmp_path}/out"], prog_name="fa-lib")
    assert done.exit_code == 2 and "fa-lib: diverged at step 3" in done.stderr, done.output
    assert f"last good weights are {tmp_path}/out/weights-000002.safetensors" in done.stderr


def test_a_run_that_ends_well_has_none(tmp_path):
    assert run(tmp_path, config=QUICK)["divergence"] is None and nonfinite.divergence_sentence(tmp_path) == ""


def test_a_step_that_is_finite_again_is_told(tmp_path):
    found = of("blown_once", tmp_path)["divergence"]
    assert (found["step"], found["repeated"], found["module"], found["attention"]) == (3, False, None, None)
    assert "step again is finite" in nonfinite.divergence_sentence(tmp_path)


@pytest.mark.parametrize("every", [1, 4])
def test_weights_that_are_not_finite_are_named(every, tmp_path):
    result = of("blown_backward", tmp_path, every=every)
    found = result["divergence"]
    assert result["status"] == "diverged at step 3" and found["last_good"] == "weights-000002.safetensors"
    assert found["weights"] == "transformer.pos_embed.proj.weight"
    assert (found["repeated"], found["module"]) == ((None, None) if every == 1 else (True, "text.encoder.embed_tokens"))
    assert ", transformer.pos_embed.proj.weight " in nonfinite.divergence_sentence(tmp_path)


@pytest.fixture
def model():
    return TextToImage(replace(TINY, layers=2), kernels.unfused, 0)


def trace(model, scale=1.0):
    """`traced` of a step."""
    noisy, timesteps, velocity = noised(torch.zeros(2, 3, TINY.image_size, TINY.image_size, dtype=torch.uint8), 0, 0)
    forward = partial(model, noisy, timesteps, model.tokens(["a", "b"]))
    return nonfinite.traced(model, lambda: (forward() - velocity).mul(scale).square().mean())


WHERE = {
    "transformer_blocks.1.attn1.to_q": (1, "self", "q"),
    "transformer_blocks.1.attn2.to_v": (1, "cross", "v"),
    "transformer_blocks.0.ff.net.2": (1, "self", "q"),
    "caption_projection.linear_2": (0, "cross", "k"),
    "proj_out": None,
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_module_and_the_first_attention_call_are_found(where, value, model):
    def blow(_, __, output):
        output[0, ..., -1] = value

    model.transformer.get_submodule(where).register_forward_hook(blow)
    found = trace(model)
    attention = WHERE[where] and dict(zip(("layer", "kind", "tensor"), WHERE[where]))
    assert found == dict(repeated=True, module=f"transformer.{where}", attention=attention)
    hooks = [hook for each in model.modules() for hook in each._forward_hooks.values() if hook is not blow]
    assert not hooks and model.attention.probe is None


def test_a_loss_alone_that_is_not_finite_has_no_module(model):
    assert trace(model, scale=1e30) == dict(repeated=True, module=None, attention=None)
    assert trace(model) == dict(repeated=False, module=None, attention=None)


def test_the_last_good_weights_are_whole_and_finite(tmp_path):
    run(tmp_path, config=QUICK)
    assert last_good(tmp_path) == weights(tmp_path, 4)
    weights(tmp_path, 4).write_bytes(weights(tmp_path, 4).read_bytes()[:-1])
    assert last_good(tmp_path) == weights(tmp_path, 2)
    held = load_weights(weights(tmp_path, 2))
    next(iter(held.values())).view(-1)[0] = math.nan
    weights(tmp_path, 2).write_bytes(save(held, {"sha256": checksum(held)}))
    assert last_good(tmp_path) == weights(tmp_path, 1)
    weights(tmp_path, 1).unlink()
    assert last_good(tmp_path) == weights(tmp_path, 0)
    weights(tmp_path, 0).unlink()
    assert last_good(tmp_path) is None
